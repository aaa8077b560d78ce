"""Adds what the steps of a training leave to its progress: losses, times, memory and energy."""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from regbench.benchmark.machine.meters import ENERGY_KINDS, EnergyMeter, PeakMemory, Stopwatch
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.training.distributed import World
from regbench.benchmark.training.embedding_metrics import (
    COLLAPSED_SPREAD,
    feature_spread,
    spread_metrics,
)
from regbench.benchmark.training.run_progress import Diverged, Progress
from regbench.benchmark.training.step import PARTS, Stepped
from regbench.methods import Engine
from regbench.methods.forms.engine import Shard

log = logging.getLogger("regbench")

_LAPS = ("data", *PARTS)
_LOGGED = ("loss", "alignment", "uniformity", "effective_rank", "feature_spread")


class Journal:
    """Adds numbers to a `Progress`; what steps leave stays on the device until `look`, which makes
    the host wait.

    Attributes:
        clock: Stopwatch of the device.
    """

    def __init__(
        self,
        cell: Cell,
        progress: Progress,
        device: torch.device,
        world: World,
        engine: Engine,
        attempt: Attempt | None,
    ) -> None:
        """Begin to measure on this rank's device.

        The first rank, with the attempt, shows others the progress.
        """
        self.clock = Stopwatch(device)
        self._cell, self._progress, self._attempt = cell, progress, attempt
        self._device, self._world, self._engine = device, world, engine
        self._energy = EnergyMeter(device)
        self._epoch_began_s = 0.0
        self._waits_since: Any = None
        self._losses: list[dict[str, Tensor]] = []
        self._laps: list[list[Any]] = []
        self._views_NQ: Sequence[Tensor] = ()
        self.restart_meters()

    def restart_meters(self) -> None:
        """Count memory and energy from now on: what was spent until now is not training's."""
        if self._device.type == "cuda":
            # Blocks that evaluations left would count as reserved by training.
            torch.cuda.empty_cache()
        self._memory = PeakMemory(self._device)
        self._joules = self._energy.read_joules()

    def begin_epoch(self) -> None:
        """Start the clock of the present epoch, or of what is left of it."""
        self._epoch_began_s = time.perf_counter() - self._progress.epoch_s
        self.wait_for_batch()

    def wait_for_batch(self) -> None:
        """Mark the moment from which the loop waits for images."""
        self._waits_since = self.clock.mark()

    def leave_out(self, seconds: float) -> None:
        """Exclude seconds that were spent on something else from the present epoch."""
        self._epoch_began_s += seconds

    def note(self, stepped: Stepped) -> None:
        """Keep what a step left, without making the host wait for it."""
        self._losses.append(stepped.terms)
        self._laps.append([self._waits_since, *stepped.marks])
        self._views_NQ = stepped.views_NQ

    def look(self, steps_per_epoch: int) -> None:
        """Add what was noted to the progress.

        Raises:
            Diverged: If a loss or an embedding is not finite, or the embeddings have collapsed.
        """
        cell, progress = self._cell, self._progress
        loss = self._add_losses(steps_per_epoch)  # waits until a GPU has done all steps
        progress.epoch_s = time.perf_counter() - self._epoch_began_s
        spread = feature_spread(self._gather(self._views_NQ[0]))
        # While the rate still rises, the embeddings of a sound run may lie close together.
        is_warm = progress.step > cell.optimizer.warmup(steps_per_epoch)
        if not math.isfinite(spread):
            self._end_diverged(progress.step, steps_per_epoch, "the embeddings are not finite")
        if is_warm and spread < COLLAPSED_SPREAD:
            why = f"the embeddings have collapsed to nearly one point (feature spread {spread:.4f})"
            self._end_diverged(progress.step, steps_per_epoch, why)
        progress.last_good = {"step": progress.step, "loss": loss, "feature_spread": spread}
        for marks in self._laps:
            laps_ms = [self.clock.milliseconds(*lap) for lap in itertools.pairwise(marks)]
            progress.laps_ms.append(laps_ms)
        self._losses, self._laps = [], []
        # The rank that needed most counts, over all attempts on devices of one kind.
        memory = self._memory
        if progress.peak_memory_kind != memory.kind:
            progress.peak_memory_bytes = progress.peak_reserved_bytes = 0
        allocated, reserved = self._world.maximum(memory.read_bytes(), memory.read_reserved_bytes())
        progress.peak_memory_bytes = max(progress.peak_memory_bytes, int(allocated))
        progress.peak_reserved_bytes = max(progress.peak_reserved_bytes, int(reserved))
        progress.peak_memory_kind = memory.kind
        joules, before, total = self._energy.read_joules(), self._joules, progress.energy_joules
        for kind in ENERGY_KINDS:
            new = joules.get(kind, 0.0) - before.get(kind, 0.0)
            # Every rank has a GPU of its own, but the ranks of a machine share its processors.
            is_counted = kind == "gpu" or self._world.local_rank == 0
            new = self._world.sum(new if is_counted else 0.0)
            if new:
                total[kind] = total.get(kind, 0.0) + new
        self._joules = joules
        if self._attempt is not None:
            steps = cell.epochs * steps_per_epoch
            done = (progress.step - 1) % steps_per_epoch + 1
            img_per_s = done * cell.batch_size / progress.epoch_s
            self._attempt.update(
                epoch=len(progress.history),
                epochs=cell.epochs,
                step=progress.step,
                steps=steps,
                img_per_s=img_per_s,
                remaining_s=(steps - progress.step) * cell.batch_size / img_per_s,
            )

    def end_epoch(self, learning_rate: float, steps: int) -> None:
        """Add the epoch to the history; `look` must have seen all of its steps."""
        cell, progress = self._cell, self._progress
        terms = {name: total / steps for name, total in progress.sums.items()}
        views_NQ = [self._gather(view_NQ) for view_NQ in self._views_NQ[:2]]
        row: dict[str, Any] = {
            "epoch": len(progress.history) + 1,
            "loss": sum(terms.values()),
            # Only the first rank writes the history, so the others skip the eigenvalues.
            **(spread_metrics(*views_NQ) if self._world.rank == 0 else {}),
            "learning_rate": learning_rate,
            "epoch_s": progress.epoch_s,
            "images": steps * cell.batch_size,
            # A step begins when its images are there.
            "step_ms": statistics.median(sum(laps_ms[1:]) for laps_ms in progress.laps_ms),
        }
        for name, laps_ms in zip(_LAPS, zip(*progress.laps_ms, strict=True), strict=True):
            # The median, because single steps wait for a checkpoint or for other processes.
            row[f"{name}_ms"] = statistics.median(laps_ms)
        row["terms"] = terms
        progress.history.append(row)
        progress.sums, progress.laps_ms, progress.epoch_s = {}, [], 0.0
        if self._attempt is not None:
            self._attempt.update(epoch=row["epoch"])
            numbers = ", ".join(f"{name.replace('_', ' ')} {row[name]:.4g}" for name in _LOGGED)
            where = f"{cell.label} epoch {row['epoch']}/{cell.epochs}"
            log.info("%s: %s, %.0f img/s", where, numbers, row["images"] / row["epoch_s"])

    def _add_losses(self, steps_per_epoch: int) -> float:
        """Add up the addends of the noted steps' losses; return the last step's loss."""
        progress = self._progress
        noted: list[Tensor] = []
        for losses in self._losses:
            noted += losses.values()
        # One copy for all steps: each copy from a GPU makes the host wait.
        values = iter(torch.stack(noted).tolist())
        first = progress.step - len(self._losses) + 1
        for step, losses in enumerate(self._losses, start=first):
            terms = {name: next(values) for name in losses}
            if not math.isfinite(sum(terms.values())):
                self._end_diverged(step, steps_per_epoch, f"the loss is not finite ({terms})")
            for name, value in terms.items():
                progress.sums[name] = progress.sums.get(name, 0.0) + value
        return float(sum(terms.values()))

    def _gather(self, view_NQ: Tensor) -> Tensor:
        """Return the embeddings of all ranks."""
        return Shard.of(view_NQ, self._engine).gather(view_NQ)

    def end_broken(self, reason: str, steps_per_epoch: int) -> NoReturn:
        """End a run whose next step failed.

        Raises:
            Diverged: Always; of an earlier step if that one's loss is not finite.
        """
        if self._losses:
            self._add_losses(steps_per_epoch)
        self._end_diverged(self._progress.step + 1, steps_per_epoch, reason)

    def _end_diverged(self, step: int, steps_per_epoch: int, reason: str) -> NoReturn:
        self._progress.epoch_s = time.perf_counter() - self._epoch_began_s
        epoch = (step - 1) // steps_per_epoch + 1
        raise Diverged(self._cell.label, step, epoch, reason, self._progress)
