"""A factory of records as finished runs leave them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

METHODS = {
    "SFRIK (L=1)": "sfrik",
    "SFRIK (L=2)": "sfrik",
    "SFRIK (L=3)": "sfrik",
    "RBF kernel": "rbf",
    "generalized distance": "generalized_distance",
    "AUH": "auh",
    "SimCLR": "simclr",
    "VICReg": "vicreg",
    "untrained": "sfrik",
}


GIVEN = {"selected_on": "given", "score": None, "budget": None, "record": None, "sha256": None}
RATE = {"selected_on": "tuning", "chosen": 0.5, "candidates": {"0.02": 70.1, "0.5": 72.0}}


def _digest(data: dict[str, Any]) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def signed(data: dict[str, Any]) -> str:
    """JSON with the SHA-256 of what it holds, as runs write it."""
    return json.dumps({**data, "sha256": _digest(data)})


def resign(path: Path, **changes: Any) -> None:
    """Changes a record and takes its digest anew, as somebody who means it would."""
    data = json.loads(path.read_text())
    data.pop("sha256")
    path.write_text(signed(data | changes))


def cell_id(cell: dict[str, Any]) -> str:
    """As runs compute it: an untrained network knows neither method nor optimizer, published weights no training."""
    if "external" in cell:
        kept = ("dataset", "network", "augmentation", "seed", "evaluation")
        return _digest({"weights": cell["external"]["sha256"], **{key: cell[key] for key in kept}})[:12]
    nothing = () if cell["epochs"] != 0 else ("method", "optimizer")
    return _digest({key: value for key, value in cell.items() if key not in nothing})[:12]


def _score(name: str, value: float, split: str = "test") -> dict[str, Any]:
    return {"name": name, "value": value, "unit": "%", "split": split, "protocol": f"how {name} is measured"}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def record(runs: Path) -> Callable[..., Path]:
    """Writes one record; keywords override its fields, `cell` and the like are merged."""
    return _recorder(runs)


@pytest.fixture(scope="session")
def recorder() -> Callable[[Path], Callable[..., Path]]:
    """`record` for any folder of runs, for what several tests share."""
    return _recorder


def _recorder(runs: Path) -> Callable[..., Path]:

    def write(
        label: str = "VICReg",
        seed: int = 0,
        *,
        knn: float | None = 70.0,
        linear: float | None = 75.0,
        tuning: float | None = None,
        sweep: str = "quickstart",
        cell: dict[str, Any] | None = None,
        cost: dict[str, Any] | None = None,
        environment: dict[str, Any] | None = None,
        history: list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> Path:
        epochs = 0 if label == "untrained" else 3
        settings: dict[str, Any] = {
            "method": {"name": METHODS.get(label, label), "alignment_weight": 10.0, "label": label},
            "embedding_dim": 512,
            "batch_size": 256,
            "epochs": epochs,
            "seed": seed,
            "dataset": {"name": "fashion_mnist", "train_per_class": 1000},
            "network": {"backbone": "resnet_tiny", "hidden_dim": None},
            "optimizer": {"base_lr": 1.0},
        } | copy.deepcopy(cell or {})
        identity = cell_id(settings)
        values = (("knn_top1", knn, "test"), ("linear_top1", linear, "test"), ("knn_top1", tuning, "tuning"))
        logged = [
            {
                "epoch": e,
                "loss": 5.0 / e + seed,
                "alignment": 0.1 * e,
                "uniformity": -2.0 - e,
                "effective_rank": 30.0 + 5 * e,
                "feature_spread": 0.5,
                "learning_rate": 0.1,
                "epoch_s": 10.0,
                "terms": {},
            }
            for e in range(1, (settings["epochs"] or 0) + 1)
        ]
        metrics = "".join(json.dumps(row) + "\n" for row in (logged if history is None else history))
        costs: dict[str, Any] = {"train_s": 30.0, "evaluate_s": 8.0, "img_per_s": 1600.0, "step_ms": 160.0}
        costs |= {"loss_ms": 4.0, "peak_memory_bytes": 800 * 2**20, "peak_memory_kind": "process RSS"}
        if label == "untrained":
            costs |= dict.fromkeys(("img_per_s", "step_ms", "loss_ms", "peak_memory_bytes"))
        versions = {
            "regbench": "0.1.0",
            "python": "3.11.7",
            "torch": "2.14.1",
            "git": "abc1234",
            "hostname": "node1",
        }
        started, finished = "2026-11-21T04:00:00+00:00", "2026-11-22T05:30:00+00:00"
        data = {
            "schema_version": 5,
            "cell_id": identity,
            "sweep": sweep,
            "label": label,
            "method": METHODS.get(label, label),
            "seed": seed,
            "status": "done",
            "cell": settings,
            "scores": [_score(name, value, split) for name, value, split in values if value is not None],
            "cost": costs | (cost or {}),
            "metrics": {"file": "metrics-0001.jsonl", "sha256": hashlib.sha256(metrics.encode()).hexdigest()}
            if metrics
            else None,
            "checkpoint": None,
            "environment": versions
            | {"hardware": "1 x Example CPU", "loader": "ffcv", "threads": 1}
            | (environment or {}),
            "data": {"source": "made up", "content_sha256": {"train": "ab" * 32, "test": "cd" * 32}},
            "attempts": [{"started": started, "finished": finished, "hostname": "node1"}],
            "command": f"regbench train --config runs/{sweep}/{identity}/config.yaml",
            "regularizer": {"reference": "somebody, 2021", "url": "https://example.org", "formula": "a + b"},
            "spectrum": None,
        } | fields
        if data["status"] == "done":
            data = {"choice": {"hyperparameters": GIVEN, "probe_learning_rate": RATE}} | data
        path = runs / sweep / identity / ("tuning.json" if data["status"] == "tuned" else "record.json")
        path.parent.mkdir(parents=True)
        path.write_text(signed(data))
        if metrics:
            path.with_name("metrics-0001.jsonl").write_text(metrics)
        (path.parent / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        return path

    return write
