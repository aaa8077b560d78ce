"""Measures what has a target, beside it: python instruments/speed/targets.py [losses] [loaders] [memory].

Two quiet cores take half an hour for all three. The losses are measured with one thread of each rank, the loaders with
all cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from regbench.instruments.cost import loaders, losses
from regbench.instruments.cost.contestants import BASELINE
from regbench.instruments.cost.harness import MIB, Column, Machine, median, number, ratios, span, table
from regbench.instruments.cost.images import chosen_images
from regbench.instruments.speed import loader_memory

REPEATS = 3


@dataclass(frozen=True)
class Target:
    """What was measured beside what was aimed at.

    Attributes:
        what: In words.
        target: Such as "≤ 0.75".
        measured: Likewise.
        reached: Whether it was.
    """

    what: str
    target: str
    measured: str
    reached: bool


def at_most(what: str, bound: float, value: float | None, unit: str = "") -> Target:
    """Compare with an upper bound."""
    return Target(what, f"≤ {number(bound)}{unit}", f"{number(value)}{unit}", value is not None and value <= bound)


def of_losses() -> Iterator[Target]:
    """Measure time against the textbook, time of two ranks against one, and memory."""
    for method, n, q, bound in (
        ("sfrik_l3", 2048, 8192, 0.75),
        ("vicreg", 256, 8192, 0.02),
        ("vicreg", 2048, 8192, 0.17),
        ("barlow_twins", 256, 8192, 0.05),
    ):
        grid = losses.Grid(methods=(method,), n=(n,), q=(q,), forms=("textbook", "auto"), repeats=REPEATS)
        row = next(row for row in losses.measure(grid) if row.auto)
        yield at_most(f"time of {method}, n = {n}, q = {q}, {row.form} / textbook", bound, row.vs_textbook)
    grid = losses.Grid(methods=("sfrik_l3",), n=(2048,), q=(8192,), forms=("auto",), ranks=(2,), repeats=REPEATS)
    (row,) = losses.measure(grid)
    yield at_most("time of sfrik_l3, n = 2048, q = 8192, two ranks that share the batch / one", 0.6, row.vs_one_rank)
    rows = losses.measure(losses.Grid(n=(8192,), q=(2048,), forms=("auto",), repeats=0))
    most = max((row for row in rows if row.form != "textbook"), key=lambda row: row.extra_bytes or 0)
    what = f"extra memory of any streamed loss, n = 8192, q = 2048: {most.method}"
    yield at_most(what, 64.0, (most.extra_bytes or 0) / MIB, " MiB")


_PER_VIEW = "regbench, a decode per view"
# Part, filter, the other loader, raw images or JPEGs or both, the least ratio.
LOADERS: tuple[tuple[str, str, str, tuple[bool, ...], float], ...] = (
    ("crops", "bicubic", BASELINE, (False,), 2.5),
    ("crops", "area", BASELINE, (False,), 4.0),
    ("crops", "bicubic", _PER_VIEW, (False,), 1.25),
    ("views", "bicubic", BASELINE, (False, True), 2.0),
    ("crops", "bicubic", BASELINE, (True,), 10.0),
)


def of_loaders() -> Iterator[Target]:
    """Measure images a second against other loaders."""
    with chosen_images((), None) as images:
        rows, _ = loaders.measure(images, workers=len(os.sched_getaffinity(0)), seconds=2.0, rounds=5)
    speeds = {(row.images, row.part, row.contestant, row.interpolation): row.img_per_s for row in rows}
    for name, raw in dict.fromkeys((row.images, row.raw) for row in rows):
        for part, interpolation, other, kinds, bound in LOADERS:
            if raw in kinds:
                filter_ = "bicubic" if other == BASELINE else interpolation
                found = ratios(speeds[name, part, "regbench", interpolation], speeds[name, part, other, filter_])
                what = f"images/s of {name}, {part}, {interpolation}: regbench / {other}"
                measured = median(found)
                reached = measured is not None and measured >= bound
                yield Target(what, f"≥ {number(bound)}", f"{number(measured)} ({span(found)})", reached)


def of_memory() -> Iterator[Target]:
    """Measure by how much the memory of ranks grows with the file that they read."""
    yield at_most("growth of a rank's memory / growth of the file", 0.01, loader_memory.growth(loader_memory.measure()))


PARTS: dict[str, Callable[[], Iterator[Target]]] = {"losses": of_losses, "loaders": of_loaders, "memory": of_memory}
COLUMNS = (
    Column[Target]("", lambda row: row.what, "left"),
    Column[Target]("target", lambda row: row.target),
    Column[Target]("measured", lambda row: row.measured),
    Column[Target]("reached", lambda row: "yes" if row.reached else "no", "left"),
)


def main() -> None:
    """Print the targets beside what was measured."""
    rows = [row for part in sys.argv[1:] or PARTS for row in PARTS[part]()]
    print(f"{Machine.here('cpu', loaders.PACKAGES)}\n\n{table(rows, COLUMNS)}")


if __name__ == "__main__":
    main()
