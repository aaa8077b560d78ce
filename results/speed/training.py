"""Trains beside a bare loop: `python results/speed/training.py [--device cpu] [NETWORKS]`.

Two epochs of SFRIK (L = 3) from JPEG files in bf16, loading included; the second one is measured.
The bare loop has the same layers in plain PyTorch, on one batch that lies on the device, without a
loss over pairs. On a CPU sizes are small, which shows that it works, not how fast.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torchvision
from tabulate import tabulate
from torch import nn

from regbench.benchmark.machine.compute import forbid_tf32
from regbench.benchmark.machine.meters import Stopwatch
from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.record_parts import Cost
from regbench.benchmark.settings.sweep import load_run
from regbench.instruments.cost.harness import in_words, machine
from made_images import SCENARIOS, PreparedImages, make_images

PARTS = ("step_ms", "data_ms", "forward_ms", "loss_ms", "backward_ms", "optimizer_ms")


def trained(images: PreparedImages, *settings: str) -> tuple[Cost, list[dict[str, Any]]]:
    """Train two epochs, of which the first also compiles and fills caches.

    Returns:
        The cost of a step, and the numbers of each epoch.
    """
    common = ("method=sfrik_l3", "epochs=2", "optimizer.base_lr=0.01", "optimizer.warmup_epochs=0")
    with tempfile.TemporaryDirectory() as runs:
        folder = f"runtime.runs_dir={runs}"
        cell, runtime = load_run(
            [*images.overrides, *common, "evaluation.protocols=[]", folder, *settings]
        )
        record = run_cell(cell, runtime, "speed")
        assert record is not None
        return record.cost, record.history  # which is read from the folder


def bare_img_per_s(network: str, batch: int, q: int, side_px: int, device: torch.device) -> float:
    """Return the images a second, two views each, of a backbone and a projector alone."""
    backbone = torchvision.models.get_model(network)
    width, backbone.fc = backbone.fc.in_features, nn.Identity()
    layers: list[nn.Module] = [backbone]
    for inputs in (width, q):
        layers += [nn.Linear(inputs, q), nn.BatchNorm1d(q), nn.ReLU()]
    # Images are laid out as regbench does it: the bare loop must not be slow for another reason.
    module = nn.Sequential(*layers, nn.Linear(q, q)).to(device)
    module = module.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    views = []
    for _ in range(2):
        view = torch.randn(batch, 3, side_px, side_px, device=device)
        views.append(view.contiguous(memory_format=torch.channels_last))
    watch = Stopwatch(device)
    marks = [watch.mark()]
    for _ in range(23 if device.type == "cuda" else 6):
        with torch.autocast(device.type, torch.bfloat16):
            z1, z2 = module(views[0]), module(views[1])
        (z1 - z2).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        marks.append(watch.mark())
    # Read at the end: to wait for the GPU after each step would stall it.
    times_ms = [watch.milliseconds(*pair) for pair in itertools.pairwise(marks)]
    return batch / statistics.median(times_ms[3:]) * 1e3  # the first three warm up


def row(network: str, images: PreparedImages, device: torch.device) -> list[object]:
    """Measure a network: a row of the table."""
    batch, q = (256, 2048) if device.type == "cuda" else (16, 64)
    sizes = f"network={network}", f"embedding_dim={q}", f"batch_size={batch}"
    cost, epochs = trained(images, *sizes, "precision=bf16", f"runtime.device={device.type}")
    rate = epochs[-1]["images"] / epochs[-1]["epoch_s"]
    bare = bare_img_per_s(network, batch, q, images.dataset.image_size, device)
    joules = None
    if cost.energy_gpu_joules is not None:
        joules = cost.energy_gpu_joules / sum(epoch["images"] for epoch in epochs)
    parts = [getattr(cost, part) for part in PARTS]
    peak_gib = (cost.peak_memory_bytes or 0) / 2**30
    return [network, batch, q, rate, bare, rate / bare, *parts, peak_gib, joules]


def main() -> None:
    """Print a table: images a second of both, times of a step's parts, memory and energy."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("networks", nargs="*", default=["resnet18", "resnet50"])
    options = parser.parse_args()
    device = torch.device(options.device)
    forbid_tf32()  # as in a training
    # On a GPU the start of the loader must be short beside an epoch.
    scenario = replace(SCENARIOS["256"], copies=100)
    if device.type == "cpu":
        scenario = replace(scenario, height=48, width=64, image_size=32, distinct=32, copies=4)
    with tempfile.TemporaryDirectory(prefix="regbench-training-") as folder:
        images = make_images(scenario, Path(folder))
        rows = [row(network, images, device) for network in options.networks]
        print(in_words(machine(options.device, ("torch", "torchvision", "ffcv"))))
        print(f"{images} to {images.dataset.image_size} px")
    heads = ("network", "batch", "q", "img/s", "bare loop", "ratio", *PARTS, "peak GiB", "J/image")
    print(tabulate(rows, heads, "github", floatfmt=".3g"))


if __name__ == "__main__":
    main()
