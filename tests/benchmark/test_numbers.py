"""Every number that a record says of time, memory and energy, recomputed from clocks and
counters that are known.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import Any, NamedTuple
from unittest.mock import ANY

import pytest
import torch

from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.machine.meters import PeakMemory
from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.interruption import Interrupted, Interruption
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.rundir.record import Record
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training import checkpoint_writer, journal, loop
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.optimizers.lars import LARS
from regbench.datasets.loading.loaders import PretrainingLoader
from regbench.methods import Regularizer
from tests.there import there

# Three epochs of three steps of 32 images; the first attempt ends after the fifth step.
STEPS, BATCH, STOPPED = 9, 32, 5
PARTS = {"data": 0.011, "forward": 0.13, "loss": 0.17, "backward": 0.29, "optimizer": 0.037}
DEVICE_S = 0.0007  # after each step of which the loss is read, until a GPU has done it
CHECKPOINT_S, SELECTION_S, PROTOCOL_S, MONITOR_S = 100.0, 13.0, 17.0, 1000.0


def seconds(part: str, step: int) -> float:
    """What a part of a step (from 0) takes: no mean is a median, and the parts are longest in
    different steps.
    """
    number = list(PARTS).index(part)
    factor = (1.0, 4.0, 2.0)[(step * (1 + number % 2) + number) % 3]
    return PARTS[part] * factor * (1 + 0.1 * (step // 3) ** 2)


def peak_bytes(steps: int) -> int:
    """Of the process after so many steps: most in the first attempt's third."""
    return 10_000 + 100 * (3 - abs(steps - 3))


def joules(steps: int) -> float:
    """What the processors have used after so many steps."""
    return 2.0 * steps**2


class Told(NamedTuple):
    """The record of the run, and what it told of its progress while it ran."""

    record: Record
    progress: list[dict[str, Any]]


