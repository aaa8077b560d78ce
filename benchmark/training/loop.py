"""The training loop: one for all methods, on one process or many."""

from __future__ import annotations

import copy
import hashlib
import inspect
import itertools
import json
import logging
import math
import random
import statistics
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only
from tqdm import tqdm

from regbench.benchmark.compute import Compute
from regbench.benchmark.evaluate.features import NotFinite
from regbench.benchmark.evaluate.monitor import Monitor
from regbench.benchmark.meters import ENERGY_KINDS, EnergyMeter, PeakMemory, Stopwatch
from regbench.benchmark.rundir.checkpoint import Damaged, load_checkpoint, read_saved, save_checkpoint
from regbench.benchmark.rundir.interruption import Interrupted, Interruption
from regbench.benchmark.rundir.lease import Attempt, LeaseLost
from regbench.benchmark.rundir.record import NamedFile, Saved, Score
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.training.distributed import Agreement, World, synchronize_batch_norm
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.sinks import Sinks
from regbench.benchmark.training.spread import COLLAPSED_SPREAD, feature_spread, spread_metrics
from regbench.benchmark.training.step import PARTS, Step, Stepped
from regbench.datasets.loading.loaders import PretrainingLoader
from regbench.errors import RegbenchError
from regbench.methods import Engine
from regbench.methods.engine import Shard

log = logging.getLogger("regbench")

LOGGING_STEPS = 50
"""Steps between looks at the loss, which a GPU has to stop for."""

_LAPS = ("data", *PARTS)
# Synchronised BN gives every rank the same buffers. torch renamed the setting; the old name warns where there is a new.
_SETTINGS = inspect.signature(DistributedDataParallel.__init__).parameters
_KEEP_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _SETTINGS else "broadcast_buffers": False
}


