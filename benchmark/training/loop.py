"""The training loop: one for all methods, on one process or many."""

from __future__ import annotations

import copy
import logging
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from regbench.benchmark.evaluate.features import NotFinite
from regbench.benchmark.evaluate.monitor import monitored_scores
from regbench.benchmark.machine.compute import Compute
from regbench.benchmark.rundir.checkpoint import load_checkpoint
from regbench.benchmark.rundir.interruption import Interrupted, Interruption
from regbench.benchmark.rundir.lease import Attempt, LeaseLost
from regbench.benchmark.rundir.record import Score
from regbench.benchmark.rundir.record_parts import Saved
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.training.assembly import build_loader, build_network, build_teacher
from regbench.benchmark.training.checkpoint_writer import CheckpointWriter
from regbench.benchmark.training.distributed import (
    Agreement,
    World,
    distributed_network,
    synchronize_batch_norm,
)
from regbench.benchmark.training.journal import Journal
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.run_progress import Diverged, Progress, write_metrics
from regbench.benchmark.training.sinks import Sinks
from regbench.benchmark.training.step import Step
from regbench.datasets.loading.loaders import PretrainingLoader
from regbench.errors import RegbenchError
from regbench.methods import Engine, NotComputable
from regbench.methods.base import numerical_failures

log = logging.getLogger("regbench")

LOGGING_STEPS = 50
"""Steps between looks at the loss, which a GPU has to stop for."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The results of a training.

    Attributes:
        network: The network with its last weights, on the device.
        progress: The history and the cost.
        checkpoint: The file of the weights; None for a network without training, and on every rank
            but the first.
    """

    network: SiameseNetwork
    progress: Progress
    checkpoint: Saved | None


def train(
    cell: Cell,
    compute: Compute,
    directory: Path,
    world: World,
    attempt: Attempt | None,
    interruption: Interruption,
    surroundings: dict[str, Any],
) -> Trained:
    """Train a cell to the end, from its last checkpoint if it has one.

    A resumed run goes on in the middle of an epoch and sees the same images; with the same number
    of threads on a CPU it ends with the same weights to the bit, since every random number depends
    on the seed and the step alone.

    Only the first rank has the attempt, which is the right to write into the run directory, and
    `surroundings`, which describe its machine and versions.

    Raises:
        Diverged: If the loss is not finite or the embeddings collapse.
        Interrupted: If a signal asked to stop; a checkpoint was written.
        LeaseLost: If another process has taken over the run.
        RegbenchError: If the data set or batch size is refused.
    """
    return _Training(cell, compute, directory, world, attempt, interruption, surroundings).run()


