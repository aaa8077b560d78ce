"""Small images that are published as arrays: Fashion-MNIST, CIFAR-10, CIFAR-100, STL-10."""

from __future__ import annotations

import gzip
import math
import pickle
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regbench import RegbenchError
from regbench.datasets.beton import MIN_PAGE_BYTES, RAW, Sample
from regbench.datasets.config import DatasetConfig
from regbench.datasets.published import PUBLISHED
from regbench.datasets.sources.base import Labels, Source, Split, refuse_incomplete

Pixels = npt.NDArray[np.uint8]
Part = tuple[Pixels, Labels]
"""Images (N, H, W) or (N, H, W, 3), and their labels."""

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

# fmt: off
FASHION_MNIST_CLASSES = (
    "t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
# fmt: on


class _Folder:
    """The files of a source: reads them, and keeps all that is wrong with them.

    Attributes:
        path: of the folder.
        title: what messages call it.
        wrong: the faults so far.
        parts: the images and labels that could be read, by part.
    """

    def __init__(self, config: DatasetConfig, path: Path, title: str = "") -> None:
        self._config = config
        self.path = path
        self.title = title or str(path)
        self.wrong: list[str] = []
        self.parts: dict[str, Part] = {}

    def read(self, name: str) -> bytes | None:
        """A file's content; None if it cannot be read."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            self.wrong.append(f"{name} is missing")
        except OSError as error:
            self.wrong.append(f"{name} cannot be read ({error.strerror})")
        return None

    def add(self, part: str, name: str, images: Pixels | None, labels: Labels | None, num_classes: int) -> None:
        """Take a part, whose labels are in file `name`, unless something is wrong with it."""
        if images is None or labels is None:
            return
        if len(images) != len(labels) or len(labels) == 0:
            self.wrong.append(f"{name}: {len(images):,} images but {len(labels):,} labels")
        elif labels.min() < 0 or labels.max() >= num_classes:
            self.wrong.append(f"{name}: labels from {labels.min()} to {labels.max()}, not 0 to {num_classes - 1}")
        else:
            self.parts[part] = images, labels

    def splits(self, tuning_share: int) -> dict[str, Split]:
        """Train, tuning and test: of each class the last 1 / `tuning_share`, in file order, is for tuning.

        Raises:
            RegbenchError: something is wrong; it is listed.
        """
        refuse_incomplete(
            self._config, self.title, self.wrong, {part: len(labels) for part, (_, labels) in self.parts.items()}
        )
        labels = self.parts["train"][1]
        tuning = np.zeros(len(labels), bool)
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            tuning[rows[len(rows) - len(rows) // tuning_share :]] = True
        chosen = {"train": ("train", np.flatnonzero(~tuning)), "tuning": ("train", np.flatnonzero(tuning))}
        chosen |= {part: (part, np.arange(len(labels))) for part, (_, labels) in self.parts.items() if part != "train"}
        return {
            split: _array_split(f"{self._config.source} {part}", *self.parts[part], rows)
            for split, (part, rows) in chosen.items()
        }


def _array_split(name: str, images: Pixels, labels: Labels, rows: npt.NDArray[np.intp]) -> Split:
    """A split of the images at `rows`, stored raw."""

    def samples(_: int) -> Iterator[Sample]:
        for row in rows:
            image = images[row]
            if grey := image.ndim == 2:
                image = np.repeat(image[:, :, None], 3, axis=2)
            height, width, _ = image.shape
            yield Sample(RAW, height, width, int(labels[row]), image.tobytes(), f"{name}[{row}]", grey)

    return Split(labels[rows], MIN_PAGE_BYTES, samples, stored_bytes=len(rows) * 3 * math.prod(images.shape[1:3]))


def _folder(
    config: DatasetConfig, source_dir: Path | None, download_dir: Path, inside: str, fetch: Callable[[], object]
) -> _Folder:
    """The folder of a source: `inside` the one that is given, or that of the downloads, after one if need be."""
    if source_dir is not None:
        return _Folder(config, source_dir / inside)
    folder = download_dir / inside
    if not folder.is_dir():
        published = PUBLISHED[config.source]
        try:
            fetch()
        except (OSError, RuntimeError) as error:
            raise RegbenchError(
                f"cannot download {published.title} ({error}); get it by other means from {published.address} and "
                "give its folder with --source-dir"
            ) from error
    return _Folder(config, folder, f"{folder}, which was downloaded (remove it to try again),")


def fashion_mnist(config: DatasetConfig, source_dir: Path | None, download_dir: Path) -> Source:
    """Four gzipped IDX files; in Debian they are a package.

    Raises:
        RegbenchError: they cannot be had, or something is wrong with them; it is listed.
    """

    def fetch() -> None:
        from torchvision.datasets import FashionMNIST

        FashionMNIST(str(download_dir), download=True)

    if source_dir is None and (DEBIAN_FASHION_MNIST / "train-images-idx3-ubyte.gz").is_file():
        source_dir = DEBIAN_FASHION_MNIST
    inside = "FashionMNIST/raw" if source_dir is None else ""
    folder = _folder(config, source_dir, download_dir, inside, fetch)
    for part, name in (("train", "train"), ("test", "t10k")):
        labels_file = f"{name}-labels-idx1-ubyte.gz"
        labels = _idx(folder, labels_file, 1)
        images = _idx(folder, f"{name}-images-idx3-ubyte.gz", 3)
        as_int = None if labels is None else labels.astype(np.int64)
        folder.add(part, labels_file, images, as_int, len(FASHION_MNIST_CLASSES))
    return Source(folder.splits(tuning_share=6), list(FASHION_MNIST_CLASSES))


def _idx(folder: _Folder, name: str, dimensions: int) -> Pixels | None:
    """Read a gzipped IDX file of bytes: 0, 0, 8 (bytes), number of dimensions, sizes (big-endian), values."""
    if (packed := folder.read(name)) is None:
        return None
    values_start = 4 + 4 * dimensions
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        folder.wrong.append(f"{name} is damaged ({error})")
        return None
    if len(content) < values_start or content[:4] != bytes([0, 0, 8, dimensions]):
        folder.wrong.append(f"{name} is not an IDX file of bytes in {dimensions} dimensions")
        return None
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    values = np.frombuffer(content, np.uint8, offset=values_start)
    if math.prod(shape) != len(values):
        folder.wrong.append(f"{name} is cut short: {len(values):,} values for the shape {shape}")
        return None
    return values.reshape(shape)


class _ArrayUnpickler(pickle.Unpickler):
    """Reads NumPy arrays and plain containers, and nothing that could run code."""

    _ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


_NO_PICKLE = (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError)
_CIFAR = "not the file that CIFAR's authors published"


def _cifar_batch(folder: _Folder, name: str, labels_key: bytes) -> tuple[Pixels | None, Labels | None]:
    if (packed := folder.read(name)) is None:
        return None, None
    try:
        content = _ArrayUnpickler(BytesIO(packed), encoding="bytes").load()
        images = np.asarray(content[b"data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = np.asarray(content[labels_key], np.int64)
        if len(images) != len(labels):
            raise ValueError(f"{len(images):,} images but {len(labels):,} labels")
        return images, labels
    except _NO_PICKLE as error:
        folder.wrong.append(f"{name} is {_CIFAR} ({error})")
        return None, None


def cifar10(config: DatasetConfig, source_dir: Path | None, download_dir: Path) -> Source:
    """Five pickles of training images and one of test images in `cifar-10-batches-py/`.

    Raises:
        RegbenchError: they cannot be had, or something is wrong with them; it is listed.
    """

    def fetch() -> None:
        from torchvision.datasets import CIFAR10

        CIFAR10(str(download_dir), download=True)

    folder = _folder(config, source_dir, download_dir, "cifar-10-batches-py", fetch)
    batches = [_cifar_batch(folder, f"data_batch_{i}", b"labels") for i in range(1, 6)]
    if not folder.wrong:
        images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
        folder.add("train", "data_batch_1 to 5", images, labels, len(CIFAR10_CLASSES))
    folder.add("test", "test_batch", *_cifar_batch(folder, "test_batch", b"labels"), len(CIFAR10_CLASSES))
    return Source(folder.splits(tuning_share=10), list(CIFAR10_CLASSES))


def cifar100(config: DatasetConfig, source_dir: Path | None, download_dir: Path) -> Source:
    """Three pickles in `cifar-100-python/`: training images, test images, and the names of the 100 fine classes.

    Raises:
        RegbenchError: they cannot be had, or something is wrong with them; it is listed.
    """

    def fetch() -> None:
        from torchvision.datasets import CIFAR100

        CIFAR100(str(download_dir), download=True)

    folder = _folder(config, source_dir, download_dir, "cifar-100-python", fetch)
    names: list[str] = []
    if (packed := folder.read("meta")) is not None:
        try:
            content = _ArrayUnpickler(BytesIO(packed), encoding="bytes").load()
            names = [name.decode() for name in content[b"fine_label_names"]]
        except _NO_PICKLE as error:
            folder.wrong.append(f"meta is {_CIFAR} ({error})")
    for part in ("train", "test"):
        images, labels = _cifar_batch(folder, part, b"fine_labels")
        if names:  # without them nothing is known of the labels
            folder.add(part, part, images, labels, len(names))
    return Source(folder.splits(tuning_share=10), names)


def stl10(config: DatasetConfig, source_dir: Path | None, download_dir: Path) -> Source:
    """Files of bytes in `stl10_binary/`: images, and labels from 1 to 10.

    Raises:
        RegbenchError: they cannot be had, or something is wrong with them; it is listed.
    """

    def fetch() -> None:
        from torchvision.datasets import STL10

        STL10(str(download_dir), split="unlabeled", download=True)

    def images(name: str) -> Pixels | None:
        path = folder.path / name
        image_bytes = 3 * 96 * 96
        size = path.stat().st_size if path.is_file() else 0
        if size == 0 or size % image_bytes:
            state = f"cut short: {size:,} bytes, no multiple of {image_bytes:,}" if size else "missing or empty"
            folder.wrong.append(f"{name} is {state}")
            return None
        # Each image is three planes, each stored column by column.
        planes: Pixels = np.memmap(path, np.uint8, "r").reshape(-1, 3, 96, 96)
        return planes.transpose(0, 3, 2, 1)

    folder = _folder(config, source_dir, download_dir, "stl10_binary", fetch)
    for part in ("train", "test"):
        name = f"{part}_y.bin"
        content = folder.read(name)
        labels = None if content is None else np.frombuffer(content, np.uint8).astype(np.int64) - 1
        folder.add(part, name, images(f"{part}_X.bin"), labels, len(STL10_CLASSES))
    if (unlabeled := images("unlabeled_X.bin")) is not None:
        folder.parts["unlabeled"] = unlabeled, np.full(len(unlabeled), -1, np.int64)
    return Source(folder.splits(tuning_share=5), list(STL10_CLASSES))
