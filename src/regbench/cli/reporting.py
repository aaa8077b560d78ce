"""The command that writes reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import regbench
from regbench.api import report_folder
from regbench.cli.completion import complete_started
from regbench.cli.group import main
from regbench.cli.options import PathType, runs_dir_option
from regbench.text import printable


@main.command()
@click.argument("names", nargs=-1, shell_complete=complete_started)
@runs_dir_option
@click.option(
    "--out",
    type=PathType(file_okay=False),
    help="Folder to write to.  [default: RUNS_DIR/NAME/report]",
)
@click.option(
    "--check",
    is_flag=True,
    help="Verify the records against their schema and hashes; write nothing.",
)
@click.pass_context
def report(
    ctx: click.Context, /, names: Sequence[str], runs_dir: Path, check: bool, **options: Any
) -> None:
    """Make tables, figures and a page of finished cells.

    NAMES are sweeps (default: quickstart). A NAME with a '/' is the path of a folder: a sweep, or
    the directory of a single run.

    Safe at any time: cells that are not finished show as missing. Several sweeps are merged into
    one report.

    With --check, prints one line for each record, configuration, evaluation or choice that does not
    fit, and exits with 1 if there is any.
    """
    # The sweep that the README has a newcomer run.
    names = names or ["quickstart"]
    if check:
        from regbench.reports.find.check import check_records

        checked = check_records([report_folder(runs_dir, name) for name in names])
        click.echo(checked)
        ctx.exit(1 if checked.misfits else 0)
    write_and_show_report(*names, runs_dir=runs_dir, **options)


def write_and_show_report(*names: str, **options: Any) -> None:
    """Write the report of the sweeps and print its leaderboard.

    See `regbench.report` for the options.
    """
    result = regbench.report(*names, **options)
    click.echo(f"\n{result.leaderboard}\n\nreport: {printable(str(result.page))}")
    if result.warning:
        click.echo(printable(f"warning: {result.warning}"), err=True)
