"""The device, threads and CPUs that a run computes with."""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.training.distributed import environment_ranks
from regbench.errors import RegbenchError
from regbench.processes import hold_blas

# Options of glibc's malloc.h and their values in bytes: how much free memory is kept at the heap's
# end, the size above which blocks are mapped apart, and by how much the heap grows.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_TOP_PAD = (-1, 2**30), (-3, 2**30), (-2, 2**26)


@dataclass(frozen=True)
class Compute:
    """A runtime on this machine.

    Attributes:
        runtime: The settings.
        device: The device that computes.
        workers: Number of threads or processes that load images.
    """

    runtime: Runtime
    device: torch.device
    workers: int

    @property
    def data_dir(self) -> Path:
        """The folder of prepared data sets."""
        return Path(self.runtime.data_dir)


def resolve(runtime: Runtime) -> Compute:
    """Find the runtime's device; set threads, arithmetic, allocator and this process's GPU."""
    device: str = runtime.device
    _, world_size, local_rank, local_size = environment_ranks()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        if not torch.cuda.is_available():
            raise RegbenchError(
                "torch can use no GPU here (regbench doctor says more); to compute on the CPU give "
                "runtime.device=cpu"
            )
        # A job step may show each of its processes one GPU only.
        index = local_rank if torch.cuda.device_count() > 1 else 0
        if index >= torch.cuda.device_count():
            what = f"{local_size} processes on a machine with {torch.cuda.device_count()} GPUs"
            raise RegbenchError(f"{what}; start fewer")
        if runtime.compile and world_size > 1:
            raise RegbenchError(
                "runtime.compile=true: with several GPUs torch.compile stops at each BN layer and "
                "compiles next to nothing; set it to false"
            )
        torch.cuda.set_device(index)
        device = f"cuda:{index}"
    forbid_tf32()
    keep_freed_memory()
    threads = runtime.threads or default_threads(device, local_size)
    torch.set_num_threads(threads)
    hold_blas(threads)
    workers = runtime.workers or default_workers(device, local_size)
    return Compute(runtime, torch.device(device), workers)


def forbid_tf32() -> None:
    """Make torch compute float32 as IEEE 754 has it: TF32 keeps 10 of the 23 fraction bits."""
    # Torch has older and newer settings for it, and to change one leaves others as they are.
    torch.set_float32_matmul_precision("highest")
    torch.backends.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.cudnn.fp32_precision = "ieee"
    torch.backends.cudnn.allow_tf32 = False


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, if the allocator is glibc's.

    By default each step of a training on a CPU returns its activations to the system, and takes
    thousands of page faults to get them again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, size_bytes in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_TOP_PAD):
            # An older glibc refuses a threshold above 32 MiB and keeps its own.
            mallopt(option, size_bytes)


def default_threads(device: str, processes: int) -> int:
    """Return how many threads each of `processes` processes has with `runtime.threads=0`."""
    # On a CPU it is one, unless the cores are a Slurm job's own.
    # Threads that share an operation wait for each other without giving up their core: in oneDNN's
    # barriers in the backward pass of a convolution, in OpenMP's pool between operations. So any
    # other work on the machine makes several threads slower than one.
    has_own_cores = "SLURM_JOB_ID" in os.environ
    return cpus_of_each(processes) if device != "cpu" or has_own_cores else 1


def default_workers(device: str, processes: int) -> int:
    """Return how many threads or processes load images for each of `processes` processes with
    `runtime.workers=0`.
    """
    # Beside a GPU every CPU loads images; on a CPU it is one, as the network computes there too.
    return cpus_of_each(processes) if device != "cpu" else 1


def cpus_of_each(processes: int) -> int:
    """Return how many CPUs each of `processes` processes on this machine has, at least 1."""
    # The tasks of a Slurm step have CPUs of their own; other processes share those of this one.
    tasks = 1
    if {"SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_NNODES"} <= os.environ.keys():
        tasks = max(1, int(os.environ["SLURM_NTASKS"]) // int(os.environ["SLURM_NNODES"]))
    return max(1, usable_cpus() // max(1, processes // tasks))


def usable_cpus(
    cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Return how many CPUs this process may use, by its affinity, its control groups' quotas
    and its Slurm task.
    """
    # `cgroups` is the folder of control groups, version 2; the file `own` names the group of this
    # process.
    slurm_cpus = float(os.environ.get("SLURM_CPUS_PER_TASK") or "inf")
    limits = [float(len(os.sched_getaffinity(0))), slurm_cpus]
    with contextlib.suppress(OSError, ValueError):
        (name,) = (line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
        folder = cgroups / name.lstrip("/")
        # The quotas of the groups that contain it limit a group too.
        for group in (folder, *folder.parents):
            if group.is_relative_to(cgroups) and (group / "cpu.max").exists():
                quota_us, period_us = (group / "cpu.max").read_text().split()
                if quota_us != "max":
                    limits.append(float(quota_us) / float(period_us))
    return max(1, int(min(limits)))
