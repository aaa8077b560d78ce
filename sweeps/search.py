"""A search in place of a grid: successive halving over epochs, in the search spaces that methods state.

A bracket draws configurations that fill a box of the space evenly. It trains each for a quarter of the epochs, the
better half of them for half of the epochs, and the better half of these for all. The first bracket has the whole space
as its box, and half of the budget. Each later one has a box around the best so far, half as wide as the box before. But
where nothing was tried beyond the best value of a hyperparameter, the box is the next half of the space in that
direction: so a search goes on beyond an end of the space where the best lies there, and closes in where it does not.

With several seeds each configuration is trained with all of them, which the budget counts, and judged by its mean.

What is tried follows from the budget and the scores alone, so a search goes on wherever it was stopped. How much is
tried does not depend on scores: all methods train equally many images in each setting.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import IntervalSweep

from regbench.benchmark.rundir.record import read_tuned
from regbench.benchmark.rundir.tuning_choice import SEARCH
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.compose import row_values
from regbench.benchmark.settings.runtime import Cluster
from regbench.benchmark.settings.sweep import SweepFile, load_rows, read_rows
from regbench.benchmark.training.optimizers.base import OPTIMIZERS
from regbench.errors import RegbenchError
from regbench.methods import METHODS
from regbench.settings import shown
from regbench.spaces import DIMENSIONS, Choice, Range, spread
from regbench.sweeps.tune import Proposed, grouped, read_search, selection_score

_FIRST = 4
"""Configurations that a bracket draws for each one that it trains to the end."""

_TUNED = ("method.", "optimizer.")


@dataclass(frozen=True)
class _Search:
    """One search: a cell with all that stays, the space of each setting that is searched, and the seeds of a trial."""

    cell: Cell
    cluster: Cluster
    space: Mapping[str, Range | Choice]
    seeds: tuple[int, ...]

    def at(self, values: Mapping[str, Any], epochs: int) -> Cell:
        """Return the cell of a configuration, trained for so many epochs, with a warm-up that is as much shorter."""
        groups: dict[str, dict[str, Any]] = {"method": {}, "optimizer": {}}
        for key, value in values.items():
            group, _, name = key.partition(".")
            groups[group][name] = value
        cell, share = self.cell, epochs / self.cell.epochs
        optimizer, evaluation = cell.optimizer, cell.evaluation
        if share < 1:
            warmup_steps = None if optimizer.warmup_steps is None else int(share * optimizer.warmup_steps)
            groups["optimizer"] |= {"warmup_epochs": share * optimizer.warmup_epochs, "warmup_steps": warmup_steps}
            evaluation = evaluation.replaced(while_training=(), every_epochs=1)
        return replace(
            cell,
            epochs=epochs,
            method=METHODS.from_plain({**METHODS.plain(cell.method), **groups["method"]}, "method."),
            optimizer=OPTIMIZERS.from_plain({**OPTIMIZERS.plain(optimizer), **groups["optimizer"]}, "optimizer."),
            evaluation=evaluation,
        )


@dataclass(frozen=True)
class _Trial:
    """A configuration at one length of training: a cell for each seed, with its score.

    A score is None before its cell has ended, and 0 if it diverged.
    """

    values: Mapping[str, Any]
    cells: tuple[Cell, ...]
    scores: tuple[float | None, ...]

    @property
    def epochs(self) -> int:
        """Of its training."""
        return self.cells[0].epochs

    @property
    def score(self) -> float | None:
        """The mean over the seeds: None before all have ended, 0 if any diverged."""
        known = [score for score in self.scores if score is not None]
        if len(known) < len(self.scores):
            return None
        return min(known) and math.fsum(known) / len(known)


def propose(name: str, overrides: Sequence[str], trials: int) -> Proposed:
    """Propose the cells to try next.

    Args:
        name: The sweep.
        overrides: That change each of its rows.
        trials: The budget of each search, in trainings of full length.

    Returns:
        All cells proposed so far, those to be tried next included.

    Raises:
        RegbenchError: If nothing is to be searched, a method states no space, the budget is too small or another one
            than the search began with.
    """
    file = read_rows(name, overrides)
    searches = [search for row in file.rows for search in _searches(file, row)]
    if not any(search.space for search in searches):
        raise RegbenchError(f"sweep {name} has nothing to search: it states every hyperparameter that has a range")
    one_length = {search.cell.id: 0 for search in searches}
    for method, alike in grouped((search.cell for search in searches), one_length).items():
        if len(alike) > 1:
            raise RegbenchError(
                f"sweep {name} has {len(alike)} searches for {method} that differ in nothing but epochs or tuned "
                "values; search the values together (a,b,c or an interval), and another length of training under "
                "another name"
            )
    first = load_rows(file, [_fixed(file.rows[0])[0]])
    folder = Path(first.runtime.runs_dir) / file.name
    if len({search.seeds for search in searches if search.space}) > 1:
        raise RegbenchError(f"sweep {name} gives its searches different seeds; give all the same")
    if (begun := read_search(folder)) and begun["trials"] != trials:
        raise RegbenchError(
            f"{folder / SEARCH}: this search began with --trials {begun['trials']}; go on with that, or give a search "
            f"with {trials} another name (a copy of the file under another name)"
        )

    def score(cell: Cell) -> float | None:
        record = read_tuned(folder / cell.id)
        return None if record is None else selection_score(record) or 0.0

    cells: dict[str, tuple[Cell, Cluster]] = {}
    short: dict[str, int] = {}
    log, complete = [], True
    for search in searches:
        rounds = [list(each) for each in _rounds(search, trials, score)]
        complete = complete and all(trial.score is not None for trial in rounds[-1])
        for number, each in enumerate(rounds):
            for trial in each:
                settings = [f"{key}={shown(value)}" for key, value in trial.values.items()]
                for cell, found in zip(trial.cells, trial.scores, strict=True):
                    cells.setdefault(cell.id, (cell, search.cluster))
                    if cell.epochs < search.cell.epochs:
                        short[cell.id] = search.cell.epochs
                    entry = {"label": cell.label, "round": number, "cell_id": cell.id, "seed": cell.seed}
                    log.append(entry | {"epochs": cell.epochs, "settings": settings, "score": found})
    chosen, clusters = zip(*cells.values(), strict=True)
    sweep = replace(first, cells=chosen, clusters=clusters)
    return Proposed(sweep, complete, {"trials": trials, "short": short, "tried": log})


def _rounds(search: _Search, trials: int, score: Callable[[Cell], float | None]) -> Iterator[list[_Trial]]:
    """Yield the rounds of a search, up to the first that has not ended."""

    def trial(values: Mapping[str, Any], cell: Cell) -> _Trial:
        cells = tuple(replace(cell, seed=seed) for seed in search.seeds)
        return _Trial(values, cells, tuple(map(score, cells)))

    if not search.space:
        yield [trial({}, search.cell)]
        return
    box = dict.fromkeys(search.space, (0.0, 1.0))
    tried: list[_Trial] = []
    drawn = 0
    for size in _brackets(search, trials):
        points = [spread(drawn + index, len(box)) for index in range(_FIRST * size)]
        drawn += len(points)
        alive: list[Mapping[str, Any]] = [_values(search.space, box, point) for point in points]
        for epochs, number in _lengths(search.cell.epochs):
            next_up = [(values, search.at(values, epochs)) for values in alive[: number * size]]
            found = {cell.id: trial(values, cell) for values, cell in next_up}
            yield list(found.values())
            if any(each.score is None for each in found.values()):
                return
            tried += found.values()
            alive = [each.values for each in sorted(found.values(), key=lambda each: -(each.score or 0.0))]
        best = max(tried, key=lambda each: (each.epochs, each.score))
        box = {key: _next(each, box[key], key, best, tried) for key, each in search.space.items()}


def _lengths(epochs: int) -> list[tuple[int, int]]:
    """List the epochs of a bracket's rounds, and the configurations in each for every one of the bracket's size."""
    lengths = [length for length in (epochs // 4, epochs // 2, epochs) if length]
    return list(zip(lengths, (_FIRST, 2, 1), strict=False))


def _brackets(search: _Search, trials: int) -> list[int]:
    """List the sizes of the brackets that a budget pays."""
    cost = len(search.seeds) * sum(epochs * number for epochs, number in _lengths(search.cell.epochs))
    count = trials * search.cell.epochs // cost
    if not count:
        least = math.ceil(cost / search.cell.epochs)
        raise RegbenchError(f"--trials {trials} is too few for a search; give {least} or more")
    first = (count + 1) // 2
    return [first] + [1] * (count - first)


def _values(
    space: Mapping[str, Range | Choice], box: Mapping[str, tuple[float, float]], point: Sequence[float]
) -> dict[str, Any]:
    return {
        key: each.value(low + at * (high - low))
        for (key, each), (low, high), at in zip(space.items(), box.values(), point, strict=True)
    }


def _next(
    each: Range | Choice, box: tuple[float, float], key: str, best: _Trial, tried: Sequence[_Trial]
) -> tuple[float, float]:
    """Return the part of a hyperparameter's range, by position, that the next bracket draws from."""
    if isinstance(each, Choice):
        return box
    at, width = each.position(best.values[key]), box[1] - box[0]
    positions = [each.position(trial.values[key]) for trial in tried]
    low, high = at - width / 4, at + width / 4
    if at >= max(positions):
        low, high = at, at + 0.5
    elif at <= min(positions):
        low, high = at - 0.5, at
    within = [each.position(limit) if math.isfinite(limit) else limit for limit in (each.least, each.most)]
    return max(low, within[0]), min(high, within[1])


