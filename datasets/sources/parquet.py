"""Hugging Face data sets of images on disk, as parquet files.

The split stands in a file's name (`data/train-00000-of-00002.parquet`) or in its folder's (`train/0000.parquet`). A
column of structs {bytes, path} holds the image files, another one the labels; the names of the classes stand in the
schema's metadata under "huggingface", or are the labels themselves. Images are read a row group at a time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile

from regbench import RegbenchError
from regbench.datasets.config import DatasetConfig
from regbench.datasets.encode import encode_all
from regbench.datasets.progress import shown
from regbench.datasets.published import few, refuse_if
from regbench.datasets.sources.base import (
    Image,
    Labels,
    Source,
    Split,
    check_selection,
    divided,
    page_bytes,
    refuse_incomplete,
    stored_bytes,
)

LAYOUT = "a data set's parquet files, such as data/train-00000-of-00002.parquet and data/test-00000-of-00001.parquet"
_SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)")
_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "labels", "fine_label")
_BATCH = 256  # images in memory, beside the row group that the reader holds


@dataclass(frozen=True)
class _Columns:
    """Which columns hold what.

    Attributes:
        image: the image files' bytes, as `ParquetFile` names them.
        label: the labels.
        class_names: None where only the labels tell them.
    """

    image: str
    label: str
    class_names: list[str] | None


@dataclass(frozen=True)
class _Scan:
    """What the image files of a split are like.

    Attributes:
        largest_bytes: the size of the largest.
        total_bytes: of all.
        some: a few of them, and their sizes in bytes.
    """

    largest_bytes: int
    total_bytes: int
    some: list[tuple[Image, int]]


def parquet(config: DatasetConfig, source_dir: Path | None) -> Source:
    """The parquet files of one data set.

    Raises:
        RegbenchError: no folder is given, or something is wrong with it or with the settings; it is listed.
    """
    if source_dir is None:
        raise RegbenchError(
            f"data set '{config.name}' is made from parquet files of https://huggingface.co/datasets; "
            f"give their folder: {config.prepare_command}"
        )
    check_selection(config)
    wrong: list[str] = []
    shards = _shards(source_dir, wrong)
    columns = _columns(shards, wrong)
    refuse_incomplete(config, source_dir, wrong, {}, LAYOUT)
    assert columns is not None  # else something is wrong
    labels, class_names = _labels(shards, columns, wrong)
    refuse_incomplete(config, source_dir, wrong, {}, LAYOUT)
    roles = _roles(labels, tuned=config.tuning_per_class is not None)
    scans = {}
    for split in dict.fromkeys(roles.values()):
        scans[split] = _scan(split, shards[split], columns.image, wrong)
        if without := int((labels[split] < 0).sum()):
            wrong.append(f"{without:,} images of {split} have no label, or one that is no class")
    rows = {name: np.flatnonzero(labels["train"] == label).tolist() for label, name in enumerate(class_names)}
    if empty := [name for name, images in rows.items() if not images]:
        wrong.append(f"{len(empty):,} classes have no images in train: {few(empty)}")
    counts = {"train": len(labels["train"]), "val": len(labels[roles["test"]])}
    refuse_incomplete(config, source_dir, wrong, counts, LAYOUT)
    too_few: list[str] = []
    chosen = divided(rows, config.train_per_class, config.tuning_per_class, too_few)
    refuse_if(too_few, f"{source_dir}: train is too small", "choose other numbers, or add images")
    splits = {}
    for role, split in roles.items():
        taken = np.full(len(labels[split]), role not in chosen)
        taken[[row for images in chosen.get(role, {}).values() for row in images]] = True
        splits[role] = _split(config, source_dir, shards[split], columns.image, labels[split], taken, scans[split])
    return Source(splits, class_names)


def _split(
    config: DatasetConfig,
    source_dir: Path,
    paths: Sequence[Path],
    image: str,
    labels: Labels,
    taken: npt.NDArray[np.bool_],
    scan: _Scan,
) -> Split:
    """The split of the rows that are `taken`."""
    identity = hashlib.sha256(taken.tobytes() + labels.tobytes())
    for path in paths:
        status = path.stat()
        identity.update(f"{path.relative_to(source_dir)}\n{status.st_size} {status.st_ctime_ns}\n".encode())
    return Split(
        labels[taken],
        page_bytes(scan.largest_bytes),
        lambda workers: encode_all(_images(source_dir, paths, image, labels, taken), config, workers),
        stored_bytes=int(stored_bytes(scan.some, scan.total_bytes, config) * taken.mean()),
        identity=identity.hexdigest(),
    )


def _shards(source_dir: Path, wrong: list[str]) -> dict[str, list[Path]]:
    """The files of each split, in order; what is wrong is added to `wrong`."""
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
    """Which columns hold what: the same in every file; what is wrong is added to `wrong`."""
    found: _Columns | None = None
    for path in (path for paths in shards.values() for path in paths):
        try:
            with ParquetFile(path) as file:
                schema = file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            wrong.append(f"{path.name} cannot be read ({error})")
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
    """The columns by the features that Hugging Face's metadata tells, else by their usual names."""
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
    image_type, label_type = schema.field(image).type, schema.field(label).type
    if pa.types.is_struct(image_type) and image_type.get_field_index("bytes") >= 0:
        image, image_type = f"{image}.bytes", image_type.field("bytes").type
    if not (pa.types.is_binary(image_type) or pa.types.is_large_binary(image_type)):
        return None
    if not (pa.types.is_integer(label_type) or pa.types.is_string(label_type)):
        return None
    return _Columns(image, label, features[label].get("names") if kinds.get(label) == "ClassLabel" else None)


