"""Clocks, memory and the description of the machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import torch


class Stopwatch:
    """Marks moments of a stream of work: CUDA events on a GPU, which do not stall it, else the process's clock."""

    def __init__(self, device: torch.device) -> None:
        """For work on `device`."""
        self._cuda = device.type == "cuda"
        self._device = device

    def mark(self) -> Any:
        """A moment, for `milliseconds`."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def milliseconds(self, start: Any, end: Any) -> float:
        """Time between two marks, in milliseconds; waits for the device."""
        if not self._cuda:
            return float(end - start) * 1e3
        end.synchronize()
        return float(start.elapsed_time(end))


class PeakMemory:
    """Peak memory since the object was made.

    On CUDA the peak of the allocator, in bytes; on a CPU the peak resident size of the process, the interpreter and its
    libraries included, which is the honest number there but not one to compare with a GPU's.
    """

    def __init__(self, device: torch.device) -> None:
        """Starts a new measurement on `device`."""
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        # Linux: resets VmHWM to the present size. Elsewhere the peak of the process so far is what there is.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    @property
    def kind(self) -> str:
        """What is counted."""
        return "CUDA allocated" if self._device.type == "cuda" else "process RSS"

    def read_bytes(self) -> int:
        """The peak so far."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        try:
            status = Path("/proc/self/status").read_text()
        except OSError:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return int(status.split("VmHWM:")[1].split()[0]) * 1024


def environment(device: torch.device) -> dict[str, Any]:
    """What ran the cell: versions, git state, host, hardware and threads."""
    versions = {"python": platform.python_version()}
    for package in ("regbench", "torch", "torchvision", "numpy", "ffcv"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        **versions,
        "git": git_state(),
        "hostname": platform.node(),
        "platform": platform.platform(),
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
    }


def hardware(device: torch.device) -> str:
    """Name of the GPU, or number of usable cores and name of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, IndexError):
        info = Path("/proc/cpuinfo").read_text()
        name = info.split("model name", 1)[1].split(":", 1)[1].splitlines()[0].strip()
    return f"{len(os.sched_getaffinity(0))} cores of {name}"


def git_state() -> str | None:
    """Commit of the source tree, "+dirty" if it differs; None outside a checkout."""
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    try:
        # Installed into an environment inside some other checkout, this file is not one of that checkout's.
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True, check=True, timeout=10)
        run = [*git, "describe", "--always", "--dirty=+dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(run, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
