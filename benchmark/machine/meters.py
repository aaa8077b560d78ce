"""Meters of time, memory and energy."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pynvml
import torch
from torch import Tensor, autograd
from torch._C._profiler import _EventType, _ExtraFields_Allocation


class Stopwatch:
    """Marks moments of a stream of work: CUDA events on a GPU, which do not stall it, else the
    process's clock.
    """

    def __init__(self, device: torch.device) -> None:
        """Time the work of a device."""
        self._cuda = device.type == "cuda"
        self._device = device

    def mark(self) -> Any:
        """Mark a moment."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def milliseconds(self, start: Any, end: Any) -> float:
        """Return the milliseconds between two marks; on a GPU, wait until it has come that far."""
        if not self._cuda:
            return float(end - start) * 1e3
        end.synchronize()
        return float(start.elapsed_time(end))


class PeakMemory:
    """Peak memory since the object was made.

    On CUDA it is the peak of the allocator; on a CPU the peak resident size of the process, with
    the interpreter and its libraries. So the two cannot be compared.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin to measure on a device."""
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        # Linux resets VmHWM to the present size. Other systems only know the peak since the process
        # began.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    @property
    def kind(self) -> str:
        """Name of what is counted."""
        return "CUDA allocated" if self._device.type == "cuda" else "process RSS"

    def read_bytes(self) -> int:
        """Return the peak so far."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        try:
            status = Path("/proc/self/status").read_text()
        except OSError:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def read_reserved_bytes(self) -> int:
        """Return the peak of what the allocator held, with fragments and caches.

        On a CPU the same as `read_bytes`.
        """
        if self._device.type == "cuda":
            return torch.cuda.max_memory_reserved(self._device)
        return self.read_bytes()


def draw_embeddings(
    n: int, q: int, views: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Draw embeddings of each view, the same each time: the later views are the first with
    noise of half its size.
    """
    # On the CPU, so that all devices and ranks are given the same numbers.
    generator = torch.Generator().manual_seed(0)
    first_NQ = torch.randn(n, q, generator=generator)
    drawn = [first_NQ]
    for _ in range(views - 1):
        drawn.append(first_NQ + 0.5 * torch.randn(n, q, generator=generator))
    return [z_NQ.to(device, dtype) for z_NQ in drawn]


def peak_extra_bytes(run: Callable[[], Sequence[Tensor]], device: torch.device) -> int:
    """Measure the highest sum of live allocations that `run` makes on `device`, without the
    tensors that it returns.
    """
    if device.type != "cuda":
        return _peak_extra_cpu_bytes(run)
    # The first call makes what libraries keep, such as cuBLAS's workspace.
    run()
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    storages = [tensor.untyped_storage() for tensor in run()]
    # Tensors may share a storage.
    returned = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return max(0, torch.cuda.max_memory_allocated(device) - before - sum(returned.values()))


def _peak_extra_cpu_bytes(run: Callable[[], Sequence[Tensor]]) -> int:
    # Kineto says on standard error when it starts and stops, and that there is no GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # `torch.profiler.profile` would import the compiler first: more than a second, and 150 MiB of
    # the process's memory. PyTorch 2.11 warns unless events are said to be kept.
    with autograd.profiler.profile(profile_memory=True, acc_events=True) as profile:
        kept_tensors = run()
    assert profile.kineto_results is not None
    # A dispatch mode that watches the outputs of operations would count 10 % too much for some
    # textbook losses: autograd does not accumulate gradients in place while one is active.
    tree = profile.kineto_results.experimental_event_tree()
    events = sorted(_allocations(tree), key=lambda event: event[0])
    # An address is used again and again; what is returned lies in its last allocation.
    newest = {pointer: i for i, (_, pointer, size) in enumerate(events) if size > 0}
    returned = {newest.get(tensor.untyped_storage().data_ptr()) for tensor in kept_tensors}
    alive: dict[int, int] = {}
    live = peak = 0
    for i, (_, pointer, size) in enumerate(events):
        if size < 0:
            # A tensor from before the measurement has no entry: its release makes no room for what
            # is measured.
            live -= alive.pop(pointer, 0)
        elif i not in returned:
            alive[pointer] = size
            live += size
            peak = max(peak, live)
    return peak


def _allocations(tree: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """Find (time, address, bytes) of all allocations and, with negative bytes, releases on the
    CPU.
    """
    pending = list(tree)
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag == _EventType.Allocation:
            extra: _ExtraFields_Allocation = event.extra_fields
            if extra.device.type == "cpu" and extra.ptr is not None:
                yield event.start_time_ns, extra.ptr, extra.alloc_size


ENERGY_KINDS = ("gpu", "cpu")
"""Energies that an `EnergyMeter` counts."""


class EnergyMeter:
    """Energy used since the object was made, as far as the hardware tells.

    "gpu" is what NVML counts for the device, in equal shares for the processes that compute on it
    at each reading. "cpu" is what RAPL counts for all processors of the machine, with the work of
    other processes; most systems let only root read it. Counters that cannot be read are left out.
    """

    def __init__(self, device: torch.device, powercap: Path = Path("/sys/class/powercap")) -> None:
        """Begin to measure.

        Args:
            device: The GPU that is counted, if it is one.
            powercap: Folder where Linux shows RAPL's counters.
        """
        self._counters: list[tuple[str, Callable[[], float]]] = []
        self._used_joules: dict[str, float] = {}
        if device.type == "cuda":
            # Not every GPU counts its energy, and not every driver tells it.
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                handle = pynvml.nvmlDeviceGetHandleByUUID(
                    f"GPU-{torch.cuda.get_device_properties(device).uuid}"
                )
                self._add(
                    "gpu",
                    lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
                    float("inf"),
                    lambda: len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
                )
        for package in sorted(powercap.glob("intel-rapl:[0-9]")):
            with contextlib.suppress(OSError):
                wraps_joules = int((package / "max_energy_range_uj").read_text()) / 1e6
                self._add("cpu", functools.partial(_rapl_joules, package), wraps_joules)

    def _add(
        self,
        kind: str,
        read_joules: Callable[[], float],
        wraps_joules: float,
        count_users: Callable[[], int] = lambda: 1,
    ) -> None:
        last = read_joules()
        count_users()  # a counter that may not be read raises here, before it is added

        def used() -> float:
            nonlocal last
            previous, last = last, read_joules()
            new = last - previous
            if new < 0:
                new += wraps_joules
            return new / max(1, count_users())

        self._counters.append((kind, used))
        self._used_joules.setdefault(kind, 0.0)

    def read_joules(self) -> dict[str, float]:
        """Return the energy so far by kind; NaN of a kind whose counter was lost.

        Call it more often than a counter wraps around, such as every minute.
        """
        for kind, used in self._counters:
            # A container may lose a counter while it runs: a training goes on, its energy unknown.
            try:
                self._used_joules[kind] += used()
            except (OSError, pynvml.NVMLError):
                self._used_joules[kind] = math.nan
        return dict(self._used_joules)


def _rapl_joules(package: Path) -> float:
    return int((package / "energy_uj").read_text()) / 1e6
