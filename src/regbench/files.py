"""Files that other processes read: written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes `path` through a temporary file beside it, synced to disk and then renamed.

    Args:
        path: The file; its folder is made if missing. A reader sees the old content or the new, never a part.
        write: Called with the open temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp makes it private, and others are to read it
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to `path` atomically."""
    write_atomically(path, lambda file: file.write(data))


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path` atomically."""
    write_bytes(path, text.encode())


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files that killed writers left in `folder`; for its only writer to call."""
    for path in folder.glob(".*.*"):
        path.unlink(missing_ok=True)
