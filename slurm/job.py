"""What a submitted job runs."""

from __future__ import annotations

import logging
import signal
from typing import Any

from regbench.benchmark.config import Cell, Runtime


def _log_to_file() -> None:
    # submitit keeps a job's output in a file; its own handlers would give each line twice.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)


def run_local_job(cell: dict[str, Any], runtime: Runtime, sweep: str) -> None:
    """Runs one cell on this machine; SIGTERM writes a checkpoint and ends it."""
    from regbench.benchmark.interruption import Interruption  # slow to import, and only jobs need it
    from regbench.benchmark.run import run_cell

    _log_to_file()
    interruption = Interruption()
    with interruption.listening(signal.SIGTERM):
        run_cell(Cell.from_dict(cell), runtime, sweep, interruption=interruption)
