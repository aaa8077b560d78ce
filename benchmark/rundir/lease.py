"""Who works in a run directory: attempts, each with a number that fences the ones before it.

An attempt is a file `attempts/0003.json`. Creating it is the claim: the file system lets only one
process do so. Its owner rewrites it every few seconds. Whoever finds the last attempt ended, dead
or silent may begin the next; an owner that finds a higher number than its own, a record that it did
not write, or its own file gone has lost the run and stops. An owner may also be paused between that
look and its next write. So all files that it writes carry its number; only the record has the same
name for all attempts, and the first to write it wins. Nothing here depends on locks or
on a scheduler, which not every cluster has, and clocks of hosts may differ by minutes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from regbench.benchmark.rundir.directory import (
    attempt_numbers,
    highest_number,
    numbered_file,
    remove_earlier_leftovers,
)
from regbench.errors import RegbenchError
from regbench.files import read_json, write_new, write_there

log = logging.getLogger("regbench")

# Hosts of a cluster agree about the time at least this well: munge, which Slurm stands on, asks for
# no less.
_CLOCK_SKEW_S = 300.0
# Some beats may fail or come late before others believe the owner dead.
_BEATS_PER_LEASE = 6


class _Owner(TypedDict):
    pid: NotRequired[int]
    slurm_restarts: NotRequired[int]


class _Progress(TypedDict):
    epoch: NotRequired[int]
    stage: NotRequired[str]
    detail: NotRequired[str]
    outcome: NotRequired[Literal["done", "diverged", "tuned"]]
    img_per_s: NotRequired[float | None]
    remaining_s: NotRequired[float | None]
    began: NotRequired[dict[str, Any]]


class _AttemptFile(TypedDict):
    """The part of an attempt's file that others rely on."""

    heartbeat: float
    beat: int
    lease_s: float
    owner: NotRequired[_Owner]
    ended: NotRequired[str | None]
    error: NotRequired[str | None]
    progress: NotRequired[_Progress]


class LeaseLost(RegbenchError):
    """Another process works on this run or has finished it, or its folder is gone.

    This one must write no more.
    """


def now() -> str:
    """Return the time, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_attempts(directory: Path) -> list[dict[str, Any]]:
    """Read all attempts at the run, the first one first."""
    return [_read(directory, number) for number in attempt_numbers(directory)]


def last_attempt(directory: Path) -> dict[str, Any] | None:
    """Read the attempt with the highest number, if there is one."""
    numbers = attempt_numbers(directory)
    return _read(directory, numbers[-1]) if numbers else None


def _path(directory: Path, number: int) -> Path:
    return directory / "attempts" / f"{number:04d}.json"


def _read(directory: Path, number: int) -> dict[str, Any]:
    path, remedy = _path(directory, number), "the cell goes on when the same command is given again"
    state: Mapping[str, Any]
    try:
        state = read_json(path, _AttemptFile, remedy)
    except RegbenchError as error:
        # The attempt's owner is unknown, so the file's age has to tell whether somebody still
        # writes it.
        state = {"heartbeat": path.stat().st_mtime, "beat": -1, "lease_s": 60}
        state["damaged"] = str(error)
    return {"ended": None, "owner": {}, "progress": {}, **state, "number": number}


def is_running(attempt: dict[str, Any] | None) -> bool:
    """Return True if the owner of an attempt is at work, as far as is known without waiting."""
    if attempt is None or attempt["ended"]:
        return False
    lives = _owner_lives(attempt["owner"])
    if lives is not None:
        return lives
    # Half a minute for clocks that differ a little: this is only shown, nobody claims a run by it.
    return bool(time.time() - attempt["heartbeat"] < attempt["lease_s"] + 30)


def _start_ticks(pid: int) -> str | None:
    """Return when a process began; None if it does not run.

    Its number alone does not identify it: another process may get the same number later.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    is_zombie = fields[0] == "Z"
    return None if is_zombie else fields[19]


