"""Sections that hold or do not: the device computes what the CPU computes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tabulate import tabulate
from torch import Tensor

from regbench import methods
from regbench.benchmark.meters import peak_extra_bytes
from regbench.benchmark.rundir.checkpoint import load_checkpoint
from regbench.benchmark.rundir.directory import run_directory, tensor_files
from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import load_dataset, load_run
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.step import Step
from regbench.datasets.config import ViewConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.photometric import chains, photometric
from regbench.datasets.prepare import prepare
from regbench.errors import RegbenchError
from regbench.instruments.conformance import draw_views, relative, value_and_gradients
from regbench.instruments.cost.images import photo
from regbench.instruments.doctor.section import Bench, Outcome, section
from regbench.instruments.plan import predict
from regbench.instruments.processes import one_line
from regbench.methods import Engine, Regularizer
from regbench.methods.decomposed import Addends
from regbench.methods.slicing import Sliced, random_directions

CLASSES, PER_CLASS = 4, 64
_PLANNED = 0.1

# What the trainings of these sections have in common: a small network on generated images of 32 px.
SETTINGS = (
    *("dataset=imagefolder", "dataset.name=generated", "dataset.image_size=32", "dataset.eval_resize=32"),
    *(f"dataset.num_classes={CLASSES}", "augmentation=small_color", "network=resnet_tiny", "precision=fp32"),
    *("embedding_dim=64", "batch_size=32", "method=sfrik_l3", "optimizer.warmup_epochs=0"),
)


@section("Losses: value and gradients in every form, beside the textbook on the CPU in float64", limit_s=240)
def losses(bench: Bench) -> Outcome:
    """Compare every method, for two and for three views, n < q and n > q."""
    sizes = ((24, 12), (12, 24)) if bench.small else ((384, 192), (192, 384))
    rows, outcome = [], Outcome()
    for name in methods.names():
        method = methods.build(name)
        textbook = _along_directions_of(bench.device, method)
        worst = {torch.float64: 0.0, torch.float32: 0.0}
        for (n, q), (count, global_views) in itertools.product(sizes, ((2, 2), (3, 1))):
            views = draw_views(n, q, count)
            wanted, _ = value_and_gradients(textbook, views, Engine(form="textbook"), global_views)
            for dtype, form in itertools.product(worst, method.forms):
                there = [view.to(bench.device, dtype) for view in views]
                found, _ = value_and_gradients(method, there, Engine(form=form), global_views)
                worst[dtype] = max(worst[dtype], *map(_relative, found, wanted))
        rows.append((name, ", ".join(method.forms), worst[torch.float64], worst[torch.float32]))
        for dtype, bound in ((torch.float64, 1e-7), (torch.float32, 1e-3)):
            if worst[dtype] > bound:
                outcome.failures.append(f"{name}: {worst[dtype]:.2g} in {_short(dtype)}, allowed are {bound:g}")
    outcome.table = tabulate(rows, ("method", "forms", "float64", "float32"), "github", floatfmt=".1e")
    outcome.notes.append("Largest norm of a difference over the norm of the CPU's.")
    compiled = _compiled_error(bench)
    outcome.notes.append(f"sfrik_l3 with its kernel built by torch.compile: {compiled:.1e} in float32")
    if compiled > 1e-3:
        outcome.failures.append(f"sfrik_l3, compiled: {compiled:.2g} in float32, allowed are 0.001")
    return outcome


def _compiled_error(bench: Bench) -> float:
    views, method = draw_views(192, 384, 2), methods.build("sfrik_l3")
    wanted, _ = value_and_gradients(method, views, Engine(form="textbook"), 2)
    there = [view.to(bench.device, torch.float32) for view in views]
    found, _ = value_and_gradients(method, there, Engine(form="gram", compile=True), 2)
    return max(map(_relative, found, wanted))


def _along_directions_of(device: torch.device, method: Regularizer) -> Regularizer:
    """Return a method that draws random directions on `device` wherever the embeddings are: devices draw others."""
    if not isinstance(method, Sliced):
        return method
    kind: type[Sliced] = type(method)

    class There(kind):  # type: ignore[valid-type, misc]
        def regularizer_of_step(self, like_NQ: Tensor) -> Callable[[Tensor], Addends]:
            there = random_directions(like_NQ.shape[1], self.directions, like_NQ.to(device)).to(like_NQ)
            return lambda u_NQ: self.sliced(u_NQ, there)

    return There(**vars(method))


def _relative(found: Tensor, wanted: Tensor) -> float:
    return relative(found.cpu(), wanted.cpu(), floor=1e-12)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@section("Training step: the same update as on the CPU", limit_s=120)
def step(bench: Bench) -> Outcome:
    """Compare two steps in float32, without TF32, of a network with batch normalisation and of a transformer."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    outcome, rows = Outcome(), []
    for network, more in (("resnet_tiny", ()), ("vit_tiny_28", ("optimizer=adamw", "optimizer.lr_scaling=none"))):
        cell, _ = load_run([*SETTINGS, f"network={network}", "optimizer.base_lr=0.01", *more])
        here, there = (_two_steps(cell, device) for device in (torch.device("cpu"), bench.device))
        errors = [_relative(torch.stack(b), torch.stack(a)) for a, b in zip(here, there, strict=True)]
        rows.append((network, *errors))
        if max(errors) > 1e-3:
            outcome.failures.append(f"{network}: {max(errors):.2g} off, allowed is 1e-3")
    outcome.table = tabulate(rows, ("network", "loss", "embeddings"), "github", floatfmt=".1e")
    outcome.notes.append("Largest relative difference over two steps; the second one sees the first one's update.")
    return outcome


