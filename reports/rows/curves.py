"""Curves of accuracy while training: means over seeds, and how soon an accuracy is reached."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regbench.benchmark.rundir.record import Record, Score, ScoreInTraining
from regbench.reports.rows.deviations import Stat, stat
from regbench.reports.rows.notes import machine
from regbench.reports.rows.summary import Row, Summary

# A threshold is a multiple of so many per cent: a round number that reports of one task are likely to share.
_STEP = 5


@dataclass(frozen=True)
class Point:
    """A point of a row's curve.

    Attributes:
        epoch: After which it was measured.
        train_s: Seconds of training until then, the mean over the seeds.
        value: Mean and spread of the score over the seeds.
    """

    epoch: int
    train_s: float
    value: Stat


def curve_scores(summary: Summary) -> dict[str, Score]:
    """Return one score of each name that was measured while training, for what they share."""
    found = {}
    for row in summary.rows:
        for record in row.records:
            found.update({each.score.name: each.score for each in record.measured})
    return found


def curve(row: Row, name: str) -> list[Point]:
    """Return the mean over the seeds of a score while training."""
    by_epoch: dict[int, list[ScoreInTraining]] = {}
    for record in row.records:
        for each in _of(record, name):
            by_epoch.setdefault(each.epoch, []).append(each)
    points = []
    for epoch, found in sorted(by_epoch.items()):
        value = stat(each.score.value for each in found)
        if value is not None:
            seconds = math.fsum(each.train_s for each in found)
            points.append(Point(epoch, seconds / len(found), value))
    return points


def threshold(summary: Summary, name: str) -> int | None:
    """Choose the accuracy that rows are compared by: the highest multiple of 5 % that at least half of them reach.

    A row reaches what all of its seeds reach. None if there is no such accuracy above 0 %.
    """
    if curve_scores(summary)[name].unit != "%":
        return None
    highest = []
    for row in summary.rows:
        best = []
        for found in _seeds(row, name):
            best.append(max(each.score.value for each in found))
        if best:
            highest.append(min(best))
    if not highest:
        return None
    # At this place of the sorted list, half of the rows reach as much.
    highest.sort(reverse=True)
    return _STEP * math.floor(highest[(len(highest) - 1) // 2] / _STEP) or None


@dataclass(frozen=True)
class Reached:
    """When a row reached an accuracy, over those of its seeds that did.

    Attributes:
        epochs: Epochs until then; None if no seed reached it, like the next.
        train_s: Seconds of training until then.
        seeds: Number of seeds with a curve.
    """

    epochs: Stat | None
    train_s: Stat | None
    seeds: int


def reached(row: Row, name: str, percent: float) -> Reached:
    """Find when the seeds of a row first had a score of so many per cent; diverged ones do not count."""
    seeds = _seeds(row, name)
    first = []
    for found in seeds:
        enough = [each for each in found if each.score.value >= percent]
        first += enough[:1]
    epochs, train_s = stat(each.epoch for each in first), stat(each.train_s for each in first)
    return Reached(epochs, train_s, len(seeds))


def curve_notes(summary: Summary) -> list[str]:
    """Say what the curves are: on which split, how often, and on what hardware their time was taken."""
    splits: dict[str, None] = {}
    intervals, hardware = set(), set()
    for row in summary.rows:
        for record in row.records:
            if record.measured:
                splits.update(dict.fromkeys(each.score.split for each in record.measured))
                intervals.add(int(record.cell["evaluation"]["every_epochs"]))
                hardware.add(machine(record))
    every, machines = sorted(intervals), sorted(hardware)
    how_often = "each epoch" if every == [1] else f"every {' or '.join(map(str, every))} epochs and after the last"
    where = machines[0] if len(machines) == 1 else f"unequal machines, so compare within one: {'; '.join(machines)}"
    return [
        f"Accuracy while training is of the {' and '.join(splits)} split, after {how_often}.",
        f"Its time is that of training alone, without checkpoints and evaluations, on {where}.",
    ]


def _seeds(row: Row, name: str) -> list[list[ScoreInTraining]]:
    """Return what was measured of each seed that came to its end."""
    # A run may pass an accuracy and diverge later. It would count as one that is there soon.
    of_seeds = []
    for record in row.records:
        found = _of(record, name) if record.status == "done" else []
        if found:
            of_seeds.append(found)
    return of_seeds


def _of(record: Record, name: str) -> list[ScoreInTraining]:
    return [each for each in record.measured if each.score.name == name]
