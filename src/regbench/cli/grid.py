"""Commands that run a grid of cells, or say what it will take: sweep, tune, challenge, plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regbench.api import executor
from regbench.cli.completion import complete_sweep
from regbench.cli.group import main
from regbench.cli.jobs import show_until_ended
from regbench.cli.options import OVERRIDES_HELP, WHOLE_NUMBERS, overrides_and_runs_dir, positive
from regbench.cli.reporting import write_and_show_report
from regbench.errors import RegbenchError
from regbench.text import printable

if TYPE_CHECKING:
    from regbench.api import Wait
    from regbench.benchmark.settings.sweep import Sweep
    from regbench.sweeps.forecast import Planned
    from regbench.sweeps.status import Announce, CellStatus

_report_option = click.option(
    "--report/--no-report",
    default=False,
    help="Write the report at the end and print the leaderboard.",
)
_plan_option = click.option(
    "--plan", is_flag=True, help="Show the cells and what they will take; run nothing."
)
_wait_option = click.option(
    "--wait",
    is_flag=True,
    callback=lambda ctx, param, asked: show_until_ended if asked else None,
    help="With cluster=slurm: stay and show how the cells stand until the end.",
)


def grid_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take the options of a command that runs a grid: settings, --plan, --wait and --oversized."""
    oversized = click.option(
        "--oversized",
        is_flag=True,
        help="Run cells too that are predicted not to fit cluster.gpu_memory_gib.",
    )
    # The last decorator comes first in --help.
    return overrides_and_runs_dir(_plan_option(_wait_option(oversized(command))))


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", required=False, shell_complete=complete_sweep)
@grid_options
@_report_option
def sweep(
    name: str | None,
    overrides: Sequence[str],
    plan: bool,
    report: bool,
    wait: Wait | None,
    oversized: bool,
) -> None:
    """Run the grid NAME: a preset, or the path of a YAML file. Without NAME, list the presets.

    Finished cells are skipped, interrupted ones go on from their checkpoints, and a cell that fails
    does not stop the others. Values separated by commas multiply the cells: regbench sweep
    quickstart seed=0,1,2

    \b
    On a Slurm cluster each cell is a job, and the command returns when they are in the queue:
      regbench sweep in20_table2 cluster=slurm cluster.partition=gpu cluster.gpus=4 --plan
      regbench sweep in20_table2 cluster=slurm cluster.partition=gpu cluster.gpus=4
      regbench status in20_table2
    """
    from regbench.benchmark.settings.presets import sweep_names

    if name is None:
        for preset, description in sweep_names().items():
            click.echo(f"{preset:<18} {description}")
        return
    # Before the imports that composing cells takes: a reader sees at once what to expect.
    announce = None if plan else _show_expected(name, overrides)
    from regbench.benchmark.settings.sweep import load_sweep
    from regbench.sweeps.run import run_grid

    grid = load_sweep(name, overrides)
    if plan:
        show_plan(grid)
        return
    statuses = run_grid(grid, executor(wait, click.echo, announce), oversized=oversized)
    conclude(grid, statuses, report)


def _show_expected(name: str, overrides: Sequence[str]) -> Announce | None:
    """Print the shipped rows of a preset that has some, if the grid's cells are the preset's.

    Return what shows those of this machine beside them.
    """
    from regbench.tracks.expected import SHIPPED, ExpectedTable

    if name not in SHIPPED:
        return None
    for override in overrides:
        setting = override.partition("=")[0]
        # These do not decide what a configuration is.
        if setting != "seed" and not setting.startswith(("runtime.", "cluster")):
            return None
    table = ExpectedTable(SHIPPED[name])
    click.echo(f"What to expect:\n\n{table.text()}\n")
    # A log gets a line for each cell.
    return table.announce if sys.stderr.isatty() else None


def conclude(grid: Sweep, statuses: Sequence[CellStatus] | None, report: bool) -> None:
    """Write the report if that is asked for, and fail if cells did not finish."""
    from regbench.sweeps.run import refuse_unfinished

    ended = [status.state for status in statuses or ()]
    # The report comes first: one cell that failed must not hide the others.
    if report and ("done" in ended or "diverged" in ended):
        write_and_show_report(grid.name, runs_dir=grid.runtime.runs_dir)
    refuse_unfinished(statuses, grid)


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", shell_complete=complete_sweep)
@grid_options
@_report_option
@click.option(
    "--seeds",
    type=WHOLE_NUMBERS,
    help="Seeds of the final runs, separated by commas.  [default: the file's final_seeds, or the "
    "grid's]",
)
@click.option(
    "--trials",
    type=click.IntRange(1),
    help="Search instead of a grid: each method may train as many images as so many of its cells.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    help="Do each search so often, with other seeds and configurations: results then hold for its "
    "outcome too.",
)
def tune(
    name: str,
    overrides: Sequence[str],
    seeds: Sequence[int] | None,
    trials: int | None,
    repeats: int | None,
    plan: bool,
    report: bool,
    wait: Wait | None,
    oversized: bool,
) -> None:
    """Tune each method, then score the chosen on the test split.

    NAME is a sweep: a preset, or the path of a YAML file. Its cells are pretrained and scored on
    the tuning split, by weighted kNN or by its mean with linear probing
    (evaluation.select_by=[knn,probe]); the best of each method and setting is kept in
    tuning_choice.json with the runners-up; then the chosen are scored on the test split, which no
    run of a tuning can open before. Each step goes on where it was stopped: give the same command
    again.

    \b
      regbench tune quickstart_tuning --seeds 0,1,2 --report
      regbench tune mine.yaml cluster=slurm cluster.gpus=4
      regbench tune mine.yaml --trials 12                  search where each method says
      regbench tune mine.yaml --repeats 3                  three searches of each method
      regbench tune mine.yaml evaluation.select_on=test    tuned on the test split, as the paper
    """
    from regbench.benchmark.settings.runtime import STAGES
    from regbench.sweeps.run import proposals, refuse_final_seeds, run_tuning

    if plan:
        proposed = proposals(name, overrides, trials, repeats)()
        refuse_final_seeds(proposed, seeds)
        show_plan(proposed.sweep, STAGES[:2])
        if proposed.search is not None:
            click.echo(f"\nThis is what the search tries first; in all, {proposed.budget}.")
        return
    execute = executor(wait, click.echo)
    final = run_tuning(
        name,
        overrides,
        execute,
        click.echo,
        final_seeds=seeds,  # None leaves it to the sweep's file
        trials=trials,
        repeats=repeats,
        oversized=oversized,
    )
    if final is None:
        click.echo("when they have ended, the same command goes on")
        return
    conclude(final, execute(final, STAGES), report)


