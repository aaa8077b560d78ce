"""The epochs of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def history(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the file that the record names; its command names the directory."""
    if record["metrics"] is None:
        return []
    path = Path(record["command"].split()[-1]).with_name(record["metrics"]["file"])
    return [json.loads(line) for line in path.read_text().splitlines()]


def untimed(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows without seconds and milliseconds, in which no two runs agree."""
    return [{k: v for k, v in row.items() if not k.endswith(("_s", "_ms"))} for row in history(record)]