def _labels(shards: dict[str, list[Path]], columns: _Columns, wrong: list[str]) -> tuple[dict[str, Labels], list[str]]:
    """The labels of each split, -1 where there is none or one that is no class of train; and the classes' names."""
    values: dict[str, list[Any]] = {}
    for split, paths in shards.items():
        values[split] = []
        for path in paths:
            try:
                with ParquetFile(path) as file:
                    values[split] += file.read([columns.label]).column(0).to_pylist()
            except (pa.ArrowException, OSError) as error:
                wrong.append(f"the labels of {path.name} cannot be read ({error})")
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
    """The split of the source that each of ours is taken from."""
    if "validation" in labels and not ("test" in labels and (labels["test"] >= 0).any()):
        return {"train": "train", **({"tuning": "train"} if tuned else {}), "test": "validation"}
    tuning = "train" if tuned else "validation"
    return {"train": "train", **({"tuning": tuning} if tuning in labels else {}), "test": "test"}


def _contents(file: Any, image: str, **which: Any) -> Iterator[Any]:
    """The image files' bytes, an array of `_BATCH` at a time."""
    for batch in file.iter_batches(_BATCH, columns=[image], **which):
        column = batch.column(0)
        yield pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column


def _scan(split: str, paths: Sequence[Path], image: str, wrong: list[str]) -> _Scan:
    """Read all of a split's image files once; what is wrong is added to `wrong`."""
    largest = total = absent = 0
    some: list[tuple[Image, int]] = []
    step = -(-len(paths) // 32)
    for number, path in enumerate(shown(paths, len(paths), f"reading {split}", unit="files")):
        try:
            with ParquetFile(path) as file:
                for contents in _contents(file, image):
                    lengths = pc.binary_length(contents)
                    largest = max(largest, pc.max(lengths).as_py() or 0)
                    total += pc.sum(lengths).as_py() or 0
                    absent += lengths.null_count + (pc.sum(pc.equal(lengths, 0)).as_py() or 0)
                if number % step == 0:
                    some += [(content, len(content)) for content in contents.drop_null().to_pylist()[:16]]
        except (pa.ArrowException, OSError) as error:
            wrong.append(f"{path.name} cannot be read ({error})")
    if absent:
        wrong.append(f"{absent:,} images of {split} are not in the files, or only their paths are")
    return _Scan(largest, total, some)


def _images(
    source_dir: Path, paths: Sequence[Path], image: str, labels: Labels, taken: npt.NDArray[np.bool_]
) -> Iterator[tuple[Image, int, str]]:
    """The image files at the rows that are `taken`, with their labels and where they stand."""
    first = 0  # row of the file, of those of all files
    for path in paths:
        origin = path.relative_to(source_dir)
        with ParquetFile(path) as file:
            row = 0
            for group in range(file.num_row_groups):
                end = row + file.metadata.row_group(group).num_rows
                if taken[first + row : first + end].any():
                    for content in (x for part in _contents(file, image, row_groups=[group]) for x in part):
                        if taken[first + row]:
                            yield content.as_py(), int(labels[first + row]), f"{origin}[{row}]"
                        row += 1
                row = end
            first += row
