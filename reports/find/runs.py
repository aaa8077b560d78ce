"""Run directories under some folders, those without a record included."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbench.benchmark.rundir.directory import attempt_numbers
from regbench.benchmark.rundir.tuning_choice import SEARCH, TUNING_CHOICE
from regbench.errors import RegbenchError
from regbench.files import parse_json

_CELL_ID = re.compile(r"[0-9a-f]{12}")
_DEEPEST = 2  # a run in a sweep in a folder of sweeps


@dataclass(frozen=True)
class Run:
    """A run directory: its record, if it has one, and its later evaluations."""

    path: Path
    record: Path | None
    evaluations: tuple[Path, ...]


@dataclass(frozen=True)
class Found:
    """Run directories, and the folders of sweeps (those with a plan or a choice) around them.

    Attributes:
        runs: All of them.
        sweeps: The folders.
        short: Absolute paths of the runs that a search trained for fewer epochs than what it chose:
            steps on the way to a choice, and no results.
    """

    runs: list[Run]
    sweeps: list[Path]
    short: frozenset[Path]


@dataclass(frozen=True)
class Missing:
    """A cell that a sweep plans or that has begun, and that has no record yet.

    Attributes:
        label: Display name of its method; empty where only its folder is known.
        seed: None where only its folder is known.
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
    """A method in one setting of which cells are planned and none is finished.

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
    found = _Walk()
    for folder in folders:
        if not folder.is_dir():
            raise RegbenchError(
                f"{folder} is not a folder of runs; `regbench status` lists those of sweeps"
            )
        found.walk(folder, 0)
        # The tuning that a single run directory belongs to says whether its training was a short
        # one.
        around = folder.absolute().parent
        if folder in found.runs and (around / TUNING_CHOICE).exists():
            found.add_sweep(around)
    # In the order of paths, whatever the order in which folders were given.
    runs = [found.runs[path] for path in sorted(found.runs)]
    return Found(runs, list(found.sweeps), frozenset(found.short))


class _Walk:
    """Run directories, sweeps (as an ordered set) and short runs that were met so far."""

    def __init__(self) -> None:
        self.runs: dict[Path, Run] = {}
        self.sweeps: dict[Path, None] = {}
        self.short: set[Path] = set()

    def add_sweep(self, folder: Path) -> None:
        self.sweeps[folder] = None
        short = _object(folder / SEARCH).get("short", {})
        if isinstance(short, dict):
            self.short.update(folder.absolute() / cell_id for cell_id in short)

    def walk(self, folder: Path, depth: int) -> None:
        names = set(os.listdir(folder))  # noqa: PTH208  # ten times as quick as iterdir
        # Other folders may hold such a file.
        started = "config.yaml" in names and _CELL_ID.fullmatch(folder.absolute().name)
        record = None
        for name in ("tuning.json", "record.json"):  # the final one counts where there are both
            if name in names:
                record = folder / name
        if started or record:
            # A hidden file is none of a run: macOS, for one, leaves such beside what it copies.
            evaluations = sorted(folder.glob("evaluations/[!.]*.json"))
            self.runs[folder] = Run(folder, record, tuple(evaluations))
            return
        if not names.isdisjoint(("sweep.json", TUNING_CHOICE)):
            self.add_sweep(folder)
        if depth < _DEEPEST:
            for name in sorted(names):
                if (folder / name).is_dir():
                    self.walk(folder / name, depth + 1)


def find_missing(found: Found) -> list[Missing]:
    """Find the cells without a record: those of the plans, then those that have begun without
    being planned.
    """
    done: set[Path] = set()
    begun: dict[Path, None] = {}
    for run in found.runs:
        place = run.path.absolute()
        if run.record is None:
            begun[place] = None
        else:
            done.add(place)
    missing = []
    for folder in found.sweeps:
        for plan in _planned(folder / "sweep.json"):
            # Only the settings that it states are left in the plan then.
            cell_id, label, seed = (plan.pop(name, None) for name in ("id", "label", "seed"))
            place = folder.absolute() / str(cell_id)
            if place not in done and place not in found.short:
                failure = _failure(place)
                missing.append(
                    Missing(folder.absolute().name, str(cell_id), str(label), seed, plan, failure)
                )
            begun.pop(place, None)
    for place in begun:
        if place not in found.short:
            missing.append(Missing(place.parent.name, place.name, "", None, {}, _failure(place)))
    return missing


def _planned(path: Path) -> list[dict[str, Any]]:
    """Read the cells of a plan. It holds plain settings.

    What is something else was not written by a sweep.
    """
    planned = []
    cells = _object(path).get("cells")
    if isinstance(cells, list):
        for cell in cells:
            if isinstance(cell, dict):
                plain = [item for item in cell.items() if isinstance(item[1], str | int | float)]
                planned.append(dict(plain))
    return planned


def _failure(directory: Path) -> str:
    """Say why the last attempt failed; empty if it did not."""
    numbers = attempt_numbers(directory)
    if not numbers:
        return ""
    last = _object(directory / "attempts" / f"{numbers[-1]:04d}.json")
    if last.get("ended") != "failed":
        return ""
    return " ".join(str(last.get("error") or "no reason noted").split())


def _object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file beside the records.

    It is empty where the file is missing or damaged.
    """
    try:
        data = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return data
