"""Images without labels: prepared, trained on, and evaluated as far as that needs none."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import regbench
from regbench.datasets.stored.beton import Beton
from tests.command import done, refusal
from tests.conftest import stripes
from tests.refusals import is_refused
from tests.there import there

NAMES = ("level", "slanted", "upright")
QUICK = (
    *("method=vicreg", "epochs=1", "embedding_dim=16", "evaluation.probe.epochs=1"),
    *("evaluation.knn.k=5", "runtime.loader=torchvision"),
)


def draw(folder: Path, label: int, first: int, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(first, first + count):
        stripes(label, 4000 + i).save(folder / f"{i}.png")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is prepared; data and runs lie beside it."""
    monkeypatch.setenv("REGBENCH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("REGBENCH_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "photos"


def prepared(source: Path, *options: object) -> dict[str, tuple[list[str], list[int]]]:
    """Prepare the folder; the origins and labels of each split."""
    done("prepare", "imagefolder", "--source-dir", source, *options)
    found = {}
    for path in (source.parent / "data" / "imagefolder").glob("*.beton"):
        lines = path.with_suffix(".origins.txt").read_text().splitlines()
        found[path.stem] = [line[9:] for line in lines], Beton(path).labels.tolist()
    return found


def test_a_folder_of_unlabelled_images_is_no_class(source: Path) -> None:
    for folder in ("a", "b", "Unlabelled"):
        draw(source / folder, 0, 0, 10)
    line = refusal("prepare", "imagefolder", "--source-dir", source)
    assert "Unlabelled/ is no class: dataset.source.unlabelled=true trains" in line


def test_all_folders_are_one_in_the_layout_of_kaggle_too(source: Path) -> None:
    draw(source / "ILSVRC/Data/CLS-LOC/train", 0, 0, 20)
    draw(source / "more", 0, 100, 20)
    splits = prepared(source, "dataset.source.unlabelled=true")
    assert sum(len(labels) for _, labels in splits.values()) == 40


@pytest.mark.parametrize("folders", [("",), ("a/b", "c")])
def test_folders_without_classes_are_trained_on_and_measured(
    folders: tuple[str, ...], source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number, folder in enumerate(folders):
        draw(source / folder, 0, 100 * number, 100 // len(folders))
    unlabelled = ["dataset.source.unlabelled=true"] if "c" in folders else []
    splits = prepared(source, *unlabelled)
    counts = {name: len(labels) for name, (_, labels) in splits.items()}
    assert counts == {"train": 80, "tuning": 10, "test": 10}
    assert {label for _, labels in splits.values() for label in labels} == {-1}
    curves = "evaluation.while_training=[knn]"
    with is_refused("has no tuning split to evaluate knn on"):
        regbench.train(["dataset=imagefolder", *QUICK, curves])
    record = there(regbench.train(["dataset=imagefolder", *QUICK]))
    assert "evaluation.protocols=[retrieval,measures]" in caplog.text
    assert not any(message.endswith(": ") for message in caplog.messages)
    names = {score.name for score in record.scores}
    assert {"rankme", "retrieval_recall1"} <= names
    # What measures compare is for choices, so the test split stays closed to them.
    assert {score.split for score in record.scores if score.name == "rankme"} == {"tuning"}
    assert not {"knn_top1", "linear_top1"} & names
    assert record.history[0]["loss"] > 0
    out = source.parent / "a.parquet"
    assert regbench.embed(record.path.parent, source, out) == 100
    assert regbench.report("manual").page.exists()
    fewer = ("dataset.pretraining_images=20", "batch_size=8")
    few = there(regbench.train(["dataset=imagefolder", *QUICK, *fewer]))
    assert few.history[0]["images"] == 16
    settings = ("evaluation.protocols=[knn]", "baseline=supervised", "dataset.train_per_class=5")
    for setting in settings:
        with is_refused("labels") as refused:
            regbench.train(["dataset=imagefolder", *QUICK, setting])
        assert "imagefolder" in str(refused.value)


@pytest.mark.parametrize(
    "layout", ["table", "folder", "folder inside", "beside parts", "beside classes"]
)
def test_images_without_labels_join_the_training_alone(
    layout: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 images have labels, 42 have none; a tenth of the former is held out twice."""
    options: list[object] = ["dataset.source.unlabelled=true"]
    labelled, other = source, source / "more"
    if layout == "folder":
        labelled, options = source.parent / "few", ["--labels", source.parent / "few"]
    elif layout == "folder inside":
        # One of the two paths is relative.
        monkeypatch.chdir(source.parent)
        labelled, options = source / "few", ["--labels", "photos/few"]
    elif layout == "beside parts":
        labelled, other = source / "train", source / "unlabelled"
    elif layout == "beside classes":
        other = source / "Unlabeled"
    for label, name in enumerate(NAMES):
        draw(labelled / name, label, 0, 20)
        draw(other / "deep", label, 100 * (label + 1), 14)
    if layout == "table":
        rows = [f"{path.relative_to(source)},{path.parent.name}" for path in source.glob("*/*.png")]
        (source / "labels.csv").write_text("\n".join(["file,label", *rows]))
        options += ["--labels", "labels.csv"]
    splits = prepared(source, *options)
    counts = {name: len(labels) for name, (_, labels) in splits.items()}
    assert counts == {"unlabeled": 90, "train": 48, "tuning": 6, "test": 6}
    assert set(splits["unlabeled"][1]) == {-1}
    trained_on = set(splits["unlabeled"][0])
    assert set(splits["train"][0]) <= trained_on
    for split in ("tuning", "test"):
        origins, labels = splits[split]
        assert not set(origins) & trained_on
        assert [NAMES.index(Path(origin).parent.name) for origin in origins] == labels
    assert np.bincount(splits["train"][1]).tolist() == [16, 16, 16]
    record = there(regbench.train(["dataset=imagefolder", *QUICK]))
    assert record.score("knn_top1", "test") is not None
    assert record.history[0]["images"] >= 64  # a batch that the labelled ones do not fill


def test_what_has_no_images_or_files_is_refused_in_a_line(source: Path) -> None:
    source.mkdir()
    (source / "notes.txt").write_text("none")
    flat = source.parent / "flat"
    draw(flat, 0, 0, 1)
    unlabelled, goes_with = "dataset.source.unlabelled=true", "dataset.source.held_out"
    for options, reason in (
        ((), "photos/ has no class folders"),
        ((unlabelled,), "photos/ holds no image"),
        (("--labels", "few"), "the list of labels few is missing"),
        (("--labels", flat), "flat has no class folders"),
        ((unlabelled, f"{goes_with}=null"), f"dataset.source.unlabelled goes with {goes_with}"),
    ):
        assert reason in refusal("prepare", "imagefolder", "--source-dir", source, *options)
