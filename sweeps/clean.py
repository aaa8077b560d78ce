"""Remove what the finished cells of a sweep no longer need."""

from __future__ import annotations

import logging
from pathlib import Path

from regbench.benchmark.rundir.directory import superfluous_files
from regbench.benchmark.rundir.record import read_tuned
from regbench.benchmark.rundir.tuning_choice import read_choice
from regbench.benchmark.settings.identity import configuration_id
from regbench.errors import RegbenchError
from regbench.sweeps.status import FINISHED, sweep_status

log = logging.getLogger("regbench")


def clean_folder(folder: Path, *, checkpoints: bool, dry_run: bool) -> tuple[int, int]:
    """Remove what finished cells no longer need: all checkpoints but the last, damaged ones,
    leftovers of attempts.

    `checkpoints` also removes the last ones, which are the trained weights, except where a tuning
    has chosen a cell to be scored, or may yet do so; `dry_run` only counts.

    Returns:
        The number of files, and their bytes in all.
    """
    found: list[Path] = []
    for status in sweep_status(folder):
        if status.state not in FINISHED:
            continue
        try:
            is_needed = status.state == "tuned" and _may_be_scored(status.directory)
            unused = checkpoints and not is_needed
            found += superfluous_files(status.directory, checkpoints=unused)
        except RegbenchError as error:  # a damaged record does not say what is needed
            log.warning("%s", error)
    size_bytes = sum(path.stat().st_size for path in found)
    if not dry_run:
        for path in found:
            path.unlink(missing_ok=True)
    return len(found), size_bytes


def _may_be_scored(directory: Path) -> bool:
    """Return True if a tuned cell may get scores of the test split."""
    choice, record = read_choice(directory.parent), read_tuned(directory)
    if choice is None or record is None:
        return True
    return choice.find(configuration_id(record.cell), record.seed) is not None
