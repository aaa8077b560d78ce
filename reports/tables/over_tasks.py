"""The table of methods over the tasks of a report."""

from __future__ import annotations

from bisect import bisect_right

import pandas as pd

from regbench.reports.rows.tasks import Comparison
from regbench.reports.tables.table import Column, Line, Table, entries

WITHIN_POINTS = (1, 3)
"""The table says in how many tasks a method is within this many percentage points of the best."""


def over_tasks_table(found: Comparison) -> Table:
    """Make the table of mean ranks, and of how often a method is near the best.

    In its numbers, `shortfalls` are points below the best in each task, ascending.
    """
    columns = [Column("method", numeric=False), Column("mean rank")]
    for points in WITHIN_POINTS:
        head = f"within {points} point{'s' * (points > 1)} of the best (% of tasks)"
        columns.append(Column(head))
    columns.append(Column("farthest below the best"))
    body, numbers = [], []
    for one in found.standings:
        texts = [one.label, f"{one.mean_rank:.2f}"]
        for points in WITHIN_POINTS:
            # Shortfalls ascend, so that the place of a limit among them counts those within it.
            texts.append(f"{100 * bisect_right(one.shortfalls, points) / len(found.tasks):.0f}")
        body.append(Line(entries(*texts, f"{one.shortfalls[-1]:.2f}")))
        shortfalls = " ".join(map("{:g}".format, one.shortfalls))
        numbers.append((one.label, one.mean_rank, shortfalls, len(found.tasks)))
    number = len(found.tasks)
    notes = [
        f"N = {number} tasks: {'; '.join(found.tasks)}. Rank 1 is the best. A method's score in a "
        "task is its mean over the settings and seeds that all methods have there.",
        f"A mean rank over {number} tasks describes these tasks. It is no test: a difference "
        "between methods on other tasks would take many more of them, and more seeds of the same "
        "tasks do not stand in for them.",
    ]
    if found.left_out:
        notes.append(f"Left out, for not every task has them: {', '.join(found.left_out)}.")
    if found.tasks_left_out:
        listed = "; ".join(found.tasks_left_out)
        notes.append(f"Tasks left out, for sharing too few methods or seeds with these: {listed}.")
    heads = ["label", "mean_rank", "shortfalls", "tasks"]
    frame = pd.DataFrame(numbers, columns=heads)
    return Table("over_tasks", "All tasks together", columns, body, notes, numbers=frame)
