"""The command that shows a sweep as it runs: watch."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from pathlib import Path

import click

import regbench
from regbench.cli.group import main
from regbench.cli.options import runs_dir_option, started_sweep
from regbench.errors import RegbenchError

# Each look reads files of every cell, on a cluster over the network.
_LOOK_S = 2.0
# A report of thousands of cells takes longer than a look.
_REPORT_S = 30.0
_ON_THEIR_WAY = ("running", "queued", "pending", "interrupted", "preempted")


@main.command()
@started_sweep
@runs_dir_option
@click.option("--once", is_flag=True, help="Show it once, write the report, and return.")
def watch(name: str, runs_dir: Path, once: bool) -> None:
    """Show states and curves of a sweep's cells as they train.

    Keeps its report up to date. Looks every two seconds until all cells have ended; Ctrl-C leaves
    them alone. The report is written anew when cells have finished, at most every half a minute.
    Only what lies in the runs folder is read, so it works on any machine that sees it.
    """
    from rich.console import Console
    from rich.live import Live

    from regbench.slurm.manage import statuses, sweep_folder
    from regbench.sweeps.live import drawn
    from regbench.sweeps.status import FINISHED

    folder = sweep_folder(runs_dir, name)
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
        console.print(f"report: {page}", soft_wrap=True)


def _report(folder: Path) -> Path | None:
    """Write the report; None where there is nothing to report yet."""
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars would run over the table
        try:
            return regbench.report(folder).page
        except RegbenchError:
            return None