@main.command(epilog=OVERRIDES_HELP)
@click.argument("loss")
@overrides_and_runs_dir
@click.option(
    "--track",
    default="scenes",
    help="Rows to be placed among: scenes; latents: those of latent worlds; minute: a smoke test.",
)
@_plan_option
@_wait_option
@click.pass_context
def challenge(
    ctx: click.Context,
    loss: str,
    overrides: Sequence[str],
    track: str,
    plan: bool,
    wait: Wait | None,
) -> None:
    """Place a new loss among the rows of a track.

    LOSS is a file with a regularizer, or with a plain function or nn.Module of two embeddings:
    my_loss.py, or my_loss.py:NAME. Only this loss is trained: its weight and learning rate are
    searched with the budget that the others had, and the best gets their seeds. Two shipped cells
    are trained again, so that what this machine changes is in the intervals. The same command goes
    on where it was stopped. docs/challenge.md says what a verdict takes.

    \b
      regbench challenge my_loss.py --track minute    is it sound, and does it learn?
      regbench challenge my_loss.py --plan
      regbench challenge my_loss.py
      regbench challenge my_loss.py --track latents   worlds whose content is known
    """
    from regbench.tracks.challenge import prepared, tasks_of
    from regbench.tracks.placing import Placing, side_by_side
    from regbench.tracks.smoke import Smoke

    tasks, placings, failed = tasks_of(track), {}, False
    for task in tasks:
        if task is not None and len(tasks) > 1:
            click.echo(f"\n{task.name}")
        with prepared(loss, task, overrides) as begun:
            execute = executor(wait, click.echo)
            try:
                outcome = str(begun.plan()) if plan else begun.run(execute, click.echo)
            except RegbenchError as error:
                # A loss that has no place in one task may have one in the next.
                if task is tasks[-1]:
                    raise
                outcome, failed = str(error), True
        for line in str(outcome or "when they have ended, the same command goes on").split("\n"):
            click.echo(printable(line))
        if isinstance(outcome, Placing) and task is not None:
            placings[task.name] = outcome
    if len(placings) > 1:
        for line in ["", *side_by_side(placings).split("\n")]:
            click.echo(printable(line))
    failed = failed or (isinstance(outcome, Smoke) and not outcome.ok)
    ctx.exit(1 if failed else 0)


def show_plan(grid: Sweep, stages: Sequence[str] = ("final",)) -> list[Planned]:
    """Print the cells of a grid and what they will take to come through stages; return that."""
    from regbench.sweeps import forecast

    planned = forecast.plan(grid, stages)
    click.echo(forecast.table(planned))
    return planned


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", shell_complete=complete_sweep)
@overrides_and_runs_dir
@click.option(
    "--tell",
    type=float,
    callback=positive,
    metavar="POINTS",
    help="Also say how many seeds and searches find such a difference between rows.",
)
def plan(name: str, overrides: Sequence[str], tell: float | None) -> None:
    """Predict memory, FLOP and time of cells; run nothing.

    Memory of a GPU, FLOP, communication, disk and GPU hours of each cell of the sweep NAME. No GPU
    is needed: a training step runs on tensors without data. NAME may also be the first of the
    settings of a single run.

    \b
      regbench plan in100_table4 cluster=slurm cluster.gpus=8
      regbench plan method=vicreg dataset=in100 augmentation=imagenet network=resnet50 \\
          cluster.gpus=8
      regbench plan digits_search --tell 1        seeds and searches that find a point
    """
    from regbench.benchmark.settings.sweep import load_grid, load_sweep, read_rows
    from regbench.sweeps.search import mean_trials

    # No preset's name has an equals sign, but each setting of a single run has.
    single = "=" in name and not Path(name).exists()
    grid = load_grid([name, *overrides]) if single else load_sweep(name, overrides)
    planned = show_plan(grid)
    if tell is not None:
        from regbench.reports.rows.power import power_text

        trials = None if single else mean_trials(read_rows(name, overrides))
        click.echo(f"\n{power_text(planned, tell, trials)}")
