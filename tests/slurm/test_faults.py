"""A sweep on a real Slurm cluster through everything that clusters do to jobs."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.directory import checkpoint_files
from regbench.benchmark.rundir.lease import read_attempts
from regbench.benchmark.settings.runtime import STAGES
from regbench.benchmark.settings.sweep import load_run
from regbench.slurm import manage
from regbench.sweeps.status import FINISHED, CellStatus
from tests.slurm.cluster import Cluster, came_out, is_training, owner, setting
from tests.slurm.testbed import wait_for
from tests.slurm.user import OPTIONS
from tests.there import there
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slurm


class Storm:
    """One fault for each cell, by its number.

    Each is applied once, in the middle of the cell's training.
    """

    def __init__(self, cluster: Cluster, numbers: dict[str, int]) -> None:
        self.cluster, self.slurm, self.numbers = cluster, cluster.slurm, numbers
        self.retried: list[int] = []
        # A node that is down or taken, and when it may come back.
        self.lost: tuple[str, Callable[[], bool]] | None = None
        # Jobs of each cell since it was last submitted: one that failed takes the next in its chain
        # with it.
        self.jobs: dict[int, set[str]] = {}
        # How often the cells had begun when their faults came: until they begin again, they go
        # slowly.
        self.lives: dict[int, int] = {}
        self.pending: dict[int, Callable[[CellStatus], None]] = {
            0: self.kill_worker,
            1: self.kill_worker,
            2: self.notify,
            3: cluster.requeue,
            4: self.preempt,
            5: self.lose_node,
            6: self.lose_sight_of_node,
            7: self.restart_controller,
            8: self.cancel,
            9: self.damage_checkpoint,
            12: lambda status: None,  # its time limit is three minutes
            13: self.kill_worker,  # one of two processes on two nodes
            14: self.notify,
        }
        # The disk is full from the start, the folder cannot be written.
        self.heal: dict[int, Callable[[CellStatus], None]] = {
            10: self.enlarge_disk,
            11: self.make_writable,
        }

    def kill_worker(self, status: CellStatus) -> None:
        time.sleep(random.random())  # in a step, between steps, while a checkpoint is written
        self._signal(status, signal.SIGKILL)

    def notify(self, status: CellStatus) -> None:
        """What slurmd sends when a job's time is nearly up. (scancel --signal refuses some
        tasks of arrays.)
        """
        self._signal(status, signal.SIGUSR2)

    def _signal(self, status: CellStatus, number: signal.Signals) -> None:
        # a fault of another cell has ended it this very moment
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner(status)["pid"], number)

    def preempt(self, status: CellStatus) -> None:
        node = owner(status)["hostname"]
        where = ["--partition=high", f"--nodelist={node}", "--cpus-per-task=8"]
        self.slurm.command("sbatch", *where, "--output=/dev/null", "--wrap=sleep 1")
        self._away(status, node)

    def lose_sight_of_node(self, status: CellStatus) -> None:
        """Its slurmd is gone, its jobs live on: Slurm starts them elsewhere all the same."""
        node = owner(status)["hostname"]
        self.slurm.kill(f"slurmd-{node}")
        self.slurm.lose(node)
        life = len(read_attempts(status.directory)) - 1
        self.lost = node, lambda: read_attempts(status.directory)[life]["ended"] == "superseded"

    def lose_node(self, status: CellStatus) -> None:
        """All its processes are gone at once."""
        node = owner(status)["hostname"]
        # where the machine has the node's name
        place = Path(f"/proc/{owner(status)['pid']}/ns/uts").readlink()
        assert place != Path("/proc/self/ns/uts").readlink()
        self.slurm.kill(f"slurmd-{node}")
        watchers: list[int] = []
        watched: list[int] = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                if (path / "ns" / "uts").readlink() == place:
                    is_watcher = "slurmstepd" in (path / "cmdline").read_text()
                    (watchers if is_watcher else watched).append(int(path.name))
        # A node that is lost reports nothing: those that would say how a job ended go first.
        for pid in watchers + watched:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.slurm.lose(node)
        self._away(status, node)

    def _away(self, status: CellStatus, node: str) -> None:
        """The node comes back once the cell has begun again."""
        lives = len(read_attempts(status.directory))
        self.lost = node, lambda: len(read_attempts(status.directory)) > lives

    def restart_controller(self, status: CellStatus) -> None:
        self.slurm.kill("slurmctld", signal.SIGTERM)
        # The truth comes from the run directories meanwhile.
        found = {each.cell_id: each.state for each in self.cluster.statuses()}
        assert found[status.cell_id] in ("running", "done")
        self.slurm.up("slurmctld")
        self.lives.pop(7)  # the job may have noticed nothing

    def _cancel(self, status: CellStatus) -> None:
        assert "cancelled 1 cell" in self.cluster.run("cancel", "own", status.cell_id)

        def is_free() -> bool:
            found = {each.cell_id: each for each in self.cluster.statuses()}
            return manage.is_free(found[status.cell_id], STAGES)

        # A controller that another fault restarts before may have forgotten it, and the job goes
        # on.
        wait_for(is_free, f"the end of {status}\n{self.slurm.logs(100)}")

    def cancel(self, status: CellStatus) -> None:
        self._cancel(status)
        self.heal[8] = lambda status: None

    def damage_checkpoint(self, status: CellStatus) -> None:
        self._cancel(status)

        def damage(status: CellStatus) -> None:
            newest = checkpoint_files(status.directory)[0]
            newest.write_bytes(newest.read_bytes()[:-100])

        self.heal[9] = damage

    def enlarge_disk(self, status: CellStatus) -> None:
        assert "No space left on device" in status.detail
        self.cluster.enlarge_disk(status)

    def make_writable(self, status: CellStatus) -> None:
        status.directory.unlink()
        status.directory.with_suffix(".aside").rename(status.directory)

    def _was_given_up(self, job: str) -> bool:
        """Slurm refuses or kills a job that it sends to a node where a former life of it is, or
        loses its script.
        """
        log = (self.slurm.directory / "slurmctld.log").read_text()
        ends = r"WTERMSIG 9|WEXITSTATUS 2"  # 2: there is no such file
        own = re.search(rf"JobId={job}\((\d+)\)", log)  # the number of a task of an array
        # Slurm may name the whole array, whose tasks it gives up together.
        either = "|".join([job, job.partition("_")[0], *([own[1]] if own else [])])
        given_up = rf"non-startable batch JobId=({either})\b|JobId={job}(\(\d+\))? ({ends})\b"
        return re.search(given_up, log) is not None

    def _may_come(self, number: int, status: CellStatus) -> bool:
        """Whether Slurm knows of the life that a fault is to end: it does not end one that a node
        has brought back if it is told to cancel the job, which waits in its queue.
        """
        if number not in (8, 9):
            return True
        state = self.slurm.command("squeue", "--noheader", "--format=%T", f"--jobs={status.job}")
        return state.strip() == "RUNNING"

    def look(self) -> bool:
        """Applies what is due; returns whether all cells have ended."""
        found = self.cluster.statuses()
        if self.lost is not None:
            node, may_come_back = self.lost
            if may_come_back():
                self.slurm.up(f"slurmd-{node}")
                self.lost = None
        for status in found:
            number = self.numbers[status.cell_id]
            jobs = self.jobs.setdefault(number, set())
            if status.job:
                jobs.add(status.job)
            if "held" in status.detail:
                self.cluster.release(status)
            if manage.is_free(status, STAGES):
                if number in self.heal:
                    self.heal.pop(number)(status)
                    self.retried.append(number)
                    self.cluster.run("retry", "own", status.cell_id)
                elif any(map(self._was_given_up, jobs)):
                    jobs.clear()
                    self.cluster.run("retry", "own", status.cell_id)
                continue
            if self.lost is not None and number in (3, 4, 5, 6, 8, 9):
                # one node has to be left, and nothing that Slurm is told reaches one that is away
                continue
            begun = len(read_attempts(status.directory))
            is_due = number in self.pending and 3 <= status.epochs_done < self.cluster.epochs - 10
            if is_due and is_training(status) and self._may_come(number, status):
                self.lives[number] = begun
                self.pending.pop(number)(status)
                return False  # the states may be others now
            begins_again = status.state == "running" and begun > self.lives.get(number, 0)
            if number not in self.pending and begins_again:
                self.cluster.hurry(status.job)
        return all(status.state in FINISHED for status in found) and self.lost is None


def test_a_sweep_through_a_storm(cluster: Cluster, small: Path) -> None:
    more = {
        # Not in the large array, of which only two run at a time: they have to begin again at once.
        **{number: f"cluster.mem_gib={number}" for number in (4, 5, 6)},
        12: "cluster.time_minutes=3 cluster.notice_s=40",
        **dict.fromkeys((13, 14), "cluster.nodes=2"),
    }
    numbers = range(15)
    cluster.write(*(f"method=vicreg {setting(each)} {more.get(each, '')}" for each in numbers))
    common = [*cluster.tiny, f"epochs={cluster.epochs}", "method=vicreg"]
    cells = [load_run([*common, setting(number)]) for number in numbers]
    directories = [cluster.sweep / cell.id for cell, _ in cells]
    cluster.sweep.mkdir(parents=True)
    (small / "run").mkdir()
    directories[10].symlink_to(small / "run")
    output = cluster.submit("cluster.parallel=2")
    assert "15 cells, 0 done, 15 to run" in output
    # Still in the queue: no more than two of the array run at a time.
    directories[11].rename(directories[11].with_suffix(".aside"))
    directories[11].symlink_to("/sys/kernel")

    storm = Storm(cluster, {cell.id: number for number, (cell, _) in enumerate(cells)})
    seen: dict[Path, set[tuple[int, int]]] = {}
    records: dict[Path, int] = {}
    end_s = time.monotonic() + 1800
    ended = False
    while not ended:
        assert time.monotonic() < end_s, f"{cluster.statuses()}\n{cluster.slurm.logs()}"
        ended = storm.look()
        for directory in directories:
            _check_writers(directory, seen.setdefault(directory, set()))
            if (path := directory / "record.json").exists():
                written_ns = path.stat().st_mtime_ns
                # no finished cell is run again
                assert records.setdefault(directory, written_ns) == written_ns
        time.sleep(0.2)
    assert not storm.pending, "a cell was done before its fault came"
    assert sorted(storm.retried) == [8, 9, 10, 11]

    undisturbed = there(run_cell(*cells[0], "undisturbed"))
    for number in range(15):
        attempts = read_attempts(directories[number])
        # the evaluations of what two processes trained are a job of one
        jobs = 1 if number < 13 else 2
        came_out(directories[number], undisturbed, jobs)
        done = [attempt for attempt in attempts if attempt["ended"] == "done"]
        assert sum(not _found_all_done(attempt) for attempt in done) == jobs
        assert len(attempts) >= 2 or number in (7, 11), (number, attempts)
    ends = {attempt["ended"] for directory in directories for attempt in read_attempts(directory)}
    assert ends >= {"done", "interrupted", "failed", None}  # None: killed
    assert "superseded" in ends  # the process that Slurm had lost sight of


def _found_all_done(attempt: dict[str, Any]) -> bool:
    """Whether no step was left: a job that Slurm gave up may start after all, beside the one
    submitted in its place.
    """
    return attempt["progress"]["stage"] == "pretrain" and "step" not in attempt["progress"]


def _check_writers(directory: Path, seen: set[tuple[int, int]]) -> None:
    """A checkpoint that appears is not of an attempt before one that wrote already."""
    names = (path.stem.split("-") for path in checkpoint_files(directory))
    new = {(int(attempt), int(step)) for _, attempt, step, _ in names} - seen
    last = max((attempt for attempt, _ in seen), default=0)
    assert all(attempt >= last for attempt, _ in new), (directory, seen, new)
    seen |= new


def test_cells_that_are_cancelled_to_make_room_for_others_go_on(cluster: Cluster) -> None:
    """Where preemption cancels jobs, whatever they say of being queued again: by retry, sweep
    and one that waits.
    """
    cluster.write(*(f"method=vicreg {setting(number)}" for number in range(2)))
    commands = cluster.slurm.command
    urgent = ("--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null")

    def make_room(life: int) -> None:
        def train() -> bool:
            found = cluster.statuses()
            begun = [len(read_attempts(status.directory)) for status in found]
            trained = all(status.epochs_done for status in found)
            return begun == [life, life] and trained and all(map(is_training, found))

        wait_for(train, "both to train", 300)
        commands("sbatch", *urgent, "--wrap=sleep 1")

    # Few clusters send the signal at which jobs put themselves back into the queue when they
    # preempt; this one does.
    unsignalled = "cluster.extra={signal: URG@90}"
    cluster.submit(unsignalled)
    commands("scontrol", "update", "PartitionName=main", "PreemptMode=CANCEL", "GraceTime=5")
    try:
        make_room(1)
        wait_for(lambda: cluster.states() == {"preempted"}, "both to be preempted", 300)
        assert "was cancelled to make room for others" in cluster.run("status", "own")
        first = cluster.statuses()[0].cell_id
        assert "was preempted" in cluster.run("retry", "own", first)
        waits = cluster.begin("sweep", "own.yaml", *OPTIONS, unsignalled, "--wait")
        with waits:
            make_room(2)
            jobs = cluster.sweep / "jobs"
            wait_for(lambda: len(list(jobs.glob("*.json"))) == 4, "both submitted again", 300)
            for status in cluster.statuses():
                cluster.hurry(status.job)
            assert waits.wait(PATIENCE_S) == 0, cluster.statuses()
    finally:
        commands("scontrol", "update", "PartitionName=main", "PreemptMode=REQUEUE", "GraceTime=20")
    first_cell = [f"epochs={cluster.epochs}", "method=vicreg", setting(0)]
    cell, runtime = load_run([*cluster.tiny, *first_cell])
    undisturbed = there(run_cell(cell, runtime, "undisturbed"))
    for status in cluster.statuses():
        came_out(status.directory, undisturbed, 1)
        ends = [attempt["ended"] for attempt in read_attempts(status.directory)]
        # None: killed
        assert len(ends) == 3 and ends[-1] == "done" and set(ends[:2]) <= {"interrupted", None}
