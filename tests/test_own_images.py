"""Folders of one's own images: prepared, trained and compared with no further setting."""

from __future__ import annotations

import hashlib
import logging
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.rundir.record_parts import NamedFile, PastAttempt
from regbench.benchmark.settings.sweep import Sweep, SweepFile, load_run, load_sweep, read_rows
from regbench.datasets.fit import complete, fitting
from regbench.datasets.sources.base import Contents
from regbench.datasets.sources.imagefolder import ImageFolder
from regbench.datasets.stored.beton import MIN_PAGE_BYTES, Beton
from regbench.datasets.stored.manifest import Manifest, SplitEntry
from regbench.datasets.stored.prepare import prepare
from regbench.files import digest, write_bytes, write_text
from regbench.reports.find.records import read_records
from regbench.sweeps.own import own_file
from regbench.sweeps.status import CellStatus
from tests.command import done, refusal
from tests.records import made
from tests.refusals import is_refused
from tests.there import there

CLASSES = ("heron", "ibis", "stork")
# What a run of a second needs beside, the epochs first: none of it is about the images.
QUICK = ["epochs=1", "embedding_dim=16", "evaluation.probe.epochs=1"]
QUICK += ["runtime.device=cpu", "runtime.loader=torchvision"]


def draw(folder: Path, count: int, size_px: int = 32, mode: str = "RGB", first: int = 0) -> Path:
    """So many images of each class in `folder/CLASS/`, all different."""
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(first, first + count):
            rng = np.random.default_rng([label, i])
            shape, darkest = (size_px, size_px + i % 3, 3), 60 * label
            picture = Image.fromarray(rng.integers(darkest, darkest + 100, shape, dtype=np.uint8))
            picture.convert(mode).save(folder / name / f"{name}_{i:03d}.png")
    return folder


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where data sets and runs are by default."""
    monkeypatch.setenv("REGBENCH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("REGBENCH_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "data"


@pytest.fixture(scope="module")
def birds_manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Of three classes."""
    birds = draw(tmp_path_factory.mktemp("birds"), 3, 8)
    dataset = load_run(["dataset=imagefolder"])[0].dataset
    return prepare(dataset, tmp_path_factory.mktemp("data"), source_dir=birds)


# --------------------------------------------------------------------------------------------------
# the two commands


