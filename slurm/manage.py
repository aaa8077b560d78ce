"""What is done with a sweep that was started: try cells again, cancel them, show their logs, clean up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbench import RegbenchError
from regbench.benchmark.directory import checkpoint_files
from regbench.slurm.queue import cancel, jobs_of, release
from regbench.slurm.status import FINISHED, CellStatus, log_file, sweep_status

UNFINISHED = ("failed", "lost", "interrupted", "pending")


def statuses(folder: Path, cells: Sequence[str] = ()) -> list[CellStatus]:
    """How the cells stand, the scheduler asked too; all of the sweep's, or those whose ids begin as `cells` do.

    Raises:
        RegbenchError: If a cell is unknown, or begins the ids of several.
    """
    found = sweep_status(folder, jobs_of(folder))
    if not cells:
        return found
    chosen = []
    for prefix in cells:
        matching = [status for status in found if status.cell_id.startswith(prefix)]
        if len(matching) != 1:
            what = "no cell" if not matching else f"{len(matching)} cells"
            raise RegbenchError(f"{what} of {folder.name} begin with {prefix!r}; see: regbench status {folder.name}")
        chosen += matching
    return chosen


def retry(folder: Path, cells: Sequence[str]) -> tuple[list[CellStatus], list[str]]:
    """Submits again what is neither finished nor in the queue, as it was submitted last; releases jobs that are held.

    Slurm holds a job that it put back into the queue because a node failed to launch it.

    Returns:
        The cells, and the ids of new job arrays.

    Raises:
        RegbenchError: If the sweep was never submitted, or Slurm refuses.
    """
    from regbench.benchmark.config import Cell, Cluster, load_cell, plain_cluster, plain_runtime
    from regbench.slurm.submit import submit  # imports torch, which the other functions do without

    submissions = [json.loads(path.read_text()) for path in (folder / "jobs").glob("*.json")]
    if not submissions:
        raise RegbenchError(f"{folder} was not submitted to Slurm; the same `regbench sweep` command tries again")
    submissions.sort(key=lambda entry: float(entry["submitted"]))
    clusters: dict[str, Cluster] = {}
    for entry in submissions:
        clusters |= dict.fromkeys(entry["cells"].values(), plain_cluster(entry["cluster"]))
    runtime = plain_runtime(submissions[-1]["runtime"])
    found = statuses(folder, cells)
    held = [status for status in found if status.state == "queued" and "held" in status.detail.lower()]
    release([status.job for status in held])
    todo = [status for status in found if status.state in UNFINISHED and status.cell_id in clusters]
    again: list[tuple[Cell, Cluster]] = [
        (load_cell(status.directory / "config.yaml"), clusters[status.cell_id]) for status in todo
    ]
    return [*held, *todo], submit(again, runtime, folder) if again else []


def cancel_cells(folder: Path, cells: Sequence[str]) -> list[CellStatus]:
    """Cancels what is in the queue or runs as a job; returns those cells."""
    jobs = jobs_of(folder)
    chosen = [status for status in statuses(folder, cells) if (job := jobs.get(status.cell_id)) and job.state]
    if any(jobs[status.cell_id].state == "?" for status in chosen):
        raise RegbenchError("Slurm does not answer; nothing was cancelled")
    every = [
        name
        for path in (folder / "jobs").glob("*.json")
        for name, cell in json.loads(path.read_text())["cells"].items()
        if cell in {status.cell_id for status in chosen}
    ]
    cancel(every)
    return chosen


def logs(folder: Path, cell: str) -> Path:
    """The newest log file of a cell.

    Raises:
        RegbenchError: If there is none.
    """
    (status,) = statuses(folder, [cell])
    if (path := log_file(status.directory, status.job)) is None:
        raise RegbenchError(f"{status.directory} has no log yet; it is {status.state}")
    return path


@dataclass(frozen=True)
class Cleaned:
    """What `clean` removed: `files` of `size_bytes` in all."""

    files: int
    size_bytes: int


def clean(folder: Path, *, checkpoints: bool, dry_run: bool) -> Cleaned:
    """Removes what finished cells no longer need: all checkpoints but the last, damaged ones, leftovers of kills.

    Args:
        folder: The sweep.
        checkpoints: Remove the last one too: the trained weights.
        dry_run: Only count.
    """
    found: list[Path] = []
    for status in sweep_status(folder):
        if status.state not in FINISHED:
            continue
        directory = status.directory
        found += checkpoint_files(directory)[0 if checkpoints else 1 :]
        found += [*directory.glob("*.damaged"), *directory.glob(".*.*"), *(directory / "attempts").glob(".*.*")]
    size_bytes = sum(path.stat().st_size for path in found)
    if not dry_run:
        for path in found:
            path.unlink(missing_ok=True)
    return Cleaned(len(found), size_bytes)