def _two_steps(cell: Cell, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    call = _steps(cell, device)
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(cell.batch_size, 3, 32, 32, generator=generator).to(device) for _ in range(2)]
    stepped = [call(*views) for _ in range(2)]
    losses_ = [torch.stack(list(each.terms.values())).sum() for each in stepped]
    return losses_, [z for each in stepped for z in each.views_NQ]


def _steps(cell: Cell, device: torch.device) -> Step:
    network = SiameseNetwork(
        cell.network, cell.embedding_dim, cell.dataset.channels, cell.dataset.image_size, cell.seed
    ).to(device)
    optimizer = cell.optimizer.build_clipping(list(network.parameters()), None)
    for group in optimizer.param_groups:
        group["lr"] = cell.optimizer.base_lr
    return Step(
        network=network, optimizer=optimizer, method=cell.method, engine=Engine(even=True), precision=cell.precision
    )


@section("Waiting: a training step never makes the host wait for the device", limit_s=120)
def waiting(bench: Bench) -> Outcome:
    """Take steps while torch raises an error wherever the host would wait."""
    cuda = bench.device.type == "cuda"
    outcome = Outcome()
    for name in ("sfrik_l3", "vicreg", "simclr", "sigreg"):
        cell, _ = load_run([*SETTINGS, f"method={name}", "precision=bf16"])
        call = _steps(cell, bench.device)
        views = [torch.randn(cell.batch_size, 3, 32, 32, device=bench.device) for _ in range(2)]
        call(*views)  # what is made once may wait
        try:
            if cuda:
                torch.cuda.set_sync_debug_mode("error")
            call(*views)
        except RuntimeError as error:
            outcome.failures.append(f"{name}: {one_line(error)}")
        finally:
            if cuda:
                torch.cuda.set_sync_debug_mode("default")
    if not cuda:
        outcome.notes.append("The steps ran; on a CPU nothing can be seen of this.")
    return outcome


