"""Preparing a data set: its source is read once and written as one `.beton` file per split, with a manifest.

A file is under its name only when it is whole, and the manifest comes last. In between, `UNFINISHED` notes which
splits are complete and what they were made of, so that an interrupted run goes on after them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from typing_extensions import TypedDict

from regbench.datasets.beton import MIN_PAGE_BYTES, Beton, LargerThanPage, Sample, write_beton
from regbench.datasets.config import DatasetConfig
from regbench.datasets.encode import Unreadable, samples_of, stored_bytes
from regbench.datasets.manifest import FILE_NAME, Manifest, SplitEntry, prepared_from, save_text
from regbench.datasets.progress import shown
from regbench.datasets.sources.base import Contents, Labels, Split
from regbench.errors import RegbenchError
from regbench.files import file_sha256, read_json, remove_leftovers
from regbench.version import __version__

log = logging.getLogger("regbench")

UNFINISHED = "unfinished.json"
UNREADABLE = "unreadable.txt"
# Beside its bytes, an image takes a row of metadata, one of the allocation table, and the line of where it came from.
_PER_IMAGE_BYTES = 100


def prepare(
    config: DatasetConfig,
    data_dir: Path,
    *,
    source_dir: Path | None = None,
    progress: bool = True,
    force: bool = False,
    skip_unreadable: bool = False,
) -> Manifest:
    """Write `<data_dir>/<name>/<split>.beton` for every split, and the manifest last.

    Nothing is done when the manifest is there, fits `config` and the files have the recorded sizes. Several
    processes may call this at once: one writes, the others wait for it. A run that was interrupted goes on after the
    last split that it finished, if the images have not changed since.

    Args:
        config: the data set.
        data_dir: the folder of all prepared data sets; made if missing.
        source_dir: the folder that holds the source; None for the usual place or a download.
        progress: show progress on stderr.
        force: write again what is there.
        skip_unreadable: leave out the images that cannot be read, instead of refusing all when they are listed.

    Raises:
        RegbenchError: the source cannot be used, what is there was made with other settings, images cannot be read, or
            no space is left.
    """
    folder = data_dir / config.name
    done = None if force else _prepared(config, data_dir)
    # The note lies beside a manifest where a call was killed between the two. Who may only read lets it lie.
    if done is not None and not ((folder / UNFINISHED).exists() and os.access(folder, os.W_OK)):
        return done
    with only_one(folder, progress):
        done = None if force else _prepared(config, data_dir)
        if done is not None:
            (folder / UNFINISHED).unlink(missing_ok=True)
            return done
        remove_leftovers(folder)
        contents = open_source(config, source_dir, data_dir / ".downloads")
        if force:
            (folder / UNFINISHED).unlink(missing_ok=True)
        splits = _write_splits(config, contents, folder, progress)
        left_out = {origin: reason for entry in splits.values() for origin, reason in entry["left_out"].items()}
        if left_out and not skip_unreadable:
            raise RegbenchError(
                f"data set '{config.name}': {_listed_unreadable(folder, left_out)}; mend them and prepare again, or "
                "leave them out with --skip-unreadable, which goes on from what is converted"
            )
        manifest = Manifest(
            name=config.name,
            source=prepared_from(config),
            splits=splits,
            class_names=contents.class_names,
            beton_version=2,
            regbench_version=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            taken_from=contents.taken_from,
        )
        manifest.save(data_dir)
        (folder / UNFINISHED).unlink()
    return manifest


def prepare_all(configs: Iterable[DatasetConfig], data_dir: Path) -> None:
    """Prepare data sets that cells ask for, each once; what cannot be had is refused before anything runs.

    Raises:
        RegbenchError: If a data set is neither there nor can be downloaded.
    """
    for config in {config.name: config for config in configs}.values():
        prepare(config, data_dir)


def open_source(config: DatasetConfig, source_dir: Path | None, downloads: Path) -> Contents:
    """Find the images of a data set, download them where that is possible, and divide them into splits.

    Args:
        config: The data set.
        source_dir: The folder that holds the source; None for the usual place or a download.
        downloads: Where downloads go.

    Raises:
        RegbenchError: If the source cannot be had, is not complete, or has not the classes of `config`; all that is
            wrong is listed, with the address where the source is to be had.
    """
    source = config.source
    if source.own and source_dir is None:
        about = f"; {source.about.title} is to be had from {source.about.address}" if source.about else ""
        raise RegbenchError(
            f"data set '{config.name}' is made from {source.title}; give the folder that holds {source.layout}: "
            f"{config.prepare_command}{about}"
        )
    contents = source.open(source_dir, downloads)
    found = len(contents.class_names)
    if config.num_classes and found != config.num_classes:
        raise RegbenchError(
            f"data set '{config.name}': the source has {found} classes, not {config.num_classes}; "
            f"set dataset.num_classes={found}, or mend the source"
        )
    return contents


def _prepared(config: DatasetConfig, data_dir: Path) -> Manifest | None:
    """Return the manifest if all is there, None if something is missing."""
    if not (data_dir / config.name / FILE_NAME).exists():
        return None
    manifest = Manifest.load(data_dir, config)
    manifest.require(config, data_dir)
    with suppress(RegbenchError):
        for split in manifest.splits:
            manifest.split_file(data_dir, split)
        return manifest
    return None


def _write_splits(config: DatasetConfig, contents: Contents, folder: Path, progress: bool) -> dict[str, SplitEntry]:
    """Write the splits that no interrupted run has finished, and list what cannot be read."""
    made_of = {
        name: split.identity and json.dumps([__version__, prepared_from(config), split.identity])
        for name, split in contents.splits.items()
    }
    noted = {
        name: note
        for name, note in _noted(folder).items()
        if note["made_of"] == made_of.get(name) and _whole(folder, note["entry"])
    }
    todo = {name: split for name, split in contents.splits.items() if name not in noted}
    needed_bytes = sum(
        stored_bytes(split, config.source) + len(split.labels) * _PER_IMAGE_BYTES for split in todo.values()
    )
    _require_space(folder, needed_bytes)
    # Before any file is replaced: a manifest must not describe other files than those it was written for.
    (folder / FILE_NAME).unlink(missing_ok=True)
    save_text(folder / UNFINISHED, json.dumps(noted))
    entries: dict[str, SplitEntry] = {name: note["entry"] for name, note in noted.items()}
    left_out = {name: entry["left_out"] for name, entry in entries.items()}
    try:
        for name, split in todo.items():
            page_bytes = _page_bytes(split.largest_bytes)
            while name not in entries:
                left_out[name] = {}
                title = f"{config.name}/{name}"
                samples = shown(samples_of(split, config.source), len(split.labels), title, progress)
                try:
                    entries[name] = _write_split(
                        folder, name, split, samples, contents.class_names, left_out[name], page_bytes
                    )
                except LargerThanPage as error:
                    log.info("%s: writing the split again with larger pages", error)
                    page_bytes = _page_bytes(error.size_bytes)
            if made_of[name]:
                noted[name] = {"made_of": made_of[name], "entry": entries[name]}
                save_text(folder / UNFINISHED, json.dumps(noted))
    finally:
        lines = [f"{origin}: {reason}\n" for of_split in left_out.values() for origin, reason in of_split.items()]
        if lines:
            save_text(folder / UNREADABLE, "".join(lines))
        else:
            (folder / UNREADABLE).unlink(missing_ok=True)
    return {name: entries[name] for name in contents.splits}


class _Note(TypedDict):
    """What an interrupted run noted of a split that it finished."""

    made_of: str | None
    entry: SplitEntry


def _noted(folder: Path) -> dict[str, _Note]:
    try:
        return read_json(folder / UNFINISHED, dict[str, _Note], "its splits are written again")
    except (FileNotFoundError, RegbenchError):
        return {}


def _whole(folder: Path, entry: SplitEntry) -> bool:
    """Tell whether a split's files are those of its entry, as far as can be seen without reading all images."""
    beton, origins = folder / entry["file"], folder / entry["origins"]
    if not beton.is_file() or not origins.is_file():
        return False
    return beton.stat().st_size == entry["bytes"] and file_sha256(origins) == entry["origins_sha256"]


