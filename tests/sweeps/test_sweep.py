"""Sweeps: what a run directory tells, and the whole way through the installed command line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tqdm import tqdm

from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.checkpoint import load_checkpoint
from regbench.benchmark.rundir.directory import run_directory, write_config
from regbench.benchmark.rundir.lease import claim, is_running, last_attempt
from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.rundir.record_parts import NamedFile, Saved
from regbench.benchmark.rundir.run_folder import read_plan
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.identity import cell_id
from regbench.benchmark.settings.runtime import STAGES, Runtime
from regbench.benchmark.settings.sweep import load_run, load_sweep
from regbench.datasets.stored.manifest import Manifest
from regbench.sweeps.local import run_sweep
from regbench.sweeps.run import Unfinished, refuse_unfinished
from regbench.sweeps.status import CellJobs, Job, duration, status_table, sweep_status, write_plan
from tests.command import run as command_line
from tests.history import assert_same, untimed
from tests.records import CELL, attempted, chosen, made, ranked, tuning_choice
from tests.refusals import is_refused
from tests.sweep_file import write_sweep
from tests.there import there
from tests.waiting import PATIENCE_S, wait_for

# ------------------------------------------------------------------ status, from files alone


def plan(folder: Path, *cells: str) -> None:
    folder.mkdir(exist_ok=True)
    entries = [{"id": cell, "label": cell.upper(), "seed": 3, "epochs": 5} for cell in cells]
    (folder / "sweep.json").write_text(json.dumps({"description": "", "cells": entries}))


def this_process() -> dict[str, Any]:
    """The owner that an attempt of this process names."""
    with tempfile.TemporaryDirectory() as folder:
        there(claim(Path(folder), 60.0)).end("done")
        owner: dict[str, Any] = there(last_attempt(Path(folder)))["owner"]
    return owner


HERE = this_process()
ELSEWHERE = {**HERE, "hostname": "another"}


def attempt(
    directory: Path, *, ended: str | None = None, error: str = "", silent_s: float = 0, **more: Any
) -> None:
    """One attempt at a run, two epochs far."""
    state = {"owner": HERE, "heartbeat": time.time() - silent_s, "progress": {"epoch": 2}, **more}
    attempted(directory, ended, error, **state)


GONE = Job("7_1", None)
SILENT = Job("7_1", "?")
WAITS = Job("7_1", "PENDING", "None")
ENDED: dict[str, Any] = {"ended": "done", "progress": {"epoch": 2, "detail": "kNN 1 %"}}
DONE: dict[str, Any] = {"epoch": 5, "outcome": "done", "detail": "kNN 1.00 %, linear 21.00 %"}
DIVERGED = {"epoch": 2, "outcome": "diverged", "detail": "not finite"}
INTERRUPTED: dict[str, Any] = {"ended": "interrupted"}
SPEED: dict[str, Any] = {"epoch": 2, "img_per_s": 9.0, "remaining_s": 60.0}

KNN: dict[str, Any] = {"progress": {**SPEED, "detail": "knn", "stage": "tune"}}
FAILED: dict[str, Any] = {"ended": "failed", "error": "of before"}
RUNS = Job("7_1", "RUNNING")
CANCELLED = "job 7_1 was cancelled"
LOG = "1\n\n2\n3\n4\n \n"
SILENCE = "submitted; the scheduler does not answer"
UNBEGUN = "job 7_1 did not come to run regbench: "

# An attempt, a job, and files: JSON of the cell, and notes beside the logs. Then the state, its
# detail and the epochs done.
State = tuple[dict[str, Any] | None, Job | None, dict[str, str], str, str, int]
STATES: list[State] = [
    (None, None, {}, "pending", "", 0),
    (None, None, {"tuning.json": ""}, "tuned", "", 5),  # out of a bundle
    ({}, None, {}, "running", "", 2),
    ({}, WAITS, {"tuning.json": ""}, "running", "", 2),
    ({}, RUNS, {}, "running", "", 2),
    ({}, SILENT, {}, "running", "", 2),
    ({"progress": {**SPEED, "detail": "epoch 2"}}, None, {}, "running", "", 2),
    (KNN, None, {}, "running", "knn", 2),
    (ENDED | {"progress": DONE}, None, {"record.json": "{}"}, "done", DONE["detail"], 5),
    (ENDED | {"progress": DIVERGED}, None, {"record.json": "{}"}, "diverged", "not finite", 2),
    (ENDED, None, {"tuning.json": ""}, "tuned", "kNN 1 %", 5),
    (ENDED, GONE, {"tuning.json": ""}, "tuned", "kNN 1 %", 5),
    (ENDED, WAITS, {"tuning.json": ""}, "queued", "pending", 2),
    (ENDED, SILENT, {"tuning.json": ""}, "queued", SILENCE, 2),
    (ENDED, None, {}, "interrupted", "", 2),
    (INTERRUPTED, None, {"tuning.json": ""}, "interrupted", "", 2),
    (INTERRUPTED, GONE, {}, "lost", "job 7_1 is gone", 2),
    (None, RUNS, {}, "running", "its job has begun", 0),
    (None, Job("7_1", "PENDING", "Priority"), {}, "queued", "pending (Priority)", 0),
    (None, Job("7_1", "PENDING"), {"7_1_error": "of before"}, "queued", "pending", 0),
    (INTERRUPTED, GONE, {"7_1_cancelled": "", "7_1_error": "no"}, "cancelled", CANCELLED, 2),
    (INTERRUPTED, SILENT, {"7_1_error": "no\nmemory"}, "queued", SILENCE, 2),
    (FAILED, None, {"tuning.json": ""}, "failed", "of before", 2),  # and not tuned
    (FAILED, GONE, {"7_1_error": "no"}, "failed", "no", 2),
    (FAILED, GONE, {"9_1_error": "no"}, "failed", "of before", 2),
    ({"ended": "failed", "error": None}, None, {}, "failed", "", 2),
    (None, SILENT, {"7_1_missed": ""}, "queued", SILENCE, 0),
    (None, GONE, {"7_1_missed": ""}, "failed", f"{UNBEGUN}it left no log", 0),
    (None, GONE, {"7_1_missed": "", "7_1_0_log.out": LOG}, "failed", f"{UNBEGUN}2 / 3 / 4", 0),
]


@pytest.mark.parametrize("case", STATES)
def test_the_state_of_a_cell_by_its_files_and_its_job(case: State, tmp_path: Path) -> None:
    own, job, files, state, detail, epochs_done = case
    plan(tmp_path, "cell", "other")
    cell, logs = tmp_path / "cell", tmp_path / "jobs" / "logs"
    cell.mkdir()
    logs.mkdir(parents=True)
    for name, text in files.items():
        (cell if name.endswith(".json") else logs).joinpath(name).write_text(text)
    if own is not None:
        attempt(cell, **own)
    found, other = sweep_status(tmp_path, {"cell": CellJobs(job)} if job else None)
    assert (found.state, found.detail, found.epochs_done) == (state, detail, epochs_done)
    assert found.epochs == 5
    is_training = own is not None and "img_per_s" in own.get("progress", {}) and not found.detail
    assert (found.img_per_s, found.remaining_s) == ((9.0, 60.0) if is_training else (None, None))
    names = (found.job, found.directory, str(found))
    assert names == (job.name if job else "", cell, "cell  CELL seed 3")
    assert (other.state, other.job) == ("pending", "")


def test_what_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    plan(tmp_path, "attempt", "file", "record")
    attempt(tmp_path / "attempt")
    old = tmp_path / "attempt" / "attempts" / "0002.json"
    old.write_text("{")
    os.utime(old, (1, 1))
    (tmp_path / "file").touch()
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "record.json").write_text("{")
    found = sweep_status(tmp_path, {"attempt": CellJobs(GONE), "file": CellJobs(GONE)})
    assert [cell.state for cell in found] == ["damaged"] * 3
    for cell, reason in zip(found, ("0002.json", "Not a directory", "record.json"), strict=True):
        assert reason in cell.detail


def test_a_plan_keeps_its_cells_and_adds_new_ones(tmp_path: Path, tiny: list[str]) -> None:
    for seeds in ("0,1", "1,2"):
        own = write_sweep(tmp_path / "own.yaml", tiny, ["seed=0"], description=seeds)
        sweep = load_sweep(str(own), [f"seed={seeds}"])
        write_plan(sweep)
    assert json.loads((sweep.folder / "sweep.json").read_text())["description"] == "1,2"
    found = read_plan(sweep.folder)
    assert [cell["seed"] for cell in found] == [0, 1, 2]
    last = sweep.cells[-1]
    sizes = {name: getattr(last, name) for name in ("epochs", "embedding_dim", "batch_size")}
    names = {"id": last.id, "label": last.label, "dataset": "tiny", "backbone": "resnet_tiny"}
    assert found[-1] == {**names, **sizes, "seed": 2}


def test_what_is_not_finished_is_said_in_a_line(tmp_path: Path) -> None:
    plan(tmp_path, *(f"c{number:02d}" for number in range(12)))
    for name, outcome in (("c00", "done"), ("c01", "diverged")):
        attempt(tmp_path / name, ended="done", progress={"epoch": 5, "outcome": outcome})
        (tmp_path / name / "record.json").touch()
    attempt(tmp_path / "c02", **ENDED)
    (tmp_path / "c02" / "tuning.json").touch()
    found = sweep_status(tmp_path)
    grid: Any = SimpleNamespace(folder=Path("runs", "own"))
    refuse_unfinished(found[:2], grid, ("final",))
    refuse_unfinished(found[:3], grid, ("pretrain", "tune"))
    with pytest.raises(Unfinished) as error:
        refuse_unfinished(found, grid, ("pretrain",))
    line = str(error.value)
    assert line.startswith("9 of 12 cells not finished: C03 seed 3 pending; ")
    assert "C11" in line and "…" not in line
    with pytest.raises(Unfinished) as error:
        refuse_unfinished([*found, found[-1]], grid, ("final",))
    line = str(error.value)
    assert line.startswith("11 of 13 cells not finished: C02 seed 3 tuned; C03 seed 3 pending; ")
    advice = "Details: regbench status own; the same command tries them again"
    assert line.endswith(f"C11 seed 3 pending; …. {advice}")
    assert line.count("seed 3") == 10
    grid.folder = Path("my runs", "own")
    with pytest.raises(Unfinished, match="Details: regbench status own --runs-dir 'my runs'; "):
        refuse_unfinished(found, grid, ("final",))


def test_a_table_of_states_has_the_columns_that_say_something(tmp_path: Path) -> None:
    plan(tmp_path, "a", "b")
    attempt(tmp_path / "a", ended="failed", error="no memory")
    (tmp_path / "a" / "logs").mkdir()
    log = tmp_path / "a" / "logs" / "1_log.out"
    log.write_text("x")
    lines = status_table(sweep_status(tmp_path)).splitlines()
    assert [re.split("  +", line.strip()) for line in (lines[0], *lines[2:4])] == [
        ["cell", "method", "seed", "state", "epochs"],
        ["a", "A", "3", "failed", "2/5", f"no memory (logs: {log})"],
        ["b", "B", "3", "pending", "0/5"],
    ]
    assert lines[4:] == ["", "2 cells: 1 failed, 1 pending"]
    lost = replace(sweep_status(tmp_path)[1], state="lost", job="7_1")
    (tmp_path / "jobs" / "logs").mkdir(parents=True)
    (tmp_path / "jobs" / "logs" / "7_1_0_log.out").write_text("x")
    assert f"(logs: {tmp_path}/jobs/logs/7_1_0_log.out)" in status_table([lost])
    spoken = {29: "< 1 min", 31: "1 min", 3569: "59 min", 3571: "1 h 00 min", 7380: "2 h 03 min"}
    assert {seconds: duration(seconds) for seconds in spoken} == spoken


def test_a_later_attempt_hides_an_earlier_error(tmp_path: Path) -> None:
    plan(tmp_path, "cell")
    attempt(tmp_path / "cell", ended="failed", error="OSError: once")
    assert sweep_status(tmp_path)[0].state == "failed"
    attempt(tmp_path / "cell")
    assert sweep_status(tmp_path)[0].state == "running"


def test_the_job_of_the_last_stage_says_how_a_cell_ended(tmp_path: Path) -> None:
    plan(tmp_path, "cell")
    logs = tmp_path / "jobs" / "logs"
    logs.mkdir(parents=True)
    (logs / "1_0_error").write_text("OSError: in training")
    (logs / "3_0_error").write_text("RegbenchError: in the evaluation")
    jobs = CellJobs(Job("1_0", None))
    for name in ("3_0", "5_0"):
        jobs.add(Job(name, None), is_later_stage=True)
    (cell,) = sweep_status(tmp_path, {"cell": jobs})
    assert (cell.state, cell.detail) == ("failed", "RegbenchError: in the evaluation")


def test_who_is_alive(tmp_path: Path) -> None:
    # another process has the number now
    cases: dict[str, tuple[dict[str, Any], float, str]] = {
        "seen": (HERE, 1000.0, "running"),  # the process is seen to live, whatever its heartbeat
        "gone": ({**HERE, "pid": 2**22 + 1}, 0.0, "interrupted"),
        "other": ({**HERE, "start_ticks": "1"}, 0.0, "interrupted"),
        "heard": (ELSEWHERE, 5.0, "running"),
        "late": (ELSEWHERE, 75.0, "running"),  # clocks differ a little
        "silent": (ELSEWHERE, 1000.0, "interrupted"),
        "unknown": ({}, 5.0, "running"),
    }
    plan(tmp_path, *cases)
    for name, (owner, silent_s, _) in cases.items():
        attempt(tmp_path / name, owner=owner, silent_s=silent_s)
    expected = {name: state for name, (_, _, state) in cases.items()}
    assert {cell.cell_id: cell.state for cell in sweep_status(tmp_path)} == expected


def test_a_record_counts_though_nobody_said_so(tmp_path: Path) -> None:
    plan(tmp_path, "cell")
    attempt(tmp_path / "cell")
    for outcome, epochs in (("diverged", 2), ("done", 5)):
        (tmp_path / "cell" / "record.json").write_text(made(status=outcome).text())
        (cell,) = sweep_status(tmp_path)
        assert (cell.state, cell.epochs_done) == (outcome, epochs)


def test_the_status_reads_one_small_file_of_a_run(tmp_path: Path) -> None:
    plan(tmp_path, "a", "b")
    attempt(tmp_path / "a")
    (tmp_path / "a" / "metrics-0001.jsonl").mkdir()  # what must not be read cannot be
    (tmp_path / "a" / "scores.json").mkdir()
    assert [cell.state for cell in sweep_status(tmp_path)] == ["running", "pending"]


def test_many_cells_are_counted_and_those_that_need_a_look_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "large"
    plan(folder, *(f"cell{number:03d}" for number in range(150)))
    attempt(folder / "cell007", ended="failed", error="RegbenchError: too large")
    attempt(folder / "cell008", progress={"epoch": 2, "img_per_s": 1234.4, "remaining_s": 4000.0})
    attempt(folder / "cell009", ended="done", progress={"epoch": 2, "outcome": "diverged"})
    (folder / "cell009" / "record.json").touch()
    output = command_line("status", "large", "--runs-dir", tmp_path).output
    rows = [line.split() for line in output.splitlines() if line.startswith("cell0")]
    assert [row[0] for row in rows] == ["cell007", "cell008", "cell009"]
    assert "too large" in output
    assert rows[1][3:] == ["running", "2/5", "1234", "1", "h", "07", "min"]
    last = "150 cells: 147 pending, 1 failed, 1 running, 1 diverged; 147 not listed (--all)"
    assert output.splitlines()[-1] == last
    everything = command_line("status", "large", "--all", "--runs-dir", tmp_path).output
    assert everything.count("cell") >= 150


@pytest.mark.parametrize(("each", "listed"), [(10, 8 * 10), (20, 100)])
def test_all_that_need_a_look_are_listed_until_a_screen_is_full(
    tmp_path: Path, each: int, listed: int
) -> None:
    plan(tmp_path, "cell")
    (one,) = sweep_status(tmp_path)
    need = ["failed", "lost", "cancelled", "preempted", "damaged"]
    need += ["interrupted", "diverged", "running"]
    states = each * ["pending", "queued", "tuned", "done", *need]
    lines = status_table([replace(one, state=state) for state in states]).splitlines()
    assert [line.split()[3] for line in lines[2:-2]] == (each * need)[:listed]


def test_the_newest_log_is_that_of_the_one_cell_that_is_meant(tmp_path: Path) -> None:
    plan(tmp_path / "own", "abc1", "abc2")
    (tmp_path / "own" / "abc1" / "logs").mkdir(parents=True)
    for number in (1, 3, 2):
        path = tmp_path / "own" / "abc1" / "logs" / f"{number}_log.out"
        path.write_text(f"of attempt {number}")
        os.utime(path, (number, number))

    def logs(cell: str) -> str:
        return command_line("logs", "own", cell, "--runs-dir", tmp_path).output

    assert "of attempt 3" in logs("abc1")
    # an older file, and what somebody looks for
    errors = tmp_path / "own" / "abc1" / "logs" / "3_log.err"
    errors.touch()
    os.utime(errors, (2, 2))
    assert logs("abc1").rstrip().endswith("of attempt 3")
    errors.write_text("errors of attempt 3")
    os.utime(errors, (2, 2))
    assert "errors of attempt 3" in logs("abc1")
    assert "2 cells of own begin with 'abc'" in logs("abc")
    assert "no cell of own begin with 'b'" in logs("b")


CHECKPOINTS = [f"checkpoint-0001-00000000{step}-{step:016x}.pt" for step in (3, 6)]


def test_clean_removes_what_finished_cells_do_not_need(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    plan(folder, "done", "failed")
    for name in ("done", "failed"):
        attempt(folder / name, ended=name, progress={"epoch": 5, "outcome": "done"})
        for file in (*CHECKPOINTS, ".checkpoint.x7"):
            (folder / name / file).write_bytes(bytes(1000))
    record = made(metrics=NamedFile("metrics-0001.jsonl", ""))
    (folder / "done" / "record.json").write_text(record.text())
    for number in (1, 2, 3):
        (folder / "done" / f"metrics-000{number}.jsonl").write_bytes(bytes(1000))
    (folder / "done" / f"{CHECKPOINTS[1]}.damaged").write_bytes(bytes(1000))
    kept = {path.name for path in (folder / "failed").iterdir()}

    def clean(*options: str) -> str:
        return command_line("clean", "own", "--runs-dir", tmp_path, *options).output

    assert clean("--dry-run") == "would remove 4 files, 4e-06 GB\n"
    assert clean() == "removed 4 files, 4e-06 GB\n"
    # which the record names, and the last one
    curves = ("metrics-0001.jsonl", "metrics-0003.jsonl")
    left = {path.name for path in (folder / "done").iterdir()}
    assert left == {"attempts", "config.yaml", "record.json", CHECKPOINTS[1], *curves}
    assert clean("--checkpoints") == "removed 1 files, 1e-06 GB\n"
    assert {path.name for path in (folder / "failed").iterdir()} == kept  # it may be tried again


def test_clean_leaves_a_tuned_cell_the_weights_that_were_scored(tmp_path: Path) -> None:
    cell = tmp_path / "own" / "cell"
    plan(cell.parent, "cell")
    attempt(cell, **ENDED)
    saved = Saved(CHECKPOINTS[0], "0" * 64, 3)
    (cell / "tuning.json").write_text(made(status="tuned", checkpoint=saved).text())
    last = [f"{kind}-0002.json" for kind in ("choice", "environment", "scores")]
    before = [name.replace("0002", "0001") for name in last]
    state = f"evaluation-probe-0001-000000001-{1:016x}.pt"
    for name in (*CHECKPOINTS, *last, *before, state, "attempts/.0001.json.x1"):
        (cell / name).touch()
    assert command_line("clean", "own", "--runs-dir", tmp_path).output == "removed 6 files, 0 GB\n"
    left = {path.relative_to(cell).as_posix() for path in cell.rglob("*.*")}
    assert left == {"config.yaml", "tuning.json", "attempts/0001.json", CHECKPOINTS[0], *last}


def test_clean_leaves_weights_that_a_tuning_has_chosen_or_may_choose(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    changes = ({"seed": 0}, {"seed": 1}, {"epochs": 99, "seed": 0})
    cells = {cell_id(CELL | change): CELL | change for change in changes}
    first, _, other = cells
    plan(folder, *cells)
    for name, cell in cells.items():
        attempt(folder / name, **ENDED)
        saved = Saved(CHECKPOINTS[0], "0" * 64, 3)
        record = made(cell, status="tuned", checkpoint=saved, seed=cell["seed"])
        (folder / name / "tuning.json").write_text(record.text())
        (folder / name / CHECKPOINTS[0]).touch()
    clean = ("clean", "own", "--checkpoints", "--runs-dir", tmp_path)
    assert command_line(*clean).output == "removed 0 files, 0 GB\n"
    tuning_choice(folder, chosen("VICReg", ranked(first), ranked(other)))
    assert command_line(*clean).output == "removed 1 files, 0 GB\n"
    assert not (folder / other / CHECKPOINTS[0]).exists()


def test_a_damaged_sweep_hides_no_other(tmp_path: Path) -> None:
    plan(tmp_path / "one", "a")
    plan(tmp_path / "two", "a", "b")
    (tmp_path / "one" / "sweep.json").write_text("{")
    one, two = command_line("status", "--runs-dir", tmp_path).output.splitlines()
    assert one.startswith("one: ") and "sweep.json" in one
    assert two == "two: 2 pending"


def test_a_damaged_entry_of_a_plan_is_named_and_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan(tmp_path / "own", "a", "b", "c")
    path = tmp_path / "own" / "sweep.json"
    content = json.loads(path.read_text())
    content["cells"][0]["seed"] = "x"
    content["cells"][1] = 7
    path.write_text(json.dumps(content))
    assert [status.cell_id for status in sweep_status(tmp_path / "own")] == ["c"]
    first, second = caplog.messages
    assert first.startswith(f"{path}: cell 1 is left out (seed is 'x': input should be")
    assert second.startswith(f"{path}: cell 2 is left out (is 7: input should be")


def test_a_sweep_that_was_never_started_has_no_status(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sweep_status(tmp_path)


# ------------------------------------------------------------------ the whole way


class Sweep:
    """A sweep file of one's own and the installed command line, run as a user does."""

    def __init__(self, program: str, tiny: list[str], folder: Path) -> None:
        self.tiny, self.folder = tiny, folder
        self.command = [program, "sweep", "own.yaml", "runtime.parallel=1"]
        self.runs = folder / "runs" / "own"

    def write(self, *cells: str) -> None:
        write_sweep(self.folder / "own.yaml", self.tiny, cells)

    @contextlib.contextmanager
    def training(self, run: Path) -> Iterator[subprocess.Popen[str]]:
        """The command when it has trained a run for an epoch; the command alone is killed."""
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(self.command, cwd=self.folder, start_new_session=True, **pipes)
        try:
            wait_for(lambda: (run / "metrics-0001.jsonl").exists() or process.poll() is not None)
            yield process
        finally:
            process.kill()
            process.communicate()

    def run(self) -> subprocess.CompletedProcess[str]:
        how: Any = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
        done = subprocess.run(self.command, cwd=self.folder, check=False, **how)
        assert "Traceback" not in done.stderr
        return done

    def directory(self, *overrides: str) -> Path:
        cell, runtime = load_run([*self.tiny, *overrides])
        return run_directory(runtime, "own", cell)

    def states(self) -> list[str]:
        return [cell.state for cell in sweep_status(self.runs)]


