"""The tables beside the leaderboard: every score, significance, time, memory, energy, hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd

from regbench.reports.rows.comparable import is_setting
from regbench.reports.rows.curves import Reached, curve_notes, curve_scores, reached, threshold
from regbench.reports.rows.notes import best_notes
from regbench.reports.rows.significance import MIN_PAIRS
from regbench.reports.rows.summary import DASH, SETTING_NAMES, Row, Summary
from regbench.reports.tables.leaderboard import LOSS_MEMORY, accuracies, leaderboard
from regbench.reports.tables.table import Column, Entry, Filled, Table, cost_column, cost_in, spread, table_of_rows
from regbench.reports.tables.units import Unit, energy_units, largest, memory_unit, time_unit

# A table of p-values has a column for each row; more of them are in the CSV file only.
SIGNIFICANCE_ROWS = 40


def accuracy_table(summary: Summary) -> Table:
    """Set every score of the test split, and those of the tuning split that selection saw."""
    measured = {(s.name, s.split) for row in summary.rows for r in row.records for s in r.scores}
    tested, tuned = ([name for name in summary.scores if (name, split) in measured] for split in ("test", "tuning"))
    columns = accuracies(summary, tested, ", test")
    columns += [(Column(f"{summary.scores[name].head}, tuning"), partial(_tuned, name)) for name in tuned]
    ranked = [name for name in tested if summary.scores[name].higher_is_better is not None]
    notes = ["The tuning split chooses; it is no result.", *best_notes(summary, ranked)]
    if len(ranked) < len(tested) or any(summary.scores[name].higher_is_better is None for name in tuned):
        notes.append("Measures without labels have no best.")
    return table_of_rows(summary, "accuracy", "Accuracy", columns, notes, whole=True)


def _tuned(name: str, row: Row) -> str:
    return spread(row.score(name, "tuning"), 2)


def significance_frame(summary: Summary) -> pd.DataFrame:
    """Compare every pair of trained rows by Tukey's test with seeds as blocks.

    Returns:
        Columns score, one, other, pairs (seeds that both have), difference (mean of one minus other, over these), p
        (of all pairs together; missing with fewer than three seeds).
    """
    out: list[dict[str, Any]] = []
    for name in reversed(summary.leading):
        rows = [(i, row) for i, row in enumerate(summary.rows) if not row.untrained and row.by_seed(name)]
        for place, (i, row) in enumerate(rows[:-1], start=1):
            others = [j for j, _ in rows[place:]]
            for j, c in zip(others, summary.tukey(name).compare(i, others), strict=True):
                out.append({"score": name, "one": row.name, "other": summary.rows[j].name, **vars(c)})
    return pd.DataFrame(out, columns=["score", "one", "other", "pairs", "difference", "p"])


def significance_table(summary: Summary) -> Table:
    """Set the p-values of all pairs of rows by the score that orders the leaderboard."""
    headline = summary.headline
    scored = [i for i, row in enumerate(summary.rows) if headline and not row.untrained and row.score(headline)]
    # Most rows of a tuning have the one seed that they were tuned with.
    rows = [i for i in scored if len(summary.rows[i].by_seed(headline or "")) >= MIN_PAIRS]
    shown = rows[:SIGNIFICANCE_ROWS]
    body = []
    for place, i in enumerate(shown, start=1):
        compared = summary.tukey(headline or "").compare(i, shown)
        texts = [DASH if i == j or math.isnan(c.p) else _p(c.p) for j, c in zip(shown, compared, strict=True)]
        body.append([Entry(f"{place}. {summary.rows[i].name}"), *map(Entry, texts)])
    notes = [
        "p: the chance that of rows that are all equally good any two differ by so much. Tukey's test over all rows "
        f"with {MIN_PAIRS} seeds or more, seeds as blocks.",
        f"A dash: too few seeds to say (fewer than {MIN_PAIRS} shared).",
    ]
    if len(scored) > len(rows):
        notes.append(f"Left out: {len(scored) - len(rows)} rows with fewer than {MIN_PAIRS} seeds.")
    if len(rows) > len(shown):
        notes.append(f"The first {len(shown)} of {len(rows)} rows; all are in the CSV file.")
    title = "Significance of differences" + (f", {summary.scores[headline].head}" if headline else "")
    columns = [Column("", numeric=False), *(Column(str(i + 1)) for i in range(len(shown)))]
    return Table("significance", title, columns, body, notes)


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _ratio(above: str, below: str, factor: float, decimals: int) -> Callable[[Row], str]:
    """Make the function by which a row fills a column with the ratio of two mean costs."""

    def fill(row: Row) -> str:
        a, b = row.cost(above), row.cost(below)
        return f"{factor * a.mean / b.mean:,.{decimals}f}" if a and b and b.mean > 0 else DASH

    return fill


def time_table(summary: Summary) -> Table:
    """Set where the time goes."""
    monitor_s = largest(summary.rows, "monitor_s")
    columns = [
        cost_in(time_unit(largest(summary.rows, "train_s")), "train_s", "training"),
        cost_in(time_unit(largest(summary.rows, "evaluate_s")), "evaluate_s", "evaluation"),
        *([cost_in(time_unit(monitor_s), "monitor_s", "evaluation while training")] if monitor_s else []),
        cost_column("img_per_s", "images/s", 0),
        cost_column("step_ms", "step (ms)", 1),
        cost_column("loss_ms", "loss (ms/step)", 2),
        (Column("loss / step (%)"), _ratio("loss_ms", "step_ms", 100, 1)),
    ]
    note = "Times of a step are medians; loss is forward and backward of the regularizer alone."
    return table_of_rows(summary, "time", "Time", columns, [note])


def convergence_table(summary: Summary) -> Table | None:
    """Set how soon an accuracy is reached while training; None where nothing was measured then."""
    columns: list[Filled] = []
    seeds: dict[int, int] = {}
    for name, score in curve_scores(summary).items():
        if (percent := threshold(summary, name)) is None:
            continue
        found = {id(row): reached(row, name, percent) for row in summary.rows}
        seeds |= {row: each.seeds for row, each in found.items()}
        unit = time_unit(max((s.mean for each in found.values() if (s := each.train_s)), default=0.0))

        def epochs(row: Row, found: Mapping[int, Reached] = found) -> str:
            each = found[id(row)]
            return spread(each.epochs, 1) + _some(each)

        def time(row: Row, found: Mapping[int, Reached] = found, unit: Unit = unit) -> str:
            each = found[id(row)]
            return spread(each.train_s, unit.decimals, unit.divisor) + _some(each)

        columns.append((Column(f"epochs to {percent} % {score.title}"), epochs))
        columns.append((Column(f"time to {percent} % {score.title} ({unit.name})"), time))
    if not columns:
        return None
    columns.insert(0, (Column("n"), lambda row: str(seeds[id(row)])))
    notes = [
        *curve_notes(summary),
        "Each accuracy is the highest multiple of 5 % that at least half of the rows reach with all of their seeds. "
        "Numbers are of the first epoch after which it was measured: mean ± sample standard deviation over the seeds.",
        f"{DASH}: no seed reached it. Where only some did, the mean is over those, and n says how many.",
    ]
    return table_of_rows(summary, "convergence", "Convergence", columns, notes)


def _some(found: Reached) -> str:
    """Say how many seeds reached an accuracy if not all did."""
    return f" (n={found.epochs.n} of {found.seeds})" if found.epochs and found.epochs.n < found.seeds else ""


def memory_table(summary: Summary) -> Table:
    """Set the peak memory of training, and of the loss alone."""

    def kinds(row: Row) -> str:
        found = {r.cost.peak_memory_kind for r in row.records if r.cost.peak_memory_kind}
        return ", ".join(sorted(found)) or DASH

    unit = memory_unit(largest(summary.rows, "peak_memory_bytes"))
    columns = [cost_in(unit, "peak_memory_bytes", "peak memory"), (Column("measured as", numeric=False), kinds)]
    if extra := largest(summary.rows, "loss_extra_bytes"):
        columns.append(cost_in(memory_unit(extra), "loss_extra_bytes", "loss memory"))
    return table_of_rows(summary, "memory", "Memory", columns, [LOSS_MEMORY] if extra else [])


def energy_table(summary: Summary) -> Table | None:
    """Set the energy of training; None where nothing was measured."""
    columns: list[Filled] = []
    for kind, unit in energy_units(summary.rows).items():
        cost = f"energy_{kind}_joules"
        columns += [
            cost_in(unit, cost, f"{kind.upper()} energy"),
            (Column(f"{kind.upper()} mean power (W)"), _ratio(cost, "train_s", 1, 0)),
        ]
    note = "Of training alone; power is over the training time."
    return table_of_rows(summary, "energy", "Energy", columns, [note]) if columns else None


def hyperparameters_table(summary: Summary) -> Table:
    """Set every configuration tried: what sets it apart, its score on the tuning split, whether it was chosen."""
    trained = [c for c in summary.configurations if not c.untrained]
    cells = [c.first.settings for c in trained]
    keys = list({k: None for cell in cells for k in cell if k.startswith(("method.", "optimizer.", "evaluation."))})
    keys = [k for k in keys if not is_setting(k) and k not in ("method.name", "evaluation.protocols")]
    keys.sort(key=lambda k: not k.startswith("method."))
    varying = [k for k in keys if k.startswith("method.") or len({cell.get(k) for cell in cells}) > 1]
    rows = {row.records[0].cell_id for row in summary.rows}
    chosen = [any(r.cell_id in rows for r in c.records) for c in trained]
    several = any(row.tried > 1 for row in summary.rows) or not all(chosen)
    selected = f"{summary.selection_title} (%), {summary.selection_split}"
    columns = [Column("method", numeric=False), *map(Column, SETTING_NAMES.values())]
    columns += [Column("hyperparameters", numeric=False), Column(selected), Column("n")]
    columns += [Column("chosen on", numeric=False), Column("tried")]
    columns += [Column("in the leaderboard", numeric=False)] * several
    lines: list[tuple[tuple[object, ...], list[Entry]]] = []

    def add(label: str, places: list[str], own: Mapping[str, Any], value: float | None, *texts: object) -> None:
        shown = ", ".join(f"{k.removeprefix('method.')}={v}" for k, v in own.items())
        texts = (label, *places, shown, *texts)[: len(columns)]
        order = (label.removesuffix(" †"), *map(len, places), *places, texts[-1] == "no" and several, -(value or 0.0))
        lines.append((order, [Entry(str(text or DASH)) for text in texts]))

    for c, cell, is_row in zip(trained, cells, chosen, strict=True):
        how: dict[str, Any] = next((h for r in c.records if (h := r.choice.get("hyperparameters"))), {})
        places = [DASH if cell.get(k, "null") == "null" else cell[k] for k in SETTING_NAMES]
        value = c.score(summary.selection, summary.selection_split)
        more = (spread(value, 2), len(c.records), how.get("selected_on"), how.get("budget"), "yes" if is_row else "no")
        own = {k: cell[k] for k in varying if k in cell}
        add(c.label + " †" * bool(c.diverged), places, own, value.mean if value else None, *more)
    here = {r.cell_id for r in summary.records}
    for choice in summary.choices.values():
        for entry in choice.choices:  # with those that were ranked and whose records are not in the report
            for ranked in entry.ranking:
                setting = {**entry.setting, "epochs": ranked.epochs}
                places = [str(setting.get(k, DASH)) for k in SETTING_NAMES]
                if ranked.cell_id not in here:
                    text = DASH if ranked.value is None else f"{ranked.value:.2f}"
                    label = entry.label + " †" * (ranked.status == "diverged")
                    add(label, places, ranked.hyperparameters, ranked.value, text, len(choice.seeds), "", "", "no")
    lines.sort(key=lambda line: line[0])
    notes = [
        "In the order of the selection score within each method and setting; what stands in the leaderboard is first."
    ]
    notes += [
        f"{path}: {choice.budget} configurations for each method, chosen by {choice.score} on the "
        f"{choice.selected_on} split, seeds {', '.join(map(str, choice.seeds))}; at most "
        f"{max((entry.images for entry in choice.choices), default=0):,} training images a method."
        for path, choice in summary.choices.items()
    ]
    return Table("hyperparameters", "Hyperparameters", columns, [line for _, line in lines], notes)


def tables_of(summary: Summary) -> dict[str, Table]:
    """Set all tables of a task, by their slugs."""
    made = [leaderboard(summary), accuracy_table(summary), time_table(summary), memory_table(summary)]
    made += [significance_table(summary), hyperparameters_table(summary)]
    made += [table for table in (convergence_table(summary), energy_table(summary)) if table]
    return {table.slug: table for table in made}
