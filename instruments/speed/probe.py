"""Measures what eight learning rates cost over one in linear probing: python instruments/speed/probe.py [OVERRIDES]."""

from __future__ import annotations

import dataclasses
import functools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.compute import resolve
from regbench.benchmark.evaluate.features import Batches, Encoder, Epochs, Features, Images
from regbench.benchmark.evaluate.linear import LinearHeads, LinearProbe, shuffled
from regbench.benchmark.settings.cell import NetworkConfig, ProjectorConfig
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.network import SiameseNetwork
from regbench.datasets.prepare import prepare
from regbench.instruments.cost.harness import Machine, median, number, ratios, span, take_turns

RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 10.0)
CLASSES, ROUNDS, SIZE_PX = 1000, 5, 64
CACHED = ((128, 10), (512, 10), (512, 100), (2048, 1000))
"""Widths of cached features, and numbers of classes."""
CACHED_IMAGES = 10_000


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


def cached(dim: int, classes: int) -> None:
    """Print the same of features that are kept."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.randint(classes, (CACHED_IMAGES,), generator=generator).to(device)
    features = Features(torch.randn(CACHED_IMAGES, dim, generator=generator).to(device), labels_N)

    def epoch_s(config: LinearProbe) -> float:
        heads = LinearHeads(dim, classes, config, 0, device)
        return seconds(lambda: heads.fit(functools.partial(shuffled, features, 256, 0, device)), device)

    def products_s(config: LinearProbe) -> float:
        weight_KD = torch.randn(len(config.learning_rates) * classes, dim, device=device)

        def multiply() -> None:
            for x_ND in features.x_ND.split(256):
                (weight_KD @ x_ND.T) @ x_ND

        return seconds(multiply, device)

    what = f"cached features of width {dim}, {CACHED_IMAGES:,} images of {classes} classes"
    compare(what, epoch_s)
    compare(f"{what}: the products alone", products_s)


def seconds(call: Callable[[], None], device: torch.device) -> float:
    """Return what a call takes; on a CPU in the process's own CPU time, which other work there hardly changes."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    began_s = clock()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - began_s


def compare(what: str, epoch_s: Callable[[LinearProbe], float]) -> None:
    """Print the seconds of an epoch with one rate and with eight, in turns, and the median of the rounds' ratios."""
    all_rates = LinearProbe(learning_rates=RATES, epochs=1)
    one_rate = dataclasses.replace(all_rates, learning_rates=RATES[:1])
    turns = {len(each.learning_rates): functools.partial(epoch_s, each) for each in (one_rate, all_rates)}
    take_turns(turns, 1)  # warms up
    found = take_turns(turns, ROUNDS)
    shares = ratios(found[len(RATES)], found[1])
    print(what)
    for rates, each in found.items():
        print(f"  {rates} rates: {number(median(each))} s ({span(each)})")
    print(f"  ratio {number(median(shares))} ({span(shares)})")


def main() -> None:
    """Compare one rate with eight, on images that are cropped and flipped at random and on cached features."""
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

        def epoch_s(config: LinearProbe) -> float:
            heads = LinearHeads(encoder.dim, CLASSES, config, 0, compute.device)
            with images.augmented(config, 0) as augmented:
                return seconds(lambda: heads.fit(functools.partial(represented, encoder, augmented)), compute.device)

        print(Machine.here(compute.device.type, rounds=ROUNDS))
        compare(f"ResNet-18, {SIZE_PX} px, {2 * CLASSES:,} images of {CLASSES:,} classes", epoch_s)
    for dim, classes in CACHED:
        cached(dim, classes)


if __name__ == "__main__":
    main()
