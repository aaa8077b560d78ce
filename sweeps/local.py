"""Run the cells of a sweep on this machine, a few at a time, and wait for the end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from regbench.benchmark.machine.compute import default_threads, default_workers, usable_cpus
from regbench.benchmark.rundir.interruption import Interruption
from regbench.benchmark.rundir.run_folder import RunFolder
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import STAGES, Runtime
from regbench.benchmark.settings.sweep import Sweep
from regbench.errors import RegbenchError
from regbench.processes import FORKED, Worker
from regbench.sweeps.status import (
    Announce,
    CellStatus,
    cell_status,
    ends,
    failure,
    plan_of,
    write_plan,
)
from regbench.sweeps.tune import run_stages
from regbench.text import counted

log = logging.getLogger("regbench")

# Cells take minutes, so a second without a new one costs nothing.
POLL_S = 1.0


def run_sweep(
    sweep: Sweep, stages: Sequence[str] = STAGES, announce: Announce | None = None
) -> list[CellStatus]:
    """Run every unfinished cell of a sweep on this machine and wait for the end.

    Finished cells are left alone, interrupted ones go on from their checkpoints, a failed one does
    not stop the others and is tried again by the next call.

    Args:
        sweep: The grid.
        stages: Stages to bring each cell through.
        announce: Function that is called when a cell has ended; None: write a line to the log.

    Returns:
        The states of the sweep's cells in the end.
    """
    write_plan(sweep)
    gpus = _visible_gpus(sweep.runtime)
    # By all cells, so that those of a resumed sweep have as many threads as the ones before.
    parallel = min(at_a_time(sweep.runtime), len(sweep.cells))
    device = "cuda" if gpus else "cpu"
    threads = sweep.runtime.threads or default_threads(device, parallel)
    workers = sweep.runtime.workers or default_workers(device, parallel)
    runtime = replace(sweep.runtime, threads=threads, workers=workers)
    todo = deque[Cell]()
    for cell in sweep.cells:
        _refuse_of_script(cell)
        # Most cells of a sweep that goes on are done: one look shows it, while their status would
        # take several files.
        if (sweep.folder / cell.id / "record.json").exists():
            continue
        if _status(sweep, cell).state not in ends(stages):
            todo.append(cell)
    done = len(sweep.cells) - len(todo)
    message = "sweep %s: %s, %d done, %d to run, %d at a time with %s each"
    cells, each = counted(len(sweep.cells), "cell"), counted(threads, "thread")
    log.info(message, sweep.name, cells, done, len(todo), parallel, each)
    if todo:
        _drain(todo, replace(sweep, runtime=runtime), stages, parallel, gpus, announce or _announce)
    return [_settled(sweep, cell, stages) for cell in sweep.cells]


def _refuse_of_script(cell: Cell) -> None:
    """Refuse a plug-in that the calling script or notebook defines: no other process has it."""
    for plug_in in (cell.method, cell.optimizer, cell.network.backbone, cell.dataset.source):
        kind = type(plug_in)
        if kind.__module__ == "__main__":
            raise RegbenchError(
                f"{kind.__name__} is defined in the script that calls, and cells run in other "
                "processes: make it an entry point of a package, or train it by regbench.train"
            )


def at_a_time(runtime: Runtime) -> int:
    """Return how many cells run at a time, if there are as many."""
    return runtime.parallel or len(_visible_gpus(runtime)) or usable_cpus()


def _settled(sweep: Sweep, cell: Cell, stages: Sequence[str]) -> CellStatus:
    """Return the state of a cell once it has come through the stages, or nobody is at work on it
    any more.
    """
    while True:
        status = _status(sweep, cell)
        # Another command of the same tuning may have claimed the cell, only to find it tuned, or
        # for its final stage.
        is_claimed = status.state in ("running", "interrupted")
        if is_claimed and "final" not in stages and (status.directory / "tuning.json").exists():
            return replace(status, state="tuned")
        if status.state != "running":
            return status
        time.sleep(POLL_S)


def run_local_job(
    cell: dict[str, Any], runtime: Runtime, sweep: str, stages: Sequence[str], gpu: str = ""
) -> None:
    """Run stages of one cell on this machine; SIGTERM writes a checkpoint and ends it.

    Args:
        cell: Cell as plain data.
        runtime: Devices and loader of the run.
        sweep: Name of the sweep.
        stages: Stages to bring the cell through.
        gpu: Number or UUID of the only GPU that the run sees; empty: none.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before anything initialises CUDA
    if gpu:
        runtime = runtime.with_gpus()
    # The output goes to a file.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    interruption = Interruption()
    with interruption.listening(signal.SIGTERM):
        run_stages(Cell.stored(cell), runtime, sweep, stages, interruption)


def _visible_gpus(runtime: Runtime) -> list[str]:
    """Name the GPUs that runs may use, as CUDA_VISIBLE_DEVICES does: by number or UUID."""
    count = torch.cuda.device_count() if runtime.device != "cpu" else 0
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [str(number) for number in range(count)]
    return [name.strip() for name in given.split(",")][:count]