@section("Photometric augmentation: the same pictures as on the CPU", limit_s=120)
def photometry(bench: Bench) -> Outcome:
    """Compare the whole chain with every operation drawn for some of the images."""
    count, side_px = (16, 32) if bench.small else (128, 224)
    config = ViewConfig(jitter_p=0.8, grayscale_p=0.2, blur_p=0.5, solarize_p=0.2)
    key = draws.keys(0, 0, np.arange(count), draws.PHOTOMETRIC)
    chain = chains(draws.photometric_draws(key, config), config, 3)
    crops = torch.from_numpy(np.stack([photo(number, side_px, side_px) for number in range(count)]))
    here, there = (photometric(crops.to(device), chain).cpu() for device in (torch.device("cpu"), bench.device))
    off = (here - there).abs()
    # A pixel at solarization's threshold may fall on either side of it.
    share = float((off > 0.1).double().mean())
    outcome = Outcome(
        notes=[f"{count} images of {side_px} px: {share:.1e} of the values differ by more than 0.1 of 255"]
    )
    if share > 1e-4:
        outcome.failures.append(f"{share:.2g} of the values differ by more than 0.1 grey levels; allowed are 1e-4")
    return outcome


@section("Resume: a run that was killed ends as an undisturbed one", limit_s=180)
def resume(bench: Bench) -> Outcome:
    """Kill a training by SIGKILL at its first checkpoint; compare its last weights and its curve."""
    _generated(bench)
    settings = [*SETTINGS, "epochs=6", "evaluation.protocols=[]", "seed=1", *_runtime(bench)]
    directories = []
    for runs in ("undisturbed", "killed"):
        cell, runtime = load_run([*settings, f"runtime.runs_dir={bench.folder / runs}"])
        directories.append(run_directory(runtime, "manual", cell))
        command = _command("train", *settings, "--runs-dir", str(bench.folder / runs))
        if runs == "killed":
            _kill_at_checkpoint(command, directories[-1])
        _run(command)
    (one, _), (other, _) = (_checkpoint(directory) for directory in directories)
    weights = max(_relative(other["network"][name], value) for name, value in one["network"].items())
    curve = [abs(a["loss"] - b["loss"]) for a, b in zip(*(_history(each) for each in (one, other)), strict=True)]
    outcome = Outcome(notes=[f"weights differ by {weights:.1e}, losses of epochs by {max(curve):.1e} at most"])
    # Convolutions of cuDNN may add up in another order in another process.
    bound = 0.0 if bench.device.type == "cpu" else 1e-2
    if weights > bound:
        outcome.failures.append(f"the weights differ by {weights:.2g}; allowed is {bound:g}")
    return outcome


def _generated(bench: Bench) -> None:
    """Prepare small images of a few classes, once."""
    if (bench.folder / "data").exists():
        return
    source = bench.folder / "source"
    for part, label in itertools.product(("train", "val"), range(CLASSES)):
        place = source / part / f"class{label}"
        place.mkdir(parents=True)
        for number in range(PER_CLASS if part == "train" else PER_CLASS // 4):
            pixels = photo(1000 * label + number + 500 * (part == "val"), 40, 40)
            Image.fromarray(np.roll(pixels, label, axis=2)).save(place / f"{number}.jpg")
    dataset, _ = load_dataset([*SETTINGS[:5]])
    prepare(dataset, bench.folder / "data", source_dir=source, progress=False)


def _runtime(bench: Bench) -> list[str]:
    return [f"runtime.data_dir={bench.folder / 'data'}", f"runtime.device={bench.device.type}"]


def run_command(*arguments: str) -> str:
    """Run a command of regbench in a process of its own and return what it prints.

    Raises:
        RegbenchError: If it fails, with the last line that it says.
    """
    return _run(_command(*arguments))


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "regbench", *arguments]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        last = next((line for line in reversed(lines) if "rror" in line or "regbench: " in line), lines[-1])
        raise RegbenchError(f"{' '.join(command[2:5])} … ended with {done.returncode}: {last}")
    return done.stdout


def _kill_at_checkpoint(command: list[str], directory: Path) -> None:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (directory.is_dir() and tensor_files(directory, "checkpoint")):
        time.sleep(0.01)
    if process.poll() is not None:
        raise RegbenchError(f"the training ended with {process.returncode} before its first checkpoint")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    if (directory / "record.json").exists():
        raise RegbenchError("the training was over before it could be killed")


def _checkpoint(directory: Path) -> tuple[dict[str, Any], Any]:
    loaded = load_checkpoint(directory)
    if loaded is None:
        raise RegbenchError(f"{directory} holds no checkpoint")
    return loaded


