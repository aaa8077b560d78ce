"""Preparing a data set: its source is read once and written as one `.beton` file per split, with a manifest.

A file is under its name only when it is whole, and the manifest comes last. In between, `UNFINISHED` notes which
splits are complete and what they were made of, so that an interrupted run goes on after them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

import numpy as np

from regbench import RegbenchError, __version__
from regbench.datasets.beton import Beton, Sample, write_beton
from regbench.datasets.config import ARRAY_SOURCES, DatasetConfig
from regbench.datasets.encode import Unreadable
from regbench.datasets.manifest import FILE_NAME, Manifest, SplitEntry, save_text
from regbench.datasets.progress import shown
from regbench.datasets.sources import Labels, Source, Split, find_list, open_source
from regbench.files import read_json, remove_leftovers

UNFINISHED = "unfinished.json"
UNREADABLE = "unreadable.txt"
# Beside its bytes, an image takes a row of metadata, one of the allocation table, and the line of where it came from.
_PER_IMAGE_BYTES = 100


def prepare(
    config: DatasetConfig,
    data_dir: Path,
    *,
    source_dir: Path | None = None,
    workers: int | None = None,
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
        workers: threads that read, check and shrink image files; None for one per core.
        progress: show progress on stderr.
        force: write again what is there.
        skip_unreadable: leave out the images that cannot be read, instead of refusing all when they are listed.

    Raises:
        RegbenchError: the source cannot be used, what is there was made with other settings, images cannot be read, or
            no space is left.
    """
    done = None if force else _prepared(config, data_dir)
    if done is not None:
        return done
    folder = data_dir / config.name
    with only_one(folder, progress):
        done = None if force else _prepared(config, data_dir)
        if done is not None:
            return done
        remove_leftovers(folder)
        source = open_source(config, source_dir, data_dir / ".downloads")
        if force:
            (folder / UNFINISHED).unlink(missing_ok=True)
        splits = _write_splits(config, source, folder, workers or len(os.sched_getaffinity(0)), progress)
        if not skip_unreadable:
            _refuse_unreadable(config.name, folder, splits)
        listed = find_list(config.train_list, source_dir) if config.train_list and source_dir else None
        manifest = Manifest(
            name=config.name,
            source=config.source,
            selection=_selection(config),
            splits=splits,
            class_names=source.class_names,
            beton={"version": 2, "jpeg_quality": config.jpeg_quality},
            regbench_version=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            train_list_sha256=file_sha256(listed) if listed else None,
            taken_from=source.taken_from,
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


def _selection(config: DatasetConfig) -> dict[str, int | float | str | None]:
    """What of the configuration decides which image goes where, and in which size."""
    if config.source in ARRAY_SOURCES:
        return {**config.later()}
    listed = {} if config.train_list is None else {"train_list": config.train_list}
    per_class = {"train_per_class": config.train_per_class, "tuning_per_class": config.tuning_per_class}
    return {**per_class, **listed, **config.later()}


def check_matches(manifest: Manifest, config: DatasetConfig, data_dir: Path) -> None:
    """Refuse a prepared data set that is not the one of `config`.

    Raises:
        RegbenchError: another source, number of classes, selection or size of images.
    """
    wanted = {"source": config.source, "num_classes": config.num_classes, **_selection(config)}
    found = {"source": manifest.source, "num_classes": len(manifest.class_names), **manifest.selection}
    if wanted != found:
        raise RegbenchError(
            f"{data_dir / config.name} was prepared with {_listed(found)}, not {_listed(wanted)}; "
            f"choose another dataset.name, or: {config.prepare_command} --force"
        )


def _listed(settings: dict[str, int | float | str | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _prepared(config: DatasetConfig, data_dir: Path) -> Manifest | None:
    """The manifest if all is there, None if something is missing."""
    if not (data_dir / config.name / FILE_NAME).exists():
        return None
    manifest = Manifest.load(data_dir, config)
    num_classes = config.num_classes or len(manifest.class_names)
    check_matches(manifest, replace(config, num_classes=num_classes), data_dir)
    with suppress(RegbenchError):
        for split in manifest.splits:
            manifest.split_file(data_dir, split)
        return manifest
    return None


def _write_splits(
    config: DatasetConfig, source: Source, folder: Path, workers: int, progress: bool
) -> dict[str, SplitEntry]:
    """Write the splits that no interrupted run has finished, and list what cannot be read."""
    made_of = {
        name: split.identity and json.dumps([__version__, config.source, _selection(config), split.identity])
        for name, split in source.splits.items()
    }
    noted = {
        name: note
        for name, note in _noted(folder).items()
        if note["made_of"] == made_of.get(name) and _whole(folder, note["entry"])
    }
    todo = {name: split for name, split in source.splits.items() if name not in noted}
    _require_space(folder, todo.values())
    # Before a file is replaced, so that neither speaks of another file than it was made for.
    (folder / FILE_NAME).unlink(missing_ok=True)
    save_text(folder / UNFINISHED, json.dumps(noted))
    entries: dict[str, SplitEntry] = {name: note["entry"] for name, note in noted.items()}
    left_out = {name: entry["left_out"] for name, entry in entries.items()}
    try:
        for name, split in todo.items():
            left_out[name] = {}
            title = f"{config.name}/{name}"
            samples = shown(split.samples(workers), len(split.labels), title, progress)
            entries[name] = _write_split(folder, name, split, samples, source.class_names, left_out[name])
            if made_of[name]:
                noted[name] = {"made_of": made_of[name], "entry": entries[name]}
                save_text(folder / UNFINISHED, json.dumps(noted))
    finally:
        lines = [f"{origin}: {reason}\n" for of_split in left_out.values() for origin, reason in of_split.items()]
        if lines:
            save_text(folder / UNREADABLE, "".join(lines))
        else:
            (folder / UNREADABLE).unlink(missing_ok=True)
    return {name: entries[name] for name in source.splits}


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
    """Whether a split's files are those of its entry, as far as can be seen without reading all images."""
    beton, origins = folder / entry["file"], folder / entry["origins"]
    if not beton.is_file() or not origins.is_file():
        return False
    return beton.stat().st_size == entry["bytes"] and file_sha256(origins) == entry["origins_sha256"]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_space(folder: Path, splits: Iterable[Split]) -> None:
    needed = sum(split.stored_bytes + len(split.labels) * _PER_IMAGE_BYTES for split in splits)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RegbenchError(
            f"{folder} needs about {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free there; "
            "make room, or choose another folder: runtime.data_dir=FOLDER"
        )


def _write_split(
    folder: Path,
    name: str,
    split: Split,
    samples: Iterable[Sample | Unreadable],
    class_names: list[str],
    left_out: dict[str, str],
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
    content_sha256 = write_beton(path, readable(), len(split.labels), split.page_bytes)
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
    """The number of images of each class; none if there are no labels."""
    labelled = labels[labels >= 0]
    counts: list[int] = np.bincount(labelled, minlength=num_classes).tolist() if len(labelled) else []
    return counts


def _refuse_unreadable(name: str, folder: Path, splits: dict[str, SplitEntry]) -> None:
    """Refuse a data set whose images could not all be read.

    Raises:
        RegbenchError: with the first of them.
    """
    left_out = {origin: reason for entry in splits.values() for origin, reason in entry["left_out"].items()}
    if left_out:
        raise RegbenchError(
            f"data set '{name}': {_listed_unreadable(folder, left_out)}; mend them and prepare again, or leave them "
            "out with --skip-unreadable, which goes on from what is converted"
        )


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
