"""The shipped rows of a sweep, shown before its first cell runs, beside what this machine finds."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from regbench.benchmark.rundir.record import Record, read_record
from regbench.reports.bundle.bundle import read_bundle
from regbench.sweeps.status import FINISHED, CellStatus

SHIPPED = {"quickstart": Path(__file__).with_name("scenes.zip")}
"""Sweeps whose rows are in a bundle that comes with regbench."""

_SCORES = {"linear_top1": "linear top-1 (%)", "knn_top1": "kNN top-1 (%)"}


class ExpectedTable:
    """A table of the shipped rows with a column for this machine, which fills as cells end."""

    def __init__(self, bundle: Path) -> None:
        """Read the rows of a bundle."""
        done = [record for record in read_bundle(bundle).records if record.status == "done"]
        self._hardware = ", ".join(sorted({record.environment["hardware"] for record in done}))
        rows: dict[str, list[Record]] = {}
        for record in done:
            rows.setdefault(record.label, []).append(record)
        # Methods come before references, the best of each first.
        self._shipped = dict(sorted(rows.items(), key=lambda row: (row[1][0].is_reference, -_top1(row[1]))))
        self._here: dict[str, list[Record]] = {}
        self._failed: list[str] = []
        self._lines_below = 0

    def text(self) -> str:
        """Return the table, with a line on what it holds."""
        rows = []
        for label, shipped in self._shipped.items():
            cells = [label]
            for score in _SCORES:
                cells += [_mean(shipped, score), _mean(self._here.get(label, []), score)]
            rows.append(cells)
        headers = ["method"]
        for title in _SCORES.values():
            headers += [f"{title}\nshipped", "\nhere"]
        seeds = max(len(records) for records in self._shipped.values())
        note = f"shipped: mean ± standard deviation of {seeds} seeds on {self._hardware}; here: this machine"
        return "\n".join([tabulate(rows, headers, disable_numparse=True), note, *self._failed])

    def announce(self, status: CellStatus, finished: int, count: int) -> None:
        """Print the table with a cell that has ended, in place of the one before where that is the last thing printed.

        Args:
            status: How the cell ended.
            finished: Number of cells that have ended.
            count: Number of cells.
        """
        record = read_record(status.directory) if status.state in FINISHED else None
        if record is not None:
            self._here.setdefault(record.label, []).append(record)
        else:
            self._failed.append(f"{status.label} seed {status.seed} ({status.cell_id}) FAILED: {status.detail}")
        lines = [*self.text().splitlines(), f"{finished} of {count} cells have ended"]
        # Up to the first line of the table before, and clear from there.
        above = f"\x1b[{self._lines_below}F\x1b[J" if self._lines_below else "\n"
        sys.stderr.write(above + "\n".join(lines) + "\n")
        self._lines_below = len(lines)


def _top1(records: Sequence[Record]) -> float:
    return statistics.fmean(record.score("linear_top1", "test") or 0.0 for record in records)


def _mean(records: Sequence[Record], score: str) -> str:
    """Format the mean over seeds with its standard deviation."""
    known = []
    for record in records:
        value = record.score(score, "test")
        if value is not None:
            known.append(value)
    if not known:
        return "diverged" if records else ""
    mean = f"{statistics.fmean(known):.2f}"
    return f"{mean} ± {statistics.stdev(known):.2f}" if len(known) > 1 else mean