@dataclass(kw_only=True)
class Progress:
    """How far training is and what it has cost; with the weights, all of a checkpoint.

    Attributes:
        step: Steps done.
        history: A dictionary of numbers for each finished epoch, with its scores where it was evaluated.
        sums: Sums of the loss's addends over the steps of the present epoch.
        laps_ms: Milliseconds of each part of each step of the present epoch.
        epoch_s: Seconds of the present epoch; checkpoints and evaluations are not counted.
        checkpoint_s: Seconds spent on checkpoints.
        monitor_s: Seconds spent on evaluations while training.
        world_size: Processes that train.
        energy_joules: Over all ranks, by kind; see `EnergyMeter`.
        peak_memory_bytes: Of the rank that needed most, over all attempts.
        peak_reserved_bytes: The same of what the allocator held.
        peak_memory_kind: What the two count.
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
    energy_joules: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    peak_reserved_bytes: int = 0
    peak_memory_kind: str = ""
    loss_extra_bytes: int = 0
    last_good: dict[str, float] | None = None

    def is_unscored(self, cell: Cell) -> bool:
        """Tell whether the last finished epoch is still to be evaluated."""
        done = len(self.history)
        return done > 0 and cell.is_evaluated_after(done) and "scores" not in self.history[-1]


class Diverged(RegbenchError):
    """The loss or the representations are not finite, or the embeddings have become a point: a result, not a defect.

    Attributes:
        what: `step` (from 1), `epoch`, `reason` and `last_good`, plain data for the record.
        progress: Of the run until then.
    """

    def __init__(self, label: str, step: int, epoch: int, reason: str, progress: Progress) -> None:
        """For the method `label`."""
        super().__init__(
            f"{label} diverged: {reason} in step {step} (epoch {epoch}); "
            "lower optimizer.base_lr or the method's weights"
        )
        self.what = {"step": step, "epoch": epoch, "reason": reason, "last_good": progress.last_good}
        self.progress = progress


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What training leaves.

    Attributes:
        network: With its last weights, on the device.
        progress: The history and the cost.
        checkpoint: Where the weights are kept; None of a network without training, and on every rank but the first.
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
) -> Trained:
    """Train a cell to the end, from its last checkpoint if it has one.

    A resumed run goes on in the middle of an epoch and sees the same images; with the same number of threads on a CPU
    it ends with the same weights to the bit, since every random number depends on the seed and the step alone.

    Args:
        cell: What to train.
        compute: On what.
        directory: Run directory; checkpoints and the history are written there.
        world: The processes that train.
        attempt: The right to write; None on every rank but the first.
        interruption: Tells when to stop.

    Returns:
        The trained network and what was measured.

    Raises:
        Diverged: If the loss is not finite or the embeddings collapse.
        Interrupted: If a signal asked to stop; a checkpoint was written.
        LeaseLost: If another process has taken over the run.
        RegbenchError: If the data set or batch size is refused.
    """
    return _Training(cell, compute, directory, world, attempt, interruption).run()


class _Training:
    def __init__(
        self,
        cell: Cell,
        compute: Compute,
        directory: Path,
        world: World,
        attempt: Attempt | None,
        interruption: Interruption,
    ) -> None:
        self.cell, self.compute, self.directory = cell, compute, directory
        self.world, self.attempt, self.interruption = world, attempt, interruption
        self.engine = Engine(
            form=compute.runtime.loss_form,
            group=world.group,
            even=True,
            draw_seed=self._step_seed,
            compile=compute.runtime.compile,
        )
        for what, size in (("batch_size", cell.batch_size), ("micro_batch_size", cell.micro_batch_size)):
            if size is not None and size % world.size:
                raise RegbenchError(f"{what}={size} cannot be shared equally between {world.size} processes")
        device = compute.device
        self.memory, self.energy, self.clock = PeakMemory(device), EnergyMeter(device), Stopwatch(device)
        self.network = SiameseNetwork(
            cell.network, cell.embedding_dim, cell.dataset.channels, cell.dataset.image_size, cell.seed
        )
        self.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.monitor: Monitor | None = None
        if attempt is not None and cell.evaluation.while_training:
            self.monitor = Monitor(cell, self.network, compute, attempt)
        synchronize_batch_norm(self.network, world, device)
        group = world.group if compute.runtime.shard_optimizer else None
        self.optimizer = cell.optimizer.build_clipping(self.network.parameters(), group)
        self.agreement = Agreement(world)
        self.progress = Progress()
        self._saved: Saved | None = None
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[Saved] | None = None
        self._resume()
        self.progress.world_size = world.size
        if compute.runtime.compile:
            self.network.compile()
        # Read again after each report, so that only what is new is added to the checkpoint's sums.
        self._spent_joules = self.energy.read_joules()
        self._written_s = time.monotonic()

    def _resume(self) -> None:
        """Take up the last checkpoint; every rank the same file."""
        directory, device = self.directory, self.compute.device
        loaded = load_checkpoint(directory, device) if self.world.rank == 0 else None
        saved: Saved | None = self.world.from_first(loaded and loaded[1])
        if saved is None:
            return
        try:
            state = loaded[0] if loaded else read_saved(directory, saved, device)
        except Damaged as error:
            raise RegbenchError(
                f"{directory}: not all ranks see {saved.file} as the first does ({error}); is the folder shared?"
            ) from error
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self._saved = saved
        if self.attempt is not None:
            self.attempt.began(step=saved.step)
            write_metrics(self.attempt, self.progress)

    def run(self) -> Trained:
        done = len(self.progress.history) - self.progress.is_unscored(self.cell)
        names = self.compute.runtime.sinks if self.attempt is not None and done < self.cell.epochs else ()
        with self._writer, Sinks(names, self.cell, self.directory, done + 1) as self.sinks:
            self._train()
            return Trained(network=self.network, progress=self.progress, checkpoint=self._written())

    def _train(self) -> None:
        cell, world, progress = self.cell, self.world, self.progress
        self.network.train()
        if progress.is_unscored(cell):  # stopped in its evaluation, with a checkpoint
            with self.interruption.deferred():
                self._stop(self._evaluate())
                self.sinks.write(progress.history[-1])
                self._checkpoint()
        if len(progress.history) < cell.epochs:
            loader = PretrainingLoader(
                cell.dataset,
                cell.augmentation,
                data_dir=self.compute.data_dir,
                batch_size=cell.batch_size // world.size,
                seed=cell.seed,
                device=self.compute.device,
                backend=self.compute.runtime.loader,
                workers=self.compute.workers,
                rank=world.rank,
                world_size=world.size,
                parts=cell.batch_size // (cell.micro_batch_size or cell.batch_size),
                # What autocast would do to them, in half the memory.
                dtype=torch.bfloat16 if cell.precision == "bf16" else torch.float32,
            )
            with loader, self.interruption.deferred():
                cell.optimizer.refuse_long_warmup(len(loader), cell.epochs)
                if progress.step:
                    log.info("%s: goes on after step %d of %d", cell.label, progress.step, cell.epochs * len(loader))
                step = self._step()
                if not progress.loss_extra_bytes:
                    size = cell.batch_size // world.size, cell.embedding_dim, cell.augmentation.count
                    (extra,) = world.maximum(step.loss_extra_bytes(*size, self.compute.device))
                    progress.loss_extra_bytes = int(extra)
                self._leave_out()
                while len(progress.history) < cell.epochs:
                    self._epoch(step, loader)
        # What came while the last evaluation or checkpoint was at work.
        self._stop(self.world.maximum(self.interruption.requested)[0])

    def _step(self) -> Step:
        cell, world, device = self.cell, self.world, self.compute.device
        network: nn.Module = self.network
        if world.group is not None:
            network = DistributedDataParallel(
                network,
                device_ids=[device] if device.type == "cuda" else None,
                process_group=world.group,
                **_KEEP_BUFFERS,
                gradient_as_bucket_view=True,
                static_graph=cell.micro_batch_size is None,
            )
        return Step(
            network=network,
            optimizer=self.optimizer,
            method=cell.method,
            engine=self.engine,
            precision=cell.precision,
            global_views=cell.augmentation.global_views,
            micro_batch_size=cell.micro_batch_size and cell.micro_batch_size // world.size,
            mark=self.clock.mark,
        )

    def _epoch(self, step: Step, loader: PretrainingLoader) -> None:
        """Train to the end of the present epoch, evaluate the network if that is due, and write a checkpoint."""
        cell, progress = self.cell, self.progress
        epoch, done = divmod(progress.step, len(loader))
        title = f"{cell.label} epoch {epoch + 1}/{cell.epochs}"
        hidden = self.world.rank > 0 or not sys.stderr.isatty()
        began_s = time.perf_counter() - progress.epoch_s
        losses: list[dict[str, Tensor]] = []
        laps: list[list[Any]] = []
        stepped: Stepped | None = None
        stop = write = 0.0
        with (
            loader.epoch(epoch, first=done) as batches,
            tqdm(total=len(loader), initial=done, desc=title, leave=False, unit="batch", disable=hidden) as bar,
        ):
            waiting = self.clock.mark()
            for views_NCHW in batches:
                _seed(self._step_seed(), self.world.rank)
                lr = cell.optimizer.learning_rate(cell.batch_size, progress.step, len(loader), cell.epochs)
                for parameters in self.optimizer.param_groups:
                    parameters["lr"] = lr
                stepped = step(*views_NCHW)
                progress.step += 1
                losses.append(stepped.terms)
                laps.append([waiting, *stepped.marks])
                ends = progress.step % len(loader) == 0
                due = time.monotonic() - self._written_s >= 60 * self.compute.runtime.checkpoint_minutes
                lost = self.attempt is not None and bool(self.attempt.lost)
                # Every rank must come to the same decision in the same step.
                stop, write, superseded = self.agreement(self.interruption.requested, due, lost, now=ends)
                if superseded:
                    if self.attempt is not None:
                        self.attempt.check()
                    raise LeaseLost(f"{self.directory}: the first rank has lost the run")
                if ends or stop or write or progress.step % LOGGING_STEPS == 0:
                    progress.epoch_s = time.perf_counter() - began_s
                    self._look(losses, laps, stepped, len(loader))
                    losses, laps = [], []
                    if ends:
                        self._end_epoch(stepped, lr, len(loader))
                    elif stop or write:
                        began_s += self._checkpoint()
                        self._stop(stop)
                waiting = self.clock.mark()
                bar.update()
        if not stop and progress.is_unscored(cell):
            stop = self._evaluate()
        if not progress.is_unscored(cell):
            self.sinks.write(progress.history[-1])
        done = len(progress.history)
        if stop or write or done == cell.epochs or done % self.compute.runtime.checkpoint_epochs == 0:
            self._checkpoint()
        self._stop(stop)

    def _step_seed(self) -> int:
        """Return the number that all draws of the present step depend on, the same on all ranks."""
        return self.cell.seed * 1_000_003 + self.progress.step

    def _look(self, losses: list[dict[str, Tensor]], laps: list[list[Any]], stepped: Stepped, steps: int) -> None:
        """Take in what the last steps left on the device, and end the run if it has diverged."""
        cell, progress = self.cell, self.progress
        names = list(losses[0])
        values = torch.stack([torch.stack([terms[name] for name in names]) for terms in losses]).tolist()
        first = progress.step - len(losses) + 1
        for number, row in enumerate(values, start=first):
            if not math.isfinite(sum(row)):
                self._diverge(number, steps, f"the loss is not finite ({dict(zip(names, row, strict=True))})")
            for name, value in zip(names, row, strict=True):
                progress.sums[name] = progress.sums.get(name, 0.0) + value
        shard = Shard.of(stepped.views_NQ[0], self.engine)
        spread = feature_spread(shard.gather(stepped.views_NQ[0]))
        # While the rate still rises, the embeddings of a sound run may lie close together for a while.
        warm = progress.step > cell.optimizer.warmup(steps)
        if warm and spread < COLLAPSED_SPREAD:
            reason = f"the embeddings have collapsed to nearly one point (feature spread {spread:.4f})"
            self._diverge(progress.step, steps, reason)
        progress.last_good = {"step": progress.step, "loss": sum(values[-1]), "feature_spread": spread}
        progress.laps_ms += [
            [self.clock.milliseconds(start, end) for start, end in itertools.pairwise(marks)] for marks in laps
        ]
        memory, reserved = self.world.maximum(self.memory.read_bytes(), self.memory.read_reserved_bytes())
        progress.peak_memory_bytes = max(progress.peak_memory_bytes, int(memory))
        progress.peak_memory_kind = self.memory.kind
        progress.peak_reserved_bytes = max(progress.peak_reserved_bytes, int(reserved))
        self._count_energy()
        if self.attempt is not None:
            done = (progress.step - 1) % steps + 1
            img_per_s = done * cell.batch_size / progress.epoch_s
            self.attempt.update(
                epoch=len(progress.history),
                epochs=cell.epochs,
                step=progress.step,
                steps=cell.epochs * steps,
                img_per_s=img_per_s,
                remaining_s=(cell.epochs * steps - progress.step) * cell.batch_size / img_per_s,
            )

    def _count_energy(self) -> None:
        used = self.energy.read_joules()
        for kind in ENERGY_KINDS:
            # Every rank has a GPU of its own; the processors are their machine's.
            counted = kind == "gpu" or self.world.local_rank == 0
            new = self.world.sum((used.get(kind, 0.0) - self._spent_joules.get(kind, 0.0)) * counted)
            if new:
                self.progress.energy_joules[kind] = self.progress.energy_joules.get(kind, 0.0) + new
        self._spent_joules = used

    def _diverge(self, step: int, steps: int, reason: str) -> None:
        raise Diverged(self.cell.label, step, (step - 1) // steps + 1, reason, self.progress)

    def _end_epoch(self, stepped: Stepped, lr: float, steps: int) -> None:
        """Add the finished epoch to the history."""
        cell, progress = self.cell, self.progress
        shard = Shard.of(stepped.views_NQ[0], self.engine)
        means = {name: total / steps for name, total in progress.sums.items()}
        progress.history.append(
            {
                "epoch": len(progress.history) + 1,
                "loss": sum(means.values()),
                **spread_metrics(*(shard.gather(view_NQ) for view_NQ in stepped.views_NQ[:2])),
                "learning_rate": lr,
                "epoch_s": progress.epoch_s,
                "images": steps * cell.batch_size,
                "step_ms": statistics.median(sum(laps[1:]) for laps in progress.laps_ms),
                **{
                    f"{name}_ms": statistics.median(laps[i] for laps in progress.laps_ms)
                    for i, name in enumerate(_LAPS)
                },
                "terms": means,
            }
        )
        progress.sums, progress.laps_ms, progress.epoch_s = {}, [], 0.0
        if self.attempt is not None:
            self.attempt.update(epoch=len(progress.history))
            row = progress.history[-1]
            shown = ("loss", "alignment", "uniformity", "effective_rank", "feature_spread")
            numbers = ", ".join(f"{name.replace('_', ' ')} {row[name]:.4g}" for name in shown)
            img_per_s = row["images"] / row["epoch_s"]
            log.info("%s epoch %d/%d: %s, %.0f img/s", cell.label, row["epoch"], cell.epochs, numbers, img_per_s)

    def _evaluate(self) -> int:
        """Add scores to the finished epoch: the first rank finds them, the others wait.

        Returns:
            The signal that asked to stop meanwhile, after which the epoch has no scores until the run is resumed; or 0.

        Raises:
            Diverged: If the representations are not finite.
        """
        cell, progress, began_s = self.cell, self.progress, time.perf_counter()
        scores: list[Score] = []
        stop, reason = 0, ""
        if self.attempt is not None and self.monitor is not None:
            names = " and ".join(cell.evaluation.while_training)
            self.attempt.update(stage="monitor", detail=f"{names} after epoch {len(progress.history)}")
            try:
                with self.interruption.at_once():
                    scores = self.monitor.scores(self.network)
            except Interrupted as interrupted:
                stop = interrupted.signal
                log.info("%s; the evaluation is repeated on resumption", interrupted)
            except NotFinite as error:
                reason = str(error)
            self.attempt.update(stage="pretrain", detail="")
        stop, plain_scores, reason = self.world.from_first((stop, [asdict(score) for score in scores], reason))
        progress.monitor_s += time.perf_counter() - began_s
        if reason:
            raise Diverged(cell.label, progress.step, len(progress.history), reason, progress)
        if not stop:
            progress.history[-1]["scores"] = plain_scores
            found = ", ".join(score.text for score in scores)
            if self.attempt is not None:
                log.info("%s epoch %d/%d: %s", cell.label, len(progress.history), cell.epochs, found)
        self._leave_out()
        return int(stop)

    def _leave_out(self) -> None:
        """Begin to count memory and energy: those spent until now are not training's."""
        if self.compute.device.type == "cuda":
            torch.cuda.empty_cache()
        self.memory = PeakMemory(self.compute.device)
        self._spent_joules = self.energy.read_joules()

    def _checkpoint(self) -> float:
        """Begin to write a checkpoint, once the one before is written; training goes on meanwhile.

        Returns:
            The seconds that training waited.
        """
        began_s = time.perf_counter()
        optimizer = self.optimizer.state_dict()  # with shared momentum, all ranks take part
        if self.attempt is not None:
            self._written()
            self.attempt.check()
            state = {"network": self.network.state_dict(), "optimizer": optimizer}
            # What is written must not change meanwhile.
            state = tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state)
            progress = copy.deepcopy(self.progress)
            self._writing = self._writer.submit(_write, self.attempt, {**state, "progress": vars(progress)}, progress)
            self.attempt.beat()
        self._written_s = time.monotonic()
        took_s = time.perf_counter() - began_s
        self.progress.checkpoint_s += took_s  # known to the next checkpoint and to the record
        return took_s

    def _written(self) -> Saved | None:
        """Wait for the checkpoint that is being written, and return the last one; raise what went wrong with it."""
        if self._writing is not None:
            self._saved, self._writing = self._writing.result(), None
        return self._saved

    def _stop(self, signal: float) -> None:
        """End the run if a signal asks for it, once its checkpoint is written."""
        if signal:
            self._written()
            raise Interrupted(int(signal))


