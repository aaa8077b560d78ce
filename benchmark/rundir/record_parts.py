"""Parts of a record: what a cell took and saw, its files, and the attempts that led to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, FiniteFloat

from regbench.files import Name

LARGEST = 1e100
Number = Annotated[FiniteFloat, Field(ge=-LARGEST, le=LARGEST)]
"""A measured number.

Squares of larger numbers, as in standard deviations, do not fit into a float.
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Time, memory and energy that a cell took; None where it was not measured, as for a network
    without training.

    Attributes:
        train_s: Seconds of training; checkpoints and evaluations are not counted.
        checkpoint_s: Seconds that training waited for checkpoints.
        monitor_s: Seconds of evaluations while training.
        evaluate_s: Seconds of all evaluations after training.
        img_per_s: Images a second in training.
        step_ms: Milliseconds of a training step: here and below, the median over epochs of the
            medians over steps.
        data_ms: Milliseconds that a step waits for images, before `step_ms` begins.
        forward_ms: Milliseconds of the network's forward pass.
        loss_ms: Milliseconds of the loss with its gradient.
        backward_ms: Milliseconds of the network's backward pass.
        optimizer_ms: Milliseconds of the update of the weights.
        peak_memory_bytes: Peak memory of the process that needed most.
        peak_reserved_bytes: The same peak of what the allocator held.
        peak_memory_kind: The kind of memory that the two peaks count.
        loss_extra_bytes: Peak memory of value and gradient of the loss alone beyond embeddings and
            gradients, as `regbench cost` measures it; of the process that needed most.
        energy_gpu_joules: Energy of all GPUs in training.
        energy_cpu_joules: Energy of the whole machine's processors in training.
    """

    train_s: Number | None = None
    checkpoint_s: Number | None = None
    monitor_s: Number | None = None
    evaluate_s: Number | None = None
    img_per_s: Number | None = None
    step_ms: Number | None = None
    data_ms: Number | None = None
    forward_ms: Number | None = None
    loss_ms: Number | None = None
    backward_ms: Number | None = None
    optimizer_ms: Number | None = None
    peak_memory_bytes: Number | None = None
    peak_reserved_bytes: Number | None = None
    peak_memory_kind: str | None = None
    loss_extra_bytes: Number | None = None
    energy_gpu_joules: Number | None = None
    energy_cpu_joules: Number | None = None


@dataclass(frozen=True)
class NamedFile:
    """A file beside the record that belongs to it.

    Attributes:
        file: Name of the file.
        sha256: The digest of its content.
    """

    file: Name
    sha256: str


@dataclass(frozen=True)
class Saved(NamedFile):
    """A file of tensors.

    Attributes:
        step: The number of steps done when it was written, which is in its name.
    """

    step: int


@dataclass(frozen=True)
class ImageSource:
    """The images that a cell saw.

    Attributes:
        source: The data set that they come from.
        content_sha256: The digest of each split, by its name.
    """

    source: str
    content_sha256: dict[Name, str]


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """An attempt at a run.

    Attributes:
        number: 1 for the first.
        started: When it began, ISO 8601.
        finished: When it ended, ISO 8601.
        ended: Kind of its end, such as "done" or "failed".
        error: The error that stopped it, if one did.
        hostname: The machine.
        from_step: The step of the checkpoint that it went on from.
    """

    number: int | None = None
    started: str | None = None
    finished: str | None = None
    ended: str | None = None
    error: str | None = None
    hostname: str | None = None
    from_step: int | None = None


def finite_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a history's row that can be averaged, by name."""
    found = {}
    for name, value in row.items():
        # To Python, True is an int.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and abs(value) <= LARGEST:
            found[name] = float(value)
    return found
