"""Reports: from the records of finished runs to tables, figures and one self-contained page.

Reads what runs leave on disk. Heavy imports (pandas, matplotlib) wait until a report is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regbench.errors import RegbenchError
from regbench.files import Name, read_json, write_atomically, write_bytes, write_text

if TYPE_CHECKING:
    from regbench.reports.find.records import Records

__all__ = ["WrittenReport", "write_records", "write_report"]


@dataclass(frozen=True)
class WrittenReport:
    """A report that was written.

    Attributes:
        page: The HTML page.
        leaderboard: The leaderboards with their notes as text for a terminal of 120 columns.
        files: All files written, the page included.
        skipped: Records, evaluations and choices that do not fit and are not in the report, each
            "path: reason".
        warning: One line about what was skipped and the command that tells more; empty if nothing
            was.
    """

    page: Path
    leaderboard: str
    files: tuple[Path, ...]
    skipped: tuple[str, ...]
    warning: str


def write_report(runs: Path | Sequence[Path], out: Path) -> WrittenReport:
    """Write the report of all finished runs under some folders. Safe at any moment of a sweep.

    What is damaged or was changed is left out, see `find.judging.judge`. Cells of the same task
    (data set, backbone, evaluation) share a leaderboard, whatever their sweeps; those that the test
    split chose have one of their own. docs/reports.md lists the files.

    Args:
        runs: Folders of sweeps, sweeps or run directories.
        out: The folder to write to; made if it does not exist. Files of the same names are
            replaced.

    Raises:
        RegbenchError: If there is no readable record, or `out` cannot be written.
    """
    from regbench.reports.find.records import read_records

    return write_records(read_records(runs), out)


def write_records(found: Records, out: Path) -> WrittenReport:
    """Write the report of records that were read; see `write_report`."""
    # Imported after a missing folder was refused: matplotlib and pandas take a second to import.
    from regbench.reports.contents import report_contents

    contents, text = report_contents(found)
    try:
        for name, content in contents.items():
            # The tidy files are large, so they are written as they are made.
            if callable(content):
                write_atomically(out / name, content)
            elif isinstance(content, str):
                write_text(out / name, content)
            else:
                write_bytes(out / name, content)
        _remove_earlier(out, list(contents))
    except OSError as error:
        raise RegbenchError(
            f"cannot write to {out}: {error.strerror}; give another folder"
        ) from error
    files = tuple(out / name for name in contents)
    return WrittenReport(
        out / "index.html", text, files, tuple(map(str, found.skipped)), found.warning
    )


def _remove_earlier(out: Path, names: list[str]) -> None:
    """Remove files that an earlier report wrote here and this one does not, such as those of a task
    that has another name now.
    """
    listed = out / ".files.json"
    earlier = read_json(listed, list[Name], "remove it") if listed.exists() else []
    for name in set(earlier) - set(names):
        (out / name).unlink(missing_ok=True)
    if earlier != names:
        write_text(listed, json.dumps(names))
