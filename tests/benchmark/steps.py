"""What happens in the midst of a training."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.checkpoint import save_checkpoint
from regbench.benchmark.rundir.directory import run_directory
from regbench.benchmark.rundir.interruption import Interrupted, Interruption
from regbench.benchmark.rundir.record_parts import Saved
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.training import checkpoint_writer
from regbench.benchmark.training.step import Step

Interrupt = Callable[[pytest.MonkeyPatch], None]


def before_steps(patch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call `act` before each step of this process, with the step's number from 0."""
    step, numbers = Step.__call__, itertools.count()

    def acting(self: Step, *views: Any) -> Any:
        act(next(numbers))
        return step(self, *views)

    patch.setattr(Step, "__call__", acting)


def signal_at(step: int) -> Interrupt:
    """What sends this process a signal before a step, whose number counts from 0."""

    def tell(number: int) -> None:
        if number == step:
            os.kill(os.getpid(), signal.SIGUSR1)

    return lambda patch: before_steps(patch, tell)


def kill_while_it_writes(patch: pytest.MonkeyPatch, checkpoint: int) -> None:
    """Kill the process when it writes a checkpoint of this number."""
    written: list[int] = []

    def save(*arguments: Any) -> Saved:
        written.append(1)
        if len(written) == checkpoint:
            raise KeyboardInterrupt
        return save_checkpoint(*arguments)

    patch.setattr(checkpoint_writer, "save_checkpoint", save)


def interrupt_run(
    cell: Cell, runtime: Runtime, interrupt: Interrupt, kind: type[BaseException] = Interrupted
) -> Path:
    """Run a cell until it is interrupted, by a signal or by another kind of error.

    Returns:
        The run directory.
    """
    interruption = Interruption()
    with pytest.MonkeyPatch.context() as patch, interruption.listening(signal.SIGUSR1):
        interrupt(patch)
        with pytest.raises(kind):
            run_cell(cell, runtime, "disturbed", interruption=interruption)
    torch.randn(3)  # what else the process draws does not matter
    return run_directory(runtime, "disturbed", cell)
