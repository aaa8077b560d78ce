"""The throw-away cluster does what tests of jobs rely on."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.slurm.testbed import Testbed, wait_for

pytestmark = pytest.mark.slurm


def processes_naming(directory: Path) -> list[str]:
    """Command lines of processes with the directory in their arguments or their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            command = (process / "cmdline").read_bytes()
            if str(directory).encode() in command + (process / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode())
    return found


def test_job_sees_its_gpu_and_its_node(slurm: Testbed, tmp_path: Path) -> None:
    script, log = "echo $CUDA_VISIBLE_DEVICES $SLURMD_NODENAME $(hostname)", tmp_path / "log"
    where = ("--gres=gpu:2", "--nodelist=node2", f"--output={log}")
    slurm.command("sbatch", "--wait", *where, f"--wrap={script}")
    gpus, node, host = log.read_text().split()
    assert (gpus, node) == ("0,1", "node2")
    if slurm.named_nodes:
        assert host == "node2"


def test_cleaning_heals_the_cluster(slurm: Testbed) -> None:
    slurm.command("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=test")
    slurm.kill("slurmd-node2", signal.SIGSTOP)
    slurm.kill("slurmctld")
    slurm.clean()
    assert slurm.command("sinfo", "--noheader", "--partition=main", "--format=%T %D") == "idle 2\n"


def test_stop_leaves_no_process(tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(prefix="regbench-slurm-"))
    try:
        with Testbed(directory) as cluster:
            # Its own session and no living parent: nothing in Slurm holds it.
            script, log = "setsid sleep 300 & echo start; exec sleep 300", tmp_path / "log"
            cluster.command("sbatch", f"--output={log}", f"--wrap={script}")
            wait_for(lambda: log.exists() and "start" in log.read_text(), "the job")
            assert processes_naming(directory)
        assert processes_naming(directory) == []
        cluster.stop()
    finally:
        shutil.rmtree(directory)
