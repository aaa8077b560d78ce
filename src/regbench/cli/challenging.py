"""The command that places a new loss among finished rows: challenge."""

from __future__ import annotations

from collections.abc import Sequence

import click

from regbench.cli.group import main
from regbench.cli.jobs import watch
from regbench.cli.options import OVERRIDES_HELP, overrides_and_runs_dir
from regbench.text import printable


@main.command(epilog=OVERRIDES_HELP)
@click.argument("loss")
@overrides_and_runs_dir
@click.option(
    "--track",
    default="scenes",
    show_default=True,
    help="Rows to be placed among; minute: a smoke test.",
)
@click.option("--plan", is_flag=True, help="Show what it will take; run nothing.")
@click.option(
    "--wait",
    is_flag=True,
    help="With cluster=slurm: stay and show how the cells stand until the end.",
)
@click.pass_context
def challenge(
    ctx: click.Context, loss: str, overrides: Sequence[str], track: str, plan: bool, wait: bool
) -> None:
    r"""Place a new loss among the rows of a track.

    LOSS is a file with a regularizer, or with a plain function or nn.Module of two embeddings:
    my_loss.py, or my_loss.py:NAME. Only this loss is trained: as many configurations as the others
    had, three seeds of the best, and further seeds while a verdict is open. Two shipped cells are
    trained again, so that what this machine changes is in the intervals. The same command goes on
    where it was stopped. docs/challenge.md says what a verdict takes.

    \b
      regbench challenge my_loss.py --track minute    is it sound, and does it learn?
      regbench challenge my_loss.py --plan
      regbench challenge my_loss.py
    """
    from regbench.tracks.challenge import prepared
    from regbench.tracks.smoke import Smoke

    with prepared(loss, track, overrides) as begun:
        live = watch if wait else None
        outcome = begun.plan() if plan else begun.run(live, click.echo)
    for line in str(outcome or "when they have ended, the same command goes on").split("\n"):
        click.echo(printable(line))
    ctx.exit(1 if isinstance(outcome, Smoke) and not outcome.ok else 0)
