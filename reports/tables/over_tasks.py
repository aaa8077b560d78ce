"""Methods over the tasks of a report, as a table and as numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import asdict

import pandas as pd

from regbench.reports.rows.tasks import Comparison
from regbench.reports.tables.table import Entry, Table, entries, number_columns, text_columns

WITHIN_POINTS = (1, 3)
"""The table says in how many tasks a method is within so many percentage points of the best."""


def over_tasks_table(found: Comparison) -> Table:
    """Set the mean ranks, and how often a method is near the best.

    Bold is not told from it, where a test was made.
    """
    columns = [*text_columns("method"), *number_columns("mean rank")]
    if found.tested:
        columns += number_columns("95 % interval")
    for points in WITHIN_POINTS:
        columns += number_columns(
            f"within {points} point{'s' * (points > 1)} of the best (% of tasks)"
        )
    columns += number_columns("farthest below the best")
    body = []
    for one in found.standings:
        cells: list[str | Entry] = [one.label, f"{one.mean_rank:.2f}"]
        if found.tested:
            why = (
                "not told from the best mean rank"
                if one.alike
                else "significantly worse than the best mean rank"
            )
            cells[1:] = [
                Entry(f"{one.mean_rank:.2f}", bool(one.alike), why),
                f"[{one.low:.1f}, {one.high:.1f}]",
            ]
        for points in WITHIN_POINTS:
            # Shortfalls ascend, so that the place of a limit among them counts those within it.
            cells.append(f"{100 * bisect_right(one.shortfalls, points) / len(found.tasks):.0f}")
        body.append(entries(*cells, f"{one.shortfalls[-1]:.2f}"))
    notes = [
        f"Over {len(found.tasks)} tasks: {'; '.join(found.tasks)}. Rank 1 is the best. A method's "
        "score in a task is its mean over the settings and seeds that all methods have there.",
        _test_note(found),
    ]
    if found.left_out:
        notes.append(f"Left out, for not every task has them: {', '.join(found.left_out)}.")
    return Table("over_tasks", "All tasks together", columns, body, notes)


def _test_note(found: Comparison) -> str:
    if not found.tested:
        return (
            "Fewer than five tasks are too few for a test over tasks, so there is none, and no "
            "interval: more seeds of the same tasks would not change that."
        )
    p = "p unknown" if math.isnan(found.p) else f"p = {found.p:.2g}"
    return (
        f"All methods equally good: {p} (Friedman's test over tasks). Two mean ranks differ if "
        f"they are more than {found.critical_difference:.2f} apart (Nemenyi's test, 5 %); bold: "
        "not told from the best. In brackets the 95 % interval of a bootstrap over tasks."
    )


def over_tasks_frame(found: Comparison) -> pd.DataFrame:
    """Make the same as numbers; `shortfalls` are points below the best in each task, ascending."""
    frame = pd.DataFrame([asdict(one) for one in found.standings])
    frame["shortfalls"] = [" ".join(map("{:g}".format, one.shortfalls)) for one in found.standings]
    return frame.assign(
        tasks=len(found.tasks), friedman_p=found.p, critical_difference=found.critical_difference
    )
