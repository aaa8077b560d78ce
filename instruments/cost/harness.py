"""Parts of all measurements: the machine, rounds in turns, ratios within a round, numbers and CSV.

What is compared takes turns, and ratios are of one round: all sides see the same machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch

from regbench.benchmark.machine.description import hardware, versions
from regbench.csv_files import csv_text

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def machine(
    device: str, packages: Sequence[str] = ("torch",), /, **settings: Any
) -> dict[str, Any]:
    """Describe where and with what something is measured: columns of its CSV file."""
    return {"hardware": hardware(torch.device(device)), **versions(*packages), **settings}


def in_words(machine: Mapping[str, Any]) -> str:
    """Put the description of a machine into one line."""
    rest = [f"{name} {value}" for name, value in machine.items() if name != "hardware"]
    return f"{machine['hardware']}; {', '.join(rest)}"


def take_turns(turns: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """Call everything once in each round, in turns.

    `torch.utils.benchmark` has no rounds, and its `Timer.timeit` warms up with two calls each time:
    where a call takes seconds and comes once a round, that is three times the work.

    Args:
        turns: Functions to call, by name.
        rounds: Number of rounds; every second one goes backwards, so that none always follows the
            same other.

    Returns:
        What each gave in each round.
    """
    results: dict[K, list[T]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in list(turns)[:: -1 if number % 2 else 1]:
            results[name].append(turns[name]())
    return results


def ratios(own: Sequence[float], other: Sequence[float] | None) -> list[float]:
    """Divide what was measured in the same rounds.

    Empty if one of the two was not measured in all of them.
    """
    if not other or len(own) != len(other):
        return []
    return [a / b for a, b in zip(own, other, strict=True)]


def median(values: Sequence[float] | None) -> float | None:
    """Find the median; None without values."""
    return statistics.median(values) if values else None


def number(value: float | None) -> str:
    """Write three digits, more only before the point; a dash for None."""
    if not value:
        return "–" if value is None else "0"
    # More digits than rounds agree in would only look exact.
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def span(values: Sequence[float] | None) -> str:
    """Write the least and the greatest value."""
    return f"{number(min(values))}–{number(max(values))}" if values else "–"


def to_csv(rows: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]) -> str:
    """Write rows of the same names as CSV, with the machine in columns of its own."""
    heads = dict.fromkeys(chain(*rows, machine))
    return csv_text(heads, ([{**row, **machine}.get(head) for head in heads] for row in rows))
