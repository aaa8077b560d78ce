"""Where images come from: each source is read as it is published and divided into splits.

A tuning split is always cut from the source's training images, so that nothing is ever selected on "test".

- fashion_mnist: 6,000 images a class; the first 5,000 in file order are "train", the last 1,000 "tuning".
- cifar10: 5,000 images a class; 4,500 and 500.
- stl10: 500 labelled images a class; 400 and 100. The 100,000 images without labels are "unlabeled", and pretraining
  uses these.
- imagefolder: `train/<class>/` and `val/<class>/`, as ILSVRC is laid out, files in sorted order; "test" is `val/`.
  With `train_per_class` = n and `tuning_per_class` = m, files 0 to n-1 of each class of `train/` are "train" and
  files n+1 to n+m "tuning": file n belongs to neither, as in the published code of SFRIK. With `train_list` the files
  that it names are "train", and with `tuning_per_class` = m the first m others of each class "tuning".
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import pickle
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regbench import RegbenchError
from regbench.datasets.beton import MIN_PAGE_BYTES, RAW, Sample
from regbench.datasets.config import DatasetConfig
from regbench.datasets.encode import Unreadable, encode, encode_all

Labels = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff"})

# fmt: off
FASHION_MNIST_CLASSES = (
    "t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
# fmt: on


@dataclass(frozen=True)
class Split:
    """One split, ready to be read once, in order.

    Attributes:
        labels: (N,) int64; -1 where there is none.
        page_bytes: page size for the `.beton` file.
        samples: called with a number of threads, reads and yields every sample in order, or what is wrong with it.
        stored_bytes: about how many bytes of images that will be.
        identity: a hash that changes when the images do (names, sizes, times, labels); None: never taken over.
    """

    labels: Labels
    page_bytes: int
    samples: Callable[[int], Iterator[Sample | Unreadable]]
    stored_bytes: int = 0
    identity: str | None = None


@dataclass(frozen=True)
class Source:
    """A source's splits by name, and its classes in the order of the labels."""

    splits: dict[str, Split]
    class_names: list[str]


def open_source(config: DatasetConfig, source_dir: Path | None, download_dir: Path) -> Source:
    """Find the source of `config`, download it where that is possible, and divide it into splits.

    Args:
        config: the data set.
        source_dir: the folder that holds the source; None for the usual place or a download.
        download_dir: where downloads go.

    Raises:
        RegbenchError: the source cannot be found, downloaded or read, or has not the classes of `config`.
    """
    if config.source == "imagefolder":
        source = _imagefolder(config, source_dir)
    elif config.train_list is not None:
        raise RegbenchError(
            f"data set '{config.name}': train_list is for folders of images, and the source is {config.source}; "
            "set dataset.train_list=null"
        )
    else:
        readers = {"fashion_mnist": _fashion_mnist, "cifar10": _cifar10, "stl10": _stl10}
        source = readers[config.source](source_dir, download_dir)
    found = len(source.class_names)
    if found != config.num_classes:
        raise RegbenchError(
            f"data set '{config.name}': the source has {found} classes, not {config.num_classes}; "
            f"set dataset.num_classes={found}, or mend the source"
        )
    return source


# ------------------------------------------------------------------------------------------- arrays of small images


def _array_split(name: str, images: Pixels, labels: Labels, rows: npt.NDArray[np.intp]) -> Split:
    """A split of the images (N, H, W) or (N, H, W, 3) at `rows`, stored raw."""

    def samples(_: int) -> Iterator[Sample]:
        for row in rows:
            image = images[row]
            if image.ndim == 2:
                image = np.repeat(image[:, :, None], 3, axis=2)
            height, width, _ = image.shape
            yield Sample(RAW, height, width, int(labels[row]), image.tobytes(), f"{name}[{row}]")

    return Split(labels[rows], MIN_PAGE_BYTES, samples, stored_bytes=len(rows) * 3 * math.prod(images.shape[1:3]))


