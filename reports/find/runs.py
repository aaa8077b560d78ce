"""Run directories under some folders, those without a record included."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbench.benchmark.rundir.run_folder import PLAN, RunFolder, readable_plan
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE, read_search
from regbench.errors import RegbenchError

_DEEPEST = 2  # a run in a sweep in a folder of sweeps

# Settings that the plan of a sweep states of a cell.
_PLANNED = ("epochs", "embedding_dim", "batch_size", "dataset", "backbone")


@dataclass(frozen=True)
class Found:
    """Run directories, and the folders of sweeps (those with a plan or a choice) around them.

    Attributes:
        runs: All of them, in the order of their paths.
        sweeps: The folders.
        around: Folders in `sweeps` that are only there because a run in them was given.
        short: Absolute paths of the runs that a search trained for fewer epochs than what it chose:
            steps on the way to a choice, and no results.
    """

    runs: list[RunFolder]
    sweeps: list[Path]
    around: frozenset[Path]
    short: frozenset[Path]


@dataclass(frozen=True)
class Missing:
    """A cell that a sweep plans or that has begun, and that has no record yet.

    Attributes:
        label: Display name of its method; empty if only its folder is known.
        seed: Its seed; None if only its folder is known.
        plan: Other settings that the sweep's plan states, such as "epochs" and "embedding_dim".
        failure: Why the last attempt failed; empty if it did not.
    """

    sweep: str
    cell_id: str
    label: str
    seed: int | None
    plan: Mapping[str, Any]
    failure: str


@dataclass(frozen=True)
class MissingRow:
    """A method in one setting, with planned cells and no finished one.

    Attributes:
        settings: The settings that vary in the task, by their name in a table's head.
        seeds: Number of planned seeds.
    """

    label: str
    settings: dict[str, str]
    seeds: int


def find_runs(folders: Sequence[Path]) -> Found:
    """Find run directories at most two levels down: deeper ones would be somebody's copies or
    checkpoints.

    Raises:
        RegbenchError: If a folder does not exist.
    """
    runs: dict[Path, RunFolder] = {}
    sweeps: dict[Path, None] = {}
    outer: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RegbenchError(
                f"{folder} is not a folder of runs; `regbench status` lists those of sweeps"
            )
        _walk(folder, 0, runs, sweeps)
        # The tuning that a single run directory belongs to says whether its training was a short
        # one.
        around = folder.absolute().parent
        if folder in runs and (around / TUNING_CHOICE).exists():
            outer[around] = None
    given = {folder.absolute() for folder in sweeps}
    alone = [folder for folder in outer if folder not in given]
    sweeps |= dict.fromkeys(alone)
    short: set[Path] = set()
    for folder in sweeps:
        with contextlib.suppress(OSError, RegbenchError):  # a damaged search says nothing
            steps = read_search(folder).get("short")
            if isinstance(steps, dict):
                short.update(folder.absolute() / cell_id for cell_id in steps)
    # In the order of paths, whatever the order in which folders were given.
    return Found(
        [runs[path] for path in sorted(runs)], list(sweeps), frozenset(alone), frozenset(short)
    )


def _walk(folder: Path, depth: int, runs: dict[Path, RunFolder], sweeps: dict[Path, None]) -> None:
    """Add the runs and sweeps (an ordered set) in and below a folder."""
    names = set(os.listdir(folder))  # noqa: PTH208  # ten times as quick as iterdir
    run = RunFolder(folder, names)
    if run.is_run:
        runs[folder] = run
        return
    if not names.isdisjoint((PLAN, TUNING_CHOICE)):
        sweeps[folder] = None
    if depth < _DEEPEST:
        for name in sorted(names):
            if (folder / name).is_dir():
                _walk(folder / name, depth + 1, runs, sweeps)


def find_missing(found: Found) -> list[Missing]:
    """Find the cells without a record: those of the plans, then those that have begun without
    being planned.
    """
    done = {run.path.absolute() for run in found.runs if run.record is not None}
    begun = {run.path.absolute(): run for run in found.runs if run.record is None}
    missing = []
    for folder in found.sweeps:
        if folder in found.around:  # nobody asked about its other cells
            continue
        for cell in readable_plan(folder):
            place = folder.absolute() / cell["id"]
            if place not in done and place not in found.short:
                run = begun.pop(place, RunFolder(place))
                plan = {name: cell.get(name) for name in _PLANNED if name in cell}
                sweep, seed = folder.absolute().name, cell["seed"]
                missing.append(Missing(sweep, cell["id"], cell["label"], seed, plan, run.failure))
    for place, run in begun.items():
        if place not in found.short:
            missing.append(Missing(place.parent.name, place.name, "", None, {}, run.failure))
    return missing
