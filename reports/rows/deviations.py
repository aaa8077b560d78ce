"""How far scores scatter: means with their deviations, and what of these is of the seed and of the search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation (n − 1) over n seeds; spread is None for a single seed."""

    mean: float
    spread: float | None
    n: int

    def interval(self) -> tuple[float, float]:
        """Return the ends of the mean's 95 % interval, by Student's t; NaN for a single value."""
        if self.spread is None:
            return math.nan, math.nan
        from scipy.stats import t  # takes longer to import than a report of a few cells

        half = float(t.ppf(0.975, self.n - 1)) * self.spread / math.sqrt(self.n)
        return self.mean - half, self.mean + half

    def over(self, divisor: float) -> Stat:
        """Return the statistics of the values divided by a number."""
        return Stat(self.mean / divisor, self.spread and self.spread / divisor, self.n)


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


@dataclass(frozen=True)
class Components:
    """Standard deviations of a score within a method.

    Attributes:
        seed: From the seed of the final run.
        search: From the search.
    """

    seed: float
    search: float

    @property
    def share(self) -> float:
        """The search's part of the variance of a single run."""
        total = self.seed**2 + self.search**2
        return self.search**2 / total if total else 0.0


def components(rows: Iterable[Mapping[int, Sequence[float]]]) -> Components | None:
    """Estimate both components from rows given as search -> scores of its final seeds.

    The analysis of variance of seeds nested in searches nested in rows, which may be unbalanced (Searle, Casella and
    McCulloch, Variance Components, 1992, chapter 3): the mean square between searches has the expectation
    σ²_seed + n₀ σ²_search.

    Returns:
        None without a row of two searches, or without a search of two seeds.
    """
    within = between = size = 0.0
    within_freedom = between_freedom = 0
    for row in rows:
        counts = np.array([len(scores) for scores in row.values()])
        means = np.array([np.mean(scores) for scores in row.values()])
        if len(row) < 2:
            continue
        for scores in row.values():
            # NumPy's variance divides by n, so this is the sum of squares about the search's mean.
            within += float(np.var(scores)) * len(scores)
        within_freedom += int(counts.sum()) - len(row)
        between += float(counts @ (means - np.average(means, weights=counts)) ** 2)
        between_freedom += len(row) - 1
        # The sum of n₀, each with its degrees of freedom: n₀ is the number of seeds where all searches have as many.
        size += float(counts.sum() - np.square(counts).sum() / counts.sum())
    if not within_freedom or not between_freedom:
        return None
    of_seed = within / within_freedom
    of_search = (between / between_freedom - of_seed) / (size / between_freedom)
    # A difference of two estimates, which is below 0 by chance where searches hardly differ.
    return Components(math.sqrt(of_seed), math.sqrt(max(0.0, of_search)))
