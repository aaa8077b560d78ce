"""Clocks, memory, energy and the description of the machine."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch
from torch import Tensor

from regbench.benchmark.machine import description as machine
from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.machine.description import environment
from regbench.benchmark.machine.meters import EnergyMeter, PeakMemory, Stopwatch, peak_extra_bytes
from regbench.benchmark.scoring import cost_of
from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.training.run_progress import Progress
from tests.command import python

CPU = torch.device("cpu")


PEAKS = """
import json
import torch
from regbench.benchmark.machine.meters import PeakMemory

def peak_bytes(size):
    memory = PeakMemory(torch.device("cpu"))
    before = memory.read_bytes()
    block = torch.ones(size)  # touched
    del block
    return memory.read_bytes() - before

print(json.dumps([peak_bytes(50_000_000), peak_bytes(25_000_000), PeakMemory(torch.device("cpu")).kind]))
"""


def test_peak_memory_counts_what_was_freed_again_and_forgets_an_earlier_peak() -> None:
    """In a process of its own, where nobody else frees memory meanwhile."""
    first, second, kind = json.loads(python(PEAKS, check=True).stdout)
    assert kind == "process RSS"
    assert 190e6 < first < 260e6
    assert 90e6 < second < 160e6


def test_the_kernel_counts_in_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PeakMemory(CPU)
    status = "VmPeak:\t 9 kB\nVmHWM:\t    5000 kB\nVmRSS:\t 4 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda _: status)
    assert memory.read_bytes() == memory.read_reserved_bytes() == 5_120_000
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def elsewhere(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", elsewhere)
    assert peak_kib * 1024 <= memory.read_bytes() < peak_kib * 1024 * 1.02


def test_stopwatch_is_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Stopwatch(CPU)
    moments_s = iter((7.5, 7.75))
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments_s))
    start, end = clock.mark(), clock.mark()
    assert clock.milliseconds(start, end) == 250
    assert clock.milliseconds(start, start) == 0


def test_the_environment_names_versions_and_machine() -> None:
    found = environment(CPU)
    for package in ("regbench", "torch", "torchvision", "numpy"):
        assert found[package] == importlib.metadata.version(package)
    assert found["python"] == platform.python_version()
    assert found["hostname"] == platform.node()
    assert "cores of" in found["hardware"]
    assert found["threads"] == torch.get_num_threads()


THREADS = """
import torch
from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.machine.description import environment
from regbench.benchmark.settings.runtime import Runtime
resolve(Runtime(device="cpu", threads=1))
import scipy.linalg, threadpoolctl
libraries = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
print([library["num_threads"] for library in libraries], environment(torch.device("cpu"))["blas_threads"])
"""


def test_linear_algebra_has_the_threads_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of NumPy, and of SciPy, which is loaded later: in a process of its own."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert python(THREADS, check=True).stdout.strip() == "[1, 1] 1"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is another one")
def test_a_run_keeps_the_memory_that_it_frees() -> None:
    resolve(Runtime(device="cpu"))
    faults = []
    for _ in range(100):
        torch.ones(4 << 20)  # 16 MiB: 4,096 pages
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    # The heap grows at first.
    assert faults[-1] - faults[49] < 4096


def test_git_state_is_not_that_of_a_checkout_around_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "-c user.name=x -c user.email=x commit -q --allow-empty -m x"
    for command in ("init -q", commit):
        subprocess.run(["git", "-C", str(tmp_path), *command.split()], check=True)
    installed = tmp_path / "site-packages" / "machine.py"
    installed.parent.mkdir()
    installed.touch()
    monkeypatch.setattr(machine, "__file__", str(installed))
    assert machine.git_state() is None
    subprocess.run(["git", "-C", str(tmp_path), "add", str(installed)], check=True)
    assert machine.git_state() is not None


def rapl(folder: Path, package: int, joules: float, wraps_joules: float = 1000.0) -> None:
    """What Linux shows of one processor package."""
    path = folder / f"intel-rapl:{package}"
    path.mkdir(exist_ok=True)
    (path / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
    (path / "max_energy_range_uj").write_text(f"{round(wraps_joules * 1e6)}\n")


def test_energy_is_summed_over_packages_and_wraps_around(tmp_path: Path) -> None:
    rapl(tmp_path, 0, 100.0)
    rapl(tmp_path, 1, 990.0)
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of package 0, which must not count twice
    meter = EnergyMeter(CPU, tmp_path)
    assert meter.read_joules() == {"cpu": 0.0}
    rapl(tmp_path, 0, 130.0)
    rapl(tmp_path, 1, 15.0)
    assert meter.read_joules() == {"cpu": pytest.approx(55.0)}
    rapl(tmp_path, 0, 131.5)
    assert meter.read_joules() == {"cpu": pytest.approx(56.5)}


def test_energy_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    rapl(tmp_path, 0, 100.0)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert EnergyMeter(CPU, tmp_path).read_joules() == {}
    assert EnergyMeter(CPU, tmp_path / "none").read_joules() == {}


def test_energy_is_unknown_once_a_counter_was_lost(tmp_path: Path) -> None:
    rapl(tmp_path, 0, 100.0)
    meter = EnergyMeter(CPU, tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    lost = meter.read_joules()
    rapl(tmp_path, 0, 130.0)
    assert math.isnan(lost["cpu"]) and math.isnan(meter.read_joules()["cpu"])
    assert cost_of(Progress(energy_joules=lost), 0.0).energy_cpu_joules is None


def test_runs_that_share_a_gpu_share_its_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is there at the second reading, and has gone at the third."""
    joules, others = iter([1000.0, 1000.0, 1300.0, 1400.0]), iter([0, 0, 1, 0])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="8f3a"))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda _: 1e3 * next(joules))
    running = "nvmlDeviceGetComputeRunningProcesses"
    monkeypatch.setattr(pynvml, running, lambda _: [None] * (1 + next(others)))
    meter = EnergyMeter(torch.device("cuda", 0), Path("none"))
    assert [meter.read_joules()["gpu"] for _ in range(3)] == [0.0, 150.0, 250.0]


