"""Reads the records that finished runs leave on disk, and nothing else of a run.

A run directory is `<sweep>/<cell id>/`; its `record.json` exists only when the cell is finished, so whatever
is read here is complete, at any moment of a sweep. A record that cannot be trusted is set aside with the
reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from regbench import RegbenchError

SCHEMA_VERSION = 2

T = TypeVar("T")


@dataclass(frozen=True)
class Score:
    """One evaluation of one cell: the value in `unit`, the split it was measured on and how."""

    name: str
    value: float
    unit: str
    split: str
    protocol: str


@dataclass(frozen=True)
class Record:
    """One finished cell, as its `record.json` states it.

    Attributes:
        path: The file that it was read from.
        cost: Seconds, bytes and rates by name; a number that is missing or not finite is left out.
        history: One mapping per epoch, with at least "epoch".
        command: The command that runs the cell again; empty where the record does not state one.
    """

    path: Path
    cell_id: str
    sweep: str
    label: str
    method: str
    seed: int
    status: str
    cell: dict[str, Any]
    scores: tuple[Score, ...]
    cost: dict[str, Any]
    history: tuple[dict[str, Any], ...]
    environment: dict[str, Any]
    data: dict[str, Any]
    attempts: tuple[dict[str, Any], ...]
    command: str

    @property
    def untrained(self) -> bool:
        """Whether this is the network as initialized: no epoch of training."""
        return bool(self.cell["epochs"] == 0)

    @property
    def started(self) -> str:
        """When the first attempt began, ISO 8601; empty where unknown."""
        return min((str(a["started"]) for a in self.attempts if a.get("started")), default="")

    @property
    def finished(self) -> str:
        """When the last attempt ended, ISO 8601; empty where unknown."""
        return max((str(a["finished"]) for a in self.attempts if a.get("finished")), default="")

    def score(self, name: str, split: str) -> float | None:
        """The value of the first score of that name and split, None if it was not measured."""
        return next((s.value for s in self.scores if s.name == name and s.split == split), None)


@dataclass(frozen=True)
class Skipped:
    """A record that is not in the report, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Records:
    """What was found under a folder.

    Attributes:
        records: The good ones, ordered by sweep, label, seed and id.
        skipped: The damaged ones.
        unfinished: Sweep name -> number of its run directories that have no record yet.
    """

    records: tuple[Record, ...]
    skipped: tuple[Skipped, ...]
    unfinished: dict[str, int]


