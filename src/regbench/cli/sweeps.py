"""Commands that run a grid of cells, or say what it will take: sweep, tune, plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regbench import RegbenchError
from regbench.cli.completion import complete_sweep
from regbench.cli.data import prepare_for
from regbench.cli.group import main
from regbench.cli.jobs import watch_sweep
from regbench.cli.options import OVERRIDES_HELP, overrides_and_runs_dir, positive, whole_numbers
from regbench.cli.reporting import write_and_show_report

if TYPE_CHECKING:
    from regbench.benchmark.rundir.record import TuningChoice


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", required=False, shell_complete=complete_sweep)
@overrides_and_runs_dir
@click.option("--plan", is_flag=True, help="Show the cells and what they will take; run nothing.")
@click.option("--report/--no-report", default=False, help="Write the report at the end and print the leaderboard.")
@click.option("--wait", is_flag=True, help="With cluster=slurm: stay and show how the cells stand until the end.")
@click.option("--oversized", is_flag=True, help="Run cells too that are predicted not to fit cluster.gpu_memory_gib.")
def sweep(name: str | None, overrides: Sequence[str], plan: bool, report: bool, wait: bool, oversized: bool) -> None:
    r"""Run the grid NAME: a preset, or the path of a YAML file. Without NAME, list the presets.

    Finished cells are skipped, interrupted ones go on from their checkpoints, and a cell that fails does not stop the
    others. Values separated by commas multiply the cells: regbench sweep quickstart seed=0,1,2

    \b
    On a Slurm cluster each cell is a job, and the command returns when they are in the queue:
      regbench sweep in20_table2 cluster=slurm cluster.partition=gpu cluster.gpus=4 --plan
      regbench sweep in20_table2 cluster=slurm cluster.partition=gpu cluster.gpus=4
      regbench status in20_table2
    """
    from regbench.benchmark.settings.config import STAGES, load_sweep, sweep_names

    if name is None:
        for preset, description in sweep_names().items():
            click.echo(f"{preset:<16} {description}")
        return
    grid = load_sweep(name, overrides)
    folder = Path(grid.runtime.runs_dir) / grid.name
    if plan:
        _show_plan(grid)
        return
    if any(cluster.gpu_memory_gib for cluster in grid.clusters) and not oversized:
        _refuse_oversized(grid)
    prepare_for(grid.cells, grid.runtime.data_dir)
    statuses = _run(grid, folder, STAGES, wait)
    if statuses is None:
        return
    if report and any(status.state in ("done", "diverged") for status in statuses):
        write_and_show_report([folder], folder / "report")
    _refuse_unfinished(statuses, grid.name, STAGES)


def _run(grid: Any, folder: Path, stages: Sequence[str], wait: bool) -> list[Any] | None:
    """Brings the cells through the stages and says how they stand; None if they are in Slurm's hands."""
    if grid.scheduler == "slurm":
        from regbench.slurm.manage import statuses
        from regbench.slurm.status import ends

        _submit(grid, stages)
        cells = {cell.id for cell in grid.cells}
        found = (
            watch_sweep(folder, cells) if wait else [status for status in statuses(folder) if status.cell_id in cells]
        )
        return found if wait or all(status.state in ends(stages) for status in found) else None
    from regbench.slurm.local import run_sweep

    return run_sweep(grid, stages)


