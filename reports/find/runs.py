"""Run directories under some folders, those without a record included."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbench.benchmark.rundir.tuning_choice import SEARCH, TUNING_CHOICE
from regbench.errors import RegbenchError
from regbench.files import parse_json

_CELL_ID = re.compile(r"[0-9a-f]{12}")
_DEEPEST = 2  # a run in a sweep in a folder of sweeps


@dataclass(frozen=True)
class Run:
    """A run directory: its record, if it has one, its later evaluations, and its attempts where
    there is no record.
    """

    path: Path
    record: Path | None
    evaluations: tuple[Path, ...]
    attempts: tuple[Path, ...]


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
        started = "config.yaml" in names and _CELL_ID.fullmatch(
            folder.absolute().name
        )  # other folders may hold one
        record = None
        for name in ("tuning.json", "record.json"):  # the final one counts where there are both
            if name in names:
                record = folder / name
        if started or record:
            evaluations = _json_files(folder / "evaluations") if "evaluations" in names else ()
            attempts = (
                _json_files(folder / "attempts") if "attempts" in names and record is None else ()
            )
            self.runs[folder] = Run(folder, record, evaluations, attempts)
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
    done, begun = set(), {}
    for run in found.runs:
        place = run.path.absolute()
        if run.record is None:
            begun[place] = run
        else:
            done.add(place)
    missing = []
    for folder in found.sweeps:
        for plan in _planned(folder / "sweep.json"):
            # Only the settings that it states are left in the plan then.
            cell_id, label, seed = (plan.pop(name, None) for name in ("id", "label", "seed"))
            place = folder.absolute() / str(cell_id)
            if place not in done and place not in found.short:
                # Popped, so that what is left in the end has begun without being planned.
                failure = _failure(begun.pop(place, None))
                missing.append(
                    Missing(folder.absolute().name, str(cell_id), str(label), seed, plan, failure)
                )
    for place, run in begun.items():
        if place not in found.short:
            missing.append(Missing(place.parent.name, place.name, "", None, {}, _failure(run)))
    return missing


def _json_files(folder: Path) -> tuple[Path, ...]:
    # A hidden file is none of a run: macOS, for one, leaves such files beside what it copies.
    whole = [path for path in folder.iterdir() if path.suffix == ".json" and path.name[0] != "."]
    return tuple(sorted(whole))


def _planned(path: Path) -> list[dict[str, Any]]:
    """Read the cells of a plan. It holds plain settings.

    What is something else was not written by a sweep.
    """
    cells = _object(path).get("cells", [])
    planned = []
    for cell in cells if isinstance(cells, list) else ():
        if isinstance(cell, dict):
            planned.append(
                {
                    name: value
                    for name, value in cell.items()
                    if isinstance(value, str | int | float)
                }
            )
    return planned


def _failure(run: Run | None) -> str:
    """Say why the last attempt failed; empty if it did not."""
    last = _object(run.attempts[-1]) if run and run.attempts else {}
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
    return data if isinstance(data, dict) else {}
