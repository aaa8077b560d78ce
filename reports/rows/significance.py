"""Tests of which differences between methods are more than the luck of the seeds.

Runs of the same seed saw the same images in the same order, so rows are compared seed by seed: by
Tukey's test with seeds as blocks, two-sided, at 5 %. It holds for all pairs of rows together. The
variance of a single pair is hardly known from three seeds, and that of all rows is too little for
rows that scatter more. So the test adds up both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.05

# The usual choice when a comparison is planned: one true difference in five is missed.
POWER = 0.8

MIN_PAIRS = 3

# Below this, SciPy's integral is only rounding.
_LEAST_CHANCE = 1e-12


@dataclass(frozen=True)
class PairTest:
    """The test of two rows over the seeds that they share.

    Attributes:
        pairs: Number of seeds that they share.
        difference: Mean of the first minus the second, NaN without a pair.
        p: p-value of Tukey's test; NaN with fewer than `MIN_PAIRS` pairs.
        half: Half the width of the 95 % interval of the difference, which holds for all pairs of
            rows together; NaN where `p` is.
    """

    pairs: int
    difference: float
    p: float
    half: float


class Tukey:
    """Tukey's test of all pairs of rows (Tukey 1949; with unequal numbers of seeds as Kramer 1956).

    A score is the sum of what its row gives, what its seed gives, and a remainder. Tukey's own test
    takes one variance of the remainder for all pairs. Where some rows scatter three times as much
    as others, it then claims differences in up to 45 of 100 tables of equal rows. Here the mean of
    the pair's own two variances is added, which keeps that at 5 at most. It costs power where all
    scatter alike. With two rows the test is the paired t-test.

    Attributes:
        means: Position of each row with a score -> mean over its seeds.
        rows: Number of rows with `MIN_PAIRS` seeds or more, from which the variance is taken.
        seeds: The fewest seeds that a method among these has; 0 without any.
        freedom: Degrees of freedom of the variance.
        deviation: Standard deviation of the remainder, in the unit of the scores; NaN without
            degrees of freedom.
        power: Differences of methods that the test can find, if methods scatter as these do.
    """

    def __init__(self, scores: Sequence[Mapping[int, float]], methods: int | None = None) -> None:
        """Fit rows that are given as seed -> score, of which the first so many are methods.

        A row with fewer seeds than `MIN_PAIRS` does not count.
        """
        seeds = sorted(set().union(*scores))
        self._scores = np.full((len(scores), len(seeds)), np.nan)
        self.means = {}
        for place, row in enumerate(scores):
            self._scores[place, np.searchsorted(seeds, list(row))] = list(row.values())
            if row:
                self.means[place] = float(np.mean(list(row.values())))
        seeds_of = np.sum(~np.isnan(self._scores), axis=1)
        enough = seeds_of >= MIN_PAIRS
        self.rows = int(enough.sum())
        self.seeds = min(seeds_of[:methods][enough[:methods]].tolist(), default=0)
        remainders, self.freedom = _remainders(self._scores[enough])
        self.deviation = _deviation(remainders, self.freedom)
        # Rows that nothing was trained for hardly scatter, which would hide how much methods do.
        own = _deviation(*_remainders(self._scores[:methods][enough[:methods]]))
        # A single method has no remainder.
        self.power = Power(self.rows, self.deviation if math.isnan(own) else own, self.deviation)
        # The variance of each row's own remainders. A row takes its share of what a seed gives,
        # which makes its square there too small by the factor 1 - 1 / rows with that seed.
        self._own = np.full(len(scores), np.nan)
        # A seed that no other row has leaves no remainder, however much its row scatters.
        known = ~np.isnan(remainders)
        left = 1 - 1 / np.maximum(known.sum(axis=0), 1)
        paired = np.maximum(np.sum(known & (left > 0), axis=1), 1)
        freedom = (paired - 1) / paired * (known @ left)
        self._own[enough] = np.nansum(remainders**2, axis=1) / np.where(freedom > 0, freedom, 1)

    def compare(self, one: int, others: Sequence[int]) -> list[PairTest]:
        """Compare one row with each of some others, all by their positions."""
        differences = np.round(self._scores[one] - self._scores[list(others)], 9)
        shared = ~np.isnan(differences)
        pairs = np.sum(shared, axis=1)
        # Rows that share no seed and scores without variance lead to divisions by 0.
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.sum(differences, axis=1, where=shared) / pairs
            own = (self._own[one] + self._own[list(others)]) / 2
            deviations = np.sqrt(self.deviation**2 + own_weight(self.rows) * own)
            # The studentized range is in standard errors of one mean, without the √2 of a
            # difference.
            apart = np.where(means == 0, 0.0, np.abs(means) * np.sqrt(pairs) / deviations)
        p, half = np.full((2, len(pairs)), np.nan)
        tested = pairs >= MIN_PAIRS
        if self.freedom > 0 and tested.any():
            p[tested] = _chance(self.rows, self.freedom)(apart[tested])
            of_one_mean = (deviations / np.sqrt(np.maximum(pairs, 1)))[tested]
            half[tested] = critical_range(self.rows, self.freedom) * of_one_mean
        columns = (column.tolist() for column in (pairs, means, p, half))
        return [PairTest(*found) for found in zip(*columns, strict=True)]

    @functools.cached_property
    def least(self) -> float:
        """The least difference of two methods' means over `MIN_PAIRS` seeds that is significant;
        NaN where nothing is tested.

        It holds for methods that scatter as all do on average: for others it is less or more.
        """
        if math.isnan(self.deviation):
            return math.nan
        return critical_range(self.rows, self.freedom) * self.power.typical / math.sqrt(MIN_PAIRS)


def _deviation(remainders: Array, freedom: int) -> float:
    """Return the standard deviation of remainders; NaN without degrees of freedom."""
    return math.sqrt(float(np.nansum(remainders**2)) / freedom) if freedom > 0 else math.nan


def _remainders(scores: Array) -> tuple[Array, int]:
    """Remove from scores (rows, seeds; NaN where a row lacks a seed) what rows and seeds give.

    Returns:
        The remainders, of the same shape, and their degrees of freedom.
    """
    if len(scores) < scores.shape[1]:
        # Rows and seeds can be exchanged here, and the fit takes time with the cube of the seeds.
        remainders, freedom = _remainders(scores.T)
        return remainders.T, freedom
    known = ~np.isnan(scores)
    # A seed that only rows with too few seeds have is in no row here.
    seeds_of = np.maximum(np.sum(known, axis=1, keepdims=True), 1)
    centred = np.where(known, scores - np.nansum(scores, axis=1, keepdims=True) / seeds_of, 0.0)
    # A least-squares fit of what each seed gives, by the normal equations: scores and indicators of
    # seeds are taken without the means of their rows, so that what remains is of the seeds alone.
    # Rows may lack seeds, and so averages would not do.
    equations = np.diag(known.sum(axis=0)) - (known / seeds_of).T @ known
    # The columns add up to 0, as a shift of all seeds shifts only the rows' means. So the rank is
    # one short at least, and singular values below a billionth of the largest are rounding.
    of_seeds, _, rank, _ = np.linalg.lstsq(equations, centred.sum(axis=0), rcond=1e-9)
    means = (known @ of_seeds)[:, None] / seeds_of
    # Scores are stated to a hundredth at most: what is below a billionth is rounding.
    remainders = np.where(known, np.round(centred - of_seeds + means, 9), np.nan)
    return remainders, int(known.sum()) - int(known.any(axis=1).sum()) - int(rank)


@dataclass(frozen=True)
class Power:
    """Differences that `Tukey` finds among methods that scatter alike: the normal approximation,
    with the variances known.

    Attributes:
        rows: Number of rows.
        deviation: Standard deviation of the remainder of methods, see `Tukey`.
        of_all: That of all rows, which the test takes; None: the same.
    """

    rows: int
    deviation: float
    of_all: float | None = None

    @property
    def typical(self) -> float:
        """The deviation that the test takes for two methods."""
        own = math.sqrt(own_weight(self.rows)) * self.deviation
        return math.hypot(self.of_all or self.deviation, own)

    def detectable(self, seeds: int) -> float:
        """Return the true difference of two methods that is found significant with a chance of
        `POWER`.

        Every row has `seeds` seeds. NaN where nothing is tested.
        """
        if math.isnan(self.deviation):
            return math.nan
        freedom = (self.rows - 1) * (seeds - 1)  # of rows × seeds without a gap
        significant = critical_range(self.rows, freedom) * self.typical / math.sqrt(seeds)
        # A true difference that lies so far beyond is seen as a significant one in 80 % of the
        # cases.
        return significant + NormalDist().inv_cdf(POWER) * self.deviation * math.sqrt(2 / seeds)

    def seeds_for(self, difference: float) -> int:
        """Return how many seeds each row needs for `detectable` to be such a difference,
        `MIN_PAIRS` at least.
        """
        # If the variance were known exactly, fewer seeds would do: the search begins there.
        of_one_seed = critical_range(self.rows, math.inf) * self.typical
        of_one_seed += NormalDist().inv_cdf(POWER) * self.deviation * math.sqrt(2)
        seeds = max(MIN_PAIRS, math.ceil((of_one_seed / difference) ** 2))
        while self.detectable(seeds) > difference:
            seeds += 1
        return seeds


def images_for(accuracy: float, difference: float) -> int:
    """Return how many test images are enough for their own error to be below half of a difference
    of two methods.

    An accuracy p on m images has the binomial variance p (1 − p) / m. The difference of two methods
    of accuracy p has 2 p (1 − p) (1 − ρ) / m, where ρ correlates which images they get right.
    Methods share the test images, and an image that is hard for one is hard for the other: this
    assumes ρ ≥ 0 and takes 0, which gives m = 8 p (1 − p) / δ². A mean over seeds varies less
    between images than one run, so that m is enough for it too.

    Args:
        accuracy: Accuracy of both methods in per cent.
        difference: Difference δ in percentage points.
    """
    return math.ceil(2 * accuracy * (100 - accuracy) / (difference / 2) ** 2)


def own_weight(rows: int) -> float:
    """Return the weight of a pair's own variance: two rows have one between them, which is not
    added to itself.
    """
    return max(rows - 2, 0) / max(rows - 1, 1)


@functools.cache
def critical_range(rows: int, freedom: float) -> float:
    """Return the studentized range of this many means that is significant."""
    from scipy.stats import studentized_range  # takes longer to import than a report of a few cells

    return float(studentized_range.ppf(1 - LEVEL, rows, freedom))


@functools.cache
def _chance(rows: int, freedom: int) -> Callable[[Array], Array]:
    """Make the function that gives the chance of a studentized range above each of some numbers.

    SciPy integrates for 8 ms at each number, and a report has thousands. So it does that at 80
    numbers at most, between which the logarithm of the chance is interpolated.
    """
    from scipy.interpolate import PchipInterpolator
    from scipy.stats import studentized_range

    # Even in arcsinh: dense near 0, where most ranges are, and up to 10,000 for three seeds that
    # hardly differ.
    places, chances = np.linspace(0, np.arcsinh(1e4), 80), [1.0]
    while chances[-1] > _LEAST_CHANCE and len(chances) < len(places):
        chance = float(studentized_range.sf(np.sinh(places[len(chances)]), rows, freedom))
        # A chance only falls as the range grows: where the integral rises, that is its rounding.
        chances.append(min(max(chance, _LEAST_CHANCE), chances[-1]))
    places = places[: len(chances)]
    # PCHIP falls wherever its points do, while a cubic spline may swing between them.
    log_chance = PchipInterpolator(places, np.log(chances))
    return lambda ranges: np.exp(log_chance(np.minimum(np.arcsinh(ranges), places[-1])))


@dataclass(frozen=True)
class Best:
    """The rows that no other is known to be better than.

    Attributes:
        rows: Positions of the rows: the best mean, and those not significantly worse.
        top: The position of the best mean; None where there is no score.
        p: Position of each other row with a score -> p of its difference from the best; NaN with
            fewer than `MIN_PAIRS` seeds in common.
        least: See `Tukey.least`.
        above: Positions of the rows that are significantly better over the seeds that both have.
    """

    rows: frozenset[int] = frozenset()
    top: int | None = None
    p: Mapping[int, float] = field(default_factory=dict)
    least: float = math.nan
    above: frozenset[int] = frozenset()

    @property
    def tested(self) -> int:
        """Number of rows that were tested against the best."""
        return len(self.p) - len(self.untested)

    @property
    def untested(self) -> tuple[int, ...]:
        """Positions of the rows that share too few seeds with the best."""
        return tuple(i for i, p in self.p.items() if math.isnan(p))

    def reason(self, i: int) -> str:
        """Explain why a row is among the best, or is not; empty if it has no score."""
        if i == self.top:
            return "the best mean of this column, supervised rows aside"
        if i not in self.p:
            return ""
        if math.isnan(self.p[i]):
            tested = f"not tested against the best: fewer than {MIN_PAIRS} seeds in common"
        else:
            how = "significantly" if self.p[i] <= LEVEL else "not significantly"
            how += " better, over shared seeds, than" if i in self.above else " different from"
            digits = 3 if f"{self.p[i]:.2g}" == f"{LEVEL:g}" else 2
            p = "p < 0.001" if self.p[i] < 0.001 else f"p = {self.p[i]:.{digits}g}"
            tested = f"{how} the best: {p} (Tukey's test)"
        same = i in self.rows - self.above and not self.p[i] > LEVEL
        return f"the same as the best, as printed; {tested}" if same else tested


def best(tukey: Tukey, *, higher_is_better: bool = True) -> Best:
    """Find which rows to mark as best; one without a score takes no part.

    Means that are equal when printed, with two decimals, are equally good.

    Args:
        tukey: The test of the rows.
        higher_is_better: Whether the highest mean is the best, or the lowest.
    """
    means = tukey.means
    if not means:
        return Best()
    top = (max if higher_is_better else min)(means, key=lambda i: means[i])
    printed = {i: round(mean, 2) for i, mean in means.items()}
    equal = {i for i, mean in printed.items() if mean == printed[top]}
    others = [i for i in means if i != top]
    compared = dict(zip(others, tukey.compare(top, others), strict=True))
    p = {i: found.p for i, found in compared.items()}
    # A row that cannot be tested, with p NaN, does not count as equally good.
    alike = {i for i, value in p.items() if value > LEVEL}
    # The top may lack the seeds that are hard for all.
    differ = {i: found.difference for i, found in compared.items() if found.p <= LEVEL}
    above = frozenset(i for i, ahead in differ.items() if (ahead < 0) == higher_is_better)
    return Best(frozenset(equal | alike | above | {top}), top, p, tukey.least, above)
