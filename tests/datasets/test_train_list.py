"""Training images by a list of names, as SimCLR published them for few labels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from regbench.datasets.config import DatasetConfig
from tests.datasets.preparing import folder_config, images, make_imagefolder, opened, refused

CLASSES = ("ant", "bee", "cat")
# Out of order on purpose; files 1, 4 and 6 of each class.
NAMES = [f"{name}_{i:03d}.jpg" for i in (4, 1, 6) for name in ("cat", "ant", "bee")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_imagefolder(tmp_path_factory.mktemp("listed_source"), 8, 2)


def listed(path: Path | str, **changes: object) -> DatasetConfig:
    settings = {"train_per_class": None, "tuning_per_class": None, "train_list": str(path)}
    return folder_config(**(settings | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "few.txt"
    path.write_bytes("\r\n".join(NAMES).encode())
    return path


def files(
    *numbers: int, classes: Sequence[str] = CLASSES, part: str = "train"
) -> list[tuple[int, str]]:
    found = []
    for label, name in enumerate(classes):
        found += [(label, f"{part}/{name}/{name}_{i:03d}.jpg") for i in numbers]
    return found


def test_the_list_says_what_is_for_training(path: Path, root: Path) -> None:
    contents = opened(listed(path), root)
    assert list(contents.splits) == ["train", "test"]
    assert images(contents, "train") == files(1, 4, 6)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert contents.taken_from == {"train": f"train/, those that few.txt names (SHA-256 {sha256})"}


def test_tuning_images_are_others_than_those_of_the_list(path: Path, root: Path) -> None:
    path.write_text("\n".join(f"{name.split('_')[0]}/{name}" for name in NAMES))
    contents = opened(listed(path, tuning_per_class=4), root)
    found = (images(contents, "train"), images(contents, "tuning"))
    assert found == (files(1, 4, 6), files(0, 2, 3, 5))
    refused(listed(path, tuning_per_class=6), root, "tuning_per_class needs 6 images of")


def test_a_list_is_sought_beside_the_images_and_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_imagefolder(tmp_path / "source", 8, 1)
    monkeypatch.chdir(tmp_path)
    refused(listed("few.txt"), root, "few.txt is missing: it is neither in ")
    (tmp_path / "few.txt").write_text("\n".join(f"{name}_007.jpg" for name in CLASSES))
    assert images(opened(listed("few.txt"), root), "train") == files(7)
    (root / "few.txt").write_text("\n".join(NAMES))
    contents = opened(listed("few.txt"), root)
    assert images(contents, "train") == files(1, 4, 6)
    assert not contents.notes  # the list is no file that was left out


def test_a_list_that_does_not_fit_is_refused(path: Path, root: Path) -> None:
    cases: list[tuple[list[str], str]] = [
        ([*NAMES, "ant_099.jpg"], "train: line 10: ant_099.jpg: it is not in train/"),
        ([*NAMES, "dog/dog_001.jpg"], "line 10: dog/dog_001.jpg: its class dog is not in train/"),
        ([*NAMES, "ant/bee_001.jpg"], "line 10: ant/bee_001.jpg: it is not in train/"),
        (["", *NAMES, "ant_004.jpg"], "line 11: ant_004.jpg is already in line 3"),
        ([*NAMES, "ant/ant_004.jpg"], "line 10: ant/ant_004.jpg is already in line 2"),
        (["bee_000.jpg"], "names 1 images and none of 2 of the 3 classes (ant, cat)"),
        ([], "names 0 images and none of 3 of the 3 classes"),
        (["\udcff\udcfe"], "cannot read the list of training images"),
    ]
    for lines, reason in cases:
        path.write_text("\n".join(lines), errors="surrogateescape")
        refused(listed(path), root, reason)
    refused(listed(path.parent), root, "is missing; put it there, or give its path")


def test_a_name_in_two_classes_needs_its_class(path: Path) -> None:
    root = make_imagefolder(path.parent / "source", 3, 1)
    for name in CLASSES:
        (root / "train" / name / f"{name}_000.jpg").rename(root / "train" / name / "0.jpg")
    path.write_text("0.jpg")
    refused(listed(path), root, "line 1: 0.jpg is in 3 classes (ant,")
    path.write_text("\n".join(f"{name}/0.jpg" for name in CLASSES))
    assert len(images(opened(listed(path), root), "train")) == 3


def test_a_list_says_which_classes_are_taken(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "two.txt"
    path.write_text("# of three\ncat\n\nant\n")
    divided = {"train_per_class": 3, "tuning_per_class": 2}
    contents = opened(folder_config(class_list=str(path), num_classes=2, **divided), root)
    assert contents.class_names == ["ant", "cat"]
    taken = ("ant", "cat")
    assert images(contents, "train") == files(0, 1, 2, classes=taken)
    assert images(contents, "test") == files(0, 1, classes=taken, part="val")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    classes = f"the classes of two.txt (SHA-256 {sha256})"
    assert contents.taken_from == {"train": classes, "tuning": classes, "test": classes}


def test_held_out_images_are_of_the_listed_classes(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "two.txt"
    path.write_text("cat\nbee")
    divided = {"train_per_class": None, "tuning_per_class": None, "held_out": 0.25}
    contents = opened(folder_config(class_list=str(path), num_classes=2, **divided), root)
    assert contents.class_names == ["bee", "cat"]
    classes = "the classes of two.txt"
    for text in contents.taken_from.values():
        assert classes in text and "/" in text.partition(classes)[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ant\ndog\neel", "2 of its 3 classes are not in"),
        ("ant\nbee\nant", "it names 1 classes twice: ant"),
    ],
)
def test_a_list_of_classes_that_does_not_fit_is_refused(
    text: str, reason: str, tmp_path: Path, root: Path
) -> None:
    path = tmp_path / "classes.txt"
    path.write_text(text)
    refused(folder_config(class_list=str(path)), root, reason)


def test_a_part_without_images_of_listed_classes_is_refused(tmp_path: Path) -> None:
    root = make_imagefolder(tmp_path / "source", 1, 1)
    (root / "val" / "ant" / "ant_000.jpg").unlink()
    (root / "classes.txt").write_text("ant")
    reason = "val has no images of listed classes"
    refused(folder_config(class_list="classes.txt", allow_empty=True), root, reason)


def test_a_list_of_classes_that_is_not_there_is_refused(root: Path) -> None:
    refused(folder_config(class_list="none.txt"), root, "the list of classes none.txt is")
