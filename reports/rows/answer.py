"""The answer to "which method for these images?" in at most five sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from regbench.reports.rows.notes import UNITS
from regbench.reports.rows.significance import LEVEL, MIN_PAIRS, PairTest
from regbench.reports.rows.summary import LEADING, MIXED, Row, Summary, mean_of
from regbench.reports.tables.table import signed
from regbench.reports.tables.units import time_unit
from regbench.text import counted, few

_RETRIEVAL = "retrieval_recall1"  # the leading score where no image has a label
_LEAST_POINTS = 0.5  # a smaller difference is worth no further seeds
_LONGER = 4  # factor on the epochs for a longer training


def answer(summary: Summary) -> list[str]:
    """Answer which methods lead, by how much, and what to do next, in at most five sentences.

    Empty unless a task has two methods and an untrained row with an accuracy in per cent.
    """
    names = [name for name in (*LEADING, _RETRIEVAL) if name in summary.leading]
    names = [name for name in names if summary.scores[name].unit == "%"]
    methods = [row for row in summary.methods if all(row.score(name) for name in names)]
    if not names or len(methods) < 2 or not all(map(summary.best_trivial, names)):
        return []
    return _Answer(summary, names, methods).sentences()


class _Answer:
    """What the sentences are about.

    Attributes:
        names: Names of the leading scores; methods are ordered by the last.
        methods: Rows that have these scores, the best first.
        leaders: Those that are significantly better than each untrained row, by each score.
        first: The best of the leaders, or of all methods if there are no leaders.
        gains: For each score the best untrained row, and how far the first is above it.
        others: How far the first is above each other method by the last score, the best first.
        alike: Others that are not significantly different from the first.
        above: Others that are significantly better than it.
        below: Others that are significantly worse.
    """

    def __init__(self, summary: Summary, names: Sequence[str], methods: Sequence[Row]) -> None:
        self.summary, self.names, self.name = summary, names, names[-1]
        self.title = summary.scores[self.name].title
        self.unlabelled = names == [_RETRIEVAL] and summary.supervised(_RETRIEVAL) is None
        self.methods = sorted(methods, key=lambda row: -mean_of(row, self.name))
        self.leaders = [row for row in self.methods if _leads(summary, row, names)]
        among = self.leaders or self.methods
        # The best mean may be of a row that lacks the seeds which are hard for all.
        self.first = next((row for row in among if not self._above(row, among)), among[0])
        self.gains: list[tuple[Row, PairTest]] = []
        for name in names:
            trivial = summary.best_trivial(name)
            assert trivial is not None  # otherwise there is no answer
            self.gains.append((trivial, _compared(summary, self.first, trivial, name)))
        rest = [row for row in self.methods if row is not self.first]
        self.others = {row: _compared(summary, self.first, row, self.name) for row in rest}
        self.alike = [row for row, found in self.others.items() if not found.p <= LEVEL]
        self.above = self._above(self.first, rest)
        self.below = [row for row in rest if row not in (*self.alike, *self.above)]

    def sentences(self) -> list[str]:
        """Put the sentences together."""
        lead, tried = self._lead(), _tried(self.summary, self.methods, self.name)
        found = [tried, lead] if self.leaders else [lead, tried]
        found.append(self._order())
        if self.unlabelled:
            found.append(
                f"No label was read: {self.title} is how often an image's other view is found "
                "among those of all images, and no score without labels is known to find the "
                "method that serves a task best."
            )
        supervised = self.summary.supervised(self.name)
        if supervised is not None:
            accuracy = mean_of(supervised, self.name)
            gap = signed(accuracy - mean_of(self.first, self.name), 1)
            found.append(
                f"With the labels of the training images, the same network has {accuracy:.1f} % by "
                f"{self.title}: {gap} points from {self.first.name}."
            )
        return [*found, f"Next: {self._next_step()}."]

    def _above(self, row: Row, others: Sequence[Row]) -> list[Row]:
        """Select the rows that are significantly above a row by the last score."""
        compared = [(each, _compared(self.summary, row, each, self.name)) for each in others]
        return [each for each, found in compared if found.difference < 0 and found.p <= LEVEL]

    def _lead(self) -> str:
        """Say who leads the untrained rows, and by how much."""
        titles = [self.summary.scores[name].title for name in self.names]
        gains = []
        for title, (trivial, gain) in zip(titles, self.gains, strict=True):
            points = _points(gain)
            if math.isnan(gain.difference):
                points = f"a number of points that is not known (no {self.summary.unit} in common)"
            gains.append(f"{points} by {title} from {trivial.label}")
        who, among = "No method is known to lead", "the first"
        if self.leaders:
            leading = few([row.name for row in self.leaders], between="; ")
            lead = "leads" if len(self.leaders) == 1 else "lead"
            who = f"{len(self.leaders)} of {len(self.methods)} methods ({leading}) {lead}"
            among = "the first of these"
        return (
            f"{who} all untrained rows by {' and '.join(titles)}; {among} by {self.title} is "
            f"{self.first.name}, {' and '.join(gains)}."
        )

    def _order(self) -> str:
        """Say which methods are significantly different from the first, and which are not."""
        clauses, it = [], f"{self.first.name} by {self.title}"
        if self.above:
            better = few([row.name for row in self.above], between="; ")
            verb, does = ("is", "does") if len(self.above) == 1 else ("are", "do")
            clauses.append(f"{better} {verb} significantly above {it}")
            # Rows with unlike seeds can each be above the next, in a circle.
            if not any(row in self.leaders for row in self.above):
                clauses[-1] += f", and {does} not lead all untrained rows"
            it = "it"
        if self.alike:
            close = few([row.name for row in self.alike], between="; ")
            clauses.append(f"not known to differ from {it}: {close}")
        elif self.below:
            gap = _points(self.others[self.below[0]])
            clauses.append(
                f"all other methods are significantly below {it}: {gap} from {self.below[0].name}"
            )
        order = "; ".join(clauses)
        return f"{order if self.above else order[0].upper() + order[1:]}."

    def _next_step(self) -> str:
        """Propose what to do next."""
        summary, first, units = self.summary, self.first, UNITS[self.summary.unit]
        beside = _beside_untrained(summary, first, self.names)
        untested = {row.label: None for row, found in beside if math.isnan(found.p)}
        for row in self.methods[: self.methods.index(first)]:
            if math.isnan(self.others[row].p):
                untested[f"{row.name} (higher by {self.title})"] = None
        if untested:
            left_s = 0.0
            for row in self.methods:
                left_s += max(0, MIN_PAIRS - len(row.by_unit(self.name))) * _unit_s(summary, row)
            common = f"in common with {few(list(untested), between='; ')}"
            why = f"as fewer are not tested{_time(left_s)}"
            return f"{MIN_PAIRS} {units} of every row {common}, {why}"
        if not self.leaders:
            in_all_s = math.fsum(record.cost.train_s or 0.0 for record in summary.all_records)
            return f"all of it with {_LONGER} times the epochs{_time(_LONGER * in_all_s)}"
        if self.unlabelled:
            cheapest = min(self.leaders, key=lambda row: _train_s(row) or math.inf)
            return (
                "label some images of each class, which lets a comparison choose; until then take "
                f"the one that trains fastest, {cheapest.name}{_time(_train_s(cheapest))}"
            )
        close_leaders = [row for row in self.alike if row in self.leaders]
        if close_leaders:
            return _among_leaders(summary, first, close_leaders, self.name)
        longer = f"{_LONGER} times the epochs{_time(_LONGER * _train_s(first))}"
        return f"take {first.name}, or train it with {longer}"


def _tried(summary: Summary, methods: Sequence[Row], name: str) -> str:
    budget = max(summary.budget(row) or 1 for row in methods)
    tried = f"Tried: {counted(len(methods), 'method')}"
    lacking = [row.name for row in summary.methods if row not in methods]
    if lacking:
        tried += f" (not {few(lacking, between='; ')}, for want of a score)"
    if budget > 1:
        tried += f", up to {budget} configurations of each on the {summary.selection_split} split"
    numbers = sorted({len(row.by_unit(name)) for row in methods})
    seeds = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
    unit = summary.unit if numbers == [1] else UNITS[summary.unit]
    untrained = counted(sum(row.untrained for row in summary.rows), "untrained row")
    return f"{tried}, {seeds} {unit} of each, beside {untrained}."


def _among_leaders(summary: Summary, first: Row, alike: Sequence[Row], name: str) -> str:
    """Propose what to do with rows that are not significantly different from the first."""
    close = [first, *alike]
    cheapest = min(close, key=lambda row: _train_s(row) or math.inf)
    take = f"take the one that trains fastest, {cheapest.name}{_time(_train_s(cheapest))}"
    if summary.unit == MIXED:
        return take
    points = max(_LEAST_POINTS, abs(_compared(summary, first, alike[0], name).difference))
    tukey = summary.tukey(name)
    number = max(tukey.power.seeds_for(points), tukey.seeds + 1)
    more_s = (number - tukey.seeds) * math.fsum(_unit_s(summary, row) for row in close)
    return (
        f"{take}, or find {points:.1f} points by {number:,} {UNITS[summary.unit]} of each"
        f"{_time(more_s)}"
    )


def _compared(summary: Summary, row: Row, other: Row, name: str) -> PairTest:
    places = summary.rows.index
    return summary.tukey(name).compare(places(row), [places(other)])[0]


def _leads(summary: Summary, row: Row, names: Sequence[str]) -> bool:
    """Return True if a row is significantly better than each untrained row by each test score."""
    beside = _beside_untrained(summary, row, names)
    return all(found.difference > 0 and found.p <= LEVEL for _, found in beside)


def _beside_untrained(
    summary: Summary, row: Row, names: Sequence[str]
) -> Iterator[tuple[Row, PairTest]]:
    """Compare a row with each untrained row by each test score."""
    for name, other in product(names, summary.rows):
        if other.untrained and other.score(name) is not None:
            yield other, _compared(summary, row, other, name)


def _train_s(row: Row) -> float:
    found = row.cost("train_s")
    return found.mean if found else 0.0


def _unit_s(summary: Summary, row: Row) -> float:
    """Return the training seconds of one more seed of a row, or of one more search with its final
    seeds.
    """
    entry = summary.chosen(row) if summary.unit == "search" else None
    if entry is None:
        return _train_s(row)
    searched = sum(ranked.epochs for ranked in entry.ranking) / int(row.first.cell["epochs"])
    searches = {record.search for record in row.records}
    return _train_s(row) * (searched + len(row.records) / len(searches))


def _time(seconds: float) -> str:
    """Format a time of training; empty if nothing was measured."""
    unit = time_unit(seconds)
    text = f" ({seconds / unit.divisor:.{unit.decimals}f} {unit.name} of training)"
    return text if seconds > 0 else ""


def _points(found: PairTest) -> str:
    """Format a difference with its interval."""
    if math.isnan(found.half):
        return f"{signed(found.difference, 1)} points (not tested)"
    low, high = found.difference - found.half, found.difference + found.half
    interval = f"95 % interval {low:.1f} to {high:.1f}"
    return f"{signed(found.difference, 1)} points ({interval})".replace("-", "−")
