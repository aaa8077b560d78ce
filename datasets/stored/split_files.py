"""Writing the files of a data set's splits, in a folder that nobody else writes in.

A file gets its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from regbench.csv_files import csv_text
from regbench.datasets.config import DatasetConfig
from regbench.datasets.sources.base import Contents, ImageFiles, Labels, Source, Split
from regbench.datasets.stored.beton import (
    MAX_PAGE_BYTES,
    MIN_PAGE_BYTES,
    Beton,
    LargerThanPage,
    Sample,
    write_beton,
)
from regbench.datasets.stored.encode import Unreadable, samples_of
from regbench.datasets.stored.manifest import FILE_NAME, SplitEntry, save_text
from regbench.datasets.stored.progress import tracked
from regbench.errors import RegbenchError
from regbench.files import file_sha256
from regbench.text import few

log = logging.getLogger("regbench")

UNREADABLE = "unreadable.txt"


def write_splits(
    config: DatasetConfig, contents: Contents, folder: Path
) -> tuple[dict[str, SplitEntry], list[str]]:
    """Write all splits, and list what cannot be read.

    Return notes on their images too, each in one line.
    """
    # The manifest is removed before any file is replaced, since it must not describe other files
    # than its own.
    (folder / FILE_NAME).unlink(missing_ok=True)
    entries: dict[str, SplitEntry] = {}
    stored: dict[str, _Stored] = {}
    left_out: dict[str, dict[str, str]] = {}
    try:
        for name, split in contents.splits.items():
            left_out[name] = {}
            path, names = folder / f"{name}.beton", contents.class_names
            entries[name], stored[name] = _write_split(config, path, split, names, left_out[name])
    finally:
        lines: list[str] = []
        for of_split in left_out.values():
            lines += [f"{origin}: {reason}\n" for origin, reason in of_split.items()]
        (folder / UNREADABLE).unlink(missing_ok=True)
        if lines:
            save_text(folder / UNREADABLE, "".join(lines))
    return entries, [*_notes(stored.values(), config.source), *_shared(stored)]


@dataclass
class _Stored:
    """Notes on a split's images while they are written: see `Sample` for most."""

    rows: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    greys: list[bool] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    remarks: Counter[str] = field(default_factory=Counter)

    def readable(
        self, samples: Iterable[Sample | Unreadable], left_out: dict[str, str]
    ) -> Iterator[Sample]:
        """Pass on what can be read; the rest is added to `left_out`."""
        for row, sample in enumerate(samples):
            if isinstance(sample, Sample) and len(sample.data) > MAX_PAGE_BYTES:
                reason = f"it takes {len(sample.data):,} bytes, and {MAX_PAGE_BYTES:,} is the most"
                sample = Unreadable(sample.origin, reason)
            if isinstance(sample, Unreadable):
                left_out[sample.origin] = sample.reason
                continue
            self.rows.append(row)
            self.lines.append(f"{zlib.crc32(sample.data):08x} {sample.origin}\n")
            self.digests.append(hashlib.sha256(sample.data).digest())
            self.greys.append(sample.grey)
            if sample.peak >= 0:
                self.peaks.append(sample.peak)
            self.remarks.update(sample.remarks)
            yield sample


