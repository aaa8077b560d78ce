"""Methods over the tasks of a report, as a table and as numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import asdict

import pandas as pd

from regbench.reports.rows.tasks import Comparison
from regbench.reports.tables.table import Column, Entry, Table

WITHIN_POINTS = (1, 3)
"""The table says in how many blocks a method is within so many percentage points of the best."""


def over_tasks_table(found: Comparison) -> Table:
    """Set the mean ranks with their intervals, and how often a method is near the best; bold is not told from it."""
    body = []
    for one in found.standings:
        why = "not told from the best mean rank" if one.alike else "significantly worse than the best mean rank"
        texts = [f"[{one.low:.1f}, {one.high:.1f}]"]
        texts += [f"{100 * bisect_right(one.shortfalls, d) / found.blocks:.0f}" for d in WITHIN_POINTS]
        texts.append(f"{one.shortfalls[-1]:.2f}")
        body.append([Entry(one.label), Entry(f"{one.mean_rank:.2f}", one.alike, why), *map(Entry, texts)])
    told = "p unknown" if math.isnan(found.p) else f"p = {found.p:.2g}"
    notes = [
        f"Over {found.blocks} blocks, each a task with one seed: {'; '.join(found.tasks)}. Rank 1 is the best. In "
        "brackets the 95 % interval of a bootstrap over tasks, and over seeds within them.",
        f"All methods equally good: {told} (Friedman's test). Two mean ranks differ if they are more than "
        f"{found.critical_difference:.2f} apart (Nemenyi's test, 5 %); bold: not told from the best. Seeds are "
        "repeated runs on the same tasks, so this speaks of these tasks and not of others.",
    ]
    if found.left_out:
        notes.append(f"Left out, for not every task has them: {', '.join(found.left_out)}.")
    columns = [Column("method", numeric=False), Column("mean rank"), Column("95 % interval")]
    columns += [Column(f"within {d} point{'s' * (d > 1)} of the best (% of blocks)") for d in WITHIN_POINTS]
    return Table("over_tasks", "All tasks together", [*columns, Column("farthest below the best")], body, notes)


def over_tasks_frame(found: Comparison) -> pd.DataFrame:
    """Make the same as numbers; `shortfalls` are points below the best in each block, ascending."""
    frame = pd.DataFrame([asdict(one) for one in found.standings])
    frame["shortfalls"] = [" ".join(f"{value:g}" for value in one.shortfalls) for one in found.standings]
    return frame.assign(blocks=found.blocks, friedman_p=found.p, critical_difference=found.critical_difference)
