"""What all measurements have in common: the machine, rounds in turns, ratios within a round, tables and CSV.

What is compared takes turns, and ratios are of one round: all sides see the same machine.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from tabulate import tabulate

from regbench.benchmark.machine import hardware, versions

MIB = 2**20

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Machine:
    """Where and with what something was measured.

    Attributes:
        hardware: The cores or the GPU.
        versions: Versions of the packages that do the work.
        settings: What else decides the numbers, by name, such as threads and rounds.
    """

    hardware: str
    versions: Mapping[str, str]
    settings: Mapping[str, Any]

    @staticmethod
    def here(device: str = "cpu", packages: Sequence[str] = ("torch",), /, **settings: Any) -> Machine:
        """Describe this machine."""
        return Machine(hardware(torch.device(device)), versions(*packages), settings)

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a CSV file."""
        return {"hardware": self.hardware, **self.versions, **self.settings}

    def __str__(self) -> str:
        """Put it into one line."""
        settings = ", ".join(f"{name} = {value}" for name, value in self.settings.items())
        packages = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return "; ".join(filter(None, (self.hardware, settings, packages)))


def take_turns(turns: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """Call everything once in each round, in turns.

    Args:
        turns: What to call, by name.
        rounds: How many; every second one goes backwards, so that nobody always comes after the same other.

    Returns:
        What each gave in each round.
    """
    results: dict[K, list[T]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in list(turns)[:: -1 if number % 2 else 1]:
            results[name].append(turns[name]())
    return results


def ratios(own: Sequence[float], other: Sequence[float] | None) -> list[float]:
    """Divide what was measured in the same rounds; empty if one of the two was not measured in all of them."""
    return [a / b for a, b in zip(own, other, strict=True)] if other and len(own) == len(other) else []


def median(values: Sequence[float] | None) -> float | None:
    """Find the median; None without values."""
    return statistics.median(values) if values else None


def number(value: float | None) -> str:
    """Write three digits, more only before the point; a dash for None."""
    if not value:
        return "–" if value is None else "0"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def span(values: Sequence[float] | None) -> str:
    """Write the least and the greatest value."""
    return f"{number(min(values))}–{number(max(values))}" if values else "–"


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of a table.

    Attributes:
        head: Its title.
        text: What it shows of a row.
        align: Alignment, as `tabulate` names it.
    """

    head: str
    text: Callable[[R], str]
    align: str = "right"


def table(rows: Sequence[R], columns: Sequence[Column[R]], style: str = "simple") -> str:
    """Set rows as a table, in a format of `tabulate`."""
    cells = [[column.text(row) for column in columns] for row in rows]
    heads, align = [column.head for column in columns], [column.align for column in columns]
    return tabulate(cells, headers=heads, tablefmt=style, disable_numparse=True, colalign=align if rows else None)


def to_csv(rows: Sequence[Mapping[str, Any]], machine: Machine) -> str:
    """Write rows of the same names as CSV, with the machine in columns of its own."""
    lines = [{**row, **machine.columns} for row in rows]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()