def read_records(folder: Path | Sequence[Path]) -> Records:
    """Reads every record of one or more folders: a folder of sweeps, a sweep, or a single run directory.

    Raises:
        RegbenchError: If a folder does not exist, or no good record is found.
    """
    folders = [folder] if isinstance(folder, Path) else list(folder)
    good: dict[tuple[str, str], Record] = {}
    skipped: list[Skipped] = []
    unfinished: dict[str, int] = {}
    for run in _run_directories(folders):
        path = run / "record.json"
        if not path.exists():
            if re.fullmatch(r"[0-9a-f]{12}", run.absolute().name):  # a cell's folder; others may hold a config.yaml too
                sweep = run.absolute().parent.name
                unfinished[sweep] = unfinished.get(sweep, 0) + 1
            continue
        try:
            record = _parse(path)
            first = good.setdefault((record.sweep, record.cell_id), record)
            if first is not record:
                raise ValueError(f"the same cell as {first.path}")
        except (ValueError, OSError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
            skipped.append(Skipped(path, str(error)))
    if not good:
        places = ", ".join(str(f) for f in folders)
        if skipped:
            raise RegbenchError(
                f"no readable record in {places}: {len(skipped)} damaged, the first is {skipped[0].path} "
                f"({skipped[0].reason}); delete it and run the cell again"
            )
        waiting = f", {sum(unfinished.values())} cells have started" if unfinished else ""
        raise RegbenchError(f"no finished run in {places}{waiting}; make some with `regbench sweep quickstart`")
    records = sorted(good.values(), key=lambda r: (r.sweep, r.untrained, r.label, r.seed, r.cell_id))
    return Records(tuple(records), tuple(skipped), unfinished)


def load_records(folder: Path | list[Path]) -> pd.DataFrame:
    """Tidy data of all good records: one row per (record, score).

    Args:
        folder: A folder of sweeps, a sweep or a run directory, or several of them.

    Returns:
        Columns sweep, cell_id, label, method, seed, status, dataset, backbone, embedding_dim, batch_size,
        epochs, score, value, unit, split, protocol, then the cost (units in the names) and the environment.
        Damaged records are not in it; their paths and reasons are in `attrs["skipped"]`.

    Raises:
        RegbenchError: If a folder does not exist, or no good record is found.
    """
    found = read_records(folder)
    frame = tidy(found.records)
    frame.attrs["skipped"] = [f"{s.path}: {s.reason}" for s in found.skipped]
    return frame


def tidy(records: Sequence[Record]) -> pd.DataFrame:
    """The table of `load_records` for records already read."""
    rows: list[dict[str, Any]] = []
    for r in records:
        environment = {k: v for k, v in r.environment.items() if isinstance(v, str | int | float)}
        for s in r.scores:
            rows.append(
                {
                    "sweep": r.sweep,
                    "cell_id": r.cell_id,
                    "label": r.label,
                    "method": r.method,
                    "seed": r.seed,
                    "status": r.status,
                    "dataset": r.cell["dataset"]["name"],
                    "backbone": r.cell["network"]["backbone"],
                    "embedding_dim": r.cell["embedding_dim"],
                    "batch_size": r.cell["batch_size"],
                    "epochs": r.cell["epochs"],
                    "score": s.name,
                    "value": s.value,
                    "unit": s.unit,
                    "split": s.split,
                    "protocol": s.protocol,
                    **r.cost,
                    **environment,
                }
            )
    return pd.DataFrame(rows)


def _run_directories(folders: Sequence[Path]) -> list[Path]:
    """Run directories at most two levels down: deeper ones would be somebody's copies or checkpoints."""
    found: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise RegbenchError(f"{folder} is not a folder; give a folder of runs, such as the one of `regbench sweep`")
        for depth in ("", "*/", "*/*/"):
            for name in ("record.json", "config.yaml"):
                found.update(path.parent for path in folder.glob(depth + name))
    return sorted(found)


def _parse(path: Path) -> Record:
    """Reads one record; a ValueError says what is wrong with it."""
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON, truncated? ({error})") from error
    if not isinstance(raw, dict):
        raise ValueError("not a JSON object")
    version = raw.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema version {version!r}, this regbench reads {SCHEMA_VERSION}")
    status = _get(raw, "status", str)
    if status not in ("done", "diverged"):
        raise ValueError(f"status is {status!r}, not 'done' or 'diverged'")
    cell = _get(raw, "cell", dict)
    for key in ("embedding_dim", "batch_size", "epochs"):
        _get(cell, key, int, "cell.")
    _get(_get(cell, "dataset", dict, "cell."), "name", str, "cell.dataset.")
    _get(_get(cell, "network", dict, "cell."), "backbone", str, "cell.network.")
    history = [_mapping(entry, "history") for entry in _get(raw, "history", list)]
    for entry in history:
        _get(entry, "epoch", int, "history.")
    command = raw.get("command", "")
    return Record(
        path=path,
        cell_id=_get(raw, "cell_id", str),
        sweep=_get(raw, "sweep", str),
        label=_get(raw, "label", str),
        method=_get(raw, "method", str),
        seed=_get(raw, "seed", int),
        status=status,
        cell=cell,
        scores=tuple(_score(_mapping(entry, "scores")) for entry in _get(raw, "scores", list)),
        cost={k: v for k, v in _get(raw, "cost", dict).items() if isinstance(v, str) or _is_number(v)},
        history=tuple(history),
        environment=_get(raw, "environment", dict),
        data=_get(raw, "data", dict),
        attempts=tuple(_mapping(entry, "attempts") for entry in _get(raw, "attempts", list)),
        command=" ".join(command) if isinstance(command, list) else str(command),
    )


def _get(data: dict[str, Any], key: str, kind: type[T], where: str = "") -> T:
    if key not in data:
        raise ValueError(f"{where}{key} is missing")
    value = data[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where}{key} is {value!r:.40}, not {kind.__name__}")
    return value


def _mapping(entry: Any, where: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} holds {entry!r:.40}, not an object")
    return entry


def _score(entry: dict[str, Any]) -> Score:
    name, unit, split, protocol = (_get(entry, k, str, "scores.") for k in ("name", "unit", "split", "protocol"))
    if not _is_number(entry.get("value")):
        raise ValueError(f"score {name} ({split}) is {entry.get('value')!r:.40}, not a finite number")
    return Score(name, float(entry["value"]), unit, split, protocol)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
