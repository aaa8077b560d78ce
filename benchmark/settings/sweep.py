"""Sweeps: named grids of cells, from a YAML file or the command line."""

from __future__ import annotations

import itertools
import logging
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

from regbench import methods
from regbench.benchmark.settings.cell import Cell, Seed
from regbench.benchmark.settings.compose import Composer
from regbench.benchmark.settings.overrides import grid, max_cells, refuse_dropped, refuse_more
from regbench.benchmark.settings.presets import preset_files
from regbench.benchmark.settings.runtime import Cluster, Runtime
from regbench.datasets.config import DatasetConfig
from regbench.errors import RegbenchError
from regbench.files import Name
from regbench.settings import AtLeastOne, from_plain, plain, read_yaml, settings
from regbench.wording import shown

log = logging.getLogger("regbench")


@dataclass(frozen=True)
class Sweep:
    """A named grid.

    Attributes:
        name: Folder under `runs_dir`.
        description: One line for people.
        cells: Distinct cells in the order of the file.
        runtime: Runtime of all cells.
        clusters: Place where each cell runs.
        final_seeds: Seeds of the final runs of a tuning; empty: those of the cells.
        later_epochs: Epochs of all cells that a search will add, to estimate the time left.
    """

    name: str
    description: str
    cells: tuple[Cell, ...]
    runtime: Runtime
    clusters: tuple[Cluster, ...]
    final_seeds: tuple[int, ...] = ()
    later_epochs: int = 0

    @property
    def folder(self) -> Path:
        """Folder of its runs, `<runs_dir>/<name>`."""
        return Path(self.runtime.runs_dir) / self.name

    @property
    def scheduler(self) -> str:
        """Scheduler of all cells, which cannot have different ones."""
        return self.clusters[0].scheduler


def load_run(overrides: Sequence[str]) -> tuple[Cell, Runtime]:
    """Return one cell and its runtime from the defaults and Hydra overrides such as
    `method=vicreg`; refuse a grid.
    """
    refuse_dropped(overrides, but_plug_ins=True)
    sweep = _expand("manual", "one run", [list(overrides)])
    if len(sweep.cells) != 1:
        raise RegbenchError(
            f"the overrides give {len(sweep.cells)} cells; for a grid use: regbench sweep"
        )
    if sweep.scheduler == "slurm":
        remedy = "for jobs of Slurm write a sweep's file: regbench sweep"
        raise RegbenchError(f"a single run is of this machine; {remedy}")
    return sweep.cells[0], sweep.runtime


def load_dataset(overrides: Sequence[str]) -> tuple[DatasetConfig, Runtime]:
    """Return the data set that overrides give, and the runtime, as if nothing was prepared yet."""
    point, *others = itertools.islice(itertools.product(*grid(overrides)), 2)
    if others:
        raise RegbenchError("the overrides give several data sets: give one value of each")
    composed = Composer(prepared=False).compose(point)
    return composed.cell.dataset, composed.runtime


def load_grid(overrides: Sequence[str]) -> Sweep:
    """Return the cells that overrides give, without a sweep's file."""
    refuse_dropped(overrides, but_plug_ins=True)
    return _expand("manual", "from the command line", [list(overrides)])


@settings
class SweepSettings:
    """The content of a sweep's file.

    Attributes:
        description: One line for people.
        cells: Lines of overrides, each of which gives one cell or several.
        common: Overrides of all cells.
        final_seeds: Seeds of the final runs of a tuning; none: those of the cells.
        trials: Budget of a tuning that searches; null: a grid.
        trials_per_hyperparameter: The same for each hyperparameter that a method has to search, in
            place of `trials`.
        repeats: Number of times that a tuning is done, with other seeds each.
        equal: Quantity that cells of the same `epochs` share: "images", or "passes" through the
            network: then a cell of V views gets 2/V as many epochs.
    """

    description: str
    cells: tuple[str, ...]
    common: tuple[str, ...] = ()
    final_seeds: tuple[Seed, ...] = ()
    trials: AtLeastOne | None = None
    trials_per_hyperparameter: AtLeastOne | None = None
    repeats: AtLeastOne = 1
    equal: Literal["images", "passes"] = "images"

    def __post_init__(self) -> None:
        """Refuse a seed that is given twice, and two budgets."""
        if self.trials and self.trials_per_hyperparameter:
            raise RegbenchError(
                "trials and trials_per_hyperparameter are both given; a search has one budget"
            )
        if len({*self.final_seeds}) < len(self.final_seeds):
            raise RegbenchError(
                f"final_seeds={shown(self.final_seeds)} names a seed twice; each seed is one run"
            )


@settings
class SweepFile(SweepSettings):
    """A sweep's file, read but not expanded.

    Attributes:
        name: Folder under `runs_dir`.
        rows: Overrides of each row, those common to all included.
    """

    name: Name
    rows: tuple[tuple[str, ...], ...]


def load_sweep(name: str, overrides: Sequence[str] = ()) -> Sweep:
    """Return the sweep `name` (a preset, or the path of a YAML file) with each cell changed by
    `overrides`.
    """
    # `seed=0,1,2`, in the file or here, multiplies the cells.
    file = read_rows(name, overrides)
    return load_rows(file, file.rows)


