"""`regbench loader-bench`: all contestants deliver two views of the right shape, and the tables
are complete.
"""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import Tensor

from regbench.cli import main
from regbench.datasets.stored.beton import Beton
from regbench.datasets.stored.prepare import prepare
from regbench.instruments.cost.harness import to_csv
from regbench.instruments.cost.images import SCENARIOS, PreparedImages, make_images, photo
from regbench.instruments.cost.loader_speed import CONTESTANTS, Contestant, measure, tables

FFCV = importlib.util.find_spec("ffcv") is not None
JPEGS = replace(SCENARIOS["256"], height=40, width=56, image_size=24, distinct=6, copies=4)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loader_bench")


@pytest.fixture(scope="module")
def jpegs(data_dir: Path) -> PreparedImages:
    return make_images(JPEGS, data_dir)


@pytest.fixture(scope="module")
def raws(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedImages:
    """Small images, stored as pixels."""
    folder = tmp_path_factory.mktemp("raws")
    for split, count in (("train", 24), ("val", 1)):
        (folder / split / "made").mkdir(parents=True)
        for number in range(count):
            Image.fromarray(photo(number, 28, 28)).save(folder / split / "made" / f"{number}.png")
    settings = [
        "dataset=imagefolder",
        "dataset.name=raws",
        "dataset.image_size=20",
        "dataset.eval_resize=20",
    ]
    settings += [
        "dataset.num_classes=1",
        "dataset.source.held_out=null",
        "augmentation=small_color",
    ]
    images = PreparedImages.of([*settings, f"runtime.data_dir={data_dir}"])
    prepare(images.dataset, data_dir, source_dir=folder, progress=False)
    assert str(images) == "raws: 24 images, 28 x 28 px, raw"
    return images


# --------------------------------------------------------------------------------------------------
# images


def test_the_images_are_as_hard_to_code_as_photographs(tmp_path: Path) -> None:
    for name, low, high in (("256", 20e3, 40e3), ("500x375", 90e3, 130e3)):
        scenario = replace(SCENARIOS[name], distinct=4, copies=2)
        images = make_images(scenario, tmp_path)
        beton = Beton(images.file)
        assert low < beton.size.mean() < high
        sides = sorted((scenario.height, scenario.width))
        assert [
            sorted(side) for side in zip(beton.heights.tolist(), beton.widths.tolist(), strict=True)
        ] == [sides] * 8
        assert f"made_{name}: 8 images, {sides[1]} x {sides[0]} px, JPEG, " in str(images)


def test_the_images_are_the_same_each_time(tmp_path: Path, jpegs: PreparedImages) -> None:
    again = make_images(JPEGS, tmp_path)
    files = [images.file for images in (jpegs, again)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(set(Beton(files[0]).size.tolist())) > 1


# --------------------------------------------------------------------------------------------------
# contestants

# FFCV compiles for many seconds.
CASES = [
    pytest.param(
        each,
        id=f"{each.name} {each.interpolation}",
        marks=[pytest.mark.slow] * (each.backend == "ffcv"),
    )
    for each in CONTESTANTS
]


@pytest.mark.parametrize("form", ["jpegs", "raws"])
@pytest.mark.parametrize("contestant", CASES)
def test_it_delivers_two_different_views(
    contestant: Contestant, form: str, request: pytest.FixtureRequest
) -> None:
    if contestant.backend == "ffcv" and not FFCV:
        pytest.skip("needs FFCV")
    images: PreparedImages = request.getfixturevalue(form)
    size = images.dataset.image_size
    batches = contestant.open(images, 4, 1, torch.device("cpu"))
    first: list[Tensor] = []
    for _ in range(2):  # as often as one asks
        count = 0
        for one, two in batches(3):
            count += 1
            assert one.dtype == two.dtype == torch.float32
            assert one.shape == two.shape == (4, 3, size, size)
            assert one.std() > 0
            assert not torch.equal(one, two)
            first.append(one.clone())
        assert count == 3
    assert not torch.equal(first[0], first[1])


# --------------------------------------------------------------------------------------------------
# measuring


def test_a_contestant_that_fails_is_left_out_by_name(jpegs: PreparedImages) -> None:
    chosen = [CONTESTANTS[0], replace(CONTESTANTS[0], name="nobody's", backend="none")]
    lines, machine = measure([jpegs], workers=1, seconds=0.01, rounds=2, contestants=chosen)
    *rounds, failed = lines
    assert [(line["contestant"], line["round"], line["ratio"]) for line in rounds] == [
        ("torchvision PIL", 1, 1.0),
        ("torchvision PIL", 2, 1.0),
    ]
    assert all(
        line["img_per_s"] > 0 and line["delivered"] == "float32 24x3x24x24" for line in rounds
    )
    assert failed["contestant"] == "nobody's"
    assert failed["note"].startswith("left out: ") and "none" in failed["note"]
    assert "img_per_s" not in failed
    assert (machine["workers"], machine["rounds"], machine["seconds"]) == (1, 2, 0.01)
    assert tables(lines).count("left out: ") == 1


@pytest.mark.slow
def test_the_command(tiny_data_dir: Path, tmp_path: Path) -> None:
    overrides = [
        *(
            "dataset.name=tiny",
            "dataset.num_classes=3",
            "dataset.image_size=24",
            "dataset.eval_resize=24",
        ),
        *(
            "dataset.source.train_per_class=40",
            "dataset.source.tuning_per_class=12",
            "augmentation=small_color",
        ),
        f"runtime.data_dir={tiny_data_dir}",
    ]
    out = tmp_path / "loaders.csv"
    options = [
        "--data",
        "imagefolder",
        "--workers",
        "1",
        "--seconds",
        "0.05",
        "--rounds",
        "2",
        "--out",
        str(out),
    ]
    done = CliRunner().invoke(main, ["loader-bench", *options, *overrides], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "tiny: 120 images, 28 x 28 px, JPEG" in done.output
    lines = list(csv.DictReader(io.StringIO(out.read_text())))
    assert {(line["contestant"], line["interpolation"]) for line in lines} == {
        (each.name, each.interpolation) for each in CONTESTANTS
    }
    if FFCV:
        assert not any(line["note"] for line in lines)
        assert {line["delivered"] for line in lines} == {"float32 120x3x24x24"}
        assert {line["round"] for line in lines} == {"1", "2"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["augmentation=small_color"], "name it: --data DATASET"),
        (["--workers", "1000"], "--workers is 1000; choose 1 to "),
        (["--rounds", "0"], "0 is not in the range"),
        (["--seconds", "0"], "0 is not a number above 0"),
        (["--scenario", "512"], "'512' is not one of '256', '500x375'"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: Sequence[str], said: str) -> None:
    done = CliRunner().invoke(main, ["loader-bench", *options])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


# --------------------------------------------------------------------------------------------------
# tables


LINE: dict[str, Any] = {
    "images": "256",
    "device": "cpu",
    "contestant": "regbench",
    "interpolation": "area",
}


def test_the_table_gives_median_range_and_views() -> None:
    lines = [
        {
            **LINE,
            "note": "",
            "delivered": "float32 1x2",
            "round": i,
            "img_per_s": 100.0 * ratio,
            "ratio": ratio,
        }
        for i, ratio in enumerate((1.0, 4.0, 2.0))
    ]
    (line,) = [line for line in tables(lines).splitlines() if line.startswith("regbench")]
    assert line.split() == [
        "regbench",
        "area",
        *["200", "100–400", "400", "2.00", "1.00–4.00", "2", "x", "float32", "1x2"],
    ]


def test_the_csv_has_a_line_for_each_round_and_for_each_left_out() -> None:
    lines = [{**LINE, "note": "", "round": i, "img_per_s": 1.5, "ratio": 0.5} for i in (1, 2)]
    text = to_csv(
        [*lines, {**LINE, "note": "left out: none"}], {"hardware": "2 cores", "torch": "9"}
    )
    found = list(csv.DictReader(io.StringIO(text)))
    assert [(line["round"], line["img_per_s"]) for line in found] == [
        ("1", "1.5"),
        ("2", "1.5"),
        ("", ""),
    ]
    assert found[2]["note"] == "left out: none"
    assert {line["torch"] for line in found} == {"9"}
