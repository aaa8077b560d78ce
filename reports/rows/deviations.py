"""Means with their deviations, and the shares of seeds, searches and machines in these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation (n − 1) over n seeds; std is None for a single seed."""

    mean: float
    std: float | None
    n: int

    def interval(self) -> tuple[float, float]:
        """Return the ends of the mean's 95 % interval, by Student's t; NaN for a single value."""
        if self.std is None:
            return math.nan, math.nan
        from scipy.stats import t  # takes longer to import than a report of a few cells

        half = float(t.ppf(0.975, self.n - 1)) * self.std / math.sqrt(self.n)
        return self.mean - half, self.mean + half

    def over(self, divisor: float) -> Stat:
        """Return the statistics of the values divided by a number."""
        return Stat(self.mean / divisor, self.std and self.std / divisor, self.n)


def stat(values: Iterable[float | None]) -> Stat | None:
    """Compute the statistics of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    # Exact sums, so that the order of the seeds does not change a last digit.
    n, mean = len(known), math.fsum(known) / len(known)
    if n == 1:
        return Stat(mean, None, 1)
    return Stat(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1)), n)


def nested_deviations(rows: Iterable[Mapping[Any, Sequence[float]]]) -> tuple[float, float] | None:
    """Estimate how far scores scatter within the groups of a row, and how far its groups do.

    The analysis of variance of runs nested in groups nested in rows, which may be unbalanced
    (Searle, Casella and McCulloch, Variance Components, 1992, chapter 3): the mean square between
    groups has the expectation σ²_within + n₀ σ²_group. A group is a search, or a machine.

    Args:
        rows: Groups of each row: group -> scores of its runs.

    Returns:
        The standard deviations σ_within and σ_group; None without a row of two groups, or without a
        group of two runs in such a row.
    """
    within = between = size = 0.0
    within_freedom = between_freedom = 0
    for row in rows:
        counts = np.array(list(map(len, row.values())))
        means = np.array(list(map(np.mean, row.values())))
        if len(row) < 2:
            continue
        for scores in row.values():
            # NumPy's variance divides by n, so this is the sum of squares about the group's mean.
            within += float(np.var(scores)) * len(scores)
        within_freedom += int(counts.sum()) - len(row)
        between += float(counts @ (means - np.average(means, weights=counts)) ** 2)
        between_freedom += len(row) - 1
        # The sum of n₀ times the degrees of freedom. If all groups have the same number of runs, n₀
        # is this number.
        size += float(counts.sum() - np.square(counts).sum() / counts.sum())
    if not within_freedom or not between_freedom:
        return None
    of_run = within / within_freedom
    of_group = (between / between_freedom - of_run) / (size / between_freedom)
    # A difference of two estimates, which may be below 0 by chance if groups hardly differ.
    return math.sqrt(of_run), math.sqrt(max(0.0, of_group))
