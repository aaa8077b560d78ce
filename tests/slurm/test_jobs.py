"""Sweeps as jobs of Slurm, whose commands are stand-ins: submission, retry, cancellation, and
what jobs do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from click.testing import CliRunner, Result
from submitit.core.utils import DelayedSubmission

from regbench.benchmark.evaluate import state as states
from regbench.benchmark.evaluate.state import State
from regbench.benchmark.rundir.directory import run_directory
from regbench.benchmark.rundir.lease import LeaseLost, claim, read_attempts
from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.settings.runtime import STAGES
from regbench.benchmark.settings.sweep import load_run, load_sweep
from regbench.benchmark.training.distributed import PeerLost, connect
from regbench.cli import main
from regbench.datasets.config import DatasetConfig
from regbench.slurm import manage
from regbench.slurm.job import SlurmJob
from regbench.slurm.queue import submissions
from regbench.sweeps.status import CellStatus
from regbench.text import counted
from tests.records import attempted, knn_top1, made
from tests.refusals import is_refused
from tests.slurm.standin import Standin
from tests.slurm.user import OPTIONS
from tests.sweep_file import write_sweep
from tests.there import there
from tests.waiting import wait_for

RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SINGLE = {"JOB_ID": "7", "PROCID": "0", "NTASKS": "1"}
Process = Callable[..., dict[str, str]]


class User:
    """Somebody at the command line, with a sweep file and stand-ins for Slurm."""

    def __init__(self, slurm: Standin, tiny: list[str], folder: Path) -> None:
        self.slurm, self.tiny, self.folder = slurm, tiny, folder
        self.sweep = folder / "runs" / "own"

    def write(self, *cells: str) -> None:
        write_sweep(self.folder / "own.yaml", self.tiny, cells)

    def call(self, *words: str) -> Result:
        return CliRunner().invoke(main, words, env={"REGBENCH_RUNS_DIR": str(self.sweep.parent)})

    def run(self, *words: str, code: int = 0) -> str:
        result = self.call(*words)
        assert result.exit_code == code, result.output
        return result.output

    def call_sweep(self, *options: str) -> Result:
        return self.call("sweep", str(self.folder / "own.yaml"), *OPTIONS, *options)

    def submit(self, *options: str, code: int = 0) -> str:
        return self.run("sweep", str(self.folder / "own.yaml"), *OPTIONS, *options, code=code)

    def submitted(self, *cells: str) -> None:
        """A sweep in the queue."""
        self.write(*cells)
        self.submit()

    def refused(self, *words: str) -> str:
        return self.run(*words, code=2)

    def statuses(self) -> list[CellStatus]:
        return manage.statuses(self.sweep)

    def states(self) -> list[str]:
        return [status.state for status in self.statuses()]

    def cells(self) -> list[str]:
        return [status.cell_id for status in self.statuses()]


@pytest.fixture
def user(standin: Standin, tiny: list[str], tmp_path: Path) -> User:
    return User(standin, tiny, tmp_path)


# ------------------------------------------------------------------ submission


def test_what_is_submitted(user: User) -> None:
    user.write("method=vicreg seed=0,1,2", "method=simclr cluster.nodes=4 cluster.mem_gib=1.5")
    options = {"partition": "gpu", "time_minutes": 70, "notice_s": 33, "parallel": 2, "gpus": 2}
    options |= {"account": "who", "qos": "high", "constraint": "a100"}
    options |= {"extra": "{nice: 5, cpus-per-task: 3}"}
    options |= {"modules": "[cuda/13]", "setup": "[umask 7]"}
    output = user.submit(*(f"cluster.{name}={value}" for name, value in options.items()))
    assert "submitted 4 cells as 1, 4, 7, 8" in output
    tasks = user.slurm.tasks()
    array, evaluations, single, last = (tasks[name] for name in ("1_0", "4_0", "7", "8"))
    wanted = (
        "array=0-2%2 partition=gpu time=70 signal=USR2@33 nodes=1 ntasks-per-node=2 "
        "cpus-per-task=3 gpus-per-node=2 account=who qos=high constraint=a100 nice=5 "
        "kill-on-invalid-dep=yes"
    )
    assert dict(word.split("=") for word in wanted.split()).items() <= array["asked"].items()
    assert array["asked"]["requeue"] is True
    assert "mem" not in array["asked"] and "array" not in single["asked"]
    assert (single["asked"]["nodes"], single["asked"]["mem"]) == ("4", "1536MB")
    script = Path(array["script"]).read_text()
    assert "module load cuda/13\numask 7\n" in script
    (step,) = (line for line in script.splitlines() if line.startswith("srun"))
    # srun does not take over --cpus-per-task, and a site's WaitTime would end what the first rank
    # has still to do.
    assert {"--cpus-per-task=3", "--wait=0", "--kill-on-bad-exit=1"} < set(step.split())
    # No GPU but one waits while that one evaluates.
    for job, before in ((evaluations, "aftercorr:1"), (last, "afterok:7")):
        asked = job["asked"]
        assert (asked["nodes"], asked["ntasks-per-node"], asked["gpus-per-node"]) == ("1", "1", "1")
        assert asked["dependency"] == before
    stages = [entry["stages"] for entry in submissions(user.sweep)]
    assert stages == [["pretrain"], ["tune", "final"]] * 2
    assert [status.job for status in user.statuses()] == ["1_0", "1_1", "1_2", "7"]
    said = {(status.state, status.detail) for status in user.statuses()}
    assert said == {("queued", "pending (Priority)")}


def test_what_is_in_the_queue_or_finished_is_not_submitted_again(user: User) -> None:
    user.submitted("method=vicreg seed=0,1,2,3")
    assert "all cells are finished, run or wait" in user.submit()
    user.slurm.lose("1_0", "1_1", "1_2", "1_3")
    assert set(user.states()) == {"lost"}
    done, tuned, running, lost = (user.sweep / cell for cell in user.cells())
    cell, _ = load_run([*user.tiny, "method=vicreg"])
    (done / "record.json").write_text(made(cell.plain()).text())
    (tuned / "tuning.json").write_text("{}")
    # whatever becomes of the others
    assert "all cells are finished" in user.submit("seed=0", "--wait")
    attempted(tuned, "done")
    attempted(running, None)
    assert user.states() == ["done", "tuned", "running", "lost"]
    output = user.run("retry", "own")
    assert f"{tuned.name}  VICReg seed 1: was tuned" in output
    assert f"{lost.name}  VICReg seed 3: was lost" in output
    assert "submitted 2 cells as 5" in output
    assert user.slurm.queued() == ["5_0", "5_1"]
    # which is no failure of those that wait
    assert "all cells are finished, run or wait" in user.submit()


def test_a_tuning_submits_what_its_cells_need(user: User) -> None:
    """A cell that is tuned has come through the stages of the choice, and not through the final
    one.
    """
    user.write("method=vicreg method.alignment_weight=10,20")
    words = ("tune", str(user.folder / "own.yaml"), *OPTIONS)
    assert "the same command goes on" in user.run(*words)
    user.slurm.lose(*user.slurm.queued())
    assert "submitted 2 cells as 3" in user.run("retry", "own")
    user.slurm.lose(*user.slurm.queued())
    for status in user.statuses():
        cell = load_run([*user.tiny, "method=vicreg"])[0].plain()
        record = made(cell, status="tuned", scores=(knn_top1(50.0 + len(status.cell_id)),))
        (status.directory / "tuning.json").write_text(record.text())
        attempted(status.directory, "done")
    assert "nothing to try again" in user.run("retry", "own")
    assert "submitted 1 cell" in user.run(*words)
    stages = [entry["stages"] for entry in submissions(user.sweep)]
    assert stages == [*[["pretrain", "tune"]] * 2, ["pretrain", "tune", "final"]]


@pytest.mark.parametrize("longest", ["3", "9\nSchedulerParameters = defer,max_array_tasks=2"])
def test_arrays_are_no_longer_than_the_cluster_lets_them_be(user: User, longest: str) -> None:
    (user.slurm.folder / "longest").write_text(longest)
    user.write("method=vicreg seed=0,1,2,3,4")
    assert "submitted 5 cells as 1, 3, 5" in user.submit()
    assert user.slurm.queued() == ["1_0", "1_1", "3_0", "3_1", "5"]


@pytest.mark.parametrize(
    ("nodes", "limit", "arrays", "queued"),
    [(1, 4, "1, 4", ["1_0", "1_1", "1_2", "4"]), (2, 3, "4, 5", ["4", "5"])],
)
def test_of_cells_that_a_limit_keeps_out_those_that_fit_are_submitted(
    nodes: int, limit: int, arrays: str, queued: list[str], user: User
) -> None:
    """A cell on two nodes has two jobs, both of which must fit."""
    (user.slurm.folder / "limit").write_text(str(limit))
    user.write(f"method=vicreg seed=0,1,2,3,4,5 cluster.nodes={nodes}")
    count = limit // nodes
    assert f"submitted {counted(count, 'cell')} as {arrays};" in user.submit()
    assert user.slurm.queued() == queued
    assert not list((user.sweep / "jobs").glob("*.intent"))
    assert "job submit limit" in user.submit(code=2)
    (user.slurm.folder / "limit").unlink()
    assert f"submitted {counted(6 - count, 'cell')} as" in user.submit()
    assert all("_submitted" in path.name for path in user.sweep.glob("jobs/logs/*.pkl"))


@pytest.mark.parametrize("command", ["sweep", "tune"])
def test_waiting_ends_when_no_cell_waits_or_runs_any_more(
    command: str, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.write("method=vicreg")
    states = iter(("RUNNING", "ENDED"))
    sleep = SimpleNamespace(sleep=lambda _: user.slurm.change("1", state=next(states)))
    monkeypatch.setattr(manage, "time", sleep)  # not subprocess's
    waited = user.run(command, str(user.folder / "own.yaml"), *OPTIONS, "--wait", code=1)
    assert "1 of 1 cell not finished: VICReg seed 0 lost" in waited


@pytest.mark.parametrize("remembers", ["squeue", "sacct"])
def test_what_is_cancelled_to_make_room_for_others_is_submitted_again(
    remembers: str, user: User
) -> None:
    """By retry and sweep.

    Though the job had no time to come to run our code, or a stage of it waited for the first.
    """
    user.submitted("method=vicreg seed=0,1,2", "method=simclr cluster.nodes=2")
    logs = user.sweep / "jobs" / "logs"
    (logs / "1_1_missed").write_text("\n")
    (logs / "1_2_error").write_text("ValueError: no")
    user.slurm.lose(*user.slurm.queued())
    for name in ("1_0", "1_1", "4"):
        user.slurm.change(name, state="PREEMPTED", forgotten=remembers == "sacct")
    if remembers == "sacct":
        accounts = "1_0|PREEMPTED\n1_1|PREEMPTED\n4|PREEMPTED\n5|CANCELLED\n"
        (user.slurm.folder / "accounts").write_text(accounts)
    assert user.states() == ["preempted", "preempted", "failed", "preempted"]
    assert "job 1_0 was cancelled to make room for others" in user.run("status", "own")
    assert "seed 0: was preempted" in user.run("retry", "own", user.cells()[0])
    assert "submitted 3 cells" in user.submit()
    assert user.states() == ["queued"] * 4


@pytest.mark.parametrize("command", ["scontrol", "sbatch"])
def test_waiting_submits_again_what_is_cancelled_to_make_room_for_others(
    command: str, user: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the controller does not answer a command of the first try."""
    user.write("method=vicreg")
    events = iter(["1 RUNNING", "1 PREEMPTED", "1 PREEMPTED", "2 RUNNING", "2 ENDED"])

    def sleep(_: float) -> None:
        name, state = next(events).split()
        user.slurm.change(name, state=state)
        if state == "RUNNING":
            (user.slurm.folder / f"{command}-away").touch()

    monkeypatch.setattr(manage, "time", SimpleNamespace(sleep=sleep))
    with caplog.at_level("INFO", "regbench"):
        assert "VICReg seed 0 lost" in user.submit("--wait", code=1)
    assert "was preempted; submitted 1 cell as 2" in caplog.text


