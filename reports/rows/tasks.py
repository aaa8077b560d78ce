"""Methods over several tasks: mean ranks, and how far each is below the best.

A task counts once, however many seeds and settings (embedding dimension, epochs and so on) it was
run with: they are repeated looks at the same images. A method's score in a task is its mean over
the runs that all methods have there. Only methods that every task has are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from regbench.reports.rows.summary import Row, Summary

# The ranks of one task are the order of its leaderboard.
MIN_TASKS = 2
MIN_METHODS = 3

ByRun = Mapping[Any, float]
"""Scores in percent, negative where less is better, by what pairs a run with those of other
methods (its seed, or its setting and seed).
"""


@dataclass(frozen=True)
class Standing:
    """The standing of a method over the tasks.

    Attributes:
        label: Name of the method.
        mean_rank: 1 is the best; equal scores share the mean of their ranks.
        shortfalls: Percentage points below the best method of each task, ascending.
    """

    label: str
    mean_rank: float
    shortfalls: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Methods over several tasks.

    Attributes:
        standings: Best mean rank first.
        tasks: Names of the tasks.
        left_out: Methods that some task does not have.
        tasks_left_out: Names of tasks that share too few methods, or no run of them, with these.
    """

    standings: list[Standing]
    tasks: list[str]
    left_out: list[str]
    tasks_left_out: list[str]


def over_tasks(summaries: Sequence[Summary]) -> Comparison | None:
    """Compare methods over the tasks of a report; None if no two tasks have three methods in
    common.

    Rows that were chosen on the test split take no part.
    """
    tasks: dict[str, dict[str, dict[Any, float]]] = {}
    for summary in summaries:
        headline = summary.headline
        if summary.on_test or headline is None or summary.scores[headline].unit != "%":
            continue
        rows_in: dict[str, list[Row]] = {}
        for row in summary.methods:
            rows_in.setdefault(row.setting, []).append(row)
        task, sign = tasks.setdefault(summary.name, {}), summary.scores[headline].sign
        for setting, rows in rows_in.items():
            for row in rows:
                runs = task.setdefault(row.label, {})
                # A setting that few methods have compares nothing, and would leave no run that all
                # have.
                if len(rows) >= MIN_METHODS:
                    for seed, score in row.by_unit(headline).items():
                        runs[setting, seed] = sign * score
    return compare_over(tasks)


def compare_over(tasks: Mapping[str, Mapping[str, ByRun]]) -> Comparison | None:
    """Compare methods over tasks, each given as method -> run -> percent."""
    scored = {}
    known = set[str]()
    for name, scores in tasks.items():
        known |= set(scores)
        having = {label: by_run for label, by_run in scores.items() if by_run}
        if len(having) >= MIN_METHODS:
            scored[name] = having
    # A task that has other methods, or few, must not cost the rest its methods.
    while len(scored) > MIN_TASKS:
        methods = len(_in_all(scored))
        without = {name: len(_in_all(scored, but=name)) for name in reversed(scored)}
        odd = max(without, key=lambda name: without[name])
        is_more = without[odd] * (len(scored) - 1) > methods * len(scored)
        if methods >= MIN_METHODS and not is_more:
            break
        del scored[odd]
    everywhere = _in_all(scored)
    labels = sorted(everywhere)
    # Each method's mean over the runs that all share, (methods,), for each task with such runs.
    means_of = {}
    for name, scores in scored.items():
        shared = pd.DataFrame(scores, columns=labels).dropna().sort_index()
        if len(shared):
            means_of[name] = shared.to_numpy().mean(axis=0)
    if len(means_of) < MIN_TASKS or len(labels) < MIN_METHODS:
        return None
    from scipy.stats import rankdata  # slow to import, and few reports need it

    means = np.stack(list(means_of.values()))
    # Means of the same counts of images may differ in their last bits; they rank alike.
    mean_ranks = rankdata(-np.round(means, 9), axis=1).mean(axis=0)
    shortfalls = np.sort(np.round(means.max(axis=1, keepdims=True) - means, 9), axis=0)
    standings = []
    for i in np.argsort(mean_ranks, kind="stable"):
        standings.append(Standing(labels[i], float(mean_ranks[i]), tuple(shortfalls[:, i])))
    left_out = known - everywhere
    others = [name for name in tasks if name not in means_of]
    return Comparison(standings, list(means_of), sorted(left_out), others)


def _in_all(tasks: Mapping[str, Mapping[str, ByRun]], but: str = "") -> set[str]:
    """Return the methods that all tasks have, not counting the task `but`."""
    found = [set(scores) for name, scores in tasks.items() if name != but]
    return set.intersection(*found) if found else set()