def _write_split(
    config: DatasetConfig,
    path: Path,
    split: Split,
    class_names: list[str],
    left_out: dict[str, str],
) -> tuple[SplitEntry, _Stored]:
    """Write the file of one split and where its images came from.

    What cannot be read is added to `left_out`.
    """

    def images(stored: _Stored) -> Iterator[Sample]:
        samples, title = samples_of(split, config.source), f"{config.name}/{path.stem}"
        yield from stored.readable(tracked(samples, len(split.labels), title), left_out)
        # A refusal here comes before the end of the writing, which then leaves no file.
        emptied = sorted(set(split.labels.tolist()) - set(split.labels[stored.rows].tolist()))
        if emptied:
            # Label -1, of images without a class, picks the last of these.
            names = ", ".join([*class_names, "(no class)"][label] for label in emptied[:5])
            lost = f"{len(emptied)} classes ({names}) would have no image"
            unreadable = listed_unreadable(path.parent, left_out)
            raise RegbenchError(f"{path}: {lost}, as {unreadable}; mend them")

    largest_bytes = split.largest_bytes
    # The header has one page size for all images, and few sources know their largest image.
    while True:
        stored = _Stored()
        left_out.clear()
        # An image can grow when it is converted, hence the factor 4.
        # FFCV finds the page of an image by shifting its address, so the size of a page is a power
        # of two.
        page_bytes = max(MIN_PAGE_BYTES, 1 << (4 * largest_bytes - 1).bit_length())
        page_bytes = min(page_bytes, MAX_PAGE_BYTES)
        try:
            content_sha256 = write_beton(path, images(stored), len(split.labels), page_bytes)
            break
        except LargerThanPage as error:
            log.info("%s: writing the split again with larger pages", error)
            largest_bytes = error.size_bytes
    origins = path.with_suffix(".origins.txt")
    save_text(origins, "".join(stored.lines))
    written = Beton(path)
    entry: SplitEntry = {
        "file": path.name,
        "num_samples": len(written),
        "counts_per_class": counts_per_class(written.labels, len(class_names)),
        "content_sha256": content_sha256,
        "bytes": path.stat().st_size,
        "origins": origins.name,
        "origins_sha256": file_sha256(origins),
        "left_out": left_out,
        "image_px": int(np.median(np.minimum(written.heights, written.widths))),
        "grey": all(stored.greys),
    }
    if split.factors:
        table = path.with_suffix(".factors.csv")
        # Images that could not be read have no line. Python writes floats with all their digits.
        columns = [values[stored.rows].tolist() for values in split.factors.values()]
        save_text(table, csv_text(split.factors, zip(*columns, strict=True)))
        entry |= {"factors": table.name, "factors_sha256": file_sha256(table)}
    return entry, stored


def _notes(stored: Iterable[_Stored], source: Source) -> list[str]:
    """Say what was left out of the images of all splits, and how those of more than 8 bits were
    scaled.
    """
    remarks: Counter[str] = Counter()
    peaks: list[int] = []
    for split in stored:
        remarks += split.remarks
        peaks += split.peaks
    notes = [f"{count:,} images {remark}" for remark, count in sorted(remarks.items())]
    if peaks:
        assert isinstance(source, ImageFiles)  # other sources give 8 bits
        levels, peak = source.levels or 65536, max(peaks)
        note = f"{len(peaks):,} images have more than 8 bits: value * 256 // {levels} is kept"
        note += f"; the highest is {peak}"
        if peak < levels // 4:
            fitting = max(2, 1 << peak.bit_length())
            remedy = f"set dataset.source.levels={fitting} if they are grey, else convert them"
            note = f"warning: {note}, so they are nearly black; {remedy} to 8 bits"
        elif peak >= levels:
            note += f", and from {levels} on all is white"
        notes.append(note)
    return notes


def _shared(stored: Mapping[str, _Stored]) -> list[str]:
    """Say how many images two splits share, byte for byte as they are stored."""
    notes = []
    for one, other in itertools.combinations(stored, 2):
        # The images for pretraining include those for training.
        if {one, other} == {"train", "unlabeled"}:
            continue
        origins = dict(zip(stored[one].digests, stored[one].lines, strict=True))
        both = []
        for digest, line in zip(stored[other].digests, stored[other].lines, strict=True):
            if digest in origins:
                both.append(f"{line[9:-1]} ({origins[digest][9:-1]})")
        if both:
            what = f"warning: {len(both):,} images of {other} are in {one} too"
            notes.append(f"{what}, byte for byte: {few(both)}")
    return notes


def counts_per_class(labels: Labels, num_classes: int) -> list[int]:
    """Count the images of each class; an empty list if there are no labels."""
    labelled = labels[labels >= 0]
    if len(labelled) == 0:
        return []
    counts: list[int] = np.bincount(labelled, minlength=num_classes).tolist()
    return counts


def listed_unreadable(folder: Path, left_out: dict[str, str]) -> str:
    """State how many images cannot be read, and name the first of them."""
    listed = few([f"{origin} ({reason})" for origin, reason in left_out.items()], 3)
    where = f"all are listed in {folder / UNREADABLE}"
    return f"{len(left_out):,} images cannot be read: {listed}; {where}"
