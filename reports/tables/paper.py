"""Published numbers beside ours: those of recipes, and all of the SFRIK paper (Zheng et al., ICLR
2023). Both are in `conf/published.csv`.

A row is a recipe's if its sweep is the recipe's preset. A row fits a number of the paper that
agrees with it in method, data set, backbone, embedding dimension, batch and epochs, whatever its
sweep was called. Numbers that the paper cites from elsewhere state no embedding dimension, so no
row fits them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

import pandas as pd

from regbench.benchmark.settings.recipes import PublishedNumber, paper_numbers, published_numbers
from regbench.reports.rows.deviations import Stat
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.table import Column, Filled, Line, Table, entries, mean_pm, signed
from regbench.text import few

_BACKBONES = {"in20": "resnet18", "in100": "resnet50"}
"""The paper's backbone for each data set."""

_ALL_ON_TEST = "Table 13"  # Table 2 again, with everything tuned on the test set
_GPUS = 8  # of the runs whose memory is in Table 5
_SOURCES_SHOWN = 3

_NOTES = (
    "Every number of the paper of which a row here is the same experiment: method, data set, "
    "network, q, batch and epochs. *: the paper chose hyperparameters on the test set.",
    "Rows chosen on the test set stand beside numbers with *, others beside all but Table 13's.",
    f"Memory is that of one of {_GPUS} GPUs, in decimal GB.",
)


def published(summary: Summary, row: Row, score: str) -> PublishedNumber | None:
    """Find the published number of a score of a row's experiment; None if there is none."""
    of_sweep = [number for number in published_numbers() if number.preset == row.first.sweep]
    recipes = [number for number in of_sweep if number.is_of(row.first.cell)]
    for number in [*recipes, *_paper_numbers_of(summary, row)]:
        if number.score == score and number.number is not None and not row.is_reference:
            return number
    return None


def published_columns(summary: Summary, names: Sequence[str]) -> list[Filled]:
    """Make a column of published numbers for each of some scores that have any."""
    columns: list[Filled] = []
    for name in names:
        if any(published(summary, row, name) for row in summary.rows):
            head = f"{summary.scores[name].head}, published"
            columns.append((Column(head, spare=5), partial(_published, summary, name)))
    return columns


def _published(summary: Summary, name: str, row: Row) -> str:
    number = published(summary, row, name)
    return DASH if number is None else _number(number)


def _number(number: PublishedNumber) -> str:
    text = f"{number.number:g}"
    if number.deviation is not None:
        text += f" ± {number.deviation:g}"
    return text + "*" * (number.on_test == "yes")


def published_notes(summary: Summary, names: Sequence[str]) -> list[str]:
    """Describe the published numbers of some scores: which experiments they are of, and where
    they stand.
    """
    found = [published(summary, row, name) for row, name in product(summary.rows, names)]
    sources = dict.fromkeys(f"{number.what} ({number.source})" for number in filter(None, found))
    if not sources:
        return []
    return [
        "Published numbers are of the same method, batch and epochs in the recipe's sweep, or of "
        "the SFRIK paper's experiment with the same data set, network, method, q, batch and "
        "epochs. *: chosen on the test set, so optimistic; ours are of the last epoch. "
        f"Sources: {few(list(sources), _SOURCES_SHOWN, between='; ')}."
    ]


def beside_paper(summaries: Sequence[Summary]) -> Table | None:
    """Make the table of our numbers beside the paper's; None if no row is one of its experiments.

    Its numbers have the columns table, label, cell (the settings of the paper's experiment), score,
    paper, ours, ours_std, n, difference, ours_on_test.
    """
    found = []
    for summary in summaries:
        for row in summary.rows:
            for number in _paper_numbers_of(summary, row):
                ours = _ours(row, number.score)
                if ours is not None and number.number is not None:
                    found.append((number, row, ours, summary.on_test))
    if not found:
        return None
    order = {number: place for place, number in enumerate(paper_numbers())}
    # In the order of the paper's tables, in which a reader looks numbers up.
    found.sort(key=lambda one: order[one[0]])
    lines, numbers = [], []
    for number, row, ours, on_test in found:
        table, _, head = number.setting.removeprefix("Table ").partition(", ")
        apart = ours.mean - (number.number or 0.0)
        texts = [table, row.label, number.cell, head]
        texts += [mean_pm(ours, 2), _number(number), signed(apart)]
        lines.append(Line(entries(*texts), row.label))
        line = {"table": int(table), "label": row.label, "cell": number.cell, "score": number.score}
        line |= {"paper": number.number, "ours": ours.mean, "ours_std": ours.std, "n": ours.n}
        numbers.append(line | {"difference": apart, "ours_on_test": on_test})
    words = ("table", "method", "experiment", "score")
    columns = [Column(name, numeric=False) for name in words]
    columns += map(Column, ("ours", "paper", "difference"))
    frame = pd.DataFrame(numbers)
    return Table("beside_paper", "Ours and the paper's", columns, lines, list(_NOTES), "", frame)


def _paper_numbers_of(summary: Summary, row: Row) -> list[PublishedNumber]:
    """List the paper's numbers of the experiment of a row."""
    cell, found = row.first.cell, []
    if row.is_reference or _BACKBONES.get(cell["dataset"]["name"]) != row.first.backbone:
        return []
    for number in paper_numbers():
        if summary.on_test:
            chosen_alike = number.on_test == "yes"
        else:
            chosen_alike = not number.setting.startswith(_ALL_ON_TEST)
        label = row.label
        # Table 5 does not tell the orders of SFRIK apart.
        if number.score == "peak_memory" and label.startswith("SFRIK"):
            label = "SFRIK"
        # Numbers that are cited from elsewhere state no embedding dimension.
        own = "embedding_dim=" in number.cell
        if own and chosen_alike and number.method == label and number.is_of(cell):
            found.append(number)
    return found


def _ours(row: Row, score: str) -> Stat | None:
    if score != "peak_memory":
        return row.score(score)
    peak, kind = row.cost("peak_memory_bytes"), row.first.cost.peak_memory_kind
    # The resident size of a process on a CPU says nothing beside the allocator's peak on a GPU.
    if peak is None or kind != "CUDA allocated" or row.first.environment.get("world_size") != _GPUS:
        return None
    # The paper's code divides bytes by a million, so that its GB are decimal.
    return peak.over(1e9)
