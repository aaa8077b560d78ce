"""Where and with what runs are computed: settings that do not decide their outcome."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from regbench.errors import RegbenchError
from regbench.settings import AtLeastOne, AtLeastZero, NonNegative, Positive, from_plain, plain, settings

STAGES = ("pretrain", "tune", "final")
"""What a run goes through: training, the score that hyperparameters are chosen by, the final evaluations."""


@settings
class Runtime:
    """Where and with what a run is computed; none of it decides the outcome.

    Attributes:
        data_dir: Folder of prepared data sets; the default is $REGBENCH_DATA_DIR, or "data".
        runs_dir: Folder of run directories; the default is $REGBENCH_RUNS_DIR, or "runs".
        device: That computes; "auto" takes a GPU if there is one.
        loader: That reads the images; "auto" takes FFCV if it is installed.
        workers: Threads (ffcv) or processes (torchvision; 1: the run itself) that load images for each process of a
            run; 0: one on a CPU, as many as it has CPUs beside a GPU.
        threads: CPU threads that compute for each process of a run; 0: one on a CPU that may have other work, as many
            as it has CPUs beside a GPU and in a Slurm job.
        loss_form: Form that the loss is computed in: "auto" (the cheapest), "gram", "covariance" or "textbook" (the
            published formula under plain autograd).
        shard_optimizer: Whether the ranks of a run share the optimizer's state of matrices (ZeRO-1) instead of each
            keeping all of it.
        compile: Whether torch.compile builds the network, and the kernels of losses over pairs.
        checkpoint_minutes: Minutes between checkpoints.
        checkpoint_epochs: Epochs between checkpoints; whichever comes first.
        lease_s: Seconds without a sign of life after which another process may take over a run.
        parallel: Runs at a time in a sweep on this machine; 0: one for each GPU, or for each core without GPUs.
        sinks: Programs that are given the numbers of each epoch, to draw curves: tensorboard, wandb, trackio.
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
    loss_form: Literal["auto", "textbook", "gram", "covariance"] = "auto"
    shard_optimizer: bool = False
    compile: bool = False
    checkpoint_minutes: NonNegative = 10.0
    checkpoint_epochs: AtLeastOne = 1
    lease_s: Positive = 60.0
    parallel: AtLeastZero = 0
    sinks: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()


@settings
class Cluster:
    """Where jobs run and what one of them gets; none of it decides the outcome.

    Attributes:
        scheduler: "local" is this machine.
        partition: Of the jobs; null: the cluster's default, here as below.
        account: To be charged.
        qos: Quality of service.
        constraint: Features that nodes must have.
        nodes: Of one run.
        gpus: Of each node, with one process for each; 0: one process without a GPU.
        cpus: For each process.
        mem_gib: Of each node.
        time_minutes: Limit of a job; a run that is not done by then goes on in the next.
        parallel: Jobs of an array that run at a time.
        notice_s: Seconds before the limit at which a run writes its checkpoint and queues again.
        modules: Names for `module load`.
        setup: Shell lines before the run.
        container: Prefix of the Python command; null: this Python.
        extra: Other options of sbatch.
        stages: What differs of the above for each of the stages pretrain, tune and final, each of which is a job of its
            own then; null: one job does all, or where several processes train, the evaluations are a job of one.
        gpu_memory_gib: What a GPU has; runs that are predicted to need more are refused.
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
        """Refuse stages that are not those of a run.

        Raises:
            RegbenchError: Naming the setting and what it must be.
        """
        if self.stages is not None and set(self.stages) != set(STAGES):
            given = ", ".join(self.stages) or "nothing"
            raise RegbenchError(f"cluster.stages must name {', '.join(STAGES)}, each with its settings, not {given}")

    def jobs(self, stages: Sequence[str]) -> list[list[str]]:
        """Divide the stages of a run among jobs, one after the other."""
        if self.stages is not None:
            return [[stage] for stage in stages]
        if self.processes > 1 and stages[0] == "pretrain":
            return [["pretrain"], list(stages[1:])] if len(stages) > 1 else [["pretrain"]]
        return [list(stages)]

    def at(self, stage: str) -> Cluster:
        """Return what the job that begins with a stage gets.

        Raises:
            RegbenchError: If a setting of the stage is unknown or of the wrong type.
        """
        if self.stages is None:
            return self if stage == "pretrain" else replace(self, nodes=1, gpus=min(self.gpus, 1))
        return from_plain(Cluster, {**plain(self), "stages": None, **self.stages[stage]}, f"cluster.stages.{stage}.")

    @property
    def processes(self) -> int:
        """Of one run, over all nodes."""
        return self.nodes * max(1, self.gpus)
