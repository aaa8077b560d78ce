"""Files of tensors: checkpoints of a training, and the state of an evaluation.

The last two of each kind are kept.

`checkpoint-<attempt>-<step>-<digest>.pt`: no file is ever written twice and the attempt's number is
in the name, so a process that has lost the run cannot overwrite what its successor wrote. The name
also holds the beginning of the SHA-256 of the whole file. It is compared before torch looks at the
file, so that any damage is noticed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
from pathlib import Path
from typing import Any

import torch

from regbench.benchmark.rundir.directory import TensorFile, tensor_files
from regbench.benchmark.rundir.record_parts import Saved
from regbench.errors import RegbenchError
from regbench.files import write_digested

log = logging.getLogger("regbench")

# One more than needed: if the newest is damaged, the run goes back to the one before it.
_KEPT = 2


class Damaged(ValueError):
    """The content of a file is not what its name says, or cannot be read."""


class Unreadable(Damaged):
    """A file cannot be read now: a disk or a network may come back."""


def save_checkpoint(directory: Path, attempt: int, step: int, state: dict[str, Any]) -> Saved:
    """Write the checkpoint of a training after `step` steps; see `save_tensors`."""
    return save_tensors(directory, "checkpoint", attempt, step, state)


def load_checkpoint(directory: Path) -> tuple[dict[str, Any], Saved] | None:
    """Load the newest checkpoint that is whole; see `load_tensors`."""
    return load_tensors(directory, "checkpoint")


def save_tensors(
    directory: Path, kind: str, attempt: int, number: int, state: dict[str, Any]
) -> Saved:
    """Write a file of tensors, keep the one before it, and remove older ones.

    The name begins with the kind: "checkpoint" or "evaluation-<protocol>". The number counts the
    steps done, or the like. Files of later attempts are not touched.
    """
    path = directory / f"{kind}-{attempt:04d}-{number:09d}.pt"
    named, sha256 = write_digested(path, functools.partial(torch.save, state))
    for old in _files_until(directory, kind, attempt)[_KEPT:]:
        old.path.unlink(missing_ok=True)
    return Saved(named.name, sha256, number)


def load_tensors(
    directory: Path, kind: str, map_location: Any = "cpu"
) -> tuple[dict[str, Any], Saved] | None:
    """Load the newest file of a kind that is whole; None if there is none.

    Raises:
        RegbenchError: If there are such files, but none can be read now.
    """
    unreadable = ""
    # A damaged file is set aside as `….damaged`, with a warning.
    for file in tensor_files(directory, kind):
        try:
            return read_tensors(file, map_location)
        except FileNotFoundError:  # whoever wrote it has just replaced it
            continue
        except Unreadable as error:
            unreadable = f"{file.path}: {error}; mend that, and give the same command again"
            log.warning("%s: %s; going back to the one before it", file.path, error)
        except Damaged as error:
            log.warning("%s is damaged (%s); going back to the one before it", file.path, error)
            with contextlib.suppress(OSError):
                file.path.replace(file.path.with_name(f"{file.path.name}.damaged"))
    if unreadable:
        raise RegbenchError(unreadable)
    return None


def read_tensors(file: TensorFile, map_location: Any = "cpu") -> tuple[dict[str, Any], Saved]:
    """Read one file of tensors.

    Raises:
        Damaged: If its content is not what its name says; `Unreadable` if it cannot be read.
        FileNotFoundError: If it is not there.
    """
    try:
        with file.path.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
            if not sha256.startswith(file.digest):
                raise Damaged("its content is not what the SHA-256 in its name was taken of")
            # The same open file, as another one may get its name in between.
            opened.seek(0)
            state: dict[str, Any] = torch.load(opened, map_location=map_location, weights_only=True)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from error
    return state, Saved(file.path.name, sha256, file.number)


def read_saved(directory: Path, saved: Saved) -> dict[str, Any]:
    """Read the file of tensors that a record names.

    Raises:
        Damaged: If it is not there, or is not what it was then.
    """
    kind = saved.file.partition("-")[0]
    files = [file for file in tensor_files(directory, kind) if file.path.name == saved.file]
    try:
        state, found = read_tensors(files[0])
    except (IndexError, FileNotFoundError) as error:
        raise Damaged("it is not there") from error
    if found != saved:
        raise Damaged("its content is not what its SHA-256 was taken of")
    return state


def remove_tensors(directory: Path, kind: str, attempt: int) -> None:
    """Remove the files of a kind that this attempt or one before it wrote."""
    for file in _files_until(directory, kind, attempt):
        file.path.unlink(missing_ok=True)


def _files_until(directory: Path, kind: str, attempt: int) -> list[TensorFile]:
    """List the files of a kind of this attempt and those before it, the newest first."""
    # A process that was stopped and goes on must not remove what its successor wrote.
    return [file for file in tensor_files(directory, kind) if file.attempt <= attempt]
