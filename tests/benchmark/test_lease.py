"""Attempts: who may write into a run directory."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.rundir import lease
from regbench.benchmark.rundir.lease import Attempt, claim, is_running, last_attempt, read_attempts
from tests.there import there
from tests.waiting import PATIENCE_S, wait_for

HOLDER = """
import os, sys, time
from pathlib import Path
from regbench.benchmark.rundir.lease import claim
attempt = claim(Path(sys.argv[1]), 60.0)
if (child := os.fork()) == 0:
    time.sleep(3600)
    os._exit(0)
print(child, flush=True)
time.sleep(3600)
"""


def claimed(directory: Path, lease_s: float = 60.0) -> Attempt:
    return there(claim(directory, lease_s))


def rewrite(directory: Path, **changes: Any) -> None:
    """Makes the last attempt look as if somebody else had written it."""
    last = there(last_attempt(directory))
    path = directory / "attempts" / f"{last['number']:04d}.json"
    path.write_text(json.dumps({**last, **changes}))


def stopped(directory: Path, **owner: Any) -> Attempt:
    """An attempt whose owner is `owner` and gives no more sign of life."""
    attempt = claimed(directory)
    attempt.end("interrupted")
    last = there(last_attempt(directory))
    rewrite(directory, ended=None, finished=None, owner={**last["owner"], **owner})
    return attempt


def test_attempts_are_numbered_and_tell_how_they_ended(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    assert is_running(last_attempt(tmp_path))
    first.update(epoch=1, epochs=3)
    first.update(epoch=2)
    first.began(step=4)
    first.began(scores=["knn"])
    first.end("failed", "OSError: disk full")
    assert not is_running(last_attempt(tmp_path))
    second = claimed(tmp_path)
    second.check()
    with pytest.raises(lease.LeaseLost, match="attempt 1 was superseded"):
        first.check()
    second.end("done")
    one, two = read_attempts(tmp_path)
    assert (one["number"], one["ended"], one["error"]) == (1, "failed", "OSError: disk full")
    assert one["progress"] == {"epoch": 2, "epochs": 3, "began": {"step": 4, "scores": ["knn"]}}
    assert one["finished"] >= one["started"]
    assert (two["number"], two["ended"], two["error"]) == (2, "done", None)


def test_one_of_many_gets_it(tmp_path: Path) -> None:
    """Eight processes claim at once: one has it, and the others wait until it is done."""
    code = (
        "import sys; from pathlib import Path; from regbench.benchmark.rundir.lease import claim\n"
        "directory = Path(sys.argv[1]); sys.stdin.readline()\nattempt = claim(directory, 60.0)\nif "
        "attempt is not None:\n    print(attempt.number); (directory / "
        "'record.json').write_text('{}'); attempt.end('done')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    pipes |= {"stderr": subprocess.DEVNULL, "text": True}

    processes = [subprocess.Popen(command, **pipes) for _ in range(8)]  # type: ignore[call-overload]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate(timeout=PATIENCE_S)[0] for process in processes)
    assert said == [*[""] * 7, "1\n"]
    assert [attempt["number"] for attempt in read_attempts(tmp_path)] == [1]


def test_a_finished_run_is_not_claimed(tmp_path: Path) -> None:
    claimed(tmp_path).end("done")
    (tmp_path / "record.json").write_text("{}")
    assert claim(tmp_path, 60.0) is None
    assert len(read_attempts(tmp_path)) == 1


def test_a_record_that_appears_during_the_claim_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last(directory: Path) -> None:
        (directory / "record.json").write_text("{}")

    monkeypatch.setattr(lease, "last_attempt", last)
    assert claim(tmp_path, 60.0) is None
    assert read_attempts(tmp_path) == []


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that waits for somebody."""
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"waits {seconds} s"))


@pytest.mark.usefixtures("at_once", "lost_replies")
def test_a_claim_whose_reply_was_lost_is_ones_own(tmp_path: Path) -> None:
    attempt = claimed(tmp_path)
    attempt.write_record("record.json", "{}")
    attempt.beat()
    assert (attempt.number, attempt.finished, attempt.lost) == (1, True, "")
    assert [found["number"] for found in read_attempts(tmp_path)] == [1]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("waited_for", [True, False])
def test_a_dead_owner_on_this_host_is_replaced_at_once(tmp_path: Path, waited_for: bool) -> None:
    """Killed, though a child of its lives on and has all its files open, as the processes of a
    loader do.
    """
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        child = int(there(process.stdout).readline())
        assert is_running(last_attempt(tmp_path))
        process.kill()
        # Whom nobody has waited for is dead, and still in the list of processes.
        os.waitid(os.P_PID, process.pid, os.WEXITED | (0 if waited_for else os.WNOWAIT))
        try:
            assert Path(f"/proc/{process.pid}").exists() != waited_for
            assert Path(f"/proc/{child}").exists()
            assert not is_running(last_attempt(tmp_path))
            assert claimed(tmp_path).number == 2
        finally:
            os.kill(child, 9)


class Clocks:
    """Of a host on which time goes by while somebody waits, and only then."""

    def __init__(self, meanwhile: Callable[[float], None]) -> None:
        self.now_s, self._meanwhile = 0.0, meanwhile

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1.8e9 + self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._meanwhile(self.now_s)


def test_a_silent_owner_elsewhere_is_replaced_after_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(tmp_path, hostname="another")
    clocks = Clocks(lambda _: None)
    rewrite(tmp_path, heartbeat=clocks.time())
    monkeypatch.setattr(lease, "time", clocks)
    assert claimed(tmp_path, lease_s=20.0).number == 2
    assert 20 <= clocks.now_s <= 21


