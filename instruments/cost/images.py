"""Images to measure loaders with: made ones, or a prepared data set.

Made images are noise with the spectrum of natural images and flat shapes, from a fixed seed, as JPEGs of 4:2:0 that are
about as large as ImageNet's.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from tqdm import tqdm

from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.beton import JPEG, RAW, Beton, Sample, write_beton
from regbench.datasets.config import AugmentationConfig, DatasetConfig, ViewsConfig
from regbench.datasets.manifest import Manifest, prepared_from
from regbench.datasets.sources.imagefolder import ImageFolder
from regbench.errors import RegbenchError
from regbench.version import __version__

log = logging.getLogger("regbench")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Images to be made.

    Attributes:
        name: On the command line.
        height: px; every second JPEG stands upright.
        width: px.
        quality: JPEG quality; None for raw images.
        image_size: Side of the crops, px.
        augmentation: Augmentation of the two views.
        distinct: Number of different images.
        copies: How often each is in the file, which makes an epoch long enough.
    """

    name: str
    height: int
    width: int
    quality: int | None
    image_size: int = 224
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    distinct: int = 512
    copies: int = 4


_SMALL = AugmentationConfig(
    name="small_color",
    views={
        "view1": ViewsConfig(crop_scale=(0.2, 1.0), blur_p=0.0),
        "view2": ViewsConfig(crop_scale=(0.2, 1.0), blur_p=0.0, solarize_p=0.0),
    },
)
_RAW_32 = {"height": 32, "width": 32, "image_size": 32, "distinct": 1024, "copies": 48}
SCENARIOS = {
    "256": Scenario(name="256", height=256, width=341, quality=90),
    "500x375": Scenario(name="500x375", height=375, width=500, quality=96),
    "raw32": Scenario(name="raw32", quality=None, augmentation=_SMALL, **_RAW_32),
}


def photo(seed: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Draw a picture that a JPEG coder finds as hard as a photograph, (height, width, 3).

    The amplitude of its noise falls with the frequency f as f^-1.3, colours vary less than the light, and a dozen flat
    ellipses give edges.
    """
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = np.inf
    shape = (3, *frequency.shape)
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
        inside = ((along * cosine + down * sine) / long) ** 2 + ((down * cosine - along * sine) / short) ** 2 < 1
        image[inside] += rng.normal(0, 45, 3)
    pixels: npt.NDArray[np.uint8] = image.clip(0, 255).astype(np.uint8)
    return pixels


def _sample(scenario: Scenario, number: int) -> Sample:
    upright = scenario.quality is not None and number % 2 == 1
    height, width = (scenario.width, scenario.height) if upright else (scenario.height, scenario.width)
    pixels = photo(number, height, width)
    if scenario.quality is None:
        return Sample(RAW, height, width, 0, pixels.tobytes(), f"image {number}")
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=scenario.quality, subsampling="4:2:0")
    return Sample(JPEG, height, width, 0, buffer.getvalue(), f"image {number}")


def make_images(scenario: Scenario, data_dir: Path) -> PreparedImages:
    """Make the images of a scenario and write them as a prepared data set."""
    config = DatasetConfig(
        name=scenario.name,
        source=ImageFolder(),
        image_size=scenario.image_size,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        num_classes=1,
        eval_resize=scenario.image_size,
    )
    title = f"making images, {scenario.name}"
    if not sys.stderr.isatty():
        log.info(title)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = pool.map(lambda number: _sample(scenario, number), range(scenario.distinct))
        samples = list(tqdm(made, title, scenario.distinct, disable=None, leave=False))
    count = scenario.distinct * scenario.copies
    path = data_dir / config.name / "train.beton"
    path.parent.mkdir(parents=True)
    content_sha256 = write_beton(path, samples * scenario.copies, count)
    Manifest(
        name=config.name,
        source=prepared_from(config),
        splits={
            "train": {
                "file": path.name,
                "num_samples": count,
                "counts_per_class": [count],
                "content_sha256": content_sha256,
                "bytes": path.stat().st_size,
                "origins": "",
                "origins_sha256": "",
                "left_out": {},
                "image_px": scenario.image_size,
                "grey": False,
            }
        },
        class_names=["made"],
        beton_version=2,
        regbench_version=__version__,
        created="",
    ).save(data_dir)
    return PreparedImages(name=scenario.name, dataset=config, augmentation=scenario.augmentation, data_dir=data_dir)


@dataclass(frozen=True, kw_only=True)
class PreparedImages:
    """A prepared data set to load.

    Attributes:
        name: For the tables.
        dataset: Which.
        augmentation: Augmentation of the two views.
        data_dir: Folder of prepared data sets.
    """

    name: str
    dataset: DatasetConfig
    augmentation: AugmentationConfig
    data_dir: Path

    @property
    def file(self) -> Path:
        """The images to pretrain on.

        Raises:
            RegbenchError: The data set is not prepared.
        """
        manifest = Manifest.load(self.data_dir, self.dataset)
        return manifest.split_file(self.data_dir, manifest.pretraining_split)

    @property
    def overrides(self) -> list[str]:
        """The settings of a training on images that `make_images` made."""
        side_px = self.dataset.image_size
        settings = ("dataset=imagefolder", f"dataset.name={self.name}", f"dataset.image_size={side_px}")
        same = (f"dataset.eval_resize={side_px}", "dataset.num_classes=1", "dataset.source.held_out=null")
        return [*settings, *same, f"runtime.data_dir={self.data_dir}"]

    def __str__(self) -> str:
        """Put them into one line."""
        beton = Beton(self.file)
        form = "raw" if (beton.modes == RAW).all() else f"JPEG, {beton.size.mean() / 1e3:.0f} kB each"
        sides = np.sort(np.stack([beton.heights, beton.widths]), axis=0)
        short, long = np.median(sides, axis=1)
        return f"{self.name}: {len(beton):,} images, {long:.0f} x {short:.0f} px, {form}"


@contextmanager
def chosen_images(
    scenarios: Sequence[str], data: str | None, overrides: Sequence[str] = ()
) -> Iterator[list[PreparedImages]]:
    """Return what to load; images that are made lie in a temporary folder.

    Args:
        scenarios: Names in `SCENARIOS`; empty for all, or for none if `data` is given.
        data: Name of a prepared data set's configuration, whose augmentation and folder are its own.
        overrides: Settings of this configuration.

    Yields:
        The images, made.

    Raises:
        RegbenchError: An unknown scenario or data set, or one that is not prepared.
    """
    for name in scenarios:
        if name not in SCENARIOS:
            raise RegbenchError(f"unknown scenario '{name}'; choose {', '.join(SCENARIOS)}")
    chosen = []
    if data:
        cell, runtime = load_run([f"dataset={data}", *overrides])
        chosen.append(
            PreparedImages(
                name=cell.dataset.name,
                dataset=cell.dataset,
                augmentation=cell.augmentation,
                data_dir=Path(runtime.data_dir),
            )
        )
    with tempfile.TemporaryDirectory(prefix="regbench-loader-") as folder:
        for name in dict.fromkeys(scenarios) if scenarios or data else SCENARIOS:
            chosen.append(make_images(SCENARIOS[name], Path(folder)))
        yield chosen