class Allocator:
    """What torch tells of a GPU's memory."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.live = self.peak = 0
        patch.setattr(torch.cuda, "synchronize", lambda _: None)
        reset = "reset_peak_memory_stats"
        patch.setattr(torch.cuda, reset, lambda _: setattr(self, "peak", self.live))
        patch.setattr(torch.cuda, "memory_allocated", lambda _: self.live)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda _: self.peak)

    def take(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)


def test_what_libraries_keep_on_a_gpu_is_not_a_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator, workspaces = Allocator(monkeypatch), iter([8000])

    def run() -> Sequence[Tensor]:
        allocator.take(next(workspaces, 0))  # by the first call, for all
        allocator.take(300)
        allocator.take(-300)
        return []

    assert [peak_extra_bytes(run, torch.device("cuda", 0)) for _ in range(2)] == [300, 300]


def squares(x_NQ: Tensor) -> Sequence[Tensor]:
    gram_NN = x_NQ @ x_NQ.T
    return [gram_NN]


def dropped(x_NQ: Tensor) -> Sequence[Tensor]:
    squares(x_NQ)
    return []


def chain(x_NQ: Tensor) -> Sequence[Tensor]:
    """Two of size n × n live together; the third takes the place of the first."""
    gram_NN = x_NQ @ x_NQ.T
    gram_NN = gram_NN.neg()
    gram_NN = gram_NN.exp()
    return []


def in_place(x_NQ: Tensor) -> Sequence[Tensor]:
    (x_NQ @ x_NQ.T).neg_().exp_()
    return []


def one_view_returned(x_NQ: Tensor) -> Sequence[Tensor]:
    scratch_NN = x_NQ @ x_NQ.T
    return [(scratch_NN @ x_NQ)[1:]]


def square_and_backward(x_NQ: Tensor) -> Sequence[Tensor]:
    """Saved for backward: x only; made there: 2 · x · ones, which is returned."""
    leaf_NQ = x_NQ.detach().requires_grad_()
    (gradient_NQ,) = torch.autograd.grad(
        leaf_NQ @ leaf_NQ.T.detach(), leaf_NQ, torch.ones(len(x_NQ), len(x_NQ))
    )
    return [gradient_NQ]


# How many matrices of size n × n each needs beside what it returns.
MATRICES: dict[Callable[[Tensor], Sequence[Tensor]], int]
MATRICES = {dropped: 1, squares: 0, chain: 2, in_place: 1}
MATRICES |= {one_view_returned: 1, square_and_backward: 2}


@pytest.mark.parametrize("run", MATRICES)
def test_allocations_of_cases_known_by_hand(run: Callable[[Tensor], Sequence[Tensor]]) -> None:
    n = 300
    x_NQ = torch.randn(n, 70)
    assert peak_extra_bytes(lambda: run(x_NQ), CPU) == MATRICES[run] * n * n * 4


def test_allocations_inside_an_operation_is_seen() -> None:
    """logsumexp makes an n × n copy that it does not return."""
    x_NN = torch.randn(200, 200)
    assert peak_extra_bytes(lambda: [x_NN.logsumexp(dim=1)], CPU) >= 200 * 200 * 4


def test_allocations_inside_an_own_function_is_seen_forward_and_backward() -> None:
    class Scratch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x_N: Tensor) -> Tensor:
            torch.empty(1000)
            return x_N.sum()

        @staticmethod
        def backward(ctx: object, *outputs: Tensor) -> Tensor:
            torch.empty(3000)
            return outputs[0].expand(10)

    leaf_N = torch.zeros(10, requires_grad=True)

    def run() -> Sequence[Tensor]:
        Scratch.apply(leaf_N).backward()
        assert leaf_N.grad is not None
        return [leaf_N.grad]

    assert 12000 <= peak_extra_bytes(run, CPU) < 12000 + 200


def test_memory_released_meanwhile_makes_no_room() -> None:
    old = [torch.ones(1000, dtype=torch.float64)]

    def run() -> list[Tensor]:
        old.clear()
        torch.ones(500, dtype=torch.float64).sum()
        return []

    assert 4000 <= peak_extra_bytes(run, CPU) < 8000
