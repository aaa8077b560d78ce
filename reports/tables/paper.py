"""The reference numbers of Zheng et al., "Self-supervised learning with rotation-invariant kernels".

The paper appeared at ICLR 2023. `paper.csv` holds the numbers of its tables as printed: 2 (linear probing on
IN20 % by embedding dimension), 3 (kernel ablation), 4 (ResNet-50 on IN100 %), 5 (peak memory per GPU, decimal
GB), 6 to 9 (hyperparameters on IN20 %), 10 (those of SFRIK on IN100 %), 11 and 12 (learning rates of linear probing
and of semi-supervised learning), 13 (Table 2 again, but tuned on the test set), 14 (Places205 and VOC07 after
IN20 %) and 15 (other methods on IN100 %). `metric` is the name that the score has in a record, or a hyperparameter:
`probe_lr` is the paper's lr_head, `kernel_weight_1` its b1. A blank means that the paper does not state it: Table 5
does not say which order SFRIK had.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd


@cache
def load_paper() -> pd.DataFrame:
    """Load all numbers: table, label, method, order, embedding_dim, batch_size, epochs, metric, value, unit."""
    whole = dict.fromkeys(("order", "embedding_dim", "batch_size", "epochs"), "Int64")
    return pd.read_csv(Path(__file__).with_name("paper.csv"), dtype=whole)


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
    tables = {
        ("in20", "resnet18"): (13,) if on_test else (2, 3),  # 3 for the kernels that only it has
        ("in100", "resnet50"): (4,),
    }
    values = (paper_value(label, "linear_top1", table, **where) for table in tables.get((dataset, backbone), ()))
    return next((value for value in values if value is not None), None)
