"""Training images by a list of names, as SimCLR published them for few labels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from regbench import RegbenchError
from regbench.datasets.beton import Beton
from regbench.datasets.config import DatasetConfig
from regbench.datasets.manifest import Manifest
from regbench.datasets.prepare import prepare

Config = Callable[..., DatasetConfig]
MakeFolder = Callable[[Path, int, int], Path]
CLASSES = ("ant", "bee", "cat")
# Out of order on purpose; files 1, 4 and 6 of each class.
NAMES = [f"{name}_{i:03d}.jpg" for i in (4, 1, 6) for name in ("cat", "ant", "bee")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, make_imagefolder: MakeFolder) -> Path:
    return make_imagefolder(tmp_path_factory.mktemp("listed_source"), 8, 2)


@pytest.fixture
def listed(folder_config: Config) -> Config:
    def config(path: Path | str, **changes: object) -> DatasetConfig:
        return folder_config(**({"train_per_class": None, "tuning_per_class": None, "train_list": str(path)} | changes))

    return config


def stored(data: Path, split: str) -> list[bytes]:
    beton = Beton(data / "insects" / f"{split}.beton")
    return [beton.stored_bytes(i).tobytes() for i in range(len(beton))]


def files(root: Path, *numbers: int) -> list[bytes]:
    return [(root / "train" / name / f"{name}_{i:03d}.jpg").read_bytes() for name in CLASSES for i in numbers]


def test_the_list_says_what_is_for_training(tmp_path: Path, root: Path, listed: Config) -> None:
    path = tmp_path / "few.txt"
    path.write_bytes("\r\n".join(NAMES).encode())
    manifest = prepare(listed(path), tmp_path, source_dir=root, progress=False)
    assert {name: entry["counts_per_class"] for name, entry in manifest.splits.items()} == {
        "train": [3, 3, 3],
        "test": [2, 2, 2],
    }
    assert stored(tmp_path, "train") == files(root, 1, 4, 6)
    assert Manifest.load(tmp_path, "insects").source["train_list"] == str(path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest.taken_from["train"] == f"train/, those that few.txt names (SHA-256 {sha256})"


def test_tuning_images_are_others_than_those_of_the_list(tmp_path: Path, root: Path, listed: Config) -> None:
    path = tmp_path / "few.txt"
    path.write_text("\n".join(f"{name.split('_')[0]}/{name}" for name in NAMES))
    prepare(listed(path, tuning_per_class=4), tmp_path, source_dir=root, progress=False)
    assert stored(tmp_path, "train") == files(root, 1, 4, 6)
    assert stored(tmp_path, "tuning") == files(root, 0, 2, 3, 5)
    with pytest.raises(
        RegbenchError,
        match=r"tuning_per_class needs 6 images of each class .*few\.txt does not name: ant has 5; bee has 5",
    ):
        prepare(listed(path, tuning_per_class=6), tmp_path / "more", source_dir=root, progress=False)


def test_a_list_is_sought_beside_the_images_and_then_here(
    tmp_path: Path, make_imagefolder: MakeFolder, listed: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_imagefolder(tmp_path / "source", 8, 1)
    monkeypatch.chdir(tmp_path)
    config = listed("few.txt")
    with pytest.raises(RegbenchError, match=r"few\.txt is missing: it is neither in .*source nor in .*; put it there"):
        prepare(config, tmp_path / "none", source_dir=root, progress=False)
    (tmp_path / "few.txt").write_text("\n".join(f"{name}_007.jpg" for name in CLASSES))
    prepare(config, tmp_path / "here", source_dir=root, progress=False)
    assert stored(tmp_path / "here", "train") == files(root, 7)
    (root / "few.txt").write_text("\n".join(NAMES))
    prepare(config, tmp_path / "beside", source_dir=root, progress=False)
    assert stored(tmp_path / "beside", "train") == files(root, 1, 4, 6)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            [*NAMES, "ant_099.jpg"],
            r"few\.txt does not fit .*train: line 10: ant_099\.jpg: it is not in train/; get the list again, or mend",
        ),
        ([*NAMES, "dog/dog_001.jpg"], r"line 10: dog/dog_001\.jpg: its class dog is not in train/"),
        ([*NAMES, "ant/bee_001.jpg"], r"line 10: ant/bee_001\.jpg: it is not in train/"),
        (["", *NAMES, "ant_004.jpg"], r"line 11: ant_004\.jpg is already in line 3; get the list again"),
        ([*NAMES, "ant/ant_004.jpg"], r"line 10: ant/ant_004\.jpg is already in line 2"),
        (["bee_000.jpg"], r"names 1 images and none of 2 of the 3 classes \(ant, cat\); is it cut short\?"),
        ([], r"names 0 images and none of 3 of the 3 classes"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(
    lines: list[str], reason: str, tmp_path: Path, root: Path, listed: Config
) -> None:
    path = tmp_path / "few.txt"
    path.write_text("\n".join(lines))
    with pytest.raises(RegbenchError, match=reason) as refusal:
        prepare(listed(path), tmp_path, source_dir=root, progress=False)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "insects" / "manifest.json").exists()


def test_a_name_in_two_classes_needs_its_class(tmp_path: Path, make_imagefolder: MakeFolder, listed: Config) -> None:
    root = make_imagefolder(tmp_path / "source", 3, 1)
    for name in CLASSES:
        (root / "train" / name / f"{name}_000.jpg").rename(root / "train" / name / "0.jpg")
    path = tmp_path / "few.txt"
    path.write_text("0.jpg")
    with pytest.raises(RegbenchError, match=r"line 1: 0\.jpg is in 3 classes \(ant, bee, cat\); write CLASS/NAME"):
        prepare(listed(path), tmp_path, source_dir=root, progress=False)
    path.write_text("\n".join(f"{name}/0.jpg" for name in CLASSES))
    assert prepare(listed(path), tmp_path, source_dir=root, progress=False).splits["train"]["num_samples"] == 3


def test_settings_that_contradict_a_list_are_refused(tmp_path: Path, root: Path, listed: Config) -> None:
    path = tmp_path / "few.txt"
    path.write_text("\n".join(NAMES))
    with pytest.raises(RegbenchError, match=r"train_list and dataset\.source\.train_per_class both"):
        listed(path, train_per_class=3)
    with pytest.raises(RegbenchError, match=f"list of training images {tmp_path} is missing; put it there, or give"):
        prepare(listed(tmp_path), tmp_path, source_dir=root, progress=False)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RegbenchError, match=r"cannot read the list of training images .*get it again"):
        prepare(listed(path), tmp_path, source_dir=root, progress=False)
    # What was prepared without a list is not what is asked for.
    prepare(listed(path, train_list=None), tmp_path, source_dir=root, progress=False)
    with pytest.raises(RegbenchError, match=r"was prepared with .*, not .*train_list .*few\.txt"):
        prepare(listed(path), tmp_path, source_dir=root, progress=False)
