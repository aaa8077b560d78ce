"""The shipped rows of a sweep, shown before its first cell runs, beside what this machine finds."""

from __future__ import annotations

import sys
from pathlib import Path

from tabulate import tabulate

from regbench.benchmark.rundir.record import Record, read_record
from regbench.reports.bundle.bundle import read_bundle
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.notes import UNITS
from regbench.reports.rows.summary import Configuration
from regbench.reports.tables.table import mean_pm
from regbench.sweeps.status import CellStatus, failure

SHIPPED = {"quickstart": Path(__file__).with_name("scenes.tar.xz")}
"""Bundle of longer trainings that comes with regbench, by sweep."""

_SCORES = {"linear_top1": "linear top-1 (%)", "knn_top1": "kNN top-1 (%)"}


class ExpectedTable:
    """A table of the shipped rows with a column for this machine, which fills as cells end."""

    def __init__(self, bundle: Path) -> None:
        """Read the rows of a bundle."""
        done = [record for record in read_bundle(bundle).records if record.status == "done"]
        self._hardware = ", ".join(sorted({record.environment["hardware"] for record in done}))
        self._epochs = max(record.cell["epochs"] for record in done)
        (task,) = summarize(done)
        self._shipped, self._units = task.rows, UNITS[task.unit]
        self._here: dict[str, list[Record]] = {}
        self._failed: list[str] = []
        self._lines_below = 0

    def text(self) -> str:
        """Return the table, with a line on what it holds."""
        rows = []
        for shipped in self._shipped:
            here = Configuration(tuple(self._here.get(shipped.label, ())))
            cells = [shipped.label]
            for score in _SCORES:
                cells += [_cell(shipped, score), _cell(here, score)]
            rows.append(cells)
        headers = ["method"]
        for title in _SCORES.values():
            headers += [f"{title}\nshipped", "\nhere"]
        found = [row.score(name) for row in self._shipped for name in _SCORES]
        units = max(score.n for score in found if score is not None)
        note = (
            f"shipped: after {self._epochs} epochs, mean ± standard deviation of {units} "
            f"{self._units} on {self._hardware}; here: this machine, after the epochs of this sweep"
        )
        return "\n".join([tabulate(rows, headers, disable_numparse=True), note, *self._failed])

    def announce(self, status: CellStatus, finished: int, count: int) -> None:
        """Print the table with a cell that has ended, over the lines of the one before.

        Args:
            status: How the cell ended.
            finished: Number of cells that have ended.
            count: Number of cells.
        """
        if failed := failure(status):
            self._failed.append(f"{status.label} seed {status.seed} ({status.cell_id}) {failed}")
        elif (record := read_record(status.directory)) is not None:
            self._here.setdefault(record.label, []).append(record)
        lines = [*self.text().splitlines(), f"{finished} of {count} cells have ended"]
        # Move up to the first line of the previous table, and clear from there.
        above = f"\x1b[{self._lines_below}F\x1b[J" if self._lines_below else "\n"
        sys.stderr.write(above + "\n".join(lines) + "\n")
        self._lines_below = len(lines)


def _cell(row: Configuration, score: str) -> str:
    """Write the mean of a score over seeds with its standard deviation; "" for a row without
    cells.
    """
    found = row.score(score)
    if found is None:
        return "diverged" if row.records else ""
    return mean_pm(found, 2)
