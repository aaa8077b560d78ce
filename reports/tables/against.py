"""What changed between two reports, as a table and as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from regbench.benchmark.rundir.record import Record
from regbench.errors import RegbenchError
from regbench.reports.rows.against import RATIOS, Change, Difference, changes
from regbench.reports.rows.notes import machine
from regbench.reports.rows.significance import LEVEL
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.table import Column, Entry, Table

_HEADS = {
    "train_s": "train time (×)",
    "step_ms": "step (×)",
    "loss_ms": "loss (×)",
    "peak_memory_bytes": "peak memory (×)",
    "loss_extra_bytes": "loss memory (×)",
}
_SHOWN = 4  # settings that differ; the CSV file has all


def against(summary: Summary, others: Sequence[Summary]) -> tuple[Table, pd.DataFrame] | None:
    """Set what changed since other summaries; None where none of them is of the same task.

    Returns:
        The table, and the same as numbers: columns label and the settings that vary, change ("new", "gone" or "both"),
        settings (those that differ), and of each score and row now, before, low, high, p, pairs, p_holm as in
        `rows.against.Difference`, difference, then the ratios of what was measured on both sides.
    """
    found = changes(summary, others)
    if found is None:
        return None
    scores = [name for name in reversed(summary.leading) if any(name in change.differences for change in found)]
    ratios = [name for name in RATIOS if any(name in change.ratios for change in found)]
    settings = list(next((row.settings for row in summary.rows), {}))
    heads = [Column("method", numeric=False), *map(Column, settings), Column("changed", numeric=False)]
    for i, name in enumerate(scores):
        title = summary.scores[name].title
        heads += [Column(f"{summary.scores[name].head}", spare=3 * i), Column(f"{title}: difference", spare=3 * i)]
        heads += [Column(f"{title}: p", spare=3 * i)]
    heads += [Column("seeds", spare=1)]
    heads += [Column(_HEADS[name], spare=0 if name == "train_s" else 4 + i) for i, name in enumerate(ratios)]
    body = []
    for change in found:
        row = change.row
        entries = [Entry(row.label), *(Entry(row.settings.get(key, DASH)) for key in settings), Entry(_changed(change))]
        for name in scores:
            entries += _entries(change.differences.get(name))
        entries.append(Entry(_seeds(change)))
        entries += [Entry(f"{change.ratios[name]:.2f}" if name in change.ratios else DASH) for name in ratios]
        body.append(entries)
    before = " + ".join(dict.fromkeys(record.sweep for c in found if c.before for record in c.before.records))
    table = Table("against", f"Against {before}", heads, body, _notes(found, before))
    return table, pd.DataFrame([line for change in found for line in _lines(change)])


def compared(summaries: Sequence[Summary], others: Sequence[Summary]) -> dict[str, tuple[Table, pd.DataFrame]]:
    """Set what changed of each task that both sides have, by its name.

    Raises:
        RegbenchError: If they have none in common.
    """
    found = {summary.name: made for summary in summaries if (made := against(summary, others)) is not None}
    if not found:
        ours, theirs = (", ".join(each.name for each in side) for side in (summaries, others))
        raise RegbenchError(
            f"{ours} and {theirs} have no task in common: data set, network and evaluation of a cell must be the same; "
            "name another sweep after --against"
        )
    return found


def _entries(one: Difference | None) -> list[Entry]:
    if one is None:
        return [Entry(DASH)] * 3
    told, significant = f"{one.value:+.2f}", one.p_holm <= LEVEL
    how = f"paired over {one.pairs} seeds" if one.pairs else "two samples"
    if not math.isnan(one.p):
        told += f" [{one.low:+.2f}, {one.high:+.2f}]"
    p = DASH if math.isnan(one.p_holm) else "<0.001" if one.p_holm < 0.001 else f"{one.p_holm:.3f}"
    return [
        Entry(f"{one.before:.2f} → {one.now:.2f}"),
        Entry(told.replace("-", "−"), significant, "" if math.isnan(one.p) else f"t-test, {how}"),
        Entry(p),
    ]


def _changed(change: Change) -> str:
    if change.now is None or change.before is None:
        return "new" if change.before is None else "gone"
    listed = [
        f"{key.removeprefix('method.').removeprefix('optimizer.')} {old} → {new}"
        for key, (old, new) in change.settings.items()
    ]
    more = [f"and {len(listed) - _SHOWN} more"] * (len(listed) > _SHOWN)
    return ", ".join([*listed[:_SHOWN], *more]) or DASH


def _seeds(change: Change) -> str:
    before, now = (DASH if row is None else str(len(row.records)) for row in (change.before, change.now))
    return now if before == now else f"{before} → {now}"


def _notes(found: Sequence[Change], before: str) -> list[str]:
    notes = [
        f"Each arrow leads from {before} to this report; differences are this report minus {before}, with the 95 % "
        "interval. p: t-test, paired over the seeds where both have three or more in common, else of two samples "
        f"(Welch), Holm's correction over the rows; bold: significant at {100 * LEVEL:.0f} %. {DASH}: too few seeds.",
        f"×: this report's mean over that of {before}.",
    ]
    sides: tuple[list[Row], list[Row]] = (
        [change.before for change in found if change.before and not change.before.untrained],
        [change.now for change in found if change.now and not change.now.untrained],
    )
    for what, of, told in (
        ("Times were measured on unequal machines", machine, True),
        ("The code is not the same", _code, True),
        ("The images are not the same", _images, False),
    ):
        old, new = (sorted({of(record) for row in rows for record in row.records}) for rows in sides)
        if old != new and old and new:
            notes.append(what + (f": {'; '.join(old)} → {'; '.join(new)}." if told else "."))
    return notes


def _code(record: Record) -> str:
    return str(record.environment.get("git") or "unknown")


def _images(record: Record) -> str:
    return str(sorted(record.data.content_sha256.items()))


def _lines(change: Change) -> list[dict[str, object]]:
    kind = "new" if change.before is None else "gone" if change.now is None else "both"
    differing = "; ".join(f"{key}: {old} -> {new}" for key, (old, new) in change.settings.items())
    start = {"label": change.row.label, **change.row.settings, "change": kind, "settings": differing}
    ratios = {f"{name}_ratio": ratio for name, ratio in change.ratios.items()}
    lines = [
        {**start, "score": name, **vars(one), "difference": one.value, **ratios}
        for name, one in change.differences.items()
    ]
    return lines or [{**start, **ratios}]
