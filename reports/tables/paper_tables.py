"""The paper's tables in their own shape, each number of the paper with ours beside it and the difference.

A place of a table is filled by the row of ours that agrees with it in method, embedding dimension, batch size,
epochs, data set and backbone, whatever the sweep was called. Rows that the test split chose fill Table 13 and none of
the tables that the paper chose on a tuning split. Table 5 takes GPU memory of runs on eight GPUs, as the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from regbench.benchmark.rundir.record import Record
from regbench.reports.rows.deviations import Stat
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables import paper
from regbench.reports.tables.table import Column, Entry, Table, difference, spread

_KERNELS, _MEMORY = 3, 5  # numbers of tables

_TWICE = (2, 13)
"""The table by embedding dimension, and the same with everything tuned on the test set."""

_PAPER_GPUS = 8

_COLUMNS = ["table", "label", *paper.PLACE, "metric", "unit", "ours", "ours_std", "n", "paper", "difference"]

_Candidate = tuple[Row, bool]
"""A row of ours, and whether the test split chose it."""

# Where a cell states a hyperparameter of the paper. Of a list of learning rates to choose from, the only entry counts.
_SETTINGS = {
    "temperature": "method.temperature",
    "alignment_weight": "method.alignment_weight",
    "variance_weight": "method.variance_weight",
    "scale": "method.scale",
    "base_lr": "optimizer.base_lr",
    "probe_lr": "evaluation.probe.learning_rates",
    "places205_lr": "evaluation.places205.learning_rates",
    "labels1_backbone_lr": "evaluation.labels1.backbone_learning_rates",
    "labels1_head_lr": "evaluation.labels1.head_learning_rates",
    "labels10_backbone_lr": "evaluation.labels10.backbone_learning_rates",
    "labels10_head_lr": "evaluation.labels10.head_learning_rates",
}


def paper_tables(summaries: Sequence[Summary], *, whole: bool = False) -> list[tuple[Table, pd.DataFrame]]:
    """Set the paper's tables of which we have at least one number, or all of them.

    Args:
        summaries: Where ours are looked for.
        whole: Whether tables without a number of ours come too.

    Returns:
        Each table with its numbers in long form: columns table, label, embedding_dim, batch_size, epochs, metric, unit,
        ours, ours_std, n, paper, difference. Ours and difference are missing where no row of ours, or more than one,
        fits.
    """
    tables = []
    for number, of_paper in paper.load_paper().groupby("table"):
        rows = _candidates(summaries, of_paper)
        frame = _beside(of_paper, rows)
        if whole or frame["ours"].notna().any():
            tables.append((_table(int(str(number)), frame, rows), frame[_COLUMNS]))
    return tables


def _beside(of_paper: pd.DataFrame, rows: Sequence[_Candidate]) -> pd.DataFrame:
    """Put our numbers beside those of one of the paper's tables."""
    frame = of_paper.rename(columns={"value": "paper"}).reset_index(drop=True)
    lines = []
    for entry in frame.to_dict("records"):
        ours = _find(rows, entry)
        lines.append((ours.mean, ours.spread, ours.n) if ours else (None, None, None))
    beside = pd.DataFrame(lines, columns=["ours", "ours_std", "n"])
    frame[["ours", "ours_std"]] = beside[["ours", "ours_std"]].astype(float)
    frame["n"] = beside["n"].astype("Int64")
    frame["difference"] = frame["ours"] - frame["paper"]
    return frame


def _candidates(summaries: Sequence[Summary], of_paper: pd.DataFrame) -> list[_Candidate]:
    """Find our trained rows on a table's data set and backbone, each with whether the test split chose it."""
    first = of_paper.iloc[0]
    place = first["dataset"], paper.BACKBONES[first["dataset"]]
    found = []
    for summary in summaries:
        record = summary.records[0]
        if summary.on_test and first["on_test"] != "yes":
            continue
        # Table 13 is Table 2 again. Of the others that the paper chose on the test set it has no second one, and so
        # they take ours that were chosen on the tuning split, too.
        if not summary.on_test and first["table"] == _TWICE[1]:
            continue
        if (record.cell["dataset"]["name"], record.backbone) == place:
            found += [(row, summary.on_test) for row in summary.rows if not row.is_reference]
    return found


def _find(rows: Sequence[_Candidate], entry: dict[Any, Any]) -> Stat | None:
    """Find what we have for one number of the paper; None where nothing, or more than one row, fits."""
    metric = str(entry["metric"])
    if metric == "peak_memory_ratio":
        above = _find(rows, {**entry, "metric": "peak_memory", "label": "VICReg"})
        below = _find(rows, {**entry, "metric": "peak_memory", "label": "SFRIK"})
        return Stat(above.mean / below.mean, None, min(above.n, below.n)) if above and below else None
    found: dict[bool, list[Stat]] = {False: [], True: []}
    fitting = set()
    for row, on_test in rows:
        if _fits(row, entry):
            fitting.add(on_test)
            value = _value(row, metric)
            found[on_test] += [] if value is None else [value]
    # Rows that the tuning split chose take the place of those that the test split chose, with or without this number.
    values = found[fitting == {True}]
    if len(values) > 1 and metric == "peak_memory":
        return max(values, key=lambda value: value.mean)  # orders of SFRIK, which Table 5 does not tell apart
    return values[0] if len(values) == 1 else None


