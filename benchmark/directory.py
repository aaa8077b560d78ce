"""The run directory: where it is, whether it is finished, who is at work in it.

Apart from the code that trains, so that telling how a sweep stands need not import that.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from regbench.benchmark.config import Cell, Runtime

log = logging.getLogger("regbench")


def run_directory(runtime: Runtime, sweep: str, cell: Cell) -> Path:
    """`<runs_dir>/<sweep>/<cell id>`."""
    return Path(runtime.runs_dir) / sweep / cell.id


def read_record(directory: Path) -> dict[str, Any] | None:
    """The record of a finished run directory, else None."""
    try:
        record: dict[str, Any] = json.loads((directory / "record.json").read_text())
    except FileNotFoundError:
        return None
    return record


def is_running(directory: Path) -> bool:
    """Whether a process on this file system is working in the run directory."""
    try:
        with (directory / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


_locks: set[IO[bytes]] = set()


def _close_locks() -> None:
    for file in _locks:
        file.close()


# A lock is free when the last process that has it open ends, and a loader's processes outlive a killed run by seconds.
os.register_at_fork(after_in_child=_close_locks)


@contextlib.contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Holds the directory's lock, which the kernel frees when the process ends, however it ends."""
    with (directory / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("%s: another process is at work here; waiting for it", directory)
            fcntl.flock(file, fcntl.LOCK_EX)
        _locks.add(file)
        try:
            yield
        finally:
            _locks.remove(file)
