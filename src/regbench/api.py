"""The commands as functions: train, evaluate, export, embed, sweep, tune, challenge, report, and
the records as a table.

A setting is given as on the command line, `["method=vicreg", "epochs=2"]`, or by keyword,
`method="vicreg", epochs=2`. A keyword takes numbers, text, lists and None; a dictionary sets
members of a group: `optimizer={"base_lr": 0.5}`, `method={"name": "sfrik", "alignment_weight":
250}`. Keywords count as if they were written last. What is refused is a `RegbenchError` of one
line.

Each function imports what it needs when it is called, so that `import regbench` is quick.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regbench.errors import RegbenchError
from regbench.text import refuse_name

if TYPE_CHECKING:
    import pandas as pd

    from regbench.benchmark.rundir.record import Record, Score
    from regbench.benchmark.settings.sweep import Sweep
    from regbench.benchmark.trained import Trained
    from regbench.reports import WrittenReport
    from regbench.sweeps.run import Execute
    from regbench.sweeps.status import Announce, CellStatus
    from regbench.tracks.placing import Placing
    from regbench.tracks.smoke import Smoke
    from regbench.tracks.track import Track

    Wait = Callable[[Path], list[CellStatus]]

__all__ = [
    "challenge",
    "embed",
    "evaluate",
    "export",
    "load",
    "load_records",
    "report",
    "sweep",
    "train",
    "tune",
]

log = logging.getLogger("regbench")


def train(
    overrides: str | Sequence[str] = (),
    *,
    name: str = "manual",
    config: str | Path | None = None,
    **settings: Any,
) -> Record | None:
    """Train and evaluate one cell, as `regbench train` does, going on from its checkpoint if it was
    interrupted.

    A cell that is finished is not trained again. Ctrl-C writes a checkpoint first. The run sets the
    threads and the random generators of this process.

    Args:
        overrides: Settings in Hydra's grammar: a list, or a line with blanks between them.
        name: Folder of the run under the runs folder.
        config: The `config.yaml` of a run directory to repeat, instead of the defaults.
        **settings: Settings by keyword, see the module.

    Returns:
        The record. Its `scores` and `history` hold the numbers, `path.parent` is the run directory.
        None in processes other than the first, where torchrun started several.

    Raises:
        RegbenchError: If a setting or the data set is refused, or the run is lost to another
            process.
    """
    from regbench.benchmark.rundir.interruption import Interruption
    from regbench.benchmark.settings.runtime import STAGES
    from regbench.benchmark.settings.stored import load_config
    from regbench.benchmark.settings.sweep import load_run
    from regbench.benchmark.training.distributed import environment_ranks
    from regbench.datasets.stored.prepare import prepare_all
    from regbench.sweeps.tune import run_stages

    refuse_name("name", name)
    given = _overrides(overrides, settings)
    cell, runtime = load_run(given) if config is None else load_config(Path(config), given)
    if environment_ranks()[2] == 0:  # of several processes on a machine, one prepares
        prepare_all(cell.datasets, Path(runtime.data_dir))
    interruption = Interruption()
    with contextlib.ExitStack() as stack:
        # Python lets no other thread answer signals.
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(interruption.listening(signal.SIGINT, signal.SIGTERM))
        return run_stages(cell, runtime, name, STAGES, interruption)


def evaluate(
    run: str | Path,
    overrides: str | Sequence[str] = (),
    *,
    only: Sequence[str] = (),
    **settings: Any,
) -> list[Score]:
    """Evaluate the final weights in a run directory, as `regbench evaluate` does.

    Evaluations that the record of a finished run does not hold are written beside it, once, and
    reports take them; others are only returned.

    Args:
        run: The run directory, such as `train(...).path.parent`.
        overrides: Settings of `evaluation` and `runtime` that differ from the run's own.
        only: Names of evaluations; none: those of the run.
        **settings: Settings by keyword, see the module.

    Returns:
        The scores. Each has a name, a value with its unit, the split, and the protocol in words.

    Raises:
        RegbenchError: If it is no run directory with final weights, or a setting is refused.
    """
    from regbench.benchmark.run import evaluate_directory, trained_cell
    from regbench.sweeps.tune import how_chosen

    directory = Path(run)
    if not directory.is_dir():
        raise RegbenchError(
            f"{run} is no run directory; the runs of a sweep are listed by: regbench status SWEEP"
        )
    only = [only] if isinstance(only, str) else only
    chosen = how_chosen(directory, trained_cell(directory), final=True)
    return evaluate_directory(directory, _overrides(overrides, settings), only, chosen)


def load(run: str | Path) -> Trained:
    """Load the backbone of a finished run.

    Args:
        run: The run directory.

    Returns:
        Its `module` maps images (n, c, s, s) to representations (n, `dim`); its `transform` makes
        such an image, without n, from a file or from one of Pillow's images.

    Raises:
        RegbenchError: If it is no run directory with final weights of a network for images.
    """
    from regbench.benchmark import trained

    return trained.load(Path(run))


def export(run: str | Path, out: str | Path, *, onnx: bool = False) -> list[Path]:
    """Write the backbone of a finished run for other programs, as `regbench export` does.

    Args:
        run: The run directory.
        out: The file of weights, `.safetensors`. A card beside it, `.json`, holds what the weights
            are: scores, settings, data, normalisation, and how timm loads them.
        onnx: Whether to write the network for ONNX too, in a file `.onnx` beside it.

    Returns:
        The files.

    Raises:
        RegbenchError: If there are no final weights, or a format cannot be written.
    """
    from regbench.benchmark import trained

    return trained.export(Path(run), Path(out), onnx=onnx)


def embed(
    run: str | Path,
    folder: str | Path,
    out: str | Path = "embeddings.parquet",
    overrides: str | Sequence[str] = (),
    **settings: Any,
) -> int:
    """Write the representations of all images below a folder, as `regbench embed` does, going on
    from where an earlier call was stopped.

    Args:
        run: The run directory.
        folder: The folder; the folders in it are read too.
        out: The parquet file, with the columns `file`, `embedding` and, where the run's data set is
            prepared and has labels, `classes`, the nearest first.
        overrides: Settings of `runtime`.
        **settings: Settings by keyword, see the module.

    Returns:
        The number of images in the file.

    Raises:
        RegbenchError: If the run has no final weights, the folder no images, or `out` is another
            file.
    """
    from regbench.benchmark import embed as embeddings
    from regbench.benchmark.settings.sweep import load_run

    given = _overrides(overrides, settings)
    for override in given:
        if not override.startswith("runtime."):
            raise RegbenchError(f"{override}: embed takes settings of the runtime only")
    return embeddings.embed(Path(run), Path(folder), Path(out), load_run(given)[1])


def sweep(
    name: str | Path,
    overrides: str | Sequence[str] = (),
    *,
    cells: str | Sequence[str] | None = None,
    oversized: bool = False,
    **settings: Any,
) -> pd.DataFrame:
    """Run a grid of cells, as `regbench sweep` does, and wait for the end; on a cluster with
    `cluster="slurm"`.

    Finished cells are skipped, interrupted ones go on, and one that fails does not stop the others.

    Args:
        name: A preset, the path of a YAML file, or with `cells` the folder's name under the runs
            folder.
        overrides: Settings that change every cell. Values separated by commas multiply the cells:
            `seed=0,1,2`.
        cells: The grid, a line or several as in a sweep's file, such as `method=vicreg,sfrik_l3
            seed=0,1`.
        oversized: Whether to run cells that are predicted not to fit `cluster.gpu_memory_gib`.
        **settings: Settings by keyword, see the module.

    Returns:
        A row for each cell and score, as `load_records` gives them.

    Raises:
        RegbenchError: If a setting is refused, or when all have ended, for those that are not
            finished.
    """
    from regbench.benchmark.settings.sweep import (
        SweepFile,
        line_of_overrides,
        load_rows,
        load_sweep,
        of_row,
    )
    from regbench.slurm.manage import follow
    from regbench.sweeps.run import refuse_unfinished, run_grid

    given = _overrides(overrides, settings)
    if cells is None:
        grid = load_sweep(str(name), given)
    else:
        refuse_name("name", str(name))
        lines = map(line_of_overrides, [cells] if isinstance(cells, str) else cells)
        rows = [(*line, *of_row(line, given)) for line in lines]
        file = SweepFile(description="from Python", cells=(), name=str(name), rows=tuple(rows))
        grid = load_rows(file, rows)
    statuses = run_grid(grid, executor(follow), oversized=oversized)
    refuse_unfinished(statuses, grid)
    return _rows(grid)


def tune(
    name: str | Path,
    overrides: str | Sequence[str] = (),
    *,
    seeds: Sequence[int] | None = None,
    trials: int | None = None,
    repeats: int | None = None,
    oversized: bool = False,
    **settings: Any,
) -> pd.DataFrame:
    """Choose hyperparameters on the tuning split, then score the chosen once on the test split, as
    `regbench tune` does.

    Args:
        name: A preset or the path of a YAML file.
        overrides: Settings that change every cell.
        seeds: Seeds of the final runs; None: those of the file, or of the grid.
        trials: Budget of a search instead of a grid: each method may train as many images as this
            many of its cells.
        repeats: Number of times that each search is done, with seeds of its own; None: as the file
            says, or 1.
        oversized: Whether to run cells that are predicted not to fit, see `sweep`.
        **settings: Settings by keyword, see the module.

    Returns:
        A row for each chosen cell and score, as `load_records` gives them. Why they were chosen is
        in `tuning_choice.json` of the sweep's folder.

    Raises:
        RegbenchError: If a setting is refused, or when all have ended, for those that are not
            finished.
    """
    from regbench.benchmark.settings.runtime import STAGES
    from regbench.slurm.manage import follow
    from regbench.sweeps.run import refuse_unfinished, run_tuning

    for what, value in (("trials", trials), ("repeats", repeats)):
        if value is not None and (type(value) is not int or value < 1):
            raise RegbenchError(f"{what}={value!r} must be a whole number, 1 or more")
    if seeds is not None and not (isinstance(seeds, Sequence) and {*map(type, seeds)} <= {int}):
        raise RegbenchError(f"seeds={seeds!r} must be a list of whole numbers, such as [0, 1, 2]")
    execute = executor(follow)
    final = run_tuning(
        str(name),
        _overrides(overrides, settings),
        execute,
        final_seeds=seeds,
        trials=trials,
        repeats=repeats,
        oversized=oversized,
    )
    assert final is not None  # `follow` waits for Slurm
    refuse_unfinished(execute(final, STAGES), final)
    return _rows(final)


def challenge(
    loss: object,
    overrides: str | Sequence[str] = (),
    *,
    track: str | Track = "scenes",
    **settings: Any,
) -> Placing | Smoke | dict[str, Placing]:
    """Place a new loss among the rows of a track, as `regbench challenge` does, and wait for it.

    Args:
        loss: `my_loss.py`, `my_loss.py:NAME`, or a class or function that is defined in a file. In
            a script that defines it, the call stands under `if __name__ == "__main__":`, because
            other processes import the file.
        overrides: Settings of the runtime and the cluster; all others are the track's.
        track: Name of a track, or one of your own; `minute` is a smoke test.
        **settings: Settings by keyword, see the module.

    Returns:
        The place with the verdict beside each row, or what a smoke test found; printed, it is what
        the command prints. For a track with several tasks, such as latents, the place in each, by
        the task's name; a task in which the loss has none is missing, and the reason is logged.

    Raises:
        RegbenchError: If the file holds no loss, a setting is the track's, or cells have not
            finished, in all tasks.
    """
    from regbench.slurm.manage import follow
    from regbench.tracks.challenge import prepared, tasks_of
    from regbench.tracks.placing import Placing

    found: dict[str, Placing] = {}
    tasks = tasks_of(track)
    for task in tasks:
        with prepared(loss, task, _overrides(overrides, settings)) as begun:
            try:
                outcome = begun.run(executor(follow))
            except RegbenchError as error:
                # A loss that has no place in one task may have one in another.
                if task is tasks[-1] and not found:
                    raise
                log.error("%s", error)
                continue
        assert outcome is not None  # `follow` waits for Slurm
        if not isinstance(outcome, Placing) or task is None:
            return outcome
        found[task.name] = outcome
    return found if len(tasks) > 1 else next(iter(found.values()))


def report(
    *sweeps: str | Path, runs_dir: str | Path | None = None, out: str | Path | None = None
) -> WrittenReport:
    """Write tables, figures and one page from the finished cells, as `regbench report` does.

    Args:
        *sweeps: Names of sweeps, or paths of sweeps and single run directories. Several are merged
            into one report.
        runs_dir: The runs folder; None: $REGBENCH_RUNS_DIR, or "runs".
        out: Folder to write to; None: `report` in the first of the folders.

    Returns:
        The page's path, the leaderboard as text, all files written and what was left out.

    Raises:
        RegbenchError: If there is no readable record, or `out` cannot be written.
    """
    from regbench.benchmark.settings.runtime import Runtime
    from regbench.reports import write_report

    if not sweeps:
        raise RegbenchError("what shall be reported? Give names of sweeps or paths of folders")
    if "" in (runs_dir, out):
        raise RegbenchError("runs_dir or out is an empty path; give . for this folder")
    # `Runtime` reads the environment variable when it is made.
    runs = Path(Runtime().runs_dir if runs_dir is None else runs_dir)
    folders = [report_folder(runs, sweep) for sweep in sweeps]
    return write_report(folders, folders[0] / "report" if out is None else Path(out))


def load_records(*folders: str | Path) -> pd.DataFrame:
    """Read the scores of finished cells: a row for each record and score.

    Args:
        *folders: Folders of sweeps, sweeps or single run directories.

    Returns:
        Columns sweep, cell_id, label, method, seed, status, dataset, backbone, embedding_dim,
        batch_size, epochs, score, value, unit, split and protocol, then what leads back to the run
        (such as record, config and command), its cost with units in the names, and its environment.
        `attrs["skipped"]` names what is left out, and why.

    Raises:
        RegbenchError: If a folder does not exist, or no good record is found.
    """
    from regbench.reports.find.records import load_records as load

    return load([Path(folder) for folder in folders])


def executor(
    wait: Wait | None, say: Callable[[str], None] = log.info, announce: Announce | None = None
) -> Execute:
    """Return a function that runs cells: on this machine, or by Slurm if the grid is for that.

    Args:
        wait: Function that waits for cells that Slurm has; None: return when they are in the queue.
        say: Function that takes a line on what was submitted.
        announce: See `regbench.sweeps.local.run_sweep`.
    """

    def execute(grid: Sweep, stages: Sequence[str]) -> list[CellStatus] | None:
        if grid.scheduler == "slurm":
            from regbench.slurm import manage

            return manage.run_sweep(grid, stages, wait, say)
        from regbench.sweeps import local

        return local.run_sweep(grid, stages, announce)

    return execute


def report_folder(runs_dir: Path, sweep: str | Path) -> Path:
    """Return the folder of a sweep by its name, or what is given by its path: with a "/", or as
    a `Path`.
    """
    if isinstance(sweep, Path) or "/" in sweep:
        return Path(sweep)
    refuse_name("NAMES", sweep)
    return runs_dir / sweep


def _rows(grid: Sweep) -> pd.DataFrame:
    # The folder may hold cells of earlier calls, which are not asked for.
    return load_records(*(grid.folder / cell.id for cell in grid.cells))


def _overrides(overrides: str | Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Return all settings as overrides, as if those by keyword were written last."""
    from regbench.benchmark.settings.compose import PLUG_INS
    from regbench.benchmark.settings.sweep import line_of_overrides
    from regbench.wording import written

    given = line_of_overrides(overrides) if isinstance(overrides, str) else list(overrides)
    for key, value in settings.items():
        if not isinstance(value, Mapping):
            given.append(f"{key}={written(value)}")
            continue
        members = dict(value)
        if key in PLUG_INS and "name" in members:
            # The plug-in comes first, because it decides which members there are.
            given.append(f"{key}={written(members.pop('name'))}")
        for member, inner in members.items():
            given.append(f"{key}.{member}={written(inner)}")
    return given
