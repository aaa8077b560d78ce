"""Read what is searched from the rows of a sweep's file, and from the search spaces that
methods state.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.override_parser.types import IntervalSweep

from regbench import wording
from regbench.benchmark.rundir.tuning_choice import seed_in
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.overrides import parse, row_values
from regbench.benchmark.settings.runtime import Cluster
from regbench.benchmark.settings.sweep import SweepFile, load_rows
from regbench.benchmark.training.optimizers.base import OPTIMIZERS
from regbench.errors import RegbenchError
from regbench.methods import METHODS
from regbench.spaces import DIMENSIONS, Choice, Range

_TUNED = ("method.", "optimizer.")


@dataclass(frozen=True)
class Search:
    """One search: a cell with all that is fixed, the space of each setting that is searched, and
    the seeds of a trial.

    Attributes:
        number: Number of the tuning's repeat, from 0.
    """

    cell: Cell
    cluster: Cluster
    space: Mapping[str, Range | Choice]
    seeds: tuple[int, ...]
    number: int = 0

    def again(self, number: int) -> Search:
        """Return the search of another repeat: with seeds and configurations of its own."""
        seeds = [seed_in(number, seed) for seed in self.seeds]
        return replace(self, number=number, seeds=tuple(seeds))

    def at(self, values: Mapping[str, Any], epochs: int) -> Cell:
        """Return the cell of a configuration, trained for `epochs`, with a warm-up that
        is as much shorter.
        """
        cell = self.cell
        settings = {
            "method": METHODS.plain(cell.method),
            "optimizer": OPTIMIZERS.plain(cell.optimizer),
        }
        for key, value in values.items():
            group, _, name = key.partition(".")
            settings[group][name] = value
        evaluation = cell.evaluation
        share = epochs / cell.epochs
        if share < 1:
            warmup_steps = cell.optimizer.warmup_steps
            settings["optimizer"]["warmup_epochs"] = share * cell.optimizer.warmup_epochs
            settings["optimizer"]["warmup_steps"] = warmup_steps and int(share * warmup_steps)
            # A search asks of a short training only its scores at the end.
            evaluation = evaluation.replaced(while_training=(), every_epochs=1)
        return replace(
            cell,
            epochs=epochs,
            method=METHODS.from_plain(settings["method"], "method."),
            optimizer=OPTIMIZERS.from_plain(settings["optimizer"], "optimizer."),
            evaluation=evaluation,
        )


@functools.cache  # a tuning asks again after every round, and composing cells takes a while
def searches_of(file: SweepFile, row: tuple[str, ...]) -> list[Search]:
    """List the searches of a row of a sweep's file."""
    _, searched = _divided(row)
    for override, _ in searched.values():
        _refuse_search(override)
    found: dict[Cell, Search] = {}
    for fixed in fixed_settings(row):
        sweep = load_rows(file, [fixed])
        cell = sweep.cells[0]
        space: dict[str, Range | Choice] = {}
        if cell.is_method:  # a baseline has nothing to search
            space = _space(file, fixed, searched, cell)
        # Searches that differ in the seed alone are one, whose trials have all seeds.
        alike = replace(cell, seed=0)
        known = found.setdefault(alike, Search(cell, sweep.clusters[0], space, ()))
        if cell.seed not in known.seeds:
            found[alike] = replace(known, seeds=(*known.seeds, cell.seed))
    return list(found.values())


def cells_to_compose(row: Sequence[str]) -> int:
    """Count the cells that `searches_of` makes of a row: for each search, its own cell and one for
    each value that is searched.
    """
    fixed, searched = _divided(row)
    each = 1 + sum(len(values) for _, values in searched.values())
    return math.prod(map(len, fixed)) * each


def fixed_settings(row: Sequence[str]) -> list[list[str]]:
    """List the fixed settings, which are not searched, of each search of a row."""
    fixed, _ = _divided(row)
    return list(map(list, itertools.product(*fixed)))


def _divided(row: Sequence[str]) -> tuple[list[list[str]], dict[str, tuple[Any, list[str]]]]:
    """Return the values of each setting of a row that is not searched, and what is searched: the
    setting -> its override and its values.
    """
    fixed, searched = [], {}
    for key, override, values in row_values(row):
        # Several values of another setting multiply the searches.
        several = override.is_sweep_override() and key.startswith(_TUNED)
        if several or isinstance(override.value(), IntervalSweep):
            searched[key] = (override, values)
        else:
            fixed.append(values)
    return fixed, searched


