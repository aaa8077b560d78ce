"""Run a grid or a tuning, on this machine or by Slurm: what the commands and the Python API
share.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from regbench.benchmark.settings.overrides import refuse_more
from regbench.benchmark.settings.runtime import STAGES
from regbench.benchmark.settings.sweep import Sweep, load_sweep, read_rows
from regbench.benchmark.training.sinks import require_sinks
from regbench.datasets.stored.prepare import prepare_all
from regbench.errors import RegbenchError
from regbench.sweeps import tune
from regbench.sweeps.choose import choice_table, choose
from regbench.sweeps.forecast import refuse_oversized
from regbench.sweeps.search import Proposed, propose
from regbench.sweeps.status import Announce, CellStatus, ends, unfinished

log = logging.getLogger("regbench")

Wait = Callable[[Path], list[CellStatus]]
"""Waits for the cells of a sweep's folder that Slurm has, and returns how they stand in the end."""


class Unfinished(RegbenchError):
    """Cells were run and have not finished: they failed, or were interrupted."""

    exit_code = 1


def run_grid(
    grid: Sweep,
    wait: Wait | None,
    say: Callable[[str], None] = log.info,
    *,
    oversized: bool,
    announce: Announce | None = None,
) -> list[CellStatus] | None:
    """Refuse a grid that cannot run, prepare its data sets, and run it to the records.

    Args:
        grid: The cells.
        wait: Waits for cells that Slurm has; None: return when they are in the queue.
        say: Takes a line on what was submitted.
        oversized: Run cells too that are predicted not to fit `cluster.gpu_memory_gib`.
        announce: See `regbench.sweeps.local.run_sweep`.

    Returns:
        How the cells stand; None if Slurm goes on with them.
    """
    tune.refuse_tuning(grid)
    _prepare(grid, oversized=oversized)
    return run_stages(grid, STAGES, wait, say, announce)


def run_tuning(
    name: str,
    overrides: Sequence[str],
    wait: Wait | None,
    say: Callable[[str], None] = log.info,
    *,
    final_seeds: Sequence[int] | None,
    leading: int | None,
    trials: int | None,
    repeats: int | None,
    unequal: bool,
    oversized: bool,
) -> Sweep | None:
    """Take a tuning to its choice, from wherever an earlier call was stopped.

    `name` and `overrides` are those of `load_sweep`. `trials` is the budget of a search in place of
    the grid, and `repeats` says how often all of it is done; None: what the sweep's file says. The
    other arguments are those of `run_grid` and `regbench.sweeps.tune.tune`.

    Returns:
        The cells that are left to score on the test split; None if Slurm goes on with the tuning.

    Raises:
        RegbenchError: If the tuning is refused.
        Unfinished: If cells have ended without a score.
    """
    propose_next = proposals(name, overrides, trials, repeats)
    proposed = propose_next()
    grid = proposed.sweep
    # The final runs come hours later, so their seeds are looked at now.
    seeds = grid.final_seeds if final_seeds is None else final_seeds
    refuse_more("seeds", len(seeds), grid.runtime.max_cells)
    tune.refuse_seeds(seeds, grid.cells[0], proposed.repeats)
    _prepare(grid, oversized=oversized)

    def run(grid: Sweep, stages: Sequence[str]) -> bool:
        statuses = run_stages(grid, stages, wait, say)
        refuse_unfinished(statuses, grid, stages)
        return statuses is not None

    final = tune.tune(
        proposed, propose_next, run, final_seeds=final_seeds, leading=leading, unequal=unequal
    )
    if final is not None:
        choice = choose(Path(grid.runtime.runs_dir) / grid.name)
        say(f"\n{choice_table(choice)}\n")
    return final


def run_stages(
    grid: Sweep,
    stages: Sequence[str],
    wait: Wait | None,
    say: Callable[[str], None] = log.info,
    announce: Announce | None = None,
) -> list[CellStatus] | None:
    """Run stages of each cell of a grid whose data sets are prepared; see `run_grid`."""
    if grid.scheduler != "slurm":
        from regbench.sweeps.local import run_sweep

        return run_sweep(grid, stages, announce)
    from regbench.slurm import manage
    from regbench.sweeps import forecast

    say(forecast.summary(forecast.plan(grid)))
    count, arrays = manage.submit_sweep(grid, stages)
    submitted = (
        f"submitted {count} cells as {', '.join(arrays)}"
        if count
        else "all cells are finished, run or wait"
    )
    say(f"{submitted}; see: regbench status {grid.name}")
    look = wait or manage.statuses
    ids = {cell.id for cell in grid.cells}
    # The folder may hold cells of earlier calls, with other seeds.
    statuses = [
        status for status in look(Path(grid.runtime.runs_dir) / grid.name) if status.cell_id in ids
    ]
    # Everything may have been finished before, and then there is nothing to wait for.
    ended = ends(stages)
    if wait is None and any(status.state not in ended for status in statuses):
        return None
    return statuses


def refuse_unfinished(
    statuses: Sequence[CellStatus] | None, grid: Sweep, stages: Sequence[str] = STAGES
) -> None:
    """Raise `Unfinished`, naming them, if cells have ended and have not come through the stages."""
    missing = unfinished(statuses or (), grid.name, stages)
    if missing:
        raise Unfinished(missing)


def proposals(
    name: str, overrides: Sequence[str], trials: int | None, repeats: int | None
) -> Callable[[], Proposed]:
    """Return what a tuning tries: its grid, or with `trials` a search's next cells; None: what
    its file says.
    """
    file = read_rows(name, overrides)
    trials, repeats = trials or file.trials, repeats or file.repeats
    if trials or file.trials_per_hyperparameter:
        return functools.partial(propose, name, overrides, trials, repeats)
    once = load_sweep(name, overrides)
    refuse_more(f"{repeats} repeats", repeats * len(once.cells), once.runtime.max_cells)
    grid = tune.repeated(once, repeats)
    return lambda: Proposed(grid, True, repeats=repeats)


def _prepare(grid: Sweep, *, oversized: bool) -> None:
    """Refuse what will not run, and prepare the data sets that can be downloaded."""
    if not oversized:
        refuse_oversized(grid)
    if grid.scheduler != "slurm":  # a job's Python may have sinks that this one lacks
        require_sinks(grid.runtime.sinks)
    datasets = []
    for cell in grid.cells:
        datasets += cell.datasets
    prepare_all(datasets, Path(grid.runtime.data_dir))
