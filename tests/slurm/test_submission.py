"""Sweeps on a real Slurm cluster: submission, stages, and what is said of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from regbench.benchmark.directory import read_record
from regbench.benchmark.lease import read_attempts
from regbench.slurm import manage
from tests.slurm.testbed import Testbed, wait_for

pytestmark = pytest.mark.slurm

OPTIONS = ("cluster=slurm", "cluster.cpus=1", "cluster.gpus=0")


class User:
    """Somebody at the command line, with a sweep file."""

    def __init__(self, slurm: Testbed, program: str, tiny: list[str], folder: Path) -> None:
        self.program, self.tiny, self.folder = program, tiny, folder
        self.environment = {**os.environ, **slurm.env(), "REGBENCH_RUNS_DIR": str(folder / "runs")}
        self.sweep = folder / "runs" / "own"

    def write(self, *cells: str) -> None:
        common = "".join(f"  - '{override}'\n" for override in self.tiny)
        rows = "".join(f"  - {cell}\n" for cell in cells)
        (self.folder / "own.yaml").write_text(f"description: My own\ncommon:\n{common}cells:\n{rows}")

    def call(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
            timeout=300,
            env={**self.environment, **more},
        )

    def run(self, *words: str) -> str:
        done = self.call(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def states(self) -> set[str]:
        return {status.state for status in manage.statuses(self.sweep)}


@pytest.fixture
def user(slurm: Testbed, program: str, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    for name, value in slurm.env().items():
        monkeypatch.setenv(name, value)
    return User(slurm, program, tiny, tmp_path)


def test_a_sweep_from_submission_to_report(user: User) -> None:
    user.write("method=vicreg,simclr", "method=sfrik_l2 cluster.mem_gib=2")
    planned = user.run("sweep", "own.yaml", *OPTIONS, "--plan")
    assert "3 cells, 0 done, 3 to run; GPU hours unknown" in planned
    submitted = user.run("sweep", "own.yaml", *OPTIONS, "--wait", "--report")
    # Two kinds of resources: an array of two and a job.
    assert submitted.count("VICReg") > 0
    arrays = [json.loads(path.read_text()) for path in (user.sweep / "jobs").glob("*.json")]
    assert sorted(len(array["cells"]) for array in arrays) == [1, 2]
    assert user.states() == {"done"}
    assert (user.sweep / "report" / "index.html").exists()
    again = user.run("sweep", "own.yaml", *OPTIONS)
    assert "all cells are finished, run or wait" in again
    assert "0 to run" in again
    assert len(list((user.sweep / "jobs").glob("*.json"))) == 2
    more = user.run("sweep", "own.yaml", *OPTIONS, "seed=1", "--plan")
    assert "GPU hours by the time of like cells" in more
    cell = manage.statuses(user.sweep)[0].cell_id
    assert "epoch 2/2" in user.run("logs", "own", cell[:6])
    assert "removed 3 files" in user.run("clean", "own")
    assert "removed 0 files" in user.run("clean", "own")


def test_stages_follow_each_other_without_anybody_waiting(user: User, slurm: Testbed) -> None:
    user.write("method=vicreg seed=0,1", "method=simclr evaluation.knn.k=5000")
    stages = "cluster.stages={pretrain: {nodes: 2}, tune: {}, final: {cpus: 2}}"
    user.run("sweep", "own.yaml", *OPTIONS, stages)
    assert "(Dependency)" in user.run("status", "own") or user.states() != {"queued"}
    wait_for(lambda: not {"running", "queued"} & user.states(), "the stages to end", 240)
    *good, bad = manage.statuses(user.sweep)
    for status in good:
        record = read_record(status.directory)
        assert record is not None
        assert status.state == "done"
        assert [attempt["ended"] for attempt in read_attempts(status.directory)] == ["done"] * 3
        assert record["environment"]["world_size"] == 2  # of the training
        assert {score["split"] for score in record["scores"]} == {"tuning", "test"}
    assert bad.state == "failed"
    assert "evaluation.knn.k=5000" in bad.detail
    # What the failed stage leads to was never begun, and waits for nobody.
    assert [attempt["ended"] for attempt in read_attempts(bad.directory)] == ["done", "failed"]
    wait_for(lambda: slurm.command("squeue", "--noheader") == "", "the queue to be empty", 30)
    retried = user.run("retry", "own")
    assert "was failed" in retried
    assert "submitted 1 cells" in retried


def test_cancelled_cells_are_interrupted_until_they_are_tried_again(user: User) -> None:
    user.write("method=vicreg epochs=400 seed=0,1")
    user.run("sweep", "own.yaml", *OPTIONS, "cluster.parallel=1")
    wait_for(lambda: any(s.epochs_done for s in manage.statuses(user.sweep)), "the first to train", 60)
    assert user.run("cancel", "own").splitlines()[-1] == "cancelled 2 cells"
    wait_for(lambda: "running" not in user.states() and "queued" not in user.states(), "the jobs to end", 60)
    first, second = manage.statuses(user.sweep)
    assert first.state == "lost"  # to Slurm it is gone; what was trained is there
    assert read_attempts(first.directory)[-1]["ended"] == "interrupted"
    assert second.state == "lost"
    assert "submitted 2 cells" in user.run("retry", "own")
    assert user.run("cancel", "own", first.cell_id[:5], second.cell_id[:5]).splitlines()[-1] == "cancelled 2 cells"


def test_status_without_the_scheduler(user: User, slurm: Testbed) -> None:
    """From a machine that sees the folder and has no Slurm."""
    user.write("method=vicreg epochs=400", "method=simclr epochs=400")
    user.run("sweep", "own.yaml", *OPTIONS, "cluster.parallel=1")
    wait_for(lambda: any(s.epochs_done for s in manage.statuses(user.sweep)), "the first to train", 60)
    output = user.call("status", "own", PATH="/nowhere").stdout
    assert "running" in output
    assert "submitted; the scheduler does not answer" in output
    refused = user.call("cancel", "own", PATH="/nowhere")
    assert refused.returncode == 2
    assert "Slurm does not answer" in refused.stderr
    assert "cancelled" in user.run("cancel", "own")


def test_refusals(user: User) -> None:
    user.write("method=vicreg")
    without = user.call("sweep", "own.yaml", *OPTIONS, PATH="/nowhere")
    assert without.returncode == 2
    assert "scontrol" in without.stderr
    partition = user.call("sweep", "own.yaml", *OPTIONS, "cluster.partition=none")
    assert partition.returncode == 2
    assert "Slurm refuses the jobs" in partition.stderr
    assert "invalid partition" in partition.stderr
    small = user.call("sweep", "own.yaml", *OPTIONS, "cluster.gpu_memory_gib=0.001")
    assert small.returncode == 2
    assert "1 cells are predicted not to fit a GPU" in small.stderr
    assert "--oversized" in small.stderr
    assert user.call("status", "other").returncode == 2
    for error in (without, partition, small):
        assert error.stderr.splitlines()[-1].startswith("regbench: ")  # sbatch may have said something before
        assert "Traceback" not in error.stderr