def _drain(
    todo: deque[Cell],
    sweep: Sweep,
    stages: Sequence[str],
    parallel: int,
    gpus: Sequence[str],
    announce: Announce,
) -> None:
    """Keep `parallel` jobs going until none is left; on Ctrl-C end them and pass it on."""
    # Importing PyTorch takes seconds: the server that jobs are forked from does it once for all of
    # them.
    FORKED.set_forkserver_preload(["regbench.sweeps.preload"])
    gpu_of: dict[Worker, str] = {}
    for slot in range(min(parallel, len(todo))):
        # Each worker has a GPU of its own, as long as there are enough.
        gpu_of[Worker()] = gpus[slot % len(gpus)] if gpus else ""
    count = len(todo)
    epochs = sum(cell.epochs for cell in sweep.cells) + sweep.later_epochs
    running: dict[Worker, Cell] = {}
    left = {cell.id: _epochs_left(sweep, cell) for cell in todo}
    # What was trained before takes no time now.
    before = epochs - sweep.later_epochs - sum(left.values())
    begun_s = time.monotonic()
    with tqdm(total=epochs, initial=before, unit="epoch", disable=None) as bar:
        try:
            while todo or running:
                for worker, gpu in gpu_of.items():
                    while worker not in running and todo:
                        cell = _next_free(todo, sweep.folder)
                        try:
                            _begin(worker, cell, sweep, stages, gpu)
                            running[worker] = cell
                        except OSError as error:
                            # This cell's folder cannot be written to, while others can.
                            status = replace(_status(sweep, cell), detail=str(error))
                            with bar.external_write_mode(sys.stderr):
                                announce(status, count - len(todo) - len(running), count)
                bar.set_description(", ".join(cell.label for cell in running.values()))
                Worker.wait(running, POLL_S)
                ended_workers = [worker for worker in running if not worker.busy]
                for worker in ended_workers:
                    status = _status(sweep, running.pop(worker))
                    with bar.external_write_mode(sys.stderr):
                        announce(status, count - len(todo) - len(running), count)
                # Set, not incremented: an attempt that is interrupted falls back to its last
                # checkpoint.
                left |= {cell.id: _epochs_left(sweep, cell) for cell in running.values()}
                unfinished = (*todo, *running.values())
                bar.n = epochs - sweep.later_epochs - sum(left[cell.id] for cell in unfinished)
                bar.refresh()
                if bar.n <= before:  # cells that train nothing do not show the time of an epoch
                    begun_s, bar.start_t = time.monotonic(), time.time()
                elif bar.disable and ended_workers:  # a log
                    per_epoch_s = (time.monotonic() - begun_s) / (bar.n - before)
                    time_left = tqdm.format_interval(per_epoch_s * (epochs - bar.n))
                    log.info("%d of %d epochs, about %s left", bar.n, epochs, time_left)
        except KeyboardInterrupt:
            for worker in gpu_of:
                worker.end_job()
            # Until they have written their checkpoints and are gone.
            while any(worker.busy for worker in gpu_of):
                Worker.wait(gpu_of, POLL_S)
            raise


def _next_free(todo: deque[Cell], folder: Path) -> Cell:
    """Take the first cell that nobody else is at work on, so that two commands share a sweep; if
    others are at work on every cell, take the first of all.
    """
    for _ in range(len(todo)):
        directory = folder / todo[0].id
        # A path that is no folder is noticed when the cell begins.
        if not (directory.is_dir() and RunFolder(directory).is_running):
            break
        todo.rotate(-1)
    return todo.popleft()


def _begin(worker: Worker, cell: Cell, sweep: Sweep, stages: Sequence[str], gpu: str) -> None:
    """Begin a cell, which waits for a job of a cluster or another command that is at work on it."""
    run = RunFolder(sweep.folder / cell.id)
    if run.attempt is not None and run.is_running:
        owner = run.attempt["owner"]
        log.info(
            "%s seed %d (%s): process %s on %s is at work on it; waiting for it",
            *(cell.label, cell.seed, cell.id, owner.get("pid", "?"), owner.get("hostname", "?")),
        )
    given = cell.plain(), sweep.runtime, sweep.name, stages, gpu
    worker.begin(run.path / "logs", run_local_job, *given)


def _status(sweep: Sweep, cell: Cell) -> CellStatus:
    return cell_status(sweep.folder / cell.id, plan_of(cell))


def _epochs_left(sweep: Sweep, cell: Cell) -> int:
    return cell.epochs - _status(sweep, cell).epochs_done


def _announce(status: CellStatus, finished: int, count: int) -> None:
    name = f"{status.label} seed {status.seed} ({status.cell_id})"
    if failed := failure(status):
        log.error("[%d/%d] %s %s", finished, count, name, failed)
    else:
        log.info("[%d/%d] %s: %s", finished, count, name, status.detail)
