"""Crops that are cut on the device out of images that all lie there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regbench import RegbenchError
from regbench.datasets.config import ViewsConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.crops import CropShape, Ints, boxes_of
from regbench.datasets.loading.resident_crops import ResidentCrops
from regbench.datasets.loading.torchvision_crops import TorchvisionCrops
from regbench.datasets.stored.beton import RAW, Beton, Sample, write_beton
from regbench.instruments.cost.operations import LaunchCounter

CPU = torch.device("cpu")
IMAGES = 40


def written(folder: Path, *sizes: tuple[int, int]) -> Beton:
    """A file of noise, `IMAGES` images of each size."""
    rng = np.random.default_rng(0)
    samples = []
    for height, width in sizes:
        for _ in range(IMAGES):
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            samples.append(Sample(RAW, height, width, 0, pixels.tobytes(), "noise"))
    path = folder / "noise.beton"
    write_beton(path, samples, len(samples))
    return Beton(path)


# Crops that grow and shrink, of two sizes that take turns, flipped or not; a centre; a patch.
KINDS = (
    ViewsConfig(size=32, crop_scale=(0.2, 1.0)),
    ViewsConfig(size=16, crop_scale=(0.05, 0.3), flip_p=1.0),
    ViewsConfig(size=32, flip_p=0.0),
    ViewsConfig(size=24, cut="center", resize=28),
    ViewsConfig(size=24, cut="patches", resize=60, count=9),
)


def crops_of(
    loader: Any, beton: Beton, kinds: tuple[ViewsConfig, ...], batch_size: int
) -> list[Tensor]:
    def boxes(indices: Ints) -> Ints:
        sides = beton.heights[indices], beton.widths[indices]
        keys = [draws.keys(1, 0, indices, draws.CROP, view) for view in range(len(kinds))]
        found = [boxes_of(kind, number, keys[number], *sides) for number, kind in enumerate(kinds)]
        return np.stack(found, axis=1)

    order = np.random.default_rng(1).permutation(IMAGES)
    return [crops for _, crops in loader.stream(order, batch_size, boxes)]


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("height", "width", "channels"), [(32, 32, 3), (20, 30, 1), (40, 25, 3)])
def test_they_are_pillows(
    height: int, width: int, channels: int, interpolation: str, tmp_path: Path
) -> None:
    beton = written(tmp_path, (height, width))
    shape = CropShape(
        sizes=tuple(kind.side for kind in KINDS), channels=channels, interpolation=interpolation
    )
    expected = crops_of(TorchvisionCrops(beton, shape, 1, pin_memory=False), beton, KINDS, 15)
    found = crops_of(ResidentCrops(beton, shape, CPU), beton, KINDS, 15)
    assert [len(batch) for batch in found] == [len(batch) for batch in expected]
    assert all(map(torch.equal, found, expected))


def test_both_views_take_few_operations(tmp_path: Path) -> None:
    beton = written(tmp_path, (32, 32))
    loader = ResidentCrops(
        beton, CropShape(sizes=(32, 32), channels=3, interpolation="bicubic"), CPU
    )
    crops_of(loader, beton, KINDS[:1] * 2, IMAGES)  # makes the filters
    with LaunchCounter(cpu=True) as operations:
        crops_of(loader, beton, KINDS[:1] * 2, IMAGES)
    assert 0 < operations.count <= 11


def test_other_images_and_filters_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = CropShape(sizes=(32,), channels=3, interpolation="bicubic")
    with pytest.raises(RegbenchError, match="images of different sizes; choose auto"):
        ResidentCrops(written(tmp_path, (32, 32), (32, 30)), shape, CPU)
    beton = written(tmp_path, (32, 32))
    with pytest.raises(
        RegbenchError, match="cannot be resized by area; choose bicubic or bilinear"
    ):
        ResidentCrops(beton, CropShape(sizes=(32,), channels=3, interpolation="area"), CPU)

    def empty(*size: object, **options: object) -> Tensor:
        raise torch.OutOfMemoryError("of several lines\n")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(
        RegbenchError, match=r"noise.beton does not fit into the memory of cpu; choose auto$"
    ):
        ResidentCrops(beton, shape, CPU)
