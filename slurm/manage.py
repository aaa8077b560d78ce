"""Manage a sweep that Slurm has: submit its cells, wait for them, try them again, cancel them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from regbench.errors import RegbenchError
from regbench.settings import from_plain
from regbench.slurm.queue import (
    SlurmError,
    call,
    cancel_jobs,
    jobs_of,
    preempted,
    recover_interrupted,
    require_slurm,
    submissions,
    was_submitted,
)
from regbench.sweeps.status import (
    CellJobs,
    CellStatus,
    ends,
    locked,
    log_file,
    status_command,
    sweep_status,
    write_plan,
)
from regbench.text import counted

if TYPE_CHECKING:
    from regbench.benchmark.settings.cell import Cell
    from regbench.benchmark.settings.runtime import Cluster, Runtime
    from regbench.benchmark.settings.sweep import Sweep

log = logging.getLogger("regbench")


def is_free(status: CellStatus, stages: Collection[str]) -> bool:
    """Return True if a cell can be submitted: it has not come through the stages, and nobody is
    at work on it.
    """
    return status.state not in (*ends(stages), "running", "queued")


def statuses(folder: Path, cells: Sequence[str] = ()) -> list[CellStatus]:
    """Return the states of cells, also by the scheduler: of all in the sweep, or of those whose ids
    begin as `cells` do.
    """
    return _chosen(folder, cells, jobs_of(folder))


def _chosen(folder: Path, cells: Sequence[str], jobs: Mapping[str, CellJobs]) -> list[CellStatus]:
    found = _with_preempted(sweep_status(folder, jobs), jobs)
    if not cells:
        return found
    chosen = []
    # Ids are long, so their beginnings will do, as for commits of Git.
    for prefix in cells:
        matching = [status for status in found if status.cell_id.startswith(prefix)]
        if len(matching) != 1:
            what = "no cell" if not matching else f"{len(matching)} cells"
            what += f" of {folder.name} begin with {prefix!r}"
            raise RegbenchError(f"{what}; see: {status_command(folder)}")
        chosen += matching
    return chosen


def _with_preempted(statuses: list[CellStatus], jobs: Mapping[str, CellJobs]) -> list[CellStatus]:
    """Mark cells as preempted that look lost or failed, whose job Slurm cancelled for others."""
    chains: dict[str, list[str]] = {}
    for status in statuses:
        own = jobs.get(status.cell_id)
        if status.state in ("lost", "failed") and own is not None and own.shown.state is None:
            chains[status.cell_id] = own.chain
    if not chains:
        return statuses
    cancelled = preempted(list(chain.from_iterable(chains.values())))
    found = []
    for status in statuses:
        for name in cancelled.intersection(chains.get(status.cell_id, ())):
            detail = f"job {name} was cancelled to make room for others"
            status = replace(status, state="preempted", detail=detail)
        found.append(status)
    return found


def poll(folder: Path) -> Iterator[list[CellStatus]]:
    """Yield the states of a sweep's cells every two seconds, until none of them runs or waits.

    Cells that are preempted meanwhile are submitted again.
    """
    while True:
        found = statuses(folder)
        yield found
        made_room = [status for status in found if status.state == "preempted"]
        again = [each.cell_id for each in made_room if (each.directory / "config.yaml").exists()]
        pause_s = 2
        if again:
            try:
                log.info("%s", "; ".join(retry(folder, again)))
            except SlurmError as error:
                pause_s = 60
                log.warning("%s; trying again in a minute", error)
        elif not any(status.state in ("running", "queued") for status in found):
            return
        time.sleep(pause_s)


def follow(folder: Path) -> list[CellStatus]:
    """Wait until none of the cells of a sweep runs or waits; return their states then."""
    (found,) = deque(poll(folder), maxlen=1)
    return found


def run_sweep(
    sweep: Sweep,
    stages: Sequence[str],
    wait: Callable[[Path], list[CellStatus]] | None = None,
    say: Callable[[str], None] = log.info,
) -> list[CellStatus] | None:
    """Submit those cells of a sweep that are neither finished nor in the queue.

    Args:
        sweep: The grid.
        stages: Stages to bring each cell through.
        wait: Function that waits for the cells of the sweep's folder; None: return when they are in
            the queue.
        say: Function that takes a line on what was submitted.

    Returns:
        The states of the sweep's cells; None if Slurm goes on with them.
    """
    from regbench.sweeps import forecast  # imports torch

    say(forecast.summary(forecast.plan(sweep, stages)))
    count, arrays = submit_sweep(sweep, stages)
    submitted = "all cells are finished, run or wait"
    if count:
        submitted = f"submitted {counted(count, 'cell')} as {', '.join(arrays)}"
    say(f"{submitted}; see: {status_command(sweep.folder)}")
    ids = {cell.id for cell in sweep.cells}
    # The folder may hold cells of earlier calls, with other seeds.
    look = wait or statuses
    found = [status for status in look(sweep.folder) if status.cell_id in ids]
    # Everything may have been finished before, and then there is nothing to wait for.
    if wait is None and any(status.state not in ends(stages) for status in found):
        return None
    return found


def submit_sweep(sweep: Sweep, stages: Sequence[str]) -> tuple[int, list[str]]:
    """Plan a sweep and submit those of its cells that are neither finished nor in the queue.

    Returns:
        The number of cells that were submitted, and the ids of their job arrays.
    """
    from regbench.slurm.submit import submit  # imports torch, which the other functions do without

    require_slurm()
    folder = sweep.folder
    write_plan(sweep)
    with locked(folder):
        recover_interrupted(folder)
        free = {status.cell_id for status in statuses(folder) if is_free(status, stages)}
        # The folder may plan more cells than this sweep has, such as other seeds.
        pairs = zip(sweep.cells, sweep.clusters, strict=True)
        todo = [(cell, cluster) for cell, cluster in pairs if cell.id in free]
        if not todo:
            return 0, []
        return submit(todo, sweep.runtime, folder, stages)


def retry(folder: Path, cells: Sequence[str]) -> list[str]:
    """Submit cells again that are neither finished nor in the queue, as they were submitted last;
    release jobs that are held.

    Returns:
        What was done, a line for each cell and for the jobs.

    Raises:
        RegbenchError: If the sweep was never submitted, or Slurm refuses.
    """
    # Slurm holds a job that it put back into the queue because a node failed to launch it. Jobs of
    # a finished cell that still wait, such as held ones, have nothing left to do and are cancelled.
    if not was_submitted(folder):
        raise RegbenchError(
            f"{folder} was not submitted to Slurm; the same `regbench sweep` command tries again"
        )
    require_slurm()
    lines = []
    held: list[str] = []
    dropped: list[str] = []
    todo: list[CellStatus] = []
    with locked(folder):
        recover_interrupted(folder)
        submitted = _as_submitted(folder)
        jobs = jobs_of(folder)
        for status in _chosen(folder, cells, jobs):
            own, known = jobs.get(status.cell_id), submitted.get(status.cell_id)
            # Slurm's reason is "JobHeldUser", "JobHeldAdmin" or "launch failed requeued held".
            if status.state == "queued" and "held" in status.detail.lower():
                held.append(status.job)
                lines.append(f"{status}: held by Slurm ({status.detail})")
            elif status.state in ("done", "diverged") and own is not None:
                # A job that runs is about to see that there is nothing to do.
                dropped += [name for name, state in own.queued.items() if state == "PENDING"]
            elif known is not None and is_free(status, known.stages):
                # Only the sweep's own command knows what a cell without its configuration is.
                if (status.directory / "config.yaml").exists():
                    todo.append(status)
                    lines.append(f"{status}: was {status.state}")
                else:
                    lines.append(f"{status}: its folder is gone; give the sweep's command again")
        count, arrays = _submit_again(folder, todo, submitted)
        cancel_jobs(dropped, jobs)
        for name in held:
            try:
                call("scontrol", "release", name)
                lines.append(f"released job {name}")
            except SlurmError as error:  # an administrator holds it
                lines.append(f"job {name} stays held: {error}")
    if dropped:
        lines.append(f"cancelled {', '.join(dropped)}: the cells are finished")
    if todo:
        lines.append(f"submitted {counted(count, 'cell')} as {', '.join(arrays)}")
    return lines or ["nothing to try again"]


@dataclass
class _Submitted:
    """The last submission of a cell, and the stages that were asked for: a tuning asks some cells
    for their first stages only.
    """

    cluster: Cluster
    runtime: Runtime
    stages: set[str]


def _as_submitted(folder: Path) -> dict[str, _Submitted]:
    """Map the submitted cells of a sweep to how they were submitted."""
    from regbench.benchmark.settings.runtime import Cluster, Runtime

    found: dict[str, _Submitted] = {}
    for entry in submissions(folder):
        try:
            cluster = from_plain(Cluster, entry["cluster"], "cluster.")
            runtime = from_plain(Runtime, entry["runtime"], "runtime.")
        except RegbenchError as error:
            raise RegbenchError(
                f"{folder / 'jobs'}: the note of {next(iter(entry['cells']))}: {error}; give the "
                "sweep's own command again, which submits by the settings of this version"
            ) from error
        for cell in entry["cells"].values():
            before = found[cell].stages if cell in found else set()
            # Slurm may have refused the jobs of later stages.
            asked = entry.get("asked", entry["stages"])
            found[cell] = _Submitted(cluster, runtime, before | set(asked))
    return found


def _submit_again(
    folder: Path, todo: Sequence[CellStatus], submitted: Mapping[str, _Submitted]
) -> tuple[int, list[str]]:
    """Submit cells as they were submitted last; return what `submit` does."""
    from regbench.benchmark.settings.runtime import STAGES
    from regbench.benchmark.settings.stored import load_cell
    from regbench.slurm.submit import submit  # imports torch, which the other functions do without

    groups: dict[tuple[tuple[str, ...], Runtime], list[tuple[Cell, Cluster]]] = {}
    for status in todo:
        known = submitted[status.cell_id]
        stages = tuple(stage for stage in STAGES if stage in known.stages)
        cell = load_cell(status.directory / "config.yaml")
        groups.setdefault((stages, known.runtime), []).append((cell, known.cluster))
    done = [submit(pairs, runtime, folder, stages) for (stages, runtime), pairs in groups.items()]
    return sum(count for count, _ in done), [*chain(*(arrays for _, arrays in done))]


def cancel_cells(folder: Path, cells: Sequence[str]) -> list[CellStatus]:
    """Cancel the jobs of cells that are in the queue or run; return these cells."""
    if not was_submitted(folder):
        return []  # there is nothing to cancel, on a machine without Slurm too
    require_slurm()
    with locked(folder):
        recover_interrupted(folder)
        jobs = jobs_of(folder)
        cancelled: list[CellStatus] = []
        names: list[str] = []
        for status in _chosen(folder, cells, jobs):
            own = jobs.get(status.cell_id)
            if own is None or own.shown.state is None:
                continue
            if not own.shown.is_in_queue:
                raise RegbenchError("Slurm does not answer; nothing was cancelled")
            cancelled.append(status)
            names += own.queued
        # Slurm soon forgets jobs that have ended, so that the cells would count as lost. It may
        # cancel jobs and not answer; what it does not cancel counts as queued all the same.
        for name in names:
            (folder / "jobs" / "logs" / f"{name}_cancelled").touch()
        cancel_jobs(names, jobs)
    return cancelled


def find_log(folder: Path, cell: str) -> Path:
    """Find the newest log file of a cell."""
    (status,) = statuses(folder, [cell])
    path = log_file(status.directory, status.job)
    if path is None:
        raise RegbenchError(f"{status.directory} has no log yet; it is {status.state}")
    return path
