"""Ours beside what is published, for the cells of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regbench.benchmark.rundir.record import Record
from regbench.reports.rows.deviations import stat
from regbench.reports.rows.summary import DASH
from regbench.reports.tables.table import difference, spread

if TYPE_CHECKING:
    from regbench.benchmark.settings.recipes import PublishedNumber

MARK = "*"


def reproduced(
    numbers: Sequence[PublishedNumber], records: Sequence[Record]
) -> list[dict[str, str]]:
    """Set each published number beside ours.

    Args:
        numbers: Numbers of one recipe.
        records: Records of its finished cells.

    Returns:
        A row of text for each number, by column. Numbers that the test set chose carry `MARK`.
    """
    rows = []
    for number in numbers:
        of_number = [record for record in records if number.is_of(record.cell)]
        rows.append(_row(number, of_number))
    return rows


def _row(number: PublishedNumber, records: Sequence[Record]) -> dict[str, str]:
    finished = [record for record in records if record.status == "done"]
    ours = stat(record.score(number.score, "test") for record in finished)
    published, apart = DASH, None
    if number.number is not None:
        deviation = "" if number.deviation is None else f" ± {number.deviation:.2f}"
        published = f"{number.number:.2f}{deviation}{MARK * (number.on_test == 'yes')}"
        apart = None if ours is None else ours.mean - number.number
    # A recipe that diverged is an answer, and one that nobody has run is none.
    missing = "diverged" if records and not finished else "not run"
    return {
        "data set": number.dataset,
        "method": number.method,
        "setting": number.setting,
        "score": number.score,
        "ours": missing if ours is None else f"{spread(ours, 2)} (n = {ours.n})",
        "published": published,
        "difference": difference(apart),
        "the published number": number.what,
        "source": number.source,
    }
