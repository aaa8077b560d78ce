"""Curves of accuracy while training: means over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regbench.benchmark.rundir.record import Score, ScoreInTraining
from regbench.reports.rows.deviations import Stat, stat
from regbench.reports.rows.notes import machine
from regbench.reports.rows.summary import Row, Summary


@dataclass(frozen=True)
class Point:
    """A point of a row's curve.

    Attributes:
        epoch: Epoch after which it was measured.
        train_s: Seconds of training until then, the mean over the seeds.
        value: Statistics of the score over the seeds.
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
        for each in record.measured:
            if each.score.name == name:
                by_epoch.setdefault(each.epoch, []).append(each)
    points = []
    for epoch, found in sorted(by_epoch.items()):
        value = stat(each.score.value for each in found)
        if value is not None:
            seconds = math.fsum(each.train_s for each in found)
            points.append(Point(epoch, seconds / len(found), value))
    return points


def curve_notes(summary: Summary) -> list[str]:
    """Describe the curves: on which split, how often, and on what hardware their time was taken."""
    splits: dict[str, None] = {}
    intervals, machines = set(), set()
    for row in summary.rows:
        for record in row.records:
            if record.measured:
                splits |= dict.fromkeys(each.score.split for each in record.measured)
                intervals.add(int(record.cell["evaluation"]["every_epochs"]))
                machines.add(machine(record))
    how_often = "each epoch"
    if intervals != {1}:
        how_often = f"every {' or '.join(map(str, sorted(intervals)))} epochs and after the last"
    where = "; ".join(sorted(machines))
    if len(machines) > 1:
        where = f"unequal machines, so compare within one: {where}"
    return [
        f"Accuracy while training is of the {' and '.join(splits)} split, after {how_often}.",
        f"Its time is that of training alone, without checkpoints and evaluations, on {where}.",
    ]
