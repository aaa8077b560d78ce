"""Files that other processes read: written whole or not at all, and what tells that nobody changed them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes `path` through a temporary file beside it, synced to disk and then renamed.

    Args:
        path: The file; its folder is made if missing. A reader sees the old content or the new, never a part.
        write: Called with the open temporary file.
    """
    _write(path, write, Path.replace)


def write_new(path: Path, text: str) -> None:
    """Writes `path` atomically, unless it is there already: then nothing happens."""
    with contextlib.suppress(FileExistsError):
        _write(path, lambda file: file.write(text.encode()), lambda temporary, path: path.hardlink_to(temporary))


def _write(path: Path, write: Callable[[IO[bytes]], Any], name: Callable[[Path, Path], Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary_name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(temporary_name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp makes it private, and others are to read it
        name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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


def digest(data: Mapping[str, Any]) -> str:
    """SHA-256 of plain data in hexadecimal; neither the order of keys nor the spelling of the file matters."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def cell_id(cell: Mapping[str, Any]) -> str:
    """Twelve hex digits that depend on the content of a cell, given as plain data, alone: the same on any machine."""
    if "external" in cell:  # of published weights; whoever gives them another name scores the same cell
        deciding = {name: cell[name] for name in ("dataset", "network", "augmentation", "seed", "evaluation")}
        return digest({"weights": cell["external"]["sha256"], **deciding})[:12]
    deciding = dict(cell)
    if deciding.get("micro_batch_size") is None:  # so that cells from before there was one keep their ids
        deciding.pop("micro_batch_size", None)
    if deciding.get("epochs") == 0:  # an untrained network knows nothing of these
        for name in ("method", "optimizer"):
            deciding.pop(name, None)
        if "measures" not in deciding.get("evaluation", {}).get("protocols", ()):  # which look at augmented views
            deciding.pop("augmentation", None)
    return digest(deciding)[:12]


def signed(data: Mapping[str, Any]) -> str:
    """Plain data as JSON with the digest of its content, by which a report can tell that nobody changed it."""
    plain = json.loads(json.dumps(data))
    return json.dumps({**plain, "sha256": digest(plain)}, indent=1)
