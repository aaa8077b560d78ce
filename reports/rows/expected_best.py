"""Score against tuning budget: the best that k of a method's trials are expected to hold.

It is the exact mean over all sets of k trials (Dodge, Gururangan, Card, Schwartz and Smith, Show
Your Work, EMNLP 2019, but without replacement). So it takes trials as drawn at random, though later
ones of a search look around the best. Compared are trainings of equal length: a search trains more
configurations for a part of the epochs than for all. Where records have the score on each half of
the images, one half chooses and the other scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.tuning_choice import APART
from regbench.reports.rows.summary import Configuration, Row, Summary, of_same_seeds


@dataclass(frozen=True)
class Effort:
    """The scores that trials of a method bring.

    Attributes:
        row: Row of the leaderboard.
        epochs: Length of the trainings that are compared.
        expected: Expected best score of 1, 2, ... trials; of repeated searches the mean over them.
    """

    row: Row
    epochs: int
    expected: tuple[float, ...]


def expected_best(scores: Sequence[float], chosen_by: Sequence[float] | None = None) -> list[float]:
    """Return the mean of the best of k scores over all sets of k of them, for k = 1 to all; none of
    none.

    The best is the one with the highest number in `chosen_by`, or without that the highest score.
    """
    n = len(scores)
    ordered = np.array(scores)[
        np.argsort(scores if chosen_by is None else chosen_by, kind="stable")
    ]
    below = np.arange(n)
    # The share of the sets whose best has i scores below it: C(i, k − 1) / C(n, k).
    share = np.full(n, 1 / max(n, 1))
    found = []
    for k in range(1, n + 1):
        found.append(float(share @ ordered))
        if k < n:
            # The ratio of neighbouring shares: binomials themselves leave the range of a float from
            # n = 1,030 on.
            share = share * np.maximum(below - k + 1, 0) / k * (k + 1) / (n - k)
    return found


def efforts(summary: Summary) -> list[Effort]:
    """Tell of each row with two trials or more what they bring, by the score that chose.

    A diverged trial counts 0.
    """
    # A short training might belong to any of the rows that differ in their epochs.
    by_epochs = "epochs" in summary.varying
    keys = [key for key in summary.varying if key != "epochs"]
    repeated = any(choice.repeated for choice in summary.choices.values())
    groups: dict[tuple[str, ...], dict[int, dict[int, list[Configuration]]]] = {}
    short = [] if by_epochs else summary.short
    for configuration in (*summary.configurations, *short):
        if configuration.is_reference or "external" in configuration.first.cell:
            continue
        lengths = groups.setdefault(configuration.place(keys), {})
        searches = lengths.setdefault(int(configuration.first.cell["epochs"]), {})
        own: dict[int, list[Record]] = {}
        for record in configuration.records:
            # A repeat adds so much to the seeds of its search.
            number = record.seed // APART if repeated else 0
            own.setdefault(number, []).append(record)
        for number, records in own.items():
            searches.setdefault(number, []).append(Configuration(tuple(records)))
    halved = has_halves(summary)
    found = []
    for row in summary.methods:
        lengths = groups.get(row.place(keys), {})
        if by_epochs and lengths:
            lengths = {
                epochs: each
                for epochs, each in lengths.items()
                if epochs == row.first.cell["epochs"]
            }
        if not lengths:
            continue
        # The length of most trials, and of equally many the longer one.
        epochs = max(lengths, key=lambda length: (sum(map(len, lengths[length].values())), length))
        curves = []
        for trials in lengths[epochs].values():
            even, odd = np.reshape(_scores(trials, summary, halved=halved), (-1, 2)).T.tolist()
            # Either half chooses and the other scores. Without halves both are the same, and so are
            # the two curves.
            by_odd, by_even = expected_best(even, odd), expected_best(odd, even)
            curves.append(np.mean([by_odd, by_even], axis=0).tolist())
        # A mean over the searches takes a k that all of them have reached, where zip ends.
        expected = tuple(map(fmean, zip(*curves, strict=False)))
        if len(expected) > 1:
            found.append(Effort(row, epochs, expected))
    return found


def has_halves(summary: Summary) -> bool:
    """Tell whether all trials have the score that chose on each half of the images."""
    for configuration in (*summary.configurations, *summary.short):
        for record in configuration.records:
            score = _selection(record, summary)
            if score is not None and score.halves is None and not configuration.is_reference:
                return False
    return True


def _selection(record: Record, summary: Summary) -> Score | None:
    """Return the score of a record that chose among configurations."""
    for score in record.scores:
        if (score.name, score.split) == (summary.selection, summary.selection_split):
            return score
    return None


def _scores(
    trials: Sequence[Configuration], summary: Summary, *, halved: bool
) -> list[tuple[float, float]]:
    """Return the score of each trial on both halves of the images, or twice that on all, over
    the seeds all have.
    """
    scores = []
    for trial in of_same_seeds(trials):
        known = []
        for record in trial.records:
            score = _selection(record, summary)
            if score is not None:
                halves = score.halves if halved else None
                known.append(halves or (score.value, score.value))
        # A trial that diverges has to be paid for. To leave it out would make an unstable method
        # look cheap.
        if trial.diverged:
            scores.append((0.0, 0.0))
        elif known:
            even, odd = zip(*known, strict=True)
            scores.append((fmean(even), fmean(odd)))
    return scores


def luck(summary: Summary) -> float | None:
    """Return by how much the chosen score better with the seeds that chose them than with
    others; None if unknown.
    """
    chose: set[int] = set()
    for choice in summary.choices.values():
        chose.update(choice.seeds)
    gaps = []
    for row in summary.methods:
        scores: dict[bool, list[float]] = {True: [], False: []}
        for record in row.records:
            score = record.score(summary.selection, summary.selection_split)
            if score is not None:
                scores[record.seed in chose].append(score)
        if scores[True] and scores[False]:
            gaps.append(fmean(scores[True]) - fmean(scores[False]))
    return fmean(gaps) if gaps else None