def _fixed(row: Sequence[str]) -> list[list[str]]:
    """List the settings of each search of a row that are not searched."""
    fixed: list[list[str]] = [[]]
    for _, override, values in row_values(row):
        if not _is_searched(override):
            fixed = [[*start, text] for start in fixed for text in values]
    return fixed


def _is_searched(override: Any) -> bool:
    several = override.is_sweep_override() and override.key_or_group.startswith(_TUNED)
    return several or isinstance(override.value(), IntervalSweep)


def _refuse_search(override: Any) -> None:
    """Refuse to search a setting that trials cannot vary."""
    if not override.key_or_group.startswith(_TUNED):
        raise RegbenchError(f"{override.input_line}: only settings under method. and optimizer. can be searched")
    if override.key_or_group.startswith("optimizer.warmup_"):
        raise RegbenchError(
            f"{override.input_line}: a warm-up cannot be searched, because short trainings warm up as much shorter; "
            "try its values in a grid, without trials"
        )


@functools.cache
def _searches(file: SweepFile, row: tuple[str, ...]) -> list[_Search]:
    """List the searches of a row of a sweep's file."""
    searched = {key: (override, values) for key, override, values in row_values(row) if _is_searched(override)}
    for override, _ in searched.values():
        _refuse_search(override)
    found = []
    for fixed in _fixed(row):
        sweep = load_rows(file, [fixed])
        cell = sweep.cells[0]
        if not cell.epochs:
            found.append(_Search(cell, sweep.clusters[0], {}, (cell.seed,)))
            continue
        stated = {text.partition("=")[0] for text in fixed}
        given = {key: _given(file, fixed, key, *how) for key, how in searched.items()}
        space = {**_own_space(cell, stated | set(given)), **given}
        if len(space) > DIMENSIONS:
            raise RegbenchError(f"{cell.label}: {len(space)} settings are searched at once; give at most {DIMENSIONS}")
        keys = sorted(space, key=lambda key: key.startswith("optimizer."))  # the first are spread most evenly
        found.append(_Search(cell, sweep.clusters[0], {key: space[key] for key in keys}, (cell.seed,)))
    by_cell: dict[Cell, _Search] = {}
    for search in found:
        first = by_cell.setdefault(replace(search.cell, seed=0), search)
        if first is not search:
            by_cell[replace(search.cell, seed=0)] = replace(first, seeds=first.seeds + search.seeds)
    return list(by_cell.values())