@functools.cache
def _place() -> dict[str, str]:
    """Return where a process's number is unique: the host, its boot and the container."""
    place = {"hostname": platform.node()}
    with contextlib.suppress(OSError):
        place["boot_id"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        place["pid_namespace"] = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    return place


def _identity() -> dict[str, Any]:
    pid = os.getpid()
    identity: dict[str, Any] = {**_place(), "pid": pid, "start_ticks": _start_ticks(pid)}
    if "SLURM_JOB_ID" in os.environ:
        identity["slurm_job_id"] = os.environ["SLURM_JOB_ID"]
        identity["slurm_restarts"] = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    return identity


def _owner_lives(owner: dict[str, Any]) -> bool | None:
    """Return True if a process lives; None if it cannot be seen from here."""
    place = _place()
    is_here = all(owner.get(key) == value for key, value in place.items())
    if "boot_id" not in place or "pid" not in owner or not is_here:
        return None
    ticks = _start_ticks(owner["pid"])
    return ticks is not None and bool(ticks == owner.get("start_ticks"))


class Attempt:
    """The right to write into a run directory, as long as no later attempt has begun.

    Attributes:
        directory: The run directory.
        number: The fencing number: 1, 2, ...
        lost: Reason why it must write no more; empty until that is noticed.
        finished: Whether it has written the run's record, after which it writes no more either.
    """

    def __init__(self, directory: Path, number: int, state: dict[str, Any]) -> None:
        """Take over the file that `claim` made with this state; only `claim` calls this."""
        self.directory, self.number = directory, number
        self.lost = ""
        self.finished = False
        self._path = _path(directory, number)
        self._lock = threading.Lock()
        self._state = state
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, daemon=True)
        self._thread.start()

    def _keep_beating(self) -> None:
        while not self._stopped.wait(self._state["lease_s"] / _BEATS_PER_LEASE):
            self.beat()

    def beat(self) -> None:
        """Show others that the owner lives, and look whether it has lost the run."""
        with self._lock:
            self._state["beat"] += 1
            self._state["heartbeat"] = time.time()
            # A full disk must not end the training: the next beat tries again.
            with contextlib.suppress(OSError):
                self._look()
                if self._path.exists():  # one that was removed is not made again
                    write_there(self._path, _text(self._state))

    def _look(self) -> None:
        """Find out whether another process has taken the run, or finished it."""
        if self.lost or self.finished:
            return
        if not self._path.exists():
            self.lost = f"{self._path} was removed"
            return
        last = max(attempt_numbers(self.directory), default=0)
        superseded = f"attempt {self.number} was superseded"
        if last > self.number:
            self.lost = f"{superseded} by attempt {last}"
        elif (self.directory / "record.json").exists():
            self.lost = f"{superseded}: another process has finished the run"

    def check(self) -> None:
        """Return only if this attempt may still write.

        Raises:
            LeaseLost: If a later attempt has begun or the run is finished, or the attempt's file
                was removed.
        """
        self._look()
        if self.lost:
            raise LeaseLost(f"{self.directory}: {self.lost}; this process writes no more")

    def path(self, name: str) -> Path:
        """Return the path of this attempt's own file of that name: `choice-0002.json` for
        `choice.json`.
        """
        return numbered_file(self.directory, name, self.number)

    def write(self, name: str, data: bytes) -> Path:
        """Write this attempt's own file of that name, atomically, if `check` lets it.

        Return its path.
        """
        self.check()
        write_there(self.path(name), data)
        return self.path(name)

    def write_record(self, name: str, text: str) -> None:
        """Write "record.json" or "tuning.json" unless it is there: a run has at most one of each.

        Raises:
            LeaseLost: See `check`; also if another process has finished the run.
        """
        self.check()
        if write_new(self.directory / name, text):
            self.finished = name == "record.json"
        else:
            # A "tuning.json" of an earlier attempt is as good; a "record.json" is another
            # process's, so `check` raises.
            self.check()

    def update(self, **progress: Any) -> None:
        """Set what the next beat shows of the run's progress."""
        with self._lock:
            self._state["progress"].update(progress)

    def began(self, **where: Any) -> None:
        """Note from where a part of the run goes on: it shows whether attempts come farther
        than those before them.
        """
        with self._lock:
            self._state["progress"].setdefault("began", {}).update(where)
        self.beat()

    def end(self, how: str, error: str | None = None) -> None:
        """Write the last beat: `how` is "done", "failed", "interrupted" or "superseded"."""
        # Join first, or the thread could write the file once more without the end.
        self._stopped.set()
        self._thread.join()
        self._state.update(ended=how, error=error, finished=now())
        self.beat()


