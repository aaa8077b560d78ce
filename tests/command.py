"""The command line, in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from regbench.cli import main


def run(*words: object) -> Result:
    """Give a command, whose words may be paths and numbers."""
    return CliRunner().invoke(main, list(map(str, words)), prog_name="regbench")
