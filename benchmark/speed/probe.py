"""Measures what eight learning rates cost over one in linear probing: python benchmark/speed/probe.py [OVERRIDES]."""

from __future__ import annotations

import dataclasses
import functools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.compute import resolve
from regbench.benchmark.cost.harness import Machine, median, number, ratios, span, take_turns
from regbench.benchmark.evaluate.features import Batches, Encoder, Epochs, Images
from regbench.benchmark.evaluate.linear import LinearHeads, LinearProbe
from regbench.benchmark.settings.cell import NetworkConfig, ProjectorConfig
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.network import SiameseNetwork
from regbench.datasets.prepare import prepare

RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 10.0)
CLASSES, ROUNDS, SIZE_PX = 1000, 5, 64


def generate(folder: Path) -> None:
    """Make two training images of each class and one of val/, 64 px."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 2), ("val", 1)):
        for label in range(CLASSES):
            place = folder / part / f"{label:04d}"
            place.mkdir(parents=True)
            for i in range(count):
                coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
                coarse.resize((SIZE_PX, SIZE_PX), Image.Resampling.BICUBIC).save(place / f"{i}.jpg")


def represented(encoder: Encoder, augmented: Epochs, epoch: int) -> Batches:
    """Give the features of an epoch's images."""
    return ((encoder.represent(x_NCHW), y_N) for x_NCHW, y_N in augmented(epoch))


def main() -> None:
    """Print the seconds of an epoch with one rate and with eight, in turns, and the median of the rounds' ratios.

    Images are randomly cropped and flipped. On a CPU these are seconds of the process's own CPU time, which other work
    on the machine hardly changes.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder / "source")
        settings = [f"dataset.{key}={SIZE_PX}" for key in ("image_size", "eval_resize")]
        settings += ["dataset.name=generated", f"dataset.num_classes={CLASSES}", f"runtime.data_dir={folder}"]
        cell, runtime = load_run(["dataset=imagefolder", *settings, *sys.argv[1:]])
        compute = resolve(runtime)
        prepare(cell.dataset, folder, source_dir=folder / "source", progress=False)
        network = SiameseNetwork(
            NetworkConfig(backbone=BACKBONES.build("resnet18"), projector=ProjectorConfig(hidden_dim=8)), 8, 3, 224, 0
        )
        encoder = Encoder(network.backbone.to(compute.device), network.representation_dim)
        images = Images(cell.dataset, compute, folder / "choice.json")
        all_rates = LinearProbe(learning_rates=RATES, epochs=1)
        one_rate = dataclasses.replace(all_rates, learning_rates=RATES[:1])
        clock = time.perf_counter if compute.device.type == "cuda" else time.process_time

        def epoch_s(config: LinearProbe) -> float:
            heads = LinearHeads(encoder.dim, CLASSES, config, 0, compute.device)
            with images.augmented(config, 0) as augmented:
                began_s = clock()
                heads.fit(functools.partial(represented, encoder, augmented))
                if compute.device.type == "cuda":
                    torch.cuda.synchronize(compute.device)
                return clock() - began_s

        turns = {len(each.learning_rates): functools.partial(epoch_s, each) for each in (one_rate, all_rates)}
        take_turns(turns, 1)  # warms up
        seconds = take_turns(turns, ROUNDS)
    found = ratios(seconds[len(RATES)], seconds[1])
    print(f"ResNet-18, {SIZE_PX} px, {2 * CLASSES:,} images of {CLASSES:,} classes")
    print(Machine.here(compute.device.type, rounds=ROUNDS))
    for rates, each in seconds.items():
        print(f"{rates} rates: {number(median(each))} s ({span(each)})")
    print(f"ratio {number(median(found))} ({span(found)})")


if __name__ == "__main__":
    main()
