"""The command line: the only part that knows all others.

`group` holds the group and how errors end, the other modules a topic of commands each. A command imports what it needs
when it runs, so that `--help` is quick.
"""

from regbench.cli import (
    auditing,
    catalogue,
    data,
    jobs,
    machine,
    measuring,
    reporting,
    reproducing,
    runs,
    sharing,
    sweeps,
    watching,
)
from regbench.cli.group import main

__all__ = [
    "auditing",
    "catalogue",
    "data",
    "jobs",
    "machine",
    "main",
    "measuring",
    "reporting",
    "reproducing",
    "runs",
    "sharing",
    "sweeps",
    "watching",
]
