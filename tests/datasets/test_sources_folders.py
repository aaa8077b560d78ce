"""ILSVRC2012 and Places205 in the layouts in which they are published, small, and what can be
wrong with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.config import DatasetConfig
from regbench.datasets.published import PUBLISHED, Published
from regbench.datasets.sources.base import SOURCES
from regbench.datasets.stored.prepare import prepare
from tests.datasets.preparing import images, opened, refused
from tests.refusals import is_refused

Config = Callable[..., DatasetConfig]
WNIDS = ("n01440764", "n01443537", "n01484850")
# The labels of six validation images: places in WNIDS.
TRUTH = (2, 0, 1, 1, 0, 2)


def picture(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, "JPEG")


def write_images(root: Path) -> None:
    """Four training images a class in folders, and the validation images in none."""
    for label, wnid in enumerate(WNIDS):
        for i in range(4):
            picture(root / "train" / wnid / f"{wnid}_{i}.JPEG", 10 * label + i)
    for i in range(len(TRUTH)):
        picture(root / "val" / f"ILSVRC2012_val_{i + 1:08d}.JPEG", 100 + i)


def write_devkit(folder: Path) -> None:
    """ILSVRC2012_devkit_t12: numbers of classes in an order of their own, inner nodes of the
    hierarchy after them.
    """
    data = folder / "ILSVRC2012_devkit_t12" / "data"
    data.mkdir(parents=True)
    numbers = {WNIDS[0]: 3, WNIDS[1]: 1, WNIDS[2]: 2, "n00001740": 1001}
    synsets = np.zeros((len(numbers), 1), [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")])
    for row, (wnid, number) in enumerate(numbers.items()):
        synsets[row, 0] = (float(number), wnid, "a, b")
    savemat(data / "meta.mat", {"synsets": synsets})
    lines = [f"{numbers[WNIDS[label]]}\n" for label in TRUTH]
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(lines))


def write_kaggle_labels(folder: Path) -> None:
    rows = [f"ILSVRC2012_val_{i:08d},{WNIDS[label]} 1 2 3 4 \n" for i, label in enumerate(TRUTH, 1)]
    # Not in order, as at Kaggle.
    (folder / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(rows[::-1]))


# Where the images of each kind of source lie, and what writes their labels.
KINDS = {
    "devkit": ("", write_devkit),
    "kaggle": ("ILSVRC/Data/CLS-LOC/", write_kaggle_labels),
    "unpacked": ("", write_kaggle_labels),
}


def source_of(kind: str, folder: Path) -> Path:
    place, write_labels = KINDS[kind]
    write_images(folder / "source" / place)
    write_labels(folder / "source")
    return folder / "source"


@pytest.fixture
def devkit_source(tmp_path: Path) -> Path:
    return source_of("devkit", tmp_path)


def config_of(preset: str, **changes: object) -> DatasetConfig:
    """A preset for small images, which need not be as many as were published."""
    settings: dict[str, object] = {"num_classes": 3, "published": "null"}
    settings |= {"train_per_class": "null", "tuning_per_class": "null"} | changes
    overrides = []
    for key, value in settings.items():
        source = "source." if key in SOURCES.defaults("imagefolder") else ""
        overrides.append(f"dataset.{source}{key}={value}")
    return load_run([f"dataset={preset}", *overrides])[0].dataset


@pytest.mark.parametrize("kind", KINDS)
def test_a_flat_val_is_read_with_the_published_labels(kind: str, tmp_path: Path) -> None:
    contents = opened(config_of("in100"), source_of(kind, tmp_path))
    assert contents.class_names == list(WNIDS)
    assert contents.splits["train"].labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    numbers = sorted((label, i) for i, label in enumerate(TRUTH, 1))
    expected = [(label, f"{KINDS[kind][0]}val/ILSVRC2012_val_{i:08d}.JPEG") for label, i in numbers]
    assert images(contents, "test") == expected
    assert not contents.notes


def test_in20_is_cut_from_the_published_folder(devkit_source: Path) -> None:
    contents = opened(config_of("in20", train_per_class=2, tuning_per_class=1), devkit_source)
    for split, numbers in (("train", (0, 1)), ("tuning", (3,))):
        expected = []
        for label, wnid in enumerate(WNIDS):
            expected += [(label, f"train/{wnid}/{wnid}_{i}.JPEG") for i in numbers]
        assert images(contents, split) == expected
    # The preset asks for 260 and 260, and one between them.
    reason = "n01440764 has 4 images; train_per_class and tuning_per_class need 521; n01443537 has "
    refused(config_of("in20", train_per_class=260, tuning_per_class=260), devkit_source, reason)


def test_the_published_counts_are_asked_for_once(
    tmp_path: Path, devkit_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, part = config_of("in100", published="ilsvrc2012"), config_of("in100")
    refused(whole, devkit_source, "source is not the complete ImageNet")
    # What was prepared as a part serves a run whose preset asks for the whole: `prepare` was told
    # so once.
    prepare(part, tmp_path, source_dir=devkit_source)
    assert prepare(whole, tmp_path).splits["train"]["num_samples"] == 12
    about = Published("ImageNet", "nowhere", {"train": 12, "val": 6})
    monkeypatch.setitem(PUBLISHED, "ilsvrc2012", about)
    assert opened(whole, devkit_source)


def test_the_imagenet_presets_are_the_published_data_sets() -> None:
    for preset in ("in20", "places205", "imagenette", "imagenet100"):
        cell = load_run([f"dataset={preset}"])[0]
        assert cell.dataset.source.about in PUBLISHED.values()
        # What prepare accepts is no part of a cell.
        assert cell.id == load_run([f"dataset={preset}", "dataset.source.published=null"])[0].id
        assert "published" not in cell.plain()["dataset"]["source"]


def test_all_that_is_wrong_with_imagenet_is_listed(tmp_path: Path, devkit_source: Path) -> None:
    config = config_of("in100", published="ilsvrc2012")
    val, devkit = devkit_source / "val", devkit_source / "ILSVRC2012_devkit_t12" / "data"
    (val / "ILSVRC2012_val_00000003.JPEG").unlink()
    picture(val / "holiday.jpg", 1)
    picture(devkit_source / "train" / "stray.jpg", 2)
    (devkit_source / "train" / "n09999999").mkdir()
    (devkit_source / "train" / WNIDS[2]).rename(devkit_source / "away")
    refused(config, devkit_source, "1 images lie in train/ itself, the")
    (devkit / "meta.mat").write_bytes(b"no MATLAB file")
    refused(config, devkit_source, "ILSVRC2012_devkit_t12/data/ cannot be")
    (devkit / "meta.mat").unlink()
    refused(config, devkit_source, "ILSVRC2012_devkit_t12/data/meta.mat")


def test_labels_that_are_missing_or_damaged_are_refused(tmp_path: Path) -> None:
    kaggle_source, config = source_of("kaggle", tmp_path), config_of("in100")
    labels = kaggle_source / "LOC_val_solution.csv"
    head = b"ImageId,PredictionString\n"
    for content in (head + b"a\n", b"ImageId,Solution\na,b\n", head + b"a,\n", b"\xff\xfe\x00"):
        labels.write_bytes(content)
        refused(config, kaggle_source, "LOC_val_solution.csv cannot be read (")
    labels.unlink()
    refused(config, kaggle_source, "val/ has no class folders, and")


def test_without_a_folder_the_address_is_said(tmp_path: Path) -> None:
    for preset, published, reason in (
        ("in20", "ilsvrc2012", "in20 --source-dir FOLDER; ImageNet .* from https://image-net.org"),
        ("places205", "places205", "Places205 is to be had from http://data.csail.mit.edu/places/"),
    ):
        with is_refused(reason):
            prepare(config_of(preset, published=published), tmp_path)
    config = config_of("in100_labels1", train_list="1percent.txt")
    write_images(tmp_path / "source")
    write_devkit(tmp_path / "source")
    with is_refused(r"1percent\.txt is missing.*simclr/master/imagenet_subsets/1percent\.txt\)"):
        prepare(config, tmp_path, source_dir=tmp_path / "source")


# --------------------------------------------------------------------------------------------------
# Places205

PLACES = {"a/abbey": 0, "a/apartment_building/outdoor": 1, "b/bar": 2}


@pytest.fixture
def places_source(tmp_path: Path) -> Path:
    """Three training images and two for validation of each class, in the published layout."""
    source = tmp_path / "source"
    lists: dict[str, list[str]] = {"train": [], "val": []}
    for i in range(5):
        for place, label in PLACES.items():
            # Sorted by name they are in another order than in the list.
            name = f"{place}/gsun_{9 - i}{label}.jpg"
            picture(source / "data/vision/torralba/deeplearning/images256" / name, 10 * label + i)
            lists["train" if i < 3 else "val"].append(f"{name} {label}\n")
    (source / "trainvalsplit_places205").mkdir()
    for part, lines in lists.items():
        (source / "trainvalsplit_places205" / f"{part}_places205.csv").write_text("".join(lines))
    return source


@pytest.mark.parametrize("folder", ["data/vision/torralba/deeplearning/images256", "images256"])
def test_places205_is_read_as_it_is_published(folder: str, places_source: Path) -> None:
    (places_source / "data/vision/torralba/deeplearning/images256").rename(places_source / "images")
    (places_source / folder).parent.mkdir(parents=True, exist_ok=True)
    (places_source / "images").rename(places_source / folder)
    contents = opened(config_of("places205"), places_source)
    assert contents.class_names == ["abbey", "apartment_building/outdoor", "bar"]
    for split, numbers in (("train", (7, 8, 9)), ("test", (5, 6))):
        expected = [
            (n, f"{folder}/{place}/gsun_{i}{n}.jpg") for place, n in PLACES.items() for i in numbers
        ]
        assert images(contents, split) == expected


def test_all_that_is_wrong_with_places205_is_listed(tmp_path: Path, places_source: Path) -> None:
    config = config_of("places205", published="places205")
    refused(config, places_source, "train has 9 images, not 2,448,873;")
    lists = places_source / "trainvalsplit_places205"
    train, val = lists / "train_places205.csv", lists / "val_places205.csv"
    good = train.read_text()
    first = good.splitlines()[0]
    wrong = "/etc/passwd 0\n../../x.jpg 1\nb/bar/gsun_1.jpg two\nz/zoo/x.jpg 4\n"
    train.write_text(f"{good}{first}\n{wrong}")
    refused(config, places_source, "3 lines of train_places205.csv are no")
    train.write_text(good)
    val.write_text(f"{val.read_text()}q/quay/x.jpg 7\n")
    refused(config, places_source, "train_places205.csv has no images of")
    val.unlink()
    refused(config, places_source, "trainvalsplit_places205/val_places205.")


def test_places205_without_its_images_is_refused(tmp_path: Path, places_source: Path) -> None:
    config = config_of("places205")
    images = places_source / "data/vision/torralba/deeplearning/images256"
    (images / "b/bar/gsun_92.jpg").unlink()
    refused(config, places_source, "1 of 15 images are not there:")
    os.mkfifo(images / "b/bar/gsun_92.jpg")  # to read it would not end
    refused(config, places_source, "1 of 15 images are not there:")
    images.rename(places_source / "elsewhere")
    refused(config, places_source, "data/vision/torralba/deeplearning/imag")
