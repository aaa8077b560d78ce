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

from regbench.reports.rows.summary import DASH, Row, Stat, Summary
from regbench.reports.tables import paper
from regbench.reports.tables.table import Column, Entry, Table, difference, spread

TITLES = {
    2: "linear probing on IN20 % by embedding dimension",
    3: "kernels of the uniformity term, linear probing on IN20 %",
    4: "ResNet-50 on IN100 %: linear probing, transfer and few labels",
    5: "peak memory per GPU, ResNet-50 at q = 32768",
    6: "hyperparameters of SimCLR on IN20 %",
    7: "hyperparameters of AUH on IN20 %",
    8: "hyperparameters of VICReg on IN20 %",
    9: "hyperparameters of SFRIK on IN20 %",
    10: "hyperparameters of SFRIK on IN100 %",
    11: "learning rates of linear probing after IN100 %",
    12: "learning rates of semi-supervised learning after IN100 %",
    13: "Table 2 with everything tuned on the test set",
    14: "Places205 and VOC07 after IN20 %",
    15: "other methods on IN100 %, as the paper cites them",
}

# Evaluations with a linear layer, as their scores and learning rates are named.
_LAYERS = {"linear": "linear", "places205": "Places205", "labels1": "1 % labels", "labels10": "10 % labels"}

METRIC_NAMES = {
    **{f"{task}_top{k}": f"{name} top-{k} (%)" for task, name in _LAYERS.items() for k in (1, 5)},
    "voc07_map": "VOC07 mAP, 11-point (%)",
    "voc07_map_full": "VOC07 mAP (%)",
    "temperature": "temperature τ",
    "alignment_weight": "alignment weight λ",
    "variance_weight": "variance weight μ",
    "scale": "scale t",
    **{f"kernel_weight_{order}": f"b{order}" for order in (1, 2, 3)},
    "base_lr": "base_lr",
    "probe_lr": "lr_head",
    "places205_lr": "Places205 lr_head",
    **{f"labels{k}_{part}_lr": f"{k} % labels lr_{part}" for k in (1, 10) for part in ("backbone", "head")},
}

_IN100 = (4, 5, 10, 11, 12, 15)
_CHOSEN_ON_TEST = (4, 10, 11, 12, 13)  # by the paper: its appendix says so of all that is trained on IN100 %
_PAPER_GPUS = 8

# Where a row states what it ran with; of a list, the only entry.
_SETTINGS = {
    **{name: f"method.{name}" for name in ("temperature", "alignment_weight", "variance_weight", "scale")},
    "base_lr": "optimizer.base_lr",
    **{f"{task}_lr": f"evaluation.{task}.learning_rates" for task in ("probe", "places205")},
    **{
        f"{task}_{part}_lr": f"evaluation.{task}.{part}_learning_rates"
        for task in ("labels1", "labels10")
        for part in ("backbone", "head")
    },
}


def paper_tables(summaries: Sequence[Summary], *, whole: bool = False) -> list[tuple[Table, pd.DataFrame]]:
    """Set the paper's tables of which we have at least one number, or all of them.

    Args:
        summaries: Where ours are looked for.
        whole: Whether tables without a number of ours come too.

    Returns:
        Each table with its numbers in long form, see `paper_frame`.
    """
    frames = {number: paper_frame(summaries, number) for number in TITLES}
    shown = [number for number, frame in frames.items() if whole or frame["ours"].notna().any()]
    return [(_table(summaries, number, frames[number]), frames[number]) for number in shown]


def paper_frame(summaries: Sequence[Summary], number: int) -> pd.DataFrame:
    """List a table of the paper number by number, with ours beside it.

    Returns:
        Columns table, label, embedding_dim, batch_size, epochs, metric, unit, ours, ours_std, n, paper, difference;
        ours and difference are missing where no row of ours, or more than one, fits.
    """
    frame = paper.paper_table(number).rename(columns={"value": "paper"})
    rows = _candidates(summaries, number)
    ours = [_find(rows, entry) for entry in frame.to_dict("records")]
    frame["ours"] = pd.Series([s.mean if s else None for s in ours], frame.index, dtype=float)
    frame["ours_std"] = pd.Series([s.spread if s else None for s in ours], frame.index, dtype=float)
    frame["n"] = pd.array([s.n if s else None for s in ours], dtype="Int64")
    frame["difference"] = frame["ours"] - frame["paper"]
    columns = "table label embedding_dim batch_size epochs metric unit ours ours_std n paper difference"
    return frame[columns.split()].reset_index(drop=True)


