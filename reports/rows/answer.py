"""The answer to "which method for these images?" in at most five sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from regbench.reports.rows.notes import UNITS
from regbench.reports.rows.significance import LEVEL, MIN_PAIRS, PairTest
from regbench.reports.rows.summary import LEADING, Row, Summary, mean_of
from regbench.reports.tables.units import time_unit
from regbench.text import counted

_NAMED = 4  # rows that a sentence names
_LEAST_POINTS = 0.5  # a smaller difference is worth no further seeds
_MOST_SEEDS = 100
_LONGER = 4  # times the epochs of a longer training


def answer(summary: Summary) -> list[str]:
    """Answer which methods lead, by how much, and what to do next, in at most five sentences.

    Empty where a task has no two methods, or no untrained row, with an accuracy in per cent.
    """
    names = []
    for name in summary.leading:
        score = summary.scores[name]
        if name in LEADING and score.unit == "%" and score.higher_is_better:
            names.append(name)
    methods = [row for row in summary.methods if all(row.score(name) for name in names)]
    if not names or len(methods) < 2 or not all(map(summary.best_trivial, names)):
        return []
    methods.sort(key=lambda row: -mean_of(row, names[-1]))
    answered = _Answer(summary, names, methods)
    sentences = [answered.tried(), answered.lead()]
    if not answered.leaders:
        sentences.reverse()
    return [*sentences, answered.order(), *answered.labels(), answered.next_step()]


@dataclass
class _Answer:
    """The parts of an answer.

    Attributes:
        summary: The task.
        names: The test scores that methods are compared by; the last one orders them.
        methods: Rows of methods that have all of these, best first.
    """

    summary: Summary
    names: Sequence[str]
    methods: Sequence[Row]

    def __post_init__(self) -> None:
        """Find the rows that lead, and those that are not told from the first of them."""
        self.leaders = [row for row in self.methods if self._leads(row)]
        self.first = (self.leaders or self.methods)[0]
        self.headline = self.names[-1]
        self.title = self.summary.scores[self.headline].title
        self.others = [row for row in self.methods if row is not self.first]
        self.gains = {}
        for name in self.names:
            trivial = self.summary.best_trivial(name)
            assert trivial is not None
            self.gains[name] = trivial, self._compared(trivial, name)
        self.tested = not any(math.isnan(found.p) for _, found in self.gains.values())
        self.alike = []
        for row in self.others:
            if not self._compared(row, self.headline).p <= LEVEL:
                self.alike.append(row)

    def _compared(self, other: Row, name: str, row: Row | None = None) -> PairTest:
        """Compare a row, or else the first, with another by a test score."""
        places = self.summary.rows.index
        return self.summary.tukey(name).compare(places(row or self.first), [places(other)])[0]

    def _leads(self, row: Row) -> bool:
        """Return True if a row is significantly better than each untrained row by each score."""
        for name in self.names:
            for other in self.summary.rows:
                if other.untrained and other.score(name) is not None:
                    found = self._compared(other, name, row)
                    if not (found.difference > 0 and found.p <= LEVEL):
                        return False
        return True

    def tried(self) -> str:
        """Describe what was compared."""
        summary = self.summary
        text = f"Tried: {counted(len(self.methods), 'method')}"
        budget = max(summary.budget(row) or 1 for row in self.methods)
        if budget > 1:
            of_each = f"up to {budget} configurations of each"
            text += f", {of_each} compared on the {summary.selection_split} split"
        seeds = max(len(row.by_unit(self.headline)) for row in self.methods)
        untrained = sum(row.untrained for row in summary.rows)
        unit = summary.unit if seeds == 1 else UNITS[summary.unit]
        text += f", {seeds} {unit} of each"
        return f"{text}, beside {counted(untrained, 'untrained row')}."

    def lead(self) -> str:
        """Name the methods that lead the untrained rows, and the first of them by how much."""
        leads = []
        for name, (trivial, found) in self.gains.items():
            by = f"{self.summary.scores[name].title} from {trivial.label}"
            leads.append(f"{_points(found)} by {by}")
        text = f"{self.first.name}, {' and '.join(leads)}."
        titles = " and ".join(self.summary.scores[name].title for name in self.names)
        if not self.leaders:
            return (
                f"No method is known to lead all untrained rows by {titles}; the first by "
                f"{self.title} is {text}"
            )
        number = f"{len(self.leaders)} of {len(self.methods)}"
        return (
            f"{number} methods lead all untrained rows by {titles} ({_few(self.leaders)}); the "
            f"first by {self.title} is {text}"
        )

    def order(self) -> str:
        """Name the methods that are not told from the first."""
        if len(self.first.by_unit(self.headline)) < MIN_PAIRS:
            return f"Differences were not tested: that takes {MIN_PAIRS} seeds of each."
        first = f"{self.first.name} by {self.title}"
        if self.alike:
            return f"Not known to differ from {first}: {_few(self.alike)}."
        second = self.others[0]
        gap = _points(self._compared(second, self.headline))
        return f"All other methods are significantly below {first}: {gap} from {second.name}."

    def labels(self) -> list[str]:
        """Describe how much labels bring, where the supervised row is there."""
        supervised = self.summary.supervised(self.headline)
        if supervised is None:
            return []
        with_labels = mean_of(supervised, self.headline)
        gap = _signed(with_labels - mean_of(self.first, self.headline))
        return [
            f"With the labels of all training images the same network has {with_labels:.1f} % by "
            f"{self.title}: {gap} points from {self.first.name}."
        ]

    def next_step(self) -> str:
        """Propose what to do next, with the time of training that it takes."""
        if not self.tested:
            of_all = MIN_PAIRS * math.fsum(map(_train_s, self.methods))
            return f"Next: {MIN_PAIRS} seeds of every row{_time(of_all)}."
        if not self.leaders:
            records = list(self.summary.records)
            for configuration in self.summary.short:
                records += configuration.records
            in_all = math.fsum(record.cost.train_s or 0.0 for record in records)
            return f"Next: all of it with {_LONGER} times the epochs{_time(_LONGER * in_all)}."
        if not self.alike:
            return (
                f"Next: take {self.first.name}, or train it with {_LONGER} times the "
                f"epochs{_time(_LONGER * _train_s(self.first))}."
            )
        close = [self.first, *self.alike]
        cheapest = min(close, key=_train_s)
        take = f"take the one that trains fastest, {cheapest.name}{_time(_train_s(cheapest))}"
        tukey = self.summary.tukey(self.headline)
        gap = abs(self._compared(self.alike[0], self.headline).difference)
        points = max(_LEAST_POINTS, gap)
        seeds = tukey.power.seeds_for(points)
        if seeds > _MOST_SEEDS:
            return f"Next: {take}; to tell them apart takes more than {_MOST_SEEDS} seeds."
        more_s = (seeds - tukey.seeds) * math.fsum(map(_train_s, close))
        return f"Next: {take}, or tell {points:.1f} points by {seeds} seeds of each{_time(more_s)}."


def _train_s(row: Row) -> float:
    found = row.cost("train_s")
    return found.mean if found else 0.0


def _time(seconds: float) -> str:
    """Format a time of training; empty where nothing was measured."""
    unit = time_unit(seconds)
    text = f" ({seconds / unit.divisor:.{unit.decimals}f} {unit.name} of training)"
    return text if seconds > 0 else ""


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")


def _points(found: PairTest) -> str:
    """Format a difference with its interval."""
    if math.isnan(found.half):
        return f"{_signed(found.difference)} points (not tested)"
    low, high = found.difference - found.half, found.difference + found.half
    interval = f"95 % interval {low:.1f} to {high:.1f}"
    return f"{_signed(found.difference)} points ({interval})".replace("-", "−")


def _few(rows: Sequence[Row]) -> str:
    """List the first of some rows."""
    names = [row.name for row in rows[:_NAMED]]
    if len(rows) > _NAMED:
        names.append(f"{len(rows) - _NAMED} more")
    return ", ".join(names)
