"""Settings that do not decide the outcome of a run: devices, loaders, clusters."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from regbench.errors import RegbenchError
from regbench.settings import (
    AtLeastOne,
    AtLeastZero,
    NonNegative,
    Positive,
    from_plain,
    plain,
    settings,
)

STAGES = ("pretrain", "tune", "final")
"""Stages of a run: training, the score that hyperparameters are chosen by, the final
evaluations.
"""


@settings
class Runtime:
    """Devices and loaders that compute a run; none of them decides the outcome.

    Attributes:
        data_dir: Folder of prepared data sets; the default is $REGBENCH_DATA_DIR, or "data".
        runs_dir: Folder of run directories; the default is $REGBENCH_RUNS_DIR, or "runs".
        device: Device that computes; "auto" takes a GPU if there is one.
        loader: Library that reads the images, "ffcv" or "torchvision"; "auto" takes FFCV if it is
            installed.
        workers: Threads (ffcv) or processes (torchvision; 1: the run itself) that load images for
            each process of a run; 0: one on a CPU, as many as it has CPUs beside a GPU.
        threads: CPU threads that compute for each process of a run; 0: one on a CPU that may have
            other work, as many as it has CPUs beside a GPU and in a Slurm job.
        loss_form: Form that the loss is computed in: "auto" (the cheapest), "gram", "covariance",
            "powers" or "textbook" (the published formula under plain autograd).
        compile: Whether torch.compile builds the network and the kernels of losses over pairs; not
            with several GPUs.
        checkpoint_minutes: Minutes between checkpoints.
        checkpoint_epochs: Epochs between checkpoints; whichever comes first.
        lease_s: Seconds without a sign of life after which another process may take over a run.
        parallel: Runs at a time in a sweep on this machine; 0: one for each GPU, or for each core
            without GPUs.
        max_cells: Largest number of cells of a sweep or a tuning with its repeats, and of trainings
            of a search: a slip of the hand, or a stranger's file, asks for more.
        sinks: Programs that are given the numbers of each epoch, to draw curves: tensorboard,
            wandb.
    """

    data_dir: Annotated[str, Field(min_length=1)] = field(
        default_factory=lambda: os.environ.get("REGBENCH_DATA_DIR") or "data"
    )
    runs_dir: Annotated[str, Field(min_length=1)] = field(
        default_factory=lambda: os.environ.get("REGBENCH_RUNS_DIR") or "runs"
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    loader: Literal["auto", "ffcv", "torchvision"] = "auto"
    # More than a thousand would be a slip of the hand, and may stop the machine.
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    loss_form: Literal["auto", "textbook", "gram", "covariance", "powers"] = "auto"
    compile: bool = False
    # A kill then costs five minutes of training on average.
    checkpoint_minutes: NonNegative = 10.0
    checkpoint_epochs: AtLeastOne = 1
    # A network file system may show a sign of life many seconds late.
    lease_s: Positive = 60.0
    parallel: AtLeastZero = 0
    max_cells: AtLeastOne = 10_000
    sinks: tuple[Literal["tensorboard", "wandb"], ...] = ()

    def __post_init__(self) -> None:
        """Refuse folders that begin with ~, which no shell has written out."""
        for name in ("data_dir", "runs_dir"):
            folder = getattr(self, name)
            if folder.startswith("~"):
                raise RegbenchError(f"runtime.{name}={folder}: no shell reads ~ here; write it out")

    def with_gpus(self) -> Runtime:
        """Return the settings of a run that is given GPUs: if torch cannot use them, "auto" must
        not train on the CPU.
        """
        return replace(self, device="cuda") if self.device == "auto" else self


@settings
class Cluster:
    """Partitions and resources of jobs; none of them decides the outcome.

    Attributes:
        scheduler: "local" is this machine, "slurm" a cluster.
        partition: Partition of the jobs; null: the cluster's default. So it is for the next three.
        account: Account that is charged.
        qos: Quality of service.
        constraint: Features that nodes must have.
        nodes: Nodes of one run.
        gpus: GPUs of each node, with one process for each; 0: one process without a GPU.
        cpus: CPUs for each process.
        mem_gib: Memory of each node.
        time_minutes: Time limit of a job; a run that is not done by then goes on in the next job.
        parallel: Jobs of an array that run at the same time.
        notice_s: Seconds before the time limit at which a run writes its checkpoint and queues
            again.
        modules: Modules that `module load` takes before the run.
        setup: Shell lines before the run.
        container: Prefix of the Python command; null: this Python.
        extra: Other options of sbatch.
        stages: Settings that differ for each of the stages pretrain, tune and final; each stage is
            then a job of its own. null: one job does all; where several processes train, a second
            job with one process evaluates.
        gpu_memory_gib: Memory of a GPU; runs that are predicted to need more are refused.
    """

    scheduler: Literal["local", "slurm"]
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: AtLeastOne = 1
    gpus: AtLeastZero = 1
    cpus: AtLeastOne = 8
    mem_gib: Positive | None = None
    time_minutes: AtLeastOne = 1440
    parallel: AtLeastOne = 64
    notice_s: AtLeastOne = 120
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    container: str | None = None
    extra: dict[str, Any] | None = None
    stages: dict[str, dict[str, Any]] | None = None
    gpu_memory_gib: Positive | None = None

    def __post_init__(self) -> None:
        """Refuse jobs without time to work, and stages that are not those of a run."""
        if self.notice_s >= 60 * self.time_minutes:
            raise RegbenchError(
                f"cluster.time_minutes={self.time_minutes} leaves no time to work: the last "
                f"{self.notice_s} seconds (cluster.notice_s) are for the end"
            )
        if self.stages is not None and set(self.stages) != set(STAGES):
            given = ", ".join(self.stages) or "nothing"
            raise RegbenchError(
                f"cluster.stages must name {', '.join(STAGES)}, each with its settings, not {given}"
            )

    def jobs(self, stages: Sequence[str]) -> list[list[str]]:
        """Divide the stages of a run among jobs, one after the other."""
        if self.stages is not None:
            return [[stage] for stage in stages]
        # One process evaluates: the others would hold their GPUs and wait.
        if self.processes > 1 and stages[0] == "pretrain" and len(stages) > 1:
            return [["pretrain"], list(stages[1:])]
        return [list(stages)]

    def at(self, stage: str) -> Cluster:
        """Return the settings of the job that begins with a stage."""
        if self.stages is None:
            # Evaluations run in one process.
            return self if stage == "pretrain" else replace(self, nodes=1, gpus=min(self.gpus, 1))
        settings = {**plain(self), "stages": None, **self.stages[stage]}
        return from_plain(Cluster, settings, f"cluster.stages.{stage}.")

    @property
    def processes(self) -> int:
        """Number of processes of one run, over all nodes."""
        return self.nodes * max(1, self.gpus)