def _candidates(summaries: Sequence[Summary], number: int) -> list[tuple[Row, bool]]:
    """Find our trained rows on the table's data set and backbone, each with whether the test split chose it."""
    place = ("in100", "resnet50") if number in _IN100 else ("in20", "resnet18")
    out = []
    for summary in summaries:
        cell = summary.records[0].cell
        fits = not summary.on_test if number not in _CHOSEN_ON_TEST else summary.on_test or number != 13
        if (cell["dataset"]["name"], summary.records[0].backbone) == place and fits:
            out += [(row, summary.on_test) for row in summary.rows if not row.untrained]
    return out


def _find(rows: Sequence[tuple[Row, bool]], entry: dict[Any, Any]) -> Stat | None:
    """Find what we have for one number of the paper."""
    if entry["metric"] == "peak_memory_ratio":
        above, below = (_find(rows, {**entry, "metric": "peak_memory", "label": m}) for m in ("VICReg", "SFRIK"))
        return Stat(above.mean / below.mean, None, min(above.n, below.n)) if above and below else None
    fits = [(row, on_test) for row, on_test in rows if _fits(row, entry)]
    if any(on_test for _, on_test in fits) and not all(on_test for _, on_test in fits):
        fits = [(row, on_test) for row, on_test in fits if not on_test]
    found = [value for row, _ in fits if (value := _value(row, str(entry["metric"]))) is not None]
    if len(found) > 1 and entry["metric"] == "peak_memory":  # orders of SFRIK that need the same
        found = [max(found, key=lambda s: s.mean)]
    return found[0] if len(found) == 1 else None


def _fits(row: Row, entry: dict[Any, Any]) -> bool:
    cell = row.first.cell
    if entry["metric"] == "peak_memory":
        cost, environment = row.first.cost, row.first.environment
        label = str(entry["label"])
        measured = cost.peak_memory_kind == "CUDA allocated" and environment.get("world_size") == _PAPER_GPUS
        same = row.label == label or (label == "SFRIK" and row.label.startswith("SFRIK"))
        return bool(measured and same and all(cell[key] == entry[key] for key in ("embedding_dim", "batch_size")))
    # Numbers that the paper cites from elsewhere state no q: nothing of ours equals <NA>.
    place = [entry[key] for key in ("embedding_dim", "batch_size", "epochs")]
    if row.label != entry["label"] or any(map(pd.isna, place)):
        return False
    return [cell[key] for key in ("embedding_dim", "batch_size", "epochs")] == place


def _value(row: Row, metric: str) -> Stat | None:
    if metric == "peak_memory":
        s = row.cost("peak_memory_bytes")
        return s and Stat(s.mean / 1e9, None if s.spread is None else s.spread / 1e9, s.n)
    if metric not in _SETTINGS and not metric.startswith("kernel_weight_"):
        return row.score(metric)
    values = {_setting(row, i, metric) for i in range(len(row.records))}
    value = values.pop()
    return None if value is None or values else Stat(value, None, len(row.records))


