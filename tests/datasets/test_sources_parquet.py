"""Hugging Face data sets of images on disk, written by Hugging Face's own library and by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.config import DatasetConfig
from regbench.datasets.stored.prepare import prepare
from tests.command import done
from tests.datasets.preparing import folder_config, opened, refused, saved, stored
from tests.refusals import is_refused

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (10, 14, 3), dtype=np.uint8)
    return saved(Image.fromarray(pixels), "JPEG")


def write(
    path: Path,
    labels: Sequence[Any],
    *,
    first: int = 0,
    names: Sequence[str] | None = ("ant", "bee", "cat"),
    columns: tuple[str, str] = ("image", "label"),
    row_group: int = 4,
    kind: Any = None,
) -> None:
    """One file: an image for each label, numbered from `first`."""
    images = [{"bytes": jpeg(first + i), "path": f"{i}.jpg"} for i in range(len(labels))]
    table = pa.table({columns[0]: pa.array(images, IMAGE), columns[1]: pa.array(labels, kind)})
    if names is not None:
        classes = {"names": list(names), "_type": "ClassLabel"}
        features = {columns[0]: {"_type": "Image"}, columns[1]: classes}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Train in two files, 18 images of three classes; validation, 6.

    Test, 3 without labels, as ImageNet's.
    """
    folder = tmp_path / "source"
    write(folder / "data" / "train-00000-of-00002.parquet", [2, 1, 0] * 3)
    write(folder / "data" / "train-00001-of-00002.parquet", [0, 1, 2] * 3, first=9)
    write(folder / "data" / "validation-00000-of-00001.parquet", [2, 2, 1, 1, 0, 0], first=100)
    write(folder / "data" / "test-00000-of-00001.parquet", [-1, -1, -1], first=200)
    return folder


def config(**changes: object) -> DatasetConfig:
    settings: dict[str, object] = {"name": "shards", "source": "parquet"}
    settings |= {"train_per_class": None, "tuning_per_class": None}
    return folder_config(**(settings | changes))


def test_images_are_taken_byte_for_byte_in_the_files_order(tmp_path: Path, source: Path) -> None:
    manifest = prepare(config(), tmp_path, source_dir=source)
    assert manifest.class_names == ["ant", "bee", "cat"]
    assert list(manifest.splits) == ["train", "test"]
    # The test has no labels, so the validation images are the test.
    labels = {"train": (0, [2, 1, 0] * 3 + [0, 1, 2] * 3), "test": (100, [2, 2, 1, 1, 0, 0])}
    for split, (first, of_split) in labels.items():
        expected = [(label, jpeg(i)) for i, label in enumerate(of_split, first)]
        assert stored(tmp_path, "shards", split) == expected


def test_a_tuning_split_is_cut_as_from_folders(tmp_path: Path, source: Path) -> None:
    divided = config(train_per_class=3, tuning_per_class=2)
    manifest = prepare(divided, tmp_path, source_dir=source)
    assert list(manifest.splits) == ["train", "tuning", "test"]
    labels = [2, 1, 0] * 3 + [0, 1, 2] * 3
    assert stored(tmp_path, "shards", "train") == [(labels[i], jpeg(i)) for i in range(9)]
    # The fourth of each class is skipped.
    assert stored(tmp_path, "shards", "tuning") == [(labels[i], jpeg(i)) for i in range(12, 18)]
    too_many = config(train_per_class=4, tuning_per_class=2)
    refused(too_many, source, "ant has 6 images; train_per_class and")


def test_validation_is_for_tuning_where_the_test_has_labels(tmp_path: Path, source: Path) -> None:
    write(source / "data" / "test-00000-of-00001.parquet", [1, 0, 2], first=200)
    manifest = prepare(config(), tmp_path, source_dir=source)
    found = {name: entry["num_samples"] for name, entry in manifest.splits.items()}
    assert found == {"train": 18, "tuning": 6, "test": 3}
    assert stored(tmp_path, "shards", "test") == [(1, jpeg(200)), (0, jpeg(201)), (2, jpeg(202))]


def test_other_names_of_columns_and_of_folders(tmp_path: Path) -> None:
    for image, label in (("img", "fine_label"), ("image", "labels"), ("picture", "kind")):
        for split, first in (("train", 0), ("test", 50)):
            path = tmp_path / image / "default" / split / "0000.parquet"
            write(path, [0, 1, 2], first=first, columns=(image, label))
        contents = opened(config(), tmp_path / image)
        found = [bytes_ for bytes_, _ in contents.splits["test"].images()]
        assert found == [jpeg(50 + i) for i in range(3)]


def test_metadata_that_says_nothing_of_the_columns(tmp_path: Path, source: Path) -> None:
    for features in (None, ["image", "label"], {"image": None}):
        for path in source.glob("data/*.parquet"):
            metadata = {"huggingface": json.dumps({"info": {"features": features}})}
            pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
        assert opened(config(), source).class_names == ["0", "1", "2"]


TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))


@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_(), *TEXTS], ids=str)
def test_classes_by_the_labels_themselves(kind: pa.DataType, tmp_path: Path) -> None:
    numbers: dict[Any, Sequence[Any]] = {pa.int64(): (3, 10, 20), pa.bool_(): (False, True)}
    classes = numbers.get(kind, ("ant", "bee", "cat"))
    # The labels of the test are secret.
    secret = (["", None], kind) if kind in TEXTS else ([None, None], pa.null())
    splits = {"train": (classes, kind), "validation": (classes[::-1], kind), "test": secret}
    for split, (labels, of_split) in splits.items():
        write(tmp_path / "source" / f"{split}.parquet", labels, names=None, kind=of_split)
    contents = opened(config(num_classes=len(classes)), tmp_path / "source")
    assert contents.class_names == [str(value) for value in classes]
    assert contents.splits["test"].labels.tolist() == [*range(len(classes))][::-1]


