"""Run a grid or a tuning to its records: what the commands and the Python API share.

The caller hands in what runs the cells: processes of this machine, or Slurm.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from regbench.benchmark.rundir.record import read_tuned
from regbench.benchmark.settings.overrides import refuse_more
from regbench.benchmark.settings.runtime import STAGES
from regbench.benchmark.settings.sweep import Sweep, load_sweep, read_rows
from regbench.benchmark.training.sinks import require_sinks
from regbench.datasets.stored.manifest import Manifest
from regbench.datasets.stored.prepare import prepare_all
from regbench.errors import RegbenchError
from regbench.sweeps import tune
from regbench.sweeps.choose import choice_table, choose
from regbench.sweeps.forecast import refuse_oversized
from regbench.sweeps.search import Proposed, propose, refuse_other_budget
from regbench.sweeps.status import CellStatus, ends, status_command
from regbench.text import counted

log = logging.getLogger("regbench")

Execute = Callable[[Sweep, Sequence[str]], list[CellStatus] | None]
"""Function that brings each cell of a grid through stages and returns their states in the end; None
if they go on without this process.
"""


class Unfinished(RegbenchError):
    """Cells were run and have not finished: they failed, or were interrupted."""

    exit_code = 1


def run_grid(grid: Sweep, execute: Execute, *, oversized: bool) -> list[CellStatus] | None:
    """Refuse a grid that cannot run, prepare its data sets, and run it to the records.

    Args:
        grid: The cells.
        execute: Function that runs them.
        oversized: Run cells too that are predicted not to fit `cluster.gpu_memory_gib`.

    Returns:
        What `execute` returns.
    """
    tune.refuse_tuning(grid)
    _prepare(grid, oversized=oversized)
    return execute(grid, STAGES)


def run_tuning(
    name: str,
    overrides: Sequence[str],
    execute: Execute,
    say: Callable[[str], None] = log.info,
    *,
    final_seeds: Sequence[int] | None = None,
    trials: int | None = None,
    repeats: int | None = None,
    oversized: bool = False,
) -> Sweep | None:
    """Take a tuning to its choice, from wherever an earlier call was stopped.

    Args:
        name: A preset of a sweep, or the path of a YAML file.
        overrides: Settings that change every cell.
        execute: Function that runs the cells.
        say: Function that takes the table of the choice.
        final_seeds: See `regbench.sweeps.tune.tune`.
        trials: Budget of a search in place of the grid; None: what the sweep's file says.
        repeats: Number of times that the tuning is done; None: what the sweep's file says.
        oversized: See `run_grid`.

    Returns:
        The cells that are left to score on the test split; None if the tuning goes on without this
        process.

    Raises:
        RegbenchError: If the tuning is refused.
        Unfinished: If cells have ended without a score.
    """
    propose_next = proposals(name, overrides, trials, repeats)
    proposed = propose_next()
    grid = proposed.sweep
    # The final runs come hours later.
    refuse_final_seeds(proposed, final_seeds)
    _prepare(grid, oversized=oversized)

    def run(grid: Sweep, stages: Sequence[str]) -> bool:
        statuses = execute(grid, stages)
        refuse_unfinished(statuses, grid, stages)
        return statuses is not None

    final = tune.tune(proposed, propose_next, run, final_seeds=final_seeds)
    if final is not None:
        say(f"\n{choice_table(choose(grid.folder))}\n")
    return final


def refuse_final_seeds(proposed: Proposed, final_seeds: Sequence[int] | None) -> None:
    """Refuse seeds of final runs that a tuning cannot have; None: those of its file."""
    grid = proposed.sweep
    seeds = grid.final_seeds if final_seeds is None else final_seeds
    refuse_more("seeds", len(seeds), grid.runtime.max_cells)
    tune.refuse_seeds(seeds, grid.cells[0], proposed.repeats)


def refuse_unfinished(
    statuses: Sequence[CellStatus] | None, grid: Sweep, stages: Sequence[str] = STAGES
) -> None:
    """Raise `Unfinished`, naming the cells, if any have ended and not come through the stages."""
    found = statuses or ()
    missing = [status for status in found if status.state not in ends(stages)]
    if not missing:
        return
    named = [f"{status.label} seed {status.seed} {status.state}" for status in missing[:10]]
    if len(missing) > 10:
        named.append("…")
    raise Unfinished(
        f"{len(missing)} of {counted(len(found), 'cell')} not finished: {'; '.join(named)}. "
        f"Details: {status_command(grid.folder)}; the same command tries them again"
    )


def proposals(
    name: str, overrides: Sequence[str], trials: int | None, repeats: int | None
) -> Callable[[], Proposed]:
    """Return a function that gives what a tuning tries: its grid, or with `trials` a search's next
    cells.

    `trials` and `repeats` that are None are those of the tuning's file.
    """
    file = read_rows(name, overrides)
    trials, repeats = trials or file.trials, repeats or file.repeats
    if trials or file.trials_per_hyperparameter:
        return functools.partial(propose, name, overrides, trials, repeats)
    once = load_sweep(name, overrides)
    refuse_other_budget(once.folder, {})  # it would choose among what a search has tried so far
    refuse_more(f"{repeats} repeats", repeats * len(once.cells), once.runtime.max_cells)
    grid = tune.repeated(once, repeats)
    return lambda: Proposed(grid, True, repeats=repeats)


def _prepare(grid: Sweep, *, oversized: bool) -> None:
    """Refuse what will not run, and prepare the data sets that can be downloaded."""
    if not oversized:
        refuse_oversized(grid)
    if grid.scheduler != "slurm":  # a job's Python may have sinks that this one lacks
        require_sinks(grid.runtime.sinks)
    datasets = itertools.chain(*(cell.datasets for cell in grid.cells))
    prepare_all(datasets, Path(grid.runtime.data_dir))
    _refuse_other_images(grid)


def _refuse_other_images(grid: Sweep) -> None:
    """Refuse to add cells to finished ones that saw other images of their data set."""
    compared = set()
    for cell in grid.cells:
        name, directory = cell.dataset.name, grid.folder / cell.id
        record = None
        if name not in compared:
            # A damaged record is a state of its cell.
            with contextlib.suppress(RegbenchError):
                record = read_tuned(directory)
        if record is not None:
            compared.add(name)
            here = Manifest.load(Path(grid.runtime.data_dir), cell.dataset).content_sha256
            if not record.data.content_sha256.items() <= here.items():
                raise RegbenchError(
                    f"{directory} is finished, with other images of {name!r} than are prepared "
                    "now: give the sweep another name, or remove its folder"
                )
