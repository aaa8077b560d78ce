"""The command that runs published recipes: reproduce."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from regbench.cli.completion import complete_recipe
from regbench.cli.group import main
from regbench.cli.jobs import watch
from regbench.cli.options import OVERRIDES_HELP, overrides_and_runs_dir
from regbench.cli.sweeps import (
    oversized_option,
    plan_option,
    show_plan,
    wait_option,
)


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", required=False, shell_complete=complete_recipe)
@overrides_and_runs_dir
@plan_option
@click.option("--show", is_flag=True, help="Print the table of what is finished; run nothing.")
@wait_option
@oversized_option
def reproduce(name: str | None, overrides: Sequence[str], plan: bool, show: bool, wait: bool, oversized: bool) -> None:
    r"""Run a published recipe, print ours beside its numbers.

    Without NAME, list the recipes. Finished cells are skipped and interrupted ones go on, as in `regbench sweep`. The
    table says what each published number is, whether the test set chose it, and where it stands; below it what is done
    otherwise than there.

    \b
      regbench reproduce lightly_cifar10 --plan
      regbench reproduce lightly_cifar10 seed=0,1,2 runtime.device=cuda
      regbench reproduce lightly_cifar10 seed=0,1,2 --show
    """
    from regbench.benchmark.settings.recipes import numbers_of
    from regbench.benchmark.settings.runtime import STAGES
    from regbench.benchmark.settings.sweep import load_sweep
    from regbench.slurm.bring import bring, prepare_grid
    from regbench.sweeps.forecast import refuse_oversized
    from regbench.sweeps.status import unfinished

    if name is None:
        _list()
        return
    numbers = numbers_of(name)
    grid = load_sweep(name, overrides)
    if plan:
        show_plan(grid)
        return
    missing = ""
    if not show:
        if not oversized:
            refuse_oversized(grid)
        prepare_grid(grid)
        statuses = bring(grid, STAGES, watch if wait else None, click.echo)
        missing = unfinished(statuses, grid.name, STAGES) if statuses is not None else ""
    _print(grid, numbers, overrides)
    if missing:
        raise click.ClickException(missing)


def _list() -> None:
    from tabulate import tabulate

    from regbench.benchmark.settings.recipes import recipes
    from regbench.benchmark.settings.sweep import load_sweep

    rows = []
    for name, description in recipes().items():
        datasets = {dataset.name: None for cell in load_sweep(name).cells for dataset in cell.datasets}
        rows.append([name, ", ".join(datasets), description])
    click.echo(tabulate(rows, headers=["recipe", "data sets", "what it is"], maxcolwidths=[None, None, 80]))
    click.echo("\nData sets are prepared by: regbench prepare NAME. Sources and deviations: docs/reproduce.md")


def _print(grid: Any, numbers: Sequence[Any], overrides: Sequence[str]) -> None:
    from tabulate import tabulate

    from regbench.benchmark.rundir.record import read_record
    from regbench.reports.tables.reproduced import MARK, reproduced

    folder = Path(grid.runtime.runs_dir) / grid.name
    records = [record for cell in grid.cells if (record := read_record(folder / cell.id))]
    rows = reproduced(numbers, records)
    widths = [30 if column in ("setting", "the published number", "source") else None for column in rows[0]]
    click.echo(tabulate(rows, headers="keys", disable_numparse=True, maxcolwidths=widths))
    notes = [f"{MARK} chosen on the test set, so optimistic. Ours chooses nothing there, and is of the last epoch."]
    notes = notes if any(MARK in row["published"] for row in rows) else []
    changed = [each for each in overrides if not each.startswith(("seed=", "runtime.", "cluster"))]
    if changed:
        notes.append(f"Ours is not the recipe, but with {' '.join(changed)}.")
    notes += [f"Otherwise than published: {line}" for line in grid.deviations]
    for note in notes:
        click.echo(textwrap.fill(note, 120, initial_indent="- ", subsequent_indent="  "))
