"""Tracks, and what a challenge begins with: its folder, the shipped rows in it, and the
challenger's sweep.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from regbench import wording
from regbench.benchmark.settings.sweep import SweepFile, read_rows
from regbench.files import write_text
from regbench.methods import METHODS
from regbench.methods.base import Regularizer
from regbench.wording import written

# Factor by which the range around a default weight reaches down and up.
_AROUND = 16.0


@dataclass(frozen=True)
class Track:
    """A frozen sweep: the cells of all rows except the challenger's are in a bundle.

    Attributes:
        name: Name of the task, with which the names of folders begin.
        sweep: The preset or file of the search that gave the rows. The challenger has the settings
            that its cells share, its budget and its range of the learning rate.
        bundle: The finished cells.
        settings: Further settings of every cell of the sweep.
    """

    name: str
    sweep: str
    bundle: Path
    settings: tuple[str, ...] = ()


def _shipped(name: str, sweep: str, *settings: str) -> Track:
    return Track(name, sweep, Path(__file__).with_name(f"{name}.tar.xz"), settings)


_WORLDS = ("latents", "latents_sphere", "latents_sparse", "latents_clusters")

TRACKS: dict[str, tuple[Track, ...]] = {
    "scenes": (_shipped("scenes", "pitch_tuning"),),
    "latents": tuple(_shipped(world, "latents_tuning", f"dataset={world}") for world in _WORLDS),
}
"""The tracks that come with regbench, except the smoke test, with their tasks."""


def write_sweep(track: Track, method: Regularizer, path: Path) -> SweepFile:
    """Write the file of the challenger's search, with the settings and the budget of the track.

    Args:
        track: The track.
        method: The challenger with its defaults.
        path: The file.

    Returns:
        The file, read.
    """
    file = read_rows(track.sweep, ())
    line = [f"method={METHODS.name(method)}", *track.settings, *searched(method)]
    # Each row states the same range of rates.
    line += [each for each in file.rows[-1] if each.startswith("optimizer.base_lr=")]
    content = {
        "description": f"{method.label} on the track {track.name}",
        "common": file.common,
        "final_seeds": file.final_seeds,
        "trials": file.trials,
        "cells": [shlex.join(line)],
    }
    write_text(path, json.dumps(content, indent=1))  # JSON is YAML
    return read_rows(str(path), ())


def searched(method: Regularizer) -> list[str]:
    """Return what is searched of a method that states no space: a range around the first
    hyperparameter that is a positive float and has no bound but 0 that it may not reach. Without
    such a number, all keep their values.
    """
    if method.space is not None:
        return []
    stated = []
    for each in dataclasses.fields(method):  # type: ignore[arg-type]
        value, name = getattr(method, each.name), f"method.{each.name}"
        # A whole number counts something, such as the terms of a series, and is no weight.
        if isinstance(value, float) and value > 0:
            bounds = wording.bounds(wording.hints(type(method))[each.name])
            low = max(value / _AROUND, bounds.get("ge", 0.0))
            high = min(value * _AROUND, bounds.get("le", math.inf))
            # A number that has to be above another one, or below it, is left as it is.
            if low < value < high and bounds.get("gt", 0.0) <= 0 and "lt" not in bounds:
                return [f"{name}=tag(log,interval({low},{high}))"]
        stated.append(f"{name}={written(value)}")
    return stated