def _labelled_splits(
    name: str, train: tuple[Pixels, Labels], test: tuple[Pixels, Labels], *, tuning_share: int
) -> dict[str, Split]:
    """Train, tuning and test: of each class of `train` the last 1 / `tuning_share`, in file order, is for tuning."""
    labels = train[1]
    tuning = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        tuning[rows[len(rows) - len(rows) // tuning_share :]] = True
    return {
        "train": _array_split(f"{name} train", *train, np.flatnonzero(~tuning)),
        "tuning": _array_split(f"{name} train", *train, np.flatnonzero(tuning)),
        "test": _array_split(f"{name} test", *test, np.arange(len(test[1]))),
    }


def _checked(path: Path, images: Pixels, labels: Labels, num_classes: int) -> tuple[Pixels, Labels]:
    if len(images) != len(labels) or len(labels) == 0:
        raise RegbenchError(f"{path}: {len(images)} images but {len(labels)} labels; get the source again")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise RegbenchError(
            f"{path}: labels from {labels.min()} to {labels.max()}, not 0 to {num_classes - 1}; get the source again"
        )
    return images, labels


def _fetched(name: str, folder: Path, fetch: Callable[[], object]) -> Path:
    """The folder of a source, after a download if it is not there."""
    if not folder.is_dir():
        try:
            fetch()
        except (OSError, RuntimeError) as error:
            raise RegbenchError(
                f"cannot download {name} ({error}); get it by other means and give its folder with --source-dir"
            ) from error
    return folder


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RegbenchError(f"{path} is missing; give the folder of the source with --source-dir") from None
    except OSError as error:
        raise RegbenchError(f"cannot read {path}: {error.strerror}") from error


def _idx(path: Path, dimensions: int) -> Pixels:
    """Read a gzipped IDX file of bytes: 0, 0, 8 (bytes), number of dimensions, sizes (big-endian), values."""
    try:
        content = gzip.decompress(_read(path))
    except (OSError, EOFError, zlib.error) as error:
        raise RegbenchError(f"{path} is damaged ({error}); get it again") from error
    values_start = 4 + 4 * dimensions
    if len(content) < values_start or content[:4] != bytes([0, 0, 8, dimensions]):
        raise RegbenchError(f"{path} is not an IDX file of bytes in {dimensions} dimensions; get it again")
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    values = np.frombuffer(content, np.uint8, offset=values_start)
    if math.prod(shape) != len(values):
        raise RegbenchError(f"{path} is cut short: {len(values)} values for the shape {shape}; get it again")
    return values.reshape(shape)


def _fashion_mnist(source_dir: Path | None, download_dir: Path) -> Source:
    def fetch() -> None:
        from torchvision.datasets import FashionMNIST

        FashionMNIST(str(download_dir), download=True)

    def part(name: str) -> tuple[Pixels, Labels]:
        path = folder / f"{name}-labels-idx1-ubyte.gz"
        labels = _idx(path, 1).astype(np.int64)
        images = _idx(folder / f"{name}-images-idx3-ubyte.gz", 3)
        return _checked(path, images, labels, len(FASHION_MNIST_CLASSES))

    if source_dir is not None:
        folder = source_dir
    elif (DEBIAN_FASHION_MNIST / "train-images-idx3-ubyte.gz").is_file():
        folder = DEBIAN_FASHION_MNIST
    else:
        folder = _fetched("Fashion-MNIST", download_dir / "FashionMNIST" / "raw", fetch)
    splits = _labelled_splits("fashion_mnist", part("train"), part("t10k"), tuning_share=6)
    return Source(splits, list(FASHION_MNIST_CLASSES))


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


def _cifar10(source_dir: Path | None, download_dir: Path) -> Source:
    def fetch() -> None:
        from torchvision.datasets import CIFAR10

        CIFAR10(str(download_dir), download=True)

    def batch(name: str) -> tuple[Pixels, Labels]:
        path = folder / name
        try:
            content = _ArrayUnpickler(BytesIO(_read(path)), encoding="bytes").load()
            images = np.asarray(content[b"data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            labels = np.asarray(content[b"labels"], np.int64)
        except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError) as error:
            raise RegbenchError(f"{path} is not a CIFAR-10 batch ({error}); get it again") from error
        return _checked(path, images, labels, len(CIFAR10_CLASSES))

    folder = (source_dir or download_dir) / "cifar-10-batches-py"
    if source_dir is None:
        _fetched("CIFAR-10", folder, fetch)
    batches = [batch(f"data_batch_{i}") for i in range(1, 6)]
    train = np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])
    return Source(_labelled_splits("cifar10", train, batch("test_batch"), tuning_share=10), list(CIFAR10_CLASSES))


def _stl10(source_dir: Path | None, download_dir: Path) -> Source:
    def fetch() -> None:
        from torchvision.datasets import STL10

        STL10(str(download_dir), split="unlabeled", download=True)

    def images(name: str) -> Pixels:
        path = folder / name
        image_bytes = 3 * 96 * 96
        size = path.stat().st_size if path.is_file() else 0
        if size == 0 or size % image_bytes:
            raise RegbenchError(
                f"{path} is missing or cut short (its size is {size}, no multiple of {image_bytes} bytes); "
                "give the folder that holds stl10_binary/ with --source-dir"
            )
        # Each image is three planes, each stored column by column.
        planes: Pixels = np.memmap(path, np.uint8, "r").reshape(-1, 3, 96, 96)
        return planes.transpose(0, 3, 2, 1)

    def labelled(part: str) -> tuple[Pixels, Labels]:
        path = folder / f"{part}_y.bin"
        labels = np.frombuffer(_read(path), np.uint8).astype(np.int64) - 1
        return _checked(path, images(f"{part}_X.bin"), labels, len(STL10_CLASSES))

    folder = (source_dir or download_dir) / "stl10_binary"
    if source_dir is None:
        _fetched("STL-10", folder, fetch)
    splits = _labelled_splits("stl10", labelled("train"), labelled("test"), tuning_share=5)
    unlabeled = images("unlabeled_X.bin")
    no_labels = np.full(len(unlabeled), -1, np.int64)
    splits["unlabeled"] = _array_split("stl10 unlabeled", unlabeled, no_labels, np.arange(len(unlabeled)))
    return Source(splits, list(STL10_CLASSES))


# ------------------------------------------------------------------------------------------------- folders of files


def _class_files(folder: Path) -> dict[str, list[Path]]:
    """Image files of each class folder, both sorted by name."""
    if not folder.is_dir():
        raise RegbenchError(
            f"{folder} is missing; give a folder with train/<class>/ and val/<class>/ with --source-dir"
        )
    classes = {
        entry.name: sorted(
            file for file in entry.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")
        )
        for entry in sorted(folder.iterdir())
        if entry.is_dir() and not entry.name.startswith(".")
    }
    if not classes:
        raise RegbenchError(f"{folder} has no class folders; put each class's images into a folder of its own")
    for name, files in classes.items():
        if not files:
            raise RegbenchError(f"{folder / name} has no images; add some, or remove the folder")
    return classes


def _imagefolder(config: DatasetConfig, source_dir: Path | None) -> Source:
    if source_dir is None:
        raise RegbenchError(
            f"data set '{config.name}' is made from a folder of images; give the one that holds train/ and val/: "
            f"regbench prepare {config.name} --source-dir FOLDER"
        )
    keep, tune = config.train_per_class, config.tuning_per_class
    if config.train_list is not None and keep is not None:
        raise RegbenchError(
            f"data set '{config.name}': train_list and train_per_class both say which images are for training; "
            "set dataset.train_per_class=null"
        )
    if tune is not None and keep is None and config.train_list is None:
        raise RegbenchError(
            f"data set '{config.name}': the splits overlap: without train_per_class all images are for training and "
            f"none are left for tuning_per_class {tune}; set dataset.train_per_class too"
        )
    train, test = _class_files(source_dir / "train"), _class_files(source_dir / "val")
    odd = sorted(train.keys() ^ test.keys())
    if odd:
        raise RegbenchError(
            f"{source_dir}: train/ and val/ differ in their class folders ({', '.join(odd[:5])}); mend the folder"
        )
    if config.train_list is None:
        chosen = _divided(source_dir / "train", train, keep, tune)
    else:
        chosen = _divided_by_list(source_dir, config.train_list, train, tune)
    chosen["test"] = test
    _refuse_overlap(chosen)
    return Source({split: _file_split(classes, source_dir, config) for split, classes in chosen.items()}, list(train))


Files = dict[str, list[Path]]
"""Image files by class."""


def _divided(folder: Path, train: Files, keep: int | None, tune: int | None) -> dict[str, Files]:
    """The first `keep` of each class and, after one that is skipped, the next `tune`."""
    for name, files in train.items():
        needed = (keep or 1) + (0 if tune is None else 1 + tune)
        if len(files) < needed:
            raise RegbenchError(
                f"{folder / name} has {len(files)} images; train_per_class and tuning_per_class need {needed}"
            )
    chosen = {"train": {name: files[:keep] for name, files in train.items()}}
    if keep is not None and tune is not None:
        chosen["tuning"] = {name: files[keep + 1 : keep + 1 + tune] for name, files in train.items()}
    return chosen


def _divided_by_list(source_dir: Path, listed: str, train: Files, tune: int | None) -> dict[str, Files]:
    """The files that a list names and, of the others of each class, the first `tune`."""
    chosen = {"train": _listed_files(find_list(listed, source_dir), source_dir / "train", train)}
    if tune is None:
        return chosen
    chosen["tuning"] = {}
    for name, files in train.items():
        named = set(chosen["train"][name])
        others = [file for file in files if file not in named]
        if len(others) < tune:
            raise RegbenchError(
                f"{source_dir / 'train' / name} has {len(others)} images that {listed} does not name; "
                f"tuning_per_class needs {tune}"
            )
        chosen["tuning"][name] = others[:tune]
    return chosen


def find_list(name: str, source_dir: Path) -> Path:
    """The file of `train_list`: in `source_dir`, else in the working directory; an absolute path as it is."""
    for path in (source_dir / name, Path(name)):
        if path.is_file():
            return path
    where = "" if Path(name).is_absolute() else f"neither in {source_dir} nor in {Path.cwd()}"
    raise RegbenchError(
        f"the list of training images {name} is missing{f': it is {where}' if where else ''}; "
        "put it there, or give its path: dataset.train_list=PATH"
    )


def _listed_files(path: Path, folder: Path, train: Files) -> Files:
    """The training images that a list names, by class, in the folder's order.

    Args:
        path: The list: a file's name, or CLASS/NAME, a line; empty lines are skipped.
        folder: Of the training images, for messages.
        train: All of its images by class.

    Raises:
        RegbenchError: If the list cannot be read, names a file twice, or one that is not there or in two classes, or
            leaves out a class; with the line's number.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RegbenchError(f"cannot read the list of training images {path} ({error}); get it again") from error
    places: dict[str, list[str]] = {}
    for label, files in train.items():
        for file in files:
            places.setdefault(file.name, []).append(label)
            places[f"{label}/{file.name}"] = [label]
    seen: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines, start=1):
        if not (name := line.strip()):
            continue
        classes = places.get(name, [])
        if not classes:
            unknown = name.rpartition("/")[0]
            missing = f"its class {unknown}" if unknown and unknown not in train else "it"
            raise RegbenchError(
                f"{path}, line {number}: {name}: {missing} is not in {folder}; mend the list or the folder"
            )
        if len(classes) > 1:
            raise RegbenchError(
                f"{path}, line {number}: {name} is in {len(classes)} classes ({', '.join(classes[:3])}); "
                "write CLASS/NAME"
            )
        place = (classes[0], name.rpartition("/")[2])
        if first := seen.get(place):
            raise RegbenchError(f"{path}, line {number}: {name} is already in line {first}; get the list again")
        seen[place] = number
    chosen = {label: [file for file in files if (label, file.name) in seen] for label, files in train.items()}
    if empty := [label for label, files in chosen.items() if not files]:
        raise RegbenchError(
            f"{path} names {len(seen):,} images and none of {len(empty)} of the {len(train)} classes "
            f"({', '.join(empty[:3])}); is it cut short?"
        )
    return chosen


def _refuse_overlap(chosen: dict[str, dict[str, list[Path]]]) -> None:
    """Refuse a file that is in two splits, under whatever names."""
    seen: dict[tuple[int, int], tuple[str, Path]] = {}
    for split, classes in chosen.items():
        for path in (path for files in classes.values() for path in files):
            status = path.stat()
            other_split, other = seen.setdefault((status.st_dev, status.st_ino), (split, path))
            if other_split != split:
                raise RegbenchError(
                    f"the splits overlap: {path} ({split}) and {other} ({other_split}) are one file; keep it in one"
                )


def _file_split(classes: Files, source_dir: Path, config: DatasetConfig) -> Split:
    files: list[tuple[Path | bytes, int, str]] = []
    sizes = []
    identity = hashlib.sha256()
    for label, paths in enumerate(classes.values()):
        for path in paths:
            status = path.stat()
            # A name need not be UTF-8, nor free of line breaks.
            origin = os.fsencode(path.relative_to(source_dir)).decode(errors="backslashreplace").replace("\n", "\\n")
            files.append((path, label, origin))
            sizes.append(status.st_size)
            # The time of the last change of any kind: new permissions, too, can make an image readable.
            identity.update(f"{origin}\n{label} {status.st_size} {status.st_ctime_ns}\n".encode())
    # An image that has to be converted can grow.
    page_bytes = max(MIN_PAGE_BYTES, 1 << (4 * max(sizes) - 1).bit_length())
    return Split(
        np.array([label for _, label, _ in files], np.int64),
        page_bytes,
        lambda workers: encode_all(files, config, workers),
        stored_bytes=_expected_bytes(files, sizes, config),
        identity=identity.hexdigest(),
    )


def _expected_bytes(files: list[tuple[Path | bytes, int, str]], sizes: list[int], config: DatasetConfig) -> int:
    """About how many bytes the files take when they are stored, by what becomes of some of them."""
    read = stored = 0
    for index in range(0, len(files), -(-len(files) // 32)):
        if isinstance(sample := encode(*files[index], config), Sample):
            read += sizes[index]
            stored += len(sample.data)
    return sum(sizes) * stored // max(read, 1)
