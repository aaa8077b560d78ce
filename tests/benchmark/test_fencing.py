"""A process that has lost its run and goes on changes nothing of what its successor writes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.directory import checkpoint_files, run_directory
from regbench.benchmark.rundir.lease import Attempt, LeaseLost, claim, read_attempts
from regbench.benchmark.rundir.record import Record, read_record
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.stored.prepare import prepare
from regbench.reports.find.check import check_records
from tests.benchmark.steps import before_steps
from tests.conftest import TINY, striped
from tests.there import there
from tests.waiting import PATIENCE_S

SMALL = (
    *("method=vicreg", "epochs=3", "optimizer.warmup_epochs=1", "batch_size=12"),
    *("evaluation.protocols=[probe]", "evaluation.probe.epochs=1"),
    "evaluation.probe.learning_rates=[0.5]",
    *("dataset.source.train_per_class=8", "dataset.source.tuning_per_class=4"),
)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder with the smallest data set that all parts of a run can do with."""
    source = striped(tmp_path_factory.mktemp("source"), "png", train=13, val=4)
    data_dir = tmp_path_factory.mktemp("data")
    prepare(load_run([*TINY, *SMALL])[0].dataset, data_dir, source_dir=source)
    return data_dir


@pytest.fixture
def small(images: Path, tmp_path: Path) -> list[str]:
    """Overrides for a run on it that takes a part of a second."""
    return [*TINY, *SMALL, f"runtime.data_dir={images}", f"runtime.runs_dir={tmp_path / 'runs'}"]


