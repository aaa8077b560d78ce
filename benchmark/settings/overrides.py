"""Overrides in Hydra's grammar: one of them, and the points of a grid that a row of them spans."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException

from regbench.errors import RegbenchError


# Hydra's parser takes a millisecond for each, and the cells of a grid have most overrides in common.
@functools.lru_cache(maxsize=65536)
def parse(override: str) -> Override:
    """Return one override in Hydra's grammar."""
    try:
        (parsed,) = _parser().parse_overrides([override])
    except HydraException as error:
        raise RegbenchError(
            f"cannot read {override!r}; write key=value, a list as key=[1,2], and quote values with other signs: "
            "key='\"a (b)\"'"
        ) from error
    if parsed.is_delete():
        raise RegbenchError(f"{override!r} takes a setting away, and a cell needs all of them; write key=value")
    if not parsed.key_or_group or parsed.key_or_group.partition(".")[0] == "hydra":
        raise RegbenchError(f"{override!r} names no setting; write key=value, such as epochs=5")
    return parsed


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def points(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Yield the product of the overrides' values; refuse an interval, which has no end of points."""
    choices = []
    for _, override, values in row_values(overrides):
        if isinstance(override.value(), IntervalSweep):
            raise RegbenchError(
                f"{override.input_line} is a range, not a grid; search it: regbench tune NAME --trials 16"
            )
        choices.append(values)
    for point in product(*choices):
        yield list(point)


def row_values(overrides: Sequence[str]) -> list[tuple[str, Override, list[str]]]:
    """Return each key of a row, its override, and the values, each as an override; an interval has none."""
    # A later override of a key replaces an earlier one. An override of a group also drops earlier
    # settings of the group's members: another method knows nothing of the hyperparameters of the
    # one before.
    last: dict[str, Override] = {}
    for override in map(parse, overrides):
        group = override.key_or_group
        # All profiles of clusters have the same settings, so a row's own stay when it changes the profile.
        if group != "cluster":
            for member in [key for key in last if key.startswith(f"{group}.")]:
                del last[member]
        last[group] = override
    rows = []
    for key, override in last.items():
        values: list[str] = []
        if override.is_discrete_sweep():
            values = [f"{key}={value}" for value in override.sweep_string_iterator()]
        elif not override.is_sweep_override():
            values = [override.input_line or ""]
        rows.append((key, override, values))
    return rows
