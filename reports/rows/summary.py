"""Parts of a leaderboard: configurations, the rows that stand for methods, and the task that they
belong to.

A *configuration* is a cell without its seed. A *row* is a method in one setting (embedding
dimension, batch size, epochs and the like). Where several configurations were tried for a row, the
one with the highest mean weighted-kNN top-1 on the tuning split stands for it, which is the paper's
protocol. `grouping` makes them from records.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.tuning_choice import ChosenConfiguration, TuningChoice
from regbench.benchmark.settings.identity import configuration_id
from regbench.reports.find.runs import Missing, MissingRow
from regbench.reports.rows.deviations import Stat, stat
from regbench.reports.rows.significance import Best, Tukey, best

P = ParamSpec("P")
T = TypeVar("T")

# The scores that a leaderboard shows and the figures draw, where they were measured; the last one
# orders the rows. Without any of them, R² of the content does.
LEADING = ("knn_top1", "linear_top1")
CONTENT = "content_r2"

# Unit of repetition where rows of repeated searches stand beside rows of seeds.
MIXED = "seed or search"

# Stands for a missing number.
DASH = "–"


def _kept(method: Callable[P, T]) -> Callable[P, T]:
    """Keep what a method returns: tables, notes and figures ask for the same statistics."""

    @functools.wraps(method)
    def kept(*args: P.args, **kwargs: P.kwargs) -> T:
        owner, *rest = args
        known: dict[Any, T] = vars(owner).setdefault("_kept", {})
        key = (method.__name__, *rest, *kwargs.items())
        if key not in known:
            known[key] = method(*args, **kwargs)
        return known[key]

    return kept


@dataclass(frozen=True)
class Configuration:
    """The cells that differ in their seed only."""

    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """Any of the cells, for what they share."""
        return self.records[0]

    @property
    def label(self) -> str:
        """Display name of the method."""
        return self.first.label

    @property
    def untrained(self) -> bool:
        """Whether nothing was trained: the network as it is initialised, or a trivial baseline."""
        return self.first.untrained

    @property
    def is_reference(self) -> bool:
        """Whether this is no method, but what methods are held against."""
        return self.first.is_reference

    @property
    def diverged(self) -> int:
        """Number of cells that diverged: they have no score."""
        return sum(r.status == "diverged" for r in self.records)

    @property
    def final(self) -> bool:
        """Whether any of the cells has its final scores."""
        return any(r.status == "done" for r in self.records)

    @property
    def failed(self) -> bool:
        """Whether a tuning chose it, and any of its final runs diverged.

        Diverged records of early checkouts do not name the choice.
        """
        return any(r.status == "diverged" and r.choice for r in self.records)

    @functools.cached_property
    def repeated(self) -> bool:
        """Whether it stands for what several searches chose, and not for one configuration."""
        return any(record.search is not None for record in self.records)

    @_kept
    def score(self, name: str, split: str = "test") -> Stat | None:
        """Return the statistics of a score over the seeds.

        If searches were repeated, they are over the mean of each search.
        """
        if self.repeated:
            return stat(self.by_unit(name, split).values())
        return stat(r.score(name, split) for r in self.records)

    def by_unit(self, name: str, split: str = "test") -> dict[int, float]:
        """Return seed -> score, or where searches were repeated, search -> mean score: what
        varies independently.
        """
        samples = self.samples(name, split)
        return {unit: math.fsum(values) / len(values) for unit, values in samples.items()}

    @_kept
    def samples(self, name: str, split: str = "test") -> dict[int, list[float]]:
        """Return the scores of each unit of `by_unit`."""
        found: dict[int, list[float]] = {}
        for record in self.records:
            value = record.score(name, split)
            if value is not None:
                # Search k has the number -1 - k, so that no other row's seed is taken for its
                # counterpart.
                unit = record.seed if record.search is None else -1 - record.search
                found.setdefault(unit, []).append(value)
        return found

    @_kept
    def cost(self, name: str) -> Stat | None:
        """Return the statistics of a cost over the seeds; None for an untrained network.

        Diverged cells do not count.
        """
        return stat(getattr(record.cost, name) for record in self._trained_to_the_end)

    @_kept
    def at_end(self, name: str) -> Stat | None:
        """Return the statistics of a measure in the last epoch of training.

        Diverged cells do not count.
        """
        return stat(record.at_end.get(name) for record in self._trained_to_the_end)

    @property
    def _trained_to_the_end(self) -> list[Record]:
        if self.untrained:
            return []
        return [record for record in self.records if record.status != "diverged"]


def mean_of(row: Configuration, name: str, split: str = "test") -> float:
    """Return the mean of a score that the row has."""
    found = row.score(name, split)
    assert found is not None
    return found.mean


# eq=False keeps equality and hash of a configuration: settings are a dict, which has no hash.
@dataclass(frozen=True, eq=False)
class Row(Configuration):
    """The configuration that stands for a method in one setting.

    Attributes:
        settings: The settings that vary in the task, by their name in a table's head; "–" where
            they do not apply.
        tried: Number of configurations that it was chosen from.
        missing: Number of seeds that are planned and not finished.
    """

    settings: dict[str, str]
    tried: int
    missing: int = 0

    @property
    def edges(self) -> dict[str, str]:
        """Hyperparameters beyond whose value nothing was tried, see `ChosenConfiguration.edges`."""
        edges: dict[str, str] = {}
        for record in self.records:
            for key, side in record.choice.get("hyperparameters", {}).get("edges", {}).items():
                edges[key] = side if edges.get(key, side) == side else "smallest and largest"
        return edges

    @functools.cached_property
    def setting(self) -> str:
        """The varying settings, such as "q=1024, batch=256"; empty without any."""
        known = [f"{name}={value}" for name, value in self.settings.items() if value != DASH]
        return ", ".join(known)

    @functools.cached_property
    def name(self) -> str:
        """Label with the varying settings, such as "SFRIK (L=2), q=1024"."""
        return f"{self.label}, {self.setting}" if self.setting else self.label


@dataclass(eq=False)
class Summary:
    """One task.

    Attributes:
        sweeps: Names of the sweeps.
        records: The good records, each cell once.
        name: The sweeps that the cells come from, with the task if others have the same sweeps.
        choices: Choices of the tunings of these cells, by the path of their file.
        varying: The settings in which its trained cells differ, by their full names.
        configurations: All configurations tried, in the order of their labels.
        rows: One per method and setting, best first; those that are no methods come last.
        unchosen: Methods with several configurations among which nothing chose, with their number.
        waiting: Methods that were tuned and have no final score yet, with the number of their
            configurations.
        missing: Rows without a finished cell.
        failures: Cells whose last attempt failed.
        short: Configurations that searches trained for fewer epochs than what they chose; the
            others have none of them.
    """

    sweeps: tuple[str, ...]
    records: tuple[Record, ...]
    name: str = ""
    choices: Mapping[Path, TuningChoice] = field(default_factory=dict)
    varying: Sequence[str] = ()
    configurations: list[Configuration] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    unchosen: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    missing: list[MissingRow] = field(default_factory=list)
    failures: list[Missing] = field(default_factory=list)
    short: list[Configuration] = field(default_factory=list)

    @property
    def all_records(self) -> list[Record]:
        """The good records, and then those of the short trainings."""
        return [*self.records, *chain.from_iterable(short.records for short in self.short)]

    @property
    def on_test(self) -> bool:
        """Whether the test split chose: such numbers do not compare with those of other
        summaries.
        """
        return self.records[0].on_test

    @property
    def methods(self) -> list[Row]:
        """The rows of methods, best first, at the places that they have in `rows`."""
        return [row for row in self.rows if not row.is_reference]

    @functools.cached_property
    def scores(self) -> dict[str, Score]:
        """One score of each name, described as in most records, in the order of the records.

        Scores without a best value come last.
        """
        described: dict[str, dict[tuple[str, str, bool | None], list[Score]]] = {}
        for record in self.records:
            for score in record.scores:
                about = score.title, score.unit, score.higher_is_better
                described.setdefault(score.name, {}).setdefault(about, []).append(score)
        # A single record cannot decide what a score is: somebody else's bundle may hold anything.
        usual = [max(alike.values(), key=len)[0] for alike in described.values()]
        usual.sort(key=lambda score: score.higher_is_better is None)
        scores = {score.name: score for score in usual}
        for name, score in scores.items():
            if name.startswith("style_r2"):  # older records call it good to keep the style
                scores[name] = replace(score, higher_is_better=False)
        return scores

    def measured(self, name: str, split: str = "test") -> bool:
        """Return True if any row has a score."""
        return any(row.score(name, split) for row in self.rows)

    @functools.cached_property
    def leading(self) -> tuple[str, ...]:
        """The scores of the leaderboard: those in `LEADING` that a row has, or else `CONTENT`, or
        else the first one that has a best.
        """
        scores = self.scores.items()
        ranking = [name for name, score in scores if score.higher_is_better is not None]
        measured = list(filter(self.measured, ranking))
        leading = tuple(name for name in LEADING if name in measured)
        if not leading and CONTENT in measured:
            return (CONTENT,)
        return leading or tuple(measured[:1])

    @property
    def headline(self) -> str | None:
        """The score that orders the rows; None if there is none."""
        return self.leading[-1] if self.leading else None

    @property
    def selection_split(self) -> str:
        """The split that chose among configurations."""
        return "test" if self.on_test else "tuning"

    @property
    def unit(self) -> str:
        """Unit of repetition, in words: the seed, or the search of rows of methods that have
        several; `MIXED` where only some have.
        """
        repeated = {row.repeated for row in self.methods}
        return MIXED if len(repeated) > 1 else "search" if True in repeated else "seed"

    @functools.cached_property
    def selection(self) -> str:
        """The score that chose among configurations: no other is measured on that split."""
        for name in ("selection_top1", *LEADING, CONTENT, *self.scores):
            if any((name, self.selection_split) in record.values for record in self.records):
                return name
        return "knn_top1"

    @property
    def selection_title(self) -> str:
        """Name of that score in tables."""
        return self.scores[self.selection].title if self.selection in self.scores else "a score"

    @_kept
    def best(self, name: str) -> Best:
        """Find the rows with the best mean of a test score, or one that is not significantly
        different from it.

        No rows if the score has no best value.
        """
        higher = self.scores[name].higher_is_better
        return Best() if higher is None else best(self.tukey(name), higher_is_better=higher)

    @_kept
    def tukey(self, name: str) -> Tukey:
        """Fit the test of all pairs of rows by a test score."""
        scores: list[dict[int, float]] = []
        for row in self.rows:
            # Methods do not compete with labels: with the supervised row, the test would compare
            # labels with the rest.
            is_supervised = row.is_reference and not row.untrained
            scores.append({} if is_supervised else row.by_unit(name))
        return Tukey(scores, len(self.methods))

    def budget(self, row: Row) -> int | None:
        """Count the configurations that the hyperparameters of a row were chosen from; None if
        they were given.
        """
        stated = [record.choice.get("hyperparameters", {}).get("budget") for record in row.records]
        known = [budget for budget in stated if budget is not None]
        if not known:
            return row.tried if row.tried > 1 else None
        # The record states the largest budget of its tuning; the tuning's own choice states that of
        # each method.
        entry = self.chosen(row)
        return int(known[0]) if entry is None else len(entry.ranking)

    def chosen(self, row: Row) -> ChosenConfiguration | None:
        """Find what a tuning says of a row's choice; None if it was given, or its tuning is not
        there.
        """
        own = {configuration_id(record.cell) for record in row.records}
        for choice in self.choices.values():
            for entry in choice.choices:
                if entry.configuration in own:
                    return entry
        return None

    def best_trivial(self, name: str) -> Row | None:
        """Find the best of the rows that nothing was trained for, by a test score."""
        found = [row for row in self.rows if row.untrained and row.score(name) is not None]
        sign = self.scores[name].sign
        return max(found, key=lambda row: sign * mean_of(row, name), default=None)

    def supervised(self, name: str) -> Row | None:
        """Find the supervised row, trained by cross-entropy, that has a test score: if there are
        several, one that was trained as long as a method.
        """
        scored = [row for row in self.rows if row.score(name) is not None]
        found = [row for row in scored if row.first.cell.get("baseline") == "supervised"]
        epochs = {row.first.cell["epochs"] for row in self.methods}
        as_long = [row for row in found if row.first.cell["epochs"] in epochs]
        return next(iter(as_long or found), None)

    def gain(self, row: Row, name: str) -> float | None:
        """Subtract the best trivial row's mean of a test score from the row's."""
        trivial = self.best_trivial(name)
        if row.is_reference or row.score(name) is None or trivial is None:
            return None
        return mean_of(row, name) - mean_of(trivial, name)

    def share(self, row: Row, name: str) -> float | None:
        """Return how much of the way from the best trivial row to the supervised one a row has
        come, in percent.
        """
        trivial, supervised, score = self.best_trivial(name), self.supervised(name), row.score(name)
        if row.is_reference or trivial is None or supervised is None or score is None:
            return None
        start = mean_of(trivial, name)
        way = mean_of(supervised, name) - start
        # There is no way to go if labels do no better than a trivial row, as the notes print it.
        has_way = round(self.scores[name].sign * way, 1) > 0
        return 100 * (score.mean - start) / way if has_way else None