@pytest.mark.parametrize("behind_s", [0, 3600])
def test_a_silent_owner_that_is_seen_to_live_is_waited_for(
    behind_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the clock jumped, as when a machine was suspended."""
    stopped(tmp_path)  # this very process

    def finish(now_s: float) -> None:
        if now_s > 100:
            (tmp_path / "record.json").write_text("{}")

    clocks = Clocks(finish)
    rewrite(tmp_path, heartbeat=clocks.time() - behind_s)
    monkeypatch.setattr(lease, "time", clocks)
    assert claim(tmp_path, 20.0) is None
    assert len(read_attempts(tmp_path)) == 1


def test_an_owner_elsewhere_that_shows_itself_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = stopped(tmp_path, hostname="another")

    def beat(now_s: float) -> None:
        # Its clock is an hour off: only that its heartbeat changes counts.
        rewrite(tmp_path, beat=100 + int(now_s / 18), heartbeat=clocks.time() + 3600)
        if now_s > 200:
            (tmp_path / "record.json").write_text("{}")

    clocks = Clocks(beat)
    beat(0.0)
    monkeypatch.setattr(lease, "time", clocks)
    assert claim(tmp_path, 20.0) is None
    assert 200 < clocks.now_s < 202
    assert attempt.number == 1


@pytest.mark.usefixtures("at_once")
def test_an_owner_elsewhere_that_fell_silent_long_ago_is_replaced_at_once(tmp_path: Path) -> None:
    stopped(tmp_path, hostname="another")
    rewrite(tmp_path, heartbeat=time.time() - 3600)
    assert claimed(tmp_path, lease_s=30.0).number == 2


def of_job(job: str, restarts: int) -> dict[str, Any]:
    return {"slurm_job_id": job, "slurm_restarts": restarts}


IN_A_CONTAINER = {"hostname": platform.node(), "pid_namespace": "pid:[1]", "pid": 2**22 + 1}
OWNERS: dict[str, dict[str, Any]] = {
    "its clock is two minutes behind": {},
    "the same life of the same job": of_job("7", 1),
    "a later life of the same job": of_job("7", 2),
    "an earlier life of another job": of_job("8", 0),
    "in a container": IN_A_CONTAINER,
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("who", OWNERS)
def test_who_may_be_alive_elsewhere_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Nothing but a heartbeat that stands still for the lease tells that they are dead."""
    stopped(tmp_path, **{"hostname": "another", **OWNERS[who]})
    rewrite(tmp_path, lease_s=30.0, heartbeat=time.time() - 120 * ("behind" in who))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with pytest.raises(pytest.fail.Exception, match="waits"):
        claim(tmp_path, 30.0)
    assert [attempt["number"] for attempt in read_attempts(tmp_path)] == [1]


def test_of_two_claims_at_once_one_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one comes between the look and the claim."""
    look = lease.last_attempt
    others: list[Attempt] = []

    def looked(directory: Path) -> dict[str, Any] | None:
        found = look(directory)
        if not others:
            monkeypatch.setattr(lease, "last_attempt", look)
            others.append(claimed(directory))
            others[0].end("interrupted")
        return found

    monkeypatch.setattr(lease, "last_attempt", looked)
    assert claimed(tmp_path).number == 2
    assert [attempt.number for attempt in others] == [1]
    assert [attempt["ended"] for attempt in read_attempts(tmp_path)] == ["interrupted", None]


def test_a_record_is_written_once_and_by_whoever_has_the_run(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    first.end("interrupted")
    second = claimed(tmp_path)
    for name in ("tuning.json", "record.json"):
        with pytest.raises(lease.LeaseLost, match="attempt 1 was superseded by attempt 2"):
            first.write_record(name, "{}")
        assert not (tmp_path / name).exists()
    second.write_record("tuning.json", '"second"')
    second.write_record("tuning.json", '"again"')
    assert (tmp_path / "tuning.json").read_text() == '"second"'
    (tmp_path / "record.json").write_text('"third"')
    with pytest.raises(lease.LeaseLost, match="another process has finished the run"):
        second.write_record("record.json", '"second"')
    assert (tmp_path / "record.json").read_text() == '"third"'
    second.end("superseded")


def test_a_restarted_slurm_job_takes_over_from_its_earlier_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm starts a job again when it loses sight of a node, on which the first process may
    live on.
    """
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    first = claimed(tmp_path, lease_s=1.2)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    second = claimed(tmp_path, lease_s=30.0)
    assert second.number == 2
    wait_for(lambda: first.lost)  # it finds out by itself, at its next heartbeat
    second.check()


def test_a_full_disk_does_not_end_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = claimed(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lease, "write_there", full)
        attempt.beat()
    attempt.update(epoch=4)
    attempt.beat()
    last = there(last_attempt(tmp_path))
    assert last["progress"] == {"epoch": 4}


def test_an_attempt_whose_file_was_removed_makes_it_no_more(tmp_path: Path) -> None:
    attempt = claimed(tmp_path)
    (file,) = (tmp_path / "attempts").iterdir()
    file.unlink()
    attempt.beat()
    assert not list((tmp_path / "attempts").iterdir())
    with pytest.raises(lease.LeaseLost, match="was removed; this process writes no more"):
        attempt.check()
    attempt.end("superseded")
    assert not list((tmp_path / "attempts").iterdir())


def test_an_attempt_whose_file_is_damaged_is_one(tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    path = tmp_path / "attempts" / "0001.json"
    path.write_text('{"owner": ')
    assert is_running(last_attempt(tmp_path))
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    assert not is_running(last_attempt(tmp_path))
    assert claimed(tmp_path).number == 2
