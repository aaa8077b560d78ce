"""Who works in a run directory: attempts, each with a number that fences the ones before it.

An attempt is a file `attempts/0003.json`. Creating it is the claim: the file system lets only one process do so. Its
owner rewrites it every few seconds. Whoever finds the last attempt ended, dead or silent may begin the next; an
owner that finds a higher number than its own has lost the run and stops. Nothing here depends on locks, on clocks that
agree or on a scheduler, none of which can be had on every cluster's file system.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regbench.files import write_text

log = logging.getLogger("regbench")

# Hosts of a cluster agree about the time at least this well: munge, which Slurm stands on, asks for no less.
_CLOCK_SKEW_S = 300.0
_BEATS_PER_LEASE = 6


class LeaseLost(RuntimeError):
    """Another process has begun a later attempt at this run; this one must write no more."""


def now() -> str:
    """The time of day, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_attempts(directory: Path) -> list[dict[str, Any]]:
    """All attempts at the run, the first one first."""
    return [_read(path) for path in _files(directory)]


def last_attempt(directory: Path) -> dict[str, Any] | None:
    """The attempt with the highest number, if there is one."""
    files = _files(directory)
    return _read(files[-1]) if files else None


def _files(directory: Path) -> list[Path]:
    try:
        names = sorted(entry for entry in os.listdir(directory / "attempts") if entry[0] != ".")  # noqa: PTH208
    except FileNotFoundError:
        return []
    return [directory / "attempts" / name for name in names]


def _read(path: Path) -> dict[str, Any]:
    # Empty while it is being made, or for ever if its maker was killed at that moment.
    text = path.read_text()
    made: dict[str, Any] = json.loads(text) if text else {"heartbeat": path.stat().st_mtime, "beat": -1, "lease_s": 60}
    return {"number": int(path.stem), "ended": None, "owner": {}, "progress": {}, **made}


def is_running(attempt: dict[str, Any] | None) -> bool:
    """Whether the owner of an attempt is at work, as far as this host can tell without waiting."""
    if attempt is None or attempt["ended"]:
        return False
    alive = _owner_lives(attempt["owner"])
    return time.time() - attempt["heartbeat"] < attempt["lease_s"] + 30 if alive is None else alive


def _start_ticks(pid: int) -> str | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]


@functools.cache
def _place() -> dict[str, str]:
    """Where the number of a process means something."""
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
    """Whether a process lives, if it can be seen from here."""
    place = _place()
    if "boot_id" not in place or any(owner.get(key) != value for key, value in place.items()):
        return None
    return bool(_start_ticks(owner["pid"]) == owner["start_ticks"])


class Attempt:
    """The right to write into a run directory, as long as no later attempt has begun.

    Attributes:
        number: The fencing number: 1, 2, ...
        lost: Whether a later attempt was seen.
    """

    def __init__(self, directory: Path, number: int, lease_s: float) -> None:
        """For `claim` to call, which made the file."""
        self.number = number
        self.lost = False
        self._directory = directory
        self._path = directory / "attempts" / f"{number:04d}.json"
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {
            "owner": _identity(),
            "lease_s": lease_s,
            "started": now(),
            "finished": None,
            "ended": None,
            "error": None,
            "beat": 0,
            "progress": {},
        }
        self._stopped = threading.Event()
        self.beat()
        self._thread = threading.Thread(target=self._keep, args=(lease_s / _BEATS_PER_LEASE,), daemon=True)
        self._thread.start()

    def _keep(self, period_s: float) -> None:
        while not self._stopped.wait(period_s):
            self.beat()

    def beat(self) -> None:
        """Shows that the owner lives, and looks whether it has been superseded."""
        with self._lock:
            # A full disk must not end the training: the next beat tries again.
            with contextlib.suppress(OSError):
                files = _files(self._directory)
                self.lost = self.lost or (bool(files) and files[-1].name > self._path.name)
            self._state["beat"] += 1
            self._state["heartbeat"] = time.time()
            with contextlib.suppress(OSError):
                write_text(self._path, json.dumps(self._state, indent=1))

    def check(self) -> None:
        """Returns if this attempt may still write.

        Raises:
            LeaseLost: If a later attempt has begun.
        """
        files = _files(self._directory)
        self.lost = self.lost or files[-1].name > self._path.name
        if self.lost:
            raise LeaseLost(f"{self._directory}: attempt {self.number} was superseded; it writes no more")

    def update(self, **progress: Any) -> None:
        """What the next beat tells of the run's progress."""
        with self._lock:
            self._state["progress"] = {**self._state["progress"], **progress}

    def end(self, how: str, error: str | None = None) -> None:
        """The last beat: `how` is "done", "diverged", "failed", "interrupted", "requeued" or "superseded"."""
        self._stopped.set()
        self._thread.join()
        self._state.update(ended=how, error=error, finished=now())
        self.beat()


def claim(directory: Path, lease_s: float) -> Attempt | None:
    """Begins the next attempt at a run, as soon as nobody else is at work on it.

    An owner that this host can see is believed dead or alive by its process; one that cannot be seen is believed dead
    once its heartbeat stood still for `lease_s`. A Slurm job that was started again takes over from its earlier life
    at once, though that may live on where Slurm lost sight of it.

    Args:
        directory: The run directory.
        lease_s: How long an owner may be silent.

    Returns:
        The attempt, or None if the run was finished while this process waited.
    """
    (directory / "attempts").mkdir(parents=True, exist_ok=True)
    seen: tuple[int, int] | None = None
    since_s = time.monotonic()
    while not (directory / "record.json").exists():
        last = last_attempt(directory)
        if last is not None and not _is_free(last):
            if (last["number"], last["beat"]) != seen:
                if seen is None:
                    owner = last["owner"]
                    log.info(
                        "%s: process %s on %s is at work here; waiting for it",
                        *(directory, owner.get("pid", "?"), owner.get("hostname", "?")),
                    )
                seen, since_s = (last["number"], last["beat"]), time.monotonic()
            if _owner_lives(last["owner"]) or time.monotonic() - since_s < lease_s:
                time.sleep(min(1.0, lease_s / 20))
                continue
        number = last["number"] + 1 if last else 1
        file = directory / "attempts" / f"{number:04d}.json"
        try:
            file.open("x").close()
        except FileExistsError:
            continue
        if (directory / "record.json").exists():  # written between the first look and the claim
            file.unlink()
            break
        return Attempt(directory, number, lease_s)
    return None


def _is_free(last: dict[str, Any]) -> bool:
    """Whether the next attempt may begin without waiting."""
    if last["ended"] or time.time() - last["heartbeat"] > last["lease_s"] + _CLOCK_SKEW_S:
        return True
    owner, mine = last["owner"], _identity()
    same_job = "slurm_job_id" in mine and owner.get("slurm_job_id") == mine["slurm_job_id"]
    return (same_job and owner["slurm_restarts"] < mine["slurm_restarts"]) or _owner_lives(owner) is False