def _history(state: dict[str, Any]) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = state["progress"]["history"]
    return history


@section("Plan: predicted memory beside the allocator's peak", limit_s=180)
def plan(bench: Bench) -> Outcome:
    """Compare for a residual network and a transformer, with a streamed loss."""
    px, batch = (32, 32) if bench.small else (224, 128)
    networks = ("resnet_tiny", "vit_tiny_28") if bench.small else ("resnet18", "resnet50", "vit_small")
    rows, outcome = [], Outcome()
    for network in networks:
        size = [f"dataset.image_size={px}", f"dataset.eval_resize={px}", f"batch_size={batch}", "precision=bf16"]
        more = ["optimizer=adamw"] if network.startswith("vit") else []
        cell, _ = load_run([*SETTINGS, *size, *more, f"network={network}"])
        predicted = predict(cell).peak_bytes
        measured = peak_extra_bytes(_trained_twice(cell, bench.device), bench.device)
        rows.append((network, predicted / 2**20, measured / 2**20, measured / predicted))
        if abs(measured / predicted - 1) > _PLANNED:
            outcome.failures.append(f"{network}: measured is {measured / predicted:.2f} times what was predicted")
    headers = ("network", "predicted MiB", "measured MiB", "measured / predicted")
    outcome.table = tabulate(rows, headers, "github", floatfmt=("", ".1f", ".1f", ".3f"))
    outcome.notes.append(f"Two steps of {batch} images of {px} px; cuDNN's workspaces are part of what is measured.")
    return outcome


def _trained_twice(cell: Cell, device: torch.device) -> Callable[[], list[Tensor]]:
    def run() -> list[Tensor]:
        call = _steps(cell, device)
        side_px = cell.dataset.image_size
        views = [torch.zeros(cell.batch_size, 3, side_px, side_px, device=device) for _ in range(2)]
        for _ in range(2):
            call(*views)
        return []

    return run


@section("Two ranks: the same losses as one, with fine-tuning on few labels after", limit_s=240)
def ranks(bench: Bench) -> Outcome:
    """Train on two GPUs by NCCL, or in two processes of a CPU by gloo, and on one."""
    gpus = torch.cuda.device_count()
    if bench.device.type == "cuda" and gpus < 2:
        return Outcome(notes=["Not run: there is one GPU."])
    _generated(bench)
    few = ["evaluation.labels1.dataset=imagefolder", *(f"evaluation.labels1.{each}" for each in SETTINGS[1:5])]
    few += [f"evaluation.labels1.dataset.{each}" for each in ("channels=3", "mean=[0.5,0.5,0.5]", "std=[0.2,0.2,0.2]")]
    rates = ["evaluation.labels1.backbone_learning_rates=[0.01]", "evaluation.labels1.head_learning_rates=[0.1]"]
    evaluations = ["evaluation.protocols=[knn,labels1]", *few, *rates, "evaluation.labels1.epochs=2"]
    settings = [*SETTINGS, "epochs=3", *evaluations, *_runtime(bench)]
    histories = []
    for count in (1, 2):
        runs = bench.folder / f"ranks{count}"
        cell, runtime = load_run([*settings, f"runtime.runs_dir={runs}"])
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"] if count > 1 else []
        _run([sys.executable, *launch, "-m", "regbench", "train", *settings, "--runs-dir", str(runs)])
        directory = run_directory(runtime, "manual", cell)
        histories.append(_history(_checkpoint(directory)[0]))
        record = read_record(directory)
        if record is None or "labels1_top1" not in {score.name for score in record.scores}:
            raise RegbenchError(f"no score of labels1 after the training by {count} ranks")
    errors = [abs(b["loss"] / a["loss"] - 1) for a, b in zip(*histories, strict=True)]
    outcome = Outcome(notes=[f"losses of three epochs differ by {max(errors):.1e} of their value at most"])
    if not max(errors) <= 1e-2:
        outcome.failures.append(f"losses of two ranks differ by {max(errors):.2g} of one's; allowed is 1e-2")
    return outcome
