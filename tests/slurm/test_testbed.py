"""The throw-away cluster does what tests of jobs rely on."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.slurm.testbed import Testbed, wait_for

pytestmark = pytest.mark.slurm


def submit(cluster: Testbed, log: Path, script: str, *options: str) -> str:
    """The id of a batch job that appends what it prints to `log`."""
    job = ("sbatch", "--parsable", "--open-mode=append", f"--output={log}", *options)
    return cluster.command(*job, f"--wrap={script}").strip()


def state(cluster: Testbed, job: str) -> str:
    return cluster.command(
        "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"
    ).strip()


def wait_for_text(log: Path, text: str) -> None:
    wait_for(lambda: log.exists() and text in log.read_text(), f"{text!r} in {log.name}")


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


def test_job_sees_its_gpu_and_its_node(slurm: Testbed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = submit(
        slurm,
        log,
        "echo $CUDA_VISIBLE_DEVICES $SLURMD_NODENAME $(hostname)",
        "--gres=gpu:2",
        "--nodelist=node2",
    )
    wait_for(lambda: state(slurm, job) == "COMPLETED", "the job")
    gpus, node, host = log.read_text().split()
    assert gpus == "0,1"
    assert node == "node2"
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
            submit(cluster, tmp_path / "log", "setsid sleep 300 & echo start; exec sleep 300")
            wait_for_text(tmp_path / "log", "start")
            assert processes_naming(directory)
        assert processes_naming(directory) == []
        cluster.stop()
    finally:
        shutil.rmtree(directory)
