"""How easily methods are tuned, as a table and as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.rows.tolerance import MIN_VALUES, POINTS, Sensitivity, sensitivities
from regbench.reports.tables.table import Table, entries, number_columns, text_columns

SUFFIX = {"log": "", "linear": " (linear)", "logit": " (odds)"}
"""Ending of a hyperparameter's name, by its scale."""


def sensitivity(summary: Summary) -> tuple[Table, pd.DataFrame] | None:
    """Set how far each hyperparameter may be off before it costs a point; None where no two values of one were tried.

    Returns:
        The table, and the same as numbers: columns label and the settings that vary, hyperparameter, scale, balances,
        chosen, what `Tolerance` has, values (how many), configurations, epochs, best_percent.
    """
    found = sensitivities(summary)
    if not found:
        return None
    body, lines = [], []
    for one in found:
        name = one.key.removeprefix("method.") + SUFFIX[one.searched.scale]
        texts = [one.row.label, *one.row.settings.values(), name, f"{one.chosen:.3g}", *ends_text(one), width_text(one)]
        body.append(entries(*texts, str(len(one.envelope)), str(one.epochs), f"{one.best:.2f}"))
        lines.append(_numbers(one))
    columns = [*text_columns("method"), *number_columns(*found[0].row.settings), *text_columns("hyperparameter")]
    columns += number_columns("chosen", "from", "to", "width (decades)", "values", "epochs")
    columns += number_columns(f"best {summary.selection_title} (%)")
    table = Table("sensitivity", "How easy to tune?", columns, body, _notes(summary, found))
    return table, pd.DataFrame(lines)


def _numbers(one: Sensitivity) -> dict[str, object]:
    """Return the line of the CSV file."""
    return {
        "label": one.row.label,
        **one.row.settings,
        "hyperparameter": one.key,
        **vars(one.searched),
        "chosen": one.chosen,
        **({} if one.tolerance is None else vars(one.tolerance)),
        "values": len(one.envelope),
        "configurations": len(one.points),
        "epochs": one.epochs,
        "best_percent": one.best,
    }


def _notes(summary: Summary, found: Sequence[Sensitivity]) -> list[str]:
    notes = [
        f"Between which values {summary.selection_title} on the {summary.selection_split} split stays within "
        f"{POINTS:g} percentage point of the method's best, and how wide that is: 1 decade is a factor of 10. The "
        "wider, the easier to tune. Between two values that were tried, the line between them says where it ends.",
        "≤ or ≥ before an end: the range reaches the smallest or largest value that was tried. ≥ before a width: it "
        "may be wider, for that reason or because values were tried with unequal sets of the other hyperparameters, as "
        f"in a search. {DASH}: fewer than {MIN_VALUES} values.",
        "The accuracy at a value is the best over the other hyperparameters that were tried, and is taken to fall off "
        "on both sides of the best. Compared are trainings of equal length: of a search those of the length that most "
        "configurations were trained for, which the column of the epochs shows.",
    ]
    scales = {one.searched.scale for one in found}
    if "logit" in scales:
        notes.append("Odds: of a weight λ beside a weight 1 − λ the decades are those of λ/(1 − λ).")
    if "linear" in scales:
        notes.append("Linear: this width is in the hyperparameter's own unit.")
    return notes


def ends_text(one: Sensitivity) -> tuple[str, str]:
    """Write the ends of the range, with a sign where it may go on."""
    tolerance = one.tolerance
    if tolerance is None:
        return DASH, DASH
    low, high = f"{tolerance.low:.3g}", f"{tolerance.high:.3g}"
    return "≤ " * tolerance.low_open + low, "≥ " * tolerance.high_open + high


def width_text(one: Sensitivity) -> str:
    """Write the width of the range, with a sign where it is a lower bound."""
    return DASH if one.tolerance is None else "≥ " * one.tolerance.lower_bound + f"{one.tolerance.width:.2f}"


def widths(found: Sequence[Sensitivity], row: Row) -> dict[str, object]:
    """Return what the leaderboard's CSV file says of a row: widths in decades, and whether each is a lower bound."""
    entry: dict[str, object] = {}
    for name in ("weight", "base_lr"):
        entry[f"{name}_width_decades"] = entry[f"{name}_width_is_lower_bound"] = None
        for one in found:
            # A linear scale has no decades.
            if one.row is row and one.role == name and one.searched.scale != "linear":
                entry[f"{name}_width_decades"] = one.tolerance and one.tolerance.width
                entry[f"{name}_width_is_lower_bound"] = one.tolerance and one.tolerance.lower_bound
                break
    return entry
