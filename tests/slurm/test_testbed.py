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
    job = (
        "sbatch",
        "--parsable",
        "--open-mode=append",
        f"--output={log}",
        *options,
        f"--wrap={script}",
    )
    return cluster.command(*job).strip()


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


def test_step_over_two_nodes(slurm: Testbed) -> None:
    seen = slurm.command(
        "srun", "--nodes=2", "--ntasks=2", "sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME"
    )
    assert sorted(seen.splitlines()) == ["0 node1", "1 node2"]


def test_node_names_resolve(slurm: Testbed) -> None:
    if not slurm.named_nodes:
        pytest.skip("namespaces are not allowed here")
    assert slurm.command("srun", "getent", "hosts", "node2").split()[0] == "127.0.0.1"


def test_requeued_job_counts_its_restarts(slurm: Testbed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = submit(slurm, log, "echo start ${SLURM_RESTART_COUNT:-0}; sleep 300")
    wait_for_text(log, "start 0")
    slurm.command("scontrol", "requeue", job)
    wait_for_text(log, "start 1")


def test_preempted_job_is_signalled_and_requeued(slurm: Testbed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = 'trap "echo signalled" USR1; echo start ${SLURM_RESTART_COUNT:-0}; while :; do sleep 0.1; done'
    whole = ("--nodes=2", "--exclusive")
    slurm.command("scontrol", "update", "PartitionName=main", "GraceTime=2")
    try:
        submit(slurm, log, script, *whole, "--signal=B:USR1@60")
        wait_for_text(log, "start 0")
        urgent = submit(slurm, tmp_path / "urgent", "true", *whole, "--partition=high")
        wait_for_text(log, "start 1")
    finally:
        slurm.command("scontrol", "update", "PartitionName=main", "GraceTime=20")
    assert "start 0\nsignalled\n" in log.read_text()
    assert state(slurm, urgent) == "COMPLETED"


def test_job_of_a_lost_node_runs_elsewhere(slurm: Testbed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    submit(slurm, log, "echo ${SLURM_RESTART_COUNT:-0} $SLURMD_NODENAME; sleep 300", "--exclusive")
    wait_for_text(log, "0 node")
    first = log.read_text().split()[1]
    slurm.kill(f"slurmd-{first}")
    slurm.lose(first)
    wait_for_text(log, "1 node")
    assert {line.split()[1] for line in log.read_text().splitlines() if line[0] in "01"} == {
        "node1",
        "node2",
    }


def test_restarted_controller_keeps_the_queue(slurm: Testbed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = submit(
        slurm, log, "echo start; until [ -e end ]; do sleep 0.1; done", f"--chdir={tmp_path}"
    )
    waiting = submit(slurm, log, "true", "--hold")
    wait_for_text(log, "start")
    slurm.kill("slurmctld", signal.SIGTERM)
    slurm.up("slurmctld")
    assert (state(slurm, running), state(slurm, waiting)) == ("RUNNING", "PENDING")
    (tmp_path / "end").touch()
    wait_for(lambda: state(slurm, running) == "COMPLETED", "the running job's end")


def test_accounting_knows_the_job(slurm: Testbed, tmp_path: Path) -> None:
    if not slurm.accounting:
        pytest.skip("accounting is not installed")
    job = submit(slurm, tmp_path / "log", "true")
    query = (
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        f"--jobs={job}",
        "--format=State",
    )
    wait_for(lambda: slurm.command(*query) == "COMPLETED\n", "the job's end in sacct")


def test_cleaning_heals_the_cluster(slurm: Testbed) -> None:
    slurm.command("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=test")
    slurm.kill("slurmd-node2", signal.SIGSTOP)
    slurm.kill("slurmctld")
    slurm.clean()
    assert slurm.command("sinfo", "--noheader", "--partition=main", "--format=%T %D") == "idle 2\n"


def test_stop_leaves_no_process(tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(prefix="regbench-slurm-"))
    try:
        with Testbed(directory, nodes=1, gpus=0, accounting=False) as cluster:
            # Its own session and no living parent: nothing in Slurm holds it.
            submit(cluster, tmp_path / "log", "setsid sleep 300 & echo start; exec sleep 300")
            wait_for_text(tmp_path / "log", "start")
            assert processes_naming(directory)
        assert processes_naming(directory) == []
        cluster.stop()
    finally:
        shutil.rmtree(directory)
