"""Reports: from the records of finished runs to tables, figures and one self-contained page.

Reads what runs leave on disk. Heavy imports (pandas, matplotlib) wait until a report is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regbench.errors import RegbenchError
from regbench.files import write_atomically, write_bytes
from regbench.reports.garbage import without_garbage_collection
from regbench.reports.latest import LATEST, Report, keep, latest, state_of

if TYPE_CHECKING:
    from regbench.reports.contents import ReportFiles

__all__ = ["Report", "write_report"]


def write_report(
    runs: Path | Sequence[Path],
    out: Path,
    *,
    whole_paper: bool = False,
    cost: Path | None = None,
    against: Path | Sequence[Path] = (),
) -> Report:
    """Write the report of all finished runs under some folders. Safe at any moment of a sweep.

    What is damaged or was changed is left out, see `find.judging.judge`. Cells of the same task (data set, backbone,
    evaluation) share a leaderboard, whatever their sweeps; those that the test split chose have one of their own.
    docs/reports.md lists the files. While nothing has changed that a report is made of, it is not made again.

    Args:
        runs: Folders of sweeps, sweeps or run directories.
        out: The folder to write to; made if it does not exist. Files of the same names are replaced.
        whole_paper: Whether to write also those tables of the paper in which no number of ours has a place.
        cost: The cost.csv of `regbench cost`, whose curves the page shows too.
        against: Former runs, likewise; what changed since then is a table (against.{md,tex,csv}).

    Raises:
        RegbenchError: If there is no readable record, `cost` is no such file, nothing of `against` is of a task of
            `runs`, or `out` cannot be written.
    """
    from regbench.reports.find.records import read_records

    with without_garbage_collection():
        costs = []
        if cost is not None:
            from regbench.reports.page.cost_curves import read_cost  # imports matplotlib

            costs = read_cost(cost)
        found = read_records(runs)
        former = read_records(against) if against else None
        state = state_of(found, former, whole_paper, cost)
        report = latest(out, state)
        if report is None:
            from regbench.reports.contents import report_contents

            contents, text = report_contents(found, former, costs, whole_paper=whole_paper)
            _write(contents, out)
            files = tuple(out / name for name in (*contents, LATEST))
            report = Report(out / "index.html", text, files, tuple(map(str, found.skipped)), found.warning)
            keep(report, state)
        return report


def _write(contents: ReportFiles, out: Path) -> None:
    try:
        for name, content in contents.items():
            if callable(content):
                write_atomically(out / name, content)
            else:
                write_bytes(out / name, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise RegbenchError(f"cannot write to {out}: {error.strerror}; give another folder") from error
