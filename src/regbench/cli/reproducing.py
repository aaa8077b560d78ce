"""The command that runs published recipes: reproduce."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from regbench.cli.grid import grid_options, show_plan
from regbench.cli.group import main
from regbench.cli.options import OVERRIDES_HELP

if TYPE_CHECKING:
    from regbench.api import Wait
    from regbench.benchmark.settings.recipes import PublishedNumber
    from regbench.benchmark.settings.sweep import Sweep


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", required=False)
@grid_options
@click.option("--show", is_flag=True, help="Print the table of what is finished; run nothing.")
def reproduce(
    name: str | None,
    overrides: Sequence[str],
    plan: bool,
    show: bool,
    wait: Wait | None,
    oversized: bool,
) -> None:
    r"""Run a published recipe, print ours beside its numbers.

    Without NAME, list the recipes. Finished cells are skipped and interrupted ones go on, as in
    `regbench sweep`. The table says what each published number is, whether the test set chose it,
    and where it stands; below it what is done otherwise than there.

    \b
      regbench reproduce lightly_cifar10 --plan
      regbench reproduce lightly_cifar10 seed=0,1,2 runtime.device=cuda
      regbench reproduce lightly_cifar10 seed=0,1,2 --show
    """
    from regbench.api import executor
    from regbench.benchmark.settings.recipes import numbers_of
    from regbench.benchmark.settings.sweep import load_sweep
    from regbench.sweeps.run import refuse_unfinished, run_grid

    if name is None:
        _list_recipes()
        return
    numbers = numbers_of(name)
    grid = load_sweep(name, overrides)
    if plan:
        show_plan(grid)
        return
    statuses = None
    if not show:
        execute = executor(wait, click.echo)
        statuses = run_grid(grid, execute, oversized=oversized)
    # The table comes first: it shows the cells that did finish.
    _print_comparison(grid, numbers, overrides)
    refuse_unfinished(statuses, grid)


def _list_recipes() -> None:
    from tabulate import tabulate

    from regbench.benchmark.settings.recipes import recipes
    from regbench.benchmark.settings.sweep import load_sweep

    rows = []
    for name, description in recipes().items():
        datasets: dict[str, None] = {}
        for cell in load_sweep(name).cells:
            datasets |= dict.fromkeys(dataset.name for dataset in cell.datasets)
        rows.append([name, ", ".join(datasets), description])
    click.echo(
        tabulate(rows, headers=["recipe", "data sets", "what it is"], maxcolwidths=[None, None, 80])
    )
    click.echo(
        "\nData sets are prepared by: regbench prepare NAME. Sources and deviations: "
        "docs/reproduce.md"
    )


def _print_comparison(
    grid: Sweep, numbers: Sequence[PublishedNumber], overrides: Sequence[str]
) -> None:
    """Print ours beside the published numbers, and below them what is done otherwise."""
    from tabulate import tabulate

    from regbench.benchmark.rundir.record import read_record
    from regbench.reports.tables.reproduced import MARK, reproduced

    folder = Path(grid.runtime.runs_dir) / grid.name
    records = []
    for cell in grid.cells:
        record = read_record(folder / cell.id)
        if record is not None:
            records.append(record)
    rows = reproduced(numbers, records)
    # Long texts are wrapped, so that the numbers fit a terminal.
    widths = [
        30 if column in ("setting", "the published number", "source") else None
        for column in rows[0]
    ]
    click.echo(tabulate(rows, headers="keys", disable_numparse=True, maxcolwidths=widths))
    notes = []
    if any(MARK in row["published"] for row in rows):
        notes.append(
            f"{MARK} chosen on the test set, so optimistic. Ours chooses nothing there, and is of "
            "the last epoch."
        )
    # Another seed or machine is the same recipe.
    changed = [each for each in overrides if not each.startswith(("seed=", "runtime.", "cluster"))]
    if changed:
        notes.append(f"Ours is not the recipe, but with {' '.join(changed)}.")
    for line in grid.deviations:
        notes.append(f"Otherwise than published: {line}")
    for note in notes:
        click.echo(textwrap.fill(note, 120, initial_indent="- ", subsequent_indent="  "))
