"""Runs the cells of a sweep through submitit, a few at a time, and tells how they stand."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from submitit.local.local import LocalExecutor, LocalJob
from tqdm import tqdm

from regbench.benchmark.config import Cell, Runtime, Sweep
from regbench.benchmark.directory import is_running, read_record, run_directory
from regbench.files import write_text

log = logging.getLogger("regbench")

POLL_S = 0.2


@dataclass(frozen=True)
class CellStatus:
    """How one cell stands, told from its run directory alone.

    Attributes:
        cell_id: The folder's name.
        label: The method's display name.
        seed: Of the cell.
        state: "done", "collapsed", "running", "failed", "interrupted" or "pending".
        epochs_done: Epochs in the last checkpoint.
        epochs: Epochs in all.
        detail: Score, error line, or nothing.
        directory: The run directory.
    """

    cell_id: str
    label: str
    seed: int
    state: str
    epochs_done: int
    epochs: int
    detail: str
    directory: Path


def sweep_status(sweep: Path) -> list[CellStatus]:
    """The state of every cell that a sweep's `sweep.json` plans, in its order.

    Args:
        sweep: `<runs_dir>/<sweep>`.

    Raises:
        FileNotFoundError: If the sweep was never started.
    """
    plan = json.loads((sweep / "sweep.json").read_text())
    return [_cell_status(sweep / cell["id"], cell) for cell in plan["cells"]]


def _cell_status(directory: Path, plan: dict[str, Any]) -> CellStatus:
    epochs_done = _epochs_done(directory)
    error = directory / "error.txt"
    detail = ""
    if (record := read_record(directory)) is not None:
        state = str(record["status"])
        tests = {score["name"]: score["value"] for score in record["scores"] if score["split"] == "test"}
        detail = f"kNN {tests['knn_top1']:.2f} %, linear {tests['linear_top1']:.2f} %"
    elif is_running(directory):
        state = "running"
    elif error.exists():
        state, detail = "failed", f"{error.read_text().strip()} (logs: {directory / 'logs'})"
    else:
        state = "interrupted" if epochs_done else "pending"
    return CellStatus(plan["id"], plan["label"], plan["seed"], state, epochs_done, plan["epochs"], detail, directory)


def _epochs_done(directory: Path) -> int:
    try:
        return (directory / "metrics.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def run_sweep(sweep: Sweep) -> list[CellStatus]:
    """Runs every unfinished cell of a sweep on this machine and waits for the end.

    Finished cells are left alone, interrupted ones go on from their checkpoints, a failed one does not stop the others
    and is tried again by the next call.

    Args:
        sweep: The grid.

    Returns:
        How the sweep's cells stand in the end.
    """
    folder = Path(sweep.runtime.runs_dir) / sweep.name
    _write_plan(sweep, folder)
    gpus = torch.cuda.device_count() if sweep.runtime.device != "cpu" else 0
    cores = len(os.sched_getaffinity(0))
    parallel = min(sweep.runtime.parallel or gpus or cores, len(sweep.cells))
    runtime = replace(sweep.runtime, threads=sweep.runtime.threads or max(1, cores // parallel))
    todo = deque(cell for cell in sweep.cells if read_record(run_directory(runtime, sweep.name, cell)) is None)
    log.info(
        "sweep %s: %d cells, %d done, %d to run, %d at a time with %d thread%s each",
        *(sweep.name, len(sweep.cells), len(sweep.cells) - len(todo), len(todo), parallel, runtime.threads),
        "s" * (runtime.threads > 1),
    )
    if todo:
        _drain(todo, runtime, sweep.name, parallel, gpus)
    return [_cell_status(folder / cell.id, _plan_of(cell)) for cell in sweep.cells]


def _write_plan(sweep: Sweep, folder: Path) -> None:
    """Adds the sweep's cells to those that its folder already plans (say, of other seeds)."""
    path = folder / "sweep.json"
    known = json.loads(path.read_text())["cells"] if path.exists() else []
    new = [_plan_of(cell) for cell in sweep.cells]
    ids = {cell["id"] for cell in known}
    cells = [*known, *(cell for cell in new if cell["id"] not in ids)]
    write_text(path, json.dumps({"description": sweep.description, "cells": cells}, indent=1))


def _drain(todo: deque[Cell], runtime: Runtime, name: str, parallel: int, gpus: int) -> None:
    """Keeps `parallel` jobs going until none is left; on Ctrl-C ends them and passes it on."""
    total_epochs = sum(cell.epochs for cell in todo)
    directories = [run_directory(runtime, name, cell) for cell in todo]
    already = sum(map(_epochs_done, directories))
    running: dict[int, tuple[Cell, LocalJob[Any]]] = {}
    finished, count = 0, len(todo)
    bar = tqdm(total=total_epochs, initial=already, unit="epoch", disable=not sys.stderr.isatty())
    try:
        while todo or running:
            for slot in range(parallel):
                if slot not in running and todo:
                    cell = todo.popleft()
                    running[slot] = (cell, _submit(cell, runtime, name, slot % gpus if gpus else None))
            time.sleep(POLL_S)
            bar.n = sum(map(_epochs_done, directories))
            bar.set_description(", ".join(cell.label for cell, _ in running.values()))
            for slot, (cell, job) in list(running.items()):
                if job.done():
                    del running[slot]
                    finished += 1
                    status = _cell_status(run_directory(runtime, name, cell), _plan_of(cell))
                    with bar.external_write_mode(sys.stderr):
                        _announce(status, finished, count)
    except KeyboardInterrupt:
        _end([job for _, job in running.values()])
        raise
    finally:
        bar.close()


def _plan_of(cell: Cell) -> dict[str, Any]:
    return {"id": cell.id, "label": cell.label, "seed": cell.seed, "epochs": cell.epochs}


def _submit(cell: Cell, runtime: Runtime, name: str, gpu: int | None) -> LocalJob[Any]:
    executor = LocalExecutor(run_directory(runtime, name, cell) / "logs")
    gpus: Sequence[int] = () if gpu is None else (gpu,)
    # submitit's own default would end a local job after two minutes.
    executor.update_parameters(timeout_min=60 * 24 * 365, gpus_per_node=len(gpus), visible_gpus=gpus)
    # The job ignores Ctrl-C, which a terminal sends to all processes: only this one answers it, and ends the jobs.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return executor.submit(_job, cell.to_dict(), runtime, name)  # type: ignore[return-value]
    finally:
        signal.signal(signal.SIGINT, handler)


def _end(jobs: Sequence[LocalJob[Any]]) -> None:
    """Ends jobs and waits until they are gone, so that their run directories are free."""
    for job in jobs:
        if not job.done():
            os.kill(int(job.job_id), signal.SIGTERM)  # submitit's controller, which passes it to the job
    for job in jobs:
        while not job.done():
            time.sleep(POLL_S)


def _job(cell: dict[str, Any], runtime: Runtime, name: str) -> None:
    """What a submitted job runs; submitit keeps its output in the run directory's `logs`."""
    from regbench.benchmark.run import run_cell  # slow to import, and only jobs need it

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # submitit would ignore it
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    run_cell(Cell.from_dict(cell), runtime, name)


def _announce(status: CellStatus, finished: int, count: int) -> None:
    name = f"{status.label} seed {status.seed} ({status.cell_id})"
    if status.state in ("done", "collapsed"):
        log.info("[%d/%d] %s: %s", finished, count, name, status.detail)
    else:
        detail = status.detail or f"ended without a record (logs: {status.directory / 'logs'})"
        log.error("[%d/%d] %s FAILED: %s", finished, count, name, detail)
