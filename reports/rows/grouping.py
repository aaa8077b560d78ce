"""From records to the rows of a leaderboard: which cells belong together, and which stand for a
method.

A *task* is a data set, a backbone and a way to evaluate: accuracies compare within it, so each task
has its own leaderboard, whatever sweeps its cells come from. Cells that the test split chose (the
paper's second variant, its Table 13) are a task of their own: they never stand in one ranking with
the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.tuning_choice import APART, TuningChoice
from regbench.reports.find.runs import Missing, MissingRow
from regbench.reports.rows.comparable import (
    SETTING_NAMES,
    Settings,
    configuration_settings,
    reference_settings,
    row_settings,
    setting_names,
    task_of,
    varying_settings,
)
from regbench.reports.rows.summary import DASH, Configuration, Row, Summary, mean_of


def summarize(
    records: Sequence[Record],
    missing: Sequence[Missing] = (),
    choices: Mapping[Path, TuningChoice] | None = None,
    short: Sequence[Record] = (),
) -> list[Summary]:
    """Make a summary of each task, in the order of the records; those that the test split chose
    come last.

    Args:
        records: Good records.
        missing: Cells that are planned or have begun and have no record.
        choices: Choices of tunings, by the path of their `tuning_choice.json`.
        short: Good records of trainings that are steps of a search.
    """
    settings = {record: row_settings(record) for record in records}
    tasks: dict[tuple[bool, Settings], list[Record]] = {}
    for record in records:
        tasks.setdefault(task_of(record, settings[record]), []).append(record)
    short_of: dict[object, dict[Settings, list[Record]]] = {}
    for record in short:
        of_task = short_of.setdefault(task_of(record), {})
        of_task.setdefault(configuration_settings(record), []).append(record)
    summaries = []
    for task in sorted(tasks, key=lambda task: task[0]):
        by_id: dict[str, Record] = {}
        sweeps = dict.fromkeys(record.sweep for record in tasks[task])
        for record in tasks[task]:
            known = by_id.get(record.cell_id)
            if known is None or known.status == "tuned":  # a cell that two sweeps share counts once
                by_id[record.cell_id] = record
        summary = Summary(tuple(sweeps), tuple(by_id.values()))
        summary.choices = _own_choices(summary, choices or {})
        summary.short += [Configuration(tuple(seeds)) for seeds in short_of.get(task, {}).values()]
        _fill(summary, settings)
        summaries.append(summary)
    _name(summaries)
    _place_missing(summaries, missing)
    return summaries


def _name(summaries: Sequence[Summary]) -> None:
    """Name each task by its sweeps, and by its data set and backbone if others have the same
    sweeps.
    """
    shared = Counter((summary.sweeps, summary.on_test) for summary in summaries)
    names: set[str] = set()
    for summary in summaries:
        first = summary.records[0]
        name = " + ".join(summary.sweeps) + " (chosen on the test set)" * summary.on_test
        if shared[summary.sweeps, summary.on_test] > 1:
            name += f": {first.cell['dataset']['name']}, {first.backbone}"
        while name in names:  # what differs then is hidden deep in the settings
            name += " (another evaluation or image size)"
        names.add(name)
        summary.name = name


def _own_choices(
    summary: Summary, choices: Mapping[Path, TuningChoice]
) -> dict[Path, TuningChoice]:
    """Select the choices of a task's sweeps, and those that its records name."""
    # A sweep may have been copied, but its records still name the choice by the sweep's first name.
    stated = [record.choice.get("hyperparameters", {}) for record in summary.records]
    named = {str(how.get("record")) for how in stated}
    own = {}
    for path, choice in choices.items():
        place = path.absolute()
        if place.parent.name in summary.sweeps or "/".join(place.parts[-2:]) in named:
            own[path] = choice
    return own


def _fill(summary: Summary, settings: Mapping[Record, Settings]) -> None:
    """Make the configurations and the rows of a task's records."""
    groups: dict[tuple[str, Settings], dict[Settings, dict[int, Record]]] = {}
    of_methods: set[Settings] = set()
    of_references: dict[str, set[Settings]] = {}
    for record in summary.records:
        if record.is_reference:
            row, configuration = reference_settings(record)
            of_references.setdefault(record.label, set()).add(row)
        else:
            row, configuration = settings[record], configuration_settings(record)
            of_methods.add(row)
        seeds = groups.setdefault((record.label, row), {}).setdefault(configuration, {})
        known = seeds.get(record.seed)
        # Cells may differ in further evaluations.
        if known is None or len(record.scores) >= len(known.scores):
            seeds[record.seed] = record
    # A reference shows the settings in which rows of one reference differ, a method all that vary.
    own = []
    for rows in of_references.values():
        own += varying_settings(rows)
    summary.varying = list(dict.fromkeys([*varying_settings(of_methods), *own]))
    for group in groups.values():
        configurations = [Configuration(tuple(seeds.values())) for seeds in group.values()]
        summary.configurations += configurations
        described = f"{configurations[0].label} ({len(configurations)})"
        chosen = _choose(configurations, summary.selection, summary.selection_split)
        statuses: set[str] = set()
        for configuration_of in configurations:
            statuses.update(record.status for record in configuration_of.records)
        has_ended = any(each.final or each.failed for each in configurations)
        # The method was tuned, and no final run of it has ended.
        if "tuned" in statuses and not has_ended:
            summary.waiting.append(described)
        elif chosen is None:
            summary.unchosen.append(described)
        else:
            shown = own if chosen.is_reference else summary.varying
            summary.rows.append(_row(chosen, configurations, summary.varying, shown))
    headline = summary.scores[summary.headline] if summary.headline else None
    summary.rows.sort(key=lambda row: _order(row, headline))