@dataclass(eq=False)
class _Training:
    cell: Cell
    compute: Compute
    directory: Path
    world: World
    attempt: Attempt | None
    interruption: Interruption
    surroundings: dict[str, Any]

    def __post_init__(self) -> None:
        cell, compute, world, attempt = self.cell, self.compute, self.world, self.attempt
        for name in ("batch_size", "micro_batch_size"):
            size = getattr(cell, name)
            if size is not None and size % world.size:
                raise RegbenchError(
                    f"{name}={size} cannot be shared equally between {world.size} processes"
                )
        self.network = build_network(cell, compute.device)
        self.teacher = build_teacher(cell, self.network)
        # For evaluations while training. A backbone whose BN layers belong to several processes
        # cannot be copied, and on the device it would count as memory of the training.
        self.spare_backbone: nn.Module | None = None
        if attempt is not None and cell.evaluation.while_training:
            self.spare_backbone = copy.deepcopy(self.network.backbone).cpu()
        for network in filter(None, (self.network, self.teacher)):
            synchronize_batch_norm(network, world, compute.device)
        self.optimizer = cell.optimizer.build_clipping(self.network.parameters())
        self.progress = Progress()
        self.checkpoints = CheckpointWriter(attempt)
        self._resume()
        # A run may go on with another number of processes.
        self.progress.world_size = world.size
        self.engine = Engine(
            form=compute.runtime.loss_form,
            group=world.group,
            even=True,
            draw_seed=self._step_seed,
            compile=compute.runtime.compile,
        )
        self.journal = Journal(cell, self.progress, compute.device, world, self.engine, attempt)
        self.agreement = Agreement(world)
        # In place, so that weights have the same names in a checkpoint as without compilation.
        if compute.runtime.compile:
            self.network.compile()
            if self.teacher is not None:
                self.teacher.compile()

    def _resume(self) -> None:
        """Go on from the last checkpoint, which the first rank reads for all."""
        loaded = load_checkpoint(self.directory) if self.world.rank == 0 else None
        loaded = self.world.state_from_first(loaded, self.compute.device)
        if loaded is None:
            return
        state, saved = loaded
        self.network.load_state_dict(state["network"])
        if self.teacher is not None:
            self.teacher.load_state_dict(state["teacher"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.checkpoints.saved = saved
        if self.attempt is not None:
            self.attempt.began(step=saved.step)
            # A kill may have come between the checkpoint and its metrics.
            write_metrics(self.attempt, self.progress)

    def run(self) -> Trained:
        cell, progress = self.cell, self.progress
        done = len(progress.history) - progress.is_unscored(cell)
        has_rows = self.attempt is not None and done < cell.epochs
        names = self.compute.runtime.sinks if has_rows else ()
        with self.checkpoints, Sinks(names, cell, self.directory, done + 1) as self.sinks:
            self.network.train()
            if progress.is_unscored(cell):
                # The last attempt stopped in this evaluation, after it wrote a checkpoint.
                with self.interruption.deferred():
                    self._end_epoch(0, is_due=True)
            if len(progress.history) < cell.epochs:
                if self.surroundings not in progress.surroundings:
                    progress.surroundings.append(self.surroundings)
                loading = build_loader(cell, self.compute, self.world)
                with loading as loader, self.interruption.deferred():
                    self._train(loader)
            # A signal may have come while the last evaluation or checkpoint was at work.
            self._stop_if(self.world.maximum(self.interruption.requested)[0])
            saved = self.checkpoints.wait()
            return Trained(network=self.network, progress=progress, checkpoint=saved)

    def _train(self, loader: PretrainingLoader) -> None:
        """Train to the end of the last epoch."""
        cell, progress, journal = self.cell, self.progress, self.journal
        train_step, steps = self._prepare(loader), len(loader)
        while len(progress.history) < cell.epochs:
            epoch, done = divmod(progress.step, steps)
            stop, due = 0.0, 0.0
            bar: tqdm[Any] = tqdm(
                total=steps,
                initial=done,
                desc=f"{cell.label} epoch {epoch + 1}/{cell.epochs}",
                leave=False,
                unit="batch",
                disable=self.world.rank > 0 or not sys.stderr.isatty(),
            )
            journal.begin_epoch()
            with bar, loader.epoch(epoch, first=done) as batches:
                for batch in batches:
                    # Step: forward, loss, backward, update.
                    rate = self._begin_step(steps)
                    try:
                        with numerical_failures("the step"):
                            stepped = train_step(*batch)
                    except NotComputable as error:
                        journal.end_broken(str(error), steps)
                    progress.step += 1
                    # Log. At the end of an epoch all ranks wait for each other anyway, so they
                    # wait for the answer too.
                    journal.note(stepped)
                    is_last = progress.step % steps == 0
                    stop, due = self._agree(now=is_last)
                    if is_last or stop or due or progress.step % LOGGING_STEPS == 0:
                        journal.look(steps)
                    # Save and stop; after the last step `_end_epoch` does both.
                    if is_last:
                        journal.end_epoch(rate, steps)
                    elif stop or due:
                        journal.leave_out(self._save())
                        self._stop_if(stop)
                    journal.wait_for_batch()
                    bar.update()
            del batch, stepped  # else they take memory of the device while the epoch is evaluated
            self._end_epoch(stop, is_due=bool(due))

    def _end_epoch(self, stop: float, *, is_due: bool) -> None:
        """Evaluate, log, save, stop."""
        progress, epochs = self.progress, len(self.progress.history)
        if not stop and progress.is_unscored(self.cell):
            stop = self._evaluate()
        if not progress.is_unscored(self.cell):
            self.sinks.write(progress.history[-1])
        elif self.checkpoints.saved is not None and self.checkpoints.saved.step == progress.step:
            # The evaluation was resumed and stopped again: the checkpoint before it still holds.
            self._stop_if(stop)
        is_due = is_due or epochs % self.compute.runtime.checkpoint_epochs == 0
        if stop or is_due or epochs == self.cell.epochs:
            self._save()
        self._stop_if(stop)

    def _begin_step(self, steps: int) -> float:
        """Set the random generators and the learning rate of the next step; return the rate."""
        # What a step draws depends on nothing that ran before it, in any process. Ranks have
        # numbers of their own, or stochastic layers would treat the images of all of them alike.
        # The generator of CPUs takes the lower 32 bits alone.
        own_bits = self.world.rank * 0x9E3779B1 % 2**32
        number = (self._step_seed() ^ own_bits) + (self.world.rank << 53)
        # torch.manual_seed takes a millisecond: it formats tracebacks for devices not in use.
        torch.default_generator.manual_seed(number)
        if self.compute.device.type == "cuda":
            torch.cuda.manual_seed_all(number)
        random.seed(number)
        # The global generator is the one that others may draw from; it takes 32 bits at a time.
        np.random.seed([number % 2**32, number >> 32])
        cell = self.cell
        rate = cell.optimizer.learning_rate(cell.batch_size, self.progress.step, steps, cell.epochs)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        return rate

    def _agree(self, *, now: bool) -> tuple[float, float]:
        """Return the signal that asks any rank to stop or 0, and whether a checkpoint is due.

        See `Agreement`.
        """
        is_due = self.checkpoints.is_due(self.compute.runtime.checkpoint_minutes)
        is_lost = self.attempt is not None and bool(self.attempt.lost)
        stop, due, lost = self.agreement(self.interruption.requested, is_due, is_lost, now=now)
        if lost:
            if self.attempt is not None:
                self.attempt.check()
            raise LeaseLost(f"{self.directory}: the first rank has lost the run")
        return stop, due

    def _step_seed(self) -> int:
        """Return the number that all draws of the present step depend on, the same on all ranks."""
        # Runs of seeds below 4,294 share no draws as long as they have fewer steps than this prime.
        return self.cell.seed * 1_000_003 + self.progress.step

    def _prepare(self, loader: PretrainingLoader) -> Step:
        """Refuse what cannot be trained, and return the step."""
        cell, progress = self.cell, self.progress
        cell.optimizer.refuse_long_warmup(len(loader), cell.epochs)
        steps = cell.epochs * len(loader)
        if progress.step:
            log.info("%s: goes on after step %d of %d", cell.label, progress.step, steps)
        network: nn.Module = self.network
        if self.world.group is not None:
            is_static = cell.micro_batch_size is None
            group, device = self.world.group, self.compute.device
            network = distributed_network(network, group, device, is_static=is_static)
        step = Step(
            network=network,
            optimizer=self.optimizer,
            method=cell.method,
            engine=self.engine,
            precision=cell.precision,
            global_views=cell.augmentation.global_views,
            micro_batch_size=cell.micro_batch_size and cell.micro_batch_size // self.world.size,
            mark=self.journal.clock.mark,
            labelled=cell.baseline,
            is_asymmetric=cell.network.is_asymmetric,
            teacher=self.teacher,
            done=lambda: progress.step / steps,
        )
        # A resumed run has this number from its checkpoint.
        if not progress.loss_extra_bytes:
            size = cell.batch_size // self.world.size, cell.output_dim, cell.augmentation.count
            (extra,) = self.world.maximum(step.loss_extra_bytes(*size, self.compute.device))
            progress.loss_extra_bytes = int(extra)
        self.journal.restart_meters()
        return step

    def _evaluate(self) -> int:
        """Add scores to the finished epoch: the first rank finds them, the others wait.

        Returns:
            The signal that asked to stop meanwhile, after which the epoch has no scores until the
            run is resumed; or 0.

        Raises:
            Diverged: If the representations are not finite.
        """
        cell, progress, epochs = self.cell, self.progress, len(self.progress.history)
        began_s = time.perf_counter()
        scores: list[Score] = []
        stop: int = 0
        reason = ""
        if self.attempt is not None and self.spare_backbone is not None:
            names = " and ".join(cell.evaluation.while_training)
            self.attempt.update(stage="monitor", detail=f"{names} after epoch {epochs}")
            try:
                with self.interruption.at_once():
                    given = cell, self.network, self.spare_backbone, self.compute, self.attempt
                    scores = monitored_scores(*given)
            except Interrupted as interrupted:
                stop = interrupted.signal
                log.info("%s; the evaluation is repeated on resumption", interrupted)
            except NotFinite as error:
                reason = str(error)
            self.attempt.update(stage="pretrain", detail="")
        # A number of NumPy's, as a plug-in may give, would make the checkpoint unreadable.
        plain_scores = [{**asdict(score), "value": float(score.value)} for score in scores]
        stop, plain_scores, reason = self.world.from_first((stop, plain_scores, reason))
        progress.monitor_s += time.perf_counter() - began_s
        if reason:
            raise Diverged(cell.label, progress.step, epochs, reason, progress)
        if not stop:
            progress.history[-1]["scores"] = plain_scores
        if scores:
            found = ", ".join(score.text for score in scores)
            log.info("%s epoch %d/%d: %s", cell.label, epochs, cell.epochs, found)
        self.journal.restart_meters()
        return stop

    def _save(self) -> float:
        return self.checkpoints.begin(self.network, self.optimizer, self.progress, self.teacher)

    def _stop_if(self, signal: float) -> None:
        """End the run if a signal asks for it, once its checkpoint is written."""
        if signal:
            self.checkpoints.wait()
            raise Interrupted(int(signal))
