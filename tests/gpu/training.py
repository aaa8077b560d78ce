"""Trainings for the comparison of a GPU with the CPU: their settings, their steps, their
commands.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from regbench.benchmark.rundir.checkpoint import load_checkpoint
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.training.assembly import build_network, views_dtype
from regbench.benchmark.training.step import Step
from regbench.methods import Engine

CLASSES = 4
SETTINGS = (
    *(
        "dataset=imagefolder",
        "dataset.name=generated",
        "dataset.image_size=32",
        "dataset.eval_resize=32",
    ),
    *(
        f"dataset.num_classes={CLASSES}",
        "augmentation=small_color",
        "network=resnet_tiny",
        "precision=fp32",
    ),
    *("embedding_dim=64", "batch_size=32", "method=sfrik_l3", "optimizer.warmup_epochs=0"),
)


def photo(seed: int, side_px: int) -> npt.NDArray[np.uint8]:
    """Draw a picture of smooth colours and noise, (side, side, 3)."""
    rng = np.random.default_rng(seed)
    few = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    smooth = np.asarray(few.resize((side_px, side_px), Image.Resampling.BICUBIC), np.float64)
    return (smooth + rng.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8)


def step_of(cell: Cell, device: torch.device) -> Step:
    network = build_network(cell, device)
    optimizer = cell.optimizer.build_clipping(network.parameters())
    for group in optimizer.param_groups:
        group["lr"] = cell.optimizer.base_lr
    engine = Engine(even=True)
    return Step(
        network=network,
        optimizer=optimizer,
        method=cell.method,
        engine=engine,
        precision=cell.precision,
    )


def as_loaded(cell: Cell, views_NCHW: list[Tensor], device: torch.device) -> list[Tensor]:
    """Lay out views as the loader delivers them."""
    return [
        view.to(device, views_dtype(cell), memory_format=torch.channels_last) for view in views_NCHW
    ]


def run_regbench(*arguments: str, ranks: int = 1) -> None:
    """Give a command in a process of its own, or in several that torchrun starts."""
    launch = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        if ranks > 1
        else []
    )
    command = [sys.executable, *launch, "-m", "regbench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def state_of(directory: Path) -> dict[str, Any]:
    """Read the last checkpoint of a run."""
    loaded = load_checkpoint(directory)
    assert loaded is not None
    return loaded[0]


def losses_of(state: dict[str, Any]) -> list[float]:
    """List the mean loss of each epoch."""
    return [epoch["loss"] for epoch in state["progress"]["history"]]
