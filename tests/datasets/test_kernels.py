from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F

from regbench.datasets.loading.crops import center_boxes

kernels = pytest.importorskip(
    "regbench.datasets.loading.kernels_cut", reason="needs numba", exc_type=ImportError
)

Pixels = npt.NDArray[np.uint8]
PILLOW = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def noise(height: int, width: int) -> Pixels:
    rng = np.random.default_rng(height * 1000 + width)
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def cut(
    image: Pixels, box: tuple[int, ...], size: int, interpolation: str, channels: int = 3
) -> Pixels:
    out = np.empty((size, size, channels), np.uint8)
    kernels.cut(image, np.array(box), kernels.FILTERS[interpolation], out)
    return out


def difference(a: Pixels, b: Pixels) -> int:
    return int(np.abs(a.astype(int) - b.astype(int)).max())


# top, left, height, width, flip, side: shrinking, growing, both at once, one pixel, a border.
CASES = [
    (0, 0, 256, 256, 0, 224),
    (17, 33, 190, 77, 1, 224),
    (5, 2, 60, 250, 0, 96),
    (100, 100, 13, 9, 1, 28),
    (255, 0, 1, 256, 0, 32),
    (30, 255, 40, 1, 1, 16),
]


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_equals_pillow(interpolation: str) -> None:
    image, kind = noise(256, 256), PILLOW[interpolation]
    for top, left, height, width, flip, size in CASES:
        got = cut(image, (top, left, height, width, flip, size, size, 0, 0), size, interpolation)
        box = Image.fromarray(image[top : top + height, left : left + width])
        expected = np.asarray(box.resize((size, height), kind).resize((size, size), kind))
        assert difference(got, expected[:, ::-1] if flip else expected) <= 1, (height, width, size)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_a_part_of_a_grown_image_equals_pillows(interpolation: str) -> None:
    image = noise(32, 32)
    whole = np.asarray(Image.fromarray(image).resize((96, 96), PILLOW[interpolation]))
    for size in range(60, 97):
        first = (96 - size) // 2
        got = cut(image, (0, 0, 32, 32, 0, 96, 96, first, first), size, interpolation)
        assert difference(got, whole[first : first + size, first : first + size]) <= 1, size


def test_area_is_the_mean_of_the_covered_pixels() -> None:
    image = noise(60, 90)
    blocks = image.reshape(10, 6, 10, 9, 3).astype(float)
    found = cut(image, (0, 0, 60, 90, 0, 10, 10, 0, 0), 10, "area")
    assert difference(found, blocks.mean((1, 3)).round()) <= 1
    # 3 pixels onto 2: each covers one and a half.
    row = np.repeat(np.array([0, 90, 240], np.uint8), 3).reshape(1, 3, 3)
    got = cut(np.repeat(row, 3, axis=0), (0, 0, 3, 3, 0, 2, 2, 0, 0), 2, "area")
    np.testing.assert_array_equal(got[0, :, 0], [30, 190])


def test_area_grows_as_bilinear() -> None:
    image = noise(20, 20)
    box = (3, 4, 7, 11, 0, 32, 32, 0, 0)
    np.testing.assert_array_equal(cut(image, box, 32, "area"), cut(image, box, 32, "bilinear"))


def test_no_change_of_size_changes_nothing() -> None:
    image = noise(28, 28)
    for interpolation in kernels.FILTERS:
        found = cut(image, (0, 0, 28, 28, 0, 28, 28, 0, 0), 28, interpolation)
        np.testing.assert_array_equal(found, image)


def test_one_channel_is_the_first_of_three() -> None:
    image = noise(50, 40)
    box = (3, 4, 30, 31, 1, 28, 28, 0, 0)
    three = cut(image, box, 28, "bicubic")
    np.testing.assert_array_equal(cut(image, box, 28, "bicubic", 1), three[:, :, :1])


def test_center_boxes_equal_torchvisions_sizes() -> None:
    rng = np.random.default_rng(0)
    for height, width in rng.integers(30, 900, (20, 2)):
        (box,) = center_boxes(np.array([height]), np.array([width]), 256, 224)
        resized = F.resize(torch.zeros(1, int(height), int(width), dtype=torch.uint8), [256])
        assert tuple(box[5:7]) == resized.shape[1:]
        assert box[7] == round((resized.shape[1] - 224) / 2)
