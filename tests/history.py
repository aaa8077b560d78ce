"""The epochs of a run."""

from __future__ import annotations

from typing import Any

from regbench.benchmark.rundir.checkpoint import load_checkpoint
from regbench.benchmark.rundir.record import Record


def untimed(record: Record) -> list[dict[str, Any]]:
    """The rows without seconds and milliseconds, in which no two runs agree."""
    return [
        {k: v for k, v in row.items() if not k.endswith(("_s", "_ms"))} for row in record.history
    ]


def all_digits(record: Record) -> list[dict[str, Any]]:
    """The rows as the last checkpoint holds them: the file of the history has six digits of
    each number.
    """
    loaded = load_checkpoint(record.path.parent)
    assert loaded is not None
    rows: list[dict[str, Any]] = loaded[0]["progress"]["history"]
    return rows
