"""Commands for a sweep that was started: status, watch, retry, cancel, logs, clean."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

import regbench
from regbench.cli.completion import complete_cell, complete_started
from regbench.cli.group import main
from regbench.cli.options import cells_argument, of_started_sweep, runs_dir_option
from regbench.errors import RegbenchError
from regbench.text import counted

if TYPE_CHECKING:
    from regbench.sweeps.status import CellStatus


# Each look reads files of every cell, on a cluster over the network.
_LOOK_S = 2.0
# A report of thousands of cells takes longer than a look.
_REPORT_S = 30.0
_ON_THEIR_WAY = ("running", "queued", "pending", "interrupted", "preempted")


@main.command()
@click.argument("name", required=False, shell_complete=complete_started)
@runs_dir_option
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="List all cells, also when there are more than a hundred.",
)
def status(name: str | None, runs_dir: Path, everything: bool) -> None:
    """Show how the cells of a sweep stand.

    Without NAME, a line for each sweep. What the run directories say counts first, and what Slurm
    says of the jobs after that: it works on any machine that sees the folder, also without Slurm.
    `regbench watch NAME` follows it.
    """
    from regbench.slurm.manage import statuses
    from regbench.sweeps.status import counts, status_table, sweep_folder, sweep_folders

    if name is None:
        folders = sweep_folders(runs_dir)
        if not folders:
            raise RegbenchError(f"no sweep in {runs_dir}; start one: regbench sweep quickstart")
        for folder in folders:
            try:
                click.echo(f"{folder.name}: {counts(statuses(folder))}")
            except RegbenchError as error:  # one that is damaged hides no other
                click.echo(f"{folder.name}: {error}")
        return
    click.echo(status_table(statuses(sweep_folder(runs_dir, name)), everything=everything))


def show_until_ended(folder: Path) -> list[CellStatus]:
    """Show how a sweep stands until none of its cells runs or waits; return how they stand then."""
    from regbench.slurm.manage import poll
    from regbench.sweeps.status import counts, status_table

    last = ""
    found: list[CellStatus] = []
    for found in poll(folder):
        table = status_table(found)
        if sys.stdout.isatty():
            click.clear()
            click.echo(f"{folder.name}\n\n{table}\n\nCtrl-C leaves the jobs alone")
        elif table != last:  # a log of the output stays short
            click.echo(f"{folder.name}: {counts(found)}")
        last = table
    return found


@main.command()
@of_started_sweep
@click.option("--once", is_flag=True, help="Show it once, write the report, and return.")
def watch(folder: Path, once: bool) -> None:
    """Show states and curves of a sweep's cells as they train.

    Keeps its report up to date. Looks every two seconds until all cells have ended; Ctrl-C leaves
    them alone. The report is written anew when cells have finished, at most every half a minute.
    Only what lies in the runs folder is read, so it works on any machine that sees it.
    """
    from rich.console import Console
    from rich.live import Live

    from regbench.slurm.manage import statuses
    from regbench.sweeps.status import FINISHED
    from regbench.sweeps.watch import drawn

    # A log has no width, and tables would be cut to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 160)
    reported: set[str] = set()
    # The first report does not wait.
    written_s, page = -_REPORT_S, None
    with contextlib.ExitStack() as stack:
        live = None
        if console.is_terminal and not once:
            live = stack.enter_context(Live(console=console, auto_refresh=False, screen=True))
        while True:
            found = statuses(folder)
            ended = once or all(status.state not in _ON_THEIR_WAY for status in found)
            finished = {status.cell_id for status in found if status.state in FINISHED}
            if finished != reported and (ended or time.monotonic() - written_s >= _REPORT_S):
                page, reported, written_s = _report(folder), finished, time.monotonic()
            if live is not None:
                live.update(drawn(found, max(5, console.height - 8)), refresh=True)
            if ended:
                break
            time.sleep(_LOOK_S)
    console.print(drawn(found, len(found)))
    if page is not None:
        console.print(f"report: {page}", soft_wrap=True, markup=False)


def _report(folder: Path) -> Path | None:
    """Write the report; None where there is nothing to report yet."""
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars would run over the table
        try:
            return regbench.report(folder).page
        except RegbenchError:
            return None


@main.command()
@of_started_sweep
@cells_argument
def retry(folder: Path, cells: Sequence[str]) -> None:
    """Submit failed, lost and interrupted cells again.

    All of the sweep NAME, or CELLS (ids or their beginnings). They go on from their checkpoints.
    Finished cells, and those that run or wait, are left alone; jobs that Slurm holds after a failed
    launch are released.
    """
    from regbench.slurm import manage

    for line in manage.retry(folder, cells):
        click.echo(line)


@main.command()
@of_started_sweep
@cells_argument
def cancel(folder: Path, cells: Sequence[str]) -> None:
    """Cancel the jobs of NAME, or of its CELLS. Those that run write a checkpoint first.

    `retry` resumes them.
    """
    from regbench.slurm.manage import cancel_cells

    cancelled = cancel_cells(folder, cells)
    for status in cancelled:
        click.echo(f"{status}: was {status.state}")
    click.echo(f"cancelled {counted(len(cancelled), 'cell')}")


@main.command()
@of_started_sweep
@click.argument("cell", shell_complete=complete_cell)
@click.option("--lines", type=click.IntRange(0), default=40, help="From the end; 0: all.")
def logs(folder: Path, cell: str, lines: int) -> None:
    """Show the newest log of a cell.

    CELL is its id, or the beginning of it, in the sweep NAME.
    """
    from regbench.slurm.manage import find_log

    path = find_log(folder, cell)
    click.echo(f"{path}:", err=True)  # not in what a pipe gets
    # With 0 the slice begins at the first line.
    click.echo("\n".join(path.read_text(errors="replace").splitlines()[-lines:]))


@main.command()
@of_started_sweep
@click.option(
    "--checkpoints", is_flag=True, help="Remove the trained weights of finished cells too."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def clean(folder: Path, checkpoints: bool, dry_run: bool) -> None:
    """Remove what finished cells do not need any more.

    Older and damaged checkpoints, and leftovers of kills, of the sweep NAME. Records, curves, logs
    and the last checkpoints stay.
    """
    from regbench.sweeps.clean import clean_folder

    files, size_bytes = clean_folder(folder, checkpoints=checkpoints, dry_run=dry_run)
    done = "would remove" if dry_run else "removed"
    click.echo(f"{done} {files} files, {size_bytes / 1e9:.3g} GB")
