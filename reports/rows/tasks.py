"""Methods over several tasks: mean ranks, and from five tasks on what a test over them tells apart.

A task counts once, however many seeds and settings (embedding dimension, epochs and so on) it was
run with: they are repeated looks at the same images, and counting each would make any difference
significant. A method's score in a task is its mean over the runs that all methods have there. Only
methods that every task has are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from regbench.reports.rows.significance import LEVEL, critical_range
from regbench.reports.rows.summary import Summary

# The ranks of one task are the order of its leaderboard.
MIN_TASKS = 2
MIN_METHODS = 3  # Friedman's test knows no fewer

# With four tasks or fewer Nemenyi's critical difference of many methods is most of the range that
# ranks have.
MIN_TESTED_TASKS = 5
# An end of the 95 % interval is then the fiftieth of the means, counted from outside.
_SAMPLES = 2000

Array = NDArray[np.float64]

ByRun = Mapping[Any, float]
"""Scores in percent, by what pairs a run with those of other methods (its seed, or its setting
and seed).
"""


@dataclass(frozen=True)
class Standing:
    """The standing of a method over the tasks.

    Attributes:
        mean_rank: 1 is the best; equal scores share the mean of their ranks.
        low: Lower end of the 95 % interval of a bootstrap over tasks; NaN below `MIN_TESTED_TASKS`.
        high: Upper end.
        shortfalls: Percentage points below the best method of each task, ascending.
        alike: Whether it cannot be told from the best mean rank; None below `MIN_TESTED_TASKS`.
    """

    label: str
    mean_rank: float
    low: float
    high: float
    shortfalls: tuple[float, ...]
    alike: bool | None


@dataclass(frozen=True)
class Comparison:
    """Methods over several tasks.

    Attributes:
        standings: Best mean rank first.
        tasks: Names of the tasks.
        p: p-value of Friedman's test that all methods are equally good; NaN where it is not made.
        critical_difference: Least difference of two mean ranks that is significant, by Nemenyi's
            test at 5 %; NaN where it is not made.
        left_out: Methods that some task does not have.
    """

    standings: list[Standing]
    tasks: list[str]
    p: float
    critical_difference: float
    left_out: list[str]

    @property
    def tested(self) -> bool:
        """Whether there are tasks enough for a test over them."""
        return len(self.tasks) >= MIN_TESTED_TASKS


def over_tasks(summaries: Sequence[Summary]) -> Comparison | None:
    """Compare methods over the tasks of a report; None with fewer than two tasks or three methods
    in all of them.

    Rows that were chosen on the test split take no part.
    """
    tasks: dict[str, dict[str, dict[Any, float]]] = {}
    for summary in summaries:
        headline = summary.headline
        if summary.on_test or headline is None or summary.scores[headline].unit != "%":
            continue
        rows_in: dict[str, dict[str, ByRun]] = {}
        for row in summary.methods:
            rows_in.setdefault(row.setting, {})[row.label] = row.by_unit(headline)
        task = tasks.setdefault(summary.name, {})
        for setting, rows in rows_in.items():
            # A setting that few methods have compares nothing, and would leave no run that all
            # have.
            if len(rows) < MIN_METHODS:
                continue
            for label, by_seed in rows.items():
                runs = task.setdefault(label, {})
                for seed, score in by_seed.items():
                    runs[setting, seed] = score
    return compare_over(tasks)


def compare_over(tasks: Mapping[str, Mapping[str, ByRun]]) -> Comparison | None:
    """Compare methods over tasks, each given as method -> run -> percent."""
    scored = {}
    for name, scores in tasks.items():
        having = {label: by_run for label, by_run in scores.items() if by_run}
        if len(having) >= MIN_METHODS:
            scored[name] = having
    everywhere = set.intersection(*map(set, scored.values())) if scored else set()
    labels = sorted(everywhere)
    means_of = _means(scored, labels)
    if len(means_of) < MIN_TASKS or len(labels) < MIN_METHODS:
        return None
    from scipy.stats import friedmanchisquare, rankdata  # slow to import, and few reports need it

    means = np.stack(list(means_of.values()))
    # Means of the same counts of images may differ in their last bits; they rank alike.
    ranks = rankdata(-np.round(means, 9), axis=1)
    mean_ranks = ranks.mean(axis=0)
    n, k = ranks.shape
    p, apart = math.nan, math.nan
    ends, alike = np.full((2, k), math.nan), None
    if n >= MIN_TESTED_TASKS:
        # Friedman's statistic is 0/0 if all ranks are equal.
        p = float(friedmanchisquare(*ranks.T).pvalue) if np.ptp(ranks) else 1.0
        # Demšar (2006): the range over √2, times the standard error of the difference of two mean
        # ranks.
        apart = critical_range(k, math.inf) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n))
        # Without a difference that Friedman's test sees, no pair is told apart.
        alike = (mean_ranks - mean_ranks.min() <= apart) | (p > LEVEL)
        # How often each task is in a sample is all that a mean takes, so one product gives the
        # means of all samples.
        times_drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_SAMPLES)
        ends = np.percentile(times_drawn @ ranks / n, [2.5, 97.5], axis=0)
    shortfalls = np.sort(means.max(axis=1, keepdims=True) - means, axis=0)
    standings = []
    for i in np.argsort(mean_ranks, kind="stable"):
        same = None if alike is None else bool(alike[i])
        low, high = map(float, ends[:, i])
        standings.append(
            Standing(labels[i], float(mean_ranks[i]), low, high, tuple(shortfalls[:, i]), same)
        )
    left_out = set().union(*scored.values()) - everywhere
    return Comparison(standings, list(means_of), p, apart, sorted(left_out))


def _means(tasks: Mapping[str, Mapping[str, ByRun]], labels: Sequence[str]) -> dict[str, Array]:
    """Return each method's mean over the runs that all share, (methods,), for each task with
    such runs.
    """
    found = {}
    for name, scores in tasks.items():
        shared = pd.DataFrame(dict(scores), columns=list(labels)).dropna().sort_index()
        if len(shared):
            found[name] = shared.to_numpy().mean(axis=0)
    return found
