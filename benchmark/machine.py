"""Clocks, memory and the description of the machine."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
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

    def read_reserved_bytes(self) -> int:
        """The peak of what the allocator held, fragments and caches included; on a CPU the same as `read_bytes`."""
        return torch.cuda.max_memory_reserved(self._device) if self._device.type == "cuda" else self.read_bytes()


ENERGY_KINDS = ("gpu", "cpu")


class EnergyMeter:
    """Energy used since the object was made, as far as the hardware tells.

    `gpu` is what NVML counts for the device. `cpu` is what RAPL counts for all processor packages of the machine,
    other processes' work included; most systems let only root read it. What cannot be read is left out.
    """

    def __init__(self, device: torch.device, powercap: Path = Path("/sys/class/powercap")) -> None:
        """Starts a new measurement.

        Args:
            device: The GPU that is counted, if it is one.
            powercap: Where Linux shows RAPL's counters.
        """
        self._counters: list[tuple[str, Callable[[], float]]] = []
        self._used_joules: dict[str, float] = {}
        if device.type == "cuda":
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
                self._add("gpu", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, float("inf"))
        for package in sorted(powercap.glob("intel-rapl:[0-9]")):
            with contextlib.suppress(OSError):
                wraps_joules = int((package / "max_energy_range_uj").read_text()) / 1e6
                self._add("cpu", functools.partial(_rapl_joules, package), wraps_joules)

    def _add(self, kind: str, read_joules: Callable[[], float], wraps_joules: float) -> None:
        last = read_joules()  # raises where it must not be read

        def used() -> float:
            nonlocal last
            previous, last = last, read_joules()
            return last - previous if last >= previous else last - previous + wraps_joules

        self._counters.append((kind, used))
        self._used_joules.setdefault(kind, 0.0)

    def read_joules(self) -> dict[str, float]:
        """The energy so far by kind. To be asked more often than a counter wraps around: a minute suffices."""
        for kind, used in self._counters:
            self._used_joules[kind] += used()
        return dict(self._used_joules)


def _rapl_joules(package: Path) -> float:
    return int((package / "energy_uj").read_text()) / 1e6


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
