"""A real Slurm cluster of one's own, on this machine and for as long as a test needs it.

It has its own munge key and its own ports, and writes nothing outside its directory. It needs neither systemd nor cgroups, and root only for what makes the nodes more real:
names of their own and GPUs that are devices.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path

COMMANDS = (
    *("munged", "munge", "slurmctld", "slurmd", "setpriv"),
    *("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"),
)
# Where distributions keep daemons, which a user's PATH often leaves out.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
# Of Slurm's programs: those of a cluster we run on would change what this one's do.
CLIENT_VARIABLES = re.compile(r"SLURM|S(ACCT|ALLOC|BATCH|CANCEL|CONTROL|INFO|QUEUE|RUN)_")
# The first command of a node: /etc/hosts and the host's name become the node's, in its namespaces
# only.
BECOME_NODE = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


def missing(commands: Sequence[str] = COMMANDS) -> list[str]:
    """Those of the commands that are not installed."""
    return [command for command in commands if shutil.which(command, path=PATH) is None]


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Returns as soon as the condition holds.

    Raises:
        TimeoutError: It did not hold in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.1)


class Testbed:
    """A cluster: a controller, `node1` and `node2` on this machine, without accounting.

    Its partitions are `main` and `high`, whose jobs requeue those in `main`, 20 s after sending
    them their `--signal`. CPUs and memory are declared and not enforced, so the nodes may have more
    than the machine. GPUs do not compute, but jobs get their numbers in CUDA_VISIBLE_DEVICES.

    Attributes:
        directory: Where everything is written; an existing directory with a short path, as it holds
            sockets.
        nodes: Names of the nodes.
        daemons: Names of all daemons, in the order in which they are started; a node's is
            `slurmd-<node>`.
        named_nodes: Whether tasks see their node's name as the host's, and can resolve it; that
            needs root.
    """

    __test__ = False  # pytest takes a class of this name for tests

    def __init__(self, directory: Path) -> None:
        """Describes a cluster."""
        self.directory = directory
        self.nodes = ("node1", "node2")
        self.daemons = ("munged", "slurmctld", *(f"slurmd-{node}" for node in self.nodes))
        self.named_nodes = False
        self._host = socket.gethostname().partition(".")[0]
        self._user = subprocess.check_output(["id", "-un"], text=True).strip()
        self._ports = dict(zip(self.daemons, free_ports(len(self.daemons)), strict=True))
        self._started: dict[str, datetime] = {}
        # A child that ended keeps its pid until its Popen has seen that, so no signal can reach a
        # stranger.
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Testbed:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -------------------------------------------------------------- for tests

    def start(self) -> None:
        """Starts the cluster and waits until all nodes are idle.

        A failure shows the logs and leaves no process.
        """
        try:
            self._configure()
            self.up("munged")
            self.up("slurmctld")
            slurmds = [f"slurmd-{node}" for node in self.nodes]
            for slurmd in slurmds:
                self._launch(slurmd)
            for slurmd in slurmds:
                self.up(slurmd)
        except BaseException as error:
            self.stop()
            error.add_note(self.logs())
            raise

    def stop(self) -> None:
        """Ends every process of the cluster, those of its jobs too; the logs stay."""
        for daemon in reversed(self.daemons):
            if self._is_running(daemon):
                self._end(daemon)
        # Steps outlive their slurmd, and what a job's process left behind outlives its step.
        wait_for(lambda: not self._kill_left(), "the processes of jobs to end")

    def env(self) -> dict[str, str]:
        """The environment of this cluster's clients."""
        env = {"PATH": PATH, "SLURM_CONF": str(self.directory / "slurm.conf")}
        for name, value in os.environ.items():
            if not CLIENT_VARIABLES.match(name):
                env.setdefault(name, value)
        return env

    def command(self, *args: str) -> str:
        """Standard output of one of Slurm's commands, or any other, as a client of this cluster.

        Raises:
            RuntimeError: The command failed.
        """
        done = subprocess.run(args, env=self.env(), capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"{done}\n{done.stderr}")
        return done.stdout

    def kill(self, daemon: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to one daemon and to nothing else; waits for its end if the signal is one
        that ends it.

        The jobs of a node whose slurmd was killed stay alive, until slurmd is up again and is told
        that they are lost. A slurmctld that was killed forgets its last seconds, so it may start a
        job again that was running already.
        """
        process = self._processes[daemon]
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            process.wait(30)

    def lose(self, node: str) -> None:
        """Lets Slurm give up a node whose slurmd was killed, as it does by itself after a
        minute.
        """
        self.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def up(self, daemon: str) -> None:
        """Starts a daemon with the state it had, or continues it, and waits until it answers."""
        if self._is_running(daemon):
            self._processes[daemon].send_signal(signal.SIGCONT)
        else:
            self._launch(daemon)
        answer = f"{daemon} to answer"
        wait_for(lambda: self._answers(daemon) or not self._is_running(daemon), answer)
        if not self._is_running(daemon):
            raise RuntimeError(f"{daemon} ended while it was starting")

    def clean(self) -> None:
        """Starts or continues all daemons, cancels all jobs, resumes all nodes and waits until
        these are idle.
        """

        def is_empty() -> bool:
            # Every time: jobs may requeue themselves or submit others as they end.
            self.command("scancel", f"--user={self._user}")
            return not self.command("squeue", "--noheader")

        for daemon in self.daemons:
            self.up(daemon)
        wait_for(is_empty, "the queue to be empty")
        for node in self.nodes:
            if re.search("State=[A-Z_+]*(DOWN|DRAIN)", self._node(node)):
                self.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
        idle = "State=IDLE "
        wait_for(lambda: all(idle in self._node(node) for node in self.nodes), "all nodes idle")

    def logs(self, lines: int = 20) -> str:
        """The last lines of every log."""
        text = ""
        for path in sorted((*self.directory.glob("*.log"), *self.directory.glob("*.out"))):
            # What a daemon prints goes to its log as well, once it has one.
            if path.suffix == ".log" or not path.with_suffix(".log").exists():
                last = path.read_text(errors="replace").splitlines()[-lines:]
                text += "\n".join((f"----- {path.name}", *last, ""))
        return text

    # -------------------------------------------------------------- daemons

    def _launch(self, daemon: str) -> None:
        """Starts a daemon in its foreground mode, so that its process is our child."""
        directory = self.directory
        name, _, node = daemon.partition("-")
        commands = {
            "munged": [
                *("munged", "--foreground", f"--key-file={directory}/munge.key"),
                *(f"--socket={directory}/munge.sock", f"--pid-file={directory}/munged.pid"),
                f"--seed-file={directory}/munge.seed",
            ],
            "slurmctld": ["slurmctld", "-D"],
            "slurmd": ["slurmd", "-D", "-N", node],
        }
        command = commands[name]
        if name == "slurmd" and self.named_nodes:
            command = [*self._in_node(node), *command]
        self._started[daemon] = datetime.now()
        with (directory / f"{daemon}.out").open("ab") as out:
            self._processes[daemon] = subprocess.Popen(
                # The daemon ends with this process (to be exact: this thread), however that ends.
                ["setpriv", "--pdeathsig", "KILL", *command],
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C at the terminal is for the tests.
                start_new_session=True,
            )

    def _in_node(self, node: str) -> list[str]:
        """What a command is prefixed with to run in namespaces where the machine is called
        `node`.
        """
        hosts = str(self.directory / "hosts")
        return ["unshare", "-mu", "sh", "-c", BECOME_NODE, "sh", hosts, node]

    def _is_running(self, daemon: str) -> bool:
        return daemon in self._processes and self._processes[daemon].poll() is None

    def _answers(self, daemon: str) -> bool:
        name, _, node = daemon.partition("-")
        try:
            match name:
                case "munged":
                    self.command("munge", "-n", "-S", f"{self.directory}/munge.sock")
                case "slurmctld":
                    self.command("scontrol", "ping")
                case "slurmd":
                    # Until the controller misses a slurmd that was killed, it shows the node as it
                    # was.
                    seen = re.search(r"SlurmdStartTime=(2\S+)", self._node(node))
                    started = self._started[daemon].isoformat(timespec="seconds")
                    is_new = seen is not None and seen[1] >= started
                    return is_new and "NOT_RESPONDING" not in self._node(node)
        except (RuntimeError, OSError):
            return False
        return True

    def _node(self, node: str) -> str:
        return self.command("scontrol", "--oneliner", "show", "node", node)

    def _end(self, daemon: str) -> None:
        """Asks a daemon to end, and kills it if it does not."""
        process = self._processes[daemon]
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _kill_left(self) -> bool:
        """Kills the processes that have the environment of this cluster's programs and jobs.

        Whether there were any.
        """
        mark = f"SLURM_CONF={self.directory / 'slurm.conf'}".encode()
        found = False
        for process in Path("/proc").glob("[0-9]*"):
            # It may end at any moment, or be somebody else's.
            with suppress(OSError):
                # Opened before it is looked at: the pid may be another process's when the signal is
                # sent.
                pidfd = os.pidfd_open(int(process.name))
                try:
                    if mark in (process / "environ").read_bytes().split(b"\0"):
                        found = True
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
        return found

    # -------------------------------------------------------------- configuration

    def _configure(self) -> None:
        directory = self.directory
        # munged wants its socket to be within everybody's reach.
        directory.chmod(0o755)
        for folder in ("state", *(f"spool-{node}" for node in self.nodes)):
            (directory / folder).mkdir()
        key = directory / "munge.key"
        key.touch(mode=0o600)  # munge demands of a key that nobody else can read it
        key.write_text(secrets.token_hex(64))
        hosts = f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {' '.join(self.nodes)}\n"
        (directory / "hosts").write_text(hosts)
        tried = subprocess.run([*self._in_node("node1"), "true"], capture_output=True)
        self.named_nodes = tried.returncode == 0
        gpus = f"NodeName={','.join(self.nodes)} Name=gpu File={self._gpu_devices()}\n"
        (directory / "gres.conf").write_text(gpus)
        (directory / "slurm.conf").write_text(self._slurm_conf())

    def _gpu_devices(self) -> str:
        """Files for GPUs.

        Slurm only looks at them, but with plain files it would not set CUDA_VISIBLE_DEVICES.
        """
        try:
            for i in range(2):
                os.mknod(self.directory / f"gpu{i}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            # Not root: other devices whose names end with the same numbers.
            return "/dev/tty[0-1]"
        return f"{self.directory}/gpu[0-1]"

    def _slurm_conf(self) -> str:
        directory, ports = self.directory, self._ports
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={self._host} NodeAddr=127.0.0.1 "
            f"Port={ports[f'slurmd-{node}']} CPUs=8 RealMemory=65536 Gres=gpu:2"
            for node in self.nodes
        )
        return f"""
ClusterName=testbed
SlurmctldHost={self._host}(127.0.0.1)
SlurmctldPort={ports["slurmctld"]}
SlurmUser={self._user}
SlurmdUser={self._user}
AuthType=auth/munge
# cred_expire is also how long a requeued job waits before it starts again; 120 s if not given.
AuthInfo=socket={directory}/munge.sock,cred_expire=5
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
MailProg=/bin/true
MpiDefault=none
PropagateResourceLimits=NONE
# No cgroups; memory used is read from /proc.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
# CPUs and memory as declared below, not as found on the machine.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
# Without it a job that names no memory gets all of a node's.
DefMemPerCPU=256
GresTypes=gpu
# Tests do not want to wait.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
KillWait=5
# A busy machine keeps a slurmd waiting for long, and jobs of a node that Slurm gives up begin again: see `lose`.
SlurmdTimeout=60
MessageTimeout=5
SlurmctldTimeout=10
ReturnToService=2
# Jobs that ended stay in squeue's and scontrol's reach.
MinJobAge=86400
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=20
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def free_ports(count: int) -> list[int]:
    """Free ports below those that Linux hands out by itself."""

    def is_free(port: int) -> bool:
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                return False
        return True

    # Tests seed `random`; two clusters at a time must not try the same ports.
    ports = random.SystemRandom().sample(range(10000, 20000), 10000)
    return list(islice(filter(is_free, ports), count))
