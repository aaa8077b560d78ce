"""`regbench loader-bench`: all contestants deliver two views of the right shape, and the tables are complete."""

from __future__ import annotations

import csv
import importlib.util
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from regbench import RegbenchError
from regbench.benchmark.cost import contestants as loader_contestants
from regbench.benchmark.cost import loaders as loader_bench
from regbench.benchmark.cost.contestants import BASELINE, CONTESTANTS, Contestant
from regbench.benchmark.cost.loader_memory import MIB, MemoryRow, growth, measure_memory, memory_table
from regbench.benchmark.cost.loaders import Images, Machine, Row, Scenario
from regbench.cli import main
from regbench.datasets.beton import Beton

FFCV = importlib.util.find_spec("ffcv") is not None
JPEGS = replace(loader_bench.SCENARIOS["256"], height=40, width=56, image_size=24, distinct=6, copies=4)
RAW = replace(loader_bench.SCENARIOS["raw32"], height=28, width=28, image_size=20, distinct=6, copies=4)
MACHINE = Machine(cpu="2 cores of a CPU", gpu="", workers=2, rounds=3, seconds=1.0, versions="torch 9")


def made(scenario: Scenario, folder: Path) -> Images:
    config = loader_bench.make_images(scenario, folder)
    return Images(name=scenario.name, dataset=config, augmentation=scenario.augmentation, data_dir=folder)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loader_bench")


@pytest.fixture(scope="module")
def jpegs(data_dir: Path) -> Images:
    return made(JPEGS, data_dir)


@pytest.fixture(scope="module")
def raws(data_dir: Path) -> Images:
    return made(RAW, data_dir)


def row(contestant: str, interpolation: str, rates: tuple[float, ...], part: str = "crops", **rest: object) -> Row:
    base = Row(images="256", raw=False, part=part, device="cpu", contestant=contestant, interpolation=interpolation)
    return replace(base, img_per_s=rates, **rest)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- images


def test_the_images_are_as_hard_to_code_as_photographs(tmp_path: Path) -> None:
    for name, low, high in (("256", 20e3, 40e3), ("500x375", 90e3, 130e3)):
        scenario = replace(loader_bench.SCENARIOS[name], distinct=4, copies=2)
        images = made(scenario, tmp_path)
        beton = Beton(tmp_path / name / "train.beton")
        assert low < beton.size.mean() < high
        sides = sorted((scenario.height, scenario.width))
        assert [sorted(side) for side in zip(beton.heights.tolist(), beton.widths.tolist(), strict=True)] == [sides] * 8
        assert f"{name}: 8 images, {sides[1]} x {sides[0]} px, JPEG, " in str(images)


