"""What label-free measures tell of accuracy, as a table and as numbers."""

from __future__ import annotations

import pandas as pd

from regbench.reports.rows.indicators import (
    MIN_CONFIGURATIONS,
    Correlation,
    accuracy_of,
    best_measure,
    indications,
)
from regbench.reports.rows.summary import DASH, Summary
from regbench.reports.tables.table import Column, Entry, Table, spread

_COLUMNS = ["measure", "better", "method", "rho", "low", "high", "methods", "configurations", "points_lost"]


def indicators(summary: Summary) -> tuple[Table, pd.DataFrame] | None:
    """Set how well each measure without labels orders the configurations by accuracy; None where it cannot be said.

    Returns:
        The table, and the same as numbers with a line for each method: columns measure, better, method ("within" is the
        mean over the methods, "between" of all configurations together), rho (Spearman's, of the better measure with
        accuracy), low and high (of its 95 % interval), methods, configurations, points_lost (in percent of images).
    """
    found = indications(summary)
    if not found:
        return None
    body, lines = [], []
    for one in found:
        name = {"measure": one.measure.title, "better": one.measure.better}
        largest = max(one.lost_by_method.values(), default=None)
        texts = [one.measure.title, one.measure.better, correlation_text(one.within), correlation_text(one.between)]
        texts += [spread(one.lost, 2), DASH if largest is None else f"{largest:.2f}"]
        body.append([Entry(text) for text in texts])
        lost = one.lost and one.lost.mean
        lines.append({**name, "method": "within", **_numbers(one.within), "points_lost": lost})
        lines.append({**name, "method": "between", **_numbers(one.between)})
        for method, points in one.lost_by_method.items():
            lines.append({**name, "method": method, **_numbers(one.by_method.get(method)), "points_lost": points})
    score, split = accuracy_of(summary)
    title = summary.scores[score].title if score in summary.scores else score
    of = max((one.within for one in found if one.within), key=lambda c: c.configurations, default=None)
    notes = [
        f"Spearman's rank correlation with {title} on the {split} split, mean over the seeds of a configuration, in "
        "the direction in which the measure is said to be better: 1 orders configurations as the labels do, 0 tells "
        "nothing. In brackets the 95 % interval of a bootstrap over configurations.",
        "Within methods: the mean over "
        + (f"{of.methods} methods of {of.configurations} configurations; " if of else "the methods; ")
        + f"those with {MIN_CONFIGURATIONS} or more take part. Between all: configurations of all methods together; "
        "the losses of two methods have no common scale.",
        "Points lost: how much lower this accuracy is where each method's configuration is chosen by the measure in "
        "place of the labels; mean ± sample standard deviation over the methods, and that of the one that loses most.",
    ]
    if (best := best_measure(found)) and best.lost:
        notes.append(
            f"Of these, choosing by {best.measure.title} loses least: {best.lost.mean:.2f} points on average over "
            f"{best.lost.n} methods."
        )
    columns = [Column("measure", numeric=False), Column("better is", numeric=False), Column("ρ within methods")]
    columns += [Column("ρ between all"), Column("points lost"), Column("most")]
    return Table("indicators", "Does the loss tell?", columns, body, notes), pd.DataFrame(lines, columns=_COLUMNS)


def correlation_text(found: Correlation | None) -> str:
    """Write a correlation with its interval."""
    if found is None:
        return DASH
    return f"{found.rho:.2f} [{found.low:.2f}, {found.high:.2f}]".replace("-", "−")


def _numbers(found: Correlation | None) -> dict[str, object]:
    return {} if found is None else vars(found)
