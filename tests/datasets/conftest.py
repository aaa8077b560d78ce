"""Small sources in the formats in which the real ones are published."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from regbench.datasets.stored.prepare import prepare
from tests.cifar import cifar_files
from tests.datasets import preparing
from tests.datasets.preparing import fashion_config, folder_config, make_imagefolder


def write_idx(path: Path, values: preparing.Pixels) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    content = bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()
    path.write_bytes(gzip.compress(content, mtime=0))


@pytest.fixture(scope="session")
def fashion_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 training and 3 test images a class in the four gzipped IDX files."""
    folder = tmp_path_factory.mktemp("fashion_source")
    rng = np.random.default_rng(0)
    for part, per_class in (("train", 12), ("t10k", 3)):
        labels = rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), per_class))
        images = np.stack([preparing.smooth_image(i, 28, 28)[:, :, 0] for i in range(len(labels))])
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return folder


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


@pytest.fixture(scope="session")
def insects_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_imagefolder(tmp_path_factory.mktemp("insects_source"), 14, 3)


@pytest.fixture(scope="session")
def data_dir(
    tmp_path_factory: pytest.TempPathFactory, fashion_source: Path, insects_source: Path
) -> Path:
    """ "fashion" and "insects", prepared; tests only read here."""
    folder = tmp_path_factory.mktemp("data")
    prepare(fashion_config(), folder, source_dir=fashion_source)
    prepare(folder_config(), folder, source_dir=insects_source)
    return folder


@pytest.fixture
def choice(tmp_path: Path) -> Path:
    """The record that opens the test split."""
    path = tmp_path / "choice.json"
    path.write_text('{"hyperparameters": {"selected_on": "given"}}')
    return path
