"""Hugging Face data sets of images on disk, as parquet files.

The split stands in a file's name (`data/train-00000-of-00002.parquet`) or in its folder's (`train/0000.parquet`). A
column of structs {bytes, path} holds the image files, another one the labels; the names of the classes stand in the
schema's metadata under "huggingface", or are the labels themselves. Images are read a row group at a time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from regbench.datasets.progress import shown
from regbench.datasets.published import few
from regbench.datasets.sources.base import Contents, DividedFiles, Labels, Split, register
from regbench.settings import settings

_SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)")
_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "labels", "fine_label")
T = TypeVar("T")
_BATCH = 256  # images in memory, beside the row group that the reader holds


@register("parquet")
@settings
class Parquet(DividedFiles):
    """A Hugging Face data set of images on disk, in the order of its files, divided as a folder of images is.

    "test" is its test split, or its validation split where the test has no labels or is not there. Of a data set with
    both, the validation split is "tuning", unless tuning_per_class asks for one.
    """

    title = "parquet files of https://huggingface.co/datasets"
    layout = (
        "a data set's parquet files, such as data/train-00000-of-00002.parquet and data/test-00000-of-00001.parquet"
    )

    def __post_init__(self) -> None:
        """Refuse numbers that leave no images for tuning."""
        super().__post_init__()
        self.refuse_overlap()

    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Read the files; see `Source.open`."""
        assert folder is not None  # it is one's own
        wrong: list[str] = []
        shards = _shards(folder, wrong)
        columns = _columns(shards, wrong)
        self.refuse(folder, wrong)
        assert columns is not None  # else something is wrong
        labels, class_names = _labels(shards, columns, wrong)
        self.refuse(folder, wrong)
        roles = _roles(labels, tuned=self.tuning_per_class is not None)
        sizes = {}
        for split in dict.fromkeys(roles.values()):
            sizes[split] = _sizes(split, shards[split], columns.image, wrong)
            if without := int((labels[split] < 0).sum()):
                wrong.append(f"{without:,} images of {split} have no label, or one that is no class")
        rows = {name: np.flatnonzero(labels["train"] == label).tolist() for label, name in enumerate(class_names)}
        if empty := [name for name, images in rows.items() if not images]:
            wrong.append(f"{len(empty):,} classes have no images in train: {few(empty)}")
        self.refuse(folder, wrong, {"train": len(labels["train"]), "val": len(labels[roles["test"]])})
        chosen = self.divided(rows, f"{folder}: train")
        splits = {}
        for role, split in roles.items():
            taken = np.full(len(labels[split]), role not in chosen)
            taken[[row for images in chosen.get(role, {}).values() for row in images]] = True
            images = _Images(folder, shards[split], columns.image, labels[split], taken)
            splits[role] = images.split(sizes[split])
        return Contents(splits, class_names)


class _Sizes(NamedTuple):
    """How large the image files of a split are: the largest, all, and a few of them."""

    largest_bytes: int
    total_bytes: int
    some: list[bytes]


@dataclass(frozen=True)
class _Images:
    """Images of a split of the source.

    Attributes:
        folder: Of the source.
        paths: The files, in order.
        column: Of the image files.
        labels: Of all rows of the files.
        taken: The rows that are meant.
    """

    folder: Path
    paths: Sequence[Path]
    column: str
    labels: Labels
    taken: npt.NDArray[np.bool_]

    def split(self, sizes: _Sizes) -> Split:
        """Make a split of them."""
        identity = hashlib.sha256(self.taken.tobytes() + self.labels.tobytes())
        for path in self.paths:
            status = path.stat()
            identity.update(f"{path.relative_to(self.folder)}\n{status.st_size} {status.st_ctime_ns}\n".encode())
        total_bytes = int(sizes.total_bytes * self.taken.mean())
        labels = self.labels[self.taken]
        return Split(labels, self.__iter__, sizes.largest_bytes, total_bytes, sizes.some, identity.hexdigest())

    def __iter__(self) -> Iterator[tuple[bytes, str]]:
        """Read them, and say where each stands."""
        from pyarrow.parquet import ParquetFile

        first = 0  # row of the file, of those of all files
        for path in self.paths:
            origin = path.relative_to(self.folder)
            with ParquetFile(path) as file:
                row = 0
                for group in range(file.num_row_groups):
                    end = row + file.metadata.row_group(group).num_rows
                    if self.taken[first + row : first + end].any():
                        for content in (x for part in _contents(file, self.column, row_groups=[group]) for x in part):
                            if self.taken[first + row]:
                                yield content.as_py(), f"{origin}[{row}]"
                            row += 1
                    row = end
                first += row


@dataclass(frozen=True)
class _Columns:
    """Which columns hold what.

    Attributes:
        image: The image files' bytes, as pyarrow names them.
        label: The labels.
        class_names: None where only the labels tell them.
    """

    image: str
    label: str
    class_names: list[str] | None


