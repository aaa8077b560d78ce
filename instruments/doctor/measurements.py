"""Sections that measure: losses beside the matrix products they need, trainings by part, loaders."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from tabulate import tabulate
from torch import nn

from regbench.benchmark.meters import Stopwatch
from regbench.benchmark.rundir.directory import run_directory
from regbench.benchmark.rundir.record import Record, read_record
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.beton import Beton
from regbench.errors import RegbenchError
from regbench.instruments.cost import loaders as loader_cost
from regbench.instruments.cost import losses as loss_cost
from regbench.instruments.cost.contestants import BASELINE, CONTESTANTS
from regbench.instruments.cost.harness import table
from regbench.instruments.cost.images import SCENARIOS, Images, Scenario, make_images
from regbench.instruments.doctor.checks import run_command
from regbench.instruments.doctor.section import Bench, Outcome, section

EPOCHS = 2
_METHODS = ("sfrik_l1", "sfrik_l2", "sfrik_l3", "rbf", "auh", "simclr", "vicreg", "barlow_twins", "sigreg")
_SMALL = Scenario(name="small", height=48, width=64, quality=90, image_size=32, distinct=32, copies=4)
_PARTS = ("step_ms", "data_ms", "forward_ms", "loss_ms", "backward_ms", "optimizer_ms")


@section("Losses: time and memory, beside the matrix products that a loss over all pairs needs", limit_s=240)
def cost(bench: Bench) -> Outcome:
    """Measure as `regbench cost` does."""
    n, q = ((32, 64), (32, 64)) if bench.small else ((256, 2048, 8192), (2048, 8192, 32768))
    methods = _METHODS[:3] if bench.small else _METHODS
    budget_s = 20.0 if bench.small else 150.0
    device: Any = bench.device.type
    grid = loss_cost.Grid(methods=methods, n=n, q=q, forms=("auto",), repeats=3, budget_s=budget_s, device=device)
    rows = loss_cost.measure(grid)
    loss_cost.write(rows, grid.machine, bench.folder / "cost")
    failures = [f"{row.method}, n={row.n}, q={row.q}: {row.note}" for row in rows if row.note.startswith("failed")]
    notes = [*loss_cost.LEGEND.splitlines(), "TF32 is off: losses are computed in float32."]
    return Outcome(table(rows, loss_cost.COLUMNS, "github"), failures, notes)


@section("Training: images a second with real loading, by part, and of a bare loop without loading", limit_s=300)
def training(bench: Bench) -> Outcome:
    """Train two epochs of each network from JPEG files, and the same network in plain PyTorch on one batch."""
    networks = ("resnet18",) if bench.small else ("resnet18", "resnet50")
    images, batch = _images(bench, "training"), 16 if bench.small else 256
    rows, outcome = [], Outcome()
    for network in networks:
        record = _trained(bench, images, network, batch)
        taken, threads = record.cost, record.environment["threads"]
        if taken.step_ms is None or taken.peak_memory_bytes is None:
            raise RegbenchError(f"the training of {network} took no steps")
        rate = batch / taken.step_ms * 1e3
        torch.set_num_threads(threads)  # more of them wait for each other on a busy CPU, where a training has one
        bare = _bare_img_per_s(bench, network, batch, images.dataset.image_size)
        seen = EPOCHS * (len(Beton(images.file)) // batch) * batch
        energy = taken.energy_gpu_joules and taken.energy_gpu_joules / seen
        parts = [getattr(taken, part) for part in _PARTS]
        rows.append((network, rate, bare, rate / bare, *parts, taken.peak_memory_bytes / 2**30, energy))
        outcome.notes = [
            f"Peak: {taken.peak_memory_kind}. Threads: {threads}; the bare loop: {torch.get_num_threads()}."
        ]
    headers = (
        "network",
        "img/s",
        "bare loop",
        "ratio",
        *(part.replace("_", " ") for part in _PARTS),
        "peak GiB",
        "J/image",
    )
    outcome.table = tabulate(rows, headers, "github", floatfmt=".3g")
    outcome.notes += [
        f"Batches of {batch} images of {images.dataset.image_size} px in bf16, two views; medians over steps.",
        "Bare loop: the same layers in plain PyTorch, on a batch that lies on the device, without a loss over pairs.",
    ]
    return outcome


def _images(bench: Bench, purpose: str) -> Images:
    return make_images(_SMALL if bench.small else SCENARIOS["256"], bench.folder / purpose)


def _trained(bench: Bench, images: Images, network: str, batch: int) -> Record:
    q = 64 if bench.small else 2048
    settings = [
        *(*images.overrides, f"network={network}", "precision=bf16"),
        *("augmentation=imagenet", f"embedding_dim={q}", f"batch_size={batch}", "method=sfrik_l3", f"epochs={EPOCHS}"),
        *("optimizer.base_lr=0.01", "optimizer.warmup_epochs=0", "evaluation.protocols=[]"),
        f"runtime.device={bench.device.type}",
    ]
    runs = bench.folder / "training"
    run_command("train", *settings, "--runs-dir", str(runs))
    cell, runtime = load_run([*settings, f"runtime.runs_dir={runs}"])
    record = read_record(run_directory(runtime, "manual", cell))
    assert record is not None
    return record


def _bare_img_per_s(bench: Bench, network: str, batch: int, side_px: int) -> float:
    """Return the images a second, two views each, of the backbone and a projector in a loop of their own."""
    backbone = torchvision.models.get_model(network)
    width, q = backbone.fc.in_features, 64 if bench.small else 2048
    backbone.fc = nn.Identity()
    hidden = [nn.Linear(width, q), nn.BatchNorm1d(q), nn.ReLU(), nn.Linear(q, q), nn.BatchNorm1d(q), nn.ReLU()]
    module = nn.Sequential(backbone, *hidden, nn.Linear(q, q)).to(bench.device)
    module = module.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    views = [
        torch.randn(batch, 3, side_px, side_px, device=bench.device).contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    ]

    def step() -> None:
        with torch.autocast(bench.device.type, torch.bfloat16):
            z1, z2 = (module(view) for view in views)
        loss = (z1 - z2).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return batch / _median_ms(step, bench.device, 3 if bench.small else 20) * 1e3


def _median_ms(step: Callable[[], None], device: torch.device, rounds: int) -> float:
    watch, marks = Stopwatch(device), []
    for _ in range(rounds + 3):
        start = watch.mark()
        step()
        marks.append((start, watch.mark()))
    return statistics.median(watch.milliseconds(*pair) for pair in marks[3:])


@section("Loaders: images a second, the photometric part on the CPU and on the GPU", limit_s=240)
def loaders(bench: Bench) -> Outcome:
    """Measure as `regbench loader-bench` does."""
    cores = len(os.sched_getaffinity(0))
    seconds, rounds = (0.1, 1) if bench.small else (1.0, 2)
    images, own = _images(bench, "loaders"), (BASELINE, "regbench")
    chosen = [each for each in CONTESTANTS if each.name in own and each.interpolation == "bicubic"]
    rows, machine = loader_cost.measure([images], workers=cores, seconds=seconds, rounds=rounds, contestants=chosen)
    loader_cost.write(rows, machine, bench.folder / "loaders.csv")
    notes = [*loader_cost.LEGEND.splitlines(), str(machine)]
    return Outcome(f"```\n{loader_cost.tables(rows)}\n```", [], notes)
