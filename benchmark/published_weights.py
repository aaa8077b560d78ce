"""Records of published weights: their scores, without any training."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regbench.benchmark.backbones.weights import PublishedWeights, load_backbone
from regbench.benchmark.evaluate.base import Task
from regbench.benchmark.evaluate.subject import Subject, selection_splits
from regbench.benchmark.machine.compute import Compute, resolve
from regbench.benchmark.machine.description import environment
from regbench.benchmark.run import attempt_at
from regbench.benchmark.rundir.choice import GIVEN, Choices
from regbench.benchmark.rundir.directory import write_config
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.rundir.record import Record, read_record
from regbench.benchmark.rundir.record_parts import Cost
from regbench.benchmark.scoring import distinct_scores, images_record, past_attempts, score
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.files import cell_id
from regbench.text import refuse_name

METHOD = "external"
"""Method in the record of published weights."""

# The settings that decide a training, and nothing here.
_TRAINING = (
    "method",
    "optimizer",
    "embedding_dim",
    "batch_size",
    "micro_batch_size",
    "epochs",
    "precision",
)


def evaluate_backbone(
    source: str,
    overrides: Sequence[str],
    *,
    label: str | None = None,
    name: str = "published",
    only: Sequence[str] = (),
) -> tuple[Path, Record]:
    """Evaluate published weights once, and write a run directory as a finished run leaves it.

    Args:
        source: The weights; see `load_backbone`.
        overrides: `dataset`, `augmentation`, `network`, `evaluation.…`, `seed` and `runtime.…`.
        label: Name of the row in tables; None: the name of the source.
        name: The folder under `runtime.runs_dir`.
        only: The protocols; none: those of the configuration.

    Returns:
        The run directory and the record.
    """
    for override in overrides:
        if override.partition("=")[0].partition(".")[0] in _TRAINING:
            raise RegbenchError(
                f"{override}: published weights are not trained, so it has no effect; leave it out"
            )
    chosen = [f"evaluation.protocols=[{','.join(only)}]"] if only else []
    cell, runtime = load_run([*overrides, *chosen])
    compute = resolve(runtime)
    manifest = Manifest.load(compute.data_dir, cell.dataset)
    # Refuse what cannot be evaluated before the weights are downloaded.
    selection_splits(
        cell.evaluation, Task(cell.dataset, cell.evaluation.select_on, compute.data_dir)
    )
    published = load_backbone(
        source, cell.network.backbone, cell.dataset.input_channels, cell.dataset.image_size
    )
    # The weights expect the colours that they were trained with.
    dataset = replace(
        cell.dataset,
        mean=published.mean or cell.dataset.mean,
        std=published.std or cell.dataset.std,
    )
    cell = replace(cell, dataset=dataset)
    shown = _shown(source)
    label = label or shown
    plain = _plain(cell, shown, published)
    refuse_name("the folder of runs", name)
    directory = Path(runtime.runs_dir) / name / cell_id(plain)
    with attempt_at(directory, runtime.lease_s) as attempt:
        if attempt is not None:
            found = _evaluate(attempt, compute, cell, plain, published, label)
            record = Record(
                cell_id=cell_id(plain),
                sweep=name,
                label=label,
                method=METHOD,
                seed=cell.seed,
                status="done",
                cell=plain,
                data=images_record(manifest),
                attempts=past_attempts(directory),
                command=_command(source, overrides, label, name, only),
                **found,
            )
            attempt.write_record(record.file_name, record.text())
    written = read_record(directory)
    assert written is not None
    return directory, written


def _evaluate(
    attempt: Attempt,
    compute: Compute,
    cell: Cell,
    plain: Mapping[str, Any],
    published: PublishedWeights,
    label: str,
) -> dict[str, Any]:
    """Score the weights; return the fields of the record that this decides."""
    surroundings = environment(compute.device)
    write_config(attempt.directory, plain)
    attempt.write("environment.json", json.dumps(surroundings, indent=2).encode())
    # No tuning chose these weights, and the test split opens only after that is written down.
    choices = Choices(attempt)
    choices.note_hyperparameters(GIVEN, on_test=cell.evaluation.select_on == "test")
    published.backbone.module.to(compute.device)
    subject = Subject(
        cell.evaluation,
        cell.dataset,
        cell.augmentation,
        published.backbone,
        compute,
        choices,
        cell.seed,
    )
    done = score(attempt, subject, label, cell.evaluation.protocols, published.sha256)
    attempt.update(outcome="done")
    attempt.beat()  # the record takes its attempts from their files
    loader = next(iter(done.values()))["loader"]
    return {
        "scores": distinct_scores(done, done),
        "cost": Cost(evaluate_s=sum(each["seconds"] for each in done.values())),
        "choice": choices.entries,
        "environment": {**surroundings, "loader": loader, "world_size": 1},
    }


def _shown(source: str) -> str:
    """Return the source as a record names it: a file without its folder."""
    return source if source.startswith(("torchvision:", "timm:")) else Path(source).name


def _plain(cell: Cell, source: str, published: PublishedWeights) -> dict[str, Any]:
    """Return the settings that decide the scores, in the form of a cell whose training is not
    known.
    """
    nothing = dict.fromkeys(
        ("embedding_dim", "batch_size", "micro_batch_size", "epochs", "precision", "optimizer")
    )
    return {
        **cell.plain(),
        **nothing,
        "network": {"backbone": {"name": published.architecture}},
        "method": {"name": METHOD},
        "external": {"source": source, "sha256": published.sha256},
    }


def _command(
    source: str, overrides: Sequence[str], label: str, name: str, only: Sequence[str]
) -> str:
    command = ["regbench", "evaluate", "--backbone", source, "--label", label, "--name", name]
    if only:
        command += ["--only", ",".join(only)]
    return shlex.join([*command, *overrides])
