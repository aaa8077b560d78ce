"""Measure a GPU and write a page of it: `python -m regbench.instruments.gpu --out docs/results`.

Measured are losses beside their matrix products, trainings beside a bare loop, and loaders. The
page is written anew after each part; a part that fails is named there and does not stop the others.
`--only Losses` measures one part, and the page keeps what earlier calls measured on the same
machine. With `--device cpu` everything runs on small sizes, which shows that it works, not how
fast.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from tabulate import tabulate
from torch import nn

from regbench.benchmark.machine.compute import forbid_tf32
from regbench.benchmark.machine.description import environment
from regbench.benchmark.machine.meters import Stopwatch
from regbench.benchmark.rundir.directory import run_directory
from regbench.benchmark.rundir.record import Record, read_record
from regbench.benchmark.settings.sweep import load_run
from regbench.errors import RegbenchError
from regbench.files import write_text
from regbench.instruments.cost import loader_speed, losses
from regbench.instruments.cost.images import SCENARIOS, PreparedImages, Scenario, make_images
from regbench.processes import Place, Processes, WorkFailed

METHODS = (
    "sfrik_l1",
    "sfrik_l2",
    "sfrik_l3",
    "rbf",
    "auh",
    "simclr",
    "vicreg",
    "barlow_twins",
    "sigreg",
)
SMALL = Scenario(
    name="small", height=48, width=64, quality=90, image_size=32, distinct=32, copies=4
)
PARTS = ("step_ms", "data_ms", "forward_ms", "loss_ms", "backward_ms", "optimizer_ms")


@dataclass(frozen=True)
class Bench:
    """A device to measure, and a place for files.

    Attributes:
        device: Device to measure.
        folder: Temporary files of the part.
    """

    device: torch.device
    folder: Path

    @property
    def small(self) -> bool:
        """Whether sizes are those for a CPU."""
        return self.device.type == "cpu"

    def images(self) -> PreparedImages:
        """Make images to load."""
        return make_images(SMALL if self.small else SCENARIOS["256"], self.folder)


def measure_losses(bench: Bench) -> str:
    """Measure as `regbench cost` does."""
    sizes: dict[str, Any] = {"n": (256, 2048, 8192), "q": (2048, 8192, 32768), "budget_s": 150.0}
    if bench.small:
        sizes = {"n": (32, 64), "q": (32, 64), "budget_s": 20.0}
    device: Any = bench.device.type
    rows = losses.measure(
        losses.Grid(methods=METHODS, forms=("auto",), repeats=3, device=device, **sizes)
    )
    return f"{losses.table(rows, 'github')}\n\n{losses.LEGEND}"


def measure_training(network: str, bench: Bench) -> str:
    """Train two epochs of a network from JPEG files, and the same network in plain PyTorch on
    one batch.
    """
    batch, q = (16, 64) if bench.small else (256, 2048)
    images = bench.images()
    record = train(bench, images, network, batch, q)
    cost, last = record.cost, record.history[-1]
    # Loading is part of an epoch. The first epoch also waits for memory, algorithms and workers.
    rate = last["images"] / last["epoch_s"]
    torch.set_num_threads(
        record.environment["threads"]
    )  # more would wait for each other on a busy CPU
    bare = bare_img_per_s(bench, network, batch, q, images.dataset.image_size)
    row = [rate, bare, rate / bare]
    row += [getattr(cost, part) for part in PARTS]
    row.append((cost.peak_memory_bytes or 0) / 2**30)
    images_seen = sum(epoch["images"] for epoch in record.history)
    row.append(None if cost.energy_gpu_joules is None else cost.energy_gpu_joules / images_seen)
    heads = ["img/s", "bare loop", "ratio", *PARTS, "peak GiB", "J/image"]
    return f"""{tabulate([row], heads, "github", floatfmt=".3g")}

