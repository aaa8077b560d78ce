"""The epochs of a run."""

from __future__ import annotations

from typing import Any

from regbench.benchmark.rundir.record import Record


def untimed(record: Record) -> list[dict[str, Any]]:
    """The rows without seconds and milliseconds, in which no two runs agree."""
    return [{k: v for k, v in row.items() if not k.endswith(("_s", "_ms"))} for row in record.history]