# Its reader leaves the files to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_hugging_faces_library_writes(tmp_path: Path) -> None:
    hub = pytest.importorskip("datasets")
    classes = hub.ClassLabel(names=["ant", "bee", "cat"])
    features = hub.Features({"image": hub.Image(), "label": classes})
    for split, first in (("train", 0), ("test", 50)):
        files = [{"bytes": jpeg(first + i), "path": None} for i in range(3)]
        rows = {"image": files, "label": [0, 1, 2]}
        path = tmp_path / "source" / "data" / f"{split}-00000-of-00001-0123456789abcdef.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        hub.Dataset.from_dict(rows, features=features).to_parquet(str(path))
    manifest = prepare(config(), tmp_path, source_dir=tmp_path / "source")
    assert manifest.class_names == ["ant", "bee", "cat"]
    assert stored(tmp_path, "shards", "train") == [(i, jpeg(i)) for i in range(3)]


def test_refusals_of_folders(tmp_path: Path, source: Path) -> None:
    refused(config(), None, "is made from parquet files of")
    refused(config(), tmp_path / "none", "it has no files of train; it has no")
    refused(config(num_classes=4), source, "3 classes, not 4")
    write(source / "data" / "train-00000-of-00001-4e1f.parquet", [0])
    refused(config(), source, "2 files of train have the number of")
    for path in source.glob("data/train-00000*"):
        path.unlink()
    write(source / "data" / "notes.parquet", [0])
    refused(config(), source, "1 files belong to no split by their")
    write(source / "other" / "train-00000-of-00001.parquet", [0])
    refused(config(), source, "it holds several data sets, of which")


def test_refusals_of_files(tmp_path: Path, source: Path) -> None:
    shard = source / "data" / "train-00001-of-00002.parquet"
    validation = source / "data" / "validation-00000-of-00001.parquet"
    good = shard.read_bytes()
    for bad in (b"", b"no parquet file", good[:-20]):
        shard.write_bytes(bad)
        refused(config(), source, "train-00001-of-00002.parquet cannot")
    write(shard, [0, 1, 2], columns=("image", "caption"), names=None)
    write(validation, [0, 1, 2], names=("ant", "bee", "dog"))
    refused(config(), source, "train-00001-of-00002.parquet has no")
    pq.write_table(pa.table({"image": [1], "label": [0]}), shard)
    refused(config(), source, "train-00001-of-00002.parquet has no")
    write(validation, [0, 1, 2])
    # An image is read only when it is written.
    shard.write_bytes(good)
    contents = opened(config(), source)
    shard.write_bytes(good[:-20])
    with is_refused(r"00001-of-00002\.parquet cannot be read \([^\n]*; download it again$"):
        list(contents.splits["train"].images())


def test_refusals_of_labels(tmp_path: Path) -> None:
    for train, test, names, reason in (
        ([0, 1], [0.0, 1.0], None, "image (struct<bytes: binary, path: string>), label (double)"),
        ([0, 1], ["0", "1"], None, "types: str in test.parquet, int in train.parquet"),
        ([0, 1, 2], [0, 1], ("ant", "bee", "ant"), "1 names are of two classes or more: ant"),
        (["ant", "", "bee"], ["ant", "bee"], None, "1 images of train have no label"),
        ([0, 1], [], None, "cannot be used: test has no images; mend it"),
    ):
        write(tmp_path / "train.parquet", train, names=names)
        write(tmp_path / "test.parquet", test, names=names)
        refused(config(num_classes=0), tmp_path, reason)


def test_refusals_of_rows(tmp_path: Path, source: Path) -> None:
    shard = source / "data" / "train-00001-of-00002.parquet"
    write(shard, [0, 5, -1])
    write(source / "data" / "train-00000-of-00002.parquet", [0, 0, 1])
    write(source / "data" / "validation-00000-of-00001.parquet", [0, 1, -1])
    refused(config(), source, "2 images of train have no label, or")
    write(source / "data" / "validation-00000-of-00001.parquet", [0, 1, 2])
    schema = pq.read_table(source / "data" / "train-00000-of-00002.parquet").schema
    good, cut_short = ({"bytes": content, "path": None} for content in (jpeg(0), jpeg(0)[:-30]))
    lost = [{"bytes": None, "path": "a.jpg"}, None, {"bytes": b"", "path": None}]
    read = r"images cannot be read: data/train-00001-of-00002\.parquet\[0\] \("
    for images, reason in (
        ([*lost, good], rf"3 {read}it is empty\), .*\[2\] \(it is empty\)"),
        ([cut_short, good, good, good], f"1 {read}"),
    ):
        columns = {"image": pa.array(images, IMAGE), "label": [0, 1, 2, 2]}
        pq.write_table(pa.table(columns, metadata=schema.metadata), shard)
        with is_refused(reason):
            prepare(config(), tmp_path / "data", source_dir=source)


def test_what_fits_the_images_is_chosen(source: Path, tmp_path: Path) -> None:
    settings = ["dataset.name=insects", f"runtime.data_dir={tmp_path / 'data'}"]
    done("prepare", "parquet", "--source-dir", source, *settings)
    cell, _ = load_run(["dataset=parquet", *settings])
    assert (cell.dataset.num_classes, cell.dataset.image_size, cell.dataset.channels) == (3, 10, 3)
    found = (cell.augmentation.name, cell.network.architecture, cell.batch_size)
    assert found == ("small_color", "resnet_tiny", 16)