def _refuse_search(override: Any) -> None:
    """Refuse to search a setting that trials cannot vary."""
    if not override.key_or_group.startswith(_TUNED):
        raise RegbenchError(
            f"{override.input_line}: only settings under method. and optimizer. can be searched"
        )
    if override.key_or_group.startswith("optimizer.warmup_"):
        raise RegbenchError(
            f"{override.input_line}: a warm-up cannot be searched, because short trainings warm up "
            "as much shorter; try its values in a grid, without trials"
        )


def _space(
    file: SweepFile,
    fixed: Sequence[str],
    searched: Mapping[str, tuple[Any, Sequence[str]]],
    cell: Cell,
) -> dict[str, Range | Choice]:
    """Return what is searched for a cell: what the sweep's file states, and of the rest what
    the plug-ins state.
    """
    given = {key: _given(file, fixed, cell, *each) for key, each in searched.items()}
    stated = set()
    for override in map(parse, fixed):
        stated.add(override.key_or_group)
        if isinstance(mapping := override.value(), dict):
            stated |= {f"{override.key_or_group}.{name}" for name in mapping}
    space = {**_own_space(cell, stated | set(given)), **given}
    if len(space) > DIMENSIONS:
        raise RegbenchError(
            f"{cell.label}: {len(space)} settings are searched at once; give at most {DIMENSIONS}"
        )
    # The first are spread most evenly, so those of the method come before those of the optimizer.
    return dict(sorted(space.items(), key=lambda item: item[0].startswith("optimizer.")))


def _own_space(cell: Cell, stated: set[str]) -> dict[str, Range | Choice]:
    """Return what the method and the optimizer state, without the settings that the sweep
    states.
    """
    found: dict[str, Range | Choice] = {}
    for group, plugin, example in (
        ("method", cell.method, "NAME"),
        ("optimizer", cell.optimizer, "base_lr"),
    ):
        # A plug-in needs no space if the file says what is searched.
        is_stated = any(key.startswith(f"{group}.") for key in stated)
        if plugin.space is None and dataclasses.fields(plugin) and not is_stated:  # type: ignore[arg-type]
            raise RegbenchError(
                f"{type(plugin).__name__} states no search space; give its class a `space`, or "
                "write what is searched into the sweep's file: "
                f"{group}.{example}=tag(log,interval(0.1,10))"
            )
        for name, each in (plugin.space or {}).items():
            key = f"{group}.{name}"
            if key not in stated:
                found[key] = each.at(n=cell.batch_size, q=cell.embedding_dim)
    return found


def _given(
    file: SweepFile, fixed: Sequence[str], cell: Cell, override: Any, values: Sequence[str]
) -> Range | Choice:
    """Return the space of a setting that the sweep's file states."""
    key, value = override.key_or_group, override.value()
    group, _, name = key.partition(".")
    if isinstance(value, IntervalSweep):
        assert value.start is not None and value.end is not None
        try:
            stated = Range(value.start, value.end, "log" if "log" in value.tags else "linear")
            # Refuses what is no setting, or one of whole numbers.
            load_rows(file, [[*fixed, f"{key}={stated.value(0.5)}"]])
        except RegbenchError as error:
            raise RegbenchError(f"{override.input_line}: {error}") from error
        plugin: Any = type(getattr(cell, group))
        return _within(stated, wording.bounds(wording.hints(plugin)[name]))
    choices = []
    for text in values:  # as the cell has them, not as they are written
        cell = load_rows(file, [[*fixed, text]]).cells[0]
        choices.append(getattr(getattr(cell, group), name))
    return Choice(tuple(choices))


def _within(stated: Range, bounds: Mapping[str, float]) -> Range:
    """Return the range with limits that keep a search within the bounds of its setting."""
    least, most = bounds.get("ge", -math.inf), bounds.get("le", math.inf)
    # An open bound has no nearest number: the search stays in the range.
    if "gt" in bounds:
        least = stated.low
    if "lt" in bounds:
        most = stated.high
    # On a logarithmic scale all numbers are above 0.
    if stated.scale == "log" and bounds.get("ge", bounds.get("gt", 0)) <= 0:
        least = -math.inf
    return replace(stated, least=least, most=most)