Batches of {batch} images of {images.dataset.image_size} px in bf16, two views; loading is part of
img/s, of the last epoch, and the parts are medians over steps. Peak: {cost.peak_memory_kind}.
Threads: {torch.get_num_threads()}. Bare loop: the same layers in plain PyTorch, on a batch that
lies on the device, without a loss over pairs."""


def train(bench: Bench, images: PreparedImages, network: str, batch: int, q: int) -> Record:
    """Train two epochs by a command of its own, and read its record."""
    settings = [*images.overrides, "method=sfrik_l3", "precision=bf16", "epochs=2"]
    settings += [f"network={network}", f"embedding_dim={q}", f"batch_size={batch}"]
    settings += ["optimizer.base_lr=0.01", "optimizer.warmup_epochs=0", "evaluation.protocols=[]"]
    settings += [f"runtime.device={bench.device.type}", f"runtime.runs_dir={bench.folder / 'runs'}"]
    command = [sys.executable, "-m", "regbench", "train", *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RegbenchError(
            f"training {network} ended with {done.returncode}: {done.stderr.strip()[-300:]}"
        )
    cell, runtime = load_run(settings)
    record = read_record(run_directory(runtime, "manual", cell))
    assert record is not None
    return record


def bare_img_per_s(bench: Bench, network: str, batch: int, q: int, side_px: int) -> float:
    """Return the images a second, two views each, of the backbone and a projector in a loop of
    their own.
    """
    backbone = torchvision.models.get_model(network)
    width, backbone.fc = backbone.fc.in_features, nn.Identity()
    hidden = [
        nn.Linear(width, q),
        nn.BatchNorm1d(q),
        nn.ReLU(),
        nn.Linear(q, q),
        nn.BatchNorm1d(q),
        nn.ReLU(),
    ]
    module = nn.Sequential(backbone, *hidden, nn.Linear(q, q)).to(bench.device)
    # Images are laid out as regbench does it: the bare loop must not be slow for another reason.
    module = module.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    views = torch.randn(2, batch, 3, side_px, side_px, device=bench.device)
    laid_out = [view.contiguous(memory_format=torch.channels_last) for view in views]
    watch, times_ms = Stopwatch(bench.device), []
    # A median over twenty steps is not moved by a slow one.
    for _ in range(6 if bench.small else 23):
        start = watch.mark()
        with torch.autocast(bench.device.type, torch.bfloat16):
            z1, z2 = module(laid_out[0]), module(laid_out[1])
        (z1 - z2).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times_ms.append(watch.milliseconds(start, watch.mark()))
    return batch / statistics.median(times_ms[3:]) * 1e3  # the first three warm up


def measure_loaders(bench: Bench) -> str:
    """Measure as `regbench loader-bench` does, the photometric part on the CPU and on the GPU."""
    cores = len(os.sched_getaffinity(0))
    seconds, rounds = (0.1, 1) if bench.small else (1.0, 2)
    own = []
    for each in loader_speed.CONTESTANTS:
        if each.interpolation == "bicubic" and each.backend != "torchvision":
            own.append(each)
    lines, _ = loader_speed.measure(
        [bench.images()], workers=cores, seconds=seconds, rounds=rounds, contestants=own
    )
    return f"```\n{loader_speed.tables(lines)}\n```\n\n{loader_speed.LEGEND}"


ALL: dict[str, Callable[[Bench], str]] = {
    "Losses": measure_losses,
    "ResNet-18": partial(measure_training, "resnet18"),
    "ResNet-50": partial(measure_training, "resnet50"),
    "Loaders": measure_loaders,
}


def describe_machine(device: torch.device) -> str:
    """List versions, and each GPU with its memory."""
    # The host's name says nothing about the numbers, and the page may be published.
    facts = dict(environment(device))
    facts.pop("hostname", None)
    if device.type == "cuda":
        facts["cuda"] = torch.version.cuda
        for number in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(number)
            facts[f"GPU {number}"] = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB"
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def write_page(
    device: torch.device, out: Path, parts: Mapping[str, Callable[[Bench], str]]
) -> bool:
    """Measure each part in a process of its own, for an error of CUDA leaves nothing usable behind.

    Returns:
        Whether all parts could be measured.
    """
    forbid_tf32()  # which the description names
    head = f"# What a device does\n\n{describe_machine(device)}\n"
    if device.type == "cpu":
        head += "\n**Sizes are small: the figures say that everything runs, not how fast.**\n"
    sections = earlier_sections(out / "gpu.md", head)
    all_measured = True
    for title, measure in parts.items():
        with (
            tempfile.TemporaryDirectory(prefix="regbench-gpu-") as folder,
            Processes(1, open_bench, device, folder) as one,
        ):
            try:
                (found,) = one.ask(measure)
            except WorkFailed as error:
                found, all_measured = f"**Failed: {error}**", False
        sections[title] = found
        written = [f"\n## {title}\n\n{text}\n" for title, text in sections.items()]
        write_text(out / "gpu.md", head + "".join(written))
        print(f"{title}: {'failed' if found.startswith('**Failed') else 'measured'}")
    return all_measured


def earlier_sections(page: Path, head: str) -> dict[str, str]:
    """Read what earlier calls measured on the same machine, by title.

    Nothing where the page describes another one.
    """
    if not page.exists():
        return {}
    before, *sections = page.read_text().split("\n## ")
    if before != head:
        return {}
    found = {}
    for section in sections:
        title, text = section.split("\n\n", 1)
        found[title] = text.rstrip("\n")
    return found


def open_bench(here: Place, device: torch.device, folder: str) -> Bench:
    """Make the state of a part's process, which computes as trainings do: without TF32."""
    forbid_tf32()
    return Bench(device, Path(folder))


def main() -> None:
    """Measure and write; exit with 1 if a part failed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument(
        "--only", choices=ALL, nargs="+", default=list(ALL), help="parts; without it, all of them"
    )
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here; try it on small sizes: --device cpu")
    options.out.mkdir(parents=True, exist_ok=True)
    parts = {title: ALL[title] for title in options.only}
    sys.exit(0 if write_page(torch.device(options.device), options.out, parts) else 1)


if __name__ == "__main__":
    main()
