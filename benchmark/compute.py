"""The device and the threads that a run computes with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from regbench import RegbenchError
from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.training.distributed import environment_ranks


@dataclass(frozen=True)
class Compute:
    """A runtime on this machine.

    Attributes:
        runtime: What was asked for.
        device: That computes.
    """

    runtime: Runtime
    device: torch.device

    @property
    def data_dir(self) -> Path:
        """The folder of prepared data sets."""
        return Path(self.runtime.data_dir)


def resolve(runtime: Runtime) -> Compute:
    """Find the runtime's device; set torch's threads, its arithmetic and, for one of several processes, its GPU.

    float32 is that of IEEE 754: torch's default for convolutions on a GPU keeps 10 of its 23 bits (TF32).

    Raises:
        RegbenchError: If the device is not there.
    """
    device: str = runtime.device
    _, _, local_rank, local_size = environment_ranks()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        if not torch.cuda.is_available():
            raise RegbenchError("runtime.device=cuda but torch sees no GPU here; use runtime.device=cpu")
        # A job step may show each of its processes one GPU only.
        index = local_rank if torch.cuda.device_count() > 1 else 0
        if index >= torch.cuda.device_count():
            raise RegbenchError(
                f"{local_size} processes on a machine with {torch.cuda.device_count()} GPUs; start fewer"
            )
        torch.cuda.set_device(index)
        device = f"cuda:{index}"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(runtime.threads or default_threads(device, local_size))
    return Compute(runtime, torch.device(device))


def default_threads(device: str, processes: int) -> int:
    """Return how many threads one of so many processes on this machine computes with: what `runtime.threads=0` means.

    On a CPU it is one, unless the cores are a Slurm job's own. Threads that share an operation wait for each other
    without giving up their core (oneDNN's barriers in the backward pass of a convolution, the pool of OpenMP between
    operations). So any other work on the machine makes several threads slower than one, as
    benchmark/speed/thread_contention.py measures.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, cores // processes) if device != "cpu" or "SLURM_JOB_ID" in os.environ else 1
