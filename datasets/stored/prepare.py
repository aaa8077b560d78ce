"""Preparing a data set: its source is read once and written as one `.beton` file per split, with a
manifest.

The manifest comes last. Until it is there, the data set is not prepared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from regbench.datasets.config import DatasetConfig
from regbench.datasets.published import refuse_if
from regbench.datasets.sources.base import Contents
from regbench.datasets.sources.latents import Latents
from regbench.datasets.stored.latent_files import write_latents
from regbench.datasets.stored.manifest import (
    FILE_NAME,
    LOCK,
    Manifest,
    prepared_from,
    save_text,
)
from regbench.datasets.stored.split_files import listed_unreadable, write_splits
from regbench.errors import RegbenchError
from regbench.files import hold
from regbench.text import printable
from regbench.version import __version__

_INPUTS = "folder.txt"
"""Name of the file, beside the manifest, of the `Source.inputs` of one's own images."""


def prepare(
    config: DatasetConfig,
    data_dir: Path,
    *,
    source_dir: Path | None = None,
    force: bool = False,
    skip_unreadable: bool = False,
) -> Manifest:
    """Write `<data_dir>/<name>/<split>.beton` for every split, and the manifest last.

    Nothing is done when the manifest is there, fits `config` and the files have the recorded sizes.
    Several processes may call this at once: one writes, the others wait for it.

    Args:
        config: The data set.
        data_dir: The folder of all prepared data sets; made if missing.
        source_dir: The folder that holds the source; None for the usual place or a download.
        force: Write again what is there.
        skip_unreadable: Leave out the images that cannot be read, instead of listing them and
            refusing the data set.

    Raises:
        RegbenchError: If the source cannot be used, what is there was made with other settings,
            images cannot be read, or no space is left.
    """
    folder = data_dir / config.name
    # The first look does without the lock, which users with read access only cannot take.
    if not force and (done := _prepared(config, data_dir)):
        return done
    with locked(folder):
        # Another process may have prepared it while this one waited.
        if not force and (done := _prepared(config, data_dir)):
            return done
        contents = open_source(config, source_dir, data_dir / ".downloads")
        notes: list[str] = []
        if isinstance(config.source, Latents):
            splits = write_latents(config, config.source, folder)
        else:
            splits, notes = write_splits(config, contents, folder)
        left_out: dict[str, str] = {}
        for entry in splits.values():
            left_out |= entry["left_out"]
        if left_out and not skip_unreadable:
            remedy = "mend them and prepare again, or leave them out with --skip-unreadable"
            unreadable = listed_unreadable(folder, left_out)
            raise RegbenchError(f"data set '{config.name}': {unreadable}; {remedy}")
        if left_out:
            notes.append(listed_unreadable(Path(), left_out))
        manifest = Manifest(
            name=config.name,
            source=prepared_from(config),
            splits=splits,
            class_names=contents.class_names,
            beton_version=2,
            regbench_version=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            # Names in these may not be UTF-8, which would make the manifest unreadable.
            taken_from={split: printable(text) for split, text in contents.taken_from.items()},
            notes=[printable(note) for note in (*contents.notes, *notes)],
        )
        if config.source.own and source_dir is not None:
            save_text(folder / _INPUTS, config.source.inputs(source_dir))
        manifest.save(data_dir)
    return manifest


def prepare_all(configs: Iterable[DatasetConfig], data_dir: Path) -> None:
    """Prepare the data sets of cells, each once."""
    for config in {config.name: config for config in configs}.values():
        prepare(config, data_dir)


def read_inputs(folder: Path) -> list[str]:
    """Read what the images of a prepared folder are made of, see `Source.inputs`: its lines;
    none if that is not known.
    """
    path = folder / _INPUTS
    return path.read_bytes().decode().split("\n") if path.exists() else []


def open_source(config: DatasetConfig, source_dir: Path | None, downloads: Path) -> Contents:
    """Find the images of a data set, download them where that is possible, and divide them into
    splits.

    A source that cannot be found, is incomplete or has other classes is refused. The message lists
    all faults, and says where to get it.
    """
    source = config.source
    where = f"data set '{config.name}'"
    if source.own and source_dir is None:
        remedy = f"give the folder that holds {source.layout}: {config.prepare_command}"
        if source.about:
            remedy += f"; {source.about.title} is to be had from {source.about.address}"
        raise RegbenchError(f"{where} is made from {source.title}; {remedy}")
    contents = source.open(source_dir, downloads)
    odd = []
    for name in contents.class_names:
        # A name that is not UTF-8 could be written to the manifest, but not read from it.
        if name.encode(errors="ignore").decode() != name:
            odd.append(os.fsencode(name).decode(errors="backslashreplace"))
    what = f"{where}: the names of {len(odd):,} classes are not UTF-8"
    refuse_if(odd, what, "rename them")
    found = len(contents.class_names)
    if config.num_classes and found != config.num_classes:
        raise RegbenchError(
            f"{where}: the source has {found} classes, not {config.num_classes}; "
            f"set dataset.num_classes={found}, or mend the source"
        )
    return contents


def _prepared(config: DatasetConfig, data_dir: Path) -> Manifest | None:
    """Return the manifest if all is there, None if something is missing."""
    if not (data_dir / config.name / FILE_NAME).exists():
        return None
    manifest = Manifest.load(data_dir, config)
    manifest.require(config, data_dir)
    # A file that is missing or cut short is not refused here: it is written again.
    with suppress(RegbenchError):
        for split in manifest.splits:
            manifest.split_file(data_dir, split)
        return manifest
    return None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system releases it when the process ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = hold(folder / LOCK, f"prepares {folder}")
    except OSError as error:
        what = f"cannot write in the folder {folder}: {error.strerror}"
        raise RegbenchError(f"{what}; choose another: runtime.data_dir=FOLDER") from error
    with file:
        yield