def _choose(
    configurations: Sequence[Configuration], score: str, split: str
) -> Configuration | None:
    """Find the first configuration with the best score for selection; None if there are several and
    not all have a score.
    """
    alive = [configuration for configuration in configurations if configuration.final]
    # A configuration that diverges with any seed cannot be recommended.
    alive = [configuration for configuration in alive if not configuration.diverged] or alive
    if len(alive) < 2:
        # If all diverged, one still stands for the method, so that the table says so.
        failed = [configuration for configuration in configurations if configuration.failed]
        return [*alive, *failed, *configurations][0]
    if any(configuration.score(score, split) is None for configuration in alive):
        return None
    return max(alive, key=lambda configuration: mean_of(configuration, score, split))


def _row(
    chosen: Configuration,
    configurations: Sequence[Configuration],
    varying: Sequence[str],
    shown: Sequence[str],
) -> Row:
    """Make the row of a configuration, or of what all searches of a repeated tuning chose.

    Of the settings `varying` in its task, it has values for those in `shown`.
    """
    tunings = set(map(_repeated_tuning, chosen.records)) - {None}
    records: list[Record] = []
    for configuration in configurations:
        of_tuning = [each for each in configuration.records if _repeated_tuning(each) in tunings]
        searches = {record.search for record in of_tuning}
        # By the seed, because a run that diverged may not say what chose it; others do.
        seeds = [each for each in configuration.records if each.seed // APART in searches]
        records += [each for each in seeds if each.search is not None or each.status == "diverged"]
    records = records or list(chosen.records)
    settings = {}
    for key, name in setting_names(varying).items():
        value = records[0].settings.get(key, "null")
        settings[name] = DASH if value == "null" or key not in shown else value
    # A seed of the chosen configuration that has only been tuned has no score of the test split
    # yet.
    scored = tuple(record for record in records if record.status != "tuned")
    return Row(scored, settings, len(configurations))


def _repeated_tuning(record: Record) -> str | None:
    """Return the digest of the choices of a record's repeated tuning; None if it has none."""
    if record.search is None:
        return None
    return str(record.choice["hyperparameters"]["sha256"])


def _order(row: Row, headline: Score | None) -> tuple[bool, float]:
    """Return a sort key that puts the best row first, and rows that are no methods last."""
    found = row.score(headline.name) if headline else None
    if headline is None or found is None:
        return row.is_reference, math.inf
    return row.is_reference, -headline.sign * found.mean


def _place_missing(summaries: Sequence[Summary], missing: Sequence[Missing]) -> None:
    """Assign each cell without a record to its row, as far as its plan identifies one."""
    groups: dict[tuple[Summary, object], list[Missing]] = {}
    for cell in missing:
        tasks = []
        for summary in summaries:
            first = summary.records[0]
            plan = {"dataset": first.cell["dataset"]["name"], "backbone": first.backbone}
            if cell.sweep in summary.sweeps and _agrees(cell.plan, plan):
                tasks.append(summary)
                if cell.failure:
                    summary.failures.append(cell)
        # If a plan fits two tasks, nobody knows where its cell will stand.
        if cell.label and len(tasks) == 1:
            # One group over all sweeps, because several may plan the same cells.
            groups.setdefault((tasks[0], (cell.label, *sorted(cell.plan.items()))), []).append(cell)
    for (task, _), cells in groups.items():
        _place(task, cells)


def _place(summary: Summary, cells: Sequence[Missing]) -> None:
    """Count cells of one plan as missing in their row, or make a missing row of them if there is
    none.
    """
    plan, label = cells[0].plan, cells[0].label
    finished = {record.cell_id for record in summary.records}
    seeds = {cell.seed for cell in cells if cell.cell_id not in finished}
    fitting = []
    for place, row in enumerate(summary.rows):
        settings = {} if row.is_reference else {key: row.first.cell[key] for key in SETTING_NAMES}
        if row.label == label and _agrees(plan, settings):
            fitting.append(place)
    # Rows that differ in what no plan states cannot be distinguished here, so a cell that fits
    # several is not counted.
    if len(fitting) == 1:
        row = summary.rows[fitting[0]]
        more = seeds - {record.seed for record in row.records}
        summary.rows[fitting[0]] = replace(row, missing=row.missing + len(more))
    elif not fitting and seeds:
        # A plan states few settings; those that it leaves out are shown as unknown.
        names = setting_names(summary.varying)
        settings = {name: str(plan.get(key, DASH)) for key, name in names.items()}
        summary.missing.append(MissingRow(label, settings, len(seeds)))


def _agrees(plan: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    """Return True if nothing in the plan of a cell contradicts a place in a table."""
    return all(plan.get(key) in (None, value) for key, value in place.items())
