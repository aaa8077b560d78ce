"""Hugging Face data sets of images on disk, as parquet files.

The split is named by a file (`data/train-00000-of-00002.parquet`) or by its folder
(`train/0000.parquet`). A column of structs {bytes, path} holds the image files, another one the
labels. The names of the classes are in the schema's metadata under "huggingface", or are the labels
themselves.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regbench.datasets.published import Faults
from regbench.datasets.sources.base import Contents, DividedFiles, Labels, Split, register
from regbench.datasets.stored.progress import tracked
from regbench.errors import RegbenchError
from regbench.files import regular
from regbench.settings import settings
from regbench.text import few

_SPLITS = {"train": "train", "test": "test"}
_SPLITS |= dict.fromkeys(("validation", "valid", "val"), "validation")
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)")
_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "labels", "fine_label")
# Beside whole numbers; all labels of a file may be missing.
_LABEL_TYPES = ("string", "large_string", "string_view", "bool", "null")
# Rows that are read at a time.
_ROWS = 256


class _Columns(NamedTuple):
    """The names of the columns of images and labels, as pyarrow writes them, and of the classes
    if the file has them.
    """

    image: str
    label: str
    class_names: list[str] | None


class _Shard(NamedTuple):
    """The columns of one file, and the labels of its rows."""

    path: Path
    columns: _Columns
    labels: list[Any]


@register("parquet")
@settings
class Parquet(DividedFiles):
    """A Hugging Face data set of images on disk, in the order of its files, divided as a folder of
    images is.

    "test" is its test split, or its validation split where the test has no labels or is not there.
    Of a data set with both, the validation split is "tuning", unless tuning_per_class asks for one.
    """

    title = "parquet files of https://huggingface.co/datasets"
    layout = (
        "a data set's parquet files, such as data/train-00000-of-00002.parquet and "
        "data/test-00000-of-00001.parquet"
    )

    def __post_init__(self) -> None:
        """Refuse numbers that leave no images for tuning."""
        super().__post_init__()
        self.refuse_overlap()

    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Read the labels of each split; see `Source.open`."""
        assert folder is not None  # a source of one's own images has one
        wrong = Faults()
        shards = {}
        for split, paths in _find_files(folder, wrong).items():
            shards[split] = _examine(split, paths, wrong)
        everything = list(chain.from_iterable(shards.values()))
        for shard in everything:
            if shard.columns != everything[0].columns:
                name = shard.path.name
                wrong.append(f"{name} has other columns or classes than the files before it")
        kinds: dict[str, str] = {}
        for shard in everything:
            for kind in sorted({type(label).__name__ for label in shard.labels} - {"NoneType"}):
                kinds.setdefault(kind, f"{kind} in {shard.path.name}")
        if len(kinds) > 1:
            wrong.append(f"labels are of different types: {', '.join(kinds.values())}")
        names = Counter(everything[0].columns.class_names if everything else None)
        wrong.add([name for name in names if names[name] > 1], "names are of two classes or more")
        self.refuse(folder, wrong)
        labels, class_names = _number_labels(shards)
        roles = _roles(labels, tuned=self.tuning_per_class is not None)
        for split in dict.fromkeys(roles.values()):
            if not len(labels[split]):
                wrong.append(f"{split} has no images")
            if without := int((labels[split] < 0).sum()):
                what = f"{without:,} images of {split}"
                wrong.append(f"{what} have no label, or one that is no class")
        rows = {}
        for label, name in enumerate(class_names):
            rows[name] = np.flatnonzero(labels["train"] == label).tolist()
        empty = [name for name, images in rows.items() if not images]
        wrong.add(empty, "classes have no images in train")
        counts = {"train": len(labels["train"]), "val": len(labels[roles["test"]])}
        self.refuse(folder, wrong, counts)
        # Only train can be divided. Of another split all images are taken.
        chosen = self.divided(rows, f"{folder}: train")
        splits = {}
        for role, split in roles.items():
            taken = np.full(len(labels[split]), role not in chosen)
            for images in chosen.get(role, {}).values():
                taken[images] = True
            splits[role] = _split(folder, shards[split], labels[split], taken)
        return Contents(splits, class_names)


def _find_files(source_dir: Path, wrong: Faults) -> dict[str, list[Path]]:
    """Find the files of each split, in order."""
    files: dict[str, list[Path]] = {}
    unknown, folders = [], set()
    for path in sorted(source_dir.rglob("*.parquet")):
        by_name = _SPLITS.get(re.split(r"[-.]", path.name)[0])
        split = by_name or _SPLITS.get(path.parent.name)
        if split is None:
            unknown.append(path.relative_to(source_dir))
            continue
        folders.add(path.parent if by_name else path.parent.parent)
        files.setdefault(split, []).append(path)
    wrong.add(unknown, "files belong to no split by their names")
    # Two copies of a data set must not become one.
    if len(folders) > 1:
        names = few(sorted(str(path.relative_to(source_dir)) for path in folders))
        wrong.append(f"it holds several data sets, of which one is to be given: {names}")
    for split, paths in files.items():
        # Files that are not numbered, such as train.parquet, say nothing of others.
        matches = [match for path in paths if (match := _SHARD.match(path.name))]
        expected = max((int(match[3]) for match in matches), default=0)
        if lacking := sorted({*range(expected)} - {int(match[2]) for match in matches}):
            what = f"of the {expected:,} files of {split} are missing"
            wrong.append(f"{len(lacking):,} {what}: numbers {few(lacking)}")
        # A later version of a data set may be cut into other files, beside which old ones are left.
        times = Counter((match[1], int(match[2])) for match in matches)
        twice = [match[0] for match in matches if times[match[1], int(match[2])] > 1]
        wrong.add(twice, f"files of {split} have the number of another one")
    if "train" not in files:
        wrong.append("it has no files of train")
    if not files.keys() & {"validation", "test"}:
        wrong.append("it has no files of validation or test")
    return files


