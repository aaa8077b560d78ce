"""Records for tests, as the real writer writes them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.record_parts import Cost, ImageSource
from regbench.benchmark.rundir.tuning_choice import (
    TUNING_CHOICE,
    ChosenConfiguration,
    RankedConfiguration,
    TuningChoice,
)
from regbench.benchmark.settings.identity import cell_id
from regbench.files import signed

CELL = {
    "dataset": {"name": "made_up"},
    "network": {"backbone": {"name": "resnet_tiny"}},
    **{"embedding_dim": 16, "batch_size": 32, "epochs": 2},
}


def made(cell: Mapping[str, Any] = CELL, **changes: Any) -> Record:
    """Make what a run of the cell, given as plain data, leaves; keywords are its fields."""
    fields: dict[str, Any] = {
        **{"sweep": "made", "label": "VICReg", "method": "vicreg", "seed": 0, "status": "done"},
        **{"scores": (), "environment": {}, "attempts": (), "command": ""},
        **{"cell_id": cell_id(cell), "cell": dict(cell), "data": ImageSource("made up", {})},
        "cost": Cost(train_s=1.0, evaluate_s=0.0),
    }
    return Record(**fields | changes)


def knn_top1(value: float, split: str = "tuning") -> Score:
    """Make the score that tunings choose by."""
    return Score("knn_top1", value, split, "k = 5", "kNN top-1")


def ranked(cell_id: str, value: float | None = 70.0, **hyperparameters: Any) -> RankedConfiguration:
    """Make a configuration in the ranking of a tuning."""
    status = "tuned" if value is not None else "diverged"
    fields: dict[str, Any] = {"cell_id": cell_id, "configuration": cell_id, "epochs": 3}
    fields |= {"value": value, "status": status, "hyperparameters": hyperparameters}
    return RankedConfiguration(**fields)


def chosen(label: str, *ranking: RankedConfiguration, **changes: Any) -> ChosenConfiguration:
    """Make what a tuning chose for a method: the first of its ranking."""
    setting: dict[str, Any] = {"dataset": "fashion_mnist", "backbone": "resnet_tiny"}
    setting |= {"embedding_dim": 512, "batch_size": 256, "epochs": 3}
    fields: dict[str, Any] = {"label": label, "method": label.lower(), "ranking": ranking}
    fields |= {"images": 0, "setting": setting, "edges": {}}
    fields |= dict.fromkeys(("chosen", "configuration"), ranking[0].cell_id)
    return ChosenConfiguration(**fields | changes)


def tuning_choice(folder: Path, *choices: ChosenConfiguration, **changes: Any) -> str:
    """Write what a tuning chose into its folder; return the digest. Keywords are fields of it."""
    budget = max((len(entry.ranking) for entry in choices), default=0)
    how: dict[str, Any] = {"selected_on": "tuning", "score": "knn_top1", "seeds": (0,)}
    how |= {"budget": budget, "created": "2026-11-22T05:30:00+00:00"}
    path = folder / TUNING_CHOICE
    path.write_text(TuningChoice(choices=choices, **how | changes).text())
    return TuningChoice.read(path).sha256


def plan(folder: Path, *cells: Mapping[str, Any]) -> None:
    """Write the plan of a sweep; a cell is of seed 0 and three epochs, unless it says otherwise."""
    planned = [{"seed": 0, "epochs": 3, **cell} for cell in cells]
    (folder / "sweep.json").write_text(json.dumps({"description": "", "cells": planned}))


def search(folder: Path, *short: str) -> None:
    """Write what a search says of the cells that it has trained for fewer epochs than its choice."""
    (folder / "search.json").write_text(signed({"short": dict.fromkeys(short, 3)}))


def attempted(
    directory: Path, ended: str | None, error: str | None = None, number: int = 0, **more: Any
) -> None:
    """Write an attempt at a cell, the next one without a number: how it ended, and more of it."""
    folder = directory / "attempts"
    folder.mkdir(parents=True, exist_ok=True)
    number = number or len(list(folder.iterdir())) + 1
    state = {"heartbeat": time.time(), "beat": 1, "lease_s": 60, "ended": ended, "error": error}
    (folder / f"{number:04d}.json").write_text(json.dumps(state | more))
    (directory / "config.yaml").touch()
