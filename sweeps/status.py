"""The states of a sweep's cells: first by their run directories, then by the scheduler."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from regbench.benchmark.rundir.lease import claim
from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.rundir.run_folder import PLAN, CellPlan, RunFolder, read_plan
from regbench.benchmark.settings.runtime import Runtime
from regbench.errors import RegbenchError
from regbench.files import write_text
from regbench.text import counted

if TYPE_CHECKING:
    from regbench.benchmark.settings.cell import Cell
    from regbench.benchmark.settings.sweep import Sweep

FINISHED = ("done", "diverged", "tuned")
# An attempt whose process has been silent for this long is taken for dead, as a run is.
_LEASE_S = 60.0
# A traceback ends in the place and the error.
_LOG_LINES = 3
_HEADS = ("cell", "method", "seed", "state", "epochs", "img/s", "left", "job", "")
_NEED_NO_LOOK = ("done", "tuned", "queued", "pending")


def ends(stages: Collection[str]) -> tuple[str, ...]:
    """List the states in which a cell has come through the stages; "tuned" is not among them if it
    is to be tested.
    """
    return ("done", "diverged") if "final" in stages else FINISHED


@dataclass(frozen=True)
class CellStatus:
    """The state of one cell.

    Attributes:
        cell_id: The folder's name.
        label: The method's display name.
        seed: The cell's seed.
        state: "done", "diverged", "tuned" (has the score that its tuning chooses by), "running",
            "queued", "failed", "cancelled", "preempted" (its job was cancelled to make room for
            others), "lost" (a job that is gone, nobody knows why), "interrupted", "pending" or
            "damaged" (a file of it cannot be read).
        epochs_done: Epochs trained.
        epochs: Epochs in all.
        img_per_s: Speed, while it trains.
        remaining_s: Rest of the training, while it trains.
        detail: Score, what is going on, or the last error.
        job: The scheduler's name of the cell's job; empty without one.
        directory: The run directory.
    """

    cell_id: str
    label: str
    seed: int
    state: str
    epochs_done: int
    epochs: int
    img_per_s: float | None
    remaining_s: float | None
    detail: str
    job: str
    directory: Path

    def __str__(self) -> str:
        """Name the cell."""
        return f"{self.cell_id}  {self.label} seed {self.seed}"

    @property
    def columns(self) -> dict[str, Any]:
        """The row of the cell in a table: its values, by the heads of the columns."""
        speed = f"{self.img_per_s:.0f}" if self.img_per_s else ""
        left = duration(self.remaining_s) if self.remaining_s is not None else ""
        row = {"cell": self.cell_id, "method": self.label, "seed": self.seed, "state": self.state}
        return row | {"epochs": f"{self.epochs_done}/{self.epochs}", "img/s": speed, "left": left}


Announce = Callable[[CellStatus, int, int], None]
"""Function that shows how a cell has ended, how many have, and how many there are."""


@dataclass(frozen=True)
class Job:
    """The scheduler's account of a job.

    Attributes:
        name: The scheduler's id of it.
        state: The scheduler's word, such as "PENDING"; None if the job is unknown to it; "?" if it
            did not answer.
        reason: Why it waits.
    """

    name: str
    state: str | None
    reason: str = ""

    @property
    def is_in_queue(self) -> bool:
        """Whether the scheduler says that it waits or runs."""
        return self.state not in (None, "?")


class CellJobs:
    """The jobs of a cell: one for each stage that has its own, and for each submission.

    Attributes:
        shown: The job that decides the state of the cell.
        chain: Names of the jobs that were submitted last, one for each stage that has its own.
    """

    def __init__(self, first: Job) -> None:
        """Begin with the job that was submitted first."""
        self.shown = first
        self.chain = [first.name]
        self._jobs = [first]

    def add(self, job: Job, *, is_later_stage: bool = False) -> None:
        """Add the job that was submitted after those that are known."""
        self._jobs.append(job)
        if not is_later_stage:
            self.chain = []
        self.chain.append(job.name)
        # The first of several stages in the queue is the one that can run.
        waits_behind = self.shown.is_in_queue and job.state == "PENDING"
        is_gone = job.state is None and self.shown.state is not None
        if not waits_behind and not is_gone:
            self.shown = job

    @property
    def queued(self) -> dict[str, str]:
        """Names and states of all jobs that are in the queue or run."""
        return {job.name: str(job.state) for job in self._jobs if job.is_in_queue}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder, which one process at a time may plan or submit; wait for another
    process that holds it.

    The lock is an attempt, as in a run directory, so that a kill leaves none behind.
    """
    attempt = claim(folder / "jobs", _LEASE_S)
    assert attempt is not None  # there is no record that would end it
    try:
        yield
    finally:
        attempt.end("done")


