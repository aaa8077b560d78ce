"""Which differences between methods are more than the luck of the seeds.

Two methods that ran with the same seed saw the same images in the same order, so they are compared seed by seed: a
paired t-test on the differences, two-sided, at 5 %. Where several rows are held against the best one, Holm's
correction (1979) keeps the chance of one false difference at 5 % for all of them together.
"""

from __future__ import annotations

import math
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
    """One row against each of some others; rows are given as seed -> score."""
    from scipy.special import stdtr

    seeds = list(one)
    values = np.array([[other.get(seed, np.nan) for seed in seeds] for other in others]).reshape(
        len(others), len(seeds)
    )
    differences = np.array([one[seed] for seed in seeds]) - values
    pairs = np.sum(~np.isnan(differences), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.nansum(differences, axis=1) / pairs
        spread = np.sqrt(np.nansum((differences - mean[:, None]) ** 2, axis=1) / (pairs - 1))
        # Values are stated to a hundredth at most: what is below is rounding, and a spread of it is none.
        t = np.where(np.abs(mean) < 1e-9, 0.0, np.abs(mean) / np.where(spread < 1e-9, 0.0, spread) * np.sqrt(pairs))
        p = np.where(pairs >= MIN_PAIRS, 2 * stdtr(np.maximum(pairs - 1, 1), -t), np.nan)
    return [Comparison(int(n), float(d), float(q)) for n, d, q in zip(pairs, mean, p, strict=True)]


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for being several, by Holm's step-down procedure; NaN stays and does not count."""
    values = np.array(p, float)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    factors = len(order) - np.arange(len(order))
    values[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0) if len(order) else values[order]
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
        """Why a row is among them, or is not; empty where it has no score."""
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


def best(scores: Sequence[Mapping[int, float]], decimals: int = 2) -> Best:
    """Which rows to mark as best; each is given as seed -> score, an empty one takes no part.

    Args:
        scores: Seed -> score of each row.
        decimals: Means that are equal when printed so are equally good.
    """
    means = [float(np.mean(list(row.values()))) if row else -np.inf for row in scores]
    if not any(scores):
        return Best()
    top = int(np.argmax(means))
    equal = {i for i, mean in enumerate(means) if round(mean, decimals) == round(means[top], decimals)}
    others = [i for i, row in enumerate(scores) if row and i != top]
    p = holm([c.p for c in compare(scores[top], [scores[i] for i in others])])
    alike = {i for i, value in zip(others, p, strict=True) if value > LEVEL}
    return Best(frozenset(equal | alike | {top}), top, dict(zip(others, p, strict=True)))
