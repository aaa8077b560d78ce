"""Does the loss tell?

How well what a run measures without labels orders the configurations by accuracy.

Two questions, for each measure. *Within a method*: of the configurations that were tried for it,
are those with the better measure the more accurate ones? *Between all*: the same over all
configurations of all methods, but for the training loss, for losses of two methods have no common
scale. Both are Spearman's rank correlation, 1 where the measure orders configurations as accuracy
does, with a bootstrap interval over configurations. And a price: how much accuracy is lost by
choosing each method's configuration by the measure in place of the labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbench.reports.rows.deviations import Stat, stat
from regbench.reports.rows.significance import holm
from regbench.reports.rows.summary import DASH, Configuration, Summary, of_same_seeds

MIN_CONFIGURATIONS = 4
"""With fewer a rank correlation says nothing."""

# A bootstrap draws 1,000 samples of up to 2,000 configurations, and fewer samples of more: memory
# grows with both.
_SAMPLES, _LEAST_SAMPLES = 1000, 100
_DRAWN = 2_000_000

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """A quantity that a run measures without labels.

    Attributes:
        key: Name in the last line of the history, or of a score.
        title: Name in tables.
        better: "lower", "higher" or "nearest 1": where theory expects the accurate configurations.
        is_score: Whether it is a score of an evaluation, which sees the representation. Else it is
            a number of the last epoch, which sees the embeddings.
        comparable: Whether its values of two methods compare.
    """

    key: str
    title: str
    better: str
    is_score: bool = False
    comparable: bool = True

    def of(self, configuration: Configuration) -> float | None:
        """Return its mean over the seeds, with the sign that makes more better."""
        if self is RANDOM:
            return 0.0  # all alike, so that any configuration may be chosen
        if self.is_score:
            # Trials that were not chosen have scores of the tuning split alone.
            found = configuration.score(self.key, "tuning") or configuration.score(self.key)
        else:
            found = configuration.at_end(self.key)
        if found is None:
            return None
        if self.better == "nearest 1":
            return -abs(found.mean - 1)
        return found.mean if self.better == "higher" else -found.mean


# The cost of choosing without any measure: a measure is of use only if it loses less.
RANDOM = Measure("", "random choice", DASH, comparable=False)

# Alignment and uniformity stand for two measures each, of the embeddings and of the representation.
MEASURES = (
    Measure("loss", "training loss", "lower", comparable=False),
    Measure("alignment", "alignment, embedding", "lower"),
    Measure("uniformity", "uniformity, embedding", "lower"),
    Measure("effective_rank", "effective rank, embedding", "higher"),
    Measure("alignment", "alignment, representation", "lower", is_score=True),
    Measure("uniformity", "uniformity, representation", "lower", is_score=True),
    Measure("rankme", "RankMe", "higher", is_score=True),
    Measure("alpha_req", "α-ReQ", "nearest 1", is_score=True),
    Measure("lidar", "LiDAR", "higher", is_score=True),
    RANDOM,
)


@dataclass(frozen=True)
class Correlation:
    """Spearman's ρ with its 95 % bootstrap interval; of how many methods and configurations."""

    rho: float
    low: float
    high: float
    methods: int
    configurations: int


@dataclass(frozen=True)
class Indication:
    """The answer of a measure: how it goes with accuracy.

    Attributes:
        within: Mean over the methods of the correlation within each; None if no method has enough
            configurations.
        by_method: Correlation within each method, by its name.
        between: Correlation over all configurations; None if there are too few, or methods differ
            in what it measures.
        lost: Percentage points of accuracy lost by choosing by the measure, over the methods.
        lost_by_method: Points lost of each method, by its name.
    """

    measure: Measure
    within: Correlation | None
    by_method: dict[str, Correlation]
    between: Correlation | None
    lost: Stat | None
    lost_by_method: dict[str, float]


def accuracy_of(summary: Summary) -> tuple[str, str]:
    """Name the score and the split that the measures are held against.

    That is what chose among configurations, where several were tried, and else the score that
    orders the leaderboard.
    """
    chose = summary.selection, summary.selection_split
    methods = [
        configuration for configuration in summary.configurations if not configuration.is_reference
    ]
    scored = [configuration for configuration in methods if configuration.score(*chose) is not None]
    if len(scored) >= MIN_CONFIGURATIONS:
        return chose
    return summary.headline or summary.selection, "test"


def indications(summary: Summary) -> list[Indication]:
    """Hold each measure that was taken against accuracy; empty where too few configurations have
    one.

    Configurations without a score, such as diverged ones, take no part.
    """
    name, split = accuracy_of(summary)
    groups = _scored(summary, name, split)
    found = [_indication(measure, _measured(measure, groups)) for measure in MEASURES]
    if not any(one.within or one.between for one in found):
        return []
    return [one for one in found if one.within or one.between or one.lost]


def _scored(
    summary: Summary, name: str, split: str
) -> dict[tuple[str, ...], list[tuple[Configuration, float]]]:
    """Group the trained configurations that have a score by their places, each with its mean.

    Means are over the seeds that all of a group have, as are the configurations: the chosen ones
    may have more.
    """
    groups: dict[tuple[str, ...], list[Configuration]] = {}
    for configuration in summary.configurations:
        if not configuration.is_reference and configuration.score(name, split) is not None:
            groups.setdefault(configuration.place(summary.varying), []).append(configuration)
    found: dict[tuple[str, ...], list[tuple[Configuration, float]]] = {}
    for place, group in groups.items():
        for each in of_same_seeds(group):
            score = each.score(name, split)
            if score is not None:
                found.setdefault(place, []).append((each, score.mean))
    return found