def _examine(split: str, paths: Sequence[Path], wrong: Faults) -> list[_Shard]:
    """Read the columns and labels of each file of a split."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    shards = []
    for path in tracked(paths, len(paths), f"reading labels of {split}", unit="files"):
        try:
            with ParquetFile(regular(path)) as file:
                columns = _find_columns(file.schema_arrow)
                if columns is None:
                    images, of_labels = ", ".join(_IMAGE_COLUMNS), ", ".join(_LABEL_COLUMNS)
                    needed = f"image files ({images}) or none of labels ({of_labels})"
                    names = ", ".join(f"{each.name} ({each.type})" for each in file.schema_arrow)
                    what = f"{path.name} has no column of {needed} as text or whole numbers"
                    wrong.append(f"{what}; it has {names}")
                    continue
                labels = file.read([columns.label]).column(0).to_pylist()
                shards.append(_Shard(path, columns, labels))
        except (pyarrow.ArrowException, OSError) as error:
            wrong.append(f"{path.name} cannot be read ({error})")
    return shards


def _find_columns(schema: Any) -> _Columns | None:
    """Find the columns by their usual names, else by the features in Hugging Face's metadata."""
    from pyarrow import types

    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        features = {}
    kinds = {}
    for name, feature in features.items() if isinstance(features, dict) else ():
        if isinstance(feature, dict):
            kinds[name] = feature.get("_type")

    def column(usual: Sequence[str], kind: str) -> str | None:
        for name in (*usual, *kinds):
            if name in schema.names and (name in usual or kinds[name] == kind):
                return str(name)
        return None

    image, label = column(_IMAGE_COLUMNS, "Image"), column(_LABEL_COLUMNS, "ClassLabel")
    if image is None or label is None:
        return None
    image_type, label_type = schema.field(image).type, schema.field(label).type
    if types.is_struct(image_type) and image_type.get_field_index("bytes") >= 0:
        image, image_type = f"{image}.bytes", image_type.field("bytes").type
    if not (types.is_binary(image_type) or types.is_large_binary(image_type)):
        return None
    if types.is_dictionary(label_type):
        label_type = label_type.value_type
    if not (types.is_integer(label_type) or str(label_type) in _LABEL_TYPES):
        return None
    class_names = None
    if kinds.get(label) == "ClassLabel":
        class_names = features[label].get("names")
    return _Columns(image, label, class_names)


def _number_labels(shards: dict[str, list[_Shard]]) -> tuple[dict[str, Labels], list[str]]:
    """Number the labels of each split; -1 stands for no label, or one that train lacks.

    Return the names of the classes, too.
    """
    values: dict[str, list[Any]] = {}
    for split, of_split in shards.items():
        values[split] = list(chain.from_iterable(shard.labels for shard in of_split))
    class_names = shards["train"][0].columns.class_names
    if class_names is not None:
        classes: list[Any] = list(range(len(class_names)))
    else:
        # Hugging Face writes -1 where a test split keeps its labels secret.
        given = {*values["train"]} - {None, ""}
        classes = sorted(value for value in given if isinstance(value, str) or value >= 0)
    number = {value: label for label, value in enumerate(classes)}
    labels = {}
    for split, found in values.items():
        labels[split] = np.array([number.get(value, -1) for value in found], np.int64)
    return labels, class_names or [str(value) for value in classes]


def _roles(labels: dict[str, Labels], *, tuned: bool) -> dict[str, str]:
    """Choose the split of the source that each of ours is taken from."""
    test_has_labels = "test" in labels and bool((labels["test"] >= 0).any())
    test = "validation" if "validation" in labels and not test_has_labels else "test"
    roles = {"train": "train"}
    if tuned:
        roles["tuning"] = "train"
    elif test == "test" and "validation" in labels:
        roles["tuning"] = "validation"
    return {**roles, "test": test}


def _split(
    folder: Path, shards: Sequence[_Shard], labels: Labels, taken: npt.NDArray[np.bool_]
) -> Split:
    """Make a split of those rows of some files that are `taken`."""

    def images() -> Iterator[tuple[bytes, str]]:
        first = 0
        for shard in shards:
            origin = shard.path.relative_to(folder)
            rows = taken[first : first + len(shard.labels)]
            for row, content in _image_files(shard, rows):
                yield content, f"{origin}[{row}]"
            first += len(rows)

    return Split(labels[taken], images)


def _content(value: Any) -> bytes:
    """Return the image file in a cell; of a struct, only the bytes were read."""
    return (value["bytes"] if isinstance(value, dict) else value) or b""


def _image_files(shard: _Shard, taken: npt.NDArray[np.bool_]) -> Iterator[tuple[int, bytes]]:
    """Read the numbers and image files of the rows that are taken.

    An image that is missing, or given only by its path, is empty.
    """
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(shard.path) as file:
            first = 0
            for group in range(file.num_row_groups):
                number = file.metadata.row_group(group).num_rows
                # If 20 % of ImageNet are taken, most groups hold none of them.
                if taken[first : first + number].any():
                    # A group may be larger than the memory.
                    batches = file.iter_batches(_ROWS, [group], [shard.columns.image])
                    values = chain.from_iterable(batch.column(0) for batch in batches)
                    for row, value in enumerate(values, first):
                        if taken[row]:
                            yield row, _content(value.as_py())
                first += number
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise RegbenchError(f"{shard.path} cannot be read ({reason}); download it again") from error
