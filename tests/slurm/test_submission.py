"""Sweeps on a real Slurm cluster: submission, stages, and what is said of them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from regbench.benchmark.rundir.lease import read_attempts
from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.rundir.tuning_choice import read_choice
from regbench.slurm import manage
from regbench.slurm.queue import submissions
from tests.slurm.testbed import Testbed, wait_for
from tests.slurm.user import OPTIONS, User
from tests.there import there

pytestmark = pytest.mark.slurm


@pytest.fixture
def user(slurm: Testbed, program: str, tiny: list[str], tmp_path: Path) -> User:
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


def test_a_tuning_chooses_and_tests_what_it_chose(user: User) -> None:
    cells = ("vicreg method.alignment_weight=10,20", "simclr method.temperature=0.1,0.2")
    user.write(*(f"method={cell}" for cell in cells))
    assert "the same command goes on" in user.run("tune", "own.yaml", *OPTIONS)
    wait_for(lambda: user.states() == {"tuned"}, "all cells tuned", 240)
    tuned = user.run("tune", "own.yaml", *OPTIONS, "--seeds", "0,1", "--wait", "--report")
    assert "chosen on the tuning split from at most 2 configurations a method" in tuned
    states = sorted(status.state for status in manage.statuses(user.sweep))
    assert states == ["done"] * 4 + ["tuned"] * 2
    stages = [entry["stages"] for entry in submissions(user.sweep)]
    assert sorted(stages) == [["pretrain", "tune"], ["pretrain", "tune", "final"]]


def test_a_repeated_tuning_chooses_in_each_search_and_scores_each_choice(user: User) -> None:
    user.write("method=vicreg method.alignment_weight=10,20")
    tune = ("tune", "own.yaml", "--repeats", "2", "--seeds", "0,1", *OPTIONS)
    assert "the same command goes on" in user.run(*tune)
    wait_for(lambda: user.states() == {"tuned"}, "both searches", 600)
    assert len(manage.statuses(user.sweep)) == 4
    user.run(*tune, "--wait", "--report")
    choice = there(read_choice(user.sweep))
    assert [entry.search for entry in choice.choices] == [0, 1]
    finals = []
    for status in manage.statuses(user.sweep):
        record = read_record(status.directory)
        if record is not None:
            finals.append((record.search, record.seed))
            weight = record.cell["method"]["alignment_weight"]
            entry = choice.choices[record.search or 0]
            assert weight == entry.ranking[0].hyperparameters["method.alignment_weight"]
    assert sorted(finals) == [(0, 0), (0, 1), (1, 1000), (1, 1001)]
    assert "| 4 in 2 " in (user.sweep / "report" / "leaderboard.md").read_text()
    again = user.run(*tune, "--wait")
    assert "0 to run" in again


def test_stages_follow_each_other_without_anybody_waiting(user: User, slurm: Testbed) -> None:
    user.write("method=vicreg seed=0,1", "method=simclr evaluation.knn.k=5000")
    stages = "cluster.stages={pretrain: {nodes: 2}, tune: {}, final: {cpus: 2}}"
    user.run("sweep", "own.yaml", *OPTIONS, stages)
    # Slurm tells why a job waits once it has looked at it.
    reason = "(Dependency)"
    wait_for(lambda: reason in user.run("status", "own") or user.states() != {"queued"}, reason)
    wait_for(lambda: not {"running", "queued"} & user.states(), "the stages to end", 240)
    *good, bad = manage.statuses(user.sweep)
    for status in good:
        record = there(read_record(status.directory))
        assert status.state == "done"
        attempts = read_attempts(status.directory)
        assert [each["progress"]["stage"] for each in attempts] == ["pretrain", "tune", "final"]
        ends = {(each["ended"], each["owner"]["slurm_restarts"]) for each in attempts}
        assert ends == {("done", 0)}, attempts
        assert record.environment["world_size"] == 2  # of the training
        assert {score.split for score in record.scores} == {"tuning", "test"}
    assert bad.state == "failed"
    assert "evaluation.knn.k=5000" in bad.detail
    # It was refused before its training; what its first stage leads to was never begun, and waits
    # for nobody.
    assert [attempt["ended"] for attempt in read_attempts(bad.directory)] == ["failed"]
    wait_for(lambda: slurm.command("squeue", "--noheader") == "", "the queue to be empty", 30)
    retried = user.run("retry", "own")
    assert "was failed" in retried
    assert "submitted 1 cell" in retried


def test_cancelled_cells_are_interrupted_until_they_are_tried_again(user: User) -> None:
    user.write("method=vicreg epochs=400 seed=0,1")
    user.run("sweep", "own.yaml", *OPTIONS, "cluster.parallel=1")
    statuses = partial(manage.statuses, user.sweep)
    wait_for(lambda: any(each.epochs_done for each in statuses()), "the first to train", 60)
    assert user.run("cancel", "own").splitlines()[-1] == "cancelled 2 cells"
    wait_for(lambda: not {"running", "queued"} & user.states(), "the jobs to end", 60)
    first, second = statuses()
    assert first.state == second.state == "cancelled"
    assert read_attempts(first.directory)[-1]["ended"] == "interrupted"  # what it trained is there
    assert "submitted 2 cells" in user.run("retry", "own")
    cancelled = user.run("cancel", "own", first.cell_id[:5], second.cell_id[:5])
    assert cancelled.splitlines()[-1] == "cancelled 2 cells"


def test_a_container_that_is_missing_is_tried_twice_and_told(user: User) -> None:
    user.write("method=vicreg")
    user.run("sweep", "own.yaml", *OPTIONS, "cluster.container=/nowhere/apptainer exec image.sif")
    wait_for(lambda: user.states() == {"failed"}, "two lives", 240)
    (status,) = manage.statuses(user.sweep)
    assert f"job {status.job} did not come to run regbench" in status.detail
    assert "/nowhere/apptainer" in status.detail and "No such file" in status.detail
    missed = user.sweep / "jobs" / "logs" / f"{status.job}_missed"
    assert len(missed.read_text().splitlines()) == 2
    assert "was failed" in user.run("retry", "own")


def test_a_partition_that_slurm_does_not_have_is_refused_in_its_words(user: User) -> None:
    user.write("method=vicreg")
    refused = user.call("sweep", "own.yaml", *OPTIONS, "cluster.partition=none")
    assert refused.returncode == 2
    # sbatch may have said something before.
    line = refused.stderr.splitlines()[-1]
    assert line.startswith("regbench: ") and "Slurm refuses the jobs" in line
    assert "invalid partition" in refused.stderr and "Traceback" not in refused.stderr
