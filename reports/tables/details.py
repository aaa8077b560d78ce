"""The tables beside the leaderboard: every score, significance, cost."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd

from regbench.reports.rows.notes import UNITS, best_notes
from regbench.reports.rows.same_loss import same_loss_notes
from regbench.reports.rows.significance import MIN_PAIRS
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.hyperparameters import hyperparameters_table
from regbench.reports.tables.kept_factors import factors_tables
from regbench.reports.tables.leaderboard import ENERGY, LOSS_MEMORY, accuracies, leaderboard
from regbench.reports.tables.paper import published_columns, published_notes
from regbench.reports.tables.table import (
    Column,
    Line,
    Table,
    cost_column,
    entries,
    mean_pm,
    p_value,
    table_of_rows,
)
from regbench.reports.tables.units import energies, largest
from regbench.text import counted

# A table of p-values has a column for each row; more of them are in the CSV file only.
SIGNIFICANCE_ROWS = 40


def accuracy_table(summary: Summary) -> Table:
    """Make the table of every score of the test split except probes of factors, and of the scores
    of the tuning split that selection saw.
    """
    # Probes of factors have a table of their own.
    named = [name for name, score in summary.scores.items() if score.probe is None]
    tested = [name for name in named if summary.measured(name)]
    tuned = [name for name in named if summary.measured(name, "tuning")]
    columns = [*accuracies(summary, tested, ", test"), *published_columns(summary, tested)]
    # ± of two or three searches says little about the mean; Student's interval shows how little is
    # known.
    if any(row.repeated for row in summary.rows):
        for name in summary.leading:
            head = f"95 % interval, {summary.scores[name].head}"
            columns.append((Column(head), partial(_interval, name)))
    for name in tuned:
        columns.append((Column(f"{summary.scores[name].head}, tuning"), partial(_tuned, name)))
    notes = ["The tuning split chooses; it is no result.", *best_notes(summary, tested)]
    if any(summary.scores[name].higher_is_better is None for name in (*tested, *tuned)):
        notes.append("Measures without labels have no best.")
    notes += [*published_notes(summary, tested), *same_loss_notes(summary)]
    return table_of_rows(summary, "accuracy", "Accuracy", columns, notes)


def _interval(name: str, row: Row) -> str:
    score = row.score(name) if row.repeated else None
    return DASH if score is None or score.n < 2 else "{:.2f} to {:.2f}".format(*score.interval())


def _tuned(name: str, row: Row) -> str:
    return mean_pm(row.score(name, "tuning"), 2)


def significance_frame(summary: Summary) -> pd.DataFrame:
    """Compare every pair of trained rows by Tukey's test with seeds as blocks.

    Returns:
        Columns score, one, other, pairs (seeds that both have), difference (mean of one minus
        other, over these), p (of all pairs together; missing with fewer than three seeds).
    """
    out: list[dict[str, Any]] = []
    for name in reversed(summary.leading):
        places = [i for i, row in enumerate(summary.methods) if row.by_unit(name)]
        # Each call compares a row with all below it: hundreds of rows have tens of thousands of
        # pairs.
        while len(places) > 1:
            one = places.pop(0)
            for other, found in zip(places, summary.tukey(name).compare(one, places), strict=True):
                pair = {"one": summary.rows[one].name, "other": summary.rows[other].name}
                out.append({"score": name, **pair, **vars(found)})
    return pd.DataFrame(out, columns=["score", "one", "other", "pairs", "difference", "p"])


def significance_table(summary: Summary) -> Table:
    """Make the table of p-values of all pairs of rows by the score that orders the leaderboard."""
    name = summary.headline or ""
    scored = [i for i, row in enumerate(summary.methods) if row.score(name)]
    # Most rows of a tuning have the one seed that they were tuned with.
    rows = [i for i in scored if len(summary.rows[i].by_unit(name)) >= MIN_PAIRS]
    shown = rows[:SIGNIFICANCE_ROWS]
    lines = []
    for place, i in enumerate(shown, start=1):
        texts = [p_value(found.p) for found in summary.tukey(name).compare(i, shown)]
        texts[place - 1] = DASH  # the row itself
        lines.append(Line(entries(f"{place}. {summary.rows[i].name}", *texts)))
    plural = UNITS[summary.unit]
    notes = [
        "p: the chance that of rows that are all equally good any two differ by so much. Tukey's "
        f"test over all rows with {MIN_PAIRS} {plural} or more, {plural} as blocks, own variance "
        "added.",
        f"A dash: too few {plural} to say (fewer than {MIN_PAIRS} shared).",
    ]
    if left_out := len(scored) - len(rows):
        notes.append(f"Left out: {counted(left_out, 'row')} with fewer than {MIN_PAIRS} {plural}.")
    if len(rows) > len(shown):
        notes.append(f"The first {len(shown)} of {len(rows)} rows; all are in the CSV file.")
    notes += same_loss_notes(summary)
    title = "Significance of differences" + (f", {summary.scores[name].head}" if name else "")
    places = map(str, range(1, len(shown) + 1))
    columns = [Column("", numeric=False), *map(Column, places)]
    numbers = significance_frame(summary)
    return Table("significance", title, columns, lines, notes, numbers=numbers)


def _ratio(above: str, below: str, factor: float, decimals: int, row: Row) -> str:
    a, b = row.cost(above), row.cost(below)
    return f"{factor * a.mean / b.mean:,.{decimals}f}" if a and b and b.mean > 0 else DASH


def cost_table(summary: Summary) -> Table:
    """Make the table of time, memory and energy."""
    rows = summary.rows
    columns = [cost_column(rows, "train_s", "training")]
    columns.append(cost_column(rows, "evaluate_s", "evaluation"))
    # Few sweeps evaluate while they train: a column of dashes would tell the others nothing.
    if largest(rows, "monitor_s"):
        columns.append(cost_column(rows, "monitor_s", "evaluation while training"))
    columns += [
        cost_column(rows, "img_per_s", "images/s"),
        cost_column(rows, "step_ms", "step"),
        cost_column(rows, "loss_ms", "loss"),
        (Column("loss / step (%)"), partial(_ratio, "loss_ms", "step_ms", 100, 1)),
        cost_column(rows, "peak_memory_bytes", "peak memory"),
        (Column("measured as", numeric=False), _memory_kinds),
    ]
    notes = ["Times of a step are medians; loss is forward and backward of the regularizer alone."]
    if largest(rows, "loss_extra_bytes"):
        columns.append(cost_column(rows, "loss_extra_bytes", "loss memory"))
        notes.append(LOSS_MEMORY)
    for kind, cost in energies(rows).items():
        columns.append(cost_column(rows, cost, f"{kind.upper()} energy"))
        power = partial(_ratio, cost, "train_s", 1, 0)  # joules over seconds are watts
        columns.append((Column(f"{kind.upper()} mean power (W)"), power))
    if energies(rows):
        notes.append(f"{ENERGY} Power is over the training time.")
    title = "Time, memory and energy"
    return table_of_rows(summary, "cost", title, columns, notes, summary.methods)


def _memory_kinds(row: Row) -> str:
    kinds = {record.cost.peak_memory_kind for record in row.records}
    return ", ".join(sorted(filter(None, kinds))) or DASH


def tables_of(summary: Summary) -> dict[str, Table]:
    """Make all tables of a task, by their slugs."""
    made = [leaderboard(summary), accuracy_table(summary), cost_table(summary)]
    made += [significance_table(summary), hyperparameters_table(summary)]
    return {table.slug: table for table in [*made, *factors_tables(summary)]}
