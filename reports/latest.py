"""The last report of a folder, which is given again while nothing has changed that it was made of.

Drawing takes most of a report's time: the second `make benchmark` is ten seconds shorter for this.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regbench.errors import RegbenchError
from regbench.files import file_sha256, read_json, write_text

if TYPE_CHECKING:
    from regbench.reports.find.records import Records

LATEST = "report.json"


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        page: The HTML page.
        leaderboard: The leaderboards with their notes as text for a terminal of 120 columns.
        files: All files written, the page included.
        skipped: Records, evaluations and choices that do not fit and are not in the report, each "path: reason".
        warning: One line about what was skipped and the command that tells more; empty if nothing was.
    """

    page: Path
    leaderboard: str
    files: tuple[Path, ...]
    skipped: tuple[str, ...]
    warning: str


@dataclass(frozen=True)
class _Latest:
    """The content of `report.json`.

    Attributes:
        state: Digest that `state_of` gave.
        files: Size and time of each file of the report, by name.
        leaderboard: Text as in `Report`, like the next two.
    """

    state: str
    files: dict[str, list[int]]
    leaderboard: str
    skipped: list[str]
    warning: str


def state_of(found: Records, former: Records | None, whole_paper: bool, cost: Path | None) -> str:
    """Return a digest of all that a report is made of: what was read, the options and the code."""
    parts: list[object] = [whole_paper, None if cost is None else file_sha256(cost), sorted(_code())]
    for each in (found, former) if former else (found,):
        for records in (each.records, each.short):
            # The digest of a record does not cover scores of later evaluations, which are added to it when it is read.
            parts.append([(str(record.path), record.sha256, record.scores) for record in records])
        parts.append([(str(path), choice.sha256) for path, choice in each.choices.items()])
        parts.append((each.skipped, each.missing, each.folders))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _code() -> Iterator[tuple[str, list[int]]]:
    for folder, _, names in os.walk(Path(__file__).parents[1], followlinks=True):
        for name in names:
            if not name.endswith(".pyc"):  # which Python writes when it likes
                yield f"{folder}/{name}", _size_and_time(Path(folder, name))


def _size_and_time(path: Path) -> list[int]:
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def latest(out: Path, state: str) -> Report | None:
    """Return the report that lies in `out` if it is made of what `state` says and nobody has touched it."""
    try:
        last = read_json(out / LATEST, _Latest, "it is made again")
        if last.state != state or any(_size_and_time(out / name) != seen for name, seen in last.files.items()):
            return None
    except (OSError, RegbenchError):  # there is none yet, or a file of it is gone
        return None
    files = tuple(out / name for name in (*last.files, LATEST))
    return Report(out / "index.html", last.leaderboard, files, tuple(last.skipped), last.warning)


def keep(report: Report, state: str) -> None:
    """Write down what a report was made of, once its files are written."""
    files = {path.name: _size_and_time(path) for path in report.files if path.name != LATEST}
    last = _Latest(state, files, report.leaderboard, list(report.skipped), report.warning)
    write_text(report.page.with_name(LATEST), json.dumps(dataclasses.asdict(last), indent=1))
