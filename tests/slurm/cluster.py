"""A sweep on a real Slurm cluster whose cells train slowly until their faults have come."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.rundir.lease import read_attempts
from regbench.benchmark.rundir.record import Record, read_record
from regbench.slurm import manage
from regbench.sweeps.status import CellStatus
from tests.history import untimed
from tests.plugin import install
from tests.slurm.testbed import Testbed
from tests.slurm.user import OPTIONS, User
from tests.there import there

# What is loaded with the methods in the jobs. A step takes a second, later eight, until the test
# lets its job go. However fast the machine or slow the test, a cell is still at work when its fault
# comes, and reacts to signals all the same. A job whose rank has a file `<job>-<rank>` fails.
PACE = """
import os
import time
from pathlib import Path

from regbench.methods.vicreg import VICReg

JOB = "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}" if "SLURM_ARRAY_JOB_ID" in os.environ else "{SLURM_JOB_ID}"
whole = VICReg.value_and_gradient
steps = 0

def paced(*args):
    global steps
    steps += 1
    if "SLURM_JOB_ID" in os.environ:
        job = Path(__file__).with_name(JOB.format_map(os.environ))
        if not job.exists():
            time.sleep(1 if steps < 30 else 8)
        if job.with_name(f"{job.name}-{os.environ['SLURM_PROCID']}").exists():
            raise ValueError("a made-up error")
    return whole(*args)

VICReg.value_and_gradient = paced
"""


class Cluster(User):
    """A user whose cells all train for as many epochs, and the cluster to disturb."""

    def __init__(self, slurm: Testbed, program: str, tiny: list[str], folder: Path) -> None:
        super().__init__(slurm, program, tiny, folder)
        self.slurm, self.epochs = slurm, 60
        self.pace = folder / "pace"
        self.environment["PYTHONPATH"] = install(self.pace, "pace", PACE)

    def hurry(self, job: str) -> None:
        """Lets a job train at full speed."""
        (self.pace / job).touch()

    def fail(self, job: str, rank: int) -> None:
        """Lets the next step of one process of a job raise an error."""
        (self.pace / f"{job}-{rank}").touch()

    def write(self, *cells: str) -> None:
        super().write(*(f"epochs={self.epochs} {cell}" for cell in cells))

    def submit(self, *options: str) -> str:
        return self.run("sweep", "own.yaml", *OPTIONS, *options)

    def statuses(self) -> list[CellStatus]:
        return manage.statuses(self.sweep)

    def requeue(self, status: CellStatus) -> None:
        with contextlib.suppress(RuntimeError):  # another fault has done it this very moment
            self.slurm.command("scontrol", "requeue", status.job)

    def release(self, status: CellStatus) -> None:
        """Slurm holds a job, and drains its node, if its launch fails while daemons go and come."""
        for node in self.slurm.nodes:
            with contextlib.suppress(RuntimeError):  # it is not drained
                self.slurm.command("scontrol", "update", f"nodename={node}", "state=resume")
        self.run("retry", "own", status.cell_id)

    def enlarge_disk(self, status: CellStatus) -> None:
        """Let there be room on the disk that `small` is."""
        small = self.slurm.directory / "small"
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)


def setting(number: int) -> str:
    """What tells the cells apart: they all train alike, so that one undisturbed run serves to
    compare with.
    """
    return f"evaluation.knn.temperature={0.07 + number / 1000:g}"


def curve(record: Record) -> Any:
    """What a disturbed run and an undisturbed one must agree on to the last bit."""
    return untimed(record), [score for score in record.scores if score.name.startswith("linear")]


def came_out(directory: Path, undisturbed: Record, processes: int) -> None:
    """A disturbed run has trained as an undisturbed one of one process."""
    record = there(read_record(directory))
    assert record.status == "done"
    if processes == 1:
        assert curve(record) == curve(undisturbed), directory
    else:  # two processes add up in another order
        losses, others = ([row["loss"] for row in r.history[:5]] for r in (record, undisturbed))
        assert losses == pytest.approx(others, rel=0.02)


def owner(status: CellStatus) -> dict[str, Any]:
    found: dict[str, Any] = read_attempts(status.directory)[-1]["owner"]
    return found


def is_training(status: CellStatus) -> bool:
    """Whether the process of the last attempt lives.

    That of a job which is starting again has not claimed its run.
    """
    return status.state == "running" and Path(f"/proc/{owner(status)['pid']}").exists()
