"""Ask Slurm for jobs and cancel them, without importing torch and submitit, which takes seconds."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict

from regbench.errors import RegbenchError
from regbench.files import Name, read_json, write_text
from regbench.sweeps.status import Job

log = logging.getLogger("regbench")

_TIMEOUT_S = 10.0
_COMMANDS = ("sbatch", "scancel", "scontrol", "squeue", "srun")


def jobs_of(folder: Path) -> dict[str, Job]:
    """Map the submitted cells of a sweep to their jobs; rather to one in the queue than to one that is gone."""
    found = submissions(folder)
    states = _states(sorted({job.partition("_")[0] for entry in found for job in entry["cells"]}))
    jobs: dict[str, Job] = {}
    for entry in found:
        for name, cell in entry["cells"].items():
            state, why = ("?", "") if states is None else states.get(name, (None, ""))
            known = jobs.get(cell)
            queued = dict(known.queued) if known else {}
            if state not in (None, "?"):
                queued[name] = state
            # The stages of one submission belong together.
            chain = (*(known.chain if known and entry["after"] else ()), name)
            # Of several stages in the queue, the first is the one that can run.
            first = known is not None and known.state not in (None, "?") and state == "PENDING"
            if known is not None and (first or (state is None and known.state is not None)):
                jobs[cell] = replace(known, queued=queued, chain=chain)
            else:
                jobs[cell] = Job(name, state, why, queued, chain)
    return jobs


class _Note(TypedDict):
    """What is noted of a job array: when it was submitted, which stages, after which other array, with what."""

    submitted: float
    stages: list[Literal["pretrain", "tune", "final"]]
    after: str
    runtime: dict[str, Any]
    cluster: dict[str, Any]


class _Intent(_Note):
    """What is noted before it is submitted: the array's name and the cells, in the order of its jobs."""

    name: str
    cells: list[Name]


class Submission(_Note):
    """What is noted when it is submitted: the name of each job and its cell."""

    cells: dict[Name, Name]


def submissions(folder: Path) -> list[Submission]:
    """List what was submitted for a sweep, job array by job array, the oldest first; damaged notes are left out."""
    found = []
    for path in (folder / "jobs").glob("*.json"):
        try:
            found.append(read_json(path, Submission, f"see: squeue --jobs={path.stem}; then remove it"))
        except (OSError, RegbenchError) as error:
            log.warning("%s", error)
    return sorted(found, key=lambda entry: entry["submitted"])


def _states(arrays: Sequence[str]) -> dict[str, tuple[str, str]] | None:
    """Map the jobs in the queue to their state and reason; None if Slurm does not answer."""
    if not arrays:
        return {}
    try:
        lines = ask("squeue", "--noheader", "--array", "--format=%i|%T|%r", f"--jobs={','.join(arrays)}").splitlines()
    except subprocess.CalledProcessError as error:
        # What it says when none of them is in its memory any more.
        return {} if "Invalid job id" in str(error.stderr) else None
    except (OSError, subprocess.SubprocessError):
        return None
    found = {}
    for line in filter(None, lines):
        if (job := re.fullmatch(r"([^|]+)\|([A-Z_]+)\|(.*)", line)) is None:
            return None  # others may be lost too, and jobs that are there must not be taken for gone
        found[job[1]] = (job[2], job[3])
    return found


def was_submitted(folder: Path) -> bool:
    """Tell whether a sweep ever went to Slurm, or may have."""
    return any(path.suffix in (".json", ".intent") for path in (folder / "jobs").glob("*.*"))


def settle(intent: Path, array: str) -> None:
    """Note the id of the array that an intent to submit has led to.

    Args:
        intent: The file `<folder>/jobs/<…>.intent`, whose list of cells is in the order of the array.
        array: Its id.
    """
    entry = _read_intent(intent)
    count = len(entry["cells"])
    names = [f"{array}_{i}" if count > 1 else array for i in range(count)]
    note = {**entry, "cells": dict(zip(names, entry["cells"], strict=True))}
    write_text(intent.with_name(f"{array}.json"), json.dumps(note))
    intent.unlink()


def _read_intent(path: Path) -> _Intent:
    return read_json(path, _Intent, "cancel the jobs that the interrupted command left (squeue --me), then remove it")


def adopt(folder: Path) -> None:
    """Find the jobs of submissions that were killed before they could note them, and forget those that have none.

    The process must have the folder to itself, see `regbench.sweeps.status.locked`.

    Raises:
        RegbenchError: If Slurm does not answer.
    """
    for intent in (folder / "jobs").glob("*.intent"):
        entry = _read_intent(intent)
        found = answer("squeue", "--noheader", "--array", "--format=%i", f"--name={entry['name']}").split()
        for array in {name.partition("_")[0] for name in found}:
            if all((folder / "jobs" / "logs" / f"{name}_submitted.pkl").exists() for name in found):
                log.info("%s: found job %s, whose submission was interrupted", folder, array)
                settle(intent, array)
            else:
                log.info("%s: cancelling job %s, whose submission was interrupted", folder, array)
                tell([array], "scancel")
        intent.unlink(missing_ok=True)


def tell(names: Sequence[str], *command: str) -> None:
    """Give a command of Slurm about jobs, a few hundred at a time.

    Raises:
        RegbenchError: If Slurm does not answer or refuses.
    """
    try:
        for start in range(0, len(names), 500):
            ask(*command, *names[start : start + 500])
    except (OSError, subprocess.SubprocessError) as error:
        raise RegbenchError(f"{command[0]}: {reason(error)}") from error


def require_slurm() -> None:
    """Refuse to go on where Slurm is not installed.

    Raises:
        RegbenchError: If one of its commands is not to be found.
    """
    if missing := [command for command in _COMMANDS if shutil.which(command) is None]:
        raise RegbenchError(
            f"there is no {missing[0]} here, so this is no machine of a Slurm cluster: give the command on one of its "
            "login nodes, or leave out cluster=slurm"
        )


def ask(*command: str) -> str:
    """Give a command of Slurm, and return what it prints.

    Raises:
        OSError, subprocess.SubprocessError: If it is not there, fails or takes too long.
    """
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=True, timeout=_TIMEOUT_S
    ).stdout


def answer(*command: str) -> str:
    """Give a command of Slurm that only asks, and return what it prints.

    Raises:
        RegbenchError: If Slurm does not answer.
    """
    try:
        return ask(*command)
    except (OSError, subprocess.SubprocessError) as error:
        raise RegbenchError(f"Slurm does not answer ({reason(error)}); try again, or see: scontrol ping") from error


def reason(error: Exception) -> str:
    """Say in one line why it failed."""
    detail = getattr(error, "stderr", None) or str(error)
    return " ".join(str(detail).split())