def test_before_cells_are_submitted_their_data_sets_are_prepared(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of their evaluations too. A job's Python may have a sink that this one lacks.

    A run here needs it.
    """
    prepared: list[str] = []

    def prepare(datasets: Sequence[DatasetConfig], _: Path) -> None:
        prepared.extend(dataset.name for dataset in datasets)

    monkeypatch.setattr("regbench.sweeps.run.prepare_all", prepare)
    monkeypatch.setitem(sys.modules, "wandb", None)
    user.write("method=vicreg evaluation.protocols=[knn,places205]")
    user.submit("runtime.sinks=[wandb]")
    assert prepared == ["tiny", "places205"]
    refused = user.refused("sweep", str(user.folder / "own.yaml"), "runtime.sinks=[wandb]")
    assert "wandb is not installed here" in refused


def test_each_array_is_named_once_to_be_cancelled(user: User) -> None:
    """Slurm limits the requests of a user. What it cancels though it answers too late is known."""
    user.submitted("method=vicreg seed=0,1,2", "method=simclr cluster.mem_gib=1")
    first, _, third, _ = user.cells()
    assert "cancelled 2 cells" in user.run("cancel", "own", first, third)
    assert user.slurm.queued() == ["1_1", "4"]
    (user.slurm.folder / "late").touch()
    assert "Slurm does not answer" in user.refused("cancel", "own")
    assert user.states() == ["cancelled"] * 4
    assert (user.slurm.folder / "cancelled").read_text() == "1_[0,2]\n1 4\n"


def test_jobs_find_relative_folders(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.write("method=vicreg")
    monkeypatch.chdir(user.folder)
    Path("data").symlink_to(load_run(user.tiny)[1].data_dir)
    user.run("sweep", "own.yaml", *OPTIONS, "runtime.runs_dir='my runs'", "runtime.data_dir=data")
    (task,) = user.slurm.tasks().values()
    assert task["asked"]["job-name"].startswith("regbench-own-")
    (note,) = submissions(user.folder / "my runs" / "own")
    folders = [note["runtime"][name] for name in ("runs_dir", "data_dir")]
    assert folders == [str(user.folder / name) for name in ("my runs", "data")]


def test_logs_are_not_looked_through_for_each_cell_that_never_began(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.submitted("method=vicreg seed=0,1,2")
    logs, glob = user.sweep / "jobs" / "logs", Path.glob
    for name in ("1_0", "1_1", "1_2"):
        (logs / f"{name}_missed").touch()
        (logs / f"{name}_0_log.err").write_text("no apptainer")
    user.slurm.lose("1_0", "1_1", "1_2")

    def elsewhere(path: Path, pattern: str) -> Iterator[Path]:
        assert path != logs
        return iter(glob(path, pattern))

    monkeypatch.setattr(Path, "glob", elsewhere)
    assert [status.detail[-12:] for status in user.statuses()] == ["no apptainer"] * 3


def test_stages_wait_for_each_other(user: User) -> None:
    user.write("method=vicreg seed=0,1")
    user.submit("cluster.stages={pretrain: {nodes: 2}, tune: {}, final: {cpus: 2}}")
    asked = [user.slurm.tasks()[name]["asked"] for name in ("1_0", "3_0", "5_1")]
    assert [entry.get("dependency") for entry in asked] == [None, "aftercorr:1", "aftercorr:3"]
    sizes = [(entry["nodes"], entry["cpus-per-task"]) for entry in asked]
    assert sizes == [("2", "1"), ("1", "1"), ("1", "2")]
    for state in ("PENDING", "RUNNING"):
        user.slurm.change("1_0", state=state)
        assert [status.job for status in user.statuses()] == ["1_0", "1_1"]
    user.slurm.lose("1_0")
    assert [status.job for status in user.statuses()] == ["3_0", "1_1"]
    assert "cancelled 1 cell" in user.run("cancel", "own", user.cells()[1])
    assert user.slurm.queued() == ["3_0", "5_0"]
    assert user.states() == ["queued", "cancelled"]
    assert "submitted 1 cell as 7, 8, 9" in user.run("retry", "own")  # all stages again


def test_of_two_jobs_of_a_cell_the_one_that_runs_is_shown(user: User) -> None:
    """Slurm had lost sight of the first, which then waits behind the second."""
    user.submitted("method=vicreg")
    user.slurm.lose("1")
    user.submit()
    user.slurm.change("1", state="PENDING")
    user.slurm.change("2", state="RUNNING")
    (user.sweep / "jobs" / "9.json").write_text("{}")  # a note that says nothing hides no other
    assert [(status.state, status.job) for status in user.statuses()] == [("running", "2")]
    user.slurm.lose("1", "2")
    assert [(status.state, status.job) for status in user.statuses()] == [("lost", "2")]
    # Slurm's ids have begun again.
    user.slurm.change("2", state="RUNNING", asked={"job-name": "another user's"})
    assert user.states() == ["lost"]


def test_a_job_with_gpus_does_not_train_on_cpus(user: User) -> None:
    user.write("method=vicreg")
    stages = "cluster.stages={pretrain: {gpus: 1}, tune: {}, final: {}}"
    user.submit("runtime.device=auto", stages)
    devices = []
    for name in ("1", "2"):
        job = DelayedSubmission.load(user.sweep / "jobs" / "logs" / f"{name}_submitted.pkl")
        devices.append(job.args[1].device)
    assert devices == ["cuda", "auto"]


def test_evaluations_after_a_training_without_gpus_ask_for_none(user: User) -> None:
    """What befell the training is told though Slurm has dropped the evaluations after it."""
    user.write("method=vicreg")
    assert "submitted 1 cell as 1, 2" in user.submit("cluster.nodes=2")
    training, evaluations = (user.slurm.tasks()[name]["asked"] for name in ("1", "2"))
    assert (training["nodes"], evaluations["nodes"]) == ("2", "1")
    assert "gpus-per-node" not in training | evaluations
    user.slurm.lose("1", "2")
    (user.sweep / "jobs" / "logs" / "1_error").write_text("ValueError: no")
    (status,) = user.statuses()
    assert (status.state, status.detail) == ("failed", "ValueError: no")


def test_refusals(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.write("method=vicreg")
    again = ("sweep", str(user.folder / "own.yaml"), *OPTIONS)
    refused = user.submit("cluster.partition=none", "seed=2", code=2)
    assert "Slurm refuses the jobs" in refused
    assert "invalid partition specified: none" in refused
    user.submit()
    assert not list((user.sweep / "jobs").glob("*.intent"))  # what was refused is forgotten
    (directory,) = (status.directory for status in user.statuses() if status.job)
    attempted(directory, "failed", "ValueError: of an earlier job")
    (user.sweep / "jobs" / "logs" / "1_error").touch()  # of an earlier life
    user.slurm.away(99)
    for words in ((*again, "seed=1"), ("cancel", "own")):
        assert "Slurm does not answer" in user.refused(*words)
    # What it does not know is taken for what it was.
    (submitted,) = (status for status in user.statuses() if status.job)
    assert submitted.state == "queued"
    assert submitted.detail == "submitted; the scheduler does not answer"
    user.slurm.away(0)
    user.slurm.change("1", state="")  # as in a line that is cut off
    assert user.states().count("queued") == 1
    user.slurm.change("1", state="PENDING")
    monkeypatch.setenv("PATH", "/nowhere")
    for command in (again, ("cancel", "own"), ("retry", "own")):
        told = user.refused(*command).splitlines()[-1]
        assert told.startswith("regbench: there is no sbatch here")
    assert "does not answer" in user.run("status", "own")


def test_jobs_that_slurms_other_commands_would_not_find_are_refused(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.write("method=vicreg")
    for key in ("clusters", "M", "job-name"):
        assert "cluster.extra" in user.submit(f"cluster.extra={{{key}: b}}", code=2)
    monkeypatch.setenv("SBATCH_CLUSTERS", "b")
    assert "export SLURM_CLUSTERS" in user.call_sweep().output
    assert not user.slurm.tasks()


def test_a_command_within_a_job_hands_nothing_of_it_on(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user has set for Slurm's commands stays, but for what hides jobs."""
    gone = ("SLURM_ARRAY_JOB_ID", "SLURM_CPU_BIND", "SLURM_RESTART_COUNT", "RANK")
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_QOS")
    for name in (*gone, *kept):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    user.submitted("method=vicreg")
    handed_on = json.loads((user.slurm.folder / "environment").read_text())
    assert [name for name in (*gone, *kept) if name in handed_on] == [*kept]
    assert os.environ["SLURM_RESTART_COUNT"] == "7"
    assert user.states() == ["queued"]


def test_folders_whose_names_slurm_would_change_are_refused(user: User) -> None:
    user.write("method=vicreg")
    for name in ("50%j", "back\\slash"):
        refused = user.submit(f"runtime.runs_dir='{user.folder / name}'", code=2)
        assert name in refused and "choose another folder" in refused
    assert not user.slurm.tasks()


# ------------------------------------------------------------------ two at a time, killed half-way


def test_two_submissions_at_a_time_submit_each_cell_once(
    user: User, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "regbench")
    user.write("method=vicreg")
    (user.slurm.folder / "hold").touch()
    runs = f"runtime.runs_dir={user.sweep.parent}"
    first, second = (
        load_sweep(str(user.folder / "own.yaml"), [*OPTIONS, runs, seeds])
        for seeds in ("seed=0,1", "seed=1,2")
    )
    with ThreadPoolExecutor(2) as pool:
        submitted = [pool.submit(manage.submit_sweep, first, STAGES)]
        wait_for((user.slurm.folder / "holding").exists)
        submitted.append(pool.submit(manage.submit_sweep, second, STAGES))
        wait_for(lambda: "is at work here; waiting" in caplog.text)
        (user.slurm.folder / "hold").unlink()
    assert [future.result() for future in submitted] == [(2, ["1"]), (1, ["3"])]
    assert [status.seed for status in user.statuses()] == [0, 1, 2]
    assert user.states() == ["queued"] * 3
    assert len(user.slurm.tasks()) == 3


@pytest.mark.parametrize(
    ("command", "says", "state"),
    [
        ("sweep", "all cells are finished, run or wait", "queued"),
        ("retry", "nothing to try again", "queued"),
        ("cancel", "cancelled 2 cells", "cancelled"),
    ],
)
def test_a_submission_that_was_killed_is_found_again(
    command: str, says: str, state: str, user: User
) -> None:
    user.write("method=vicreg seed=0,1")

    with mock.patch("regbench.slurm.submit.note_submitted", side_effect=KeyboardInterrupt):
        user.submit(code=130)
    assert user.slurm.queued() == ["1_0", "1_1"]
    assert user.states() == ["pending", "pending"]
    assert says in (user.submit() if command == "sweep" else user.run(command, "own"))
    assert user.slurm.queued() == (["1_0", "1_1"] if state == "queued" else [])
    found = [(status.state, status.job) for status in user.statuses()]
    assert found == [(state, "1_0"), (state, "1_1")]


@pytest.mark.parametrize("given", [(), ("1_0",)], ids=["none", "one"])
def test_a_job_that_does_not_know_what_to_do_makes_way(user: User, given: Sequence[str]) -> None:
    """Slurm has it, but whoever submits has not heard so, and has not given all jobs their
    arguments.
    """
    user.write("method=vicreg seed=0,1")
    (user.slurm.folder / "late").touch()
    user.submit(code=2)
    assert user.slurm.queued() == ["1_0", "1_1"]
    for name in given:
        (user.sweep / "jobs" / "logs" / f"{name}_submitted.pkl").touch()
    (user.slurm.folder / "late").unlink()
    assert "submitted 2 cells as 3" in user.submit()
    assert user.slurm.queued() == ["3_0", "3_1"]


# ------------------------------------------------------------------ retry, cancel


def test_a_cancelled_cell_says_so_until_it_is_tried_again(user: User) -> None:
    user.submitted("method=vicreg seed=0,1")
    first, _ = user.cells()
    assert "cancelled 1 cell" in user.run("cancel", "own", first[:6])
    assert user.slurm.queued() == ["1_1"]
    assert user.states() == ["cancelled", "queued"]
    assert f"{first}  VICReg seed 0: was cancelled" in user.run("retry", "own")
    assert user.states() == ["queued", "queued"]
    user.slurm.lose("3")  # which nobody cancelled
    assert user.states() == ["lost", "queued"]
    assert "submitted 1 cell as 4" in user.submit("cluster.time_minutes=70")
    assert "cancelled 2 cells" in user.run("cancel", "own")
    assert user.states() == ["cancelled", "cancelled"]
    assert "cancelled 0 cells" in user.run("cancel", "own")
    assert "submitted 2 cells" in user.run("retry", "own")  # each as it was submitted last
    first, second = (user.slurm.tasks()[name]["asked"] for name in user.slurm.queued())
    assert first["time"] == "70" != second["time"]


def test_held_jobs_are_released_and_those_of_finished_cells_cancelled(user: User) -> None:
    user.submitted("method=vicreg seed=0,1,2")
    first, second, third = user.cells()
    for name in ("1_0", "1_1"):
        user.slurm.change(name, reason="launch failed requeued held")
    user.slurm.change("1_2", state="RUNNING")
    for cell, status in ((second, "diverged"), (third, "done")):
        (user.sweep / cell / "record.json").write_text(made(status=status).text())
    output = user.run("retry", "own")
    held = "held by Slurm (pending (launch failed requeued held))"
    assert f"{first}  VICReg seed 0: {held}\n" in output
    assert "released job 1_0" in output
    assert "cancelled 1_1: the cells are finished" in output
    # what runs is about to see that there is nothing to do
    assert user.slurm.queued() == ["1_0", "1_2"]
    assert user.slurm.tasks()["1_0"]["reason"] == "Priority"


def test_a_job_that_an_administrator_holds_keeps_no_other_from_another_try(user: User) -> None:
    user.submitted("method=vicreg seed=0,1")
    user.slurm.change("1_0", reason="JobHeldAdmin")
    user.slurm.lose("1_1")
    output = user.run("retry", "own")
    assert "job 1_0 stays held: Slurm does not answer, or refuses" in output
    assert "submitted 1 cell as 3" in output


def test_stages_that_slurm_refused_are_asked_for_again(user: User) -> None:
    user.write("method=vicreg")
    stages = "cluster.stages={pretrain: {}, tune: {partition: none}, final: {}}"
    refusal = "Slurm refuses the jobs: .*invalid partition specified: none"
    assert re.search(refusal, user.call_sweep(stages).output)
    user.slurm.lose("1")
    assert re.search(refusal, user.call("retry", "own").output)


def test_a_folder_that_is_gone_does_not_keep_other_cells_from_being_tried_again(user: User) -> None:
    user.submitted("method=vicreg seed=0,1")
    user.slurm.lose("1_0", "1_1")
    first, second = user.cells()
    shutil.rmtree(user.sweep / first)
    output = user.run("retry", "own")
    assert f"{first}  VICReg seed 0: its folder is gone; give the sweep's command again" in output
    assert f"{second}  VICReg seed 1: was lost" in output
    assert "submitted 1 cell as 3" in output
    assert "submitted 1 cell as 4" in user.submit()
    assert user.states() == ["queued", "queued"]


def test_settings_that_are_gone_are_refused_with_what_to_do(user: User) -> None:
    user.submitted("method=vicreg")
    user.slurm.lose("1")
    note = user.sweep / "jobs" / "1.json"
    content = json.loads(note.read_text())
    note.write_text(json.dumps(content | {"runtime": content["runtime"] | {"gone": 1}}))
    refused = user.refused("retry", "own")
    assert "gone" in refused and "give the sweep's own command again" in refused
    assert "submitted 1 cell as 2" in user.submit()


def test_only_what_went_to_slurm_can_be_tried_again(user: User) -> None:
    user.sweep.mkdir(parents=True)
    (user.sweep / "sweep.json").write_text('{"cells": []}')
    assert "was not submitted to Slurm" in user.refused("retry", "own")
    assert "cancelled 0 cells" in user.run("cancel", "own")


# ------------------------------------------------------------------ what jobs do


@pytest.fixture
def process(
    standin: Standin, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Process]:
    """This process as one of a job, with nothing to do."""
    for name in RANKS:
        monkeypatch.setenv(name, "")  # so that it is put back
    monkeypatch.setenv("SUBMITIT_FOLDER", str(tmp_path))
    # pytest has handlers of its own
    monkeypatch.setattr("regbench.slurm.job._log_to_file", lambda: None)
    handler = signal.getsignal(signal.SIGCONT)
    seen: list[dict[str, str]] = []
    run_cell = "regbench.benchmark.run.run_cell"
    monkeypatch.setattr(run_cell, lambda *_: seen.append(dict(os.environ)))
    cell, runtime = load_run([*tiny, "method=vicreg"])

    def begin(stages: Sequence[str] = STAGES, **variables: str) -> dict[str, str]:
        """Returns the environment in which the cell would run."""
        for name, value in variables.items():
            monkeypatch.setenv(f"SLURM_{name}", value)
        seen.clear()
        SlurmJob()(cell.plain(), runtime, "own", stages)
        return seen[0]

    yield begin
    signal.signal(signal.SIGCONT, handler)


def test_the_processes_of_a_job_know_each_other(process: Process, tmp_path: Path) -> None:
    """The sixth of eight on two nodes, in two lives of a job.

    That all began is for the first of them to say.
    """
    (tmp_path / "7_missed").touch()
    nodes = {"NNODES": "2", "JOB_NODELIST": "node[1-2]"}
    first = process(JOB_ID="7", PROCID="5", LOCALID="1", NTASKS="8", **nodes)
    assert [first[name] for name in RANKS[:-1]] == ["5", "8", "1", "4", "node1"]
    assert (tmp_path / "7_missed").exists()
    second = process(RESTART_COUNT="1")
    assert first["MASTER_PORT"] != second["MASTER_PORT"]


def test_lives_that_come_no_farther_are_not_for_ever(
    process: Process, tiny: list[str], tmp_path: Path
) -> None:
    """Ten in a row, of this job, that began where the one before began."""
    directory = tmp_path / "runs" / "own" / load_run([*tiny, "method=vicreg"])[0].id

    def write(number: int, ended: str = "interrupted", **more: Any) -> None:
        life = {"owner": {"slurm_job_id": "7"}, "progress": {"began": {"step": 4}}, **more}
        attempted(directory, ended, number=number, **life)

    for number in range(1, 11):
        write(number)
    with is_refused("10 lives of this job came no farther than step: 4; give the same"):
        process(**SINGLE)
    # which the batch script looks for
    assert "came no farther" in (tmp_path / "7_error").read_text()
    assert process(**{**SINGLE, "JOB_ID": "8"})  # tried again
    assert process(**{**SINGLE, "PROCID": "1"})  # the first process tells
    for more in (
        {"progress": {"began": {"step": 8}}},
        {"progress": {"began": {"step": 4, "probe": 2}}},
        {"ended": "failed"},
        {"owner": {"slurm_job_id": "6"}},
    ):
        write(3, **more)
        assert process(**SINGLE)


def test_lives_that_end_before_they_come_to_work_are_not_for_ever(
    process: Process, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the time is up while code is loaded, on a busy machine: they leave no attempt."""
    assert process(**SINGLE, RESTART_COUNT="9")
    directory = tmp_path / "runs" / "own" / load_run([*tiny, "method=vicreg"])[0].id
    for restarts, owner in (
        ("10", {"slurm_job_id": "6", "slurm_restarts": 3}),
        ("14", {"slurm_job_id": "7", "slurm_restarts": 3}),
    ):
        attempted(directory, "interrupted", number=1, owner=owner)
        assert process(**SINGLE, RESTART_COUNT=str(int(restarts) - 1))
        with monkeypatch.context() as patch, is_refused("10 lives of this job ended before"):
            # nothing of that is loaded before
            patch.setitem(sys.modules, "regbench.benchmark.run", None)
            process(**SINGLE, RESTART_COUNT=restarts)
        assert "before they came to work" in (tmp_path / "7_error").read_text()
        (tmp_path / "7_error").unlink()


# Slurm does not answer at first. What it sends back into the queue does not run any more.
SCONTROL = """\
[ -e answers ] || { touch answers; exit 1; }
case $1 in
show) echo JobState=$(cat state) ;;
requeue) echo PENDING >state ;;
esac
"""


# Whether a life of a job began, had an error, its exit code, what lives before it noted, what Slurm
# says of it, and whether it is queued again.
ENDS = [
    (True, False, 137, "", "RUNNING", True),
    (True, False, 137, "", "CANCELLED", False),
    (True, False, 1, "", "RUNNING", False),
    (True, False, 0, "", "RUNNING", False),
    (True, True, 137, "", "RUNNING", False),
    (True, None, 137, "\n", "RUNNING", True),  # the error is of an earlier life
    (False, False, 2, "", "RUNNING", True),  # it never came to run regbench
    (False, False, 2, "\n", "RUNNING", False),  # nor the second time
    (False, False, 140, "\n", "RUNNING", True),  # preempted before it could notice
    (False, False, 143, 19 * ".", "RUNNING", True),
    (False, False, 143, 20 * ".", "RUNNING", False),
]


@pytest.mark.parametrize("life", ENDS)
def test_the_batch_script_queues_a_killed_job_again_and_no_other(
    life: tuple[bool, bool | None, int, str, str, bool], user: User
) -> None:
    """However often its time was up, or it was preempted."""
    begun, error, code, missed, state, requeued = life
    user.submitted("method=vicreg")
    script = user.slurm.tasks()["1"]["script"]
    note = user.sweep / "jobs" / "logs" / "1"
    Path(f"{note}_missed").write_text(missed)
    if error is None:
        Path(f"{note}_error").touch()
    lines = [f"rm {note}_missed" if begun else "", f"touch {note}_error" if error else ""]
    programs = {"srun": "\n".join([*lines, f"exit {code}"]), "scontrol": SCONTROL, "sleep": ""}
    for name, text in programs.items():
        (user.folder / name).write_text(f"#!/bin/sh\n{text}")
        (user.folder / name).chmod(0o755)
    (user.folder / "state").write_text(state)
    environment = {"SLURM_JOB_ID": "1", "SLURM_RESTART_COUNT": "99"}
    environment["PATH"] = f"{user.folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", script], cwd=user.folder, env=environment, check=False)
    assert done.returncode == code
    assert ((user.folder / "state").read_text() == "PENDING\n") == requeued


def test_what_a_job_leaves_for_its_batch_script(
    process: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A note of an error of its own, but of no other's; and none that it did not come to run."""

    of_two = {"LOCALID": "0", "NTASKS": "2", "NNODES": "1", "JOB_NODELIST": "node1"}

    def ends(error: Exception) -> list[str]:
        (tmp_path / "7_missed").touch()

        def run(*_: object) -> None:
            raise error

        monkeypatch.setattr("regbench.benchmark.run.run_cell", run)
        with pytest.raises(type(error)):
            process(**SINGLE | of_two)
        return sorted(path.name for path in tmp_path.glob("7_*"))

    assert ends(PeerLost("rank 1 was lost")) == []
    assert ends(LeaseLost("another process has it")) == []
    assert ends(ValueError("the true error")) == ["7_error"]
    assert (tmp_path / "7_error").read_text() == "ValueError: the true error"
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="the true error"):
        patch.setenv("SLURM_ARRAY_JOB_ID", "5")
        process(JOB_ID="7", ARRAY_TASK_ID="2")
    assert (tmp_path / "5_2_error").exists()

    def meet(*_: object) -> None:
        port = int(os.environ["MASTER_PORT"])
        with socket.create_server(("", port)), connect(torch.device("cpu")):
            pass

    monkeypatch.setattr("regbench.benchmark.run.run_cell", meet)
    with pytest.raises(SystemExit, match="143"):  # its next life takes another port
        process(JOB_ID="8")
    assert not (tmp_path / "8_error").exists()