def _measured(
    measure: Measure, groups: Mapping[tuple[str, ...], Sequence[tuple[Configuration, float]]]
) -> dict[str, Array]:
    """Return the measure and the accuracy of each configuration, (2, n), by the name of the
    method and its setting.
    """
    measured = {}
    for place, scored in groups.items():
        pairs = []
        for configuration, accuracy in scored:
            value = measure.of(configuration)
            if value is not None:
                pairs.append((value, accuracy))
        if pairs:
            measured[", ".join(filter(None, place))] = np.array(pairs).T
    return measured


def _indication(measure: Measure, measured: Mapping[str, Array]) -> Indication:
    # The seed is fixed, so that the same records give the same intervals each time.
    rng = np.random.default_rng(0)
    by_method, samples, lost = {}, [], {}
    for name, (values, accuracies) in measured.items():
        if len(values) > 1:
            # Any of equal values may be chosen, so the loss is the mean over them.
            lost[name] = float(accuracies.max() - accuracies[values == values.max()].mean())
        rhos = _bootstrapped(values, accuracies, rng)
        if rhos is not None:
            by_method[name] = _correlation(rhos, 1, len(values))
            samples.append(rhos)
    configurations = sum(one.configurations for one in by_method.values())
    within = _mean_correlation(samples, configurations) if samples else None
    between = None
    if measure.comparable and measured:
        values, accuracies = np.concatenate(list(measured.values()), axis=1)
        rhos = _bootstrapped(values, accuracies, rng)
        between = None if rhos is None else _correlation(rhos, len(measured), len(values))
    return Indication(measure, within, by_method, between, stat(lost.values()), lost)


def _bootstrapped(values: Array, accuracies: Array, rng: np.random.Generator) -> Array | None:
    """Return Spearman's ρ and then that of each bootstrap sample; None where it says nothing."""
    if len(values) < MIN_CONFIGURATIONS:
        return None
    rhos = _spearman(values, accuracies, _weights(rng, len(values)))
    return None if math.isnan(rhos[0]) else rhos


def _mean_correlation(samples: Sequence[Array], configurations: int) -> Correlation:
    """Average over methods, sample by sample."""
    count = min(map(len, samples))
    rhos = np.stack([rhos[:count] for rhos in samples])
    with np.errstate(
        invalid="ignore"
    ):  # a sample of which no method has two different configurations
        means = np.nansum(rhos, axis=0) / (~np.isnan(rhos)).sum(axis=0)
    return _correlation(means, len(samples), configurations)


def _weights(rng: np.random.Generator, n: int) -> Array:
    """Say how often each of n configurations is in each sample, (n, samples): first once, then
    as they are drawn.
    """
    samples = max(_LEAST_SAMPLES, min(_SAMPLES, _DRAWN // n))
    # Configuration i in sample s has the number i × samples + s, so one count serves all samples.
    drawn = rng.integers(n, size=(n, samples)) * samples + np.arange(samples)
    times = np.bincount(drawn.ravel(), minlength=n * samples).reshape(n, samples)
    return np.concatenate([np.ones((n, 1)), times], axis=1)


def _spearman(x: Array, y: Array, weights: Array) -> Array:
    """Compute Spearman's ρ of each sample; NaN where all of its values are equal.

    SciPy would sort each sample anew. Here the values are sorted once, and weights say how often
    each was drawn.

    Args:
        x: Values, (n,).
        y: Others, (n,).
        weights: Number of times that each is in each sample, (n, samples).
    """
    mean = weights.sum(axis=0) / 2  # of the ranks of each sample
    a, b = _mid_ranks(x, weights) - mean, _mid_ranks(y, weights) - mean
    weighted = weights * a
    covariance = (weighted * b).sum(axis=0)
    variance_a, variance_b = (weighted * a).sum(axis=0), (weights * b * b).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho: Array = covariance / np.sqrt(variance_a * variance_b)
    return rho


def _mid_ranks(values: Array, weights: Array) -> Array:
    """Rank the values of each sample, from 0; equal ones share the mean of their ranks."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-np.inf))
    mass = np.add.reduceat(weights[order], starts, axis=0)
    middle = np.cumsum(mass, axis=0) - mass / 2
    places = np.empty(len(values), int)
    places[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    return middle[places]


def _correlation(rhos: Array, methods: int, configurations: int) -> Correlation:
    drawn = rhos[1:][~np.isnan(rhos[1:])]
    low, high = np.percentile(drawn, [2.5, 97.5]) if len(drawn) else (math.nan, math.nan)
    return Correlation(float(rhos[0]), float(low), float(high), methods, configurations)


def best_measure(found: Sequence[Indication]) -> Indication | None:
    """Return the measure by which choosing loses least; None without any."""
    losing = [one for one in found if one.lost and one.measure is not RANDOM]
    return min(losing, key=lambda one: one.lost.mean if one.lost else 0.0, default=None)


def against_chance(found: Sequence[Indication]) -> dict[str, float]:
    """Test whether choosing by each measure loses as much as random choice does: title -> p.

    The test is the paired t-test over the methods, two-sided, with Holm's correction over the
    measures. It takes two methods of which several configurations have the measure.
    """
    from scipy.stats import ttest_1samp  # slow to import, and few reports need it

    chance: Mapping[str, float] = {}
    for one in found:
        if one.measure is RANDOM:
            chance = one.lost_by_method
    p = {}
    for one in found:
        gained = [chance[name] - lost for name, lost in one.lost_by_method.items()]
        # Methods that all gain alike have no spread, and t is infinite.
        if one.measure is not RANDOM and len(gained) > 1 and np.ptp(gained):
            p[one.measure.title] = float(ttest_1samp(gained, 0).pvalue)
    return dict(zip(p, holm(list(p.values())), strict=True))
