"""Attempts: who may write into a run directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark import lease
from regbench.benchmark.lease import Attempt, LeaseLost, claim, is_running, last_attempt, read_attempts

HOLDER = """
import os, sys, time
from pathlib import Path
from regbench.benchmark.lease import claim
attempt = claim(Path(sys.argv[1]), 60.0)
if (child := os.fork()) == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""


def claimed(directory: Path, lease_s: float = 60.0) -> Attempt:
    attempt = claim(directory, lease_s)
    assert attempt is not None
    return attempt


def rewrite(directory: Path, **changes: Any) -> None:
    """Makes the last attempt look as if somebody else had written it."""
    last = last_attempt(directory)
    assert last is not None
    path = directory / "attempts" / f"{last['number']:04d}.json"
    path.write_text(json.dumps({**last, **changes}))


def stopped(directory: Path, **owner: Any) -> Attempt:
    """An attempt whose owner is `owner` and gives no more sign of life."""
    attempt = claimed(directory)
    attempt._stopped.set()
    attempt._thread.join()
    last = last_attempt(directory)
    assert last is not None
    rewrite(directory, owner={**last["owner"], **owner})
    return attempt


def test_attempts_are_numbered_and_tell_how_they_ended(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    assert is_running(last_attempt(tmp_path))
    first.update(epoch=1, epochs=3)
    first.update(epoch=2)
    first.end("failed", "OSError: disk full")
    assert not is_running(last_attempt(tmp_path))
    second = claimed(tmp_path)
    second.check()
    with pytest.raises(LeaseLost, match="attempt 1 was superseded"):
        first.check()
    second.end("done")
    one, two = read_attempts(tmp_path)
    assert (one["number"], one["ended"], one["error"]) == (1, "failed", "OSError: disk full")
    assert one["progress"] == {"epoch": 2, "epochs": 3}
    assert one["finished"] >= one["started"]
    assert (two["number"], two["ended"], two["error"]) == (2, "done", None)


def test_one_of_many_gets_it(tmp_path: Path) -> None:
    """Eight processes claim at once: one has it, and the others wait until it is done."""
    code = (
        "import sys; from pathlib import Path; from regbench.benchmark.lease import claim\n"
        "directory = Path(sys.argv[1]); sys.stdin.readline()\n"
        "attempt = claim(directory, 60.0)\n"
        "if attempt is not None:\n"
        "    print(attempt.number); (directory / 'record.json').write_text('{}'); attempt.end('done')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(8)]  # type: ignore[call-overload]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert sorted(process.communicate(timeout=60)[0] for process in processes) == [""] * 7 + ["1\n"]
    assert [attempt["number"] for attempt in read_attempts(tmp_path)] == [1]


def test_a_finished_run_is_not_claimed(tmp_path: Path) -> None:
    claimed(tmp_path).end("done")
    (tmp_path / "record.json").write_text("{}")
    assert claim(tmp_path, 60.0) is None
    assert len(read_attempts(tmp_path)) == 1


def test_a_record_that_appears_during_the_claim_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def last(directory: Path) -> None:
        (directory / "record.json").write_text("{}")

    monkeypatch.setattr(lease, "last_attempt", last)
    assert claim(tmp_path, 60.0) is None
    assert read_attempts(tmp_path) == []


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that waits for somebody."""

    def sleep(seconds: float) -> None:
        pytest.fail(f"waits {seconds} s")

    monkeypatch.setattr(time, "sleep", sleep)


@pytest.mark.usefixtures("at_once")
def test_a_dead_owner_on_this_host_is_replaced_at_once(tmp_path: Path) -> None:
    """Killed, though a child of its lives on and has all its files open, as the processes of a loader do."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert is_running(last_attempt(tmp_path))
        process.kill()
        process.wait()
        try:
            assert Path(f"/proc/{child}").exists()
            assert not is_running(last_attempt(tmp_path))
            assert claimed(tmp_path).number == 2
        finally:
            os.kill(child, 9)


def test_a_silent_owner_elsewhere_is_replaced_after_the_lease(tmp_path: Path) -> None:
    stopped(tmp_path, hostname="another")
    began_s = time.monotonic()
    assert claimed(tmp_path, lease_s=0.6).number == 2
    assert time.monotonic() - began_s >= 0.6


def test_an_owner_elsewhere_that_shows_itself_is_not(tmp_path: Path) -> None:
    attempt = stopped(tmp_path, hostname="another")
    found: list[Attempt | None] = []
    waiting = threading.Thread(target=lambda: found.append(claim(tmp_path, 0.8)))
    waiting.start()
    for beat in range(100, 115):
        # Its clock is an hour off: only that its heartbeat changes counts.
        rewrite(tmp_path, beat=beat, heartbeat=time.time() + 3600)
        time.sleep(0.1)
    assert waiting.is_alive()
    assert not found
    (tmp_path / "record.json").write_text("{}")
    waiting.join(10)
    assert found == [None]
    assert attempt.number == 1


@pytest.mark.usefixtures("at_once")
def test_an_owner_elsewhere_that_fell_silent_long_ago_is_replaced_at_once(tmp_path: Path) -> None:
    stopped(tmp_path, hostname="another")
    rewrite(tmp_path, heartbeat=time.time() - 3600)
    assert claimed(tmp_path, lease_s=30.0).number == 2


def test_a_restarted_slurm_job_takes_over_from_its_earlier_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm starts a job again when it loses sight of a node, on which the first process may live on."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    first = claimed(tmp_path, lease_s=1.2)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    second = claimed(tmp_path, lease_s=30.0)
    assert second.number == 2
    end_s = time.monotonic() + 10
    while not first.lost:  # it finds out by itself, at its next heartbeat
        assert time.monotonic() < end_s
        time.sleep(0.05)
    second.check()


def test_a_full_disk_does_not_end_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = claimed(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lease, "write_text", full)
        attempt.beat()
    attempt.update(epoch=4)
    attempt.beat()
    last = last_attempt(tmp_path)
    assert last is not None
    assert last["progress"] == {"epoch": 4}


def test_an_attempt_whose_maker_died_at_once_is_one(tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    path = tmp_path / "attempts" / "0001.json"
    path.touch()
    assert is_running(last_attempt(tmp_path))
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    assert not is_running(last_attempt(tmp_path))
    assert claimed(tmp_path).number == 2
