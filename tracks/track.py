"""Tracks, and what a challenge begins with: its folder, the shipped rows in it, and the
challenger's sweep.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbench.benchmark.settings.sweep import load_sweep, read_rows
from regbench.files import write_text
from regbench.methods import METHODS
from regbench.methods.base import Regularizer
from regbench.spaces import Range, Space, halton
from regbench.wording import written

# The values around a default weight reach so far down and up: five of them lie a factor of 4 apart.
_AROUND = 16.0


@dataclass(frozen=True)
class Track:
    """A frozen sweep: of all rows but the challenger's the cells are in a bundle.

    Attributes:
        name: Name that a user writes.
        sweep: The preset or file of the tuning that gave the rows. What its cells have in common is
            the challenger's.
        bundle: The finished cells.
    """

    name: str
    sweep: str
    bundle: Path


TRACKS = {"scenes": Track("scenes", "quickstart_tuning", Path(__file__).with_name("scenes.tar.xz"))}
"""The tracks that come with regbench, but that of the smoke test."""


def write_sweep(track: Track, method: Regularizer, budget: int, path: Path) -> None:
    """Write the file of the challenger's tuning: the settings of the track, and as many
    configurations as others had.

    Args:
        track: The track.
        method: The challenger with its defaults.
        budget: The number of configurations.
        path: The file.
    """
    file, first = read_rows(track.sweep, ()), load_sweep(track.sweep).cells[0]
    lines = []
    for values in configurations(method, budget, first.batch_size, first.embedding_dim):
        settings = [f"method.{key}={written(value)}" for key, value in values.items()]
        lines.append(" ".join([f"method={METHODS.name(method)}", *settings]))
    description = f"{method.label} on the track {track.name}"
    content: dict[str, Any] = {
        "description": description,
        "common": file.common,
        "final_seeds": file.final_seeds,
    }
    # JSON is YAML.
    write_text(path, json.dumps({**content, "cells": lines}, indent=1))


def configurations(method: Regularizer, budget: int, n: int, q: int) -> list[dict[str, Any]]:
    """List the configurations of a challenger: evenly over its search space, or around its default
    weight.

    Args:
        method: The challenger with its defaults.
        budget: Number of configurations. A method without a hyperparameter has one.
        n: The batch size.
        q: The embedding dimension.
    """
    stated = around_default(method) if method.space is None else method.space
    space = {name: each.at(n=n, q=q) for name, each in stated.items()}
    if not space:
        return [{}]
    found = []
    for index in range(budget):
        # Along one hyperparameter a grid is more even than the first points of a sequence.
        point = [index / max(budget - 1, 1)] if len(space) == 1 else halton(index, len(space))
        found.append(
            {name: each.value(at) for (name, each), at in zip(space.items(), point, strict=True)}
        )
    return found


def around_default(method: Regularizer) -> Space:
    """Return a range around the first hyperparameter that is a positive number.

    None without such.
    """
    for each in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, each.name)
        # A whole number counts something, such as the terms of a series, and is no weight.
        if isinstance(value, float) and value > 0:
            return {each.name: Range(value / _AROUND, value * _AROUND)}
    return {}
