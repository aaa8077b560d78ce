"""One cell from its run directory's first file to its record."""

from __future__ import annotations

import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from regbench import RegbenchError, methods
from regbench.benchmark.config import Cell, Runtime, load_config
from regbench.benchmark.directory import only_writer, read_record, run_directory
from regbench.benchmark.evaluate import Evaluator, scored_splits
from regbench.benchmark.measure import environment
from regbench.benchmark.metrics import COLLAPSED_SPREAD
from regbench.benchmark.network import SiameseNetwork
from regbench.benchmark.train import Compute, Trained, train
from regbench.datasets.manifest import Manifest
from regbench.files import remove_leftovers, write_text

SCHEMA_VERSION = 1

log = logging.getLogger("regbench")


def resolve(runtime: Runtime) -> Compute:
    """The runtime on this machine; sets torch's threads.

    Raises:
        RegbenchError: If the device is unknown or not there.
    """
    device = runtime.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise RegbenchError(f"runtime.device={device} must be auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise RegbenchError("runtime.device=cuda but torch sees no GPU here; use runtime.device=cpu")
    torch.set_num_threads(runtime.threads or len(os.sched_getaffinity(0)))
    return Compute(
        device=torch.device(device),
        data_dir=Path(runtime.data_dir),
        loader=runtime.loader,
        workers=runtime.workers,
        loss_form=runtime.loss_form,
    )


def run_cell(cell: Cell, runtime: Runtime, sweep: str) -> dict[str, Any]:
    """Brings a cell to its record: trains, evaluates, writes; goes on from whatever an earlier attempt left.

    One process at a time works in a run directory: a second one waits for the first and takes its record.

    Args:
        cell: What to run.
        runtime: Where and with what.
        sweep: The folder under `runtime.runs_dir`.

    Returns:
        The record.

    Raises:
        RegbenchError: If the run is refused or diverges. The message is kept in `error.txt`.
    """
    directory = run_directory(runtime, sweep, cell)
    directory.mkdir(parents=True, exist_ok=True)
    with only_writer(directory):
        if (record := read_record(directory)) is not None:
            return record
        remove_leftovers(directory)
        (directory / "error.txt").unlink(missing_ok=True)
        try:
            return _run(cell, runtime, sweep, directory)
        except Exception as error:
            write_text(directory / "error.txt", f"{type(error).__name__}: {error}\n")
            raise


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _run(cell: Cell, runtime: Runtime, sweep: str, directory: Path) -> dict[str, Any]:
    manifest = Manifest.load(Path(runtime.data_dir), cell.dataset.name)
    compute = resolve(runtime)
    scored_splits(cell, compute.data_dir)  # refuses before the training rather than after it
    surroundings = environment(compute.device)
    write_text(directory / "config.yaml", yaml.safe_dump(json.loads(json.dumps(cell.to_dict())), sort_keys=False))
    write_text(directory / "environment.json", json.dumps(surroundings, indent=2))
    attempts = _begin_attempt(directory)
    trained = train(cell, compute, directory)
    scores, evaluate_s, loader = _evaluate(cell, trained, compute, directory)
    attempts[-1]["finished"] = _now()
    collapsed = bool(trained.history) and trained.history[-1]["feature_spread"] < COLLAPSED_SPREAD
    record = {
        "schema_version": SCHEMA_VERSION,
        "cell_id": cell.id,
        "sweep": sweep,
        "label": cell.label,
        "method": methods.registry_name(cell.method),
        "seed": cell.seed,
        "status": "collapsed" if collapsed else "done",
        "cell": cell.to_dict(),
        "scores": scores,
        "cost": {**_training_cost(trained), "evaluate_s": evaluate_s},
        "history": trained.history,
        "environment": {**surroundings, "loader": loader, "loss_form": compute.loss_form},
        "data": {
            "source": manifest.source,
            "content_sha256": {name: split["content_sha256"] for name, split in manifest.splits.items()},
        },
        "attempts": attempts,
        "command": f"regbench train --config {directory / 'config.yaml'}",
    }
    write_text(directory / "record.json", json.dumps(record, indent=1))
    return record


def _begin_attempt(directory: Path) -> list[dict[str, Any]]:
    """Notes that this process begins; returns all attempts at the cell so far, this one last."""
    path = directory / "attempts.json"
    attempts: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    attempts.append({"started": _now(), "finished": None, "hostname": platform.node()})
    write_text(path, json.dumps(attempts, indent=1))
    return attempts


def _evaluate(
    cell: Cell, trained: Trained, compute: Compute, directory: Path
) -> tuple[list[dict[str, Any]], float, str]:
    """All scores, the seconds they took and the loader's backend; what an earlier attempt finished is kept."""
    path = directory / "scores.json"
    done: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    evaluator = Evaluator(cell, trained.network.backbone, compute)
    for name, evaluation in {"knn": evaluator.knn, "linear": evaluator.linear}.items():
        if name not in done:
            began_s = time.perf_counter()
            scores = evaluation()
            done[name] = {
                "scores": scores,
                "seconds": time.perf_counter() - began_s,
                "loader": evaluator.backend,
            }
            write_text(path, json.dumps(done, indent=1))
            log.info(
                "%s: %s",
                cell.label,
                ", ".join(f"{s['name']} {s['value']:.2f} % ({s['split']})" for s in scores),
            )
    return (
        [score for evaluation in done.values() for score in evaluation["scores"]],
        sum(evaluation["seconds"] for evaluation in done.values()),
        done["knn"]["loader"],
    )


def _training_cost(trained: Trained) -> dict[str, Any]:
    """Time and memory of training; medians over epochs of the medians over steps."""
    history = trained.history
    train_s = sum(epoch["epoch_s"] for epoch in history)
    return {
        "train_s": train_s,
        "img_per_s": sum(epoch["images"] for epoch in history) / train_s if history else None,
        "step_ms": statistics.median(epoch["step_ms"] for epoch in history) if history else None,
        "loss_ms": statistics.median(epoch["loss_ms"] for epoch in history) if history else None,
        "peak_memory_bytes": trained.peak_memory_bytes if history else None,
        "peak_memory_kind": trained.peak_memory_kind,
    }


def evaluate_directory(directory: Path, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Evaluates the checkpoint of a run directory anew and writes nothing.

    Args:
        directory: With `config.yaml` and `checkpoint.pt`.
        overrides: `evaluation.…=value` and `runtime.…=value` settings that differ from the run's own.

    Returns:
        The scores.

    Raises:
        RegbenchError: If the directory holds no checkpoint, or an override is refused.
    """
    for override in overrides:
        if not override.startswith(("evaluation.", "runtime.")):
            raise RegbenchError(f"{override}: a trained run can be given other evaluation.* settings only")
    for name in ("config.yaml", "checkpoint.pt"):
        if not (directory / name).exists():
            raise RegbenchError(f"{directory / name} is missing; give the directory of a run that has trained")
    cell, runtime = load_config(directory / "config.yaml", overrides)
    compute = resolve(runtime)
    state = torch.load(directory / "checkpoint.pt", map_location="cpu", weights_only=True)
    network = SiameseNetwork(cell.network, cell.embedding_dim, cell.dataset.channels, cell.seed)
    network.load_state_dict(state["network"])
    evaluator = Evaluator(cell, network.backbone.to(compute.device), compute)
    return [*evaluator.knn(), *evaluator.linear()]
