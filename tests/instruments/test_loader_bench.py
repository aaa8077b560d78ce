"""`regbench loader-bench`: all contestants deliver two views of the right shape, and the tables are complete."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from regbench import RegbenchError
from regbench.cli import main
from regbench.datasets.beton import Beton
from regbench.instruments.cost import loaders
from regbench.instruments.cost.contestants import BASELINE, CONTESTANTS, Contestant, Task
from regbench.instruments.cost.harness import Machine
from regbench.instruments.cost.images import SCENARIOS, PreparedImages, chosen_images, make_images
from regbench.instruments.cost.loaders import LoaderSpeed

FFCV = importlib.util.find_spec("ffcv") is not None
JPEGS = replace(SCENARIOS["256"], height=40, width=56, image_size=24, distinct=6, copies=4)
RAW = replace(SCENARIOS["raw32"], height=28, width=28, image_size=20, distinct=6, copies=4)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loader_bench")


@pytest.fixture(scope="module")
def jpegs(data_dir: Path) -> PreparedImages:
    return make_images(JPEGS, data_dir)


@pytest.fixture(scope="module")
def raws(data_dir: Path) -> PreparedImages:
    return make_images(RAW, data_dir)


def task_of(images: PreparedImages) -> Task:
    return replace(Task.of(images, 1, "cpu"), batch_size=4)


# ---------------------------------------------------------------------------------------------------------- images


def test_the_images_are_as_hard_to_code_as_photographs(tmp_path: Path) -> None:
    for name, low, high in (("256", 20e3, 40e3), ("500x375", 90e3, 130e3)):
        scenario = replace(SCENARIOS[name], distinct=4, copies=2)
        images = make_images(scenario, tmp_path)
        beton = Beton(tmp_path / name / "train.beton")
        assert low < beton.size.mean() < high
        sides = sorted((scenario.height, scenario.width))
        assert [sorted(side) for side in zip(beton.heights.tolist(), beton.widths.tolist(), strict=True)] == [sides] * 8
        assert f"{name}: 8 images, {sides[1]} x {sides[0]} px, JPEG, " in str(images)


def test_the_images_are_the_same_each_time(tmp_path: Path, jpegs: PreparedImages) -> None:
    again = make_images(JPEGS, tmp_path)
    files = [images.file for images in (jpegs, again)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(set(Beton(files[0]).size.tolist())) > 1


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(RegbenchError, match="unknown scenario '512'; choose 256, 500x375, raw32"):
        chosen_images(["512"], None).__enter__()


# ----------------------------------------------------------------------------------------------------- contestants

# FFCV compiles for many seconds. What its own loader compiles makes noise when it is collected: it is in the test of
# the command.
CASES = [
    pytest.param(
        *(contestant, part),
        id=f"{contestant.name} {contestant.interpolation} {part}",
        marks=[pytest.mark.slow] * contestant.needs_ffcv,
    )
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
    images: PreparedImages = request.getfixturevalue(form)
    task = task_of(images)
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


# ------------------------------------------------------------------------------------------------------- measuring


def test_ffcv_is_left_out_by_name_where_it_is_missing(jpegs: PreparedImages, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ffcv" else find(name, *rest))
    chosen = [
        replace(each, parts=("crops",)) for each in CONTESTANTS if each.name == BASELINE or each.name == "regbench"
    ]
    rows, machine = loaders.measure([jpegs], workers=1, seconds=0.01, rounds=2, contestants=chosen)
    assert [(r.contestant, r.interpolation) for r in rows] == [(c.name, c.interpolation) for c in chosen]
    baseline, *others = rows
    assert baseline.ratio == [1.0, 1.0]
    assert len(baseline.img_per_s) == 2
    assert baseline.delivered == "uint8 24x3x24x24"
    assert {r.note for r in others} == {"left out: FFCV is not installed: pip install 'regbench[ffcv]'"}
    assert machine.settings == {"workers": 1, "rounds": 2, "seconds": 0.01}
    assert loaders.tables(rows).count("FFCV is not installed") == len(others)


def test_a_contestant_that_fails_is_left_out(tmp_path: Path) -> None:
    images = make_images(JPEGS, tmp_path)
    content, beton = bytearray(images.file.read_bytes()), Beton(images.file)
    for start in beton.start:
        content[start : start + 8] = b"garbage!"
    images.file.write_bytes(content)
    chosen = [replace(CONTESTANTS[0], parts=("crops",))]
    (row,), _ = loaders.measure([images], workers=1, seconds=0.01, rounds=1, contestants=chosen)
    assert row.note.startswith("left out: UnidentifiedImageError")
    assert not row.img_per_s and not row.ratio


def test_numbers_that_cannot_be_are_refused(jpegs: PreparedImages) -> None:
    with pytest.raises(RegbenchError, match="--workers is 1000; choose 1 to "):
        loaders.measure([jpegs], workers=1000, seconds=1, rounds=1)
    with pytest.raises(RegbenchError, match="--rounds is 0"):
        loaders.measure([jpegs], workers=1, seconds=1, rounds=0)


@pytest.mark.slow
def test_the_command(tiny_data_dir: Path, tmp_path: Path) -> None:
    overrides = [
        *("dataset.name=tiny", "dataset.num_classes=3", "dataset.image_size=24", "dataset.eval_resize=24"),
        *("dataset.source.train_per_class=40", "dataset.source.tuning_per_class=12", "augmentation=small_color"),
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


def row(interpolation: str, rates: Sequence[float], **rest: object) -> LoaderSpeed:
    base = LoaderSpeed(
        images="256", raw=False, part="crops", device="cpu", contestant="regbench", interpolation=interpolation
    )
    return replace(base, img_per_s=rates, **rest)  # type: ignore[arg-type]


def test_the_table_gives_median_range_and_views() -> None:
    table = loaders.tables([row("area", (100, 400, 200), ratio=(1, 4, 2), delivered="uint8 1x2")])
    (line,) = [line for line in table.splitlines() if line.startswith("regbench")]
    assert line.split() == ["regbench", "area", "200", "100–400", "400", "2.00", "1.00–4.00", "2", "x", "uint8", "1x2"]


def test_the_csv_has_a_line_for_each_round_and_for_each_left_out(tmp_path: Path) -> None:
    rows = [row("area", (1.5, 2.5), ratio=(0.5, 1.0)), row("area", (), note="left out: none")]
    loaders.write(rows, Machine("2 cores", {"torch": "9"}, {"workers": 2}), tmp_path / "x.csv")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    assert [(line["round"], line["img_per_s"], line["ratio"]) for line in lines] == [
        *(("1", "1.5", "0.5"), ("2", "2.5", "1.0"), ("", "", ""))
    ]
    assert lines[2]["note"] == "left out: none"
    assert {line["torch"] for line in lines} == {"9"}