@pytest.mark.parametrize(
    ("number", "rank", "told"),
    [("SIGUSR2", "0", "requeue"), ("SIGUSR2", "1", ""), ("SIGTERM", "0", "")],
)
def test_only_a_job_whose_time_is_up_goes_into_the_queue_again(
    number: str, rank: str, told: str, user: User, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first process asks until Slurm answers.

    All wait ten minutes, as Slurm knows who was cancelled. Then the batch script asks it.
    """
    user.submitted("method=vicreg seed=0,1")
    user.slurm.away(1)
    slept_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: sum(slept_s), sleep=slept_s.append)
    monkeypatch.setattr("regbench.slurm.job.time", clock)
    told_by = signal.Signals[number]
    run_cell = "regbench.benchmark.run.run_cell"
    monkeypatch.setattr(run_cell, lambda *_: signal.raise_signal(told_by))
    with pytest.raises(SystemExit, match="143"):
        process(JOB_ID="2", ARRAY_JOB_ID="1", ARRAY_TASK_ID="1", PROCID=rank, NTASKS="1")
    assert [task["told"] for task in user.slurm.tasks().values()] == ["", told]
    assert sum(slept_s) == 600


def test_a_job_opens_the_test_split_to_no_cell_that_its_tuning_has_not_chosen(
    process: Process, tmp_path: Path
) -> None:
    (tmp_path / "runs" / "own").mkdir(parents=True)
    (tmp_path / "runs" / "own" / "tune.json").write_text("[]")
    assert process(STAGES[:2], **SINGLE)
    with is_refused("the tuning own has not chosen yet"):
        process(**SINGLE)


def test_a_job_that_is_told_to_stop_before_it_listens_does_the_same_again() -> None:
    again = SlurmJob().checkpoint("cell", "runtime")
    assert (type(again.function), again.args) == (SlurmJob, ("cell", "runtime"))


class Lives:
    """The lives of Slurm jobs that evaluate an untrained network, whose probe is slow."""

    def __init__(self, tiny: list[str], folder: Path, patch: pytest.MonkeyPatch) -> None:
        untrained = ("epochs=0", "optimizer.warmup_epochs=0")
        slow = ("evaluation.protocols=[probe]", "evaluation.probe.epochs=30")
        self.cell, self.runtime = load_run([*tiny, *untrained, *slow])
        self.directory = run_directory(self.runtime, "own", self.cell)
        self.patch = patch
        for name, value in {"PROCID": "0", "NTASKS": "1", "NNODES": "1"}.items():
            patch.setenv(f"SLURM_{name}", value)
        patch.setenv("SUBMITIT_FOLDER", str(folder))
        # pytest has handlers of its own
        patch.setattr("regbench.slurm.job._log_to_file", lambda: None)
        patch.setattr(states, "SAVE_EVERY_S", 0.0)

    def live(self, job: str, life: int) -> None:
        """A life of a job; raises what ended it."""
        self.patch.setenv("SLURM_JOB_ID", job)
        self.patch.setenv("SLURM_RESTART_COUNT", str(life))
        handler = signal.getsignal(signal.SIGCONT)
        try:
            SlurmJob()(self.cell.plain(), self.runtime, "own", STAGES)
        finally:
            signal.signal(signal.SIGCONT, handler)

    def interrupted(self, job: str, life: int, *, after: bool) -> None:
        """One that ends before or after it keeps what an epoch of the probe has done."""
        save = State.save

        def saves(state: State, done: str, **changes: Any) -> None:
            if after:
                save(state, done, **changes)
            raise KeyboardInterrupt

        with self.patch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(State, "save", saves)
            self.live(job, life)


@pytest.fixture
def lives(tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lives:
    return Lives(tiny, tmp_path, monkeypatch)


def test_lives_that_come_farther_in_an_evaluation_are_not_in_vain(lives: Lives) -> None:
    for life in range(10):
        lives.interrupted("7", life, after=True)
    lives.live("7", 10)
    record = there(read_record(lives.directory))
    assert len(record.attempts) == 11


def test_a_job_that_comes_no_farther_ends_and_another_may_try(lives: Lives) -> None:
    lives.interrupted("7", 0, after=True)
    for life in range(1, 11):
        lives.interrupted("7", life, after=False)
    with is_refused(r"10 lives of this job came no farther than .*epoch 1 of 30.* retry"):
        lives.live("7", 11)
    assert len(read_attempts(lives.directory)) == 11
    lives.live("8", 0)
    assert read_record(lives.directory) is not None


def test_a_life_that_lost_its_run_to_the_next_leaves_no_error(lives: Lives, tmp_path: Path) -> None:
    """Which would end the next life too."""

    def taken_over(_: State, __: str, **___: Any) -> None:
        lives.patch.setenv("SLURM_RESTART_COUNT", "1")
        there(claim(lives.directory, 60.0)).end("interrupted")

    with lives.patch.context() as patch, pytest.raises(LeaseLost):
        patch.setattr(State, "save", taken_over)
        lives.live("7", 0)
    assert not list(tmp_path.glob("*_error"))