@pytest.fixture
def own(program: str, tiny: list[str], tmp_path: Path) -> Sweep:
    return Sweep(program, tiny, tmp_path)


def descendants(pid: int) -> list[int]:
    """The process and all below it, from Linux's /proc."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found


def written_ns(directory: Path) -> int:
    return (directory / "record.json").stat().st_mtime_ns


def test_a_sweep_from_end_to_end(
    own: Sweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "regbench")
    monkeypatch.chdir(own.folder)
    bad = "method=vicreg evaluation.knn.k=5000"
    good = "method=vicreg epochs=1 optimizer.warmup_epochs=0"
    own.write(bad, good)
    command = ["sweep", "own.yaml", "runtime.parallel=2"]
    first = command_line(*command)
    assert first.exit_code == 1
    assert own.states() == ["failed", "done"]  # the failure did not stop the other
    assert "1 of 2 cells not finished: VICReg seed 0 failed" in first.stderr
    assert "evaluation.knn.k=5000 is larger than the 120 training images" in caplog.text
    assert f"{own.directory(*bad.split()).name}/logs/" in caplog.text
    before_ns = written_ns(own.directory(*good.split()))
    record = there(read_record(own.directory(*good.split())))
    assert (record.sweep, record.status, len(record.scores)) == ("own", "done", 8)

    own.write(good)  # the bad cell is taken out of the file
    second = command_line(*command, "--report")
    assert second.exit_code == 0, second.stderr
    assert "sweep own: 1 cell, 1 done, 0 to run, 1 at a time" in caplog.text
    assert "VICReg" in second.stdout
    assert "VICReg" in Path(re.findall(r"report: (\S+)", second.stdout)[0]).read_text()
    assert written_ns(own.directory(*good.split())) == before_ns

    prepared = load_run(own.tiny)[1].data_dir
    data_dir = shutil.copytree(prepared, own.folder / "data")
    manifest = Manifest.load(data_dir, "tiny")
    splits = manifest.splits | {"test": {**manifest.splits["test"], "content_sha256": "0" * 64}}
    replace(manifest, splits=splits).save(data_dir)
    other = command_line(*command, f"runtime.data_dir={data_dir}")
    assert "is finished, with other images of 'tiny' than are prepared now" in other.stderr

    status = command_line("status", "own", "--runs-dir", "runs").output
    rows = [line.split() for line in status.splitlines()[2:-2]]
    assert status.splitlines()[-1] == "2 cells: 1 failed, 1 done"
    assert [row[0] for row in rows] == [own.directory(*cell.split()).name for cell in (bad, good)]
    assert ["failed" in row for row in rows] == [True, False]
    assert "larger than" in status
    assert status.count("1/1") == 1  # the failed one was refused before its training
    assert command_line("status", "--runs-dir", "runs").output == "own: 1 failed, 1 done\n"


def test_a_sweep_of_which_all_diverged_has_a_report(
    own: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own.folder)
    own.write("method=vicreg")
    cell, _ = load_run([*own.tiny, "method=vicreg"])
    (own.runs / cell.id).mkdir(parents=True)
    write_config(own.runs / cell.id, cell.plain())
    (own.runs / cell.id / "record.json").write_text(made(cell.plain(), status="diverged").text())
    done = command_line("sweep", "own.yaml", "--report")
    assert (done.exit_code, "VICReg †" in done.stdout) == (0, True), done.stderr


@pytest.mark.usefixtures("in_this_process")
def test_the_time_left_is_told_by_the_epochs_that_are_trained_now(
    own: Sweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by cells that train nothing, nor by what an interrupted cell trained before."""
    own.write("method=sfrik epochs=0", "method=vicreg seed=0,1")
    untrained = own.directory("method=sfrik", "epochs=0")
    trained = [own.directory("method=vicreg", f"seed={seed}") for seed in range(2)]
    clock_s = 0.0

    def run(cell: Cell, *_: object) -> None:
        nonlocal clock_s
        directory = trained[cell.seed] if cell.epochs else untrained
        attempt(directory, ended="done", progress={"epoch": 1, "outcome": "done", "detail": ""})
        (directory / "record.json").write_text(made().text())
        clock_s += 2 if cell.epochs else 1000

    now = SimpleNamespace(monotonic=lambda: clock_s, time=lambda: clock_s)
    monkeypatch.setattr("regbench.benchmark.run.run_cell", run)
    monkeypatch.setattr("regbench.sweeps.local.time", now)
    with caplog.at_level("INFO", "regbench"):
        run_sweep(load_sweep(str(own.folder / "own.yaml"), ["runtime.parallel=1"]))
    told = [record.getMessage() for record in caplog.records if "epochs" in record.getMessage()]
    assert told == ["2 of 4 epochs, about 00:02 left", "4 of 4 epochs, about 00:00 left"]
    caplog.clear()
    shutil.rmtree(own.runs)
    attempt(trained[1], ended="interrupted", progress={"epoch": 1})
    with caplog.at_level("INFO", "regbench"):
        run_sweep(load_sweep(str(own.folder / "own.yaml"), ["runtime.parallel=1"]))
    assert "3 of 4 epochs, about 00:01 left" in caplog.text


