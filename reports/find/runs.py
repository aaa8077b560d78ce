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


@dataclass(frozen=True)
class Run:
    """A run directory: its record, if it has one, its later evaluations, and its attempts where there is no record."""

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
        short: Absolute paths of the runs that a search trained for fewer epochs than what it chose: steps on the way to
            a choice, and no results.
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
        plan: What the sweep's plan says of it beside that, such as "epochs" and "embedding_dim".
        failure: Why the last attempt failed; empty if it did not.
    """

    sweep: str
    cell_id: str
    label: str
    seed: int | None
    plan: Mapping[str, Any]
    failure: str


def find_runs(folders: Sequence[Path]) -> Found:
    """Find run directories at most two levels down: deeper ones would be somebody's copies or checkpoints.

    Raises:
        RegbenchError: If a folder does not exist.
    """
    runs: dict[Path, Run] = {}
    sweeps: dict[Path, None] = {}
    short: set[Path] = set()

    def walk(folder: Path, names: set[str], depth: int) -> None:
        started = "config.yaml" in names and _CELL_ID.fullmatch(folder.absolute().name)  # others hold one too
        record = next((folder / name for name in ("record.json", "tuning.json") if name in names), None)
        if started or record:
            evaluations = _json_files(folder / "evaluations") if "evaluations" in names else ()
            attempts = _json_files(folder / "attempts") if "attempts" in names and record is None else ()
            runs[folder] = Run(folder, record, evaluations, attempts)
            return
        if not names.isdisjoint(("sweep.json", TUNING_CHOICE)):
            sweeps[folder] = None
            short.update(folder.absolute() / cell_id for cell_id in _short(folder))
        if depth < 2:
            for name in sorted(names):
                inner = folder / name
                if inner.is_dir():
                    walk(inner, set(os.listdir(inner)), depth + 1)  # noqa: PTH208  # ten times as quick as iterdir

    for folder in folders:
        if not folder.is_dir():
            raise RegbenchError(f"{folder} is not a folder of runs; `regbench status` lists those of sweeps")
        walk(folder, set(os.listdir(folder)), 0)  # noqa: PTH208
        if (parent := folder.absolute().parent) not in sweeps and folder in runs and (parent / TUNING_CHOICE).exists():
            sweeps[parent] = None
            short.update(parent / cell_id for cell_id in _short(parent))
    return Found([runs[path] for path in sorted(runs)], list(sweeps), frozenset(short))


def find_missing(found: Found) -> list[Missing]:
    """Find the cells without a record: those of the plans, then those that have begun without being planned."""
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
            cell_id, label, seed = (plan.pop(name, None) for name in ("id", "label", "seed"))
            place = folder.absolute() / str(cell_id)
            if place not in done and place not in found.short:
                failure = _failure(begun.pop(place, None))
                missing.append(Missing(folder.absolute().name, str(cell_id), str(label), seed, plan, failure))
    for place, run in begun.items():
        if _CELL_ID.fullmatch(place.name) and place not in found.short:
            missing.append(Missing(place.parent.name, place.name, "", None, {}, _failure(run)))
    return missing


def _json_files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.name[0] != "."))


def _planned(path: Path) -> list[dict[str, Any]]:
    cells = _object(path).get("cells", [])
    if not isinstance(cells, list):
        return []
    # A plan holds plain settings; what is something else was not written by a sweep.
    return [
        {k: v for k, v in cell.items() if isinstance(v, str | int | float)} for cell in cells if isinstance(cell, dict)
    ]


def _short(folder: Path) -> list[str]:
    short = _object(folder / SEARCH).get("short", {})
    return list(short) if isinstance(short, dict) else []


def _failure(run: Run | None) -> str:
    """Say why the last attempt failed; empty if it did not."""
    last = _object(run.attempts[-1]) if run and run.attempts else {}
    return " ".join(str(last.get("error") or "no reason noted").split()) if last.get("ended") == "failed" else ""


def _object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file beside the records; it is empty where the file is missing or damaged."""
    try:
        data = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
