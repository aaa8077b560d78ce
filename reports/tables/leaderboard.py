"""The leaderboard, as it is shown and as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from regbench.reports.rows.deviations import Stat
from regbench.reports.rows.notes import (
    UNITS,
    best_notes,
    no_better_than_trivial,
    power_notes,
    task_gate,
    task_notes,
    way_notes,
)
from regbench.reports.rows.same_loss import same_loss_notes
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.paper import published, published_columns, published_notes
from regbench.reports.tables.table import (
    Column,
    Entry,
    Filled,
    Table,
    cost_column,
    mean,
    mean_pm,
    signed,
    table_of_rows,
)
from regbench.reports.tables.units import energies, largest

# Measures of the embeddings in the last epoch, and with how many decimals they are shown.
DECIMALS_AT_END = {"effective_rank": 1, "alignment": 2}

LOSS_MEMORY = (
    "Loss memory is the peak of value and gradient of the loss alone, beyond the embeddings and "
    "their gradients, at the run's own size."
)

ENERGY = (
    "Energy is of training alone: that of all GPUs of a run by NVML's counters, and that of the "
    "whole machine's processors, other work on it included."
)

# Costs in the CSV file, each in the unit of the record.
_COSTS = (
    *("train_s", "img_per_s", "step_ms", "loss_ms", "peak_memory_bytes", "loss_extra_bytes"),
    *("energy_gpu_joules", "energy_cpu_joules"),
)


def leaderboard(summary: Summary) -> Table:
    """Make the leaderboard: accuracy on the test split, gain on trivial rows, and cost.

    Rows that are planned and have no result yet stand below, with dashes. Published numbers have a
    column if a row is a recipe's or an experiment of the SFRIK paper.
    """
    measured = []
    for name in DECIMALS_AT_END:
        if any(row.at_end(name) for row in summary.rows):
            measured.append(name)
    columns = [*accuracies(summary, summary.leading), (Column("n", spare=1), _seeds)]
    for name in summary.leading:
        trivial = summary.best_trivial(name)
        if trivial is not None:
            columns.append(_gain_column(summary, name, trivial))
    for spare, name in enumerate(measured, start=2):
        # A narrow terminal keeps accuracies, time and memory of the loss, and does without these.
        columns.append((Column(name.replace("_", " "), spare=spare), partial(_at_end, name)))
    # The memory of the loss distinguishes methods: a narrow terminal can do without peak memory.
    rows, has_loss_memory = summary.rows, largest(summary.rows, "loss_extra_bytes") > 0
    columns += [
        cost_column(rows, "train_s", "train time", mean),
        cost_column(rows, "img_per_s", "images/s", mean, spare=7),
        cost_column(rows, "loss_ms", "loss", mean),
        cost_column(rows, "peak_memory_bytes", "peak memory", mean, spare=5 * has_loss_memory),
    ]
    notes = [
        "Accuracies on the test split: mean ± sample standard deviation over n "
        f"{UNITS[summary.unit]}; one has no ±."
    ]
    notes += [*best_notes(summary, summary.leading), *way_notes(summary)]
    if measured:
        notes.append(
            "Effective rank (exp of the entropy of the singular values) and alignment (mean ‖u − "
            "v‖² of the unit embeddings of an image's two views: 0 the same, 2 orthogonal) are of "
            "the embeddings of the last training batch."
        )
    if has_loss_memory:
        columns.append(cost_column(rows, "loss_extra_bytes", "loss memory", mean))
        notes.append(LOSS_MEMORY)
    for kind, cost in energies(rows).items():
        columns.append(cost_column(rows, cost, f"{kind.upper()} energy", mean, spare=6))
    if energies(rows):
        notes.append(ENERGY)
    columns += published_columns(summary, summary.leading)
    notes += published_notes(summary, summary.leading)
    notes += [*task_notes(summary), *power_notes(summary), *same_loss_notes(summary)]
    title = "Leaderboard: chosen on the test set" if summary.on_test else "Leaderboard"
    table = table_of_rows(summary, "leaderboard", title, columns, notes)
    warnings = [task_gate(summary), no_better_than_trivial(summary)]
    warning = " ".join(filter(None, warnings))
    return replace(table, warning=warning, numbers=_numbers(summary))


def _gain_column(summary: Summary, name: str, trivial: Row) -> Filled:
    """Show how far rows are above the best trivial row by a score: as a share of the way to the
    supervised row, if there is one.
    """
    title = summary.scores[name].title.removesuffix(" top-1")
    if summary.supervised(name) is None:
        head = Column(f"{title} − {trivial.label}", spare=4)
        return head, lambda row: signed(summary.gain(row, name))

    def share(row: Row) -> str:
        value = summary.share(row, name)
        return DASH if value is None else f"{value:.0f}".replace("-", "−")

    return Column(f"share of the way, {title} (%)", spare=4), share


def accuracies(summary: Summary, names: Sequence[str], suffix: str = "") -> list[Filled]:
    """Make a column for each of some test scores; bold means that no row is known to be better."""
    places = {row: place for place, row in enumerate(summary.rows)}

    def fill(name: str, row: Row) -> Entry:
        score, best, place = row.score(name), summary.best(name), places[row]
        samples = row.samples(name).values()
        scored = 0 if score is None else sum(map(len, samples))
        few = f" (n={scored})" if 0 < scored < len(row.records) else ""
        return Entry(mean_pm(score, 2) + few, place in best.rows, best.reason(place))

    return [(Column(summary.scores[name].head + suffix), partial(fill, name)) for name in names]


def _at_end(name: str, row: Row) -> str:
    return mean_pm(row.at_end(name), DECIMALS_AT_END[name])


def _seeds(row: Row) -> str:
    runs = str(len(row.records))
    if row.missing:
        runs += f" of {len(row.records) + row.missing}"
    if not row.repeated:
        return runs
    # A record without a search does not count.
    searches = len({record.search for record in row.records} - {None})
    return f"{runs} in {searches}"


def _numbers(summary: Summary) -> pd.DataFrame:
    """Make the leaderboard as numbers, units in the column names; `…_std` is a sample standard
    deviation.

    `best`: the row has the best mean of that score, or is not significantly different from it;
    `n_missing` counts planned seeds that are not finished.
    """
    out = []
    for place, row in enumerate(summary.rows):
        edges = [f"{side} {key}" for key, side in row.edges.items()]
        entry = _settings(summary, row.label, row.settings) | {
            "chosen_on_test": summary.on_test,
            "n": len(row.records),
            "n_missing": row.missing,
            "n_diverged": row.diverged,
            "configurations_tried": row.tried,
            "tuning_budget": summary.budget(row),
            "tuning_edges": ", ".join(edges) or None,
        }
        for name in summary.leading:
            score, unit = row.score(name), "_percent" * (summary.scores[name].unit == "%")
            entry |= _mean_and_std(f"{name}{unit}", score)
            entry[f"{name}_n"] = score and score.n
            if score and row.repeated:
                entry[f"{name}_low"], entry[f"{name}_high"] = score.interval()
            entry[f"{name}_best"] = place in summary.best(name).rows
            entry[f"{name}_minus_trivial"] = summary.gain(row, name)
            if summary.supervised(name) is not None:
                entry[f"{name}_share_percent"] = summary.share(row, name)
            number = published(summary, row, name)
            entry[f"{name}_published"] = number and number.number
        for name in _COSTS:
            cost = row.cost(name)
            entry[name] = cost and cost.mean
        for name in DECIMALS_AT_END:
            entry |= _mean_and_std(name, row.at_end(name))
        out.append(entry)
    for absent in summary.missing:
        entry = _settings(summary, absent.label, absent.settings)
        out.append(entry | {"n": 0, "n_missing": absent.seeds})
    return pd.DataFrame(out)


def _settings(summary: Summary, label: str, settings: dict[str, str]) -> dict[str, object]:
    # In a column of numbers, unknown values stay empty.
    known = {name: value for name, value in settings.items() if value != DASH}
    return {"sweep": summary.name, "label": label, **dict.fromkeys(settings), **known}


def _mean_and_std(name: str, s: Stat | None) -> dict[str, object]:
    return {name: s and s.mean, f"{name}_std": s and s.std}