@pytest.mark.usefixtures("in_this_process")
def test_a_sweep_runs_what_is_not_finished_and_says_how_each_ended(
    own: Sweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own.write("method=vicreg seed=0,1,2,3")
    directories = [own.directory("method=vicreg", f"seed={seed}") for seed in range(4)]
    progress = {"epoch": 1, "outcome": "done", "detail": "kNN 5 %"}
    done: dict[str, Any] = {"ended": "done", "progress": progress}
    directories[0].mkdir(parents=True)
    (directories[0] / "record.json").write_text(made().text())
    attempt(directories[1], progress={})  # of this very process
    seen: list[object] = []

    def run(cell: Cell, runtime: Runtime, *given: Any) -> None:
        sweep, stages, _, how = given
        seen.append((cell.seed, sweep, tuple(stages), how["selected_on"], runtime.threads))
        directory = directories[cell.seed]
        if cell.seed == 1:
            attempt(directory, **done)
            (directory / "record.json").write_text(made().text())
        elif cell.seed == 2:
            attempt(directory, ended="failed", error="too large")
            (directory / "logs").mkdir()
            (directory / "logs" / "7_log.out").write_text("x")

    shown: list[tuple[str, int, int]] = []

    class Bar(contextlib.nullcontext[Any]):
        disable = True
        format_interval = staticmethod(tqdm.format_interval)

        def __init__(self, *, total: int, initial: int, **_: object) -> None:
            super().__init__(self)
            self.n, self.total, self.text = initial, total, ""
            self.external_write_mode = contextlib.nullcontext

        def set_description(self, text: str) -> None:
            self.text = text

        def refresh(self) -> None:
            shown.append((self.text, self.n, self.total))

    monkeypatch.setattr("regbench.benchmark.run.run_cell", run)
    monkeypatch.setattr("regbench.sweeps.local.tqdm", Bar)
    grid = load_sweep(str(own.folder / "own.yaml"), ["runtime.parallel=2"])
    with caplog.at_level("INFO", "regbench"):
        found = run_sweep(grid, STAGES)
    # That of somebody else comes last.
    assert seen == [(seed, "own", STAGES, "given", 1) for seed in (2, 3, 1)]
    assert [status.state for status in found] == ["done", "done", "failed", "pending"]
    names = [f"VICReg seed {seed} ({directory.name})" for seed, directory in enumerate(directories)]
    begun, *ends = [record.getMessage() for record in caplog.records]
    assert begun == "sweep own: 4 cells, 1 done, 3 to run, 2 at a time with 1 thread each"
    owner = f"process {HERE['pid']} on {HERE['hostname']}"
    assert ends == [
        f"[1/3] {names[2]} FAILED: too large (logs: {directories[2]}/logs/7_log.out)",
        f"[2/3] {names[3]} FAILED: ended without a record",
        "6 of 8 epochs, about 00:00 left",
        f"{names[1]}: {owner} is at work on it; waiting for it",
        f"[3/3] {names[1]}: kNN 5 %",
        "8 of 8 epochs, about 00:00 left",
    ]
    # Four cells of two epochs, two at a time; those of a cell that failed are over too.
    assert shown == [("VICReg, VICReg", 6, 8), ("VICReg", 8, 8)]
    shutil.rmtree(own.runs)
    seen.clear()
    directories[1].mkdir(parents=True)
    (directories[1] / "tuning.json").touch()
    attempt(directories[1], **done)
    for some, left in ((STAGES[:2], [0, 2, 3]), (STAGES, [0, 1, 2, 3])):
        announced: list[tuple[int, int]] = []
        run_sweep(grid, some, lambda status, *of: announced.append(of))  # noqa: B023
        assert [call[0] for call in seen] == left  # type: ignore[index]
        assert announced == [(number + 1, len(left)) for number in range(len(left))]
        seen.clear()
        shutil.rmtree(directories[2])


@pytest.mark.usefixtures("in_this_process")
def test_a_cell_that_another_command_has_claimed_is_waited_for_or_through(
    own: Sweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one works on a tuned cell, was killed on another, and tries the third again,
    which fails.
    """
    own.write("method=vicreg seed=0,1,2")
    directories = [own.directory("method=vicreg", f"seed={seed}") for seed in range(3)]

    def run(cell: Cell, *_: Any) -> None:
        # That of this very process lives.
        attempt(directories[cell.seed], ended="interrupted" if cell.seed == 1 else None)
        if cell.seed < 2:
            (directories[cell.seed] / "tuning.json").touch()

    looks = [
        lambda: None,
        lambda: attempt(directories[2], ended="failed", error="too large"),
        lambda: (directories[0] / "record.json").write_text(made().text()),
    ]
    monkeypatch.setattr("regbench.benchmark.run.run_cell", run)
    clock = SimpleNamespace(sleep=lambda _: looks.pop(0)(), monotonic=lambda: 0.0, time=lambda: 0.0)
    monkeypatch.setattr("regbench.sweeps.local.time", clock)
    with caplog.at_level("INFO", "regbench"):
        found = run_sweep(load_sweep(str(own.folder / "own.yaml")), ("pretrain", "tune"))
    assert [status.state for status in found] == ["tuned", "tuned", "failed"]
    assert caplog.text.count("FAILED") == 1  # the one that was killed
    # which is tuned, and not scored yet
    (first,) = run_sweep(load_sweep(str(own.folder / "own.yaml"), ["seed=0"]))
    assert first.state == "done"


@pytest.mark.parametrize("shell", [None, "2,3", "GPU-8f3a, MIG-77b1"])
@pytest.mark.usefixtures("in_this_process")
def test_runs_take_the_gpus_that_the_shell_allows(
    shell: str | None, own: Sweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two GPUs and three cells.

    A job says which it would have seen, and how many CPUs it takes of its half.
    """
    expected = (shell or "0,1").replace(" ", "").split(",")
    seen: list[str] = []
    cpus: set[int] = set()

    def run(cell: Cell, runtime: Runtime, *_: Any) -> None:
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        # Though torch finds no GPU here, a run with one must not train on the CPU.
        assert runtime.device == ("cuda" if seen[-1] else "cpu")
        cpus.update((runtime.threads, runtime.workers))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("regbench.benchmark.machine.compute.usable_cpus", lambda: 8)
    monkeypatch.setattr("regbench.benchmark.run.run_cell", run)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shell is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shell)
    file = str(write_sweep(own.folder / "own.yaml", (), ["method=vicreg seed=0,1,2"]))
    ours = ("runtime.device=cpu", "runtime.threads=1")
    overrides = [override for override in own.tiny if override not in ours]
    run_sweep(load_sweep(file, overrides))
    assert seen == [*expected, expected[0]]
    assert cpus == {4}
    seen.clear()
    run_sweep(load_sweep(file, [*overrides, "runtime.parallel=1"]))
    assert seen == 3 * expected[:1]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == shell
    # On the CPU none is seen, and a loader has the workers that it was given.
    seen.clear()
    cpus.clear()
    monkeypatch.setattr("regbench.sweeps.local.usable_cpus", lambda: 2)
    with caplog.at_level("INFO", "regbench"):
        run_sweep(load_sweep(file, [*own.tiny, "runtime.workers=3"]))
    assert (seen, cpus) == (3 * [""], {1, 3})
    assert "3 to run, 2 at a time with 1 thread each" in caplog.text


@pytest.mark.usefixtures("in_this_process")
def test_a_run_opens_the_test_split_to_no_cell_that_its_tuning_has_not_chosen(
    own: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.write("method=vicreg")
    own.runs.mkdir(parents=True)
    (own.runs / "tune.json").write_text("[]")
    monkeypatch.setattr("regbench.benchmark.run.run_cell", lambda *_: None)
    grid = load_sweep(str(own.folder / "own.yaml"))
    run_sweep(grid, STAGES[:2])
    with is_refused("the tuning own has not chosen yet"):
        run_sweep(grid)


@pytest.mark.slow
def test_a_killed_sweep_ends_as_an_undisturbed_one(own: Sweep) -> None:
    """`kill -9` of the command, of the job and of the loader's process, in the middle of
    training.
    """
    short = ["method=vicreg", "epochs=1", "optimizer.warmup_epochs=0"]
    long = ["method=sfrik_l3", "epochs=12"]
    own.write(" ".join(short), " ".join(long), "method=simclr epochs=0 optimizer.warmup_epochs=0")
    running = own.directory(*long)
    with own.training(running) as process:
        assert own.states() == ["done", "running", "pending"]
        for pid in descendants(process.pid):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_running(last_attempt(running)))
    assert own.states() == ["done", "interrupted", "pending"]
    epochs_done = len((running / "metrics-0001.jsonl").read_text().splitlines())
    assert 1 <= epochs_done < 12
    before_ns = written_ns(own.directory(*short))

    done = own.run()
    assert done.returncode == 0, done.stderr
    assert "3 cells, 1 done, 2 to run" in done.stderr
    assert own.states() == ["done"] * 3
    assert written_ns(own.directory(*short)) == before_ns
    record = there(read_record(running))
    assert len(record.attempts) == 2
    # killed; not yet ended as it wrote
    assert [attempt.ended for attempt in record.attempts] == [None, None]
    assert [attempt.finished is None for attempt in record.attempts] == [True, False]
    assert (record.attempts[1].from_step or 0) >= 3 * epochs_done
    assert not list(running.glob(".*"))

    cell, runtime = load_run([*own.tiny, *long])
    undisturbed = there(run_cell(cell, runtime, "undisturbed"))
    assert untimed(record) == untimed(undisturbed)
    assert_same(record, undisturbed)


@pytest.mark.slow
def test_ctrl_c_ends_the_sweep_and_its_jobs(own: Sweep) -> None:
    own.write("method=vicreg epochs=4000")
    directory = own.directory("method=vicreg", "epochs=4000")
    with own.training(directory) as process:
        jobs = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "sweep own: 1 cell, 0 done, 1 to run" in errors
    assert errors.splitlines()[-1] == "regbench: interrupted; the same command goes on from here"
    assert "Traceback" not in errors
    assert not is_running(last_attempt(directory))
    wait_for(lambda: not [pid for pid in jobs if _is_worker(pid)])
    assert own.states() == ["interrupted"]
    assert there(last_attempt(directory))["ended"] == "interrupted"
    rows = (directory / "metrics-0001.jsonl").read_text().splitlines()
    # the step in which it was asked to stop
    assert there(load_checkpoint(directory))[1].step > 3 * len(rows) - 1


def _is_worker(pid: int) -> bool:
    """Whether it is a process that starts jobs, or a job, which is a fork of one."""
    try:
        return "multiprocessing.forkserver" in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_a_killed_worker_takes_no_cell_with_it(own: Sweep) -> None:
    """Its job goes on alone; another worker runs the next cell."""
    own.write("method=vicreg epochs=12", "method=simclr")
    with own.training(own.directory("method=vicreg", "epochs=12")) as process:
        worker, job = [pid for pid in descendants(process.pid) if _is_worker(pid)]
        os.kill(worker, signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and "FAILED" not in errors, errors
    assert not _is_worker(job)
    assert own.states() == ["done", "done"]


def test_plans_that_are_written_at_the_same_time_lose_nothing(own: Sweep) -> None:
    own.write("method=vicreg")
    file = str(own.folder / "own.yaml")
    sweeps = [load_sweep(file, [f"seed={seed},{seed + 1}"]) for seed in range(4)]
    ids = {cell.id for sweep in sweeps for cell in sweep.cells}
    for cell in ids:
        (own.runs / cell).mkdir(parents=True)
        (own.runs / cell / "record.json").write_text(made().text())
    with ThreadPoolExecutor(len(sweeps)) as pool:
        ends = list(pool.map(run_sweep, sweeps))
    assert {status.state for found in ends for status in found} == {"done"}
    assert sorted(status.cell_id for status in sweep_status(own.runs)) == sorted(ids)


def test_a_cell_whose_folder_cannot_be_written_to_stops_no_other(
    own: Sweep, caplog: pytest.LogCaptureFixture
) -> None:
    own.write("method=vicreg seed=0,1")
    own.runs.mkdir(parents=True)
    for seed in (0, 1):
        # a file where the folder is to be
        own.directory("method=vicreg", f"seed={seed}").touch()
    found = run_sweep(load_sweep(str(own.folder / "own.yaml")))
    assert [status.state for status in found] == ["damaged", "damaged"]
    failed = re.findall(r"VICReg seed (\d) \(\w+\) FAILED: .*Not a directory", caplog.text)
    assert failed == ["0", "1"]


@pytest.mark.slow
def test_a_second_command_waits_for_the_job_of_the_first(own: Sweep) -> None:
    """The command alone is killed; its job goes on, and the same command takes the job's record."""
    own.write("method=vicreg epochs=8")
    directory = own.directory("method=vicreg", "epochs=8")
    with own.training(directory):
        pass
    second = own.run()
    assert second.returncode == 0, second.stderr
    assert len(there(read_record(directory)).attempts) == 1
