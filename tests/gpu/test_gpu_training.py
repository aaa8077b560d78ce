"""Training on a GPU: its steps, its pictures, its memory, and what a kill or a second rank
changes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from regbench import methods
from regbench.benchmark.evaluate.features import Features
from regbench.benchmark.machine.meters import peak_extra_bytes
from regbench.benchmark.rundir.directory import run_directory, tensor_files
from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.config import ViewConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.photometric import chains, photometric
from regbench.instruments.loss_checks import relative
from regbench.sweeps.predict import predict
from tests.gpu.training import (
    SETTINGS,
    as_loaded,
    losses_of,
    photo,
    run_regbench,
    state_of,
    step_of,
)
from tests.waiting import wait_for

TRANSFORMER = ("optimizer=adamw", "optimizer.lr_scaling=none")


def two_steps(cell: Cell, device: torch.device) -> tuple[Tensor, Tensor]:
    """Take two steps on random views; the second one sees what the first one changed."""
    step = step_of(cell, device)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(cell.batch_size, 3, 32, 32, generator=generator) for _ in range(2)]
    views = as_loaded(cell, drawn, device)
    stepped = [step(*views) for _ in range(2)]
    losses = [sum(each.terms.values(), torch.zeros((), device=device)) for each in stepped]
    embeddings = [z_NQ for each in stepped for z_NQ in each.views_NQ]
    return torch.stack(losses).cpu(), torch.stack(embeddings).cpu()


@pytest.mark.parametrize(("network", "more"), [("resnet_tiny", ()), ("vit_tiny_28", TRANSFORMER)])
def test_a_step_is_that_of_the_cpu(
    network: str, more: tuple[str, ...], device: torch.device
) -> None:
    """In float32."""
    cell, _ = load_run([*SETTINGS, f"network={network}", "optimizer.base_lr=0.01", *more])
    here, there = two_steps(cell, torch.device("cpu")), two_steps(cell, device)
    assert max(map(relative, there, here)) <= 1e-3


# They wait for torch's check that a factor, eigenvalues or singular values were found, T-REGS for
# its tree.
WAITING = {"corinfomax", "ivne", "mmcr", "tcr", "tregs", "w_mse", "wasserstein_uniformity"}


@pytest.mark.parametrize(
    "method",
    [name for name in methods.names() if name not in WAITING and not methods.build(name).needs],
)
def test_a_step_never_makes_the_host_wait(method: str, device: torch.device) -> None:
    """On a CPU nothing can be seen of it but that the steps are taken."""
    cell, _ = load_run([*SETTINGS, f"method={method}", "precision=bf16"])
    step = step_of(cell, device)
    views = as_loaded(cell, [torch.randn(cell.batch_size, 3, 32, 32) for _ in range(2)], device)
    step(*views)  # what is made once may wait
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        step(*views)
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def test_images_of_some_classes_are_found_on_the_device(device: torch.device) -> None:
    features = Features(torch.eye(3, device=device), torch.tensor([0, 1, 2], device=device))
    assert features.of_classes(torch.tensor([2, 0])).y_N.tolist() == [0, 2]


def test_the_augmentation_gives_the_pictures_of_the_cpu(device: torch.device) -> None:
    """Of the whole chain, with every operation drawn for some of the images."""
    count, side_px = (128, 224) if device.type == "cuda" else (16, 32)
    config = ViewConfig(jitter_p=0.8, grayscale_p=0.2, blur_p=0.5, solarize_p=0.2)
    key = draws.keys(0, 0, np.arange(count), draws.PHOTOMETRIC)
    chain = chains(key, config, 3)
    crops = torch.from_numpy(np.stack([photo(number, side_px) for number in range(count)]))
    here, there = photometric(crops, chain), photometric(crops.to(device), chain)
    # A pixel at solarization's threshold may fall on either side of it.
    assert ((here - there.cpu()).abs() > 0.1).double().mean() <= 1e-4


@pytest.mark.parametrize(
    ("network", "small"),
    [("resnet18", "resnet_tiny"), ("resnet50", ""), ("vit_small", "vit_tiny_28")],
)
def test_a_plan_is_within_a_tenth_of_the_peak(
    network: str, small: str, device: torch.device
) -> None:
    px, batch, precision = 224, 128, "bf16"
    if device.type == "cpu":
        if not small:
            pytest.skip("too large for a CPU")
        # Without instructions for bf16, a CPU multiplies in copies that no GPU needs.
        network, px, batch, precision = small, 32, 32, "fp32"
    more = ["optimizer=adamw"] if network.startswith("vit") else []
    sizes = [
        f"dataset.image_size={px}",
        f"dataset.eval_resize={px}",
        f"batch_size={batch}",
        f"precision={precision}",
    ]
    cell, _ = load_run([*SETTINGS, *sizes, *more, f"network={network}"])

    def train() -> list[Tensor]:
        step = step_of(cell, device)
        views = as_loaded(cell, [torch.zeros(batch, 3, px, px) for _ in range(2)], device)
        for _ in range(2):
            step(*views)
        return []

    # What cuDNN works in is part of what is measured.
    assert peak_extra_bytes(train, device) == pytest.approx(predict(cell).peak_bytes, rel=0.1)


def kill_at_first_checkpoint(command: list[str], directory: Path) -> None:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(
        lambda: (
            process.poll() is not None
            or (directory.is_dir() and tensor_files(directory, "checkpoint"))
        )
    )
    assert process.poll() is None, "the training ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (directory / "record.json").exists()


def test_a_killed_run_ends_as_an_undisturbed_one(
    device: torch.device, generated: str, tmp_path: Path
) -> None:
    settings = [
        *SETTINGS,
        "epochs=6",
        "evaluation.protocols=[]",
        "seed=1",
        f"runtime.device={device.type}",
    ]
    settings.append(f"runtime.data_dir={generated}")
    states = []
    for runs in (tmp_path / "undisturbed", tmp_path / "killed"):
        cell, runtime = load_run([*settings, f"runtime.runs_dir={runs}"])
        directory = run_directory(runtime, "manual", cell)
        command = ["train", *settings, "--runs-dir", str(runs)]
        if runs.name == "killed":
            kill_at_first_checkpoint([sys.executable, "-m", "regbench", *command], directory)
        run_regbench(*command)
        states.append(state_of(directory))
    undisturbed, killed = states
    # Convolutions of cuDNN may add up in another order in another process.
    bound = 0.0 if device.type == "cpu" else 1e-2
    for name, weight in undisturbed["network"].items():
        assert relative(killed["network"][name].cpu(), weight.cpu(), floor=1e-12) <= bound, name
    assert losses_of(killed) == pytest.approx(losses_of(undisturbed), rel=bound, abs=0.0)


def test_two_ranks_train_as_one(device: torch.device, generated: str, tmp_path: Path) -> None:
    """By NCCL on two GPUs, or by gloo in two processes of a CPU, with fine-tuning on few labels
    after.
    """
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    settings = [
        *SETTINGS,
        "epochs=3",
        "evaluation.protocols=[knn,labels1]",
        f"runtime.device={device.type}",
    ]
    settings += [f"runtime.data_dir={generated}", "evaluation.labels1.dataset=imagefolder"]
    of_data = [setting for setting in SETTINGS if setting.startswith("dataset.")]
    of_data += ["dataset.channels=3", "dataset.mean=[0.5,0.5,0.5]", "dataset.std=[0.2,0.2,0.2]"]
    settings += [f"evaluation.labels1.{setting}" for setting in of_data]
    settings += [
        "evaluation.labels1.backbone_learning_rates=[0.01]",
        "evaluation.labels1.head_learning_rates=[0.1]",
    ]
    settings += ["evaluation.labels1.epochs=2"]
    losses = []
    for ranks in (1, 2):
        runs = tmp_path / f"ranks{ranks}"
        cell, runtime = load_run([*settings, f"runtime.runs_dir={runs}"])
        run_regbench("train", *settings, "--runs-dir", str(runs), ranks=ranks)
        directory = run_directory(runtime, "manual", cell)
        record = read_record(directory)
        assert record is not None
        assert "labels1_top1" in {score.name for score in record.scores}
        losses.append(losses_of(state_of(directory)))
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
