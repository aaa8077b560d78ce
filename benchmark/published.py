"""Published weights in the same tables: their scores as a record, without any training."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regbench import RegbenchError
from regbench.benchmark.backbones.weights import Published, load_backbone
from regbench.benchmark.evaluate import Evaluator, selection_splits
from regbench.benchmark.machine import environment
from regbench.benchmark.run import attempt_at, attempts_record, data_record, distinct, resolve, score
from regbench.benchmark.rundir.choice import Choices
from regbench.benchmark.rundir.directory import SCHEMA_VERSION, read_record, write_config
from regbench.benchmark.settings.config import Cell, load_run
from regbench.datasets.manifest import Manifest
from regbench.files import cell_id, signed

METHOD = "external"

# What decides a training and nothing here.
_TRAINING = ("method", "optimizer", "embedding_dim", "batch_size", "micro_batch_size", "epochs", "precision")
_COSTS = ("train_s", "img_per_s", "step_ms", "loss_ms", "peak_memory_bytes")


def evaluate_backbone(
    source: str,
    overrides: Sequence[str],
    *,
    label: str | None = None,
    name: str = "published",
    only: Sequence[str] = (),
) -> tuple[Path, dict[str, Any]]:
    """Evaluates published weights and writes a run directory as a finished run leaves one, once.

    Args:
        source: See `load_backbone`.
        overrides: `dataset`, `augmentation`, `network`, `evaluation.…`, `seed` and `runtime.…`.
        label: Name of the row in tables; None: what `source` names.
        name: The folder under `runtime.runs_dir`.
        only: The protocols; none: those of the configuration.

    Returns:
        The run directory and the record.

    Raises:
        RegbenchError: If the weights cannot be had or do not fit, or an override is refused.
    """
    for override in overrides:
        if override.partition("=")[0].partition(".")[0] in _TRAINING:
            raise RegbenchError(f"{override}: published weights are not trained, so it has no effect; leave it out")
    chosen = [f"evaluation.protocols=[{','.join(only)}]"] if only else []
    cell, runtime = load_run([*overrides, *chosen])
    compute = resolve(runtime)
    manifest = Manifest.load(compute.data_dir, cell.dataset)
    selection_splits(cell.evaluation, cell.dataset, compute.data_dir)
    published = load_backbone(source, cell.network, cell.dataset.channels, cell.dataset.image_size)
    dataset = replace(cell.dataset, mean=published.mean or cell.dataset.mean, std=published.std or cell.dataset.std)
    cell = replace(cell, dataset=dataset, network=replace(cell.network, backbone=published.architecture))
    shown = _shown(source)
    plain = _plain(cell, shown, published)
    identity = cell_id(plain)
    label = label or shown
    directory = Path(runtime.runs_dir) / name / identity
    with attempt_at(directory, runtime.lease_s) as attempt:
        if attempt is None:
            record = read_record(directory)
            assert record is not None
            return directory, record
        surroundings = environment(compute.device)
        write_config(directory, plain)
        attempt.write("environment.json", json.dumps(surroundings, indent=2).encode())
        choices = Choices(attempt)
        selected_on = "test" if cell.evaluation.select_on == "test" else "given"
        nothing = dict.fromkeys(("score", "budget", "record", "sha256"))
        choices.note("hyperparameters", {"selected_on": selected_on, **nothing})
        published.backbone.module.to(compute.device)
        evaluator = Evaluator(
            cell.evaluation, dataset, cell.augmentation, published.backbone, compute, choices, cell.seed
        )
        done = score(attempt, evaluator, label, cell.evaluation.protocols, published.sha256)
        attempt.update(outcome="done")
        attempt.beat()
        record = {
            "schema_version": SCHEMA_VERSION,
            "cell_id": identity,
            "sweep": name,
            "label": label,
            "method": METHOD,
            "seed": cell.seed,
            "status": "done",
            "cell": plain,
            "spectrum": None,
            "scores": distinct(entry for found in done.values() for entry in found["scores"]),
            "cost": {**dict.fromkeys(_COSTS), "evaluate_s": sum(found["seconds"] for found in done.values())},
            "choice": choices.entries,
            "environment": {**surroundings, "loader": next(iter(done.values()))["loader"], "world_size": 1},
            "data": data_record(manifest),
            "attempts": attempts_record(directory),
            "command": _command(source, overrides, label, name, only),
            "metrics": None,
            "checkpoint": None,
        }
        attempt.write_record("record.json", signed(record))
    record = read_record(directory)
    assert record is not None
    return directory, record


def _shown(source: str) -> str:
    """The source as a record names it: a file without its folder."""
    return source if source.startswith(("torchvision:", "timm:")) else Path(source).name


def _plain(cell: Cell, source: str, published: Published) -> dict[str, Any]:
    """What decides the scores, in the form of a cell whose training is not known."""
    nothing = dict.fromkeys(("embedding_dim", "batch_size", "micro_batch_size", "epochs", "precision", "optimizer"))
    return {
        **cell.plain(),
        **nothing,
        "method": {"name": METHOD},
        "external": {"source": source, "sha256": published.sha256},
    }


def _command(source: str, overrides: Sequence[str], label: str, name: str, only: Sequence[str]) -> str:
    command = ["regbench", "evaluate", "--backbone", source, "--label", label, "--name", name]
    return shlex.join([*command, *(["--only", ",".join(only)] if only else []), *overrides])
