"""The preset for a GPU with its images on the device, on a CPU with generated scenes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.checkpoint import load_checkpoint
from regbench.benchmark.rundir.directory import run_directory
from regbench.benchmark.rundir.interruption import Interrupted, Interruption
from regbench.benchmark.settings.sweep import load_sweep
from regbench.datasets.loading import photometric
from regbench.datasets.stored.prepare import prepare
from tests.benchmark.steps import before_steps

SOURCE = {
    "foreground": "digits",
    "size_px": 28,
    "train_images": 120,
    "tuning_images": 30,
    "test_images": 30,
}
SMALL = (
    *("dataset=scenes", "dataset.image_size=28", "dataset.eval_resize=28"),
    *(f"dataset.source.{name}={value}" for name, value in SOURCE.items()),
    *(
        "network=resnet_tiny",
        "embedding_dim=32",
        "batch_size=40",
        "epochs=2",
        "optimizer.warmup_epochs=1",
    ),
    *("evaluation.knn.k=5", "seed=0", "runtime.device=cpu"),
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    prepare(load_sweep("speedrun_cifar10", SMALL).cells[0].dataset, folder, progress=False)
    return folder


def trained(
    data_dir: Path, runs: Path, *overrides: str, stopped_at: int | None = None
) -> tuple[Any, ...]:
    """The history, scores and weights of the preset's first seed, once stopped before a step
    and resumed, or not.
    """
    folders = f"runtime.data_dir={data_dir}", f"runtime.runs_dir={runs}"
    sweep = load_sweep("speedrun_cifar10", [*SMALL, *folders, *overrides])
    (cell,) = sweep.cells

    def stop(step: int) -> None:
        if step == stopped_at:
            os.kill(os.getpid(), signal.SIGUSR1)

    interruption = Interruption()
    if stopped_at is not None:
        with pytest.MonkeyPatch.context() as patch, interruption.listening(signal.SIGUSR1):
            before_steps(patch, stop)
            with pytest.raises(Interrupted):
                run_cell(cell, sweep.runtime, sweep.name, interruption=interruption)
    record = run_cell(cell, sweep.runtime, sweep.name)
    loaded = load_checkpoint(run_directory(sweep.runtime, sweep.name, cell))
    assert record is not None and loaded is not None
    assert record.environment["loader"] == sweep.runtime.loader
    history = [{key: epoch[key] for key in ("loss", "terms")} for epoch in record.history]
    return history, record.scores, loaded[0]["network"]


def test_images_on_the_device_train_to_the_same_bits_as_those_of_the_loader(
    data_dir: Path, tmp_path: Path
) -> None:
    eager = "runtime.compile=false"
    assert load_sweep("speedrun_cifar10").runtime.loader == "resident"
    expected = trained(data_dir, tmp_path / "loader", eager, "runtime.loader=torchvision")
    for name, step in (("whole", None), ("stopped", 4)):
        found = trained(data_dir, tmp_path / name, eager, stopped_at=step)
        assert found[:2] == expected[:2]
        assert all(torch.equal(weight, expected[2][key]) for key, weight in found[2].items())


@pytest.mark.slow  # the compiler
def test_it_trains_compiled_as_without_the_compiler(data_dir: Path, tmp_path: Path) -> None:
    losses = []
    for value in ("true", "false"):
        history, *_ = trained(
            data_dir, tmp_path / value, f"runtime.compile={value}", "precision=fp32"
        )
        losses.append([epoch["loss"] for epoch in history])
    compiled, eager = losses
    assert photometric.compiled_augmentation.cache_info().currsize == 1
    assert compiled == pytest.approx(eager, rel=1e-3)
