"""What the tests of sources ask of them."""

from __future__ import annotations

import importlib.util
import io
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from regbench import RegbenchError
from regbench.datasets.config import DatasetConfig
from regbench.datasets.sources.base import SOURCES, Contents
from regbench.datasets.stored.beton import Beton
from regbench.datasets.stored.prepare import open_source

Pixels = npt.NDArray[np.uint8]
Settings = dict[str, object]
FFCV = importlib.util.find_spec("ffcv") is not None
NEEDS_FFCV = pytest.mark.skipif(not FFCV, reason="needs FFCV")
BACKENDS = [pytest.param("ffcv", marks=NEEDS_FFCV), "torchvision"]


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """The file of an image."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def smooth_image(seed: int, height: int, width: int) -> Pixels:
    """An RGB image of large soft shapes and some noise, which JPEG keeps well."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    image = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int64)
    noisy: Pixels = np.clip(image + rng.integers(-6, 7, image.shape), 0, 255).astype(np.uint8)
    return noisy


def make_imagefolder(root: Path, train_per_class: int, val_per_class: int) -> Path:
    """Write root/train/<class>/ and root/val/<class>/ of three classes with JPEGs of all sizes."""
    for part, count in (("train", train_per_class), ("val", val_per_class)):
        for label, name in enumerate(("ant", "bee", "cat")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                number = 1000 * label + 10 * i + (part == "val")
                image = smooth_image(number, 60 + 7 * (i % 5), 50 + 11 * (i % 4))
                Image.fromarray(image).save(folder / f"{name}_{i:03d}.jpg", quality=92)
    return root


def configured(source: str, settings: Settings, changes: Settings) -> DatasetConfig:
    """A data set with some settings changed, its own or those of its source."""
    settings = settings | changes
    source = str(settings.pop("source", source))
    if not SOURCES.of(source).own:
        settings.setdefault("published", False)
    own = {name: settings.pop(name) for name in SOURCES.defaults(source) if name in settings}
    return DatasetConfig(source=SOURCES.build(source, **own), **settings)  # type: ignore[arg-type]


def fashion_config(**changes: object) -> DatasetConfig:
    settings: Settings = {"name": "fashion", "num_classes": 10}
    settings |= {"image_size": 28, "eval_resize": 28, "channels": 1}
    settings |= {"mean": (0.25,), "std": (0.5,)}
    return configured("fashion_mnist", settings, changes)


def folder_config(**changes: object) -> DatasetConfig:
    settings: Settings = {"name": "insects", "num_classes": 3}
    settings |= {"image_size": 32, "eval_resize": 40, "channels": 3}
    settings |= {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
    settings |= {"train_per_class": 8, "tuning_per_class": 4}
    return configured("imagefolder", settings, changes)


def stored(data: Path, name: str, split: str) -> list[tuple[int, bytes]]:
    """Label and stored bytes of every image, in order."""
    beton = Beton(data / name / f"{split}.beton")
    return [(int(label), beton.stored_bytes(i).tobytes()) for i, label in enumerate(beton.labels)]


def opened(config: DatasetConfig, source: Path) -> Contents:
    """The source, which is usable."""
    return open_source(config, source, source)


def images(contents: Contents, split: str) -> list[tuple[int, str]]:
    """Label and origin of every image, in order."""
    found = contents.splits[split]
    origins = [origin for _, origin in found.images()]
    return list(zip(found.labels.tolist(), origins, strict=True))


def counts(contents: Contents) -> dict[str, int]:
    """The number of images of each split."""
    return {name: len(split.labels) for name, split in contents.splits.items()}


# Every refusal of a source that these tests meet, each in one line.
REFUSALS = Path(__file__).with_name("refusals.txt").read_text().splitlines()
# Folders of tests, and the words of libraries, which differ between their versions.
OF_THE_MACHINE = (
    (r"/\S*?/pytest-\d+/(?:popen-gw\d+/)?[\w.-]+", "TMP"),
    (r"(cannot (?:be read|read [^;]*|open [^;]*)|is damaged) \([^;]*\)", r"\1 (WHY)"),
)


def refused(
    config: DatasetConfig, source: Path | None, reason: str, downloads: Path = Path("/none")
) -> None:
    """It is refused in a line of `REFUSALS` that has this in it."""
    with pytest.raises(RegbenchError) as refusal:
        open_source(config, source, downloads)
    said = str(refusal.value).replace(str(Path.cwd()), "HERE")
    for pattern, name in OF_THE_MACHINE:
        said = re.sub(pattern, name, said)
    assert reason in said
    assert said in REFUSALS
