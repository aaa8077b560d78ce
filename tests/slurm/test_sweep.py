"""Sweeps: what a run directory tells, and the whole way through the installed command line."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from regbench.benchmark.config import load_run
from regbench.benchmark.directory import is_running, read_record, run_directory
from regbench.benchmark.run import run_cell
from regbench.cli import main
from regbench.slurm.sweep import sweep_status

# ------------------------------------------------------------------ status, from files alone


def plan(folder: Path, *cells: str) -> None:
    folder.mkdir(exist_ok=True)
    entries = [{"id": cell, "label": cell.upper(), "seed": 3, "epochs": 5} for cell in cells]
    (folder / "sweep.json").write_text(json.dumps({"description": "", "cells": entries}))


def record_of(status: str) -> str:
    names = ("knn_top1", "knn_top5", "linear_top1", "linear_top5")
    scores = [
        {"name": name, "value": 10.0 * i + (split == "test"), "unit": "%", "split": split, "protocol": ""}
        for split in ("tuning", "test")
        for i, name in enumerate(names)
    ]
    return json.dumps({"status": status, "scores": scores})


def test_the_states_of_cells(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    states = ("done", "collapsed", "running", "failed", "interrupted", "pending", "fresh")
    plan(folder, *states)
    for state in states[:-1]:
        (folder / state).mkdir()
    for state in ("done", "collapsed", "running", "failed", "interrupted"):
        (folder / state / "lock").touch()
        (folder / state / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n')
    (folder / "done" / "record.json").write_text(record_of("done"))
    (folder / "collapsed" / "record.json").write_text(record_of("collapsed"))
    (folder / "failed" / "error.txt").write_text("RegbenchError: too large\n")
    with (folder / "running" / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = sweep_status(folder)
    assert [cell.state for cell in found] == [*states[:-1], "pending"]
    assert [cell.epochs_done for cell in found] == [2, 2, 2, 2, 2, 0, 0]
    assert {(cell.epochs, cell.seed) for cell in found} == {(5, 3)}
    assert [cell.label for cell in found[:2]] == ["DONE", "COLLAPSED"]
    assert found[0].detail == "kNN 1.00 %, linear 21.00 %"
    assert "too large" in found[3].detail
    assert str(folder / "failed" / "logs") in found[3].detail
    assert [cell.detail for cell in found[4:]] == ["", "", ""]


def test_a_running_cell_is_not_called_failed_for_an_earlier_error(tmp_path: Path) -> None:
    plan(tmp_path, "cell")
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "error.txt").write_text("OSError: once\n")
    with (tmp_path / "cell" / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sweep_status(tmp_path)[0].state == "running"
    assert sweep_status(tmp_path)[0].state == "failed"


def test_a_sweep_that_was_never_started_has_no_status(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sweep_status(tmp_path)


# ------------------------------------------------------------------ the whole way


class Sweep:
    """A sweep file of one's own and the installed command line, run as a user does."""

    def __init__(self, program: str, tiny: list[str], folder: Path) -> None:
        self.program, self.tiny, self.folder = program, tiny, folder
        self.runs = folder / "runs" / "own"

    def write(self, *cells: str) -> None:
        common = "".join(f"  - '{override}'\n" for override in self.tiny)
        rows = "".join(f"  - {cell}\n" for cell in cells)
        (self.folder / "own.yaml").write_text(f"description: My own\ncommon:\n{common}cells:\n{rows}")

    def command(self, *options: str) -> list[str]:
        return [self.program, "sweep", "own.yaml", "runtime.parallel=1", *options]

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            start_new_session=True,
        )

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*options), capture_output=True, text=True, cwd=self.folder, check=False, timeout=300
        )
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


def wait_for(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)


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


