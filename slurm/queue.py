"""Slurm's commands, and the notes on which job has which cell.

Torch and submitit, which take seconds to import, are not needed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from regbench.errors import RegbenchError
from regbench.files import Name, read_json, write_text
from regbench.sweeps.status import CellJobs, Job

log = logging.getLogger("regbench")

# Slurm's commands hang while its controller is away.
_TIMEOUT_S = 10.0
# scancel returns when the jobs have been told, however many they are.
_CANCEL_TIMEOUT_S = 60.0
_COMMANDS = ("sbatch", "scancel", "scontrol", "squeue", "srun")
_SQUEUE = ("squeue", "--noheader", "--array")
_SACCT = ("sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State")


class SlurmError(RegbenchError):
    """A command of Slurm is not there, failed or took too long."""


def call(*command: str) -> str:
    """Run a command of Slurm, and return what it prints."""
    # Such variables set options, of which some hide jobs: those would be taken for gone.
    options = ("SQUEUE_", "SCANCEL_")
    given = {name: value for name, value in os.environ.items() if not name.startswith(options)}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=_CANCEL_TIMEOUT_S if command[0] == "scancel" else _TIMEOUT_S,
            env=given,
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or error
        if isinstance(error, subprocess.TimeoutExpired):  # it tells the whole command
            told = f"no answer in {error.timeout:.0f} s"
        detail = " ".join(str(told).split())
        raise SlurmError(
            f"Slurm does not answer, or refuses ({command[0]}: {detail}); try again, or see: "
            "scontrol ping"
        ) from error
    return done.stdout


def cancel_jobs(names: Collection[str], jobs: Mapping[str, CellJobs]) -> None:
    """Cancel some of the jobs; name each array once, as Slurm limits a user's requests."""
    queued = set(itertools.chain(*(own.queued for own in jobs.values())))
    partly = set(map(_array_of, queued.difference(names)))
    tasks: dict[str, list[str]] = {}
    for name in names:
        tasks.setdefault(_array_of(name), []).append(name.partition("_")[2])
    if tasks:
        named = (f"{a}_[{','.join(tasks[a])}]" if a in partly else a for a in tasks)
        call("scancel", *named)


def require_slurm() -> None:
    """Refuse to go on if one of Slurm's commands is not installed."""
    missing = [command for command in _COMMANDS if shutil.which(command) is None]
    if missing:
        raise RegbenchError(
            f"there is no {missing[0]} here, so this is no machine of a Slurm cluster: give the "
            "command on one of its login nodes, or leave out cluster=slurm"
        )


class _ArrayNote(TypedDict):
    """The note on a job array: time of submission, its stages and all that were asked for, the
    array that it waits for, its resources.
    """

    submitted: float
    stages: list[Literal["pretrain", "tune", "final"]]
    asked: NotRequired[list[Literal["pretrain", "tune", "final"]]]
    after: str
    runtime: dict[str, Any]
    cluster: dict[str, Any]


class _Intent(_ArrayNote):
    """The note before an array is submitted: its name and the cells, in the order of its jobs."""

    name: str
    cells: list[Name]


class Submission(_ArrayNote):
    """The note when an array is submitted: its name, the name of each job and its cell."""

    name: NotRequired[str]
    cells: dict[Name, Name]


def submissions(folder: Path) -> list[Submission]:
    """List what was submitted for a sweep, job array by job array, the oldest first.

    Damaged notes are left out.
    """
    found = []
    # The file's name is the id of the job array.
    for path in (folder / "jobs").glob("*.json"):
        remedy = f"see: squeue --jobs={path.stem}; then remove it"
        try:
            found.append(read_json(path, Submission, remedy))
        except (OSError, RegbenchError) as error:
            log.warning("%s", error)
    return sorted(found, key=lambda entry: entry["submitted"])


def was_submitted(folder: Path) -> bool:
    """Return True if a sweep ever went to Slurm, or may have."""
    return bool({path.suffix for path in (folder / "jobs").glob("*.*")} & {".json", ".intent"})


def note_submitted(intent: Path, entry: Mapping[str, Any], array: str) -> None:
    """Note the id of the array that an intent to submit (the file `<folder>/jobs/<…>.intent`, whose
    content is `entry`) has led to.
    """
    # The intent lists the cells in the order of the array.
    names = [f"{array}_{index}" for index in range(len(entry["cells"]))]
    cells = dict(zip(names if len(names) > 1 else [array], entry["cells"], strict=True))
    write_text(intent.with_name(f"{array}.json"), json.dumps({**entry, "cells": cells}))
    intent.unlink()


