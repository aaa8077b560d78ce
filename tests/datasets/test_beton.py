from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regbench import RegbenchError
from regbench.datasets.stored.beton import JPEG, MIN_PAGE_BYTES, RAW, Beton, Sample, write_beton
from tests.refusals import is_refused

# Imports FFCV, the quick way.
OURS = "regbench.datasets.loading.ffcv_crops"


def samples() -> list[Sample]:
    """Raw and JPEG images of several sizes."""
    rng = np.random.default_rng(0)
    made = []
    for i, (height, width) in enumerate([(5, 7), (40, 30), (28, 28), (64, 48), (1, 1)]):
        image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        if i % 2:
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "JPEG")
            made.append(Sample(JPEG, height, width, 10 * i, buffer.getvalue(), f"image {i}"))
        else:
            made.append(Sample(RAW, height, width, i - 1, image.tobytes(), f"image {i}"))
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "set" / "train.beton"
    path.parent.mkdir()
    write_beton(path, samples(), 5)
    return path


def test_what_is_written_is_read_back(file: Path) -> None:
    beton = Beton(file)
    assert len(beton) == 5
    assert beton.labels.tolist() == [-1, 10, 1, 30, 3]
    for i, sample in enumerate(samples()):
        assert beton.stored_bytes(i).tobytes() == sample.data
        found = beton.modes[i], beton.heights[i], beton.widths[i]
        assert found == (sample.mode, sample.height, sample.width)
        if sample.mode == RAW:
            expected = np.frombuffer(sample.data, np.uint8).reshape(sample.height, sample.width, 3)
        else:
            expected = np.asarray(Image.open(io.BytesIO(sample.data)))
        np.testing.assert_array_equal(beton.image(i), expected)


def test_the_digest_is_over_labels_and_bytes(tmp_path: Path) -> None:
    expected = hashlib.sha256()
    for sample in samples():
        expected.update(np.int64(sample.label).astype("<i8").tobytes() + sample.data)
    assert write_beton(tmp_path / "a.beton", samples(), 5) == expected.hexdigest()
    # How the bytes lie in pages does not matter.
    found = write_beton(tmp_path / "b.beton", samples(), 5, MIN_PAGE_BYTES * 2)
    assert found == expected.hexdigest()


def test_no_image_crosses_a_page(tmp_path: Path) -> None:
    data = bytes(300 * 300 * 3)
    path = tmp_path / "a.beton"
    write_beton(path, [Sample(RAW, 300, 300, 0, data, "") for _ in range(20)], 20)
    beton = Beton(path)
    assert (beton.start // MIN_PAGE_BYTES == (beton.start + beton.size - 1) // MIN_PAGE_BYTES).all()
    assert len(np.unique(beton.start // MIN_PAGE_BYTES)) > 1


def test_an_image_larger_than_a_page_is_refused(tmp_path: Path) -> None:
    sample = Sample(RAW, 1000, 1000, 0, bytes(3_000_000), "huge.png")
    with is_refused(r"huge\.png takes 3000000 bytes"):
        write_beton(tmp_path / "a.beton", [sample], 1)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_leaves_the_old_file(file: Path) -> None:
    before = file.read_bytes()

    def broken() -> Iterator[Sample]:
        yield samples()[0]
        raise RegbenchError("an image cannot be read")

    with is_refused("an image cannot be read"):
        write_beton(file, broken(), 5)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["train.beton"]


def test_every_truncation_is_refused(file: Path) -> None:
    content = file.read_bytes()
    reason = r"train\.beton cannot be used: .*; write it again: regbench prepare … dataset.name=set --force"
    for length in (0, 23, 24, 2105, 2200, MIN_PAGE_BYTES, -25, -24, -1):
        file.write_bytes(content[:length])
        with is_refused(reason):
            Beton(file)


def test_a_wrong_number_anywhere_is_refused(file: Path) -> None:
    good = file.read_bytes()
    # Its mode (1 byte), width (2), height (2), and where its bytes are (8).
    first_sample = 24 + 2 * 1041
    for offset, value, reason in (
        (0, b"\3", "no .beton header"),
        (2, b"\3", "its fields are not"),
        (8, b"\4", "allocation table"),
        (16, bytes(8), "never finished"),
        (24, b"\1", "its fields are not"),
        (first_sample, b"\2", "no sensible size"),
        (first_sample + 1, b"\0\0", "no sensible size"),
        (first_sample + 5, b"\1", "lie outside"),
        (first_sample + 10, b"\xff", "lie outside"),
        (len(good) - 8, bytes(8), "lie outside"),  # the last image's size
        (len(good) - 8, b"\xff\xff\xff", "lie outside"),
    ):
        file.write_bytes(good[:offset] + value + good[offset + len(value) :])
        with is_refused(reason):
            Beton(file)


def test_ffcv_reads_our_files(file: Path) -> None:
    pytest.importorskip(OURS, exc_type=ImportError)
    from ffcv.reader import Reader

    reader = Reader(str(file))
    assert list(reader.handlers) == ["image", "label"]
    assert reader.metadata["f1"].tolist() == [-1, 10, 1, 30, 3]
    content = file.read_bytes()
    rows, allocations = reader.metadata["f0"], reader.alloc_table
    for row, allocation, sample in zip(rows, allocations, samples(), strict=True):
        found = row["mode"], row["height"], row["width"]
        assert found == (sample.mode, sample.height, sample.width)
        assert row["data_ptr"] == allocation["ptr"]
        assert content[int(allocation["ptr"]) :][: int(allocation["size"])] == sample.data


def test_we_read_files_that_ffcv_wrote(tmp_path: Path) -> None:
    pytest.importorskip(OURS, exc_type=ImportError)
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8) for i in range(7)]
    path = tmp_path / "theirs.beton"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
        writer = DatasetWriter(str(path), fields, num_workers=2)
        writer.from_indexed_dataset([(image, i * i) for i, image in enumerate(images)], chunksize=2)
    beton = Beton(path)
    assert beton.labels.tolist() == [i * i for i in range(7)]
    for i, image in enumerate(images):
        np.testing.assert_array_equal(beton.image(i), image)
