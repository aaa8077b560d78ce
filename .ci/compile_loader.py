"""Compile the inner loops of the FFCV loader, which the first run would wait for."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.loading.loaders import EvalLoader, PretrainingLoader
from regbench.datasets.stored.prepare import prepare

cell, _ = load_run(["dataset=digits", "augmentation=small_color", "epochs=1", "batch_size=8"])
with tempfile.TemporaryDirectory() as folder:
    data_dir = Path(folder)
    prepare(cell.dataset, data_dir)
    reading = {"data_dir": data_dir, "batch_size": 8, "device": torch.device("cpu")}
    # A loader for training compiles what it needs at once, one for evaluation with its first image.
    PretrainingLoader(cell.dataset, cell.augmentation, **reading).close()
    with EvalLoader(cell.dataset, "train", **reading) as loader, loader.epoch() as batches:
        next(batches)
