"""The command that looks at the machine."""

from __future__ import annotations

import click

from regbench.cli.group import main


@main.command()
def doctor() -> None:
    """Say what this machine has and lacks, and how to get it.

    `make gpu` in a clone compares a GPU with the CPU and measures it.
    """
    from tabulate import tabulate

    from regbench.instruments.inventory import inventory

    rows = [(each.what, each.found, each.remedy) for each in inventory()]
    click.echo(tabulate(rows, ("", "found", "to have it"), disable_numparse=True))
