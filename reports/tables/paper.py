"""Ours beside the numbers of the SFRIK paper: Zheng et al., ICLR 2023, of which
`conf/published.csv` has all.

A row of ours fits a number that agrees with it in method, data set, backbone, embedding dimension,
batch and epochs, whatever its sweep was called. Numbers that the paper cites from elsewhere state
no embedding dimension, and none fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from regbench.benchmark.settings.recipes import PublishedNumber, paper_numbers
from regbench.reports.rows.deviations import Stat
from regbench.reports.rows.summary import Row, Summary
from regbench.reports.tables.table import (
    Table,
    difference,
    entries,
    number_columns,
    spread,
    text_columns,
)

_BACKBONES = {"in20": "resnet18", "in100": "resnet50"}
"""The paper's backbone for each data set."""

_ALL_ON_TEST = "Table 13"  # Table 2 again, with everything tuned on the test set
_GPUS = 8  # of the runs whose memory is in Table 5

_NOTES = (
    "Every number of the paper of which a row here is the same experiment: method, data set, "
    "network, q, batch and epochs. *: the paper chose hyperparameters on the test set.",
    "Table 13 takes rows that were chosen on the test set, the others what the tuning split chose.",
    f"Memory is that of one of {_GPUS} GPUs, in decimal GB.",
)


def paper_linear_top1(summary: Summary, row: Row) -> float | None:
    """Look up the paper's linear probing of the experiment of a row, in percent; None if it
    made no such experiment.
    """
    for number in _numbers_of(summary, row):
        if number.score == "linear_top1":
            return number.number
    return None


def beside_paper(summaries: Sequence[Summary]) -> tuple[Table, pd.DataFrame] | None:
    """Set ours beside the paper's; None where no row has a number of the paper's experiments.

    Returns:
        The table, and the same as numbers: columns table, label, cell (the settings of the paper's
        experiment), score, paper, ours, ours_std, n, difference, ours_on_test.
    """
    lines = []
    for summary in summaries:
        for row in summary.rows:
            for number in _numbers_of(summary, row):
                ours = _ours(row, number.score)
                if ours is not None and number.number is not None:
                    lines.append((number, row, ours, summary.on_test))
    if not lines:
        return None
    order = {number: place for place, number in enumerate(paper_numbers())}
    # In the order of the paper's tables, in which a reader looks numbers up.
    lines.sort(key=lambda line: order[line[0]])
    body, numbers = [], []
    for number, row, ours, on_test in lines:
        table, _, head = number.setting.removeprefix("Table ").partition(", ")
        apart = ours.mean - (number.number or 0.0)
        published = f"{number.number:g}" + "*" * (number.on_test == "yes")
        body.append(
            entries(
                table, row.label, number.cell, head, spread(ours, 2), published, difference(apart)
            )
        )
        line = {"table": int(table), "label": row.label, "cell": number.cell, "score": number.score}
        line |= {"paper": number.number, "ours": ours.mean, "ours_std": ours.spread, "n": ours.n}
        numbers.append(line | {"difference": apart, "ours_on_test": on_test})
    columns = [
        *text_columns("table", "method", "experiment", "score"),
        *number_columns("ours", "paper", "difference"),
    ]
    return Table("beside_paper", "Ours and the paper's", columns, body, list(_NOTES)), pd.DataFrame(
        numbers
    )


def _numbers_of(summary: Summary, row: Row) -> Iterator[PublishedNumber]:
    """Yield the paper's numbers of the experiment of a row."""
    cell = row.first.cell
    if row.is_reference or _BACKBONES.get(cell["dataset"]["name"]) != row.first.backbone:
        return
    for number in paper_numbers():
        chosen_alike = (
            number.on_test == "yes"
            if summary.on_test
            else not number.setting.startswith(_ALL_ON_TEST)
        )
        # Table 5 does not tell the orders of SFRIK apart.
        label = (
            "SFRIK"
            if number.score == "peak_memory" and row.label.startswith("SFRIK")
            else row.label
        )
        if (
            number.method == label
            and chosen_alike
            and "embedding_dim=" in number.cell
            and number.is_of(cell)
        ):
            yield number


def _ours(row: Row, score: str) -> Stat | None:
    if score != "peak_memory":
        return row.score(score)
    peak, kind = row.cost("peak_memory_bytes"), row.first.cost.peak_memory_kind
    # The resident size of a process on a CPU says nothing beside the allocator's peak on a GPU.
    if peak is None or kind != "CUDA allocated" or row.first.environment.get("world_size") != _GPUS:
        return None
    # The paper's code divides bytes by a million, so that its GB are decimal.
    return peak.over(1e9)
