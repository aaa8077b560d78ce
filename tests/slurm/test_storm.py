"""A sweep on a real Slurm cluster through faults that are drawn at random."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.directory import checkpoint_files
from regbench.benchmark.settings.runtime import STAGES
from regbench.benchmark.settings.sweep import load_run
from regbench.slurm import manage
from regbench.slurm.queue import jobs_of
from regbench.sweeps.status import FINISHED, CellStatus
from tests.slurm.cluster import Cluster, came_out, setting
from tests.slurm.testbed import wait_for
from tests.slurm.user import OPTIONS
from tests.there import there

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

EPOCHS = 60
ALONE, STAGED, PAIRED, CRAMPED = range(5), range(5, 7), range(7, 9), 9
SECONDS = 3600
KINDS = ["kill", "notify", "requeue", "cancel", "damage", "delete", "submit_twice"]


@dataclass
class Stopped:
    """A process that sleeps while another one trains its cell."""

    pid: int
    until_s: float
    other: subprocess.Popen[bytes]


@dataclass
class Storm:
    """Two faults for each cell, each at an epoch of its own."""

    cluster: Cluster
    random: random.Random
    numbers: dict[str, int]
    due: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)
    stopped: list[Stopped] = field(default_factory=list)
    # What a cell must say before it is tried again, and what is done first.
    expected: dict[int, tuple[str, Callable[[CellStatus], None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # They are dealt like cards, so that each comes about equally often.
        for numbers, kinds in ((ALONE, [*KINDS, "stop", "stop"]), (STAGED, KINDS), (PAIRED, KINDS)):
            dealt: list[str] = []
            for number in numbers:
                while len(dealt) < 2:
                    dealt += self.random.sample(kinds, len(kinds))
                pair = [dealt.pop(), dealt.pop()]
                if number == PAIRED[0]:
                    pair[0] = "fail"
                if pair[0] == "stop":  # the cell's end, as another process trains it at full speed
                    pair = ["kill", "stop"]
                epochs = sorted(self.random.sample(range(1, EPOCHS // 3), 2))
                self.due[number] = list(zip(epochs, pair, strict=True))
        self.expected[CRAMPED] = "No space left on device", self.cluster.enlarge_disk

    # -------------------------------------------------------------- faults

    def kill(self, status: CellStatus) -> None:
        self._signal(status, signal.SIGKILL)

    def notify(self, status: CellStatus) -> None:
        """Its time is up while the controller restarts."""
        self.cluster.slurm.kill("slurmctld", signal.SIGTERM)
        try:
            self._signal(status, signal.SIGUSR2)
            time.sleep(self.random.uniform(0, 5))
        finally:
            self.cluster.slurm.up("slurmctld")

    def requeue(self, status: CellStatus) -> None:
        self.cluster.requeue(status)

    def cancel(self, status: CellStatus) -> None:
        assert "cancelled 1 cell" in self.cluster.run("cancel", "own", status.cell_id)
        self.expected[self.numbers[status.cell_id]] = "cancelled", lambda status: None

    def damage(self, status: CellStatus) -> None:
        self.cancel(status)

        def flip(status: CellStatus) -> None:
            newest = checkpoint_files(status.directory)[0]
            content = bytearray(newest.read_bytes())
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
            newest.write_bytes(content)

        self.expected[self.numbers[status.cell_id]] = "cancelled", flip

    def delete(self, status: CellStatus) -> None:
        """Somebody removes the folder of a run that is at work, and it may still be writing."""
        while status.directory.exists():
            shutil.rmtree(status.directory, ignore_errors=True)

    def submit_twice(self, status: CellStatus) -> None:
        command = [self.cluster.program, "sweep", "own.yaml", *OPTIONS]
        both = [self._begin(command) for _ in range(2)]
        assert [process.wait(300) for process in both] == [0, 0]
        # A cell on two nodes is scored by a job of its own, on one.
        most = {**dict.fromkeys(STAGED, 3), **dict.fromkeys(PAIRED, 2)}
        for cell, job in jobs_of(self.cluster.sweep).items():
            assert len(job.queued) <= most.get(self.numbers[cell], 1), (cell, job)

    def fail(self, status: CellStatus) -> None:
        """An error on the second of two processes."""
        self.cluster.fail(status.job, 1)
        error = "ValueError: a made-up error"
        self.expected[self.numbers[status.cell_id]] = error, lambda status: None

    def stop(self, status: CellStatus) -> None:
        """A process sleeps for longer than its lease.

        Another takes over, and the first wakes at some time.
        """
        pid = self._processes(status)[0]
        os.kill(pid, signal.SIGSTOP)
        config = str(status.directory / "config.yaml")
        own = [setting for setting in self.cluster.tiny if setting.startswith("runtime.")]
        train = ["train", "--config", config, "--name", "own", *own]
        other = self._begin([self.cluster.program, *train])
        self.stopped.append(Stopped(pid, time.monotonic() + self.random.uniform(10, 60), other))

    def _begin(self, command: list[str]) -> subprocess.Popen[bytes]:
        how: Any = {"cwd": self.cluster.folder, "env": self.cluster.environment}
        how |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, **how)

    def _epochs_to_fault(self, status: CellStatus) -> float:
        due = self.due.get(self.numbers[status.cell_id])
        return due[0][0] - status.epochs_done if due else math.inf

    def _signal(self, status: CellStatus, number: signal.Signals) -> None:
        """To any one of its processes; the time limit's signal goes to all of them."""
        found = self._processes(status)
        for pid in found if number == signal.SIGUSR2 else [self.random.choice(found)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _processes(self, status: CellStatus) -> list[int]:
        """Those of its job, by rank."""
        array, _, task = status.job.partition("_")
        of_task = {f"SLURM_ARRAY_JOB_ID={array}", f"SLURM_ARRAY_TASK_ID={task}"}
        job = of_task if task else {f"SLURM_JOB_ID={array}"}
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                environment = (path / "environ").read_bytes().decode().split("\0")
                is_ours = b"submitit.core._submit" in (path / "cmdline").read_bytes()
                if is_ours and job <= {*environment}:
                    (rank,) = (entry for entry in environment if entry.startswith("SLURM_PROCID="))
                    found[int(rank.partition("=")[2])] = int(path.name)
        return [found[rank] for rank in sorted(found)]

    # -------------------------------------------------------------- the user

    def look(self) -> bool:
        """Applies what is due and tries again what has ended.

        Returns whether all cells are finished.
        """
        for entry in self.stopped:
            if entry.until_s < time.monotonic():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(entry.pid, signal.SIGCONT)
        # Those first that wait longest for their fault: one is applied at a time.
        found = sorted(self.cluster.statuses(), key=self._epochs_to_fault)
        for status in found:
            number = self.numbers[status.cell_id]
            due = self.due.get(number, [])
            # The sweep's command tries all cells again, also those that are to be healed first.
            may_submit = not {*self.expected} - {CRAMPED}
            if "held" in status.detail:
                self.cluster.release(status)
            elif manage.is_free(status, STAGES):
                if number in self.expected:
                    text, heal = self.expected.pop(number)
                    assert text in f"{status.state}: {status.detail}", status
                    heal(status)
                if (status.directory / "config.yaml").exists():
                    self.cluster.run("retry", "own", status.cell_id)
                elif may_submit:  # which writes the folder again that is gone
                    self.cluster.submit()
            elif status.state == "running" and due and status.epochs_done >= due[0][0]:
                kind = due[0][1]
                may_come = number not in self.expected and (kind != "submit_twice" or may_submit)
                if may_come and self._processes(status):
                    due.pop(0)
                    self.applied.append(f"{number} {kind}")
                    getattr(self, kind)(status)
                    return False  # the states may be others now
            elif status.state == "running" and status.job and not (due or number in self.expected):
                self.cluster.hurry(status.job)
        return all(status.state in FINISHED for status in found)


def content(directory: Path) -> dict[str, str]:
    """The files of a run but for those that say who was at work, and what a killed writer left."""
    files = [path for path in directory.glob("[!.]*") if path.is_file()]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_sweep_through_a_random_storm(cluster: Cluster, small: Path, seed: int) -> None:
    cluster.epochs = EPOCHS
    cluster.tiny.append("runtime.lease_s=10")
    stages = "cluster.stages={pretrain:{},tune:{},final:{}}"
    more = {**dict.fromkeys(STAGED, stages), **dict.fromkeys(PAIRED, "cluster.nodes=2")}
    numbers = range(CRAMPED + 1)
    cluster.write(*(f"method=vicreg {setting(each)} {more.get(each, '')}" for each in numbers))
    settings = [*cluster.tiny, f"epochs={EPOCHS}", "method=vicreg"]
    cells = [load_run([*settings, setting(number)]) for number in numbers]
    directories = [cluster.sweep / cell.id for cell, _ in cells]
    cluster.sweep.mkdir(parents=True)
    (small / "run").mkdir()
    directories[CRAMPED].symlink_to(small / "run")
    cluster.submit()

    cell_numbers = {cell.id: number for number, (cell, _) in enumerate(cells)}
    storm = Storm(cluster, random.Random(seed), cell_numbers)
    finished: dict[Path, dict[str, str]] = {}
    end_s = time.monotonic() + SECONDS
    ended = False
    try:
        while not ended:
            assert time.monotonic() < end_s, f"{cluster.statuses()}\n{storm.applied}"
            ended = storm.look()
            for directory in directories:
                if (directory / "record.json").exists() and directory not in finished:
                    finished[directory] = content(directory)
            time.sleep(0.2)
        for entry in storm.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGCONT)
            entry.other.wait(300)
        left = [Path(f"/proc/{entry.pid}") for entry in storm.stopped]
        wait_for(lambda: not any(path.exists() for path in left), "what was stopped to end", 120)
    finally:
        for entry in storm.stopped:
            entry.other.kill()
            entry.other.wait()
    assert not any(storm.due.values()), "a cell was done before its faults came"
    assert not storm.expected
    for directory, before in finished.items():
        assert content(directory) == before, directory

    undisturbed = there(run_cell(*cells[0], "undisturbed"))
    for number, directory in enumerate(directories):
        came_out(directory, undisturbed, 2 if number in PAIRED else 1)
    assert cluster.run("report", "own", "--check") == f"{len(cells)} records check out\n"
