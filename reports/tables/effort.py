"""The table of what trials of a tuning bring each method."""

from __future__ import annotations

from functools import partial

from regbench.reports.rows.expected_best import Effort, efforts, has_halves, luck
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.table import Column, Filled, Table, table_of_rows


def effort_table(summary: Summary) -> Table | None:
    """Set the expected best of 1, 2, 4, ... trials of each row; None where no row has two."""
    found = {one.row: one for one in efforts(summary)}
    if not found:
        return None
    most = max(len(one.expected) for one in found.values())
    columns: list[Filled] = [
        (Column("epochs"), lambda row: str(found[row].epochs) if row in found else DASH),
        (Column("trials"), lambda row: str(len(found[row].expected)) if row in found else DASH),
    ]
    k = 1
    while k < most:
        columns.append((Column(f"best of {k} (%)"), partial(_best_of, found, k)))
        # Most is gained by the first trials, so each column stands for twice the budget of the one
        # before.
        k *= 2
    columns.append((Column("of all (%)"), partial(_best_of, found, None)))
    notes = [
        f"The best {summary.selection_title} on the {summary.selection_split} split that so many "
        "trials of a method are expected to hold: the mean over all sets of so many (Dodge et al. "
        "2019). A method that needs few trials is at its last number early.",
        "Trials are trainings of equal length; of a search those of the length that most were "
        "trained for. They count as drawn at random, though later ones of a search look around the "
        "best. One that diverged counts 0.",
    ]
    optimistic = "The best is optimistic, as the same images and seeds choose and score it."
    if has_halves(summary):
        optimistic = (
            "Every second image of the split chooses the best and the others score it, and the "
            "other way round. The same seeds choose and score it, and the learning rate of a probe "
            "is chosen on all of these images."
        )
    # Optimism is known only where final runs with seeds of their own were scored on the split that
    # chose.
    optimism = luck(summary)
    if optimism is not None:
        direction = "less" if optimism >= 0 else "more"
        notes.append(
            f"{optimistic} On the same split, the chosen configurations score {abs(optimism):.2f} "
            f"points {direction} with other seeds (mean over the rows)."
        )
    else:
        notes.append(optimistic)
    return table_of_rows(summary, "effort", "Score against tuning budget", columns, notes)


def _best_of(found: dict[Row, Effort], k: int | None, row: Row) -> str:
    """Write the expected best of k trials, or of all."""
    expected = found[row].expected if row in found else ()
    if not expected or (k or 1) > len(expected):
        return DASH
    return f"{expected[-1 if k is None else k - 1]:.2f}"