def test_the_images_are_the_same_each_time(tmp_path: Path, jpegs: Images) -> None:
    again = made(JPEGS, tmp_path)
    files = [images.data_dir / images.name / "train.beton" for images in (jpegs, again)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(set(Beton(files[0]).size.tolist())) > 1


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(RegbenchError, match="unknown scenario '512'; choose 256, 500x375, raw32"):
        loader_bench.images(["512"], None).__enter__()


# ----------------------------------------------------------------------------------------------------- contestants

# FFCV's own loader compiles for seconds each time, and what it compiles makes noise when it is collected: it is in the
# test of the command.
CASES = [
    pytest.param(contestant, part, id=f"{contestant.name} {contestant.interpolation} {part}")
    for contestant in CONTESTANTS
    for part in contestant.parts
    if not contestant.name.startswith("FFCV")
]


@pytest.mark.parametrize("form", ["jpegs", "raws"])
@pytest.mark.parametrize("contestant, part", CASES)
def test_it_delivers_two_different_views(
    contestant: Contestant, part: str, form: str, request: pytest.FixtureRequest
) -> None:
    if contestant.needs_ffcv and not FFCV:
        pytest.skip("needs FFCV")
    images: Images = request.getfixturevalue(form)
    task = replace(images.task(1, "cpu"), batch_size=4)
    size = task.dataset.image_size
    batches = contestant.make(task, part, contestant.interpolation)
    first: list[Tensor] = []
    for _ in range(2):  # as often as one asks
        count = 0
        for one, two in batches(3):
            count += 1
            assert one.dtype == two.dtype == (torch.uint8 if part == "crops" else torch.float32)
            assert one.shape == two.shape
            assert tuple(one.shape) in ((4, 3, size, size), (4, size, size, 3))
            assert one.float().std() > 0
            assert not torch.equal(one, two)
            first.append(one.clone())
        assert count >= 3
    assert not torch.equal(first[0], first[1])


@pytest.mark.skipif(not FFCV, reason="needs FFCV")
def test_a_decode_per_view_makes_the_same_crops(jpegs: Images) -> None:
    task = replace(jpegs.task(1, "cpu"), batch_size=4)
    once, per_view = (
        [
            (one.clone(), two.clone())
            for one, two in next(c for c in CONTESTANTS if (c.name, c.interpolation) == (name, "area")).make(
                task, "crops", "area"
            )(2)
        ]
        for name in ("regbench", "regbench, a decode per view")
    )
    assert len(once) == len(per_view) == 2
    for pair, other in zip(once, per_view, strict=True):
        assert torch.equal(pair[0], other[0])
        assert torch.equal(pair[1], other[1])


# ------------------------------------------------------------------------------------------------------- measuring


def test_ffcv_is_left_out_by_name_where_it_is_missing(jpegs: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ffcv" else find(name, *rest))
    # In their processes they are found by their number.
    crops_only = [replace(each, parts=("crops",)) for each in CONTESTANTS]
    chosen = [each for each in crops_only if each.name == BASELINE or each.needs_ffcv]
    hidden = [each if each in chosen else replace(each, parts=()) for each in crops_only]
    monkeypatch.setattr(loader_bench, "CONTESTANTS", hidden)
    rows, machine = loader_bench.measure([jpegs], workers=1, seconds=0.01, rounds=2)
    assert [(r.contestant, r.interpolation) for r in rows] == [(c.name, c.interpolation) for c in chosen]
    baseline, *others = rows
    assert baseline.ratio == (1.0, 1.0)
    assert len(baseline.img_per_s) == 2
    assert baseline.delivered == "uint8 24x3x24x24"
    assert {r.note for r in others} == {"left out: FFCV is not installed: pip install 'regbench[ffcv]'"}
    assert machine.workers == 1
    assert "ffcv" not in machine.versions
    assert loader_bench.table(rows).count("FFCV is not installed") == len(others)


def test_a_contestant_that_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = made(JPEGS, tmp_path)
    path = tmp_path / JPEGS.name / "train.beton"
    content, beton = bytearray(path.read_bytes()), Beton(path)
    for start in beton.start:
        content[start : start + 8] = b"garbage!"
    path.write_bytes(content)
    monkeypatch.setattr(loader_bench, "CONTESTANTS", [replace(CONTESTANTS[0], parts=("crops",))])
    (row,), _ = loader_bench.measure([images], workers=1, seconds=0.01, rounds=1)
    assert row.note.startswith("left out: UnidentifiedImageError")
    assert row.img_per_s == row.ratio == ()


def test_numbers_that_cannot_be_are_refused(jpegs: Images) -> None:
    with pytest.raises(RegbenchError, match="--workers is 1000; choose 1 to "):
        loader_bench.measure([jpegs], workers=1000, seconds=1, rounds=1)
    with pytest.raises(RegbenchError, match="--rounds is 0"):
        loader_bench.measure([jpegs], workers=1, seconds=1, rounds=0)


@pytest.mark.slow
def test_the_command(tiny_data_dir: Path, tmp_path: Path) -> None:
    overrides = [
        *("dataset.name=tiny", "dataset.num_classes=3", "dataset.image_size=24", "dataset.eval_resize=24"),
        *("dataset.train_per_class=40", "dataset.tuning_per_class=12", "augmentation=small_color"),
        f"runtime.data_dir={tiny_data_dir}",
    ]
    out = tmp_path / "loaders.csv"
    options = ["--data", "imagefolder", "--workers", "1", "--seconds", "0.05", "--rounds", "2", "--out", str(out)]
    done = CliRunner().invoke(main, ["loader-bench", *options, *overrides], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "tiny: 120 images, 28 x 28 px, JPEG" in done.output
    lines = list(csv.DictReader(io.StringIO(out.read_text())))
    found = {(line["part"], line["contestant"], line["interpolation"]) for line in lines if line["device"] == "cpu"}
    assert found == {(part, each.name, each.interpolation) for each in CONTESTANTS for part in each.parts}
    if FFCV:
        assert not any(line["note"] for line in lines)
        crops = {"uint8 120x3x24x24", "uint8 120x24x24x3"}
        assert {line["delivered"] for line in lines if line["part"] == "crops"} == crops
        assert {line["delivered"] for line in lines if line["part"] == "views"} == {"float32 120x3x24x24"}
        assert {line["round"] for line in lines} == {"1", "2"}


def test_settings_without_a_data_set_are_refused() -> None:
    done = CliRunner().invoke(main, ["loader-bench", "augmentation=small_color"])
    assert done.exit_code == 2
    assert "name it: --data DATASET" in done.output


# ---------------------------------------------------------------------------------------------------------- tables


def all_rows(speed: float) -> list[Row]:
    """PIL does 100 images a second, regbench `speed` times as much and twice as much as with a decode per view."""
    rows = [row(BASELINE, "bicubic", (100, 100, 100), part, ratio=(1, 1, 1)) for part in loader_contestants.PARTS]
    for part in loader_contestants.PARTS:
        for filter_ in ("bicubic", "area"):
            ratio = (0.9 * speed, speed, 3 * speed)
            own = (90 * speed, 100 * speed, 300 * speed)
            rows.append(row("regbench", filter_, own, part, ratio=ratio))
    slow = (45 * speed, 50 * speed, 150 * speed)
    rows.append(row("regbench, a decode per view", "bicubic", slow, ratio=tuple(rate / 100 for rate in slow)))
    return rows


def test_targets_are_compared_with_medians() -> None:
    met = {o.target.least: o.ratio for o in loader_bench.outcomes(all_rows(3.0))}
    assert set(met) == {2.5, 4.0, 1.25, 2.0}
    assert met[1.25] == pytest.approx((2, 2, 2))
    assert met[2.5] == pytest.approx((2.7, 3, 9))
    lines = loader_bench.targets_table(loader_bench.outcomes(all_rows(3.0))).splitlines()[2:]
    assert [line.rstrip().endswith("not met") for line in lines] == [False, True, False, False]
    assert all(line.rstrip().endswith("met") for line in lines)


def test_the_target_of_raw_images_is_theirs_alone() -> None:
    raw = [replace(each, raw=True) for each in all_rows(12.0)]
    assert [o.target.least for o in loader_bench.outcomes(raw)] == [2.0, 10.0]


def test_a_target_whose_loader_was_left_out_is_open() -> None:
    rows = [replace(each, img_per_s=(), ratio=()) if each.contestant != BASELINE else each for each in all_rows(3.0)]
    table = loader_bench.targets_table(loader_bench.outcomes(rows))
    assert "met" not in table


def test_the_table_gives_median_range_and_views() -> None:
    table = loader_bench.table([row("regbench", "area", (100, 400, 200), ratio=(1, 4, 2), delivered="uint8 1x2")])
    (line,) = [line for line in table.splitlines() if line.startswith("regbench")]
    assert line.split() == ["regbench", "area", "200", "100–400", "400", "2", "1–4", "2", "x", "uint8", "1x2"]


def test_the_csv_has_a_line_for_each_round_and_for_each_left_out(tmp_path: Path) -> None:
    rows = [row("regbench", "area", (1.5, 2.5), ratio=(0.5, 1.0)), row("FFCV", "area", (), note="left out: none")]
    loader_bench.write_csv(rows, MACHINE, tmp_path / "x.csv")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    assert [(line["round"], line["img_per_s"], line["ratio"]) for line in lines] == [
        *(("1", "1.5", "0.5"), ("2", "2.5", "1.0"), ("", "", ""))
    ]
    assert lines[2]["note"] == "left out: none"
    assert {line["versions"] for line in lines} == {"torch 9"}


# ---------------------------------------------------------------------------------------------------------- memory


@pytest.mark.slow
def test_memory_is_that_of_all_ranks() -> None:
    rows = measure_memory(ranks=(1, 2), copies=(1, 3), scenario=JPEGS)
    assert [r.ranks for r in rows] == [1, 2, 1, 2]
    assert rows[0].file_bytes == rows[1].file_bytes < rows[2].file_bytes
    assert all(r.private_bytes > 10 * MIB for r in rows)
    assert rows[1].total_bytes > 1.2 * rows[1].private_bytes


def test_growth_is_that_of_a_rank_among_the_most() -> None:
    def of(ranks: int, file_mib: int, private_mib: int) -> MemoryRow:
        return MemoryRow(ranks=ranks, file_bytes=file_mib * MIB, private_bytes=private_mib * MIB, total_bytes=0)

    rows = [of(1, 100, 500), of(4, 100, 300), of(1, 1100, 900), of(4, 1100, 305)]
    assert growth(rows) == 0.005
    assert memory_table(rows).endswith("grows by 0.50% of what the file grows; target: < 1%: met")
    assert memory_table([*rows[:3], of(4, 1100, 320)]).endswith("2.00% of what the file grows; target: < 1%: not met")
