"""A search on a real Slurm cluster, whose command is killed at random moments."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.rundir.record import Record
from regbench.benchmark.rundir.tuning_choice import read_choice
from tests.slurm.testbed import Testbed, wait_for
from tests.slurm.user import User

pytestmark = pytest.mark.slurm

TUNE = ("tune", "own.yaml", "--trials", "3")
ON_SLURM = (*TUNE, "cluster=slurm", "cluster.cpus=1", "cluster.gpus=0", "--wait")
CELLS = 7  # four configurations for an epoch, two of them for two, one for four


def _is_due(tuning: subprocess.Popen[bytes], sweep: Path, cells: int) -> bool:
    """Whether so many cells have their score, or the command has ended."""
    return tuning.poll() is not None or len(list(sweep.glob("*/tuning.json"))) >= cells


def test_a_search_that_is_killed_chooses_what_an_undisturbed_one_chooses(
    slurm: Testbed, program: str, tiny: list[str], tmp_path: Path
) -> None:
    """The undisturbed one runs without Slurm: where the cells run decides nothing."""
    user = User(slurm, program, tiny, tmp_path)
    user.write("epochs=4 method=tcr optimizer.base_lr=1 evaluation.protocols=[knn]")
    user.run(*TUNE, "--runs-dir", str(tmp_path / "undisturbed"))
    moments = sorted(random.sample(range(CELLS), 3))
    print(f"killed after {moments} of the cells")  # shown if the test fails
    for moment in moments:
        with (tmp_path / "said").open("ab") as said:
            how: Any = {"stdout": said, "stderr": said, "start_new_session": True}
            how |= {"cwd": tmp_path, "env": user.environment}
            tuning = subprocess.Popen([program, *ON_SLURM], **how)
        try:
            wait_for(partial(_is_due, tuning, user.sweep, moment), f"{moment} cells", seconds=300)
            time.sleep(2 * random.random())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tuning.pid, signal.SIGKILL)
            tuning.wait()
    user.run(*ON_SLURM)
    disturbed, undisturbed = read_choice(user.sweep), read_choice(tmp_path / "undisturbed" / "own")
    assert disturbed is not None and undisturbed is not None
    assert disturbed.choices == undisturbed.choices
    tuned = [Record.read(path) for path in user.sweep.glob("*/tuning.json")]
    assert [len(record.attempts) for record in tuned] == [1] * CELLS, "nothing is trained twice"