def _refuse_unfinished(statuses: Sequence[Any], name: str, stages: Sequence[str]) -> None:
    from regbench.slurm.status import ends

    unfinished = [status for status in statuses if status.state not in ends(stages)]
    if unfinished:
        raise click.ClickException(
            f"{len(unfinished)} of {len(statuses)} cells are not finished: "
            + "; ".join(f"{status.label} seed {status.seed} {status.state}" for status in unfinished[:10])
            + "; …" * (len(unfinished) > 10)
            + f". Details: regbench status {name}; the same command tries them again"
        )


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", shell_complete=complete_sweep)
@overrides_and_runs_dir
@click.option(
    "--seeds", help="Of the final runs, separated by commas.  [default: the file's final_seeds, or the grid's]"
)
@click.option(
    "--leading", type=click.IntRange(1), help="Only so many methods, the best on the tuning split, get all of them."
)
@click.option(
    "--trials", type=click.IntRange(2), help="Let Optuna's TPE sampler propose so many configurations a method."
)
@click.option("--unequal-budgets", is_flag=True, help="Let methods choose from different numbers of configurations.")
@click.option("--plan", is_flag=True, help="Show the cells of the grid and what they will take; run nothing.")
@click.option("--report/--no-report", default=False, help="Write the report at the end and print the leaderboard.")
@click.option("--wait", is_flag=True, help="With cluster=slurm: stay until the end.")
def tune(
    name: str,
    overrides: Sequence[str],
    seeds: str | None,
    leading: int | None,
    trials: int | None,
    unequal_budgets: bool,
    plan: bool,
    report: bool,
    wait: bool,
) -> None:
    r"""Choose each method's hyperparameters on the tuning split, then score the chosen once on the test split.

    NAME is a sweep: a preset, or the path of a YAML file. Its cells are pretrained and scored on the tuning split, by
    weighted kNN or by its mean with linear probing (evaluation.select_by=[knn,probe]); the best of each method and
    setting is kept in choice.json with the runners-up; then the chosen are scored on the test split, which no run of a
    tuning can open before. Each step goes on where it was stopped: give the same command again.

    \b
      regbench tune quickstart_tuning --seeds 0,1,2 --report
      regbench tune mine.yaml cluster=slurm cluster.gpus=4
      regbench tune mine.yaml --trials 16                  values a,b,c or interval(a,b) in the file are the space
      regbench tune mine.yaml evaluation.select_on=test    the paper's second variant: tuned on the test split
    """
    from dataclasses import replace

    final_seeds = _seeds(seeds) if seeds is not None else None
    from regbench.benchmark.settings.config import STAGES, load_sweep
    from regbench.slurm import tune as tuning

    def proposed() -> tuple[Any, bool]:
        if trials is None:
            return load_sweep(name, overrides), True
        from regbench.slurm.search import propose

        return propose(name, overrides, trials)

    grid, complete = proposed()
    if plan:
        _show_plan(grid)
        return
    folder = Path(grid.runtime.runs_dir) / grid.name
    prepare_for(grid.cells, grid.runtime.data_dir)
    while not (folder / "choice.json").exists():
        tuning.begin(grid.cells, folder, Path(grid.runtime.data_dir), unequal=unequal_budgets)
        statuses = _run(grid, folder, ("pretrain", "tune"), wait)
        if statuses is None:
            click.echo("when they have ended, the same command goes on")
            return
        _refuse_unfinished(statuses, grid.name, ("pretrain", "tune"))
        if complete:
            break
        grid, complete = proposed()
    choice = tuning.choose(folder)
    _show_choice(choice)
    cells = tuning.final_cells(choice, folder, grid.final_seeds if final_seeds is None else final_seeds, leading)
    clusters = {cell.id: cluster for cell, cluster in zip(grid.cells, grid.clusters, strict=True)}
    final = replace(grid, cells=tuple(cells), clusters=tuple(clusters.get(cell.id, grid.clusters[0]) for cell in cells))
    statuses = _run(final, folder, STAGES, wait)
    if statuses is None:
        return
    if report:
        write_and_show_report([folder], folder / "report")
    _refuse_unfinished(statuses, grid.name, STAGES)


def _seeds(text: str) -> list[int]:
    from regbench.benchmark.settings.config import RANGES, Cell

    seeds, allowed = whole_numbers("seeds", text), RANGES[Cell]["seed"]
    for seed in seeds:
        if seed not in allowed:
            raise RegbenchError(f"--seeds: {seed} must be {allowed}")
        if seeds.count(seed) > 1:
            raise RegbenchError(f"--seeds names {seed} twice; each seed is one run")
    return seeds


