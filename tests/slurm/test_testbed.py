"""The throw-away cluster does what tests of jobs rely on."""

from __future__ import annotations

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
        try:
            command, environment = (
                (process / file).read_bytes() for file in ("cmdline", "environ")
            )
        except OSError:
            continue
        if str(directory).encode() in command + environment:
            found.append(command.replace(b"\0", b" ").decode())
    return found


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
