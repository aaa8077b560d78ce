"""What tables of the site say of rows beside their scores: what embeddings are like at the end, and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from regbench.reports.board.columns import Column, means
from regbench.reports.rows.summary import Row, Stat


@dataclass(frozen=True)
class Measured:
    """A column of means over seeds.

    Attributes:
        name: Its head.
        digits: Decimals.
        of: A row's statistics; None where it was not measured.
    """

    name: str
    digits: int
    of: Callable[[Row], Stat | None]


def _at_end(name: str, row: Row) -> Stat | None:
    return row.at_end(name)


def _score(name: str, row: Row) -> Stat | None:
    return row.score(name, "tuning") or row.score(name)


def _cost(name: str, divisor: float, row: Row) -> Stat | None:
    return found.over(divisor) if (found := row.cost(name)) else None


MEASURES = (
    Measured("effective rank, embedding", 1, partial(_at_end, "effective_rank")),
    Measured("alignment, embedding", 2, partial(_at_end, "alignment")),
    Measured("effective rank, representation", 1, partial(_score, "rankme")),
    Measured("alignment, representation", 2, partial(_score, "alignment")),
)
COSTS = (
    Measured("training (s)", 1, partial(_cost, "train_s", 1)),
    Measured("step (ms)", 1, partial(_cost, "step_ms", 1)),
    Measured("loss (ms/step)", 2, partial(_cost, "loss_ms", 1)),
    Measured("peak memory (MiB)", 0, partial(_cost, "peak_memory_bytes", 2**20)),
    Measured("loss memory (MiB)", 2, partial(_cost, "loss_extra_bytes", 2**20)),
)


def measured(kinds: Iterable[Measured], rows: Sequence[Row]) -> tuple[list[Column], list[list[Any]]]:
    """Return the columns that any of the rows has, and what stands in them for each row."""
    found = [(kind, values) for kind in kinds if any(values := [stat_entry(kind.of(row)) for row in rows])]
    of_rows = [[values[place] for _, values in found] for place in range(len(rows))]
    return [means(kind.name, kind.digits) for kind, _ in found], of_rows


def stat_entry(value: Stat | None, *, bold: bool = False) -> list[Any] | None:
    """Write statistics as a column of `means` takes them."""
    return None if value is None else [value.mean, value.spread, bold]