def _show_choice(choice: TuningChoice) -> None:
    from tabulate import tabulate

    split, budget = choice.selected_on, choice.budget
    rows = []
    for entry in choice.choices:
        best, *others = entry.ranking
        runner_up = others[0].value if others else None
        varied = [
            f"{key.removeprefix('method.')}={value}"
            for key, value in best.hyperparameters.items()
            if any(other.hyperparameters.get(key) != value for other in others)
        ]
        shown = [f"{value:.2f}" if value is not None else "–" for value in (best.value, runner_up)]
        q = entry.setting["embedding_dim"]
        rows.append([entry.label, q, *shown, len(entry.ranking), ", ".join(varied)])
    headers = ["method", "q", f"{choice.score} (%), {split}", "runner-up", "tried", "chosen"]
    table = tabulate(rows, headers=headers, disable_numparse=True)
    click.echo(f"\n{table}\n\nchosen on the {split} split from at most {budget} configurations a method\n")


def _show_plan(grid: Any) -> None:
    from tabulate import tabulate

    from regbench.slurm import plan as planning

    planned = planning.plan(grid, progress=sys.stderr.isatty())
    click.echo(tabulate(list(planning.rows(planned)), headers="keys", disable_numparse=True))
    click.echo(f"\n{planning.summary(planned)}")


def _refuse_oversized(grid: Any) -> None:
    from regbench.slurm import plan as planning

    planned = planning.plan(grid, progress=sys.stderr.isatty())
    misfits = [entry for entry in planned if entry.fits is False and not entry.done]
    if misfits:
        first = misfits[0]
        assert first.needs is not None
        raise RegbenchError(
            f"{len(misfits)} cells are predicted not to fit a GPU, such as {first.cell.label} with q="
            f"{first.cell.embedding_dim} and {first.cell.batch_size // first.gpus} images a GPU: "
            f"{first.needs.peak_bytes / 1e9:.1f} GB. See them with --plan; run them all the same with --oversized"
        )


def _submit(grid: Any, stages: Sequence[str]) -> None:
    from regbench.slurm import plan as planning
    from regbench.slurm.manage import submit_sweep

    click.echo(planning.summary(planning.plan(grid, progress=sys.stderr.isatty())))
    count, arrays = submit_sweep(grid, stages)
    click.echo(
        (f"submitted {count} cells as {', '.join(arrays)}" if count else "all cells are finished, run or wait")
        + f"; see: regbench status {grid.name}"
    )


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", shell_complete=complete_sweep)
@overrides_and_runs_dir
@click.option(
    "--fits",
    type=float,
    callback=positive,
    metavar="GIB",
    help="Also find the largest batch size and q that fit such a GPU.",
)
@click.option("--savings", is_flag=True, help="Also show what each way of saving memory brings, for the first cell.")
def plan(name: str, overrides: Sequence[str], fits: float | None, savings: bool) -> None:
    r"""Predict what the cells of the sweep NAME need: memory of a GPU, FLOP, communication, disk, GPU hours.

    No GPU is needed: a training step runs on tensors without data. NAME may also be the first of the settings of a
    single run.

    \b
      regbench plan in100_table4 cluster=slurm cluster.gpus=8
      regbench plan method=vicreg dataset=in100 augmentation=imagenet network=resnet50 cluster.gpus=8 --fits 32
    """
    from regbench.benchmark.plan import largest, table
    from regbench.benchmark.plan import savings as measure_savings
    from regbench.benchmark.settings.config import load_grid, load_sweep

    grid = load_grid([name, *overrides]) if "=" in name else load_sweep(name, overrides)
    _show_plan(grid)
    cell, cluster, runtime = grid.cells[0], grid.clusters[0], grid.runtime
    if fits is not None:
        switches: dict[str, Any] = {"world_size": cluster.processes, "loss_form": runtime.loss_form}
        switches["shard_optimizer"] = runtime.shard_optimizer and cluster.processes > 1
        for what, setting in (("batch_size", "n"), ("embedding_dim", "q")):
            found = largest(cell, int(0.9 * fits * 2**30), what, **switches)
            click.echo(f"{cell.label}: largest power of two for {setting} in 90 % of {fits:g} GiB: {found or 'none'}")
    if savings:
        click.echo(f"\n{cell.label}, {cluster.processes} GPUs, decimal GB a GPU:\n")
        click.echo(table(measure_savings(cell, world_size=cluster.processes)))