def _require_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise RegbenchError(
            f"{folder} needs about {needed_bytes / 1e9:.3g} GB, and {free_bytes / 1e9:.3g} GB are free there; "
            "make room, or choose another folder: runtime.data_dir=FOLDER"
        )


def _page_bytes(largest_bytes: int) -> int:
    """Return the size of pages for images up to a size: an image can grow where it has to be converted."""
    return max(MIN_PAGE_BYTES, 1 << (4 * largest_bytes - 1).bit_length())


def _write_split(
    folder: Path,
    name: str,
    split: Split,
    samples: Iterable[Sample | Unreadable],
    class_names: list[str],
    left_out: dict[str, str],
    page_bytes: int,
) -> SplitEntry:
    """Write the files of one split; what cannot be read is added to `left_out`."""
    rows: list[int] = []
    lines: list[str] = []
    sides_px: list[int] = []
    grey = True

    def readable() -> Iterator[Sample]:
        nonlocal grey
        for row, sample in enumerate(samples):
            if isinstance(sample, Unreadable):
                left_out[sample.origin] = sample.reason
                continue
            rows.append(row)
            sides_px.append(min(sample.height, sample.width))
            grey = grey and sample.grey
            lines.append(f"{zlib.crc32(sample.data):08x} {sample.origin}\n")
            yield sample
        if emptied := sorted(set(split.labels.tolist()) - set(split.labels[rows].tolist())):
            # Class -1, of images without labels, is the last of these.
            emptied_names = ", ".join([*class_names, "(no class)"][label] for label in emptied[:5])
            raise RegbenchError(
                f"{folder / name}.beton: {len(emptied)} classes ({emptied_names}) would have no image, as "
                f"{_listed_unreadable(folder, left_out)}; mend them"
            )

    path, origins = folder / f"{name}.beton", folder / f"{name}.origins.txt"
    content_sha256 = write_beton(path, readable(), len(split.labels), page_bytes)
    labels = Beton(path).labels
    if not np.array_equal(labels, split.labels[rows]):
        raise AssertionError(f"{path}: the labels read back differ from those written")
    save_text(origins, "".join(lines))
    return {
        "file": path.name,
        "num_samples": len(labels),
        "counts_per_class": counts_per_class(labels, len(class_names)),
        "content_sha256": content_sha256,
        "bytes": path.stat().st_size,
        "origins": origins.name,
        "origins_sha256": file_sha256(origins),
        "left_out": left_out,
        "image_px": int(np.median(sides_px)),
        "grey": grey,
    }


def counts_per_class(labels: Labels, num_classes: int) -> list[int]:
    """Count the images of each class; an empty list if there are no labels."""
    labelled = labels[labels >= 0]
    counts: list[int] = np.bincount(labelled, minlength=num_classes).tolist() if len(labelled) else []
    return counts


def _listed_unreadable(folder: Path, left_out: dict[str, str]) -> str:
    first = ", ".join(f"{origin} ({reason})" for origin, reason in list(left_out.items())[:3])
    more = f" and {len(left_out) - 3:,} more" if len(left_out) > 3 else ""
    return f"{len(left_out):,} images cannot be read: {first}{more}; all are listed in {folder / UNREADABLE}"


@contextmanager
def only_one(folder: Path, progress: bool) -> Iterator[None]:
    """Hold the folder's lock; the system releases it when the process ends, however it ends.

    Raises:
        RegbenchError: the folder cannot be made, or not be written in.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise RegbenchError(
            f"cannot write in the folder {folder}: {error.strerror}; choose another: runtime.data_dir=FOLDER"
        ) from error
    with lock:
        # A file system without locks is used without: every file appears whole or not at all.
        with suppress(OSError):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if progress:
                    print(f"waiting for another process that prepares {folder}", file=sys.stderr, flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