def _fits(row: Row, entry: dict[Any, Any]) -> bool:
    cell = row.first.cell
    if entry["metric"] == "peak_memory":
        if (
            row.first.cost.peak_memory_kind != "CUDA allocated"
            or row.first.environment.get("world_size") != _PAPER_GPUS
        ):
            return False
        same = row.label == entry["label"] or (entry["label"] == "SFRIK" and row.label.startswith("SFRIK"))
        return bool(same and all(cell[key] == entry[key] for key in ("embedding_dim", "batch_size")))
    if row.label != entry["label"]:
        return False
    # Numbers that the paper cites from elsewhere state no q: nothing of ours equals <NA>.
    place = [entry[key] for key in paper.PLACE]
    return not any(map(pd.isna, place)) and [cell[key] for key in paper.PLACE] == place


def _value(row: Row, metric: str) -> Stat | None:
    if metric == "peak_memory":
        peak = row.cost("peak_memory_bytes")
        return peak and peak.over(1e9)
    if metric not in _SETTINGS and not metric.startswith("kernel_weight_"):
        return row.score(metric)
    # Seeds of a row may have chosen different learning rates; then no single number stands for the row.
    values = {_hyperparameter(record, metric) for record in row.records}
    value = values.pop()
    return None if value is None or values else Stat(value, None, len(row.records))


def _hyperparameter(record: Record, metric: str) -> float | None:
    """Look up a hyperparameter of a cell; None where it was not used or had several values."""
    if metric.startswith("kernel_weight_"):
        order, weights = int(metric.rpartition("_")[2]), record.cell["method"].get("weights", [])
        return float(weights[order - 1]) if order <= len(weights) else 0.0
    value: object = record.cell
    for key in _SETTINGS[metric].split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    # Where the tuning split chose among learning rates, the record says which, if the evaluation was done.
    if metric.endswith("_lr") and metric != "base_lr":
        task, _, part = metric.removesuffix("_lr").partition("_")
        if record.score("linear_top1" if task == "probe" else f"{task}_top1", "test") is None:
            return None
        chosen = record.choice.get(f"{task}_learning_rate{'s' * bool(part)}", {}).get("chosen")
        if isinstance(chosen, dict):
            chosen = chosen.get(part)
        if isinstance(chosen, int | float):
            value = chosen
    return float(value) if isinstance(value, int | float) else None


def _table(number: int, frame: pd.DataFrame, rows: Sequence[_Candidate]) -> Table:
    cells: dict[str, dict[str, str]] = {}
    heads: dict[str, None] = {}
    for entry in frame.to_dict("records"):
        name, head = _position(number, entry)
        cells.setdefault(name, {})[head] = _text(entry)
        heads[head] = None
    columns = list(heads)
    if number in _TWICE:  # SFRIK stands at the right, by its order
        columns.sort(key=lambda head: head if head.startswith("SFRIK") else "")
    body = []
    for name, texts in cells.items():
        body.append([Entry(name), *(Entry(texts.get(head, DASH)) for head in columns)])
    title = f"Table {number} of the paper, with ours: {frame['title'].iloc[0]}"
    named = [Column("", numeric=False), *map(Column, columns)]
    return Table(f"paper_table{number}", title, named, body, _notes(number, frame, rows))


def _position(number: int, entry: dict[Any, Any]) -> tuple[str, str]:
    """Name the row and the column of a number."""
    label, q, metric = str(entry["label"]), entry["embedding_dim"], str(entry["metric"])
    if number in _TWICE:
        return f"q = {q}", label
    if metric == "peak_memory_ratio":
        return f"batch {entry['batch_size']}", label
    if metric == "peak_memory":
        return f"batch {entry['batch_size']}", f"{label} (GB)"
    name = label
    if number != _KERNELS and not pd.isna(q):
        name += f", q = {q}"
    if entry["dataset"] == "in100":  # on which the paper trained for several numbers of epochs
        name += f", {entry['epochs']} epochs"
    return name, str(entry["head"])


def _text(entry: dict[Any, Any]) -> str:
    """Write a place of a table: ours, the paper's and the difference."""
    ours, std, reference, apart = (float(entry[name]) for name in ("ours", "ours_std", "paper", "difference"))
    if entry["unit"] or entry["metric"] == "peak_memory_ratio":
        if math.isnan(ours):
            return f"{DASH} / {reference:.1f} / {DASH}"
        mean = spread(Stat(ours, None if math.isnan(std) else std, 1), 2)
        return f"{mean} / {reference:.1f} / {difference(apart)}"
    if math.isnan(ours):
        return f"{DASH} / {reference:g} / {DASH}"
    return f"{ours:g} / {reference:g} / {apart:+g}".replace("-", "−") if apart else f"{ours:g} / {reference:g} / 0"


def _notes(number: int, frame: pd.DataFrame, rows: Sequence[_Candidate]) -> list[str]:
    unit = ", in percent" if (frame["unit"] == "%").all() else ""
    notes = [f"Each cell: ours / paper / difference{unit}. A dash: not run, or not in the paper."]
    if number == _TWICE[1]:
        notes.append("Ours: only rows that were chosen on the test set; Tables 2 and 3 have the others.")
    elif frame["on_test"].iloc[0] == "yes":
        notes.append("The paper chose these hyperparameters on the test set (its appendix on IN100 %).")
    if number == _MEMORY:
        notes.append(f"GB are decimal. Ours: allocated on a GPU, with the batch on {_PAPER_GPUS} GPUs as the paper's.")
        return notes
    if frame["embedding_dim"].isna().any():
        notes.append("What the paper cites from elsewhere states no q, so nothing of ours is put beside it.")
    labels, entries, other = set(frame["label"]), frame.to_dict("records"), 0
    for row, _ in rows:
        if row.label in labels and not any(_fits(row, entry) for entry in entries):
            other += 1
    if other:
        notes.append(f"Left out: {other} of our rows, with a setting that the paper's table has not.")
    return notes
