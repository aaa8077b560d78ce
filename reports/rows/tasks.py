"""Methods over several tasks: mean ranks with intervals, what can be told apart, performance profiles.

A *block* is a task in one setting (embedding dimension, epochs and so on) with one seed: the methods of a block saw the
same images, so they are ranked against each other in it. Only methods that every task has are compared, over the
blocks in which all of them have a score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbench.reports.rows.significance import LEVEL, critical_range
from regbench.reports.rows.summary import Summary

MIN_TASKS = 2
MIN_METHODS = 3  # Friedman's test knows no fewer
_SAMPLES = 2000

Array = NDArray[np.float64]

BySeed = Mapping[int, float]
"""Seed -> percent."""


@dataclass(frozen=True)
class Standing:
    """How a method stands over the blocks.

    Attributes:
        mean_rank: 1 is the best; equal scores share the mean of their ranks.
        low: Lower end of the 95 % interval of a bootstrap over tasks, and over blocks within them.
        high: Upper end.
        shortfalls: In each block, how many percentage points below its best method, ascending.
        alike: Whether it cannot be told from the best mean rank.
    """

    label: str
    mean_rank: float
    low: float
    high: float
    shortfalls: tuple[float, ...]
    alike: bool


@dataclass(frozen=True)
class Comparison:
    """Methods over several tasks.

    Attributes:
        standings: Best mean rank first.
        tasks: Names of the tasks, with their settings where they have several.
        blocks: Number of blocks.
        p: p-value of Friedman's test that all methods are equally good; NaN where it cannot be computed.
        critical_difference: Least difference of two mean ranks that is significant, by Nemenyi's test at 5 %.
        left_out: Methods that some task does not have.
    """

    standings: list[Standing]
    tasks: list[str]
    blocks: int
    p: float
    critical_difference: float
    left_out: list[str]


def over_tasks(summaries: Sequence[Summary]) -> Comparison | None:
    """Compare methods over the tasks of a report; None with fewer than two tasks or three methods in all of them.

    Each summary's rows in one setting are a task of their own. Rows that were chosen on the test split take no part.
    """
    tasks: dict[str, dict[str, BySeed]] = {}
    for summary in summaries:
        headline = summary.headline
        if summary.on_test or headline is None or summary.scores[headline].unit != "%":
            continue
        for row in summary.rows:
            if not row.is_reference:
                name = f"{summary.name}, {row.setting}" if row.setting else summary.name
                tasks.setdefault(name, {})[row.label] = row.by_seed(headline)
    return compare_over(tasks)


def compare_over(tasks: Mapping[str, Mapping[str, BySeed]]) -> Comparison | None:
    """Compare methods over tasks, each given as method -> seed -> percent."""
    scored = {}
    for name, scores in tasks.items():
        having = {label: by_seed for label, by_seed in scores.items() if by_seed}
        if len(having) >= MIN_METHODS:
            scored[name] = having
    everywhere = set.intersection(*map(set, scored.values())) if scored else set()
    labels = sorted(everywhere)
    blocks_of = _blocks(scored, labels)
    if len(blocks_of) < MIN_TASKS or len(labels) < MIN_METHODS:
        return None
    from scipy.stats import friedmanchisquare, rankdata  # slow to import, and few reports need it

    # Means of the same counts of images may differ in their last bits; they rank alike.
    ranks_of = [rankdata(-np.round(blocks, 9), axis=1) for blocks in blocks_of.values()]
    ranks, blocks = np.concatenate(ranks_of), np.concatenate(list(blocks_of.values()))
    means, (low, high) = ranks.mean(axis=0), _interval(ranks_of)
    n, k = ranks.shape
    p = float(friedmanchisquare(*blocks.T).pvalue) if np.ptp(ranks) else 1.0
    # Demšar (2006): the range over √2, times the standard error of the difference of two mean ranks.
    apart = critical_range(k, math.inf) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n))
    # Without a difference that Friedman's test sees, no pair is told apart.
    alike = (means - means.min() <= apart) | (p > LEVEL)
    shortfalls = np.sort(blocks.max(axis=1, keepdims=True) - blocks, axis=0)
    standings = []
    for i in np.argsort(means, kind="stable"):
        ends = float(low[i]), float(high[i])
        standings.append(Standing(labels[i], float(means[i]), *ends, tuple(shortfalls[:, i]), bool(alike[i])))
    left_out = set().union(*scored.values()) - everywhere
    return Comparison(standings, list(blocks_of), n, p, apart, sorted(left_out))


def _blocks(tasks: Mapping[str, Mapping[str, BySeed]], labels: Sequence[str]) -> dict[str, Array]:
    """Return the scores of some methods, (seeds, methods), for each task in which all of them share a seed."""
    found = {}
    for name, scores in tasks.items():
        seeds = sorted(set.intersection(*(set(scores[label]) for label in labels))) if labels else []
        if seeds:
            columns = [list(map(scores[label].__getitem__, seeds)) for label in labels]
            found[name] = np.array(columns).T
    return found


def _interval(ranks_of: Sequence[Array]) -> Array:
    """Return the ends of the 95 % intervals of the mean ranks: tasks are drawn, then blocks within each."""
    rng, tasks = np.random.default_rng(0), len(ranks_of)
    # Only how often each task, and each of its blocks, is drawn matters: no sample needs to be made.
    times_of = rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=_SAMPLES).T
    sums, blocks = np.zeros((_SAMPLES, ranks_of[0].shape[1])), np.zeros((_SAMPLES, 1))
    for ranks, times in zip(ranks_of, times_of, strict=True):
        drawn = rng.multinomial(times * len(ranks), np.full(len(ranks), 1 / len(ranks)))
        sums, blocks = sums + drawn @ ranks, blocks + drawn.sum(axis=1, keepdims=True)
    ends: Array = np.percentile(sums / blocks, [2.5, 97.5], axis=0)
    return ends