def kill(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def written_ns(directory: Path) -> int:
    return (directory / "record.json").stat().st_mtime_ns


def numbers(record: dict[str, Any] | None) -> Any:
    """What an undisturbed run and a resumed one must agree on to the last bit."""
    assert record is not None
    measured = ("epoch_s", "step_ms", "loss_ms")
    history = [{key: value for key, value in row.items() if key not in measured} for row in record["history"]]
    return record["scores"], history


def test_a_sweep_from_end_to_end(own: Sweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bad, good, more = "method=vicreg optimizer.base_lr=1e30", "method=vicreg", "method=sfrik_l2"
    own.write(bad, good)
    first = own.run()
    assert first.returncode == 1
    assert own.states() == ["failed", "done"]  # the failure did not stop the other
    assert "1 of 2 cells are not finished: VICReg seed 0 failed" in first.stderr
    assert "the loss is not finite in epoch 1" in first.stderr
    before_ns = written_ns(own.directory(good))

    own.write(good, more)  # the bad cell is taken out of the file
    second = own.run("--report")
    assert second.returncode == 0, second.stderr
    assert "2 cells, 1 done, 1 to run" in second.stderr
    for label in ("SFRIK (L=2)", "VICReg"):
        assert label in second.stdout
    page = Path(re.findall(r"report: (\S+)", second.stdout)[0])
    assert "SFRIK (L=2)" in (own.folder / page).read_text()
    assert written_ns(own.directory(good)) == before_ns
    for name in (good, more):
        record = read_record(own.directory(name))
        assert record is not None
        assert (record["sweep"], record["status"], len(record["scores"])) == ("own", "done", 8)

    monkeypatch.chdir(own.folder)
    times_ns = [written_ns(own.directory(name)) for name in (good, more)]
    with caplog.at_level("INFO", "regbench"):
        third = CliRunner().invoke(main, own.command()[1:])
    assert third.exit_code == 0
    assert "2 cells, 2 done, 0 to run" in caplog.text
    assert [written_ns(own.directory(name)) for name in (good, more)] == times_ns

    status = CliRunner().invoke(main, ["status", "own", "--runs-dir", "runs"]).output
    rows = [line.split() for line in status.splitlines()[2:]]
    assert [row[0] for row in rows] == [own.directory(*cell.split()).name for cell in (bad, good, more)]
    assert ["failed" in row for row in rows] == [True, False, False]
    assert "not finite" in status
    assert status.count("2/2") == 2
    assert CliRunner().invoke(main, ["status", "--runs-dir", "runs"]).output == "own: 1 failed, 2 done\n"


def test_a_killed_sweep_ends_as_an_undisturbed_one(own: Sweep) -> None:
    """`kill -9` of the command, of the job and of the loader's process, in the middle of training."""
    short, long = ["method=vicreg", "epochs=1", "optimizer.warmup_epochs=0"], ["method=sfrik_l3", "epochs=12"]
    own.write(" ".join(short), " ".join(long), "method=simclr epochs=0 optimizer.warmup_epochs=0")
    process = own.start()
    try:
        running = own.directory(*long)
        wait_for(lambda: (running / "metrics.jsonl").exists() or process.poll() is not None)
        assert own.states() == ["done", "running", "pending"]
    finally:
        kill(descendants(process.pid))
        process.communicate()
    wait_for(lambda: not is_running(running))
    assert own.states() == ["done", "interrupted", "pending"]
    epochs_done = len((running / "metrics.jsonl").read_text().splitlines())
    assert 1 <= epochs_done < 12
    before_ns = written_ns(own.directory(*short))

    done = own.run()
    assert done.returncode == 0, done.stderr
    assert "3 cells, 1 done, 2 to run" in done.stderr
    assert own.states() == ["done"] * 3
    assert written_ns(own.directory(*short)) == before_ns
    record = read_record(running)
    assert record is not None
    assert len(record["attempts"]) == 2
    assert [attempt["finished"] is None for attempt in record["attempts"]] == [True, False]
    assert not list(running.glob(".*"))

    cell, runtime = load_run([*own.tiny, *long])
    undisturbed = run_cell(cell, runtime, "undisturbed")
    assert numbers(record) == numbers(json.loads(json.dumps(undisturbed)))
    one, other = (
        torch.load(folder / "checkpoint.pt", weights_only=True)["network"]
        for folder in (running, run_directory(runtime, "undisturbed", cell))
    )
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_ctrl_c_ends_the_sweep_and_its_jobs(own: Sweep) -> None:
    own.write("method=vicreg epochs=40")
    directory = own.directory("method=vicreg", "epochs=40")
    process = own.start()
    try:
        wait_for(lambda: (directory / "metrics.jsonl").exists() or process.poll() is not None)
        jobs = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "regbench: interrupted; the same command goes on from here"
    assert "Traceback" not in errors
    assert not is_running(directory)
    assert not [pid for pid in jobs if Path(f"/proc/{pid}/cmdline").exists() and _is_ours(pid, own.folder)]
    assert own.states() == ["interrupted"]
    assert not (directory / "error.txt").exists()


def _is_ours(pid: int, folder: Path) -> bool:
    try:
        return str(folder) in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_a_second_command_waits_for_the_job_of_the_first(own: Sweep) -> None:
    """The command alone is killed; its job goes on, and the same command takes the job's record."""
    own.write("method=vicreg epochs=8")
    directory = own.directory("method=vicreg", "epochs=8")
    process = own.start()
    try:
        wait_for(lambda: (directory / "metrics.jsonl").exists() or process.poll() is not None)
    finally:
        process.kill()
        process.communicate()
    second = own.run()
    assert second.returncode == 0, second.stderr
    record = read_record(directory)
    assert record is not None
    assert len(record["attempts"]) == 1
