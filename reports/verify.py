"""Whether a file that a run left is what the run wrote: digests, ids, configurations, ranges.

Each function yields what does not fit and raises nothing.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbench.files import cell_id, digest, parse_yaml

_WHY = "it was changed or damaged"


@dataclass(frozen=True)
class Misfit:
    """A file that does not fit, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.path}: {self.reason}"


def content_misfits(path: Path, raw: Mapping[str, Any]) -> Iterator[Misfit]:
    """A file that `files.signed` made."""
    try:
        found = digest({k: v for k, v in raw.items() if k != "sha256"})
    except RecursionError:
        found = "of nothing that anybody wrote"
    if raw.get("sha256") != found:
        yield Misfit(path, f"its content is not what its sha256 was taken of; {_WHY}")


@dataclass(frozen=True)
class NamedFile:
    """A file that a record names, and the SHA-256 that it states of it."""

    path: Path
    sha256: str


def file_misfits(named: NamedFile | None) -> Iterator[Misfit]:
    """A file that a record names; none is where nothing was trained."""
    if named is None:
        return
    try:
        with named.path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:  # a name may hold what no file's name can
        yield Misfit(named.path, f"cannot be read ({getattr(error, 'strerror', error)})")
        return
    if found != named.sha256:
        yield Misfit(named.path, f"its content is not what the record's SHA-256 of it was taken of; {_WHY}")


def id_misfits(path: Path, stated: str, cell: Mapping[str, Any]) -> Iterator[Misfit]:
    """A record's cell id against its folder's name and the id of its cell."""
    if path.absolute().parent.name != stated:
        yield Misfit(path, f"its cell id is {stated}, the folder's name is another")
    try:
        computed = cell_id(cell)
    except (KeyError, TypeError, AttributeError) as error:
        yield Misfit(path, f"its cell is none ({type(error).__name__}: {error})")
        return
    if computed != stated:
        yield Misfit(path, f"its cell id is {stated}, that of its cell is {computed}")


def config_misfits(path: Path, cell: Mapping[str, Any]) -> Iterator[Misfit]:
    """A run's `config.yaml` against the cell of its record."""
    try:
        content = path.read_bytes()
        config = _by_blocks(content)
        if config != cell:
            config = parse_yaml(content)
    except FileNotFoundError:
        yield Misfit(path, "is missing, so the run cannot be repeated")
        return
    except (OSError, ValueError) as error:
        yield Misfit(path, f"cannot be read ({' '.join(str(error).split())})")
        return
    if config != cell:
        found = config if isinstance(config, dict) else {}
        keys = [key for key in dict.fromkeys((*cell, *found)) if found.get(key, _NOTHING) != cell.get(key, _NOTHING)]
        yield Misfit(path, f"differs from the record's cell in {', '.join(map(str, keys))}")


_NOTHING = object()
_BLOCK = re.compile(rb"^(?=[a-z])", re.MULTILINE)


def _by_blocks(content: bytes) -> dict[Any, Any] | None:
    """A mapping read a key at a time, which takes a tenth of the time where thousands of runs share most of it.

    None where it is not made of such blocks.
    """
    config: dict[Any, Any] = {}
    for block in filter(None, _BLOCK.split(content)):
        try:
            read = _load_block(block)
        except ValueError:
            return None
        if not isinstance(read, dict):
            return None
        config |= read
    return config


_load_block = functools.lru_cache(maxsize=4096)(parse_yaml)
