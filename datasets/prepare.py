"""Preparing a data set: its source is read once and written as one `.beton` file per split, with a manifest."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from tqdm import tqdm

from regbench import RegbenchError, __version__
from regbench.datasets.beton import Beton, Sample, write_beton
from regbench.datasets.config import DatasetConfig
from regbench.datasets.encode import JPEG_QUALITY
from regbench.datasets.manifest import FILE_NAME, Manifest, SplitEntry
from regbench.datasets.sources import Split, open_source

_LOG_EVERY_S = 30.0


def prepare(
    config: DatasetConfig,
    data_dir: Path,
    *,
    source_dir: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
    force: bool = False,
) -> Manifest:
    """Write `<data_dir>/<name>/<split>.beton` for every split, and the manifest last.

    Nothing is done when the manifest is there, fits `config` and the files have the recorded sizes. Several
    processes may call this at once: one writes, the others wait for it.

    Args:
        config: the data set.
        data_dir: the folder of all prepared data sets; made if missing.
        source_dir: the folder that holds the source; None for the usual place or a download.
        workers: threads that read and check image files; None for one per core.
        progress: show progress on stderr.
        force: write again what is there.

    Raises:
        RegbenchError: the source cannot be used, what is there was made with other settings, or no space is left.
    """
    done = None if force else _prepared(config, data_dir)
    if done is not None:
        return done
    folder = data_dir / config.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RegbenchError(f"cannot make the folder {folder}: {error.strerror}") from error
    with _only_one(folder, progress):
        done = None if force else _prepared(config, data_dir)
        if done is not None:
            return done
        for leftover in folder.glob(".*.beton.*"):
            leftover.unlink()
        source = open_source(config, source_dir, data_dir / ".downloads")
        (folder / FILE_NAME).unlink(missing_ok=True)
        threads = workers or len(os.sched_getaffinity(0))
        splits = {}
        for name, split in source.splits.items():
            path = folder / f"{name}.beton"
            title = f"{config.name}/{name}"
            splits[name] = _write_split(path, split, title, threads, config.num_classes, progress)
        manifest = Manifest(
            name=config.name,
            source=config.source,
            selection=_selection(config),
            splits=splits,
            class_names=source.class_names,
            beton={"version": 2, "jpeg_quality": JPEG_QUALITY},
            regbench_version=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        manifest.save(data_dir)
    return manifest


def _selection(config: DatasetConfig) -> dict[str, int | str | None]:
    """What of the configuration decides which image goes where."""
    if config.source not in ("imagefolder", "parquet"):
        return {}
    listed = {} if config.train_list is None else {"train_list": config.train_list}
    return {"train_per_class": config.train_per_class, "tuning_per_class": config.tuning_per_class, **listed}


def check_matches(manifest: Manifest, config: DatasetConfig, data_dir: Path) -> None:
    """Refuse a prepared data set that is not the one of `config`.

    Raises:
        RegbenchError: another source, number of classes or selection of images.
    """
    wanted = {"source": config.source, "num_classes": config.num_classes, **_selection(config)}
    found = {"source": manifest.source, "num_classes": len(manifest.class_names), **manifest.selection}
    if wanted != found:
        raise RegbenchError(
            f"{data_dir / config.name} was prepared with {_listed(found)}, not {_listed(wanted)}; "
            f"choose another dataset.name, or: regbench prepare {config.name} --force"
        )


def _listed(settings: dict[str, str | int | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _prepared(config: DatasetConfig, data_dir: Path) -> Manifest | None:
    """The manifest if all is there, None if something is missing."""
    if not (data_dir / config.name / FILE_NAME).exists():
        return None
    manifest = Manifest.load(data_dir, config.name)
    check_matches(manifest, config, data_dir)
    with suppress(RegbenchError):
        for split in manifest.splits:
            manifest.split_file(data_dir, split)
        return manifest
    return None


def _write_split(path: Path, split: Split, title: str, workers: int, num_classes: int, progress: bool) -> SplitEntry:
    samples = _shown(split.samples(workers), len(split.labels), title, progress)
    content_sha256 = write_beton(path, samples, len(split.labels), split.page_bytes)
    written = Beton(path)
    if not np.array_equal(written.labels, split.labels):
        raise AssertionError(f"{path}: the labels read back differ from those written")
    labelled = split.labels[split.labels >= 0]
    return {
        "file": path.name,
        "num_samples": len(written),
        "counts_per_class": np.bincount(labelled, minlength=num_classes).tolist() if len(labelled) else [],
        "content_sha256": content_sha256,
        "bytes": path.stat().st_size,
    }


@contextmanager
def _only_one(folder: Path, progress: bool) -> Iterator[None]:
    """Hold the folder's lock; the system releases it when the process ends, however it ends."""
    with (folder / ".lock").open("w") as file:
        # A file system without locks is used without: every file appears whole or not at all.
        with suppress(OSError):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if progress:
                    print(f"waiting for another process that prepares {folder}", file=sys.stderr, flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _shown(samples: Iterable[Sample], total: int, title: str, progress: bool) -> Iterator[Sample]:
    """Pass the samples on, with a bar on a terminal and a line now and then in a log."""
    if not progress or sys.stderr.isatty():
        yield from tqdm(samples, title, total, unit=" images", disable=not progress)
        return
    last_s = start_s = time.monotonic()
    for number, sample in enumerate(samples, start=1):
        yield sample
        now_s = time.monotonic()
        if now_s - last_s > _LOG_EVERY_S:
            last_s = now_s
            rate = number / (now_s - start_s)
            print(f"{title}: {number} of {total} images, {rate:.0f} a second", file=sys.stderr, flush=True)