def test_prepare_then_train(
    data_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    done("prepare", "imagefolder", "--source-dir", draw(tmp_path / "birds", 30))
    done("train", "dataset=imagefolder", "method=vicreg", *QUICK)
    (line,) = [message for message in caplog.messages if message.startswith("chosen to fit: ")]
    fitted = ("augmentation=small_color", "network=resnet_tiny", "batch_size=64")
    for setting in (*fitted, "optimizer.warmup_epochs=0.5"):
        assert setting in line.split()
    (directory,) = (tmp_path / "runs" / "manual").iterdir()
    record = there(read_record(directory))
    assert record.status == "done"
    cell = record.cell
    assert cell["dataset"]["num_classes"] == 3
    found = [cell["dataset"][name] for name in ("image_size", "eval_resize", "channels")]
    assert found == [32, 32, 3]
    assert cell["augmentation"]["name"] == "small_color"
    assert cell["network"]["backbone"] == {"name": "resnet_tiny"}
    assert cell["optimizer"]["warmup_epochs"] == 0.5
    assert {score.split for score in record.scores} == {"tuning", "test"}
    # What was chosen can be given, and is the same cell.
    given = ["dataset=imagefolder", *line.removeprefix("chosen to fit: ").split()]
    assert load_run(["method=vicreg", *QUICK, *given])[0].id == directory.name


# --------------------------------------------------------------------------------------------------
# splits


REST, SHARE = ", the rest", ", 0.1 of each class"


def opened(birds: Path) -> Contents:
    return ImageFolder(held_out=0.1).open(birds, birds)


def files(contents: Contents, split: str) -> list[str]:
    return [origin for _, origin in contents.splits[split].images()]


@pytest.mark.parametrize(
    ("folders", "counts", "taken_from"),
    [
        ({"": 20}, (48, 6, 6), (f"./{REST}", f"./{SHARE}", f"./{SHARE}")),
        ({"train": 20}, (48, 6, 6), (f"train/{REST}", f"train/{SHARE}", f"train/{SHARE}")),
        ({"train": 20, "val": 3}, (54, 6, 9), (f"train/{REST}", f"train/{SHARE}", "val/")),
        ({"train": 20, "test": 3}, (54, 6, 9), (f"train/{REST}", f"train/{SHARE}", "test/")),
        ({"train": 20, "val": 3, "test": 4}, (60, 9, 12), ("train/", "val/", "test/")),
        ({"": 3}, (3, 3, 3), (f"./{REST}", f"./{SHARE}", f"./{SHARE}")),
    ],
)
def test_splits_are_made(
    folders: dict[str, int], counts: tuple[int, ...], taken_from: tuple[str, ...], tmp_path: Path
) -> None:
    for number, (folder, count) in enumerate(folders.items()):
        draw(tmp_path / folder, count, 8, first=100 * number)
    contents = opened(tmp_path)
    assert list(contents.splits) == ["train", "tuning", "test"]
    rows = zip(contents.splits.items(), counts, taken_from, strict=True)
    for (name, split), count, origin in rows:
        assert contents.taken_from[name].startswith(origin)
        assert split.labels.tolist() == [label for label in range(3) for _ in range(count // 3)]
    found = [file for split in contents.splits for file in files(contents, split)]
    assert len(found) == len(set(found)) == 3 * sum(folders.values())


def test_the_same_images_are_held_out_wherever_they_lie(tmp_path: Path) -> None:
    first, again = (opened(draw(tmp_path / name, 20, 8)) for name in ("birds", "again"))
    for split in first.splits:
        assert files(first, split) == files(again, split)
    test, train = files(first, "test"), files(first, "train")
    assert test != sorted(train + test)[:6]  # neither the first nor the last


def test_folders_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    with is_refused("at least 3 images to be divided: heron has 2"):
        opened(draw(tmp_path / "small", 2, 8))
    with is_refused("birds/ is missing"):
        opened(tmp_path / "birds")
    (tmp_path / "birds").mkdir()
    with is_refused(r"birds/ has no class folders.*with CLASS/\*\.jpg, or train/CLASS/\*\.jpg"):
        opened(tmp_path / "birds")
    draw(tmp_path / "birds" / "val", 3, 8)
    with is_refused("train/ is missing"):
        opened(tmp_path / "birds")
    for folder in ("train", "test"):
        draw(tmp_path / "birds" / folder, 3, 8)
    (tmp_path / "birds" / "test" / "ibis").rename(tmp_path / "birds" / "test" / "owl")
    with is_refused(r"test/ lacks 1 classes of train/: ibis; train/ lacks 1 .* test/: owl"):
        opened(tmp_path / "birds")


def test_numbers_that_are_given_divide() -> None:
    divided = ("dataset.source.train_per_class=9", "dataset.source.tuning_per_class=4")
    cell, _ = load_run(["dataset=imagefolder", *divided])
    assert cell.dataset.source == ImageFolder(train_per_class=9, tuning_per_class=4)


def test_shares_that_cannot_be_are_refused() -> None:
    for dataset, share in (("imagefolder", "0"), ("cifar10", "0.5"), ("imagefolder", "nan")):
        given = (f"dataset={dataset}", f"dataset.source.held_out={share}")
        assert "held_out" in refusal("train", *given)


# ---------------------------------------------------------------------------------------- what is
# chosen by the images


@pytest.mark.parametrize(
    ("image_px", "grey", "expected"),
    [
        (28, True, ("small_grey", "resnet_tiny", 28, 28, 1)),
        (28, True, ("small_color", "resnet_tiny", 28, 28, 3)),  # the test has colours
        (28, False, ("small_color", "resnet_tiny", 28, 28, 3)),
        (99, False, ("small_color", "resnet_tiny", 99, 99, 3)),
        (100, False, ("imagenet", "resnet18", 100, 100, 3)),
        (240, True, ("imagenet", "resnet18", 224, 240, 1)),
        (300, False, ("imagenet", "resnet18", 224, 256, 3)),
    ],
)
def test_what_fits_the_images_is_chosen(
    image_px: int,
    grey: bool,
    expected: tuple[object, ...],
    birds_manifest: Manifest,
    tmp_path: Path,
) -> None:
    entry: SplitEntry = {**birds_manifest.splits["train"], "num_samples": 100}
    entry["image_px"], entry["grey"] = image_px, grey
    test: SplitEntry = {**entry, "grey": expected[-1] == 1}
    splits = {"train": entry, "test": test}
    replace(birds_manifest, name="birds", splits=splits).save(tmp_path)
    birds = complete({"name": "birds", "source": "imagefolder"})
    chosen = fitting(birds, 256, 5, tmp_path, given=())
    of_images = [f"dataset.{name}" for name in ("image_size", "eval_resize", "channels")]
    names = ("augmentation", "network", *of_images)
    assert tuple(chosen[name] for name in names) == expected
    assert len(chosen["dataset.mean"]) == len(chosen["dataset.std"]) == expected[-1]
    assert (chosen["dataset.num_classes"], chosen["batch_size"]) == (3, 64)


@pytest.mark.parametrize(
    "case",
    [
        (50, [], 32, 500),
        (130, [], 64, 250),
        (480, [], 64, 72),
        (800, [], 128, 84),
        (1024, [], 256, 125),
        (100_000, [], 256, 5),
        (480, ["batch_size=240"], 240, 250),
        (480, ["epochs=3"], 64, 3),
        (5000, ["dataset.pretraining_images=480"], 64, 72),
        (5000, ["dataset.train_per_class=160"], 64, 72),  # of three classes
    ],
)
def test_the_epochs_have_steps_enough_to_learn_something(
    case: tuple[int, list[str], int, int],
    birds_manifest: Manifest,
    data_dir: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    images, given, batch_size, epochs = case
    caplog.set_level(logging.INFO)
    entry: SplitEntry = {**birds_manifest.splits["train"], "num_samples": images}
    replace(birds_manifest, splits={"train": entry}).save(data_dir)
    cell, _ = load_run(["dataset=imagefolder", *given])
    assert (cell.batch_size, cell.epochs) == (batch_size, epochs)
    caplog.clear()
    untrained, *trained = load_sweep("own_images", given).cells
    (line,) = caplog.messages
    assert ("epochs=" in line) == ("epochs=3" not in given)
    assert untrained.epochs == 0
    assert {(cell.batch_size, cell.epochs) for cell in trained} == {(batch_size, epochs)}


def test_large_grey_images_are_trained_on(data_dir: Path, tmp_path: Path) -> None:
    done("prepare", "imagefolder", "--source-dir", draw(tmp_path / "birds", 10, 112, "L"))
    evaluated = ("evaluation.protocols=[knn]", "evaluation.knn.k=5")
    done("train", "dataset=imagefolder", *QUICK, *evaluated, "batch_size=8")


def test_small_files_may_grow_to_any_size(data_dir: Path, tmp_path: Path) -> None:
    """Scans in black and white, which become JPEG images many times as large."""
    draw(tmp_path / "scans", 3, 32)
    pattern = np.tile(np.random.default_rng(0).integers(0, 2, (50, 50)) > 0, (48, 48))
    for name in CLASSES:
        Image.fromarray(pattern).save(tmp_path / "scans" / name / "scan.png")
    assert (tmp_path / "scans" / name / "scan.png").stat().st_size < 2**19
    done("prepare", "imagefolder", "--source-dir", tmp_path / "scans")
    manifest = Manifest.load(data_dir, "imagefolder")
    splits = [Beton(data_dir / "imagefolder" / entry["file"]) for entry in manifest.splits.values()]
    assert sum(len(split.labels) for split in splits) == 4 * len(CLASSES)
    assert max(int(split.size.max()) for split in splits) > MIN_PAGE_BYTES


def test_what_is_given_wins(data_dir: Path, tmp_path: Path) -> None:
    done("prepare", "imagefolder", "--source-dir", draw(tmp_path / "birds", 3, 120, "L"))
    given = ["augmentation=small_grey", "network=resnet50", "batch_size=2", "dataset.mean=[0.1]"]
    cell, _ = load_run(["dataset=imagefolder", "dataset.image_size=64", *given])
    seen = (cell.augmentation.name, cell.network.architecture, cell.batch_size)
    assert seen == ("small_grey", "resnet50", 2)
    shown = (cell.dataset.image_size, cell.dataset.eval_resize, cell.dataset.mean)
    assert shown == (64, 73, (0.1,))
    cell, _ = load_run(["dataset=imagefolder", "dataset.channels=3", "dataset.image_size=64"])
    assert (cell.augmentation.name, cell.network.architecture) == ("small_color", "resnet_tiny")
    assert len(cell.dataset.mean) == 3
    line = refusal("train", "dataset=imagefolder", "batch_size=0")
    assert "batch_size=0 must be a whole number, at least 2" in line


def test_what_is_published_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for name in ("in20", "in100", "cifar10", "places205"):
        cell, _ = load_run([f"dataset={name}"])
        assert (cell.augmentation.name, cell.network.architecture) == ("small_grey", "resnet_tiny")
        assert cell.batch_size == 256
        assert cell.plain()["dataset"]["source"].get("held_out") is None
    assert caplog.text == ""


# --------------------------------------------------------------------------------------------------
# warm-up, advice


def test_the_warm_up_fits_the_epochs_unless_it_is_given() -> None:
    for epochs, expected in ((1, 0.5), (2, 1.0), (100, 1.0), (0, 1.0)):
        assert load_run([f"epochs={epochs}"])[0].optimizer.warmup_epochs == expected
    given = "optimizer.warmup_epochs=1"
    assert f"{given} must be less" in refusal("train", "epochs=1", given)


OF_BIRDS = "regbench prepare imagefolder --source-dir FOLDER dataset.name=birds"


@pytest.mark.parametrize(
    ("overrides", "command"),
    [
        (("dataset=parquet",), "regbench prepare parquet --source-dir FOLDER"),
        (("dataset=imagefolder", "dataset.name=birds"), OF_BIRDS),
        (("dataset=in20",), "regbench prepare in20 --source-dir FOLDER"),
    ],
)
def test_the_advice_prepares_what_is_missing(
    overrides: tuple[str, ...], command: str, data_dir: Path
) -> None:
    line = refusal("train", *overrides)
    assert command in line
    assert ("dataset.name" in command) == ("dataset.name" in line)


# --------------------------------------------------------------------------------------------------
# from a folder to an answer


@pytest.fixture
def birds(data_dir: Path, tmp_path: Path) -> Manifest:
    """72 images for training."""
    folder = draw(tmp_path / "images" / "birds", 30, 8)
    dataset = load_run(["dataset=imagefolder", "dataset.name=birds"])[0].dataset
    return prepare(dataset, data_dir, source_dir=folder)


def measured(grid: Sweep, stages: Sequence[str]) -> list[CellStatus]:
    """Leave what runs would whose second epoch takes a second, the first twice as long, and all
    else two seconds; untrained rows take three.
    """
    assert stages == ("pretrain", "tune")
    begun = datetime(2026, 11, 22, tzinfo=UTC)
    history = "".join(f'{{"epoch": {i}, "epoch_s": {3 - i}}}\n' for i in (1, 2)).encode()
    for cell in grid.cells:
        folder = Path(grid.runtime.runs_dir) / grid.name / cell.id
        write_bytes(folder / "metrics-0001.jsonl", history)
        metrics = NamedFile("metrics-0001.jsonl", hashlib.sha256(history).hexdigest())
        ended = begun + timedelta(seconds=4 if cell.epochs else 3)
        attempts = [PastAttempt(started=begun.isoformat(), finished=ended.isoformat())]
        if cell is grid.cells[-1]:  # it was killed at its end
            attempts.append(replace(attempts[0], finished=begun.isoformat()))
        fields = {"status": "tuned", "attempts": tuple(attempts), "metrics": metrics}
        (folder / "tuning.json").write_text(made(cell.plain(), label=cell.label, **fields).text())
    return []


def planned(
    birds: Manifest, tmp_path: Path, hours: float, *settings: str
) -> tuple[SweepFile, Counter[str]]:
    """The file that two runs at a time get for some hours, and the number of its rows by kind."""
    two = ["runtime.parallel=2", "runtime.device=cpu", *settings]
    file = read_rows(str(own_file(tmp_path / "runs", birds, hours, two, measured)), ())
    kinds: Counter[str] = Counter()
    for row in file.rows:
        kinds["untrained" if "epochs=0" in row else "trained"] += 1
        assert "dataset.name=birds" in row
    return file, kinds


@pytest.mark.parametrize(
    "case",
    [
        # Three seeds of k methods after t trainings each, and of the supervised network: k (t + 2)
        # + 3 trainings; k (7 t / 3 + 3) + 4 starts, and four times the five untrained rows.
        (5, 5, 9, 520, (58 * 520 + 2 * 124 + 60) / 120),
        (2.4, 5, 3, 516, (28 * 516 + 2 * 54 + 60) / 120),
        (1.7, 3, 3, 568, (18 * 568 + 2 * 34 + 60) / 120),
        # Two methods at least, although that is too short.
        (0.5, 2, 3, 224, (13 * 224 + 2 * 24 + 60) / 120),
    ],
)
def test_a_plan_fits_its_budget(
    case: tuple[float, int, int, int, float], birds: Manifest, tmp_path: Path
) -> None:
    hours, methods, trials, epochs, minutes = case
    file, kinds = planned(birds, tmp_path, hours)
    assert kinds == {"untrained": 5, "trained": methods + 1}
    assert file.trials == trials
    assert f"epochs={epochs}" in file.rows[-1]
    assert 0.8 * hours < minutes / 60 < 0.85 * hours
    assert f" {epochs} epochs ({epochs} steps)" in file.description
    assert f"forecast {minutes:.0f} min, as an epoch takes 1 s and the rest" in file.description
    assert ("below the untrained network before epoch 500" in file.description) == (hours < 1)


def test_the_hours_that_a_plan_advises_suffice(birds: Manifest, tmp_path: Path) -> None:
    told, hours = [], 0.2
    for _ in range(2):
        file, _ = planned(birds, tmp_path, hours, "runtime.parallel=5")
        told.append("before epoch 500, for which it takes --hours" in file.description)
        hours = float(file.description.split()[-1]) if told[-1] else hours
    assert told == [True, False]


@pytest.mark.parametrize(
    "labelled, settings",
    [(9, []), (72, ["dataset.train_per_class=3", "batch_size=64"])],
)
def test_the_plan_leaves_out_a_supervised_row_whose_labels_fill_no_batch(
    labelled: int, settings: list[str], birds: Manifest, tmp_path: Path
) -> None:
    splits = birds.splits | {"unlabeled": birds.splits["train"]}
    splits["train"] = birds.splits["train"] | {"num_samples": labelled}
    file, kinds = planned(replace(birds, splits=splits), tmp_path, 2.4, *settings)
    assert kinds == {"untrained": 5, "trained": 5}
    # 5 (3 + 2) trainings and 5 (7 + 3) + 1 starts, in the time of the case above
    assert "epochs=580" in file.rows[-1]


@pytest.mark.parametrize(
    "counts, px, on_gpu, part",
    [
        *(([500_000, 500_000, 9], 8, False, 131_072), ([], 8, False, 131_072)),
        *(([], 224, False, 167), ([], 224, True, 50 * 64)),
    ],
)
def test_of_many_images_a_part_is_measured(
    counts: list[int],
    px: int,
    on_gpu: bool,
    part: int,
    birds: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of images with labels and without, one in eight or so; evaluations see all."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    images = sum(counts) or 1_000_000
    split = birds.splits["train"] | {"num_samples": images, "counts_per_class": counts}
    many = replace(birds, splits=birds.splits | {"train" if counts else "unlabeled": split})
    seen: set[tuple[int | None, int | None]] = set()
    size = [f"dataset.image_size={px}"]

    def execute(grid: Sweep, stages: Sequence[str]) -> list[CellStatus]:
        for cell in grid.cells:
            seen.add((cell.dataset.train_per_class, cell.dataset.pretraining_images))
        return measured(grid, stages)

    file = read_rows(str(own_file(tmp_path / "runs", many, 1e9, size, execute)), ())
    assert seen == {(None, part)}
    assert f"an epoch takes {(images // 64) / (part // 64):.2g} s and" in file.description


def test_a_part_is_measured_by_its_whole_batches(birds: Manifest, tmp_path: Path) -> None:
    """The part is one of 64, and a second one is not full."""
    split = birds.splits["train"] | {"num_samples": 127, "counts_per_class": []}
    large = ["dataset.image_size=3840"]
    many = replace(birds, splits=birds.splits | {"unlabeled": split})
    file = read_rows(str(own_file(tmp_path / "runs", many, 1e9, large, measured)), ())
    assert "an epoch takes 1 s and" in file.description


def test_images_that_are_left_out_are_not_forecast(birds: Manifest, tmp_path: Path) -> None:
    """Of the 72 images 64 are trained on, of a million 640."""
    many = replace(birds, splits={})
    for name, entry in birds.splits.items():
        many.splits[name] = entry | {"num_samples": 1_000_000}
    given = ["dataset.pretraining_images=640", "batch_size=64"]
    file, _ = planned(many, tmp_path, 2.4, *given)
    assert "an epoch takes 1 s and" in file.description
    (epochs,) = (each for each in file.rows[-1] if each.startswith("epochs="))
    assert f"({10 * int(epochs.removeprefix('epochs=')):,} steps)" in file.description


def test_a_plan_without_labels_searches_nothing(data_dir: Path, tmp_path: Path) -> None:
    folder = draw(tmp_path / "images" / "birds", 30, 8)
    given = ["dataset=imagefolder", "dataset.name=birds", "dataset.source.unlabelled=true"]
    birds = prepare(load_run(given)[0].dataset, data_dir, source_dir=folder)
    two = ["runtime.parallel=2", "runtime.device=cpu", "dataset.source.unlabelled=true"]
    path = own_file(tmp_path / "runs", birds, 1.5, two, measured)
    grid = load_sweep(str(path), [])
    # Three seeds of five methods, 15 starts and that of the untrained row, which takes 3 s thrice
    # and once more.
    epochs = int((0.85 * 10800 - 2 * 16 - 4 * 3) / 15) // 4 * 4
    assert {cell.epochs for cell in grid.cells if cell.is_method} == {epochs}
    assert len(grid.cells) == 3 * 6
    assert {cell.seed for cell in grid.cells} == {0, 1, 2}
    assert read_rows(str(path), []).trials is None
    assert "of each one configuration, as no label can choose, 3 seeds" in grid.description


def test_a_plan_is_made_once(birds: Manifest, tmp_path: Path) -> None:
    file, _ = planned(birds, tmp_path, 1)

    def slower(grid: Sweep, stages: Sequence[str]) -> list[CellStatus]:
        raise AssertionError("measured again")

    assert read_rows(str(own_file(tmp_path / "runs", birds, 1, [], slower)), ()) == file


@pytest.mark.parametrize(
    ("hours", "overrides", "message"),
    [
        (0.01, [], r"--hours 0\.01 is too little: 2 methods for 4 epochs take --hours 0\.027"),
        (1, ["epochs=3"], "epochs=3: --hours decides the epochs"),
        (1, ["+seed=3"], r"\+seed=3: --hours decides the epochs"),
        (1, ["cluster=slurm"], "own measures this machine"),
        (1, ["optimizer.base_lr=0.1,1"], "optimizer.base_lr has one value in all cells here"),
    ],
)
def test_a_budget_that_pays_nothing_is_refused(
    hours: float, overrides: list[str], message: str, birds: Manifest, tmp_path: Path
) -> None:
    given = ["runtime.parallel=2", "runtime.device=cpu", *overrides]
    with is_refused(message):
        own_file(tmp_path / "runs", birds, hours, given, measured)


def test_without_labels_the_answer_recommends_none(data_dir: Path, tmp_path: Path) -> None:
    folder = draw(tmp_path / "birds", 30, 8)
    quick = [*QUICK[1:-1], "dataset.source.unlabelled=true", "network=resnet_tiny"]
    settings = sorted(setting for setting in quick if not setting.startswith("runtime."))
    name = f"birds_2h_{digest({'settings': settings})[:6]}"
    rows = ["method=sfrik epochs=0", "method=vicreg", "method=simclr"]
    plan = {"description": "a small plan", "common": ["dataset=imagefolder epochs=4 seed=0"]}
    text = yaml.safe_dump(plan | {"cells": rows})
    write_text(tmp_path / "runs" / name / f"{name}.yaml", text)
    said = done("own", folder, "--hours", "2", *quick).output
    assert "What this can tell: which methods learn anything here" in said
    answer = " ".join(said[said.rindex("No method is known to lead") :].split())
    assert "No label was read: recall@1 is how often an image's other view is found" in answer
    assert "no score without labels is known to find the method" in answer
    records = read_records([tmp_path / "runs" / name]).records
    assert {record.environment["loader"] for record in records} <= {"ffcv", "torchvision"}


def test_the_advice_of_own_leads_on(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a damaged image, images of one class, other labels, and a comparison of these."""
    monkeypatch.setattr("regbench.cli.own.executor", lambda *_: measured)
    folder = draw(tmp_path / "birds", 30, 8)
    for name in CLASSES[1:]:
        shutil.rmtree(folder / name)
    (folder / "heron" / "heron_000.png").write_bytes(b"none")
    plan = ("own", folder, "--plan", "--hours", "5")
    (folder / "wren").mkdir()
    leave_out = "dataset.source.allow_empty=true"
    assert f"({leave_out} leaves them out)" in refusal(*plan)
    assert "or leave them out with --skip-unreadable" in refusal(*plan, leave_out)
    (folder / "wren").rmdir()
    assert "or leave them out with --skip-unreadable" in refusal(*plan)
    by_hand = ("prepare", "imagefolder", "--source-dir", folder, "dataset.name=birds")
    done(*by_hand, "--skip-unreadable")  # which own then knows
    assert "all images are of one class, 'heron': give labels" in refusal(*plan)
    labels = tmp_path / "labels.csv"
    of_table, skipping = f"dataset.source.labels={labels}", "--skip-unreadable"
    again = "was prepared with other labels, and is prepared again"
    # Of another data set, birds_2.
    write_text(tmp_path / "runs" / "birds_2_5h" / "0123456789ab" / "config.yaml", "")
    assert again in done(*plan, "dataset.source.unlabelled=true", skipping).output
    for classes in (["old", "young"], ["cat", "dog"], ["crow", "swan"]):
        rows = [f"heron/heron_{i:03}.png,{classes[i % 2]}" for i in range(30)]
        write_text(labels, "\n".join(["file,label", *rows]))
        if "crow" in classes:  # a comparison was begun with the others
            write_text(tmp_path / "runs" / "birds_5h" / "0123456789ab" / "config.yaml", "")
            line = refusal(*plan, of_table, skipping)
            assert "with labels ../labels.csv (SHA-256 " in line and "birds_5h compares" in line
            done(*shlex.split(line.rpartition(": regbench ")[2]))
        assert (again in done(*plan, of_table, skipping).output) == ("crow" not in classes)
        assert again not in done(*plan, of_table).output
        manifest = Manifest.load(data_dir, "birds")
        assert manifest.class_names == classes
    replace(manifest, created="2026-01-02T03:04:05+00:00").save(data_dir)
    hint = f"05+00:00; regbench prepare imagefolder --source-dir {folder} dataset.name=birds "
    assert hint in done(*plan, of_table).output


def test_from_a_folder_to_an_answer(birds: Manifest, tmp_path: Path) -> None:
    """By a plan that is there; the same command again runs nothing."""
    folder = tmp_path / "images" / "birds"
    rows = ["method=sfrik epochs=0", "method=vicreg", "method=simclr"]
    common = ["dataset=imagefolder epochs=4 evaluation.select_by=[knn,probe] seed=0"]
    plan = {"description": "a small plan", "common": common, "cells": rows}
    settings = sorted(setting for setting in QUICK[1:] if not setting.startswith("runtime."))
    name = f"birds_2h_{digest({'settings': settings})[:6]}"
    path = tmp_path / "runs" / name / f"{name}.yaml"
    write_text(path, yaml.safe_dump(plan | {"final_seeds": [0]}))
    # Older versions did not note the folder where images were prepared by hand, and never labels.
    (tmp_path / "data" / "birds" / "folder.txt").unlink()
    assert "and it is not known from which folder" in refusal("own", folder, *QUICK[1:])
    write_text(tmp_path / "data" / "birds" / "folder.txt", str(folder.resolve()))
    said = done("own", folder, "--hours", "2", "--plan", *QUICK[1:]).output
    assert "\na small plan.\nWhat this can tell: a true difference of " in said
    assert not list(path.parent.glob("*/record.json"))
    for _ in range(2):
        said = done("own", folder, "--hours", "2", *QUICK[1:]).output
        assert len(list(path.parent.glob("*/record.json"))) == 3
        answer, _, page = said.rpartition("\n\nreport: ")
        assert answer.rpartition("\n  Next: ")[2].endswith("of training).")
        assert "beside 1 untrained row." in Path(page.strip()).read_text()
    other = draw(tmp_path / "others" / "birds", 30, 8)
    advice = f"give the images of {other} another name: dataset.name=NAME"
    assert refusal("own", other, *QUICK[1:]).endswith(advice)
