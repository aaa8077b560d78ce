"""The answer to "which method for these images?" in at most five sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regbench.reports.rows.notes import UNITS, few
from regbench.reports.rows.significance import LEVEL, MIN_PAIRS, PairTest
from regbench.reports.rows.summary import LEADING, Row, Summary, mean_of
from regbench.reports.tables.table import signed
from regbench.reports.tables.units import time_unit
from regbench.text import counted

_RETRIEVAL = "retrieval_recall1"  # the leading score where no image has a label
_LEAST_POINTS = 0.5  # a smaller difference is worth no further seeds
_LONGER = 4  # times the epochs of a longer training


def answer(summary: Summary) -> list[str]:
    """Answer which methods lead, by how much, and what to do next, in at most five sentences.

    Empty where a task has no two methods, or no untrained row, with an accuracy in per cent.
    """
    names = [name for name in (*LEADING, _RETRIEVAL) if name in summary.leading]
    names = [name for name in names if summary.scores[name].unit == "%"]
    methods = [row for row in summary.methods if all(row.score(name) for name in names)]
    if not names or len(methods) < 2 or not all(map(summary.best_trivial, names)):
        return []
    methods.sort(key=lambda row: -mean_of(row, names[-1]))
    leaders = [row for row in methods if all(_leads(summary, row, name) for name in names)]
    first, title = (leaders or methods)[0], summary.scores[names[-1]].title
    above: list[Row] = []
    alike: list[Row] = []
    below: list[Row] = []
    for row in methods:
        if row is not first:
            found = _compared(summary, first, row, names[-1])
            if not found.p <= LEVEL:
                alike.append(row)
            else:
                (above if found.difference < 0 else below).append(row)

    # What was compared, and who leads the untrained rows.
    titles, gains, tested = [], [], True
    for name in names:
        trivial = summary.best_trivial(name)
        assert trivial is not None
        titles.append(summary.scores[name].title)
        gain = _compared(summary, first, trivial, name)
        points = _points(gain)
        if math.isnan(gain.difference):
            points = f"a number of points that is not known (no {summary.unit} in common)"
        gains.append(f"{points} by {titles[-1]} from {trivial.label}")
        tested = tested and not math.isnan(gain.p)
    who = "No method is known to lead"
    if leaders:
        leading = few([row.name for row in leaders])
        lead = "leads" if len(leaders) == 1 else "lead"
        who = f"{len(leaders)} of {len(methods)} methods ({leading}) {lead}"
    among = "the first of these" if leaders else "the first"
    sentences = [
        f"{who} all untrained rows by {' and '.join(titles)}; {among} by {title} is "
        f"{first.name}, {' and '.join(gains)}."
    ]
    sentences.insert(1 - bool(leaders), _tried(summary, methods, names[-1]))

    # Who is not significantly different from the first, and what labels bring.
    clauses, it = [], f"{first.name} by {title}"
    if above:
        better = few([row.name for row in above])
        verb, does = ("is", "does") if len(above) == 1 else ("are", "do")
        clauses.append(
            f"{better} {verb} significantly above {it}, and {does} not lead all untrained rows"
        )
        it = "it"
    if alike:
        close = few([row.name for row in alike])
        clauses.append(f"not known to differ from {it}: {close}")
    elif below:
        gap = _points(_compared(summary, first, below[0], names[-1]))
        clauses.append(
            f"all other methods are significantly below {it}: {gap} from {below[0].name}"
        )
    order = "; ".join(clauses)
    sentences.append(f"{order if above else order[0].upper() + order[1:]}.")
    unlabelled = names == [_RETRIEVAL]
    if unlabelled:
        sentences.append(
            f"No label was read: {title} is how often an image's other view is found among those "
            "of all images, and no score without labels is known to find the method that serves a "
            "task best."
        )
    supervised = summary.supervised(names[-1])
    if supervised is not None:
        accuracy = mean_of(supervised, names[-1])
        gap = signed(accuracy - mean_of(first, names[-1]), 1)
        sentences.append(
            f"With the labels of the training images, the same network has {accuracy:.1f} % by "
            f"{title}: {gap} points from {first.name}."
        )
    if not tested:
        left_s = 0.0
        for row in methods:
            left_s += max(0, MIN_PAIRS - len(row.by_unit(names[-1]))) * _unit_s(summary, row)
        plural = UNITS[summary.unit]
        step = f"{MIN_PAIRS} {plural} of every row, as fewer are not tested{_time(left_s)}"
    elif not leaders:
        records = list(summary.records)
        for configuration in summary.short:
            records += configuration.records
        in_all_s = math.fsum(record.cost.train_s or 0.0 for record in records)
        step = f"all of it with {_LONGER} times the epochs{_time(_LONGER * in_all_s)}"
    elif unlabelled:
        cheapest = min(leaders, key=_train_s)
        step = (
            "label some images of each class, which lets a comparison choose; until then take the "
            f"one that trains fastest, {cheapest.name}{_time(_train_s(cheapest))}"
        )
    elif close_leaders := [row for row in alike if row in leaders]:
        step = _to_tell(summary, first, close_leaders, names[-1])
    else:
        longer = f"{_LONGER} times the epochs{_time(_LONGER * _train_s(first))}"
        step = f"take {first.name}, or train it with {longer}"
    return [*sentences, f"Next: {step}."]


def _tried(summary: Summary, methods: Sequence[Row], name: str) -> str:
    budget = max(summary.budget(row) or 1 for row in methods)
    tried = f"Tried: {counted(len(methods), 'method')}"
    lacking = [row.name for row in summary.methods if row not in methods]
    if lacking:
        tried += f" (not {few(lacking)}, for want of a score)"
    if budget > 1:
        tried += f", up to {budget} configurations of each on the {summary.selection_split} split"
    numbers = sorted({len(row.by_unit(name)) for row in methods})
    seeds = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
    unit = summary.unit if numbers == [1] else UNITS[summary.unit]
    untrained = counted(sum(row.untrained for row in summary.rows), "untrained row")
    return f"{tried}, {seeds} {unit} of each, beside {untrained}."


def _to_tell(summary: Summary, first: Row, alike: Sequence[Row], name: str) -> str:
    """Propose what to do with rows that are not significantly different from the first."""
    close = [first, *alike]
    cheapest = min(close, key=lambda row: _train_s(row) or math.inf)
    points = max(_LEAST_POINTS, abs(_compared(summary, first, alike[0], name).difference))
    tukey = summary.tukey(name)
    number = max(tukey.power.seeds_for(points), tukey.seeds + 1)
    more_s = (number - tukey.seeds) * math.fsum(_unit_s(summary, row) for row in close)
    return (
        f"take the one that trains fastest, {cheapest.name}{_time(_train_s(cheapest))}, or tell "
        f"{points:.1f} points by {number:,} {UNITS[summary.unit]} of each{_time(more_s)}"
    )


def _compared(summary: Summary, row: Row, other: Row, name: str) -> PairTest:
    places = summary.rows.index
    return summary.tukey(name).compare(places(row), [places(other)])[0]


def _leads(summary: Summary, row: Row, name: str) -> bool:
    """Return True if a row is significantly better than each untrained row by a test score."""
    for other in summary.rows:
        if other.untrained and other.score(name) is not None:
            found = _compared(summary, row, other, name)
            if not (found.difference > 0 and found.p <= LEVEL):
                return False
    return True


def _train_s(row: Row) -> float:
    found = row.cost("train_s")
    return found.mean if found else 0.0


def _unit_s(summary: Summary, row: Row) -> float:
    """Return the seconds of training of a further seed of a row, or of a further search with its
    final seeds.
    """
    entry = summary.chosen(row) if summary.unit == "search" else None
    if entry is None:
        return _train_s(row)
    searched = sum(ranked.epochs for ranked in entry.ranking) / int(row.first.cell["epochs"])
    searches = {record.search for record in row.records}
    return _train_s(row) * (searched + len(row.records) / len(searches))


def _time(seconds: float) -> str:
    """Format a time of training; empty where nothing was measured."""
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
