"""The power of a comparison: the seeds, or searches, that it takes to find a difference."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

from regbench.benchmark.settings.sweep import Sweep
from regbench.errors import RegbenchError
from regbench.reports.find.records import read_records
from regbench.reports.rows.deviations import Components, components
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.significance import LEVEL, POWER, Power
from regbench.reports.rows.summary import Summary
from regbench.sweeps.choose import grouped
from regbench.sweeps.forecast import Planned

ASSUMED = Components(seed=0.46, search=0.33)
"""Deviations of the mean of kNN and linear probing on Fashion-MNIST
(docs/results/fashion_mnist.md): seeds scatter by
0.46 points, and two searches that chose otherwise differ by 0.60, which is √2 times the deviation
of a mean of three seeds."""


def known_deviations(grid: Sweep) -> tuple[Components, str]:
    """Return how far scores scatter, and in words where that is from.

    It is from records of the sweep, else from those of others on its data set and backbone, else
    `ASSUMED`.
    """
    summaries: list[Summary] = []
    with contextlib.suppress(RegbenchError):  # nothing has run yet
        summaries = summarize(read_records(Path(grid.runtime.runs_dir)).records)
    cell, found = grid.cells[0], []
    task = cell.dataset.name, cell.network.architecture
    for summary in summaries:
        first, headline = summary.records[0], summary.headline
        if (first.cell["dataset"]["name"], first.backbone) != task:
            continue
        if headline is not None and summary.scores[headline].unit == "%":
            tukey = summary.tukey(headline)
            if tukey.deviation > 0:
                found.append((grid.name in summary.sweeps, tukey.freedom, headline, summary))
    if not found:
        return ASSUMED, "as in the study of all methods on Fashion-MNIST"
    # Records of the sweep itself come before others, and then those of the most degrees of freedom.
    _, _, name, summary = max(found, key=lambda each: each[:2])
    origin = f"by {summary.scores[name].title} in {summary.name}"
    split = components(row.samples(name) for row in summary.methods if row.repeated)
    if split is not None:
        return split, origin
    seed = summary.tukey(name).deviation
    return Components(seed, ASSUMED.search), f"the former {origin}, the latter assumed"


def power_text(
    planned: Sequence[Planned],
    points: float,
    deviations: Components,
    origin: str,
    trials: int | None,
) -> str:
    """Describe how many seeds, or searches, find a true difference between any two rows of a
    sweep.

    Args:
        planned: Cells to compare. Those of a row differ in their seeds, and where it is tuned in
            hyperparameters.
        points: The difference in percentage points.
        deviations: Standard deviations of the scores.
        origin: Source of the deviations.
        trials: Trainings of a search; None: as many as the grid has configurations of a row.

    Raises:
        RegbenchError: If there is one row.
    """
    cells = [entry.cell for entry in planned]
    groups = grouped(cells, {})
    # The test takes all baselines but the supervised row.
    untrained = {cell.label for cell in cells if not cell.epochs}
    rows = len(groups) + len(untrained)
    if rows < 2:
        raise RegbenchError(
            "--tell compares rows of a table, and there is one; give a sweep of several methods"
        )
    firsts = {next(iter(configurations.values()))[0].id for configurations in groups.values()}
    once = [entry for entry in planned if entry.cell.id in firsts]
    cost = trials or max(map(len, groups.values()))
    seeds = Power(rows, deviations.seed).seeds_for(points)
    lines = [
        f"To find a true difference of {points:g} between any two of {rows} rows with "
        f"{100 * POWER:.0f} % power at {100 * LEVEL:.0f} % (Tukey's test with its variance; normal "
        "approximation):",
        f"- hyperparameters given: {seeds} seeds of each row, {_cost(once, seeds)}",
    ]
    if cost > 1 and deviations.search > 0:
        # This number makes the variance of a row's mean the smallest for a given number of
        # trainings.
        finals = max(1, round(math.sqrt(cost) * deviations.seed / deviations.search))
        of_mean = math.hypot(deviations.search, deviations.seed / math.sqrt(finals))
        searches = Power(rows, of_mean).seeds_for(points)
        lines.append(
            f"- tuned by {cost} trainings a search: {searches} searches of each row and {finals} "
            f"final seeds of each search, {_cost(once, searches * (cost + finals))}"
        )
    lines.append(
        f"Assumed standard deviations: {deviations.seed:.2f} points between seeds and "
        f"{deviations.search:.2f} between searches, {origin}; --spread sets others."
    )
    return "\n".join(lines)


def _cost(once: Sequence[Planned], times: int) -> str:
    """Describe what it takes to train each of some cells this many times."""
    known = [entry.gpu_hours for entry in once if entry.gpu_hours is not None]
    hours = "GPU hours unknown"
    if len(known) == len(once):
        about = "≈ " * any(entry.from_flop for entry in once)
        hours = f"{about}{sum(known) * times:.3g} GPU hours"
    return f"{len(once) * times:,} trainings, {hours}"