def recover_interrupted(folder: Path) -> None:
    """Note the jobs of submissions that were killed before they could do so, and forget submissions
    that have no jobs.
    """
    # The process must hold the folder, see `regbench.sweeps.status.locked`.
    remedy = "cancel the jobs that the interrupted command left (squeue --me), then remove it"
    for intent in (folder / "jobs").glob("*.intent"):
        entry = read_json(intent, _Intent, remedy)
        found = call(*_SQUEUE, "--format=%i", f"--name={entry['name']}").split()
        # submitit writes this file when Slurm has taken the job; a job without it does not know
        # what to do.
        ready = all((folder / "jobs" / "logs" / f"{name}_submitted.pkl").exists() for name in found)
        for array in set(map(_array_of, found)):
            if ready:
                log.info("%s: found job %s, whose submission was interrupted", folder, array)
                note_submitted(intent, entry, array)
            else:
                log.info("%s: cancelling job %s, whose submission was interrupted", folder, array)
                call("scancel", array)
        intent.unlink(missing_ok=True)
    # What jobs were to do that Slurm refused.
    for path in (folder / "jobs" / "logs").glob("[!_]" * 32 + ".pkl"):
        path.unlink()


def jobs_of(folder: Path) -> dict[str, CellJobs]:
    """Map the submitted cells of a sweep to their jobs."""
    found = submissions(folder)
    names = itertools.chain(*(entry["cells"] for entry in found))
    states = _states(sorted(set(map(_array_of, names))))
    jobs: dict[str, CellJobs] = {}
    for entry in found:
        for name, cell in entry["cells"].items():
            job = Job(name, "?")
            if states is not None:
                state, reason, title = states.get(name, (None, "", ""))
                # Where Slurm's ids have begun again, the job is another.
                job = Job(name, state if title == entry.get("name", title) else None, reason)
            if cell in jobs:
                jobs[cell].add(job, is_later_stage=bool(entry["after"]))
            else:
                jobs[cell] = CellJobs(job)
    return jobs


def preempted(names: Collection[str]) -> set[str]:
    """Return which of the jobs have left the queue because Slurm cancelled them to make room for
    others.
    """
    arrays = ",".join(sorted(set(map(_array_of, names))))
    ends: dict[str, str] = {}
    # squeue knows of ended jobs for the time MinJobAge, five minutes.
    with contextlib.suppress(SlurmError):
        ends = _ends(*_SQUEUE, "--states=all", "--format=%i|%T", f"--jobs={arrays}")
    if not ends.keys() >= set(names):
        with contextlib.suppress(SlurmError):  # the cluster keeps no accounts
            ends = _accounts(arrays) | ends
    return {name for name in names if ends.get(name) == "PREEMPTED"}


# Whoever waits asks about the same jobs every two seconds, and their accounts no longer change.
@functools.lru_cache(maxsize=1)
def _accounts(arrays: str) -> dict[str, str]:
    return _ends(*_SACCT, f"--jobs={arrays}")


def _ends(*command: str) -> dict[str, str]:
    """Map jobs to their states, as a command of Slurm prints them."""
    found = {}
    for line in call(*command).splitlines():
        name, _, found[name] = line.partition("|")
    return found


def _array_of(name: str) -> str:
    return name.partition("_")[0]


def _states(arrays: Sequence[str]) -> dict[str, tuple[str, str, str]] | None:
    """Map the jobs in the queue to state, reason and name; None if Slurm does not answer."""
    if not arrays:
        return {}
    try:
        output = call(*_SQUEUE, "--format=%i|%T|%r|%j", f"--jobs={','.join(arrays)}")
    except SlurmError as error:
        # Slurm says so when none of the jobs is in its memory any more.
        return {} if "Invalid job id" in str(error) else None
    found = {}
    for line in filter(None, output.splitlines()):
        job = re.fullmatch(r"([^|]+)\|([A-Z_]+)\|([^|]*)\|(.*)", line)
        if job is None:
            # Other lines may be damaged too, and jobs that are there must not be taken for gone.
            return None
        found[job[1]] = (job[2], job[3], job[4])
    return found
