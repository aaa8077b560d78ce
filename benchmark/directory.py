"""The run directory: where it is, and whether it is finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regbench.benchmark.config import Cell, Runtime


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
