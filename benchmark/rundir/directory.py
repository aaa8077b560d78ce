"""The files of a run directory, and how they are found.

This module does without torch, whose import takes longer than the status of ten thousand runs.

A file that an attempt at the run rewrites carries the attempt's number: `metrics-0002.jsonl`. So a
process that has lost the run, and goes on after its successor has finished it, can reach none of
the successor's files.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from regbench.benchmark.rundir.record import read_record, read_tuned
from regbench.files import DIGITS, verified, write_new, write_there
from regbench.text import refuse_name

if TYPE_CHECKING:
    from regbench.benchmark.settings.cell import Cell
    from regbench.benchmark.settings.runtime import Runtime

log = logging.getLogger("regbench")

# A name with the number of an attempt, perhaps of a temporary file: ".metrics-0002.jsonl.x1".
_NUMBERED = re.compile(r"\.?[a-z]\w*(?:-[a-z]\w*)*-(\d{4,})[-.].*")
_ATTEMPT = re.compile(r"(\d{4,})\.json")
_TENSORS = re.compile(rf"([a-z][\w-]*)-(\d{{4,}})-(\d{{9,}})-([0-9a-f]{{{DIGITS}}})\.pt")


def run_directory(runtime: Runtime, sweep: str, cell: Cell) -> Path:
    """Return `<runs_dir>/<sweep>/<cell id>`; refuse a sweep's name that no folder can have."""
    refuse_name("the folder of runs", sweep)
    return Path(runtime.runs_dir) / sweep / cell.id


def write_config(directory: Path, plain: Mapping[str, Any]) -> None:
    """Write `config.yaml`, which is the same for all attempts at a cell, once.

    Replace one that is not the cell's.
    """
    # A file that somebody edited is no longer of the cell that the folder is named after.
    path = directory / "config.yaml"
    text = yaml.safe_dump(dict(plain), sort_keys=False)
    if not write_new(path, text) and path.read_text(errors="replace") != text:
        log.warning("%s is not that of the cell; it is written anew", path)
        write_there(path, text.encode())


def names_in(directory: Path) -> Sequence[str]:
    """List the names in a folder; none if it is not there."""
    try:
        # Ten times as quick as iterdir, for thousands of cells.
        return os.listdir(directory)  # noqa: PTH208
    except FileNotFoundError:
        return ()


def attempt_numbers(directory: Path) -> list[int]:
    """List the numbers of all attempts that have a file in the folder `attempts`, in order."""
    matches = [_ATTEMPT.fullmatch(name) for name in names_in(directory / "attempts")]
    return sorted(int(match[1]) for match in matches if match)


def highest_number(directory: Path) -> int:
    """Return the highest number of an attempt that any file of the directory carries; 0 without
    one.
    """
    numbers = [_number(name) or 0 for name in os.listdir(directory)]  # noqa: PTH208
    return max([0, *attempt_numbers(directory), *numbers])


def numbered_file(directory: Path, name: str, attempt: int) -> Path:
    """Return where an attempt keeps a file of its own: `choice.json` of attempt 2 is
    `choice-0002.json`.
    """
    path = directory / name
    return path.with_name(f"{path.stem}-{attempt:04d}{path.suffix}")


def numbered_files(directory: Path, name: str) -> list[Path]:
    """List the files `name` of all attempts, the last attempt's first."""
    stem, suffix = Path(name).stem, Path(name).suffix
    # The pattern also finds names that go on, such as choice-backup-0001.json for choice.json.
    paths = directory.glob(f"{stem}-*{suffix}")
    found = [path for path in paths if path.stem[len(stem) + 1 :].isdecimal()]
    return sorted(found, key=lambda path: _number(path.name) or 0, reverse=True)


def read_numbered(directory: Path, name: str) -> dict[str, Any]:
    """Read the newest signed file `name` that is whole.

    Return an empty dictionary if there is none.
    """
    for path in numbered_files(directory, name):
        try:
            return verified(path.read_bytes())
        except (OSError, ValueError) as error:
            log.warning("%s is damaged (%s); going back to the one before it", path, error)
    return {}


def remove_earlier_leftovers(directory: Path, attempt: int) -> None:
    """Remove the temporary files of killed attempts before this one; leave those of a later one."""
    for path in directory.glob(".*"):
        number = _number(path.name)
        if number is not None and number < attempt:
            path.unlink(missing_ok=True)


def _number(name: str) -> int | None:
    """Return the number of the attempt that a file's name carries."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class TensorFile:
    """A file of tensors: `<kind>-<attempt>-<number>-<beginning of its SHA-256>.pt`.

    Attributes:
        path: The file.
        attempt: The number of the attempt that wrote it.
        number: A running number, such as the steps done.
        digest: The first digits of its SHA-256.
    """

    path: Path
    attempt: int
    number: int
    digest: str


def tensor_files(directory: Path, kind: str) -> list[TensorFile]:
    """List the files of a kind, the newest first.

    The kind may be a pattern such as "evaluation-*".
    """
    found = []
    for path in directory.glob(f"{kind}-*.pt"):
        match = _TENSORS.fullmatch(path.name)
        if match and fnmatchcase(match[1], kind):
            found.append(TensorFile(path, int(match[2]), int(match[3]), match[4]))
    # A later attempt's are newer, whatever their running number: it may have begun again.
    return sorted(found, key=lambda file: (file.attempt, file.number), reverse=True)


def superfluous_files(directory: Path, *, checkpoints: bool) -> list[Path]:
    """List the files that a finished run can do without: earlier attempts' files that no record
    names, and leftovers of kills.

    With `checkpoints`, list the last checkpoint too, which holds the trained weights.
    """
    named = set()
    for record in (read_tuned(directory), read_record(directory)):
        if record is not None:
            named |= {file.file for file in (record.metrics, record.checkpoint) if file}
    written = checkpoint_files(directory)
    # A run whose record names no checkpoint keeps the newest.
    kept = [path for path in written if path.name in named] or written[:1]
    found = [path for path in written if checkpoints or path not in kept]
    for name in ("choice.json", "environment.json", "metrics.jsonl", "scores.json"):
        found += [path for path in numbered_files(directory, name)[1:] if path.name not in named]
    for pattern in ("evaluation-*.pt", "*.damaged", ".*.*", "attempts/.*.*", "evaluations/.*.*"):
        found += directory.glob(pattern)
    return found


def checkpoint_files(directory: Path) -> list[Path]:
    """List the checkpoints of a run directory, the newest first."""
    return [file.path for file in tensor_files(directory, "checkpoint")]
