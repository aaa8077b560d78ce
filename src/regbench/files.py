"""Files that other processes read: written whole or not at all, and what tells that nobody changed them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

DIGITS = 16
"""Of the SHA-256 in the name of a file that tells its content."""


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes `path` through a temporary file beside it, synced to disk and then renamed.

    Args:
        path: The file; its folder is made if missing. A reader sees the old content or the new, never a part.
        write: Called with the open temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _written(path, write) as temporary:
        temporary.replace(path)


def write_there(path: Path, data: bytes) -> None:
    """Writes `data` to `path` atomically, into a folder that is there.

    A folder that was removed is not made again: whoever removed it while a process was at work wants it gone.
    """
    with _written(path, lambda file: file.write(data)) as temporary:
        temporary.replace(path)


def write_new(path: Path, text: str) -> bool:
    """Writes `path` atomically, into a folder that is there, unless the file is there already: then nothing happens.

    Returns:
        Whether it was written. Of several processes that try, one alone is told so.
    """
    with _written(path, lambda file: file.write(text.encode())) as temporary, contextlib.suppress(FileExistsError):
        path.hardlink_to(temporary)
        return True
    return False


def write_digested(path: Path, write: Callable[[IO[bytes]], Any]) -> tuple[Path, str]:
    """Writes a file whose name tells its content, atomically, into a folder that is there.

    Args:
        path: Its name without the digest.
        write: Called with an open file that can be written to from beginning to end, and flushed.

    Returns:
        The file, such as `a-0123456789abcdef.pt` for `a.pt` with the first digits of its SHA-256, and all digits.
    """
    sha256 = hashlib.sha256()

    def digested(file: IO[bytes]) -> None:
        write(cast("IO[bytes]", _Digesting(file, sha256.update)))

    with _written(path, digested) as temporary:
        named = path.with_name(f"{path.stem}-{sha256.hexdigest()[:DIGITS]}{path.suffix}")
        temporary.replace(named)
    return named, sha256.hexdigest()


class _Digesting:
    """A file that shows what is written to it."""

    def __init__(self, file: IO[bytes], show: Callable[[Any], None]) -> None:
        self._file, self._show = file, show

    def write(self, data: Any) -> int:
        self._show(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


@contextlib.contextmanager
def _written(path: Path, write: Callable[[IO[bytes]], Any]) -> Iterator[Path]:
    """A temporary file beside `path` with its content, on the disk; removed at the end if it is still there."""
    handle, temporary_name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(temporary_name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp makes it private, and others are to read it
        yield temporary
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
    """Plain data as JSON with the digest of its content, by which a reader can tell that nobody changed it."""
    plain = json.loads(json.dumps(data))
    return json.dumps({**plain, "sha256": digest(plain)}, indent=1)


def verified(text: str | bytes) -> dict[str, Any]:
    """What `signed` made text of.

    Raises:
        ValueError: If the text is not that any more.
    """
    data = json.loads(text)
    stated = data.pop("sha256", None) if isinstance(data, dict) else None
    if stated is None or stated != digest(data):
        raise ValueError("its content is not what its sha256 was taken of")
    found: dict[str, Any] = data
    return found
