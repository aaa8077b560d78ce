"""Reading and writing FFCV's `.beton` files with NumPy alone, version 2 of the format, one image
and one label each.

Layout, little-endian: a header, one descriptor per field, one row of metadata per sample, the
images' bytes in pages (no image crosses from one page to the next), and last the allocation table,
which says where each image lies. The header's `alloc_table_ptr` stays 0 until all else is written.
FFCV reads what is written here, and its files are read here; the writer is our own because FFCV's
writes from several processes and waits for ever when one of them fails, and because it encodes
JPEGs anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from regbench.errors import RegbenchError
from regbench.files import write_atomically

# FFCV's numbers of the modes of an image, and of the types of a field.
JPEG, RAW = 0, 1
_INT_FIELD, _IMAGE_FIELD = 1, 2
# FFCV's number of the format.
_VERSION = 2
# The least page size of FFCV's own writer.
MIN_PAGE_BYTES = 1 << 21
# The largest power of two that the header has room for.
MAX_PAGE_BYTES = 1 << 31

Array = npt.NDArray[Any]

_COUNTS = [("num_fields", "<u2"), ("page_size", "<u4"), ("num_samples", "<u8")]
_HEADER = np.dtype([("version", "<u2"), *_COUNTS, ("alloc_table_ptr", "<u8")], align=True)
_NAMED = [("type_id", "<u1"), ("name", "S16"), ("arguments", ("<u1", 1024))]
_FIELD = np.dtype(_NAMED, align=True)
# FFCV aligns headers, fields and samples as C does, but packs the entries of images and the table.
_IMAGE = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("data_ptr", "<u8")])
_SAMPLE = np.dtype([("f0", _IMAGE), ("f1", "<i8")], align=True)
_ALLOCATION = np.dtype([("sample_id", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
_METADATA_START = _HEADER.itemsize + 2 * _FIELD.itemsize


@dataclass(frozen=True)
class Sample:
    """One image as it is stored.

    Attributes:
        mode: `JPEG` or `RAW` (height x width x 3 bytes, RGB).
        height: Height in px.
        width: Width in px.
        label: The class, or -1 for none.
        data: The stored bytes.
        origin: Origin of the image: a file's name relative to the source, or its row there; one
            line.
        grey: Whether it had no colour channels in the source.
        peak: Highest value in the source, if that had more than 8 bits, else -1.
        remarks: Remarks on what was left out of it.
    """

    mode: int
    height: int
    width: int
    label: int
    data: bytes
    origin: str
    grey: bool = False
    peak: int = -1
    remarks: tuple[str, ...] = ()


def written_again(name: str) -> str:
    """Return the remedy for damaged files of a prepared data set, of whatever source."""
    return f"write it again: regbench prepare … dataset.name={name} --force"


class LargerThanPage(RegbenchError):
    """An image of `size_bytes` bytes needs a larger page."""

    def __init__(self, origin: str, size_bytes: int, page_bytes: int) -> None:
        """Word the refusal of the image `origin`."""
        super().__init__(f"{origin} takes {size_bytes} bytes, more than a page ({page_bytes})")
        self.size_bytes = size_bytes


def write_beton(
    path: Path, samples: Iterable[Sample], max_samples: int, page_bytes: int = MIN_PAGE_BYTES
) -> str:
    """Write at most `max_samples` samples, in order, to a file that appears at `path` only when it
    is complete.

    No image may be larger than a page, whose size is a power of two.

    Returns:
        The content's SHA-256: over each sample's label (8 bytes, little-endian) and stored bytes,
        in order.

    Raises:
        LargerThanPage: If an image is larger than a page.
    """
    digest = hashlib.sha256()
    try:
        write_atomically(path, lambda file: _write(file, samples, max_samples, page_bytes, digest))
    except OSError as error:
        raise RegbenchError(f"cannot write {path}: {error.strerror or error}") from error
    return digest.hexdigest()


def _write(
    file: IO[bytes], samples: Iterable[Sample], max_samples: int, page_bytes: int, digest: Any
) -> None:
    metadata = np.zeros(max_samples, _SAMPLE)
    allocations = np.zeros(max_samples, _ALLOCATION)
    # The rows of metadata come first, and are known last.
    position = -(-(_METADATA_START + metadata.nbytes) // page_bytes) * page_bytes
    file.seek(position)
    written = 0
    for written, sample in enumerate(samples, start=1):
        size = len(sample.data)
        if size > page_bytes:
            raise LargerThanPage(sample.origin, size, page_bytes)
        # FFCV may hold single pages in memory and reads an image from one of them.
        if position // page_bytes != (position + size - 1) // page_bytes:
            position = -(-position // page_bytes) * page_bytes
            file.seek(position)
        file.write(sample.data)
        # FFCV wants the width before the height.
        metadata[written - 1] = ((sample.mode, sample.width, sample.height, position), sample.label)
        allocations[written - 1] = (written - 1, position, size)
        digest.update(sample.label.to_bytes(8, "little", signed=True))
        digest.update(sample.data)
        position += size
    file.write(allocations[:written].tobytes())
    file.seek(_METADATA_START - 2 * _FIELD.itemsize)
    fields = np.zeros(2, _FIELD)
    fields["type_id"] = _IMAGE_FIELD, _INT_FIELD
    fields["name"] = b"image", b"label"
    file.write(fields.tobytes())
    # Rows of images that could not be read stay unused, between these and the first page.
    file.write(metadata[:written].tobytes())
    header = np.zeros(1, _HEADER)
    header[0] = (_VERSION, 2, page_bytes, written, position)
    # The header comes last: until then alloc_table_ptr is 0, which marks the file of a killed
    # writer.
    file.seek(0)
    file.write(header.tobytes())


class Beton:
    """A `.beton` file with an image field and an integer field, in this order, checked when it is
    opened.

    The checks cover the header, the field types, every size and every pointer, so that a file that
    is half written or cut short is refused here and not read as black images.

    Attributes:
        path: The file.
        labels: (N,) int64.
        modes: (N,), `JPEG` or `RAW`.
        start: (N,) int64, where each image's bytes begin in the file.
        size: (N,) int64, number of each image's bytes.
        heights: (N,) int64, px.
        widths: (N,) int64, px.
    """

    def __init__(self, path: Path) -> None:
        """Open and check; a refusal gives the reason."""
        self.path, self._remedy = path, written_again(path.parent.name)
        try:
            image, labels, allocations, data_start, table_start = self._read()
        except OSError as error:
            raise RegbenchError(f"cannot read {path}: {error.strerror or error}") from error
        # An image's row says where it lies. The table, which FFCV's writer does not sort, says how
        # long it is.
        allocations = allocations[np.argsort(allocations["ptr"], kind="stable")]
        place = np.searchsorted(allocations["ptr"], image["data_ptr"])
        self._require((place < len(image)).all(), "an image's bytes lie outside")
        self.start: npt.NDArray[np.int64] = image["data_ptr"].astype(np.int64)
        self.size: npt.NDArray[np.int64] = allocations["size"][place].astype(np.int64)
        self.labels: npt.NDArray[np.int64] = labels.astype(np.int64)
        self.modes: npt.NDArray[np.uint8] = image["mode"].copy()
        self.heights: npt.NDArray[np.int64] = image["height"].astype(np.int64)
        self.widths: npt.NDArray[np.int64] = image["width"].astype(np.int64)
        known = allocations["ptr"][place] == image["data_ptr"]
        inside = (self.start >= data_start) & (self.start + self.size <= table_start)
        self._require((known & inside & (self.size > 0)).all(), "an image's bytes lie outside")
        pixels = self.heights * self.widths
        whole = (self.modes == JPEG) | ((self.modes == RAW) & (self.size == 3 * pixels))
        self._require((whole & (pixels > 0)).all(), "an image has no sensible size")

    def _read(self) -> tuple[Array, Array, Array, int, int]:
        """Read the images' rows, the labels, the allocation table, and where the images begin
        and end in the file.
        """
        file_bytes = self.path.stat().st_size
        header = np.fromfile(self.path, _HEADER, 1)
        is_header = len(header) == 1 and header[0]["version"] == _VERSION
        self._require(is_header, "it has no .beton header of version 2")
        num_samples, table_start = int(header[0]["num_samples"]), int(header[0]["alloc_table_ptr"])
        self._require(table_start != 0, "its writing was never finished")
        data_start = _METADATA_START + num_samples * _SAMPLE.itemsize
        # The length in the header is checked before anything is read by it: a flipped bit can make
        # it immense.
        self._require(data_start <= table_start < file_bytes, "it is cut short")
        types = np.fromfile(self.path, _FIELD, 2, offset=_HEADER.itemsize)["type_id"].tolist()
        expected = header[0]["num_fields"] == 2 and types == [_IMAGE_FIELD, _INT_FIELD]
        self._require(expected, "its fields are not an image and an integer")
        metadata = np.fromfile(self.path, _SAMPLE, num_samples, offset=_METADATA_START)
        table = np.fromfile(self.path, np.uint8, offset=table_start)
        is_whole = num_samples > 0 and table.nbytes == num_samples * _ALLOCATION.itemsize
        self._require(is_whole, "its allocation table is cut short")
        return metadata["f0"], metadata["f1"], table.view(_ALLOCATION), data_start, table_start

    def _require(self, condition: bool | np.bool_, reason: str) -> None:
        if not condition:
            raise RegbenchError(f"{self.path} cannot be used: {reason}; {self._remedy}")

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.labels)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle all but the memory map, which would be copied in full."""
        return {key: value for key, value in self.__dict__.items() if key != "_map"}

    @cached_property
    def _map(self) -> npt.NDArray[np.uint8]:
        return np.memmap(self.path, np.uint8, "r")

    def stored_bytes(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of image `index` as they are stored."""
        start = self.start[index]
        return self._map[start : start + self.size[index]]

    def image(self, index: int) -> npt.NDArray[np.uint8]:
        """Decode image `index`: (height, width, 3), RGB; refuse one that is damaged."""
        data = self.stored_bytes(index)
        if self.modes[index] == RAW:
            return data.reshape(self.heights[index], self.widths[index], 3)
        try:
            with Image.open(BytesIO(data.tobytes())) as picture:
                if picture.size != (self.widths[index], self.heights[index]):
                    raise ValueError(f"it is {picture.width} x {picture.height} px")
                return np.asarray(picture.convert("RGB"))
        except Exception as error:  # damaged bytes can lead Pillow to raise anything
            raise RegbenchError(
                f"image {index} of {self.path} cannot be decoded; {self._remedy}"
            ) from error
