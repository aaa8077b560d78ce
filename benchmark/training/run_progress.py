"""The progress of a training, which checkpoints hold beside the weights, and its rows in
`metrics.jsonl`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.rundir.record_parts import NamedFile
from regbench.benchmark.settings.cell import Cell
from regbench.errors import RegbenchError


@dataclass(kw_only=True)
class Progress:
    """The progress of a training and its cost so far.

    Attributes:
        step: Steps done.
        history: Numbers of each finished epoch by name, with its scores if it was evaluated.
        sums: Sums of the loss's addends over the steps of the present epoch.
        laps_ms: Milliseconds of each part of each step of the present epoch.
        epoch_s: Seconds of the present epoch; checkpoints and evaluations are not counted.
        checkpoint_s: Seconds spent on checkpoints.
        monitor_s: Seconds spent on evaluations while training.
        world_size: Processes that train.
        surroundings: Descriptions of machine and versions that have trained, the first one first.
        energy_joules: Energy of all ranks, by kind; see `EnergyMeter`.
        peak_memory_bytes: Peak of the rank that needed most, over all attempts.
        peak_reserved_bytes: The same peak of what the allocator held.
        peak_memory_kind: The kind of memory that the two peaks count; those of another are dropped.
        loss_extra_bytes: See `Step.loss_extra_bytes`; of the rank that needed most.
        last_good: Step, loss and feature spread when the loop last looked at them.
    """

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    laps_ms: list[list[float]] = field(default_factory=list)
    epoch_s: float = 0.0
    checkpoint_s: float = 0.0
    monitor_s: float = 0.0
    world_size: int = 1
    surroundings: list[dict[str, Any]] = field(default_factory=list)
    energy_joules: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    peak_reserved_bytes: int = 0
    peak_memory_kind: str = ""
    loss_extra_bytes: int = 0
    last_good: dict[str, float] | None = None

    def is_unscored(self, cell: Cell) -> bool:
        """Return True if the last finished epoch is still to be evaluated."""
        done = len(self.history)
        return done > 0 and cell.is_evaluated_after(done) and "scores" not in self.history[-1]


class Diverged(RegbenchError):
    """The loss or the representations are not finite, or the embeddings have become a point: a
    result, not a defect.

    Attributes:
        what: `step` (from 1), `epoch`, `reason` and `last_good`: plain data for the record.
        progress: The progress of the run until then.
    """

    def __init__(self, label: str, step: int, epoch: int, reason: str, progress: Progress) -> None:
        """Name the method by its `label`, and where it diverged."""
        super().__init__(
            f"{label} diverged: {reason} in step {step} (epoch {epoch}); "
            "lower optimizer.base_lr or the method's weights"
        )
        self.what = dict(step=step, epoch=epoch, reason=reason, last_good=progress.last_good)
        self.progress = progress


def write_metrics(attempt: Attempt, progress: Progress) -> NamedFile | None:
    """Write the attempt's `metrics.jsonl`: a line for each finished epoch.

    Returns:
        Name and SHA-256 of the file; None without a finished epoch, when there is no file.
    """
    # A training that diverged in its first epoch has no numbers.
    if not progress.history:
        return None
    lines = [json.dumps(_six_digits(row)) + "\n" for row in progress.history]
    content = "".join(lines).encode()
    path = attempt.write("metrics.jsonl", content)
    return NamedFile(path.name, hashlib.sha256(content).hexdigest())


def _six_digits(value: Any) -> Any:
    """Round floats to six digits, also in dictionaries.

    Lists, which hold scores, stay as they are.
    """
    # Further digits are noise beyond what was measured, and noise does not compress.
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _six_digits(each) for name, each in value.items()}
    return value
