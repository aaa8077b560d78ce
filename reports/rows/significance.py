"""Which differences between methods are more than the luck of the seeds.

Two methods that ran with the same seed saw the same images in the same order, so they are compared seed by seed: a
paired t-test on the differences, two-sided, at 5 %. Where several rows are held against the best one, Holm's
correction (1979) keeps the chance of one false difference at 5 % for all of them together.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

LEVEL = 0.05
MIN_PAIRS = 3


@dataclass(frozen=True)
class Comparison:
    """Two rows over the seeds that they share.

    Attributes:
        pairs: How many seeds they share.
        difference: Mean of the first minus the second, NaN without a pair.
        p: Of the paired t-test; NaN with fewer than `MIN_PAIRS` pairs.
    """

    pairs: int
    difference: float
    p: float


def compare(one: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> list[Comparison]:
    """Compare one row with each of some others; rows are given as seed -> score."""
    from scipy.special import stdtr  # scipy.stats takes longer to import than a report of a few cells

    if not others or not one:
        return [Comparison(0, math.nan, math.nan) for _ in others]
    # Scores are stated to a hundredth at most: what is below a billionth is rounding.
    differences = np.round([[value - other.get(seed, np.nan) for seed, value in one.items()] for other in others], 9)
    pairs = np.sum(~np.isnan(differences), axis=1)
    with warnings.catch_warnings():  # of too few pairs
        warnings.simplefilter("ignore", RuntimeWarning)
        mean = np.nanmean(differences, axis=1)
        variance = np.nanvar(differences, axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # of differences without any spread
        t = mean / np.sqrt(variance / pairs)
    p = 2 * stdtr(pairs - 1, -np.abs(t))  # two-sided
    p = np.where(np.nanmax(np.abs(differences), axis=1, initial=0.0) == 0, 1.0, p)  # the same on every seed
    p = np.where(pairs >= MIN_PAIRS, p, np.nan)
    return [Comparison(int(n), float(d), float(q)) for n, d, q in zip(pairs, mean, p, strict=True)]


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values for being several, by Holm's step-down procedure; NaN stays and does not count."""
    values = np.array(p, float)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    factors = len(order) - np.arange(len(order))
    values[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return [float(v) for v in values]


@dataclass(frozen=True)
class Best:
    """The rows that no other is known to be better than.

    Attributes:
        rows: Their positions: the best mean, and those that the test cannot tell from it.
        top: The position of the best mean; None where there is no score.
        p: Position of each other row with a score -> corrected p of its difference from the best; NaN with fewer than
            `MIN_PAIRS` seeds in common.
    """

    rows: frozenset[int] = frozenset()
    top: int | None = None
    p: Mapping[int, float] = field(default_factory=dict)

    @property
    def tested(self) -> int:
        """How many rows were held against the best."""
        return len(self.p) - len(self.untested)

    @property
    def untested(self) -> tuple[int, ...]:
        """Positions of those that share too few seeds with it."""
        return tuple(i for i, p in self.p.items() if math.isnan(p))

    def reason(self, i: int) -> str:
        """Say why a row is among them, or is not; empty where it has no score."""
        if i == self.top:
            return "the best mean of this column"
        if i not in self.p:
            return ""
        if math.isnan(self.p[i]):
            tested = f"not tested against the best: fewer than {MIN_PAIRS} seeds in common"
        else:
            told = "significantly" if self.p[i] <= LEVEL else "not significantly"
            tested = f"{told} different from the best: p = {self.p[i]:.2g} (paired t-test, Holm's correction)"
        same = i in self.rows and not self.p[i] > LEVEL
        return f"the same as the best, as printed; {tested}" if same else tested


def best(scores: Sequence[Mapping[int, float]], decimals: int = 2, *, higher_is_better: bool = True) -> Best:
    """Find which rows to mark as best; each is given as seed -> score, an empty one takes no part.

    Args:
        scores: Seed -> score of each row.
        decimals: Means that are equal when printed so are equally good.
        higher_is_better: Whether the highest mean is the best, or the lowest.
    """
    if not any(scores):
        return Best()
    means = {i: float(np.mean(list(row.values()))) for i, row in enumerate(scores) if row}
    top = (max if higher_is_better else min)(means, key=lambda i: means[i])
    equal = {i for i, mean in means.items() if round(mean, decimals) == round(means[top], decimals)}
    others = [i for i in means if i != top]
    p = dict(zip(others, holm([c.p for c in compare(scores[top], [scores[i] for i in others])]), strict=True))
    alike = {i for i, value in p.items() if value > LEVEL}
    return Best(frozenset(equal | alike | {top}), top, p)
