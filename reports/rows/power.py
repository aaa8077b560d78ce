"""The power of a comparison: the seeds, or searches, that it takes to find a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regbench.errors import RegbenchError
from regbench.reports.rows.significance import LEVEL, POWER, Power
from regbench.sweeps.choose import grouped
from regbench.sweeps.forecast import Planned

BETWEEN_SEEDS, BETWEEN_SEARCHES = 0.46, 0.33
"""Deviations in points of the mean of kNN and linear probing on Fashion-MNIST
(docs/results/fashion_mnist.md).

Two searches that chose otherwise differ by 0.60, which is √2 times the deviation of a mean of three
seeds.
"""


def power_text(planned: Sequence[Planned], points: float, trials: int | None) -> str:
    """Describe how many seeds, or searches, find a true difference between any two rows of a
    sweep, if scores scatter as on Fashion-MNIST.

    Args:
        planned: Cells to compare. Those of a row differ in their seeds, and in hyperparameters if
            it is tuned.
        points: The difference in percentage points.
        trials: Trainings of a search; None: as many as the grid has configurations of a row.

    Raises:
        RegbenchError: If there is only one row.
    """
    cells = [entry.cell for entry in planned]
    groups = grouped(cells, {})
    # The test takes all baselines but the supervised row.
    rows = len(groups) + len({cell.label for cell in cells if not cell.epochs})
    if rows < 2:
        raise RegbenchError(
            "--tell compares rows of a table, and there is one; give a sweep of several methods"
        )
    firsts = {next(iter(configurations.values()))[0].id for configurations in groups.values()}
    once = [entry for entry in planned if entry.cell.id in firsts]
    cost = trials or max(map(len, groups.values()))
    seeds = Power(rows, BETWEEN_SEEDS).seeds_for(points)
    lines = [
        f"To find a true difference of {points:g} between any two of {rows} rows with "
        f"{100 * POWER:.0f} % power at {100 * LEVEL:.0f} % (Tukey's test with its variance; normal "
        "approximation):",
        f"- hyperparameters given: {seeds} seeds of each row, {_cost(once, seeds)}",
    ]
    if cost > 1:
        # This number makes the variance of a row's mean the smallest for a given number of
        # trainings.
        finals = max(1, round(math.sqrt(cost) * BETWEEN_SEEDS / BETWEEN_SEARCHES))
        of_mean = math.hypot(BETWEEN_SEARCHES, BETWEEN_SEEDS / math.sqrt(finals))
        searches = Power(rows, of_mean).seeds_for(points)
        lines.append(
            f"- tuned by {cost} trainings a search: {searches} searches of each row and {finals} "
            f"final seeds of each search, {_cost(once, searches * (cost + finals))}"
        )
    lines.append(
        f"Assumed standard deviations: {BETWEEN_SEEDS} points between seeds and "
        f"{BETWEEN_SEARCHES} between searches, as on Fashion-MNIST. A report's note goes by its "
        "own cells."
    )
    return "\n".join(lines)


def can_tell(rows: int, seeds: int, test_images: int) -> str:
    """Describe which true difference of two rows a comparison finds, before it runs."""
    found = Power(rows, BETWEEN_SEEDS).detectable(seeds)
    own_error = 100 * math.sqrt(2 * 0.8 * 0.2 / test_images)
    return (
        f"What this can tell: a true difference of {found:.2g} points between any two of {rows} "
        f"rows is found with {100 * POWER:.0f} % power at {100 * LEVEL:.0f} %, if scores scatter "
        f"by {BETWEEN_SEEDS} points between seeds, as on Fashion-MNIST; the {test_images:,} test "
        f"images have an error of their own of {own_error:.2g} points at 80 % accuracy, which "
        "seeds do not average out."
    )


def _cost(once: Sequence[Planned], times: int) -> str:
    """Describe what it takes to train each of some cells this many times."""
    known = [entry.gpu_hours for entry in once if entry.gpu_hours is not None]
    hours = "GPU hours unknown"
    if len(known) == len(once):
        about = "≈ " * any(entry.from_flop for entry in once)
        hours = f"{about}{sum(known) * times:.3g} GPU hours"
    return f"{len(once) * times:,} trainings, {hours}"
