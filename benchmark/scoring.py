"""The evaluations of a frozen network, each done once, and the parts of a record beside the
scores.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from regbench.benchmark import baselines
from regbench.benchmark.evaluate.features import Encoder
from regbench.benchmark.evaluate.state import state_kind
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.machine.compute import Compute
from regbench.benchmark.rundir.checkpoint import remove_tensors
from regbench.benchmark.rundir.choice import Choices
from regbench.benchmark.rundir.directory import read_numbered
from regbench.benchmark.rundir.lease import Attempt, now, read_attempts
from regbench.benchmark.rundir.record import Score
from regbench.benchmark.rundir.record_parts import Cost, PastAttempt
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.run_progress import Progress
from regbench.files import signed

log = logging.getLogger("regbench")

SELECTION = "selection"
"""The name of the evaluation that hyperparameters are selected by, beside those of the
protocols.
"""

_STEP_TIMES = ("step_ms", "data_ms", "forward_ms", "loss_ms", "backward_ms", "optimizer_ms")


class Evaluated(NamedTuple):
    """The results of one evaluation: scores, seconds, and what read the images."""

    scores: list[Score]
    seconds: float
    loader: str


def note_choice(
    attempt: Attempt, cell: Cell, how_chosen: Mapping[str, Any], *, on_test: bool = False
) -> Choices:
    """Write down how a cell was chosen, which opens the test split.

    `on_test`: whether other settings than the cell's chose anything on the test split.
    """
    choices, entry = Choices(attempt), dict(how_chosen)
    # If the evaluations choose on the test split, its scores are optimistic.
    if on_test or cell.evaluation.select_on == "test":
        entry["selected_on"] = "test"
    choices.note("hyperparameters", entry)
    return choices


def subject_of(
    cell: Cell, network: SiameseNetwork | Encoder, compute: Compute, choices: Choices
) -> Subject:
    """Return a network, or the trivial baseline in its place, ready for the evaluations of a
    cell.
    """
    settings = cell.evaluation, cell.dataset, cell.augmentation
    means = compute, choices, cell.seed
    if isinstance(network, Encoder):
        return Subject(*settings, network, *means)
    if cell.baseline is None or cell.is_supervised:
        encoder = Encoder(network.backbone, network.representation_dim)
        embedder = Encoder(nn.Sequential(network.backbone, network.projector), cell.output_dim)
        return Subject(*settings, encoder, *means, embedder)
    pixels = baselines.pixels(cell.dataset.input_channels, cell.dataset.image_size)
    return baselines.untrained(Subject(*settings, pixels, *means), cell.baseline)


def evaluated(subject: Subject, name: str) -> Evaluated:
    """Do one evaluation: `SELECTION` or a protocol."""
    began_s = time.perf_counter()
    scores = subject.select() if name == SELECTION else subject.run(name)
    return Evaluated(scores, time.perf_counter() - began_s, subject.backend)


def score(
    attempt: Attempt, subject: Subject, label: str, protocols: Sequence[str], weights: str | None
) -> dict[str, dict[str, Any]]:
    """Do the evaluation `SELECTION`, then the protocols; do not repeat what `scores.json` holds.

    `attempt` is the right to write into the run directory, and `weights` the SHA-256 of the
    network's weights.

    Returns:
        `SELECTION` and each protocol -> the fields of `Evaluated`.
    """
    kept = read_numbered(attempt.directory, "scores.json")
    done: dict[str, dict[str, Any]] = {}
    # Kept scores may be of other weights: after a checkpoint was damaged, training again on a GPU
    # need not give the same ones.
    if kept and kept["weights"] == weights:
        done = kept["done"]
        attempt.began(scores=list(done))
    attempt.update(stage="tune")
    for name in (SELECTION, *protocols):
        if name != SELECTION:
            attempt.update(stage="final")
        if name in done:
            continue
        attempt.update(detail=name)
        found = evaluated(subject, name)
        done[name] = {**found._asdict(), "scores": [asdict(entry) for entry in found.scores]}
        attempt.write("scores.json", signed({"weights": weights, "done": done}).encode())
        attempt.check()
        # The evaluation kept its state in case it was interrupted; now it is done.
        remove_tensors(attempt.directory, state_kind("*"), attempt.number)
        if found.scores:  # the selection of images without labels has none
            log.info("%s: %s", label, ", ".join(score.text for score in found.scores))
    return done


def past_attempts(directory: Path) -> tuple[PastAttempt, ...]:
    """Return a record's entry on the attempts that led to it."""
    attempts = read_attempts(directory)
    # The last one ends once the record is written.
    attempts[-1]["finished"] = now()
    names = ("number", "started", "finished", "ended", "error")
    found = []
    for attempt in attempts:
        parts = {name: attempt.get(name) for name in names}
        parts["hostname"] = attempt["owner"].get("hostname")
        parts["from_step"] = attempt["progress"].get("began", {}).get("step")
        found.append(PastAttempt(**parts))
    return tuple(found)


def cost_of(progress: Progress, evaluate_s: float) -> Cost:
    """Sum up time, memory and energy of training.

    A step's times are medians over epochs of medians over steps.
    """
    history = progress.history
    finished_s = sum(epoch["epoch_s"] for epoch in history)
    measured: dict[str, float] = {}
    if history:
        measured["img_per_s"] = sum(epoch["images"] for epoch in history) / finished_s
        for name in _STEP_TIMES:
            measured[name] = statistics.median(epoch[name] for epoch in history)
    # A kind that the hardware does not count is left out.
    for kind, joules in progress.energy_joules.items():
        if math.isfinite(joules):
            measured[f"energy_{kind}_joules"] = joules
    return Cost(
        train_s=finished_s + progress.epoch_s,
        checkpoint_s=progress.checkpoint_s,
        monitor_s=progress.monitor_s or None,
        evaluate_s=evaluate_s,
        peak_memory_bytes=progress.peak_memory_bytes or None,
        peak_reserved_bytes=progress.peak_reserved_bytes or None,
        peak_memory_kind=progress.peak_memory_kind,
        loss_extra_bytes=progress.loss_extra_bytes or None,
        **measured,
    )
