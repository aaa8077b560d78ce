"""Run directories and the folders of sweeps around them, as readers see them.

The status of a sweep, reports, bundles and sweeps that go on all ask here what a folder holds.
Torch is not needed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NotRequired

from pydantic import ValidationError
from typing_extensions import TypedDict

from regbench.benchmark.rundir.directory import names_in, numbered_files
from regbench.benchmark.rundir.lease import is_running, last_attempt
from regbench.benchmark.rundir.record import RECORDS, parse_lines
from regbench.errors import RegbenchError
from regbench.files import Name, adapter, read_json, reason

log = logging.getLogger("regbench")

PLAN = "sweep.json"
"""The file in the folder of a sweep that lists its cells."""

_CELL_ID = re.compile(r"[0-9a-f]{12}")


class RunFolder:
    """A run directory: what it holds when it is looked at. Its files are read when they are asked
    for.

    Attributes:
        path: The directory.
        names: Names of the files in it; none where there is no directory.
    """

    def __init__(self, path: Path, names: Collection[str] | None = None) -> None:
        """List the directory, unless its names are known."""
        self.path = path
        self.names = names_in(path) if names is None else names

    @property
    def is_run(self) -> bool:
        """Whether it is a run directory: it has a record, or a run has begun in it."""
        # Other folders may hold a file of that name.
        begun = "config.yaml" in self.names and _CELL_ID.fullmatch(self.path.absolute().name)
        return bool(begun) or self.record is not None

    @property
    def record(self) -> Path | None:
        """The file of its record: the final one, or else that of its tuning."""
        return next((self.path / name for name in RECORDS if name in self.names), None)

    @property
    def evaluations(self) -> list[Path]:
        """The files of later evaluations."""
        if "evaluations" not in self.names:
            return []
        # Hidden files do not belong to a run: macOS, for one, leaves some beside what it copies.
        return sorted(self.path.glob("evaluations/[!.]*.json"))

    @functools.cached_property
    def attempt(self) -> dict[str, Any] | None:
        """The last attempt at the run; None before the first."""
        return last_attempt(self.path) if "attempts" in self.names else None

    @property
    def is_running(self) -> bool:
        """Whether somebody is at work on it."""
        return is_running(self.attempt)

    @property
    def progress(self) -> dict[str, Any]:
        """The progress that the last attempt noted."""
        progress: dict[str, Any] = self.attempt["progress"] if self.attempt else {}
        return progress

    @property
    def failure(self) -> str:
        """Reason why the last attempt failed; empty if it did not."""
        with contextlib.suppress(OSError):  # the folder is being removed
            if self.attempt is not None and self.attempt["ended"] == "failed":
                return " ".join(str(self.attempt.get("error") or "no reason noted").split())
        return ""

    def history(self) -> list[dict[str, Any]]:
        """Return the epochs that the run has written down so far; none if they are damaged."""
        try:
            newest = numbered_files(self.path, "metrics.jsonl")[0]
            return parse_lines(newest.read_bytes().splitlines())
        except (IndexError, OSError):
            return []


class CellPlan(TypedDict):
    """The entry of `sweep.json` for a cell: enough to know it in a list, and its place in a
    report's tables.
    """

    id: Name
    label: str
    seed: int
    epochs: int
    embedding_dim: NotRequired[int]
    batch_size: NotRequired[int]
    dataset: NotRequired[str]
    backbone: NotRequired[str]


class _Plan(TypedDict):
    description: NotRequired[str]
    cells: list[Any]


def read_plan(folder: Path) -> list[CellPlan]:
    """Read the cells that `<runs_dir>/<sweep>` plans, in order.

    A damaged entry is left out, with a warning.

    Raises:
        FileNotFoundError: If the sweep was never started.
        RegbenchError: If its plan is damaged.
    """
    path, remedy = folder / PLAN, "remove it; the command that began the sweep writes it again"
    good = []
    for number, entry in enumerate(read_json(path, _Plan, remedy)["cells"], start=1):
        try:
            adapter(CellPlan).validate_python(entry)
            good.append(entry)
        except ValidationError as error:
            log.warning("%s: cell %d is left out (%s); %s", path, number, reason(error), remedy)
    return good


def readable_plan(folder: Path) -> list[CellPlan]:
    """Read the plan of a sweep; a plan that is missing or damaged has no cells."""
    try:
        return read_plan(folder)
    except (OSError, RegbenchError):
        return []