def _own_space(cell: Cell, stated: set[str]) -> dict[str, Range | Choice]:
    """Return what the method and the optimizer state, without the settings that the sweep states."""
    found: dict[str, Range | Choice] = {}
    for group, plugin, example in (("method", cell.method, "NAME"), ("optimizer", cell.optimizer, "base_lr")):
        if plugin.space is None and not any(key.startswith(f"{group}.") for key in stated):
            raise RegbenchError(
                f"{type(plugin).__name__} states no search space; give its class a `space`, or write what is searched "
                f"into the sweep's file: {group}.{example}=tag(log,interval(0.1,10))"
            )
        for name, each in (plugin.space or {}).items():
            if (key := f"{group}.{name}") not in stated:
                found[key] = each.at(n=cell.batch_size, q=cell.embedding_dim)
    return found


def _given(file: SweepFile, fixed: Sequence[str], key: str, override: Any, values: Sequence[str]) -> Range | Choice:
    """Return the space of a setting that the sweep's file states."""
    value = override.value()
    if isinstance(value, IntervalSweep):
        assert value.start is not None and value.end is not None
        try:
            return Range(value.start, value.end, "log" if "log" in value.tags else "linear")
        except RegbenchError as error:
            raise RegbenchError(f"{override.input_line}: {error}") from error
    group, _, name = key.partition(".")
    cells = (load_rows(file, [[*fixed, text]]).cells[0] for text in values)
    return Choice(tuple(getattr(getattr(cell, group), name) for cell in cells))
