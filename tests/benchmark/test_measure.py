"""Clocks, memory and the description of the machine."""

from __future__ import annotations

import gc
import importlib.metadata
import platform
import resource
import subprocess
import time
from pathlib import Path

import pytest
import torch

from regbench.benchmark import machine as measure
from regbench.benchmark.machine import EnergyMeter, PeakMemory, Stopwatch, environment

CPU = torch.device("cpu")


def test_peak_memory_counts_what_was_freed_again() -> None:
    memory = PeakMemory(CPU)
    before = memory.read_bytes()
    block = torch.ones(50_000_000)  # 200 MB, touched
    del block
    assert memory.kind == "process RSS"
    assert 190e6 < memory.read_bytes() - before < 260e6


def test_a_new_measurement_forgets_an_earlier_peak() -> None:
    gc.collect()  # what other tests left could be freed in between
    first = PeakMemory(CPU)
    block = torch.ones(50_000_000)
    del block
    assert PeakMemory(CPU).read_bytes() < first.read_bytes() + 190e6
    memory = PeakMemory(CPU)
    start = memory.read_bytes()
    block = torch.ones(25_000_000)
    del block
    assert 90e6 < memory.read_bytes() - start < 160e6


def test_the_kernel_counts_in_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PeakMemory(CPU)
    monkeypatch.setattr(Path, "read_text", lambda _: "VmPeak:\t 9 kB\nVmHWM:\t    5000 kB\nVmRSS:\t 4 kB\n")
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


def test_git_state_is_not_that_of_a_checkout_around_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (
        ["init", "-q"],
        ["-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    installed = tmp_path / "site-packages" / "measure.py"
    installed.parent.mkdir()
    installed.touch()
    monkeypatch.setattr(measure, "__file__", str(installed))
    assert measure.git_state() is None
    subprocess.run(["git", "-C", str(tmp_path), "add", str(installed)], check=True)
    assert measure.git_state() is not None


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
