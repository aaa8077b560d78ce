"""The command line: the only part that knows all others.

`group` holds the group and how errors end, the other modules a topic of commands each. A command
imports what it needs when it runs, so that `--help` is quick.
"""

# Importing a topic adds its commands to the group.
from regbench.cli import (  # noqa: F401
    auditing,
    catalogue,
    data,
    grid,
    jobs,
    measuring,
    own,
    reporting,
    sharing,
    train,
)
from regbench.cli.group import main

__all__ = ["main"]
