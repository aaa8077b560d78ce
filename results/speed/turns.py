"""Comparisons in turns, printed: what the scripts beside this file share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from regbench.instruments.cost.harness import median, number, ratios, span, take_turns


def compare(turns: Mapping[str, Callable[[], float]], rounds: int, base: str) -> None:
    """Print what each measured, its median and range over rounds, and the ratio to `base`.

    A round that is not counted warms up.
    """
    take_turns(turns, 1)
    found = take_turns(turns, rounds)
    for name, values in found.items():
        of_base = ratios(values, found[base])
        share = f"{number(median(of_base))} ({span(of_base)}) of {base}"
        print(f"{name}: {number(median(values))} ({span(values)}); {share}")
