"""Cells that are planned or have begun and have no record: the rows that they will belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from regbench.reports.find.runs import Missing, MissingRow
from regbench.reports.rows.comparable import setting_names
from regbench.reports.rows.summary import DASH, Summary

# The settings of a row that the plan of a sweep states.
_PLANNED = ("embedding_dim", "batch_size", "epochs")


def place_missing(summaries: Sequence[Summary], missing: Sequence[Missing]) -> None:
    """Assign each cell without a record to its row, as far as its plan identifies one."""
    plans = []
    for summary in summaries:
        first = summary.records[0]
        plans.append({"dataset": first.cell["dataset"]["name"], "backbone": first.backbone})
    groups: dict[tuple[int, object], list[Missing]] = {}
    for cell in missing:
        tasks = []
        for place, summary in enumerate(summaries):
            if cell.sweep in summary.sweeps and _agrees(cell.plan, plans[place]):
                tasks.append(place)
                if cell.failure:
                    summary.failures.append(cell)
        # Nobody knows where a cell will stand whose plan fits two tasks.
        if cell.label and len(tasks) == 1:
            # One group of all sweeps, as several may plan the same cells.
            groups.setdefault((tasks[0], (cell.label, *sorted(cell.plan.items()))), []).append(cell)
    for (task, _), cells in groups.items():
        _place(summaries[task], cells)


def _place(summary: Summary, cells: Sequence[Missing]) -> None:
    """Count cells of one plan as missing in their row, or make a row of what is missing where
    there is none.
    """
    plan, label = cells[0].plan, cells[0].label
    finished = {record.cell_id for record in summary.records}
    seeds = {cell.seed for cell in cells if cell.cell_id not in finished}
    fitting = []
    for place, row in enumerate(summary.rows):
        settings = {}
        if not row.is_reference:
            settings = {key: row.first.cell[key] for key in _PLANNED}
        if row.label == label and _agrees(plan, settings):
            fitting.append(place)
    # Rows that differ in what no plan states cannot be distinguished here, so a cell of several is
    # not counted.
    if len(fitting) == 1:
        row = summary.rows[fitting[0]]
        more = len(seeds - row.seeds)
        summary.rows[fitting[0]] = replace(row, missing=row.missing + more)
    elif not fitting and seeds:
        # A plan states few settings; those that it leaves out are shown as unknown.
        names = setting_names(summary.varying)
        settings = {name: str(plan.get(key, DASH)) for key, name in names.items()}
        summary.missing.append(MissingRow(label, settings, len(seeds)))


def _agrees(plan: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    """Return True if nothing in the plan of a cell contradicts a place in a table."""
    return all(plan.get(key) in (None, value) for key, value in place.items())
