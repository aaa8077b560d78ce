"""Clocks, memory and the description of the machine."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import time
from pathlib import Path

import pytest
import torch

from regbench.benchmark import measure
from regbench.benchmark.measure import PeakMemory, Stopwatch, environment

CPU = torch.device("cpu")


def test_peak_memory_counts_what_was_freed_again() -> None:
    memory = PeakMemory(CPU)
    before = memory.read_bytes()
    block = torch.ones(50_000_000)  # 200 MB, touched
    del block
    assert memory.kind == "process RSS"
    assert 190e6 < memory.read_bytes() - before < 260e6


def test_a_new_measurement_forgets_an_earlier_peak() -> None:
    first = PeakMemory(CPU)
    block = torch.ones(50_000_000)
    del block
    assert PeakMemory(CPU).read_bytes() < first.read_bytes() + 190e6
    memory = PeakMemory(CPU)
    start = memory.read_bytes()
    block = torch.ones(25_000_000)
    del block
    assert 90e6 < memory.read_bytes() - start < 160e6


def test_stopwatch_is_in_milliseconds() -> None:
    clock = Stopwatch(CPU)
    start = clock.mark()
    time.sleep(0.02)
    found = clock.milliseconds(start, clock.mark())
    assert found >= 20
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
