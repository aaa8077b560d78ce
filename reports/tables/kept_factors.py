"""The factors of images that representations and embeddings keep: a heat map and its numbers."""

from __future__ import annotations

from functools import partial

import pandas as pd

from regbench.benchmark.rundir.record import Score
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.table import Column, Entry, Filled, Table, mean_pm, table_of_rows

_NOTES = (
    "Ridge regressions on the test split, each with the penalty that the tuning split chose; mean "
    "over the seeds. R² of a quantity is 1 where it is predicted exactly, and 0 where the mean of "
    "all images is as good a guess; accuracy is of a factor that is a choice.",
    "The page shades a place from 0 to R² = 1 or 100 %. Nothing is bold: whether a factor should "
    "be kept is a question of what the representation is for.",
)


def factors_tables(summary: Summary) -> list[Table]:
    """Make a table of methods against factors for each layer that was probed."""
    tables = []
    for layer, scores in _layers(summary).items():
        columns: list[Filled] = []
        for place, (factor, score) in enumerate(scores.items()):
            # A narrow terminal leaves out the last factors first.
            head = Column(f"{factor.replace('_', ' ')}, {_measure(score)}", spare=place)
            columns.append((head, partial(_entry, score)))
        slug, title, rows = f"factors_{layer}", f"Kept in the {layer}", _probed(summary, scores)
        tables.append(table_of_rows(summary, slug, title, columns, _NOTES, rows))
    return tables


def factors_frame(summary: Summary) -> pd.DataFrame:
    """Make the same tables as numbers; empty if no factor was probed.

    Returns:
        Columns label and the settings that vary, layer, factor, measure ("R²" or "accuracy, %"),
        mean, std (sample standard deviation; missing for one seed), n.
    """
    lines = []
    for layer, scores in _layers(summary).items():
        for row in _probed(summary, scores):
            start = {"label": row.label, **row.settings, "layer": layer}
            for factor, score in scores.items():
                stat = row.score(score.name)
                if stat is not None:
                    line = {**start, "factor": factor, "measure": _measure(score)}
                    lines.append({**line, "mean": stat.mean, "std": stat.std, "n": stat.n})
    return pd.DataFrame(lines)


def _layers(summary: Summary) -> dict[str, dict[str, Score]]:
    """Find the probes that were made: layer -> factor -> score."""
    layers: dict[str, dict[str, Score]] = {}
    for name, score in summary.scores.items():
        if score.probe is not None and summary.measured(name):
            factor, layer = score.probe
            layers.setdefault(layer, {})[factor] = score
    return layers


def _probed(summary: Summary, scores: dict[str, Score]) -> list[Row]:
    """List the rows that have any of some probes on the test split."""
    return [row for row in summary.rows if any(row.score(score.name) for score in scores.values())]


def _measure(score: Score) -> str:
    return "accuracy, %" if score.unit == "%" else "R²"


def _entry(score: Score, row: Row) -> Entry:
    stat = row.score(score.name)
    if stat is None:
        return Entry(DASH)
    decimals, whole = (1, 100.0) if score.unit == "%" else (2, 1.0)
    # R² is below 0 where a probe is worse than the mean. A colour has nothing below white.
    shade = round(100 * min(max(stat.mean / whole, 0.0), 1.0))
    text = f"{stat.mean:z.{decimals}f}".replace("-", "−")  # what rounds to −0 is 0
    return Entry(text, why=f"{mean_pm(stat, decimals + 1)}, n = {stat.n}", shade=shade)