def _read(path: Path, what: str, wrong: list[str], read: Callable[[Any], T]) -> T | None:
    """Return what `read` finds in a file; None if it cannot be read: then `wrong` gets a line about `what`."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            return read(file)
    except (pyarrow.ArrowException, OSError) as error:
        wrong.append(f"{what} cannot be read ({error})")
        return None


def _shards(source_dir: Path, wrong: list[str]) -> dict[str, list[Path]]:
    """Find the files of each split, in order; what is wrong is added to `wrong`."""
    shards: dict[str, list[Path]] = {}
    unknown, folders = [], set()
    for path in sorted(source_dir.rglob("*.parquet")):
        by_name = _SPLITS.get(re.split(r"[-.]", path.name)[0])
        split = by_name or _SPLITS.get(path.parent.name)
        if split is None:
            unknown.append(path.relative_to(source_dir))
            continue
        folders.add(path.parent if by_name else path.parent.parent)
        shards.setdefault(split, []).append(path)
    if unknown:
        wrong.append(f"{len(unknown):,} files belong to no split by their names: {few(unknown)}")
    if len(folders) > 1:
        names = few(sorted(str(path.relative_to(source_dir)) for path in folders))
        wrong.append(f"it holds several data sets, of which one is to be given: {names}")
    for split, paths in shards.items():
        found = [match for path in paths if (match := _SHARD.match(path.name))]
        expected = max((int(match[3]) for match in found), default=0)
        if lacking := sorted(set(range(expected)) - {int(match[2]) for match in found}):
            wrong.append(f"{len(lacking):,} of the {expected:,} files of {split} are missing: numbers {few(lacking)}")
    if "train" not in shards:
        wrong.append("it has no files of train")
    if not shards.keys() & {"validation", "test"}:
        wrong.append("it has no files of validation or test")
    return shards


def _columns(shards: dict[str, list[Path]], wrong: list[str]) -> _Columns | None:
    """Find which columns hold what, the same in every file; what is wrong is added to `wrong`."""
    found: _Columns | None = None
    for path in (path for paths in shards.values() for path in paths):
        schema = _read(path, path.name, wrong, lambda file: file.schema_arrow)
        if schema is None:
            continue
        columns = _columns_of(schema)
        if columns is None:
            wrong.append(
                f"{path.name} has no column of image files ({', '.join(_IMAGE_COLUMNS)}) or none of labels "
                f"({', '.join(_LABEL_COLUMNS)}); it has {', '.join(schema.names)}"
            )
        elif found is not None and columns != found:
            wrong.append(f"{path.name} has other columns or classes than the files before it")
        else:
            found = columns
    return found


def _columns_of(schema: Any) -> _Columns | None:
    """Find the columns by their usual names, else by the features that Hugging Face's metadata tells."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        features = {}
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}

    def column(usual: Sequence[str], kind: str) -> str | None:
        names = [name for name in usual if name in schema.names]
        return next(iter([*names, *(name for name in schema.names if kinds.get(name) == kind)]), None)

    image, label = column(_IMAGE_COLUMNS, "Image"), column(_LABEL_COLUMNS, "ClassLabel")
    if image is None or label is None:
        return None
    from pyarrow import types

    image_type, label_type = schema.field(image).type, schema.field(label).type
    if types.is_struct(image_type) and image_type.get_field_index("bytes") >= 0:
        image, image_type = f"{image}.bytes", image_type.field("bytes").type
    if not (types.is_binary(image_type) or types.is_large_binary(image_type)):
        return None
    if not (types.is_integer(label_type) or types.is_string(label_type)):
        return None
    return _Columns(image, label, features[label].get("names") if kinds.get(label) == "ClassLabel" else None)


def _labels(shards: dict[str, list[Path]], columns: _Columns, wrong: list[str]) -> tuple[dict[str, Labels], list[str]]:
    """Read the labels of each split, -1 where there is none or one that train has not; and the classes' names."""

    def labels_of(file: Any) -> list[Any]:
        found: list[Any] = file.read([columns.label]).column(0).to_pylist()
        return found

    values: dict[str, list[Any]] = {split: [] for split in shards}
    for split, path in ((split, path) for split, paths in shards.items() for path in paths):
        values[split] += _read(path, f"the labels of {path.name}", wrong, labels_of) or []
    if columns.class_names is not None:
        classes: list[Any] = list(range(len(columns.class_names)))
    else:  # a number below 0 stands for none
        classes = sorted(
            {value for value in values["train"] if value is not None and not (isinstance(value, int) and value < 0)}
        )
    number = {value: label for label, value in enumerate(classes)}
    labels = {split: np.array([number.get(value, -1) for value in found], np.int64) for split, found in values.items()}
    return labels, columns.class_names or [str(value) for value in classes]


def _roles(labels: dict[str, Labels], *, tuned: bool) -> dict[str, str]:
    """Choose the split of the source that each of ours is taken from."""
    if "validation" in labels and not ("test" in labels and (labels["test"] >= 0).any()):
        return {"train": "train", **({"tuning": "train"} if tuned else {}), "test": "validation"}
    tuning = "train" if tuned else "validation"
    return {"train": "train", **({"tuning": tuning} if tuning in labels else {}), "test": "test"}


def _contents(file: Any, column: str, **which: Any) -> Iterator[Any]:
    """Read the image files' bytes, an array of `_BATCH` at a time."""
    from pyarrow import compute, types

    for batch in file.iter_batches(_BATCH, columns=[column], **which):
        contents = batch.column(0)
        yield compute.struct_field(contents, "bytes") if types.is_struct(contents.type) else contents


def _sizes(split: str, paths: Sequence[Path], column: str, wrong: list[str]) -> _Sizes:
    """Read all of a split's image files once; what is wrong is added to `wrong`."""
    from pyarrow import compute

    largest = total = absent = 0
    some: list[bytes] = []
    sampled = set(paths[:: -(-len(paths) // 32)])

    def look(file: Any) -> None:
        nonlocal largest, total, absent
        for contents in _contents(file, column):
            lengths = compute.binary_length(contents)
            largest = max(largest, compute.max(lengths).as_py() or 0)
            total += compute.sum(lengths).as_py() or 0
            absent += lengths.null_count + (compute.sum(compute.equal(lengths, 0)).as_py() or 0)
        if path in sampled:
            some.extend(contents.drop_null().to_pylist()[:16])

    for path in shown(paths, len(paths), f"reading {split}", unit="files"):
        _read(path, path.name, wrong, look)
    if absent:
        wrong.append(f"{absent:,} images of {split} are not in the files, or only their paths are")
    return _Sizes(largest, total, some)
