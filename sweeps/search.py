"""A search in place of a grid: successive halving over epochs, in the search spaces that methods
state.

A bracket draws configurations that fill a box of the space evenly. It trains each for a quarter of
the epochs, the better half of them for half of the epochs, and the better half of these for all.
The first bracket has the whole space as its box, and half of the budget. Each later one has a box
around the best so far, half as wide as the box before. But if nothing was tried beyond the best
value of a hyperparameter, the box is the next half of the space in that direction. So a search goes
on beyond an end of the space if the best lies there, and closes in if it does not.

A repeated tuning does each search again, with other seeds and with configurations drawn anew.

With several seeds each configuration is trained with all of them, which the budget counts, and
judged by its mean.

What is tried follows from the budget and the scores alone, so a search goes on wherever it was
stopped. How much is tried does not depend on scores: all methods train equally many images in each
setting.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from regbench.benchmark.rundir.record import read_tuned
from regbench.benchmark.rundir.tuning_choice import SEARCH, read_search
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.overrides import max_cells, refuse_more
from regbench.benchmark.settings.runtime import Cluster
from regbench.benchmark.settings.sweep import Sweep, SweepFile, load_rows, read_rows
from regbench.errors import RegbenchError
from regbench.spaces import Choice, Range, halton
from regbench.sweeps.choose import grouped, selection_score
from regbench.sweeps.search_spaces import Search, cells_to_compose, fixed_settings, searches_of
from regbench.wording import shown

_FIRST = 4
"""Configurations that a bracket draws for each one that it trains to the end."""

_DIVERGED = -math.inf
"""The score of a diverged run: a configuration that diverges with any seed is not recommended."""


class Proposed(NamedTuple):
    """The cells that a tuning is to try.

    Attributes:
        sweep: The cells so far.
        complete: Whether these are all cells; those of a search have ended then.
        search: Content of `search.json`; None for a grid. Its entry "short" lists the cells that
            are trained for fewer epochs than the chosen ones: id -> epochs of the chosen ones.
        repeats: Number of times that the tuning is repeated.
    """

    sweep: Sweep
    complete: bool
    search: Mapping[str, Any] | None = None
    repeats: int = 1

    @property
    def budget(self) -> str:
        """The budget of a search."""
        assert self.search is not None
        each = self.search.get("trials_per_hyperparameter")
        text = f"each method gets the images of {each or self.search['trials']} trainings"
        if each:
            text += " for each hyperparameter that it searches"
        if self.repeats > 1:
            text += f" in each of {self.repeats} searches"
        return text


@dataclass(frozen=True)
class _Trial:
    """A configuration at one length of training: a cell for each seed, with its score.

    A score is None before its cell has ended, and `_DIVERGED` if it diverged.
    """

    values: Mapping[str, Any]
    cells: tuple[Cell, ...]
    scores: tuple[float | None, ...]

    @property
    def score(self) -> float | None:
        """The mean over the seeds: None before all have ended, `_DIVERGED` if any diverged."""
        known = [score for score in self.scores if score is not None]
        return math.fsum(known) / len(known) if len(known) == len(self.scores) else None


def propose(name: str, overrides: Sequence[str], trials: int | None, repeats: int = 1) -> Proposed:
    """Propose the cells to try next.

    Args:
        name: A preset of a sweep, or the path of a YAML file.
        overrides: Settings that change each of its rows.
        trials: Budget of each search, in trainings of full length; None: what the file gives for
            each hyperparameter.
        repeats: Number of times that each search is done, with seeds and configurations of its own.

    Returns:
        All cells proposed so far, those to be tried next included.

    Raises:
        RegbenchError: If nothing is to be searched, a method states no space, the budget is too
            small or another one than the search began with.
    """
    file = read_rows(name, overrides)
    most = max_cells(itertools.chain(*file.rows))
    refuse_more(f"sweep {file.name}", repeats * sum(map(cells_to_compose, file.rows)), most)
    searches = list(itertools.chain(*(searches_of(file, row) for row in file.rows)))
    # All rows at once, which refuses what must be the same for them, such as runtimes.
    whole = load_rows(file, [*itertools.chain(*map(fixed_settings, file.rows))])
    _refuse_unfair(name, searches)
    folder = whole.folder
    budget: dict[str, int] = {}
    if trials:
        budget["trials"] = trials
    elif file.trials_per_hyperparameter:
        budget["trials_per_hyperparameter"] = file.trials_per_hyperparameter
    if repeats > 1:
        budget["repeats"] = repeats
    refuse_other_budget(folder, budget)
    per_hyperparameter = file.trials_per_hyperparameter or 0
    paid = [(search, trials or len(search.space) * per_hyperparameter) for search in searches]
    trainings = repeats * sum(number for _, number in paid)
    refuse_more(f"{trainings:,} trainings", trainings, most)
    cells: dict[str, tuple[Cell, Cluster]] = {}
    short: dict[str, int] = {}
    tried: list[dict[str, Any]] = []
    complete = True
    epochs_in_all = 0
    for number, (first_search, most_trials) in itertools.product(range(repeats), paid):
        search = first_search.again(number)
        rounds = list(_rounds(search, most_trials, folder))
        further_seeds = {*file.final_seeds} - {*first_search.seeds}
        epochs_in_all += len(further_seeds) * search.cell.epochs
        if search.space:
            epochs_in_all += sum(_brackets(search, most_trials)) * _epochs_of_bracket(search)
        else:
            epochs_in_all += len(search.seeds) * search.cell.epochs
        complete = complete and all(trial.score is not None for trial in rounds[-1])
        for round_number, trials_of_round in enumerate(rounds):
            for trial in trials_of_round:
                tried += _entries(trial, round_number)
                for cell in trial.cells:
                    # Two searches may propose the same cell, which runs once.
                    cells.setdefault(cell.id, (cell, search.cluster))
                    if cell.epochs < search.cell.epochs:
                        short[cell.id] = search.cell.epochs
    chosen, clusters = zip(*cells.values(), strict=True)
    later_epochs = max(0, epochs_in_all - sum(cell.epochs for cell in chosen))
    sweep = replace(whole, cells=chosen, clusters=clusters, later_epochs=later_epochs)
    return Proposed(sweep, complete, {**budget, "short": short, "tried": tried}, repeats)


def refuse_other_budget(folder: Path, budget: Mapping[str, int]) -> None:
    """Refuse to go on with a search that began with another budget; that of a grid is empty."""
    begun = read_search(folder)
    for key in ("trials", "trials_per_hyperparameter", "repeats"):
        first, value = begun.get(key), budget.get(key)
        if begun and first != value:
            option = f"{key}:" if key == "trials_per_hyperparameter" else f"--{key}"
            began = f"without {option}" if first is None else f"with {option} {first}"
            raise RegbenchError(
                f"{folder / SEARCH}: this search began {began}; go on with that, or tune a copy of "
                "the file under another name"
            )


def mean_trials(file: SweepFile) -> int | None:
    """Return the budget of a search in trainings, the mean over the methods; None if the file
    is of a grid.
    """
    if file.trials_per_hyperparameter is None:
        return file.trials
    searches = itertools.chain(*(searches_of(file, row) for row in file.rows))
    searched = [len(search.space) for search in searches if search.space]
    return round(file.trials_per_hyperparameter * statistics.fmean(searched)) if searched else None


def _entries(trial: _Trial, number: int) -> list[dict[str, Any]]:
    """Return the entries of `search.json` for a configuration in a round of its search."""
    settings = [f"{key}={shown(value)}" for key, value in trial.values.items()]
    found = []
    for cell, score in zip(trial.cells, trial.scores, strict=True):
        entry = {"label": cell.label, "round": number, "cell_id": cell.id, "seed": cell.seed}
        stated = 0.0 if score == _DIVERGED else score  # JSON has no number that is infinite
        found.append(entry | {"epochs": cell.epochs, "settings": settings, "score": stated})
    return found


def _refuse_unfair(name: str, searches: Sequence[Search]) -> None:
    """Refuse searches whose cells a tuning could not compare fairly."""
    if not any(search.space for search in searches):
        raise RegbenchError(
            f"sweep {name} has nothing to search: it states every hyperparameter that has a range"
        )
    # Each search must be in a setting of its own, even if all were trained equally long.
    one_length = {search.cell.id: 0 for search in searches}
    cells = [search.cell for search in searches]
    for method, alike in grouped(cells, one_length).items():
        if len(alike) > 1:
            raise RegbenchError(
                f"sweep {name} has {len(alike)} searches for {method} that differ in nothing but "
                "epochs or tuned values; search the values together (a,b,c or an interval), and "
                "another length of training under another name"
            )
    if len({search.seeds for search in searches if search.space}) > 1:
        raise RegbenchError(f"sweep {name} gives its searches different seeds; give all the same")


def _rounds(search: Search, trials: int, folder: Path) -> Iterator[list[_Trial]]:
    """Yield the rounds of a search, up to the first that has not ended."""
    if not search.space:
        yield [_trial(search, {}, search.cell, folder)]
        return
    box = dict.fromkeys(search.space, (0.0, 1.0))
    tried: list[_Trial] = []
    drawn = 0
    for size in _brackets(search, trials):
        alive: list[Mapping[str, Any]] = []
        for index in range(drawn, drawn + _FIRST * size):
            drawn_values = {}
            point = halton(index, len(box), search.number)
            for (key, each), at in zip(search.space.items(), point, strict=True):
                low, high = box[key]
                drawn_values[key] = each.value(low + at * (high - low))
            alive.append(drawn_values)
        # Points are counted through all brackets, so that none is drawn twice from the sequence.
        drawn += _FIRST * size
        for epochs, number in _lengths(search.cell.epochs):
            # Values are rounded, so that two points may be one configuration, which is tried once.
            found: dict[str, _Trial] = {}
            for values in alive[: number * size]:
                cell = search.at(values, epochs)
                found[cell.id] = _trial(search, values, cell, folder)
            trained = list(found.values())
            yield trained
            if any(trial.score is None for trial in trained):
                return  # what comes next depends on all scores of this round
            tried += trained
            # Sorting is stable, so that of equal scores the one drawn first goes on, in each
            # replay.
            best_first = sorted(trained, key=lambda trial: trial.score or 0.0, reverse=True)
            alive = [trial.values for trial in best_first]
        # What diverges in the end is no place to look closer, however good it was before.
        diverged = [trial.values for trial in tried if trial.score == _DIVERGED]
        kept = [trial for trial in tried if trial.values not in diverged] or tried
        # Scores after fewer epochs are not comparable.
        best = max(kept, key=lambda trial: (trial.cells[0].epochs, trial.score))
        for key, each in search.space.items():
            box[key] = _next_range(each, box[key], key, best, tried)


def _trial(search: Search, values: Mapping[str, Any], cell: Cell, folder: Path) -> _Trial:
    """Return a configuration with the scores of its cells as far as they have ended."""
    cells = tuple(replace(cell, seed=seed) for seed in search.seeds)
    scores = []
    for each in cells:
        record = read_tuned(folder / each.id)
        score = None if record is None else selection_score(record)
        # A record without a score is of a run that diverged.
        scores.append(_DIVERGED if record is not None and score is None else score)
    return _Trial(values, cells, tuple(scores))


def _lengths(epochs: int) -> list[tuple[int, int]]:
    """List the epochs of a bracket's rounds, each with its number of configurations for every one
    that the bracket trains to the end.
    """
    # A training of three epochs or fewer has no quarter.
    lengths = [length for length in (epochs // 4, epochs // 2, epochs) if length]
    return list(zip(lengths, (_FIRST, 2, 1), strict=False))


def _epochs_of_bracket(search: Search) -> int:
    """Count the epochs of a bracket of size 1."""
    epochs_of_one = sum(epochs * number for epochs, number in _lengths(search.cell.epochs))
    return len(search.seeds) * epochs_of_one


def _brackets(search: Search, trials: int) -> list[int]:
    """List the sizes of the brackets that a budget pays."""
    cost = _epochs_of_bracket(search)
    count = trials * search.cell.epochs // cost
    if count == 0:
        least = math.ceil(cost / search.cell.epochs)
        raise RegbenchError(
            f"{trials} trainings are too few for a search, which takes {least} or more"
        )
    # Half of the budget sees the whole space; the other half looks closer, a bracket of one at a
    # time.
    first = (count + 1) // 2
    return [first] + [1] * (count - first)


def _next_range(
    each: Range | Choice, box: tuple[float, float], key: str, best: _Trial, tried: Sequence[_Trial]
) -> tuple[float, float]:
    """Return the part of a hyperparameter's range, by position, that the next bracket draws
    from.
    """
    if isinstance(each, Choice):
        return box  # its values have no order, so none lies near the best
    at = each.position(best.values[key])
    width = box[1] - box[0]
    positions = [each.position(trial.values[key]) for trial in tried]
    # Nothing was tried beyond the best, so the optimum may lie there: positions 0 to 1 are the
    # stated range.
    if at >= max(positions):
        low, high = at, at + 0.5
    elif at <= min(positions):
        low, high = at - 0.5, at
    else:
        # Half as wide as the box before, with the best in its middle.
        low, high = at - width / 4, at + width / 4
    if math.isfinite(each.least):
        low = max(low, each.position(each.least))
    if math.isfinite(each.most):
        high = min(high, each.position(each.most))
    return low, high
