"""Small sources in the formats in which the real ones are published."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from regbench.datasets.config import DatasetConfig
from regbench.datasets.sources.base import SOURCES
from regbench.datasets.stored.prepare import prepare
from tests.cifar import cifar_files

Pixels = npt.NDArray[np.uint8]


def smooth_image(seed: int, height: int, width: int) -> Pixels:
    """An RGB image of large soft shapes and some noise, which JPEG keeps well."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    image = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int64)
    noisy: Pixels = np.clip(image + rng.integers(-6, 7, image.shape), 0, 255).astype(np.uint8)
    return noisy


def write_idx(path: Path, values: Pixels) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    path.write_bytes(
        gzip.compress(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes(), mtime=0)
    )


@pytest.fixture(scope="session")
def fashion_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 training and 3 test images a class in the four gzipped IDX files."""
    folder = tmp_path_factory.mktemp("fashion_source")
    rng = np.random.default_rng(0)
    for part, per_class in (("train", 12), ("t10k", 3)):
        labels = rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), per_class))
        images = np.stack([smooth_image(i, 28, 28)[:, :, 0] for i in range(len(labels))])
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return folder


# The one in C takes no other way of writing bytes.


@pytest.fixture(scope="session")
def cifar_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """CIFAR-10 and CIFAR-100 with few images, see `cifar_files`."""
    root = tmp_path_factory.mktemp("cifar_source")
    with cifar_files(root):
        yield root


@pytest.fixture(scope="session")
def stl_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5 training and 2 test images a class and 30 without labels, in STL-10's binary files."""
    root = tmp_path_factory.mktemp("stl_source")
    folder = root / "stl10_binary"
    folder.mkdir()
    rng = np.random.default_rng(2)
    for part, count in (("train", 50), ("test", 20), ("unlabeled", 30)):
        planes = rng.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
        (folder / f"{part}_X.bin").write_bytes(planes.tobytes())
        if part != "unlabeled":
            labels = rng.permutation(np.repeat(np.arange(1, 11, dtype=np.uint8), count // 10))
            (folder / f"{part}_y.bin").write_bytes(labels.tobytes())
    return root


MakeFolder = Callable[[Path, int, int], Path]


@pytest.fixture(scope="session")
def make_imagefolder() -> MakeFolder:
    """Writes root/train/<class>/ and root/val/<class>/ of three classes with JPEGs of all sizes."""

    def make(root: Path, train_per_class: int, val_per_class: int) -> Path:
        for part, count in (("train", train_per_class), ("val", val_per_class)):
            for label, name in enumerate(("ant", "bee", "cat")):
                folder = root / part / name
                folder.mkdir(parents=True)
                for i in range(count):
                    number = 1000 * label + 10 * i + (part == "val")
                    image = smooth_image(number, 60 + 7 * (i % 5), 50 + 11 * (i % 4))
                    Image.fromarray(image).save(folder / f"{name}_{i:03d}.jpg", quality=92)
        return root

    return make


def configured(
    source: str, settings: dict[str, object], changes: dict[str, object]
) -> DatasetConfig:
    """A data set with some settings changed, its own or those of its source."""
    settings = settings | changes
    source = str(settings.pop("source", source))
    if not SOURCES.of(source).own:
        settings.setdefault("published", False)
    own = {name: settings.pop(name) for name in SOURCES.defaults(source) if name in settings}
    return DatasetConfig(source=SOURCES.build(source, **own), **settings)  # type: ignore[arg-type]


def fashion_config(**changes: object) -> DatasetConfig:
    settings: dict[str, object] = {"name": "fashion", "num_classes": 10}
    settings |= {"image_size": 28, "eval_resize": 28, "channels": 1}
    settings |= {"mean": (0.25,), "std": (0.5,)}
    return configured("fashion_mnist", settings, changes)


def folder_config(**changes: object) -> DatasetConfig:
    settings: dict[str, object] = {"name": "insects", "num_classes": 3}
    settings |= {"image_size": 32, "eval_resize": 40, "channels": 3}
    settings |= {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
    settings |= {"train_per_class": 8, "tuning_per_class": 4}
    return configured("imagefolder", settings, changes)


@pytest.fixture(scope="session", name="fashion_config")
def _fashion_config() -> Callable[..., DatasetConfig]:
    return fashion_config


@pytest.fixture(scope="session", name="folder_config")
def _folder_config() -> Callable[..., DatasetConfig]:
    return folder_config


@pytest.fixture(scope="session")
def insects_source(tmp_path_factory: pytest.TempPathFactory, make_imagefolder: MakeFolder) -> Path:
    return make_imagefolder(tmp_path_factory.mktemp("insects_source"), 14, 3)


@pytest.fixture(scope="session")
def data_dir(
    tmp_path_factory: pytest.TempPathFactory, fashion_source: Path, insects_source: Path
) -> Path:
    """ "fashion" and "insects", prepared; tests only read here."""
    folder = tmp_path_factory.mktemp("data")
    prepare(fashion_config(), folder, source_dir=fashion_source, progress=False)
    prepare(folder_config(), folder, source_dir=insects_source, progress=False)
    return folder


@pytest.fixture
def choice(tmp_path: Path) -> Path:
    """The record that opens the test split."""
    path = tmp_path / "choice.json"
    path.write_text('{"hyperparameters": {"selected_on": "given"}}')
    return path
