"""VOC2007's folder: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as transforms

from regbench import RegbenchError
from regbench.datasets.stored.voc_files import CLASSES, read_voc07, voc07_folder, whole_images
from tests.refusals import is_refused
from tests.voc import TEST, TRAINVAL, main_folder, write_voc07


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    write_voc07(tmp_path)
    return tmp_path


def test_splits_are_read_as_they_are_written(data_dir: Path) -> None:
    splits = read_voc07(voc07_folder(data_dir), (TRAINVAL, TEST))
    assert [len(splits[name].paths) for name in ("trainval", "test")] == [TRAINVAL, TEST]
    for name, split in splits.items():
        assert list(split.paths) == sorted(split.paths)
        assert split.presence.shape == (len(split.paths), 20)
        for column, cls in enumerate(CLASSES):
            lines = (main_folder(data_dir) / f"{cls}_{name}.txt").read_text().splitlines()
            expected = {line.split()[0]: int(line.split()[1]) for line in lines}
            stems = [path.stem for path in split.paths]
            found = dict(zip(stems, split.presence[:, column].tolist(), strict=True))
            assert found == expected
        assert {-1, 0, 1} == set(split.presence.flatten().tolist())


def test_a_folder_that_is_not_there_is_refused_with_the_way_to_get_it(tmp_path: Path) -> None:
    way = r"VOC2007 is missing.*VOCtrainval_06-Nov-2007\.tar.*prepare voc07 --source-dir FOLDER"
    with is_refused(way):
        read_voc07(voc07_folder(tmp_path), (5011, 4952))


def test_all_that_is_wrong_is_listed(data_dir: Path) -> None:
    folder = main_folder(data_dir)
    (folder / "cat_test.txt").unlink()
    (folder / "dog_trainval.txt").write_text("000001 2\n")
    lines = (folder / "sheep_test.txt").read_text().splitlines()
    (folder / "sheep_test.txt").write_text("\n".join(lines[1:]))
    gone = folder.parents[1] / "JPEGImages" / f"{lines[3].split()[0]}.jpg"
    gone.unlink()
    with pytest.raises(RegbenchError) as refusal:
        read_voc07(voc07_folder(data_dir), (5011, 4952))
    for part in (
        "cat_test.txt is missing",
        "dog_trainval.txt has a line",
        f"trainval has {TRAINVAL} images, not 5,011",
        f"test has {TEST} images, not 4,952",
        f"sheep_test.txt names {TEST - 1} of {TEST}",
        f"1 images of test are not in JPEGImages/, the first is {gone.name}",
    ):
        assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_one_image_in_both_splits_is_refused(data_dir: Path) -> None:
    for cls in CLASSES:
        path = main_folder(data_dir) / f"{cls}_test.txt"
        first = (main_folder(data_dir) / f"{cls}_trainval.txt").read_text().splitlines()[0]
        path.write_text(f"{path.read_text()}{first}\n")
    with is_refused("1 images are in both splits"):
        read_voc07(voc07_folder(data_dir), (TRAINVAL, TEST + 1))


@pytest.mark.parametrize(("height", "width"), [(60, 80), (81, 60)])
def test_images_are_resized_whole(tmp_path: Path, height: int, width: int) -> None:
    """The shorter side first, then a square whatever the shape, as torchvision's transforms on
    a picture do.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    path = tmp_path / "noise.png"
    Image.fromarray(pixels).save(path)
    options: Any = {"shorter": 32, "size": 28, "interpolation": "bilinear", "workers": 2}
    (batch,) = whole_images((path,) * 3, **options, batch_size=4)
    bilinear = transforms.InterpolationMode.BILINEAR
    picture = transforms.resize(Image.fromarray(pixels), [32], bilinear)
    picture = transforms.resize(picture, [28, 28], bilinear)
    expected = transforms.pil_to_tensor(picture).int()
    assert batch.shape == (3, 3, 28, 28)
    assert batch.dtype == torch.uint8
    assert (batch.int() - expected).abs().max() <= 1


def test_batches_come_in_order(data_dir: Path) -> None:
    paths = read_voc07(voc07_folder(data_dir), (TRAINVAL, TEST))["test"].paths
    options: Any = {"shorter": 10, "size": 8, "interpolation": "bicubic"}
    one = list(whole_images(paths, **options, batch_size=100, workers=1))
    many = list(whole_images(paths, **options, batch_size=7, workers=3))
    assert [len(x) for x in many] == [7] * (TEST // 7) + [TEST % 7] * (TEST % 7 > 0)
    assert torch.equal(torch.cat(many), torch.cat(one))


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jpg"
    path.write_bytes(b"no picture")
    options: Any = {"shorter": 8, "size": 8, "interpolation": "area"}
    with is_refused(r"bad\.jpg"):
        list(whole_images((path,), **options, batch_size=1, workers=1))
