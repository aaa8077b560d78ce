"""Methods over the tasks of a report, as a table and as numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import asdict

import pandas as pd

from regbench.reports.rows.tasks import Comparison
from regbench.reports.tables.table import Entry, Table, entries, number_columns, text_columns

WITHIN_POINTS = (1, 3)
"""The table says in how many blocks a method is within so many percentage points of the best."""


def over_tasks_table(found: Comparison) -> Table:
    """Set the mean ranks with their intervals, and how often a method is near the best; bold is not told from it."""
    body = []
    for one in found.standings:
        why = "not told from the best mean rank" if one.alike else "significantly worse than the best mean rank"
        rank = Entry(f"{one.mean_rank:.2f}", one.alike, why)
        near = [f"{100 * bisect_right(one.shortfalls, points) / found.blocks:.0f}" for points in WITHIN_POINTS]
        body.append(entries(one.label, rank, f"[{one.low:.1f}, {one.high:.1f}]", *near, f"{one.shortfalls[-1]:.2f}"))
    p = "p unknown" if math.isnan(found.p) else f"p = {found.p:.2g}"
    notes = [
        f"Over {found.blocks} blocks, each a task with one seed: {'; '.join(found.tasks)}. Rank 1 is the best. In "
        "brackets the 95 % interval of a bootstrap over tasks, and over seeds within them.",
        f"All methods equally good: {p} (Friedman's test). Two mean ranks differ if they are more than "
        f"{found.critical_difference:.2f} apart (Nemenyi's test, 5 %); bold: not told from the best. Seeds are "
        "repeated runs on the same tasks, so this speaks of these tasks and not of others.",
    ]
    if found.left_out:
        notes.append(f"Left out, for not every task has them: {', '.join(found.left_out)}.")
    columns = [*text_columns("method"), *number_columns("mean rank", "95 % interval")]
    for points in WITHIN_POINTS:
        columns += number_columns(f"within {points} point{'s' * (points > 1)} of the best (% of blocks)")
    columns += number_columns("farthest below the best")
    return Table("over_tasks", "All tasks together", columns, body, notes)


def over_tasks_frame(found: Comparison) -> pd.DataFrame:
    """Make the same as numbers; `shortfalls` are points below the best in each block, ascending."""
    frame = pd.DataFrame([asdict(one) for one in found.standings])
    frame["shortfalls"] = [" ".join(map("{:g}".format, one.shortfalls)) for one in found.standings]
    return frame.assign(blocks=found.blocks, friedman_p=found.p, critical_difference=found.critical_difference)
