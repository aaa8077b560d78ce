"""The agreement of label-free measures with accuracy, as a table and as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from regbench.reports.rows.indications import (
    MIN_CONFIGURATIONS,
    RANDOM,
    Correlation,
    Indication,
    accuracy_of,
    against_chance,
    best_measure,
    indications,
)
from regbench.reports.rows.significance import LEVEL
from regbench.reports.rows.summary import DASH, Summary
from regbench.reports.tables.table import Table, entries, number_columns, spread, text_columns

_COLUMNS = [
    "measure",
    "better",
    "method",
    "rho",
    "low",
    "high",
    "methods",
    "configurations",
    "points_lost",
]


def indicators(summary: Summary) -> tuple[Table, pd.DataFrame] | None:
    """Set how well each measure without labels orders the configurations by accuracy; None where it
    cannot be said.

    Returns:
        The table, and the same as numbers with a line for each method: columns measure, better,
        method ("within" is the mean over the methods, "between" of all configurations together),
        rho (Spearman's, of the better measure with accuracy), low and high (of its 95 % interval),
        methods, configurations, points_lost (in percent of images).
    """
    found = indications(summary)
    if not found:
        return None
    body, lines = [], []
    for one in found:
        most = max(one.lost_by_method.values(), default=None)
        correlations = correlation_text(one.within), correlation_text(one.between)
        # A mean hides the method that a measure fails, so the largest loss stands beside it.
        lost = spread(one.lost, 2), DASH if most is None else f"{most:.2f}"
        body.append(entries(one.measure.title, one.measure.better, *correlations, *lost))
        lines += _lines(one)
    columns = [
        *text_columns("measure", "better is"),
        *number_columns("ρ within methods", "ρ between all"),
    ]
    columns += number_columns("points lost", "most")
    table = Table("indicators", "Does the loss tell?", columns, body, _notes(summary, found))
    return table, pd.DataFrame(lines, columns=_COLUMNS)


def _lines(one: Indication) -> list[dict[str, object]]:
    """Return the lines of the CSV file."""
    name = {"measure": one.measure.title, "better": one.measure.better}
    lost = one.lost and one.lost.mean
    lines = [
        {**name, "method": "within", **_numbers(one.within), "points_lost": lost},
        {**name, "method": "between", **_numbers(one.between)},
    ]
    for method, points in one.lost_by_method.items():
        lines.append(
            {**name, "method": method, **_numbers(one.by_method.get(method)), "points_lost": points}
        )
    return lines


def _notes(summary: Summary, found: Sequence[Indication]) -> list[str]:
    score, split = accuracy_of(summary)
    title = summary.scores[score].title if score in summary.scores else score
    within = [one.within for one in found if one.within]
    # Measures may be of unequally many methods; the note states the widest comparison.
    of = max(within, key=lambda correlation: correlation.configurations, default=None)
    methods = f"{of.methods} methods of {of.configurations} configurations" if of else "the methods"
    notes = [
        f"Spearman's rank correlation with {title} on the {split} split, mean over the seeds of a "
        "configuration, in the direction in which the measure is said to be better: 1 orders "
        "configurations as the labels do, 0 tells nothing. In brackets the 95 % interval of a "
        "bootstrap over configurations.",
        f"Within methods: the mean over {methods}; those with {MIN_CONFIGURATIONS} or more take "
        "part. Between all: configurations of all methods together; the losses of two methods "
        "have no common scale.",
        "Points lost: how much lower this accuracy is where each method's configuration is chosen "
        "by the measure in place of the labels; mean ± sample standard deviation over the methods, "
        "and that of the one that loses most.",
    ]
    best = best_measure(found)
    if best and best.lost:
        notes.append(
            f"Of these, choosing by {best.measure.title} loses least: {best.lost.mean:.2f} points "
            f"on average over {best.lost.n} methods."
        )
        notes.append(_chance_note(found))
    return notes


def _chance_note(found: Sequence[Indication]) -> str:
    """Say which measures are better than none."""
    p = against_chance(found)
    mean_lost = {one.measure.title: one.lost.mean for one in found if one.lost}
    chance = f"random choice, which loses {mean_lost[RANDOM.title]:.2f}"
    how = "paired t-test over the methods with Holm's correction"
    beating = []
    for title, value in p.items():
        if value <= LEVEL and mean_lost[title] < mean_lost[RANDOM.title]:
            beating.append(f"{title} (p = {value:.2g})")
    if not p:
        # The test needs two methods that do not gain alike.
        return f"For comparison, {chance} points. Too few methods tell whether a measure is better."
    if beating:
        return f"What loses significantly less than {RANDOM.title}: {', '.join(beating)} ({how})."
    return f"No measure loses significantly less than {chance} points ({how})."


def correlation_text(found: Correlation | None) -> str:
    """Write a correlation with its interval."""
    if found is None:
        return DASH
    return f"{found.rho:.2f} [{found.low:.2f}, {found.high:.2f}]".replace("-", "−")


def _numbers(found: Correlation | None) -> dict[str, object]:
    return {} if found is None else vars(found)
