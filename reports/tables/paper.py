"""The numbers of the SFRIK paper: Zheng et al., "Self-supervised learning with rotation-invariant kernels", ICLR 2023.

`benchmark/conf/published.csv` holds them as printed. `metric` is the name that a score has in a record, or a
hyperparameter: `probe_lr` is the paper's lr_head, `kernel_weight_1` its b1. A place that a line leaves out is one that
the paper does not state: Table 5 has no epochs, numbers that the paper cites from elsewhere have no q.
"""

from __future__ import annotations

from functools import cache

import pandas as pd

from regbench.benchmark.settings.recipes import paper_numbers

PLACE = ["embedding_dim", "batch_size", "epochs"]
"""Settings that tell the paper's experiments on a data set apart."""

BACKBONES = {"in20": "resnet18", "in100": "resnet50"}
"""The paper's backbone for each data set."""

_LINEAR_TABLES = {"in20": (2, 3), "in100": (4,)}  # Table 3 for the kernels that only it has
_LINEAR_TABLES_ON_TEST = {"in20": (13,), "in100": (4,)}


@cache
def load_paper() -> pd.DataFrame:
    """Load all numbers.

    Returns:
        Columns table, title (of the table), head (of its column), label, dataset, embedding_dim, batch_size, epochs,
        metric, value, unit, on_test ("yes", "no" or "not stated": whether the paper chose on the test set).
    """
    lines = []
    for number in paper_numbers():
        place = dict(setting.split("=") for setting in number.cell.split())
        table, _, head = number.setting.removeprefix("Table ").partition(", ")
        line = {"table": int(table), "title": number.what, "head": head, "label": number.method}
        line |= {"metric": number.score, "value": number.number, "unit": _unit(number.score)}
        lines.append(line | place | {"on_test": number.on_test})
    frame = pd.DataFrame(lines)
    # Int64 has a missing value, which never equals the setting of a cell of ours.
    frame[PLACE] = frame[PLACE].apply(pd.to_numeric).astype("Int64")
    return frame


def _unit(metric: str) -> str:
    if metric.endswith(("_top1", "_top5", "_map_full")):
        return "%"
    return "GB" if metric == "peak_memory" else ""


def paper_table(table: int) -> pd.DataFrame:
    """Return the rows of one of the paper's tables, in the paper's order; empty if it is not in the data."""
    frame = load_paper()
    return frame[frame["table"] == table]


def paper_value(label: str, metric: str, table: int, **where: int) -> float | None:
    """Look up one printed number.

    Args:
        label: Display name of the method, such as "SFRIK (L=3)".
        metric: Name of the score, such as "linear_top1".
        table: Number of the table in the paper.
        **where: Further columns to match, such as embedding_dim=8192 or epochs=200.

    Returns:
        The number, in the unit that the table states; None if the paper has none.
    """
    frame = paper_table(table)
    match = (frame["label"] == label) & (frame["metric"] == metric)
    for column, value in where.items():
        match &= (frame[column] == value).fillna(False).astype(bool)
    values = frame.loc[match, "value"]
    return float(values.iloc[0]) if len(values) else None


@cache
def linear_top1(label: str, dataset: str, backbone: str, *, on_test: bool, **where: int) -> float | None:
    """Look up linear probing of one of the paper's experiments, in percent; None if the paper made no such experiment.

    Args:
        label: Display name of the method.
        dataset: Name of the data set.
        backbone: Name of the network.
        on_test: Whether the test set chose the hyperparameters.
        **where: `embedding_dim`, `batch_size` and `epochs`.
    """
    if BACKBONES.get(dataset) != backbone:
        return None
    tables = _LINEAR_TABLES_ON_TEST if on_test else _LINEAR_TABLES
    for table in tables[dataset]:
        value = paper_value(label, "linear_top1", table, **where)
        if value is not None:
            return value
    return None