def _write(attempt: Attempt, state: dict[str, Any], progress: Progress) -> Saved:
    """Write a checkpoint, and then the metrics that it holds."""
    saved = save_checkpoint(attempt.directory, attempt.number, progress.step, state)
    write_metrics(attempt, progress)
    return saved


def write_metrics(attempt: Attempt, progress: Progress) -> NamedFile | None:
    """Write the attempt's `metrics.jsonl`, a line for each finished epoch, its numbers to six digits.

    All digits of a float would be noise beyond what was measured, and noise does not compress.

    Returns:
        What a record says of it: its name and SHA-256; None without an epoch, when there is no such file.
    """
    if not progress.history:
        return None
    rows = "".join(json.dumps(_rounded(row)) + "\n" for row in progress.history).encode()
    return NamedFile(attempt.write("metrics.jsonl", rows).name, hashlib.sha256(rows).hexdigest())


def _rounded(value: Any) -> Any:
    """Round floats to six digits, also in dictionaries; lists, which hold scores, stay as they are."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _seed(step_seed: int, rank: int) -> None:
    """Set every generator, so that what a step draws depends on nothing that ran before it, in any process.

    Ranks have numbers of their own, or stochastic layers would treat the images of all of them alike.
    """
    number = step_seed + (rank << 53)
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)  # the global generator is the one that others may draw from
