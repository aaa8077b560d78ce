"""Checkpoints: `checkpoint-<attempt>-<step>.pt`, the last two of a run.

No file is ever written twice and the attempt's number is in the name, so a process that has lost the run cannot
overwrite what its successor wrote. The files are torch's zip archives, in which every part carries a CRC-32.
"""

from __future__ import annotations

import functools
import logging
import pickle
import time
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from regbench.benchmark.directory import checkpoint_files
from regbench.files import write_atomically

log = logging.getLogger("regbench")

_KEPT = 2


def load_checkpoint(directory: Path, map_location: Any = "cpu") -> dict[str, Any] | None:
    """The newest checkpoint that is whole; None if there is none.

    A damaged one is set aside as `….damaged`, with a warning.
    """
    for path in checkpoint_files(directory):
        try:
            return read_checkpoint(path, map_location)
        except (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            log.warning(
                "%s is damaged (%s); going back to the checkpoint before it", path, " ".join(str(error).split())
            )
            path.replace(path.with_name(f"{path.name}.damaged"))
    return None


def read_checkpoint(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """One checkpoint, its checksums compared.

    Raises:
        ValueError, zipfile.BadZipFile, RuntimeError: If the file is damaged.
    """
    with zipfile.ZipFile(path) as archive:
        if (bad := archive.testzip()) is not None:
            raise ValueError(f"checksum of {bad} differs")
    state: dict[str, Any] = torch.load(path, map_location=map_location, weights_only=True)
    return state


def save_checkpoint(directory: Path, attempt: int, step: int, state: dict[str, Any]) -> float:
    """Writes a checkpoint and removes those older than the one before it.

    Args:
        directory: The run directory.
        attempt: Number of the attempt that writes.
        step: Steps done.
        state: Tensors and plain data.

    Returns:
        The seconds it took.
    """
    began_s = time.perf_counter()
    path = directory / f"checkpoint-{attempt:04d}-{step:09d}.pt"
    write_checkpoint(path, state)
    for old in checkpoint_files(directory)[_KEPT:]:
        old.unlink(missing_ok=True)
    return time.perf_counter() - began_s


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes one file that `read_checkpoint` reads, atomically."""
    write_atomically(path, functools.partial(_save, state))


class _Output:
    """A file that remembers why it could not be written to: torch's own error does not say."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def _save(state: dict[str, Any], file: IO[bytes]) -> None:
    output = _Output(file)
    try:
        torch.save(state, output)  # type: ignore[arg-type]  # it needs no more than the two methods
    except RuntimeError:
        if output.error is not None:
            raise output.error from None
        raise
