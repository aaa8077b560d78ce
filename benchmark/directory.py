"""The run directory: where it is, whether it is finished, which checkpoints it has.

Apart from the code that trains, and without torch, whose import takes longer than telling how ten thousand runs stand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regbench.files import write_bytes

if TYPE_CHECKING:
    from regbench.benchmark.config import Cell, Runtime

SCHEMA_VERSION = 4
"""Of records and of a tuning's choice."""


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


def read_tuned(directory: Path) -> dict[str, Any] | None:
    """The record that a tuning chooses by: that of the tuning split, or the final one; None if there is neither yet."""
    try:
        record: dict[str, Any] = json.loads((directory / "tuning.json").read_text())
    except FileNotFoundError:
        return read_record(directory)
    return record


def write_metrics(directory: Path, history: Sequence[Mapping[str, Any]]) -> str | None:
    """Writes `metrics.jsonl`, a line for each finished epoch; returns its SHA-256, None without an epoch."""
    if not history:
        return None
    rows = "".join(json.dumps(row) + "\n" for row in history).encode()
    write_bytes(directory / "metrics.jsonl", rows)
    return hashlib.sha256(rows).hexdigest()


def checkpoint_files(directory: Path) -> list[Path]:
    """The checkpoints of a run directory, the newest first."""
    return sorted(directory.glob("checkpoint-*.pt"), reverse=True)
