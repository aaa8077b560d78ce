"""The tuning protocol: every method's hyperparameters are chosen on one split, and the test split
is opened once.

The paper's appendix, "Hyperparameters for experiments on IN20 %": pretrain each point of a grid,
score it by weighted kNN on the tuning split (`evaluation.select_by` adds linear probing), keep the
best point of each method and setting, choose its probe's learning rate on the tuning split, score
it on the test split. The state lies in files of the sweep's folder, so that the same call goes on
wherever an earlier one was stopped:

- `tune.json`: what is compared; it closes the test split for all cells of the folder.
- `search.json`: what a search in place of the grid has tried so far.
- `<cell>/tuning.json`: the record of a cell with its score on the tuning split.
- `tuning_choice.json`: what was chosen and the runners-up; it opens the test split for the chosen.
- `<cell>/record.json`: the final record of a chosen cell.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regbench.benchmark.evaluate.subject import selection_splits
from regbench.benchmark.rundir.choice import GIVEN
from regbench.benchmark.rundir.directory import run_directory
from regbench.benchmark.rundir.interruption import Interruption
from regbench.benchmark.rundir.record import Record, read_record
from regbench.benchmark.rundir.tuning_choice import (
    APART,
    SEARCH,
    TUNING_CHOICE,
    TuningChoice,
    read_choice,
    read_search,
    seed_in,
)
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.identity import configuration_id
from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.settings.stored import load_cell
from regbench.benchmark.settings.sweep import Sweep
from regbench.errors import RegbenchError
from regbench.files import signed, write_text
from regbench.sweeps.choose import COMPARED, choose, compared_ids, refuse_unequal
from regbench.sweeps.search import Proposed
from regbench.sweeps.status import locked, status_command


def tune(
    proposed: Proposed,
    propose_next: Callable[[], Proposed],
    run: Callable[[Sweep, Sequence[str]], bool],
    *,
    final_seeds: Sequence[int] | None,
) -> Sweep | None:
    """Take a tuning to its choice, from wherever an earlier call was stopped.

    Args:
        proposed: The cells to try first.
        propose_next: Function that gives the cells to try next: a search gives more each time.
        run: Function that runs stages of each cell, and returns False if Slurm goes on with that.
        final_seeds: Seeds of the final runs; empty: those of the grid; None: what the sweep's file
            says.

    Returns:
        The cells that are left to score on the test split; None if there is no choice yet, because
        `run` returned False.

    Raises:
        RegbenchError: If the tuning is refused.
    """
    sweep, complete, search, repeats = proposed
    seeds = sweep.final_seeds if final_seeds is None else final_seeds
    folder = sweep.folder
    asked = {cell.id for cell in sweep.cells}
    # What a search tries later follows from its scores, some of which may be gone once it has
    # chosen.
    if search is not None:
        asked = {entry["cell_id"] for entry in search["tried"] if entry["round"] == 0}
    _refuse_more(asked, folder)
    _refuse_other_repeats(folder, repeats)
    while not (folder / TUNING_CHOICE).exists():
        # In each round: the file closes the test split, and has to name a cell before it runs.
        begin(sweep.cells, folder, Path(sweep.runtime.data_dir), search)
        # A search that is complete has ended; a grid is complete from the start.
        if (search is None or not complete) and not run(sweep, ("pretrain", "tune")):
            return None
        if complete:
            break
        sweep, complete, search, _ = propose_next()
    cells = final_cells(choose(folder, repeats), folder, sweep.cells, seeds)
    # Final runs have other seeds than the cells tried, and go where their configuration went.
    configurations = [configuration_id(cell.plain()) for cell in sweep.cells]
    cluster_of = dict(zip(configurations, sweep.clusters, strict=True))
    first = sweep.clusters[0]
    places = tuple(cluster_of.get(configuration_id(cell.plain()), first) for cell in cells)
    return replace(sweep, cells=tuple(cells), clusters=places, later_epochs=0)


def refuse_tuning(sweep: Sweep) -> None:
    """Refuse to run the folder of a tuning as a sweep: its cells would get no score on the test
    split.
    """
    if (sweep.folder / COMPARED).exists():
        what = f"{sweep.folder} is of a tuning; go on with: regbench tune"
        raise RegbenchError(f"{what}, or give the sweep another name")


def refuse_seeds(seeds: Sequence[int], cell: Cell, repeats: int = 1) -> None:
    """Refuse seeds of final runs before the tuning begins: those that `cell` cannot have in all
    repeats, and those that are given twice.
    """
    number = Counter(seeds)
    for seed in seeds:
        replace(cell, seed=seed_in(repeats - 1, seed))  # refuses what is no seed
        if number[seed] > 1:
            raise RegbenchError(f"--seeds names {seed} twice; each seed is one run")


def repeated(grid: Sweep, repeats: int) -> Sweep:
    """Return a grid with the cells of each repeat, which differ in their seeds."""
    every = itertools.product(range(repeats), grid.cells)
    cells = tuple(replace(cell, seed=seed_in(number, cell.seed)) for number, cell in every)
    return replace(grid, cells=cells, clusters=grid.clusters * repeats)


def begin(
    cells: Sequence[Cell], folder: Path, data_dir: Path, search: Mapping[str, Any] | None = None
) -> None:
    """Write down what is compared, and what a search has tried, before anything runs.

    Raises:
        RegbenchError: If budgets differ, there is no split to choose on, or the folder holds
            another sweep.
    """
    _refuse_incomparable(cells, data_dir)
    # The plan of a search gives all methods equally much.
    if search is None:
        refuse_unequal(cells, "give all the same")
    _refuse_more({cell.id for cell in cells}, folder)
    _refuse_tested(folder)
    path = folder / COMPARED
    with locked(folder):
        # A grid may grow until the choice is made, so cells are added to those that are there.
        ids = set(compared_ids(folder)) if path.exists() else set()
        ids |= {cell.id for cell in cells}
        write_text(path, json.dumps(sorted(ids), indent=1))
        # Another process of the same search may have got further, and even have chosen.
        if search is not None and not _is_behind(search, read_search(folder)):
            write_text(folder / SEARCH, signed(search))


def _is_behind(search: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    """Return True if the search that is written is the same one, with more scores."""
    (own, own_scores), (others, other_scores) = map(_progress, (search, written))
    return own <= others and own_scores < other_scores


def _progress(search: Mapping[str, Any]) -> tuple[set[str], int]:
    """Return the cells of a search, and how many of them have a score."""
    scores = {entry["cell_id"]: entry["score"] for entry in search.get("tried", ())}
    return set(scores), sum(score is not None for score in scores.values())


def _refuse_incomparable(cells: Sequence[Cell], data_dir: Path) -> None:
    """Refuse cells among which no fair choice can be made."""
    # Splits are read from files: once for each data set.
    one_each = {(cell.dataset.name, cell.evaluation.select_on): cell for cell in cells}
    for cell in one_each.values():
        if not selection_splits(cell, data_dir):
            raise RegbenchError(
                f"data set {cell.dataset.name!r} has no tuning split to choose on; the paper's "
                "second variant, whose scores are optimistic, chooses on the test split: "
                "evaluation.select_on=test"
            )
    for name in ("select_on", "select_by"):
        values = {getattr(cell.evaluation, name) for cell in cells}
        if len(values) > 1:
            raise RegbenchError(f"evaluation.{name} must be the same for all cells of a tuning")


def _refuse_tested(folder: Path) -> None:
    """Refuse to choose if the test split was opened before, such as when an earlier choice was
    removed.
    """
    for path in folder.glob("*/record.json"):
        record = read_record(path.parent)
        splits = {score.split for score in record.scores} if record is not None else set()
        # Final records follow their choice, which another process may just have made.
        if "test" in splits and not (folder / TUNING_CHOICE).exists():
            raise RegbenchError(
                f"{folder} holds runs that were scored on the test split already; choose another "
                "name for the tuning"
            )


def _refuse_more(asked: set[str], folder: Path) -> None:
    """Refuse cells, by id, that were not compared for the choice on record."""
    if not (folder / TUNING_CHOICE).exists() or not (folder / COMPARED).exists():
        return
    if not asked <= set(compared_ids(folder)):
        raise RegbenchError(
            f"{folder} has made its choice among other cells; a tuning with more of them needs "
            "another name"
        )


def _refuse_other_repeats(folder: Path, repeats: int) -> None:
    """Refuse a choice on record that was made with another number of repeats."""
    choice = read_choice(folder)
    if choice is None:
        return
    # Counted by the seeds, because a search whose cells all diverged has chosen nothing.
    searches = 1 + max(choice.seeds) // APART if choice.repeated else 1
    if searches != repeats:
        raise RegbenchError(
            f"{folder} has made its choice with --repeats {searches}; a tuning with --repeats "
            f"{repeats} needs another name"
        )


def how_chosen(directory: Path, cell: Cell, *, final: bool) -> dict[str, Any]:
    """Return how a cell's hyperparameters were chosen, and keep the test split closed to others.

    Returns:
        What its record says: `benchmark.rundir.choice.GIVEN` outside a tuning.

    Raises:
        RegbenchError: If it belongs to a tuning that has not chosen it, and `final` scores are
            asked for.
    """
    folder = directory.absolute().parent
    found = dict(GIVEN)
    if not (folder / COMPARED).exists():
        return found
    choice = read_choice(folder)
    if choice is not None and choice.repeated:
        found["search"] = cell.seed // APART
    chosen = choice.find(configuration_id(cell.plain()), cell.seed) if choice else None
    if choice is not None and chosen is not None:
        found |= {
            name: getattr(choice, name) for name in ("selected_on", "score", "budget", "sha256")
        }
        found["record"] = f"{folder.name}/{TUNING_CHOICE}"  # as the folder of runs may lie anywhere
        found["edges"] = chosen.edges
        return found
    if final and cell.is_method:  # a baseline has nothing to choose
        what = "has not chosen yet" if choice is None else "chose other hyperparameters"
        raise RegbenchError(
            f"{directory}: the tuning {folder.name} {what}, so this cell gets no score on the test "
            f"split; see: {status_command(folder)}"
        )
    return found


def run_stages(
    cell: Cell, runtime: Runtime, sweep: str, stages: Sequence[str], interruption: Interruption
) -> Record | None:
    """Run stages of a cell, see `run_cell`; its record says how it was chosen, see `how_chosen`."""
    from regbench.benchmark.run import run_cell  # slow to import, and only what trains needs it

    chosen = how_chosen(run_directory(runtime, sweep, cell), cell, final="final" in stages)
    return run_cell(cell, runtime, sweep, stages, interruption, chosen)


def final_cells(
    choice: TuningChoice, folder: Path, tried: Sequence[Cell], seeds: Sequence[int]
) -> list[Cell]:
    """List the cells that are scored on the test split: each choice with its seeds.

    The searches of a repeated tuning have no final seed in common: otherwise the effect of a seed
    on a method would count in each search as if it were new.

    Args:
        choice: Choice that `choose` made.
        folder: `<runs_dir>/<sweep>`.
        tried: Cells that it chose among; the baselines among them are scored, too.
        seeds: Seeds of the final runs; empty: those of the grid.

    Raises:
        RegbenchError: If the run directory of a choice is not there.
    """
    best_first = sorted(choice.choices, key=lambda entry: -(entry.ranking[0].value or 0.0))
    cells = []
    for entry in best_first:
        config = folder / entry.chosen / "config.yaml"
        if not config.exists():
            raise RegbenchError(
                f"{config.parent}, which {TUNING_CHOICE} chose for {entry.label}, is not there; "
                "put it back, or tune under another name"
            )
        chosen = load_cell(config)
        own_seeds = [seed_in(entry.search or 0, seed) for seed in seeds]
        if not seeds:
            own_seeds = [seed for seed in choice.seeds if entry.owns(seed)]
        cells += [replace(chosen, seed=seed) for seed in own_seeds]
    baselines: dict[Cell, None] = {}
    for cell in tried:
        if not cell.is_method:
            number = cell.seed // APART if choice.repeated else 0
            own_seeds = [seed_in(number, seed) for seed in seeds] or [cell.seed]
            baselines |= dict.fromkeys(replace(cell, seed=seed) for seed in own_seeds)
    return cells + sorted(baselines, key=lambda cell: cell.seed)
