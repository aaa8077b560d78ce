"""Folders of one's own images: prepared, trained and compared with no further setting."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from PIL import Image

from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.settings.config import load_run
from regbench.cli import main
from regbench.datasets.beton import Beton

CLASSES = ("heron", "ibis", "stork")
# What a run of a second needs beside: none of it is about the images.
QUICK = (
    "embedding_dim=16",
    "epochs=1",
    "evaluation.probe.epochs=1",
    "runtime.device=cpu",
    "runtime.loader=torchvision",
)


def draw(folder: Path, count: int, size_px: int = 32, mode: str = "RGB", first: int = 0) -> Path:
    """So many images of each class in `folder/CLASS/`, all different."""
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(first, first + count):
            rng = np.random.default_rng([label, i])
            shape = (size_px, size_px + i % 3, 3)
            picture = Image.fromarray(rng.integers(60 * label, 60 * label + 100, shape, dtype=np.uint8))
            picture.convert(mode).save(folder / name / f"{name}_{i:03d}.png")
    return folder


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where data sets and runs are by default."""
    monkeypatch.setenv("REGBENCH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("REGBENCH_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "data"


def call(*arguments: str | Path) -> Result:
    """The command, which succeeds."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="regbench")
    assert result.exit_code == 0, result.output
    return result


def refusal(*arguments: str | Path) -> str:
    """The one line in which the command refuses."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="regbench")
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    return line


def manifest(data_dir: Path, name: str = "imagefolder") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((data_dir / name / "manifest.json").read_text())
    return content


def origins(data_dir: Path, split: str) -> list[str]:
    """The files that are in a split."""
    lines = (data_dir / "imagefolder" / f"{split}.origins.txt").read_text().splitlines()
    return [line.partition(" ")[2] for line in lines]


# ------------------------------------------------------------------------------------------------- the two commands


def test_prepare_then_train(data_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    call("prepare", "imagefolder", "--source-dir", draw(tmp_path / "birds", 40))
    call("train", "dataset=imagefolder", "method=vicreg", *QUICK)
    (line,) = [message for message in caplog.messages if message.startswith("chosen to fit: ")]
    for setting in ("augmentation=small_color", "network=resnet_tiny", "batch_size=64", "optimizer.warmup_epochs=0.5"):
        assert setting in line.split()
    (directory,) = (tmp_path / "runs" / "manual").iterdir()
    record = read_record(directory)
    assert record is not None
    assert record.status == "done"
    cell = record.cell
    assert cell["dataset"]["num_classes"] == 3
    assert (cell["dataset"]["image_size"], cell["dataset"]["eval_resize"], cell["dataset"]["channels"]) == (32, 32, 3)
    assert cell["augmentation"]["name"] == "small_color"
    assert cell["network"]["backbone"] == "resnet_tiny"
    assert cell["optimizer"]["warmup_epochs"] == 0.5
    assert {score.split for score in record.scores} == {"tuning", "test"}
    # What was chosen can be given, and is the same cell.
    given = line.removeprefix("chosen to fit: ").split()
    assert load_run(["dataset=imagefolder", "method=vicreg", *QUICK, *given])[0].id == directory.name


@pytest.mark.slow
def test_prepare_then_sweep_of_five_methods(data_dir: Path, tmp_path: Path) -> None:
    call("prepare", "imagefolder", "--source-dir", draw(tmp_path / "birds", 40))
    call("sweep", "own_images", "--report", *QUICK)
    paths = (tmp_path / "runs" / "own_images").glob("*/record.json")
    labels = {record.label for path in paths if (record := read_record(path.parent))}
    assert labels == {"untrained", "SFRIK (L=2)", "AUH", "SimCLR", "VICReg", "Barlow Twins"}


# ---------------------------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize(
    ("folders", "counts", "taken_from"),
    [
        ({"": 20}, (48, 6, 6), ("./, the rest", "./, 0.1 of each class", "./, 0.1 of each class")),
        ({"train": 20}, (48, 6, 6), ("train/, the rest", "train/, 0.1 of each class", "train/, 0.1 of each class")),
        ({"train": 20, "val": 3}, (54, 6, 9), ("train/, the rest", "train/, 0.1 of each class", "val/")),
        ({"train": 20, "test": 3}, (54, 6, 9), ("train/, the rest", "train/, 0.1 of each class", "test/")),
        ({"train": 20, "val": 3, "test": 4}, (60, 9, 12), ("train/", "val/", "test/")),
        ({"": 3}, (3, 3, 3), ("./, the rest", "./, 0.1 of each class", "./, 0.1 of each class")),
    ],
)
def test_splits_are_made(
    folders: dict[str, int], counts: tuple[int, ...], taken_from: tuple[str, ...], data_dir: Path, tmp_path: Path
) -> None:
    for number, (folder, count) in enumerate(folders.items()):
        draw(tmp_path / "birds" / folder, count, 8, first=100 * number)
    printed = call("prepare", "imagefolder", "--source-dir", tmp_path / "birds").output
    written = manifest(data_dir)
    assert list(written["splits"]) == ["train", "tuning", "test"]
    assert tuple(entry["num_samples"] for entry in written["splits"].values()) == counts
    for split, origin in zip(written["splits"], taken_from, strict=True):
        assert written["taken_from"][split].startswith(origin)
        assert f"from {origin}" in printed
        assert set(Beton(data_dir / "imagefolder" / f"{split}.beton").labels) == {0, 1, 2}
    files = [file for split in written["splits"] for file in origins(data_dir, split)]
    assert len(files) == len(set(files)) == 3 * sum(folders.values())


def test_the_same_images_are_held_out_wherever_they_lie_and_whatever_comes_to_them(
    data_dir: Path, tmp_path: Path
) -> None:
    birds = draw(tmp_path / "birds", 20, 8)
    call("prepare", "imagefolder", "--source-dir", birds)
    before = {split: origins(data_dir, split) for split in ("train", "tuning", "test")}
    assert before["test"] != sorted(before["train"] + before["test"])[:6]  # neither the first nor the last
    call("prepare", "imagefolder", "--source-dir", draw(tmp_path / "again", 20, 8), "--force")
    assert {split: origins(data_dir, split) for split in before} == before


def test_a_class_that_is_too_small_is_refused(data_dir: Path, tmp_path: Path) -> None:
    line = refusal("prepare", "imagefolder", "--source-dir", draw(tmp_path / "birds", 2, 8))
    assert "at least 3 images" in line and "heron has 2" in line


def test_a_folder_without_classes_is_refused(data_dir: Path, tmp_path: Path) -> None:
    assert "birds/ is missing" in refusal("prepare", "imagefolder", "--source-dir", tmp_path / "birds")
    (tmp_path / "birds").mkdir()
    line = refusal("prepare", "imagefolder", "--source-dir", tmp_path / "birds")
    assert "birds/ has no class folders" in line and "with CLASS/*.jpg, or train/CLASS/*.jpg" in line
    draw(tmp_path / "birds" / "val", 3, 8)
    assert "train/ is missing" in refusal("prepare", "imagefolder", "--source-dir", tmp_path / "birds")


def test_classes_that_lack_in_a_folder_are_refused(data_dir: Path, tmp_path: Path) -> None:
    birds = tmp_path / "birds"
    for folder in ("train", "val", "test"):
        draw(birds / folder, 3, 8)
    (birds / "test" / "ibis").rename(birds / "test" / "owl")
    line = refusal("prepare", "imagefolder", "--source-dir", birds)
    assert "test/ lacks 1 classes of train/: ibis" in line and "train/ lacks 1 classes of test/: owl" in line


def test_numbers_that_are_given_divide(data_dir: Path, tmp_path: Path) -> None:
    draw(tmp_path / "birds" / "train", 20, 8)
    draw(tmp_path / "birds" / "val", 3, 8, first=100)
    numbers = ("dataset.source.train_per_class=9", "dataset.source.tuning_per_class=4")
    call("prepare", "imagefolder", "--source-dir", tmp_path / "birds", *numbers)
    assert [entry["num_samples"] for entry in manifest(data_dir)["splits"].values()] == [27, 12, 9]
    cell, _ = load_run(["dataset=imagefolder", *numbers])
    assert cell.plain()["dataset"]["source"]["held_out"] is None
    assert cell.dataset.num_classes == 3


@pytest.mark.parametrize("share", ["0", "0.5", "nan"])
def test_shares_that_cannot_be_are_refused(share: str) -> None:
    assert "held_out" in refusal("train", "dataset=imagefolder", f"dataset.source.held_out={share}")
    assert "held_out" in refusal("train", "dataset=cifar10", f"dataset.source.held_out={share}")


# ---------------------------------------------------------------------------------------- what is chosen by the images


@pytest.mark.parametrize(
    ("size_px", "mode", "expected"),
    [
        (28, "L", ("small_grey", "resnet_tiny", 28, 28, 1)),
        (28, "RGB", ("small_color", "resnet_tiny", 28, 28, 3)),
        (28, "P", ("small_color", "resnet_tiny", 28, 28, 3)),
        (99, "RGB", ("small_color", "resnet_tiny", 99, 99, 3)),
        (100, "RGB", ("imagenet", "resnet18", 100, 100, 3)),
        (240, "L", ("imagenet", "resnet18", 224, 240, 1)),
        (300, "RGB", ("imagenet", "resnet18", 224, 256, 3)),
    ],
)
def test_what_fits_the_images_is_chosen(
    size_px: int, mode: str, expected: tuple[object, ...], data_dir: Path, tmp_path: Path
) -> None:
    call("prepare", "imagefolder", "--source-dir", draw(tmp_path / "birds", 3, size_px, mode), "dataset.name=birds")
    cell, _ = load_run(["dataset=imagefolder", "dataset.name=birds"])
    dataset = cell.dataset
    chosen = (cell.augmentation.name, cell.network.backbone, dataset.image_size, dataset.eval_resize, dataset.channels)
    assert chosen == expected
    assert cell.network.stem == ("imagenet" if expected[1] == "resnet18" else "small")
    assert len(dataset.mean) == len(dataset.std) == dataset.channels
    assert dataset.num_classes == 3


def test_what_is_given_wins(data_dir: Path, tmp_path: Path) -> None:
    call("prepare", "imagefolder", "--source-dir", draw(tmp_path / "birds", 3, 120, "L"))
    given = ["augmentation=small_grey", "network=resnet50", "batch_size=2", "dataset.mean=[0.1]"]
    cell, _ = load_run(["dataset=imagefolder", "dataset.image_size=64", *given])
    assert (cell.augmentation.name, cell.network.backbone, cell.batch_size) == ("small_grey", "resnet50", 2)
    assert (cell.dataset.image_size, cell.dataset.eval_resize, cell.dataset.mean) == (64, 73, (0.1,))
    cell, _ = load_run(["dataset=imagefolder", "dataset.channels=3", "dataset.image_size=64"])
    assert (cell.augmentation.name, cell.network.backbone) == ("small_color", "resnet_tiny")
    assert len(cell.dataset.mean) == 3


def test_images_are_read_anew_when_others_come(data_dir: Path, tmp_path: Path) -> None:
    birds = draw(tmp_path / "birds", 3, 8)
    call("prepare", "imagefolder", "--source-dir", birds)
    (birds / "ibis").rename(tmp_path / "ibis")
    call("prepare", "imagefolder", "--source-dir", birds, "--force")
    assert load_run(["dataset=imagefolder"])[0].dataset.num_classes == 2


def test_what_is_published_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for name in ("in20", "in100", "cifar10", "places205"):
        cell, _ = load_run([f"dataset={name}"])
        assert (cell.augmentation.name, cell.network.backbone, cell.batch_size) == ("small_grey", "resnet_tiny", 256)
        assert cell.plain()["dataset"]["source"].get("held_out") is None
    assert caplog.text == ""


# ------------------------------------------------------------------------------------------------- warm-up, advice


@pytest.mark.parametrize(("epochs", "expected"), [(1, 0.5), (2, 1.0), (5, 1.0), (100, 1.0), (0, 1.0)])
def test_the_warm_up_fits_the_epochs(epochs: int, expected: float) -> None:
    cell, _ = load_run([f"epochs={epochs}"])
    assert cell.optimizer.warmup_epochs == expected
    assert yaml.safe_load(yaml.safe_dump(cell.plain()))["optimizer"]["warmup_epochs"] == expected


def test_a_warm_up_that_is_given_is_not_changed() -> None:
    assert "optimizer.warmup_epochs=1 must be less" in refusal("train", "epochs=1", "optimizer.warmup_epochs=1")


@pytest.mark.parametrize(
    ("overrides", "command"),
    [
        (("dataset=imagefolder",), "regbench prepare imagefolder --source-dir FOLDER"),
        (("dataset=parquet",), "regbench prepare parquet --source-dir FOLDER"),
        (
            ("dataset=imagefolder", "dataset.name=birds"),
            "regbench prepare imagefolder --source-dir FOLDER dataset.name=birds",
        ),
        (("dataset=parquet", "dataset.name=birds"), "regbench prepare parquet --source-dir FOLDER dataset.name=birds"),
        (("dataset=in20",), "regbench prepare in20 --source-dir FOLDER"),
    ],
)
def test_the_advice_prepares_what_is_missing(overrides: tuple[str, ...], command: str, data_dir: Path) -> None:
    line = refusal("train", *overrides)
    assert command in line
    assert ("dataset.name" in command) == ("dataset.name" in line)