def write_plan(sweep: Sweep) -> None:
    """Add the sweep's cells to those that its folder already plans (say, of other seeds)."""
    path = sweep.folder / PLAN
    with locked(sweep.folder):
        # Under the lock, or two commands would each leave out the other's cells.
        cells = read_plan(sweep.folder) if path.exists() else []
        known = {cell["id"] for cell in cells}
        cells += [plan_of(cell) for cell in sweep.cells if cell.id not in known]
        write_text(path, json.dumps({"description": sweep.description, "cells": cells}, indent=1))


def plan_of(cell: Cell) -> CellPlan:
    """Make the entry of `sweep.json` for a cell: enough to know it in a list, and its place in a
    report's tables.
    """
    return CellPlan(
        id=cell.id,
        label=cell.label,
        seed=cell.seed,
        epochs=cell.epochs,
        embedding_dim=cell.embedding_dim,
        batch_size=cell.batch_size,
        dataset=cell.dataset.name,
        backbone=cell.network.architecture,
    )


def sweep_folders(runs_dir: Path) -> list[Path]:
    """List the folders of the sweeps that were started in `runs_dir`."""
    return sorted(path.parent for path in runs_dir.glob(f"*/{PLAN}"))


def sweep_folder(runs_dir: Path, name: str) -> Path:
    """Return the folder of a sweep, and refuse one that was not started."""
    if not (runs_dir / name / PLAN).exists():
        started = ", ".join(folder.name for folder in sweep_folders(runs_dir))
        raise RegbenchError(f"no sweep {name!r} in {runs_dir}; started: {started or 'none'}")
    return runs_dir / name


def status_command(folder: Path) -> str:
    """Return the command that shows how a sweep stands, in whatever folder of runs."""
    option = f" --runs-dir {shlex.quote(str(folder.parent))}"
    is_usual = folder.parent.absolute() == Path(Runtime().runs_dir).absolute()
    return f"regbench status {folder.name}{'' if is_usual else option}"


def sweep_status(folder: Path, jobs: Mapping[str, CellJobs] | None = None) -> list[CellStatus]:
    """Return the state of every cell that a sweep plans, in its order.

    `jobs` maps ids of cells to their jobs.
    """
    own, plan = jobs or {}, read_plan(folder)
    return [cell_status(folder / cell["id"], cell, own.get(cell["id"])) for cell in plan]


def cell_status(directory: Path, plan: CellPlan, jobs: CellJobs | None = None) -> CellStatus:
    """Return the state of one cell; of most, one small file is read."""
    progress: Mapping[str, Any] = {}
    try:
        run = RunFolder(directory)
        state, detail = next(_states(run, jobs))
        progress = run.progress
    except (OSError, RegbenchError) as error:
        state, detail = "damaged", str(error)
    if state != "running" or detail:  # an evaluation has a detail, and no speed of a training
        progress = {"epoch": progress.get("epoch", 0)}
    return CellStatus(
        cell_id=plan["id"],
        label=plan["label"],
        seed=plan["seed"],
        state=state,
        epochs_done=plan["epochs"] if state in ("done", "tuned") else progress.get("epoch", 0),
        epochs=plan["epochs"],
        img_per_s=progress.get("img_per_s"),
        remaining_s=progress.get("remaining_s"),
        detail=" ".join(detail.split()),
        job=jobs.shown.name if jobs else "",
        directory=directory,
    )


def _states(run: RunFolder, jobs: CellJobs | None) -> Iterator[tuple[str, str]]:
    """Yield states and details that a cell may have by its files, its last attempt and its jobs;
    the first one counts.
    """
    attempt, progress = run.attempt or {}, run.progress
    ended, detail = attempt.get("ended"), progress.get("detail", "")
    job = jobs.shown if jobs else None
    if "record.json" in run.names and "outcome" in progress:
        yield progress["outcome"], detail
    if "record.json" in run.names:  # a kill came before the attempt noted its outcome
        record = read_record(run.path)
        assert record is not None
        yield record.status, ""
    if run.is_running:
        is_training = progress.get("stage", "pretrain") == "pretrain"
        yield "running", "" if is_training else detail
    # A cell out of a bundle has no attempts.
    is_tuned = "tuning.json" in run.names and (not attempt or ended == "done")
    # While a tuned cell has a job in the queue, it is about to be tested.
    if is_tuned and (job is None or job.state is None):
        yield "tuned", detail
    if job is not None and job.state == "RUNNING":
        yield "running", "its job has begun"
    if job is not None and job.is_in_queue:
        reason = "" if job.reason in ("", "None") else f" ({job.reason})"
        yield "queued", f"{str(job.state).lower()}{reason}"
    # What follows may be of an earlier job, or of an earlier life of this one.
    if job is not None and job.state == "?":
        yield "queued", "submitted; the scheduler does not answer"
    if jobs is not None:
        yield from _noted_ends(run.path, jobs)
    # The run's own word comes after the scheduler's: the last attempt may be of an earlier job.
    if "damaged" in attempt:
        yield "damaged", attempt["damaged"]
    if ended == "failed":
        yield "failed", attempt.get("error") or ""
    if job is not None:
        yield "lost", f"job {job.name} is gone"
    yield "interrupted" if attempt else "pending", ""


