"""Writes the checkpoints of a training in a thread, while training goes on."""

from __future__ import annotations

import copy
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from regbench.benchmark.rundir.checkpoint import save_checkpoint
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.rundir.record_parts import Saved
from regbench.benchmark.training.run_progress import Progress, write_metrics


class CheckpointWriter:
    """Writes one checkpoint at a time; a context manager that waits for the last.

    Attributes:
        saved: The last checkpoint that is known to be on disk.
    """

    def __init__(self, attempt: Attempt | None) -> None:
        """Write with the right of an attempt; on ranks without one nothing is written."""
        self.saved: Saved | None = None
        self._attempt = attempt
        # One at a time: two would hold the weights in memory twice.
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[Saved] | None = None
        self._last_s = time.monotonic()

    def is_due(self, minutes: float) -> bool:
        """Return True if the last checkpoint is at least `minutes` old."""
        return time.monotonic() - self._last_s >= 60 * minutes

    def begin(
        self,
        network: nn.Module,
        optimizer: Optimizer,
        progress: Progress,
        teacher: nn.Module | None = None,
    ) -> float:
        """Begin to write a checkpoint, once the one before is written.

        Returns:
            The seconds that training waited; they are added to `progress.checkpoint_s`.
        """
        began_s = time.perf_counter()
        if self._attempt is not None:
            self.wait()
            self._attempt.check()
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
            if teacher is not None:
                state["teacher"] = teacher.state_dict()
            # Training changes the tensors and the progress while the thread writes.
            state = tree_map_only(Tensor, lambda each: each.detach().to("cpu", copy=True), state)
            written = copy.deepcopy(progress)
            self._writing = self._thread.submit(_write, self._attempt, state, written)
            self._attempt.beat()
        self._last_s = time.monotonic()
        waited_s = time.perf_counter() - began_s
        # This checkpoint does not count itself: the next one and the record do.
        progress.checkpoint_s += waited_s
        return waited_s

    def wait(self) -> Saved | None:
        """Wait for the checkpoint that is being written, and return the last.

        Raise what went wrong with it.
        """
        if self._writing is not None:
            self.saved, self._writing = self._writing.result(), None
        return self.saved

    def __enter__(self) -> CheckpointWriter:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for the thread."""
        self._thread.shutdown()


def _write(attempt: Attempt, state: dict[str, Any], progress: Progress) -> Saved:
    """Write a checkpoint, and then the metrics that it holds."""
    state = {**state, "progress": vars(progress)}
    saved = save_checkpoint(attempt.directory, attempt.number, progress.step, state)
    write_metrics(attempt, progress)
    return saved
