"""How the cells of a sweep stand: told from their run directories first, from the scheduler second."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

from tabulate import tabulate
from typing_extensions import TypedDict

from regbench.benchmark.rundir.lease import claim, is_running, last_attempt
from regbench.benchmark.rundir.record import read_record
from regbench.errors import RegbenchError
from regbench.files import Name, read_json, write_text

if TYPE_CHECKING:
    from regbench.benchmark.settings.cell import Cell
    from regbench.benchmark.settings.sweep import Sweep

FINISHED = ("done", "diverged", "tuned")
_LEASE_S = 60.0
_LOG_LINES = 3


def ends(stages: Collection[str]) -> tuple[str, ...]:
    """List the states in which a cell has come through the stages; "tuned" is no end where it is to be tested."""
    return tuple(state for state in FINISHED if state != "tuned" or "final" not in stages)


@dataclass(frozen=True)
class CellStatus:
    """How one cell stands.

    Attributes:
        cell_id: The folder's name.
        label: The method's display name.
        seed: Of the cell.
        state: "done", "diverged", "tuned" (has the score that its tuning chooses by), "running", "queued", "failed",
            "cancelled", "lost" (a scheduler's job that is gone, nobody knows why), "interrupted", "pending" or
            "damaged" (a file of it cannot be read).
        epochs_done: Epochs trained.
        epochs: Epochs in all.
        img_per_s: While it trains.
        remaining_s: Of training, while it trains.
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


@dataclass(frozen=True)
class Job:
    """What the scheduler says of a cell's job.

    Attributes:
        name: Its id there.
        state: The scheduler's word, such as "PENDING"; None if the job is unknown to it; "?" if it did not answer.
        reason: Why it waits.
        queued: All of the cell's jobs that are in the queue or run, and their states: one for each stage that has its
            own, and others where it was submitted more than once.
        chain: The jobs that were submitted last, one for each stage that has its own.
    """

    name: str
    state: str | None
    reason: str = ""
    queued: Mapping[str, str] = field(default_factory=dict)
    chain: tuple[str, ...] = ()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have a sweep's folder to oneself: wait for another process that adds to its plan or submits its cells.

    It is held as a run directory is, by an attempt. One whose process is dead or silent does not count, so that a kill
    leaves no lock behind.

    Args:
        folder: `<runs_dir>/<sweep>`.
    """
    attempt = claim(folder / "jobs", _LEASE_S)
    assert attempt is not None  # there is no record that would end it
    try:
        yield
    finally:
        attempt.end("done")


class CellPlan(TypedDict):
    """What `sweep.json` says of a cell; see `plan_of`."""

    id: Name
    label: str
    seed: int
    epochs: int
    embedding_dim: NotRequired[int]
    batch_size: NotRequired[int]
    dataset: NotRequired[str]
    backbone: NotRequired[str]


class _Plan(TypedDict):
    description: str
    cells: list[CellPlan]


def write_plan(sweep: Sweep, folder: Path) -> None:
    """Add the sweep's cells to those that its folder already plans (say, of other seeds).

    Raises:
        RegbenchError: If the plan that is there is damaged.
    """
    path = folder / "sweep.json"
    with locked(folder):
        known = read_plan(folder) if path.exists() else []
        ids = {cell["id"] for cell in known}
        cells = [*known, *(plan_of(cell) for cell in sweep.cells if cell.id not in ids)]
        write_text(path, json.dumps({"description": sweep.description, "cells": cells}, indent=1))


def plan_of(cell: Cell) -> CellPlan:
    """Make what `sweep.json` says of a cell: enough to know it in a list, and its place in a report's tables."""
    return {
        "id": cell.id,
        "label": cell.label,
        "seed": cell.seed,
        "epochs": cell.epochs,
        "embedding_dim": cell.embedding_dim,
        "batch_size": cell.batch_size,
        "dataset": cell.dataset.name,
        "backbone": cell.network.architecture,
    }


def read_plan(folder: Path) -> list[CellPlan]:
    """Read the cells that `<runs_dir>/<sweep>` plans, in order.

    Raises:
        FileNotFoundError: If the sweep was never started.
        RegbenchError: If its plan is damaged.
    """
    remedy = "remove it; the command that began the sweep writes it again"
    return read_json(folder / "sweep.json", _Plan, remedy)["cells"]


def sweep_status(folder: Path, jobs: Mapping[str, Job] | None = None) -> list[CellStatus]:
    """Tell the state of every cell that a sweep plans, in its order.

    Args:
        folder: `<runs_dir>/<sweep>`.
        jobs: Cell id -> its job, for cells that a scheduler has.

    Raises:
        FileNotFoundError: If the sweep was never started.
        RegbenchError: If its plan is damaged.
    """
    return [cell_status(folder / cell["id"], cell, (jobs or {}).get(cell["id"])) for cell in read_plan(folder)]


def cell_status(directory: Path, plan: CellPlan, job: Job | None = None) -> CellStatus:
    """Tell the state of one cell; one small file of it is read."""
    try:
        return _cell_status(directory, plan, job)
    except (OSError, RegbenchError) as error:
        cell, name = (plan["id"], plan["label"], plan["seed"]), job.name if job else ""
        return CellStatus(*cell, "damaged", 0, plan["epochs"], None, None, str(error), name, directory)


def _cell_status(directory: Path, plan: CellPlan, job: Job | None) -> CellStatus:
    try:
        files: Sequence[str] = os.listdir(directory)  # noqa: PTH208  # ten times as quick as iterdir, for thousands of cells
    except FileNotFoundError:
        files = ()
    attempt = last_attempt(directory) if "attempts" in files else None
    progress: dict[str, Any] = attempt["progress"] if attempt else {}
    epochs_done = progress.get("epoch", 0)
    detail = ""
    if "record.json" in files:
        state, detail = _finished(directory, progress)
        epochs_done = plan["epochs"] if state == "done" else epochs_done
    elif attempt is not None and is_running(attempt):
        state = "running"
        if progress.get("stage", "pretrain") != "pretrain":
            detail = progress.get("detail", "")
    elif "tuning.json" in files and attempt and attempt["ended"] == "done" and (job is None or job.state is None):
        state, detail = "tuned", progress.get("detail", "")
        epochs_done = plan["epochs"]
    elif job is not None and job.state == "RUNNING":
        state, detail = "running", "its job has begun"
    elif job is not None and job.state not in (None, "?"):
        state = "queued"
        detail = f"{str(job.state).lower()}{f' ({job.reason})' if job.reason not in ('', 'None') else ''}"
    elif job is not None and (ended := _how_it_ended(directory, job)) is not None:
        state, detail = ended
    elif attempt is not None and "damaged" in attempt:
        state, detail = "damaged", attempt["damaged"]
    elif attempt is not None and attempt["ended"] == "failed":
        state, detail = "failed", attempt.get("error") or ""
    elif job is not None and job.state == "?":
        state, detail = "queued", "submitted; the scheduler does not answer"
    elif job is not None:
        state, detail = "lost", f"job {job.name} is gone"
    else:
        state = "interrupted" if attempt else "pending"
    running = state == "running" and not detail
    return CellStatus(
        plan["id"],
        plan["label"],
        plan["seed"],
        state,
        epochs_done,
        plan["epochs"],
        progress.get("img_per_s") if running else None,
        progress.get("remaining_s") if running else None,
        " ".join(detail.split()),
        job.name if job else "",
        directory,
    )


def _how_it_ended(directory: Path, job: Job) -> tuple[str, str] | None:
    """Tell state and reason of a cell whose job has left a note beside its logs; see `regbench.slurm.job.SlurmJob`."""
    logs = directory.parent / "jobs" / "logs"
    for name in reversed(job.chain or (job.name,)):
        if (logs / f"{name}_cancelled").exists():
            return "cancelled", f"job {name} was cancelled"
        if (error := logs / f"{name}_error").exists():
            return "failed", error.read_text(errors="replace")
        if job.state is None and (logs / f"{name}_missed").exists():
            return "failed", f"job {name} did not come to run regbench: {_last_words(log_file(directory, name))}"
    return None


def _last_words(log: Path | None) -> str:
    lines = log.read_text(errors="replace").splitlines() if log else []
    return " / ".join([line for line in lines if line.strip()][-_LOG_LINES:]) or "it left no log"


def _finished(directory: Path, progress: Mapping[str, Any]) -> tuple[str, str]:
    if "outcome" in progress:
        return progress["outcome"], progress.get("detail", "")
    record = read_record(directory)  # killed before the attempt noted its outcome
    assert record is not None
    return record.status, ""


def log_file(directory: Path, job: str = "") -> Path | None:
    """Find the newest log of a run directory, or of a scheduler's job: its errors where there are any."""
    found = (directory.parent / "jobs" / "logs").glob(f"{job}_*_log.*") if job else (directory / "logs").glob("*_log.*")
    logs = [path for path in found if path.is_file() and path.stat().st_size]
    if not logs:
        return None
    newest = max(logs, key=lambda path: path.stat().st_mtime)
    errors = newest.with_suffix(".err")
    return errors if errors in logs else newest


def unfinished(statuses: Sequence[CellStatus], sweep: str, stages: Collection[str]) -> str:
    """Say in one line which cells have not come through the stages, and what to do; empty if all have."""
    missing = [status for status in statuses if status.state not in ends(stages)]
    if not missing:
        return ""
    named = "; ".join(f"{status.label} seed {status.seed} {status.state}" for status in missing[:10])
    return (
        f"{len(missing)} of {len(statuses)} cells are not finished: {named}{'; …' * (len(missing) > 10)}. "
        f"Details: regbench status {sweep}; the same command tries them again"
    )


def counts(statuses: Sequence[CellStatus]) -> str:
    """Say how many cells are in each state."""
    return ", ".join(f"{number} {state}" for state, number in Counter(status.state for status in statuses).items())


def status_table(statuses: Sequence[CellStatus], *, everything: bool = False) -> str:
    """Lay out how cells stand as a table with a summary below.

    Args:
        statuses: The cells.
        everything: Whether to list all of more than a hundred cells, not only those that need a look.
    """
    shown = statuses
    if len(statuses) > 100 and not everything:
        look = ("failed", "lost", "cancelled", "damaged", "interrupted", "diverged", "running")
        shown = [status for status in statuses if status.state in look][:100]
    rows = []
    for status in shown:
        speed = f"{status.img_per_s:.0f}" if status.img_per_s else ""
        epochs = f"{status.epochs_done}/{status.epochs}"
        left = duration(status.remaining_s) if status.remaining_s is not None else ""
        logs = log_file(status.directory, status.job) if status.state in ("failed", "lost") else None
        detail = status.detail + (f" (logs: {logs})" if logs else "")
        cell = (status.cell_id, status.label, status.seed, status.state)
        rows.append([*cell, epochs, speed, left, status.job, detail])
    headers = ["cell", "method", "seed", "state", "epochs", "img/s", "left", "job", ""]
    kept = [i for i, head in enumerate(headers) if head in ("cell", "state", "") or any(row[i] for row in rows)]
    table = tabulate([[row[i] for i in kept] for row in rows], [headers[i] for i in kept], disable_numparse=True)
    hidden = len(statuses) - len(shown)
    total = f"{len(statuses)} cells: {counts(statuses)}" + (f"; {hidden} not listed (--all)" if hidden else "")
    return f"{table}\n\n{total}"


def duration(seconds: float) -> str:
    """Say how long something takes, in hours and minutes."""
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min" if minutes else "< 1 min"
