"""Commands that run a grid of cells, or say what it will take: sweep, tune, plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from regbench.cli.completion import complete_sweep
from regbench.cli.group import main
from regbench.cli.jobs import watch
from regbench.cli.options import OVERRIDES_HELP, overrides_and_runs_dir, positive, whole_numbers
from regbench.cli.reporting import write_and_show_report

plan_option = click.option("--plan", is_flag=True, help="Show the cells and what they will take; run nothing.")
wait_option = click.option(
    "--wait", is_flag=True, help="With cluster=slurm: stay and show how the cells stand until the end."
)
oversized_option = click.option(
    "--oversized", is_flag=True, help="Run cells too that are predicted not to fit cluster.gpu_memory_gib."
)


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", required=False, shell_complete=complete_sweep)
@overrides_and_runs_dir
@plan_option
@click.option("--report/--no-report", default=False, help="Write the report at the end and print the leaderboard.")
@wait_option
@oversized_option
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
    from regbench.benchmark.settings.sweep import load_sweep, sweep_names
    from regbench.slurm.bring import prepare_grid
    from regbench.sweeps.forecast import refuse_oversized
    from regbench.sweeps.tune import refuse_tuning

    if name is None:
        for preset, description in sweep_names().items():
            click.echo(f"{preset:<18} {description}")
        return
    grid = load_sweep(name, overrides)
    if plan:
        show_plan(grid)
        return
    refuse_tuning(grid)
    if not oversized:
        refuse_oversized(grid)
    prepare_grid(grid)
    _score(grid, wait, report)


def _score(grid: Any, wait: bool, report: bool) -> None:
    """Bring the cells of a grid to their records, and write the report if that is asked for."""
    from regbench.benchmark.settings.runtime import STAGES
    from regbench.slurm.bring import bring
    from regbench.sweeps.status import unfinished

    statuses = bring(grid, STAGES, watch if wait else None, click.echo)
    if statuses is None:
        return
    if report and any(status.state in ("done", "diverged") for status in statuses):
        write_and_show_report(grid.name, runs_dir=grid.runtime.runs_dir)
    if missing := unfinished(statuses, grid.name, STAGES):
        raise click.ClickException(missing)


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
    "--trials",
    type=click.IntRange(1),
    help="Search instead of a grid: each method may train as many images as so many of its cells.",
)
@click.option("--unequal-budgets", is_flag=True, help="Let methods choose from different numbers of configurations.")
@oversized_option
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
    oversized: bool,
    plan: bool,
    report: bool,
    wait: bool,
) -> None:
    r"""Tune each method, then score the chosen on the test split.

    NAME is a sweep: a preset, or the path of a YAML file. Its cells are pretrained and scored on the tuning split, by
    weighted kNN or by its mean with linear probing (evaluation.select_by=[knn,probe]); the best of each method and
    setting is kept in tuning_choice.json with the runners-up; then the chosen are scored on the test split, which no
    run of a tuning can open before. Each step goes on where it was stopped: give the same command again.

    \b
      regbench tune quickstart_tuning --seeds 0,1,2 --report
      regbench tune mine.yaml cluster=slurm cluster.gpus=4
      regbench tune mine.yaml --trials 12                  search where each method says (regbench methods NAME)
      regbench tune mine.yaml evaluation.select_on=test    the paper's second variant: tuned on the test split
    """
    from regbench.slurm.bring import Unfinished, bring_tuning, proposals

    final_seeds = whole_numbers("seeds", seeds) if seeds is not None else None
    if plan:
        proposed = proposals(name, overrides, trials)()
        show_plan(proposed.sweep)
        if proposed.search is not None:
            trials = proposed.search["trials"]
            click.echo(
                f"\nThis is what the search tries first; in all, each method gets the images of {trials} trainings."
            )
        return
    options: dict[str, Any] = {"leading": leading, "trials": trials}
    options |= {"unequal": unequal_budgets, "oversized": oversized}
    try:
        final = bring_tuning(name, overrides, watch if wait else None, click.echo, final_seeds=final_seeds, **options)
    except Unfinished as error:
        raise click.ClickException(str(error)) from error
    if final is None:
        click.echo("when they have ended, the same command goes on")
        return
    _score(final, wait, report)


def show_plan(grid: Any) -> None:
    """Print the cells of a grid and what they will take."""
    from tabulate import tabulate

    from regbench.sweeps import forecast as planning

    planned = planning.plan(grid)
    click.echo(tabulate(list(planning.rows(planned)), headers="keys", disable_numparse=True))
    click.echo(f"\n{planning.summary(planned)}")


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
    r"""Predict memory, FLOP and time of cells; run nothing.

    Memory of a GPU, FLOP, communication, disk and GPU hours of each cell of the sweep NAME. No GPU is needed: a
    training step runs on tensors without data. NAME may also be the first of the settings of a single run.

    \b
      regbench plan in100_table4 cluster=slurm cluster.gpus=8
      regbench plan method=vicreg dataset=in100 augmentation=imagenet network=resnet50 cluster.gpus=8 --fits 32
    """
    from regbench.benchmark.settings.sweep import load_grid, load_sweep
    from regbench.instruments.plan import savings as measure_savings
    from regbench.instruments.plan import table
    from regbench.sweeps.forecast import GPU_SHARE, largest_fitting

    grid = load_grid([name, *overrides]) if "=" in name else load_sweep(name, overrides)
    show_plan(grid)
    cell, processes = grid.cells[0], grid.clusters[0].at("pretrain").processes
    if fits is not None:
        symbols = {"batch_size": "n", "embedding_dim": "q"}
        for what, size in largest_fitting(grid, fits).items():
            where = f"{symbols[what]} in {100 * GPU_SHARE:g} % of {fits:g} GiB"
            click.echo(f"{cell.label}: largest power of two for {where}: {size or 'none'}")
    if savings:
        click.echo(f"\n{cell.label}, {processes} GPUs, decimal GB a GPU:\n")
        click.echo(table(measure_savings(cell, world_size=processes)))