def _text(state: dict[str, Any]) -> bytes:
    return json.dumps(state, indent=1).encode()


def claim(directory: Path, lease_s: float) -> Attempt | None:
    """Begin the next attempt at a run, as soon as nobody else is at work on it.

    Args:
        directory: The run directory.
        lease_s: Seconds for which an owner may be silent.

    Returns:
        The attempt, or None if the run was finished while this process waited. Its number is above
        every number that a file of the directory carries, so that nothing of earlier attempts is
        ever taken for its own.

    Raises:
        LeaseLost: If the directory was removed while this process waited.
    """
    # If this host can see the owner's process, that shows whether the owner lives; otherwise it is
    # believed dead once its heartbeat stood still for `lease_s`. A Slurm job that was started again
    # takes over from its earlier life at once, although that may still run where Slurm lost sight
    # of it.
    (directory / "attempts").mkdir(parents=True, exist_ok=True)
    seen: tuple[int, int] | None = None
    while not (directory / "record.json").exists():
        try:
            # Before the look at the last attempt: whoever claims in the meantime takes the number
            # after this one.
            highest = highest_number(directory)
            last = last_attempt(directory)
            if last is not None and not _is_free(last):
                if seen is None:
                    owner = last["owner"]
                    name = f"process {owner.get('pid', '?')} on {owner.get('hostname', '?')}"
                    log.info("%s: %s is at work here; waiting for it", directory, name)
                # Silence is measured by this host's clock alone: the time in the owner's file may
                # be by another host's.
                if seen != (last["number"], last["beat"]):
                    seen, since_s = (last["number"], last["beat"]), time.monotonic()
                is_silent = time.monotonic() - since_s >= lease_s
                if not is_silent or _owner_lives(last["owner"]):
                    time.sleep(min(1.0, lease_s / 20))
                    continue
            number, state = highest + 1, _begun(lease_s)
            if not write_new(_path(directory, number), _text(state).decode()):
                continue
        except FileNotFoundError as error:
            if (directory / "attempts").exists():  # a claim was taken back
                continue
            raise LeaseLost(
                f"{directory} was removed while this process waited for its turn"
            ) from error
        if (directory / "record.json").exists():  # written between the first look and the claim
            _path(directory, number).unlink()
            break
        return Attempt(directory, number, state)
    return None


def _begun(lease_s: float) -> dict[str, Any]:
    """Return the content of a new attempt's file."""
    return {
        "owner": _identity(),
        "lease_s": lease_s,
        "started": now(),
        "finished": None,
        "ended": None,
        "error": None,
        "beat": 0,
        "heartbeat": time.time(),
        "progress": {},
    }


def _is_free(last: dict[str, Any]) -> bool:
    """Return True if the next attempt may begin without waiting."""
    if last["ended"]:
        return True
    owner, mine = last["owner"], _identity()
    is_same_job = "slurm_job_id" in mine and owner.get("slurm_job_id") == mine["slurm_job_id"]
    if is_same_job and owner.get("slurm_restarts", 0) < mine["slurm_restarts"]:
        return True
    lives = _owner_lives(owner)
    if lives is None:  # it is on another host, whose clock may differ
        return bool(time.time() - last["heartbeat"] > last["lease_s"] + _CLOCK_SKEW_S)
    return not lives


@contextlib.contextmanager
def attempt_at(directory: Path, lease_s: float) -> Iterator[Attempt | None]:
    """Hold an attempt at the run and note how it ended; give None if the run is finished.

    Raises:
        LeaseLost: If the attempt lost the run on the way, whatever went wrong because of that.
    """
    attempt = claim(directory, lease_s)
    if attempt is None:
        yield None
        return
    remove_earlier_leftovers(directory, attempt.number)
    try:
        yield attempt
        if not attempt.finished:
            attempt.check()
    except BaseException as error:
        with contextlib.suppress(LeaseLost):
            attempt.check()
        is_stopped = isinstance(error, KeyboardInterrupt)
        if attempt.lost:
            attempt.end("superseded")
            # A successor is the reason of whatever went wrong, such as a file that is gone: say so.
            if not is_stopped and not isinstance(error, LeaseLost):
                attempt.check()
        elif is_stopped:
            attempt.end("interrupted")
        else:
            attempt.end("failed", f"{type(error).__name__}: {error}")
        raise
    attempt.end("done")