def _setting(row: Row, i: int, metric: str) -> float | None:
    """Look up a hyperparameter of one of the row's cells; None where it was not used or had several values."""
    record = row.records[i]
    method = record.cell["method"]
    if metric.startswith("kernel_weight_"):
        order, weights = int(metric.rpartition("_")[2]), method.get("weights", [])
        return float(weights[order - 1]) if order <= len(weights) else 0.0
    task, _, part = metric.removesuffix("_lr").partition("_")
    if metric.endswith("_lr") and task != "base":
        score = "linear_top1" if task == "probe" else f"{task}_top1"
        if record.score(score, "test") is None:
            return None
        noted = record.choice.get(f"{task}_learning_rate{'s' * bool(part)}")
        chosen = noted.get("chosen") if isinstance(noted, dict) else None
        chosen = chosen.get(part) if isinstance(chosen, dict) else chosen
        if isinstance(chosen, int | float):
            return float(chosen)
    value: object = record.cell
    for key in _SETTINGS[metric].split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    return float(value) if isinstance(value, int | float) else None


def _table(summaries: Sequence[Summary], number: int, frame: pd.DataFrame) -> Table:
    cells: dict[str, dict[str, str]] = {}
    for entry in frame.to_dict("records"):
        row, column = _position(number, entry)
        cells.setdefault(row, {})[column] = _text(entry)
    heads = list(dict.fromkeys(column for row in cells.values() for column in row))
    if number in (2, 13):  # SFRIK stands at the right, by its order
        heads.sort(key=lambda head: head if head.startswith("SFRIK") else "")
    body = [[Entry(name), *(Entry(row.get(head, DASH)) for head in heads)] for name, row in cells.items()]
    title = f"Table {number} of the paper, with ours: {TITLES[number]}"
    columns = [Column("", numeric=False), *map(Column, heads)]
    return Table(f"paper_table{number}", title, columns, body, _notes(summaries, number, frame))


def _position(number: int, entry: dict[Any, Any]) -> tuple[str, str]:
    """Name the row and the column of a number."""
    label, q, metric = str(entry["label"]), entry["embedding_dim"], str(entry["metric"])
    if number in (2, 13):
        return f"q = {q}", label
    if number == 5:
        return f"batch {entry['batch_size']}", label + ("" if metric == "peak_memory_ratio" else " (GB)")
    name = label if number == 3 else ", ".join([label, *([] if pd.isna(q) else [f"q = {q}"])])
    if number in (4, 10, 11, 12, 15):
        name += f", {entry['epochs']} epochs"
    return name, METRIC_NAMES[metric]


def _text(entry: dict[Any, Any]) -> str:
    ours, std, reference, apart = (float(str(entry[k])) for k in ("ours", "ours_std", "paper", "difference"))
    if entry["unit"] not in ("%", "GB") and entry["metric"] != "peak_memory_ratio":
        if math.isnan(ours):
            return f"{DASH} / {reference:g} / {DASH}"
        return f"{ours:g} / {reference:g} / {apart:+g}".replace("-", "−") if apart else f"{ours:g} / {reference:g} / 0"
    if math.isnan(ours):
        return f"{DASH} / {reference:.1f} / {DASH}"
    mean = spread(Stat(ours, None if math.isnan(std) else std, 1), 2)
    return f"{mean} / {reference:.1f} / {difference(apart)}"


def _notes(summaries: Sequence[Summary], number: int, frame: pd.DataFrame) -> list[str]:
    unit = ", in percent" if (frame["unit"] == "%").all() else ""
    notes = [f"Each cell: ours / paper / difference{unit}. A dash: not run, or not in the paper."]
    if number in (4, 10, 11, 12):
        notes.append("The paper chose these hyperparameters on the test set (its appendix on IN100 %).")
    if number == 5:
        notes.append(f"GB are decimal. Ours: allocated on a GPU, with the batch on {_PAPER_GPUS} GPUs as the paper's.")
    if number == 13:
        notes.append("Ours: only rows that were chosen on the test set; Tables 2 and 3 have the others.")
    if frame["embedding_dim"].isna().any():
        notes.append("What the paper cites from elsewhere states no q, so nothing of ours is put beside it.")
    labels = set(frame["label"])
    rows = [row for row, _ in _candidates(summaries, number) if row.label in labels]
    entries = frame.to_dict("records")
    if number != 5 and (other := sum(not any(_fits(row, entry) for entry in entries) for row in rows)):
        notes.append(f"Left out: {other} of our rows, with a setting that the paper's table has not.")
    return notes