def _noted_ends(directory: Path, jobs: CellJobs) -> Iterator[tuple[str, str]]:
    """Yield how a cell ended by the notes that its jobs have left beside their logs.

    See `regbench.slurm.job.SlurmJob`.
    """
    logs = directory.parent / "jobs" / "logs"
    # The jobs of later stages say most: they ran last.
    for name in reversed(jobs.chain):
        if (logs / f"{name}_cancelled").exists():
            yield "cancelled", f"job {name} was cancelled"
        error = logs / f"{name}_error"
        if error.exists():
            yield "failed", error.read_text(errors="replace")
        if jobs.shown.state is None and (logs / f"{name}_missed").exists():
            log = log_file(directory, name)
            text = log.read_text(errors="replace") if log else ""
            lines = [line for line in text.splitlines() if line.strip()]
            said = " / ".join(lines[-_LOG_LINES:]) or "it left no log"
            yield "failed", f"job {name} did not come to run regbench: {said}"


def failure(status: CellStatus) -> str:
    """Describe how a cell that a command ran has failed, with its log; "" if it has not."""
    # Another command may have claimed it since.
    if status.state in (*FINISHED, "running"):
        return ""
    logs = log_file(status.directory)
    detail = status.detail or "ended without a record"
    return f"FAILED: {detail} (logs: {logs})" if logs else f"FAILED: {detail}"


def log_file(directory: Path, job: str = "") -> Path | None:
    """Find the newest log of a run directory, or of a scheduler's job: its errors where there
    are any.
    """
    found = (directory / "logs").glob("*_log.*")
    if job:
        # The first process tells what befell the others; a search would go through all jobs' logs.
        logs_of_jobs = directory.parent / "jobs" / "logs"
        found = (logs_of_jobs / f"{job}_0_log.{end}" for end in ("out", "err"))
    logs = [path for path in found if path.is_file() and path.stat().st_size]
    if not logs:
        return None
    # A cell that was tried again has a log for each time.
    newest = max(logs, key=lambda path: path.stat().st_mtime)
    # submitit keeps what goes to stderr, such as a traceback, in a file of its own.
    errors = newest.with_suffix(".err")
    return errors if errors in logs else newest


def counts(statuses: Sequence[CellStatus]) -> str:
    """Count the cells in each state."""
    found = Counter(status.state for status in statuses)
    return ", ".join(f"{found[state]} {state}" for state in found)


def status_table(statuses: Sequence[CellStatus], *, everything: bool = False) -> str:
    """Lay out the states of cells as a table.

    Without `everything`, more than a hundred are cut to the first hundred that need a look.
    """
    shown = statuses
    if len(statuses) > 100 and not everything:
        # A screen cannot hold a thousand rows, and cells that wait or are done need no attention.
        shown = [status for status in statuses if status.state not in _NEED_NO_LOOK][:100]
    rows = []
    for status in shown:
        detail = status.detail
        if status.state in ("failed", "lost"):
            logs = log_file(status.directory, status.job)
            detail += f" (logs: {logs})" if logs else ""
        rows.append({**status.columns, "job": status.job, "": detail})
    # Columns that are empty throughout are left out, but not those that every status has.
    heads = [
        head for head in _HEADS if head in ("cell", "state", "") or any(map(itemgetter(head), rows))
    ]
    table = tabulate(map(itemgetter(*heads), rows), heads, disable_numparse=True)
    hidden = len(statuses) - len(shown)
    more = f"; {hidden} not listed (--all)" if hidden else ""
    return f"{table}\n\n{counted(len(statuses), 'cell')}: {counts(statuses)}{more}"


def duration(seconds: float) -> str:
    """Format a time in hours and minutes."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min" if minutes else "< 1 min"
