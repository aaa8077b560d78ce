"""Bring the cells of a sweep to their records, on this machine or by Slurm: what commands and Python API share."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from regbench.benchmark.settings.sweep import Sweep, load_sweep, read_rows
from regbench.benchmark.training.sinks import require_sinks
from regbench.datasets.prepare import prepare_all
from regbench.errors import RegbenchError
from regbench.sweeps import tune as tuning
from regbench.sweeps.forecast import refuse_oversized
from regbench.sweeps.search import propose
from regbench.sweeps.status import CellStatus, ends, unfinished

log = logging.getLogger("regbench")

Follow = Callable[[Path], list[CellStatus]]
"""Waits for the cells of a folder that Slurm has, and returns how they stand in the end."""


class Unfinished(RegbenchError):
    """Cells that were run and are not finished: they failed, or were interrupted."""


def prepare_grid(grid: Sweep) -> None:
    """Prepare the data sets of a grid that can be downloaded; refuse others, and sinks that are not installed."""
    if grid.scheduler != "slurm":  # elsewhere, a job's Python may have what this one lacks
        require_sinks(grid.runtime.sinks)
    prepare_all((dataset for cell in grid.cells for dataset in cell.datasets), Path(grid.runtime.data_dir))


def bring(
    grid: Sweep, stages: Sequence[str], follow: Follow | None, tell: Callable[[str], None] = log.info
) -> list[CellStatus] | None:
    """Bring the cells of a grid through stages.

    Args:
        grid: Whose data sets are prepared.
        stages: Those of a run to bring each cell through.
        follow: Waits for cells that Slurm has; None: do not wait.
        tell: Takes a line on what was submitted.

    Returns:
        How they stand; None if Slurm goes on with them.
    """
    if grid.scheduler != "slurm":
        from regbench.sweeps.local import run_sweep

        return run_sweep(grid, stages)
    from regbench.slurm import manage
    from regbench.sweeps import forecast as plan

    tell(plan.summary(plan.plan(grid)))
    count, arrays = manage.submit_sweep(grid, stages)
    submitted = f"submitted {count} cells as {', '.join(arrays)}" if count else "all cells are finished, run or wait"
    tell(f"{submitted}; see: regbench status {grid.name}")
    cells = {cell.id for cell in grid.cells}
    stand = (follow or manage.statuses)(Path(grid.runtime.runs_dir) / grid.name)
    found = [status for status in stand if status.cell_id in cells]
    return found if follow or all(status.state in ends(stages) for status in found) else None


def bring_all(
    grid: Sweep, stages: Sequence[str], follow: Follow | None, tell: Callable[[str], None] = log.info
) -> bool:
    """Bring the cells of a grid through stages, every one; see `bring` for the arguments.

    Returns:
        False if Slurm goes on with them.

    Raises:
        Unfinished: If cells have ended and are not through.
    """
    statuses = bring(grid, stages, follow, tell)
    if statuses is not None and (missing := unfinished(statuses, grid.name, stages)):
        raise Unfinished(missing)
    return statuses is not None


def bring_tuning(
    name: str,
    overrides: Sequence[str],
    follow: Follow | None,
    tell: Callable[[str], None] = log.info,
    *,
    final_seeds: Sequence[int] | None,
    leading: int | None,
    trials: int | None,
    unequal: bool,
    oversized: bool,
) -> Sweep | None:
    """Bring a tuning to its choice, from wherever an earlier call was stopped.

    Args:
        name: Of a sweep: a preset, or the path of a YAML file.
        overrides: Settings that change every cell.
        follow: See `bring`, as `tell`.
        tell: Takes the table of what was chosen too.
        final_seeds: See `regbench.sweeps.tune.tune`, as `leading` and `unequal`.
        leading: As there.
        trials: Search instead of a grid, with this budget; None: what the sweep's file says.
        unequal: As there.
        oversized: Bring cells too that are predicted not to fit `cluster.gpu_memory_gib`.

    Returns:
        The cells that are left to score on the test split; None if Slurm goes on with the tuning.

    Raises:
        RegbenchError: If the tuning is refused.
        Unfinished: If cells have ended and are not through.
    """
    propose_next = proposals(name, overrides, trials)
    proposed = propose_next()
    grid = proposed.sweep
    tuning.refuse_seeds(final_seeds or (), grid.cells[0])
    if not oversized:
        refuse_oversized(grid)
    prepare_grid(grid)
    final = tuning.tune(
        proposed,
        propose_next,
        lambda grid, stages: bring_all(grid, stages, follow, tell),
        final_seeds=final_seeds,
        leading=leading,
        unequal=unequal,
    )
    if final is not None:
        tell(f"\n{tuning.choice_table(tuning.choose(Path(grid.runtime.runs_dir) / grid.name))}\n")
    return final


def proposals(name: str, overrides: Sequence[str], trials: int | None) -> Callable[[], tuning.Proposed]:
    """Return what a tuning tries: its grid, or with `trials` (here or in the sweep's file) a search's next cells."""
    trials = trials or read_rows(name, overrides).trials
    if trials:
        return functools.partial(propose, name, overrides, trials)
    grid = load_sweep(name, overrides)
    return lambda: tuning.Proposed(grid, True)
