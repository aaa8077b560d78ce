"""Overrides in Hydra's grammar, and the points of the grid that a row of them spans."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from regbench.benchmark.settings.runtime import Runtime
from regbench.errors import RegbenchError
from regbench.settings import from_plain
from regbench.text import brief

# An override may have this many letters for each cell that a grid may have.
_LETTERS = 10

# Prefixes of the settings of plug-ins.
_OF_PLUG_INS = ("method.", "optimizer.", "network.backbone.", "dataset.source.")

# Most levels of brackets; Hydra's parser calls itself for each.
_DEEPEST = 100


# Hydra's parser takes a millisecond for each, and the cells of a grid have most overrides in
# common.
@functools.lru_cache(maxsize=65536)
def parse(override: str) -> Override:
    """Return one override in Hydra's grammar."""
    if max(accumulate((c in "[{(") - (c in "]})") for c in override), default=0) > _DEEPEST:
        raise RegbenchError(f"{brief(override)}: brackets are nested too deeply")
    try:
        (parsed,) = _parser().parse_overrides([override])
    except HydraException as error:
        raise RegbenchError(
            f"cannot read {brief(override)!r}; write key=value, a list as key=[1,2], and quote "
            "values with other signs: key='\"a (b)\"'"
        ) from error
    if parsed.is_delete():
        raise RegbenchError(
            f"{override!r} takes a setting away, and a cell needs all of them; write key=value"
        )
    if not parsed.key_or_group or parsed.key_or_group.partition(".")[0] == "hydra":
        raise RegbenchError(f"{override!r} names no setting; write key=value, such as epochs=5")
    return parsed


_parser = functools.cache(OverridesParser.create)


def grid(overrides: Sequence[str]) -> list[list[str]]:
    """Return the values of each key of a row, as overrides.

    Refuse an interval, which has infinitely many points.
    """
    choices = []
    for _, override, values in row_values(overrides):
        if isinstance(override.value(), IntervalSweep):
            what = f"{override.input_line} is a range, not a grid"
            raise RegbenchError(f"{what}; search it: regbench tune NAME --trials 16")
        choices.append(values)
    return choices


def max_cells(overrides: Iterable[str]) -> int:
    """Return `runtime.max_cells` as overrides give it, or its default."""
    given = [parse(text).value() for text in overrides if text.startswith("runtime.max_cells=")]
    if not given:
        return Runtime.max_cells
    return from_plain(Runtime, {"max_cells": given[-1]}, "runtime.").max_cells


def refuse_more(what: str, count: int, most: int) -> None:
    """Refuse more cells than `runtime.max_cells`, before anything is made of them."""
    if count > most:
        raise RegbenchError(
            f"{brief(what)}: more cells than runtime.max_cells={most}; ask for fewer, or raise it"
        )


def refuse_dropped(overrides: Sequence[str], *, but_plug_ins: bool = False) -> None:
    """Refuse a setting that stands before its group, which would drop it.

    With `but_plug_ins`, settings of plug-ins may be dropped: a user who changes somebody else's
    overrides chooses another plug-in without a look at the settings of the one before.
    """
    keys: list[str] = []
    for text in overrides:
        group = parse(text).key_or_group
        for key in _dropped_by(group, keys):
            raise RegbenchError(
                f"{brief(text)} stands after {key}, and would drop it; write {key} after it"
            )
        if not (but_plug_ins and group.startswith(_OF_PLUG_INS)):
            keys.append(group)


def _dropped_by(group: str, keys: Iterable[str]) -> list[str]:
    """List the earlier keys that an override of a group drops."""
    # All profiles of clusters have the same settings, so a row's own stay when it changes the
    # profile.
    if group == "cluster":
        return []
    return [key for key in keys if key.startswith(f"{group}.")]


def row_values(overrides: Sequence[str]) -> list[tuple[str, Override, list[str]]]:
    """Return each key of a row, its override, and the values, each as an override.

    An interval has no values.
    """
    # A later override of a key replaces an earlier one. An override of a group also drops earlier
    # settings of the group's members: another method knows nothing of the hyperparameters of the
    # one before.
    last: dict[str, Override] = {}
    most = max_cells(overrides)
    for text in overrides:
        # The parser takes seconds for the values of a larger grid.
        refuse_more(text, len(text) // _LETTERS, most)
        override = parse(text)
        group, value = override.key_or_group, override.value()
        is_part = isinstance(value, dict) and "name" not in value
        if is_part and group in last and f"{group}." in (*_OF_PLUG_INS, "evaluation."):
            what = f"{brief(text)} would take the place of {brief(last[group].input_line or '')}"
            raise RegbenchError(f"{what}; write {group}.NAME=VALUE for each of its settings")
        for member in _dropped_by(group, last):
            del last[member]
        last[group] = override
    rows = []
    for key, override in last.items():
        values: list[str] = []
        if override.is_discrete_sweep():
            values = [f"{key}={value}" for value in islice(_each(override), most + 1)]
            refuse_more(override.input_line or "", len(values), most)
        elif not override.is_sweep_override():
            values = [override.input_line or ""]
        rows.append((key, override, values))
    return rows


def _each(override: Override) -> Iterator[object]:
    """Yield the values of an override that has several, those of a range one by one."""
    value = override.value()
    try:
        # Hydra's own iterator makes a list of a range that is to be shuffled.
        if isinstance(value, RangeSweep):
            yield from value.range()
        else:
            yield from override.sweep_string_iterator()
    except (HydraException, ValueError) as error:  # a step of 0, a pattern
        raise RegbenchError(
            f"{override.input_line} gives no values; write them down: key=1,2,3"
        ) from error