def at_once(_: object, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Do what a thread would do, and answer as `ThreadPoolExecutor.submit` does."""
    future: Future[Any] = Future()
    future.set_result(function(*arguments))
    return future


class Process:
    """A process of a Slurm job that works on a small cell, and the job's next life, which takes
    over.

    Attributes:
        directory: The run directory.
        operations: What the process has made, named, renamed and removed there, by kind and name.
        before: Called before each of them.
    """

    def __init__(self, small: list[str], patch: pytest.MonkeyPatch, sweep: str = "here") -> None:
        self.cell, self.runtime = load_run(small)
        self.sweep, self.patch = sweep, patch
        self.directory = run_directory(self.runtime, sweep, self.cell)
        self.operations: list[str] = []
        self.before: Callable[[str], None] = self.operations.append
        patch.setenv("SLURM_JOB_ID", "7")
        patch.setenv("SLURM_RESTART_COUNT", "0")
        for name in ("replace", "link", "unlink"):
            patch.setattr(os, name, self._watched(name, getattr(os, name)))
        # nobody loses power here, and a busy disk takes its time
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(tempfile, "mkstemp", self._watched("make", tempfile.mkstemp))
        # the order of the operations is always the same
        patch.setattr(ThreadPoolExecutor, "submit", at_once)

    def _watched(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*paths: Any, **options: Any) -> Any:
            path = str(paths[-1]) if paths else f"{options['dir']}/{options['prefix']}"
            is_main = threading.current_thread() is threading.main_thread()
            if path.startswith(str(self.directory)) and is_main:
                # Without what differs from run to run: a digest, the random end of a temporary
                # file's name.
                shown = re.sub(r"-[0-9a-f]{16}|^[.](.*)[.][^.]*$", r"\1", Path(path).name)
                self.before(f"{name} {shown}")
            return operation(*paths, **options)

        return watched

    def run(self) -> Record | None:
        return run_cell(self.cell, self.runtime, self.sweep)

    def succeed(self, at: int, meanwhile: Callable[[], None]) -> None:
        """Lets something happen in the job's next life just before an operation (from 1) of
        this one goes through.
        """

        def before(operation: str) -> None:
            self.operations.append(operation)
            if len(self.operations) == at:
                self.before = lambda _: None
                self.patch.setenv("SLURM_RESTART_COUNT", "1")
                meanwhile()
                self.patch.setenv("SLURM_RESTART_COUNT", "0")
                self.before = self.operations.append

        self.before = before


def content(directory: Path) -> dict[str, str]:
    """The digest of every file, by its path below the directory; temporary ones left out."""
    found = {}
    for path in directory.rglob("[!.]*"):
        if path.is_file():
            name = str(path.relative_to(directory))
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def changes(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def undisturbed(small: list[str]) -> tuple[list[str], Record]:
    """The operations of a run, and its record."""
    with pytest.MonkeyPatch.context() as patch:
        process = Process(small, patch, "undisturbed")
        return process.operations, there(process.run())


def lose(small: list[str], at: int, operations: list[str], record: Record, *, finish: bool) -> None:
    """Lets a process lose its run just before one of its operations goes through, and looks at what
    it does then.

    Args:
        small: The settings.
        at: Number of the operation, from 1.
        operations: Those of an undisturbed run.
        record: Of an undisturbed run.
        finish: Whether its successor finishes the run at that moment, or only begins to.
    """
    # Until a process has looked once more after its claim, it leaves a run alone that another has
    # finished. And nobody can take back a record that is under way: it is whole, and whoever has
    # only begun finds it there.
    begun = operations.index("unlink 0001.json" if finish else "link 0001.json") + 1
    ended = operations.index("link record.json" if finish else "make record.json") + finish
    loses = begun < at <= ended
    where = f"{at}: {operations[at - 1]}"
    with pytest.MonkeyPatch.context() as patch:
        process = Process(small, patch, f"{'finished' if finish else 'begun'}{at}")
        directory = process.directory
        before: dict[str, str] = {}

        def meanwhile() -> None:
            if finish:
                assert process.run() is not None
            elif (attempt := claim(directory, 60.0)) is not None:
                attempt.end("interrupted")
            before.update(content(directory))

        process.succeed(at, meanwhile)
        if loses:
            with pytest.raises(LeaseLost, match=r"superseded.* writes no more"):
                process.run()
        else:
            assert there(process.run()).sha256 == there(read_record(directory)).sha256, where
    assert process.operations[:at] == operations[:at], where
    after = content(directory)
    if loses:
        first, second = read_attempts(directory)
        outcome = "done" if finish else "interrupted"
        assert (first["ended"], second["ended"]) == ("superseded", outcome), where
        # What was under way, the older of its own checkpoints, and how the attempt ended.
        late = changes(before, after) - {"attempts/0001.json", "config.yaml"}
        assert all("-0001" in name for name in late), (where, late)
        assert len(late & after.keys()) <= 1, (where, late)
    if finish:
        found = there(read_record(directory))
        assert found.scores == record.scores, where
        assert "config.yaml" not in changes(before, after), where
        assert check_records([directory]).misfits == (), where
        assert found.checkpoint and (directory / found.checkpoint.file).exists(), where
    elif loses:
        assert not (directory / "record.json").exists(), where


@pytest.mark.slow
@pytest.mark.parametrize("finish", [False, True])
def test_whenever_a_process_loses_its_run_nothing_else_changes(
    small: list[str], *, finish: bool
) -> None:
    operations, record = undisturbed(small)
    for at in range(1, len(operations) + 1):
        lose(small, at, operations, record, finish=finish)


KINDS = ("environment", "checkpoint", "metrics", "scores", "evaluation-probe", "record.json")


def last_of(operations: list[str], *beginnings: str) -> int:
    """Number of the last operation, from 1, that begins with one of these."""
    return max(i for i, name in enumerate(operations, 1) if name.startswith(beginnings))


@pytest.fixture(scope="module")
def alone(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Record]:
    """The operations of an undisturbed run, and its record."""
    folder = tmp_path_factory.mktemp("alone")
    return undisturbed([*TINY, *SMALL, f"runtime.data_dir={images}", f"runtime.runs_dir={folder}"])


@pytest.mark.parametrize("finish", [False, True], ids=["begun", "finished"])
@pytest.mark.parametrize("kind", ["0001.json", "choice", *KINDS])
def test_a_process_that_loses_its_run_while_it_writes_a_file_changes_nothing_else(
    small: list[str], alone: tuple[list[str], Record], kind: str, *, finish: bool
) -> None:
    """The last of each kind.

    Before the file is begun or, where the successor only begins, before it gets its name.
    """
    operations, record = alone
    words = ("make",) if finish else ("replace", "link")
    at = last_of(operations, *(f"{word} {kind}" for word in words))
    lose(small, at, operations, record, finish=finish)


SELDOM = ("runtime.checkpoint_epochs=100", "runtime.checkpoint_minutes=100", "runtime.lease_s=0.3")
"""The attempt's heartbeats come every 0.1 s, and nothing but them lets a process look whether
it still has the run.
"""


def at_the_second_step(
    patch: pytest.MonkeyPatch, directory: Path, happens: Callable[[], None]
) -> list[int]:
    """Let something happen before a run's second step, which waits for a heartbeat begun after it.

    Return the list of steps begun.
    """
    steps: list[int] = []
    beat, happened, beaten = Attempt.beat, threading.Event(), threading.Event()

    def beats(attempt: Attempt) -> None:
        # A beat that is under way when it happens may have looked before, and an attempt that
        # another test has left looks at another run.
        looks_after = happened.is_set() and attempt.directory == directory
        beat(attempt)
        if looks_after:
            beaten.set()

    def begins(step: int) -> None:
        steps.append(step)
        if step == 1:
            happens()
            happened.set()
            assert beaten.wait(PATIENCE_S)

    patch.setattr(Attempt, "beat", beats)
    before_steps(patch, begins)
    return steps


def test_a_process_that_has_lost_its_run_takes_no_step_more(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process([*small, *SELDOM], monkeypatch)

    def take_over() -> None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        there(claim(process.directory, 60.0)).end("interrupted")

    steps = at_the_second_step(monkeypatch, process.directory, take_over)
    with pytest.raises(LeaseLost, match="attempt 1 was superseded by attempt 2"):
        process.run()
    assert steps == [0, 1]
    assert not checkpoint_files(process.directory)
    seen = [attempt["ended"] for attempt in read_attempts(process.directory)]
    assert seen == ["superseded", "interrupted"]


def remove(folder: Path) -> None:
    """Remove a folder in which a heartbeat may be writing: its temporary file comes and goes
    meanwhile.
    """
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def test_a_run_whose_folder_is_removed_ends_itself(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, runtime = load_run([*small, *SELDOM])
    directory = run_directory(runtime, "here", cell)
    steps = at_the_second_step(monkeypatch, directory, lambda: remove(directory))
    reason = r"attempts/0001\.json was removed; this process writes no more"
    with pytest.raises(LeaseLost, match=reason):
        run_cell(cell, runtime, "here")
    assert steps == [0, 1]
    assert not directory.exists()


def test_a_process_whose_folder_is_removed_while_it_waits_makes_no_other(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, runtime = load_run(small)
    directory = run_directory(runtime, "here", cell)
    attempt = there(claim(directory, 60.0))
    monkeypatch.setattr(time, "sleep", lambda _: remove(directory))
    with pytest.raises(LeaseLost, match="was removed while this process waited"):
        run_cell(cell, runtime, "here")
    attempt.end("done")
    assert not directory.exists()


def test_numbers_go_on_where_somebody_removed_the_attempts(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch has two steps, and a checkpoint at its end.

    Earlier ones are of the third attempt.
    """
    cell, runtime = load_run([*small, "epochs=5"])
    directory = run_directory(runtime, "here", cell)
    for _ in range(2):
        there(claim(directory, 60.0)).end("interrupted")
    for killed_at in (5, 3):  # steps of this process; the second goes on after the fourth

        def kill(step: int, at: int = killed_at) -> None:
            if step == at:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            before_steps(patch, kill)
            run_cell(cell, runtime, "here")
        remove(directory / "attempts")
    record = there(run_cell(cell, runtime, "here"))
    assert [attempt.from_step for attempt in record.attempts] == [6]
    undisturbed = there(run_cell(cell, runtime, "undisturbed"))
    assert record.scores == undisturbed.scores


STOPPED = """
import json, os, platform, signal, sys
import pytest
platform.node = lambda: "elsewhere"  # whose processes nobody sees from here
from regbench.benchmark.rundir.lease import LeaseLost
from tests.benchmark.test_fencing import Process
for at in json.loads(sys.argv[2]):
    with pytest.MonkeyPatch.context() as patch:
        process = Process(json.loads(sys.argv[1]), patch, f"stopped{at}")
        process.succeed(at, lambda: os.kill(os.getpid(), signal.SIGSTOP))
        try:
            process.run()
            print("done", flush=True)
        except LeaseLost:
            print("lost", flush=True)
"""


@pytest.mark.slow
def test_a_process_that_is_stopped_for_longer_than_the_lease_changes_nothing(
    small: list[str], alone: tuple[list[str], Record]
) -> None:
    operations, record = alone
    places = [last_of(operations, f"make {kind}") for kind in KINDS]
    overrides = [*small, "runtime.lease_s=1"]
    cell, runtime = load_run(overrides)
    command = [sys.executable, "-c", STOPPED, json.dumps(overrides), json.dumps(places)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for at in places:
                os.waitid(os.P_PID, process.pid, os.WSTOPPED)
                directory = run_directory(runtime, f"stopped{at}", cell)
                mine = there(run_cell(cell, runtime, f"stopped{at}"))
                assert mine.scores == record.scores
                before = content(directory)
                process.send_signal(signal.SIGCONT)
                assert there(process.stdout).readline() == "lost\n"
                late = changes(before, content(directory)) - {"attempts/0001.json"}
                assert all("-0001" in name for name in late), operations[at - 1]
                seen = [attempt["ended"] for attempt in read_attempts(directory)]
                assert seen == ["superseded", "done"]
                assert check_records([directory]).misfits == ()
        finally:
            process.kill()