def load_rows(file: SweepFile, rows: Sequence[Sequence[str]]) -> Sweep:
    """Return the cells that rows of overrides give, under the name of a sweep's file."""
    sweep = _expand(file.name, file.description, rows, passes=file.equal == "passes")
    return replace(sweep, final_seeds=file.final_seeds)


def read_rows(name: str, overrides: Sequence[str]) -> SweepFile:
    """Read the file of the sweep `name` with each row changed by `overrides`; see `load_sweep`."""
    presets = preset_files("sweep")
    if name in presets:
        path = presets[name]
    elif Path(name).suffix in (".yaml", ".yml"):
        path = Path(name)
    else:
        remedy = f"known: {', '.join(presets)}, or give the path of a .yaml file of your own"
        raise RegbenchError(f"no sweep named {name!r}; {remedy}")
    # YAML reads a key without a value as null, which means the same as no key.
    given = {key: value for key, value in read_yaml(path).items() if value is not None}
    try:
        file = from_plain(SweepSettings, given)
        common = line_of_overrides(" ".join(file.common))
        refuse_more("cells", len(file.cells), max_cells([*common, *overrides]))
        refuse_dropped(common)
        refuse_dropped(overrides, but_plug_ins=True)
        rows = []
        for line in file.cells:
            row = line_of_overrides(line)
            refuse_dropped(row)
            refuse_dropped([*common, *row], but_plug_ins=True)
            rows.append((*common, *row, *of_row(row, overrides)))
        return SweepFile(**vars(file), name=path.stem, rows=tuple(rows))
    except RegbenchError as error:
        raise RegbenchError(f"{path}: {error}") from error


def line_of_overrides(line: str) -> list[str]:
    """Split a line of overrides at its blanks, as a shell does.

    Refuse a quotation mark that is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise RegbenchError(f"a quotation mark is not closed in: {line.strip()}") from error


def of_row(row: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the overrides that apply to a row: an untrained network is a baseline, which stays
    untrained whatever `epochs=` says.
    """
    if "epochs=0" not in row:
        return list(overrides)
    return [override for override in overrides if not override.startswith("epochs=")]


def _epochs_of_equal_passes(name: str, cell: Cell) -> int:
    views, taught = cell.augmentation.count, ""
    passes = Fraction(views)
    if cell.network.teacher == "ema":
        # A pass without a gradient costs a third of one with it: backward has two products for each
        # of forward.
        passes += Fraction(cell.augmentation.global_views, 3)
        taught = " and a teacher"
    share = 2 / passes
    epochs = share * cell.epochs
    if epochs.denominator > 1:
        raise RegbenchError(
            f"sweep {name}: equal: passes gives {views} views{taught} {share} of "
            f"epochs={cell.epochs}, which is not a whole number; choose a multiple of "
            f"{share.denominator}"
        )
    return int(epochs)


def _expand(
    name: str, description: str, rows: Sequence[Sequence[str]], *, passes: bool = False
) -> Sweep:
    cells: dict[str, tuple[Cell, Cluster]] = {}
    runtimes: dict[Runtime, None] = {}
    notes: dict[str, None] = {}
    composer = Composer()
    grids = [grid(row) for row in rows]
    cells_in_all = sum(math.prod(map(len, choices)) for choices in grids)
    refuse_more(f"sweep {name}", cells_in_all, max_cells(itertools.chain(*rows)))
    for choices in grids:
        for point in itertools.product(*choices):
            cell, runtime, cluster, fitting = composer.compose(point)
            if passes:
                # Composed anew, so that a warm-up that is not given fits these epochs.
                again = f"epochs={_epochs_of_equal_passes(name, cell)}"
                cell, _, _, fitting = composer.compose([*point, again])
            cells.setdefault(cell.id, (cell, cluster))  # two lines may give the same cell
            runtimes[runtime] = None
            notes[fitting] = None
    for note in filter(None, notes):
        # Fewer settings are fitted for an untrained row, and the longer note says them too.
        if not any(longer.startswith(f"{note} ") for longer in notes):
            log.info("chosen to fit: %s", note)
    if not cells:
        raise RegbenchError(f"sweep {name} has no cells")
    if len({cluster.scheduler for _, cluster in cells.values()}) > 1:
        raise RegbenchError(
            f"sweep {name}: some cells are for this machine and some for Slurm; choose one cluster="
        )
    names: dict[str, str] = {}
    for cell, _ in cells.values():
        own = methods.registry_name(cell.method)
        known = names.setdefault(cell.label, own) if cell.is_method else own
        if known != own:
            what = f"sweep {name}: {known} and {own} are both {cell.label!r} in tables"
            raise RegbenchError(f"{what}; give one another title")
    if len(runtimes) > 1:
        first, other = map(plain, [*runtimes][:2])
        differing = ", ".join(f"runtime.{key}" for key in first if first[key] != other[key])
        what = f"sweep {name}: {differing} must be the same for all cells"
        raise RegbenchError(f"{what}; give it once, for all of them")
    chosen, clusters = zip(*cells.values(), strict=True)
    return Sweep(name, description, chosen, next(iter(runtimes)), clusters)
