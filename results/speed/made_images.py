"""Images to measure loaders with: made ones, or a prepared data set.

Made images are noise with the spectrum of natural images and flat shapes, from a fixed seed, as
JPEGs of 4:2:0 that are about as large as ImageNet's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.config import AugmentationConfig, DatasetConfig
from regbench.datasets.stored.beton import RAW, Beton
from regbench.datasets.stored.manifest import Manifest
from regbench.datasets.stored.prepare import prepare


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Images to be made.

    Attributes:
        name: Name of the data set.
        height: px; every second JPEG stands upright.
        width: px.
        quality: JPEG quality.
        image_size: Side of the crops, px.
        distinct: Number of different images.
        copies: Number of copies of each image in the file, which make an epoch long enough.
    """

    name: str
    height: int
    width: int
    quality: int
    image_size: int = 224
    distinct: int = 256
    copies: int = 8


# ImageNet shrunk to shorter sides of 256 px, and ImageNet as it is. The qualities give as many
# bytes a pixel as ImageNet has.
SCENARIOS = {
    "256": Scenario(name="256", height=256, width=341, quality=90),
    "500x375": Scenario(name="500x375", height=375, width=500, quality=96),
}


@dataclass(frozen=True)
class PreparedImages:
    """A prepared data set to load.

    Attributes:
        overrides: The settings of a training on it.
        dataset: Which.
        augmentation: Augmentation of the two views.
        data_dir: Folder of prepared data sets.
    """

    overrides: Sequence[str]
    dataset: DatasetConfig
    augmentation: AugmentationConfig
    data_dir: Path

    @staticmethod
    def of(overrides: Sequence[str]) -> PreparedImages:
        """Choose those that a training with these settings would see."""
        cell, runtime = load_run(overrides)
        return PreparedImages(
            tuple(overrides), cell.dataset, cell.augmentation, Path(runtime.data_dir)
        )

    @property
    def file(self) -> Path:
        """The images to pretrain on.

        Raises:
            RegbenchError: The data set is not prepared.
        """
        manifest = Manifest.load(self.data_dir, self.dataset)
        return manifest.split_file(self.data_dir, manifest.pretraining_split)

    def __str__(self) -> str:
        """Put them into one line."""
        beton = Beton(self.file)
        form = (
            "raw" if (beton.modes == RAW).all() else f"JPEG, {beton.size.mean() / 1e3:.0f} kB each"
        )
        sides = np.sort(np.stack([beton.heights, beton.widths]), axis=0)
        short, long = np.median(sides, axis=1)
        return f"{self.dataset.name}: {len(beton):,} images, {long:.0f} x {short:.0f} px, {form}"


def photo(seed: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Draw a picture that a JPEG coder finds as hard as a photograph, (height, width, 3).

    The amplitude of its noise falls with the frequency f as f^-1.3, colours vary less than the
    light, and a dozen flat ellipses give edges.
    """
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = np.inf
    shape = (3, *frequency.shape)
    # Photographs fall about as 1/f; a little steeper, and with shapes on top, gives JPEGs of their
    # size.
    spectrum = (rng.normal(size=shape) + 1j * rng.normal(size=shape)) / frequency**1.3
    planes = np.fft.irfft2(spectrum, (height, width))
    light, u, v = 30 * planes / planes.std(axis=(1, 2), keepdims=True)
    image = 120 + light[:, :, None] + 0.3 * np.stack([u, -u - v, v], axis=2)
    row, column = np.mgrid[:height, :width]
    for _ in range(12):
        down, along = row - rng.uniform(0, height), column - rng.uniform(0, width)
        turn = rng.uniform(0, np.pi)
        cosine, sine = np.cos(turn), np.sin(turn)
        long, short = rng.uniform(0.03, 0.35, 2) * min(height, width)
        inside = ((along * cosine + down * sine) / long) ** 2 + (
            (down * cosine - along * sine) / short
        ) ** 2 < 1
        image[inside] += rng.normal(0, 45, 3)
    pixels: npt.NDArray[np.uint8] = image.clip(0, 255).astype(np.uint8)
    return pixels


def _write(scenario: Scenario, number: int, folder: Path) -> None:
    """Write an image and its copies."""
    upright = number % 2 == 1
    size = (scenario.width, scenario.height) if upright else (scenario.height, scenario.width)
    first = folder / f"{number:04}_0.jpg"
    Image.fromarray(photo(number, *size)).save(first, quality=scenario.quality, subsampling="4:2:0")
    # Links, since copies are there to make an epoch long, not to fill a disk.
    for copy in range(1, scenario.copies):
        first.with_name(f"{number:04}_{copy}.jpg").hardlink_to(first)


def make_images(scenario: Scenario, data_dir: Path) -> PreparedImages:
    """Make the images of a scenario and prepare them as a data set, which takes some seconds."""
    side_px = scenario.image_size
    # A name of digits alone would be a number in an override.
    settings = f"dataset=imagefolder dataset.name=made_{scenario.name} dataset.num_classes=1"
    settings += f" dataset.image_size={side_px} dataset.eval_resize={side_px}"
    settings += " dataset.source.held_out=null augmentation=imagenet"
    images = PreparedImages.of([*settings.split(), f"runtime.data_dir={data_dir}"])
    with tempfile.TemporaryDirectory(dir=data_dir) as folder:
        train, test = Path(folder, "train", "made"), Path(folder, "val", "made")
        train.mkdir(parents=True)
        test.mkdir(parents=True)
        # A data set has a test split.
        Image.fromarray(photo(scenario.distinct, 32, 32)).save(test / "one.png")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda number: _write(scenario, number, train), range(scenario.distinct)))
        prepare(images.dataset, data_dir, source_dir=Path(folder))
    return images
