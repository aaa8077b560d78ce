"""Changes between two reports, as a table and as numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pandas as pd

from regbench.benchmark.rundir.record import Record
from regbench.errors import RegbenchError
from regbench.reports.rows.changes import RATIOS, Change, Difference, changes
from regbench.reports.rows.notes import machine
from regbench.reports.rows.significance import LEVEL
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.table import Column, Entry, Table, entries, number_columns, p_value, text_columns

_HEADS = {
    "train_s": "train time (×)",
    "step_ms": "step (×)",
    "loss_ms": "loss (×)",
    "peak_memory_bytes": "peak memory (×)",
    "loss_extra_bytes": "loss memory (×)",
}
# Settings that differ, in a place of the table: a run with another optimizer differs in a dozen. The CSV file has all.
_SHOWN = 4


def against(summary: Summary, others: Sequence[Summary]) -> tuple[Table, pd.DataFrame] | None:
    """Set what changed since other summaries; None where none of them is of the same task.

    Returns:
        The table, and the same as numbers: columns label and the settings that vary, change ("new", "gone" or "both"),
        settings (those that differ), and of each score and row now, before, low, high, p, pairs, p_holm as in
        `rows.changes.Difference`, difference, then the ratios of what was measured on both sides.
    """
    found = changes(summary, others)
    if found is None:
        return None
    compared_names: set[str] = set()
    for change in found:
        compared_names.update(change.differences, change.ratios)
    # The last of the leading scores orders the rows, so it comes first.
    scores = [name for name in reversed(summary.leading) if name in compared_names]
    ratios = [name for name in RATIOS if name in compared_names]
    settings = list(summary.rows[0].settings) if summary.rows else []
    body = [_line(change, settings, scores, ratios) for change in found]
    sweeps: dict[str, None] = {}
    for change in found:
        if change.before:
            sweeps.update(dict.fromkeys(record.sweep for record in change.before.records))
    before = " + ".join(sweeps)
    columns = _columns(summary, settings, scores, ratios)
    table = Table("against", f"Against {before}", columns, body, _notes(found, before))
    return table, pd.DataFrame(list(itertools.chain(*map(_numbers, found))))


def _columns(summary: Summary, settings: Sequence[str], scores: Sequence[str], ratios: Sequence[str]) -> list[Column]:
    columns = [*text_columns("method"), *number_columns(*settings), *text_columns("changed")]
    for place, name in enumerate(scores):
        # A narrow terminal leaves out the columns of the last score first, and those of the first one never.
        score, spare = summary.scores[name], 3 * place
        columns += [Column(score.head, spare=spare), Column(f"{score.title}: difference", spare=spare)]
        columns.append(Column(f"{score.title}: p", spare=spare))
    columns.append(Column("seeds", spare=1))
    for place, name in enumerate(ratios, 4):
        # Training time is the cost that everybody asks for. The others go before any score does.
        columns.append(Column(_HEADS[name], spare=0 if name == "train_s" else place))
    return columns


def _line(change: Change, settings: Sequence[str], scores: Sequence[str], ratios: Sequence[str]) -> list[Entry]:
    # A row that is gone may lack a setting that varies among those of today.
    values = [change.row.settings.get(key, DASH) for key in settings]
    line = entries(change.row.label, *values, _changed(change))
    for name in scores:
        line += _difference_entries(change.differences.get(name))
    line.append(Entry(_seeds(change)))
    for name in ratios:
        line.append(Entry(f"{change.ratios[name]:.2f}" if name in change.ratios else DASH))
    return line


def compared(summaries: Sequence[Summary], others: Sequence[Summary]) -> dict[str, tuple[Table, pd.DataFrame]]:
    """Set what changed of each task that both sides have, by its name.

    Raises:
        RegbenchError: If they have none in common.
    """
    found = {}
    for summary in summaries:
        made = against(summary, others)
        if made is not None:
            found[summary.name] = made
    if not found:
        ours = ", ".join(summary.name for summary in summaries)
        theirs = ", ".join(other.name for other in others)
        raise RegbenchError(
            f"{ours} and {theirs} have no task in common: data set, network and evaluation of a cell must be the same; "
            "name another sweep after --against"
        )
    return found


def _difference_entries(one: Difference | None) -> list[Entry]:
    if one is None:
        return entries(DASH, DASH, DASH)
    text, how = f"{one.value:+.2f}", ""
    if not math.isnan(one.p):
        text += f" [{one.low:+.2f}, {one.high:+.2f}]"
        how = f"t-test, paired over {one.pairs} seeds" if one.pairs else "t-test, two samples"
    change = Entry(text.replace("-", "−"), one.p_holm <= LEVEL, how)
    return entries(f"{one.before:.2f} → {one.now:.2f}", change, p_value(one.p_holm))


def _changed(change: Change) -> str:
    """Write which settings changed, or that the row is new or gone."""
    if change.before is None:
        return "new"
    if change.now is None:
        return "gone"
    listed = []
    for key, (old, new) in change.settings.items():
        listed.append(f"{key.removeprefix('method.').removeprefix('optimizer.')} {old} → {new}")
    if len(listed) > _SHOWN:
        listed = [*listed[:_SHOWN], f"and {len(listed) - _SHOWN} more"]
    return ", ".join(listed) or DASH


def _seeds(change: Change) -> str:
    before = DASH if change.before is None else str(len(change.before.records))
    now = DASH if change.now is None else str(len(change.now.records))
    return now if before == now else f"{before} → {now}"


def _notes(found: Sequence[Change], before: str) -> list[str]:
    notes = [
        f"Each arrow leads from {before} to this report; differences are this report minus {before}, with the 95 % "
        "interval. p: t-test, paired over the seeds where both have three or more in common, else of two samples "
        f"(Welch), Holm's correction over the rows; bold: significant at {100 * LEVEL:.0f} %. {DASH}: too few seeds.",
        f"×: this report's mean over that of {before}.",
    ]
    rows_before = [change.before for change in found]
    rows_now = [change.now for change in found]
    former, present = _trained(rows_before), _trained(rows_now)
    for what, tell, shown in (
        ("Times were measured on unequal machines", machine, True),
        ("The code is not the same", _code, True),
        ("The images are not the same", _images, False),
    ):
        old, new = sorted(set(map(tell, former))), sorted(set(map(tell, present)))
        if old != new and old and new:
            notes.append(what + (f": {'; '.join(old)} → {'; '.join(new)}." if shown else "."))
    return notes


def _trained(rows: Sequence[Row | None]) -> list[Record]:
    records: list[Record] = []
    for row in rows:
        # An untrained row has no times to compare.
        if row is not None and not row.is_reference:
            records += row.records
    return records


def _code(record: Record) -> str:
    return str(record.environment.get("git") or "unknown")


def _images(record: Record) -> str:
    # Hashes say nothing to a reader; the note only says that they differ.
    return str(sorted(record.data.content_sha256.items()))


def _numbers(change: Change) -> list[dict[str, object]]:
    """Return the lines of the CSV file: one for each score that both sides have."""
    kind = "both"
    if change.before is None:
        kind = "new"
    elif change.now is None:
        kind = "gone"
    differing = "; ".join(f"{key}: {old} -> {new}" for key, (old, new) in change.settings.items())
    start = {"label": change.row.label, **change.row.settings, "change": kind, "settings": differing}
    ratios = {f"{name}_ratio": ratio for name, ratio in change.ratios.items()}
    lines = []
    for name, one in change.differences.items():
        lines.append({**start, "score": name, **vars(one), "difference": one.value, **ratios})
    # A row that is new or gone has a line, too.
    return lines or [{**start, **ratios}]