class Machine:
    """A machine on which time goes by in what is measured only."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s, self.patch = 1000.0, patch
        self.done = dict.fromkeys(PARTS, 0)
        self.progress: list[dict[str, Any]] = []
        patch.setattr(time, "perf_counter", lambda: self.now_s)
        self._slow(SiameseNetwork, "forward", lambda: self._part("forward"))
        self._slow(Regularizer, "__call__", self._loss_s)
        self._slow(torch.autograd, "backward", lambda: self._part("backward"))
        self._slow(LARS, "step", lambda: self._part("optimizer"))
        self._slow(checkpoint_writer, "save_checkpoint", lambda: CHECKPOINT_S)
        self._slow(Subject, "select", lambda: SELECTION_S)
        self._slow(Subject, "run", lambda: PROTOCOL_S)
        self._slow(loop, "monitored_scores", self._monitor_s)
        self._slow(journal.Journal, "_add_losses", lambda: DEVICE_S)
        self.monitored_joules, self.monitored_bytes = 0.0, 0
        steps = self.done
        epoch, update = PretrainingLoader.epoch, Attempt.update

        @contextlib.contextmanager
        def slow_epoch(loader: PretrainingLoader, *args: Any, **options: Any) -> Iterator[Any]:
            with epoch(loader, *args, **options) as batches:
                yield self._waiting(batches)

        def used_joules() -> float:
            return joules(steps["optimizer"]) + self.monitored_joules

        def used_bytes(_: PeakMemory) -> int:
            return peak_bytes(steps["optimizer"]) + self.monitored_bytes

        def restarted(*_: object) -> None:
            self.monitored_bytes = 0

        class Meter:
            def __init__(self, _: torch.device) -> None:
                self._before = used_joules()

            def read_joules(self) -> dict[str, float]:
                used = used_joules() - self._before
                return {"cpu": used, "gpu": 3 * used}

        def told(attempt: Attempt, **changes: Any) -> None:
            if "img_per_s" in changes:
                self.progress.append(changes)
            update(attempt, **changes)

        class AtOnce(ThreadPoolExecutor):
            """A thread that is done before others go on: the clock has one hand."""

            def submit(self, *call: Any, **options: Any) -> Future[Any]:
                future = super().submit(*call, **options)
                wait([future])
                return future

        patch.setattr(checkpoint_writer, "ThreadPoolExecutor", AtOnce)
        patch.setattr(PretrainingLoader, "epoch", slow_epoch)
        patch.setattr(journal, "EnergyMeter", Meter)
        patch.setattr(PeakMemory, "__init__", restarted)
        patch.setattr(PeakMemory, "kind", "process RSS")
        patch.setattr(PeakMemory, "read_bytes", used_bytes)
        patch.setattr(PeakMemory, "read_reserved_bytes", lambda meter: 2 * used_bytes(meter))
        patch.setattr(Attempt, "update", told)

    def _loss_s(self) -> float:
        """The loss of a step.

        That on random embeddings, by which its memory is measured, comes before any step.
        """
        return self._part("loss") if self.done["forward"] > self.done["loss"] else 0.0

    def _monitor_s(self) -> float:
        """An evaluation while training, which takes far more than a step of all that is counted."""
        self.monitored_joules += 10.0**6
        self.monitored_bytes = 10**6
        return MONITOR_S

    def _waiting(self, batches: Any) -> Iterator[Any]:
        """The batches, each after a wait; with the last of the first attempt comes a signal."""
        for batch in batches:
            self.now_s += self._part("data")
            if self.done["data"] == STOPPED:
                os.kill(os.getpid(), signal.SIGUSR1)
            yield batch

    def _part(self, part: str) -> float:
        self.done[part] += 1
        return seconds(part, self.done[part] - 1)

    def _slow(self, owner: Any, name: str, cost_s: Callable[[], float]) -> None:
        function = getattr(owner, name)

        def slow(*args: Any, **options: Any) -> Any:
            self.now_s += cost_s()
            return function(*args, **options)

        self.patch.setattr(owner, name, slow)


@pytest.fixture(scope="module")
def told(shared: list[str]) -> Told:
    """A run in two attempts that writes a checkpoint after every step."""
    overrides = [*shared, "method=simclr", "epochs=3", "evaluation.while_training=[knn]"]
    cell, runtime = load_run([*overrides, "runtime.checkpoint_minutes=0"])
    interruption = Interruption()
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(patch)
        with interruption.listening(signal.SIGUSR1), pytest.raises(Interrupted):
            run_cell(cell, runtime, "here", interruption=interruption)
        record = there(run_cell(cell, runtime, "here"))
    return Told(record, machine.progress)


def epoch_s(epoch: int, steps: int = 3) -> float:
    """Seconds of the first so many steps of an epoch (from 0)."""
    each = [seconds(part, 3 * epoch + step) for step in range(steps) for part in PARTS]
    return sum(each) + steps * DEVICE_S


def median_ms(parts: list[str], epoch: int) -> float:
    """Median over the steps of an epoch of what these parts take together."""
    steps = range(3 * epoch, 3 * epoch + 3)
    return statistics.median(1000 * sum(seconds(part, step) for part in parts) for step in steps)


STEP = [part for part in PARTS if part != "data"]


def test_the_times_of_an_epoch_are_those_of_its_steps(told: Told) -> None:
    for epoch, row in enumerate(told.record.history):
        found = {name: value for name, value in row.items() if name.endswith(("_s", "_ms"))}
        parts_ms = {f"{part}_ms": median_ms([part], epoch) for part in PARTS}
        wanted = {"epoch_s": epoch_s(epoch), "step_ms": median_ms(STEP, epoch)} | parts_ms
        assert found == {name: float(f"{value:.6g}") for name, value in wanted.items()}
        assert row["images"] == 3 * BATCH


def test_the_cost_of_a_run_is_that_of_its_attempts_together(told: Told) -> None:
    train_s = sum(map(epoch_s, range(3)))
    medians_ms = {}
    for name, parts in {"step": STEP, **{part: [part] for part in PARTS}}.items():
        median = statistics.median(median_ms(parts, epoch) for epoch in range(3))
        medians_ms[f"{name}_ms"] = pytest.approx(median)
    assert asdict(told.record.cost) == medians_ms | {
        "train_s": pytest.approx(train_s),
        # But for the signal's checkpoint, which was the last thing that its attempt did.
        "checkpoint_s": pytest.approx(CHECKPOINT_S * (STEPS - 1)),
        "monitor_s": pytest.approx(3 * MONITOR_S),
        "img_per_s": pytest.approx(STEPS * BATCH / train_s),
        "evaluate_s": pytest.approx(SELECTION_S + 2 * PROTOCOL_S),
        "peak_memory_bytes": peak_bytes(3),
        "peak_reserved_bytes": 2 * peak_bytes(3),
        "peak_memory_kind": "process RSS",
        "loss_extra_bytes": ANY,
        "energy_cpu_joules": pytest.approx(joules(STEPS)),
        "energy_gpu_joules": pytest.approx(3 * joules(STEPS)),
    }
    assert [attempt.from_step for attempt in told.record.attempts] == [None, STOPPED]


def test_progress_is_told_by_the_pace_of_the_present_epoch(told: Told) -> None:
    expected = []
    for step in range(STEPS):
        img_per_s = (step % 3 + 1) * BATCH / epoch_s(step // 3, step % 3 + 1)
        remaining_s = (STEPS - 1 - step) * BATCH / img_per_s
        place: dict[str, Any] = {"epoch": step // 3, "epochs": 3, "step": step + 1, "steps": STEPS}
        place |= {"img_per_s": pytest.approx(img_per_s), "remaining_s": pytest.approx(remaining_s)}
        expected.append(place)
    assert told.progress == expected
