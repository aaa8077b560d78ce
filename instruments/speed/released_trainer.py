"""Trains as the authors of SFRIK released it, and by regbench: `python
instruments/speed/released_trainer.py [IMAGES]`.

A ResNet-18 at 64 px on JPEG files of 341 x 256 px, with loading, on a CPU. The other side is
written in the manner of the released trainer (github.com/valeoai/sfrik): torchvision's transforms
on Pillow images in worker processes, each view through the network by itself, LARS one parameter at
a time, the loss read in every step. Its mixed precision is for CUDA alone, so it computes in
float32. What only serves several GPUs is left out.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18

from regbench.benchmark.run import run_cell
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.stored.beton import Beton
from regbench.instruments.cost.harness import (
    in_words,
    machine,
    median,
    number,
    ratios,
    span,
    take_turns,
)
from regbench.instruments.cost.images import SCENARIOS, PreparedImages, make_images

ROUNDS, BATCH, SIDE_PX, Q = 3, 64, 64, 2048
WEIGHT_OF_ALIGNMENT, WEIGHTS = 4000.0, (1.0, 40.0, 40.0)


def blur(image: Image.Image) -> Image.Image:
    """Blur by a random amount."""
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


class TwoViews:
    """Makes two views of an image by VICReg's two chains."""

    def __init__(self) -> None:
        """Make the chains."""
        # The released code has the chains in this order, the paper in the other; a symmetric loss
        # cannot tell.
        self._first, self._second = self._chain(1.0, 0.0), self._chain(0.1, 0.2)

    def _chain(self, blur_p: float, solarize_p: float) -> transforms.Compose:
        bicubic = transforms.InterpolationMode.BICUBIC
        steps = [
            transforms.RandomResizedCrop(SIDE_PX, interpolation=bicubic),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            transforms.RandomGrayscale(0.2),
            transforms.RandomApply([transforms.Lambda(blur)], blur_p),
            transforms.RandomApply([transforms.Lambda(ImageOps.solarize)], solarize_p),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
        return transforms.Compose(steps)

    def __call__(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        """Make both."""
        return self._first(image), self._second(image)


class PlainLars(torch.optim.Optimizer):
    """LARS without adaptation or decay of biases and normalizations, one parameter after the
    other.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        """Optimize with momentum 0.9."""
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Change each parameter."""
        for group in self.param_groups:
            for weight in group["params"]:
                change = weight.grad
                if weight.ndim > 1:
                    change = change.add(weight, alpha=1e-6)
                    own, other = torch.norm(weight), torch.norm(change)
                    one = torch.ones_like(own)
                    # A weight that is 0 has no norm to adapt to, and would stay 0.
                    scale = torch.where(
                        own > 0, torch.where(other > 0, 0.001 * own / other, one), one
                    )
                    change = change.mul(scale)
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.mul_(0.9).add_(change)
                weight.add_(momentum, alpha=-group["lr"])


def uniformity(z_NQ: Tensor) -> Tensor:
    """Compute the mean over all pairs of the kernel of degrees 1 to 3."""
    q, t = z_NQ.shape[1], z_NQ @ z_NQ.T
    second, third = 1 / (q - 1), 3 / (q - 1)
    first_degree, second_degree = t, (1 + second) * t**2 - second
    third_degree = (1 + third) * t**3 - third * t
    return (
        WEIGHTS[0] * first_degree + WEIGHTS[1] * second_degree + WEIGHTS[2] * third_degree
    ).mean()


class ReleasedTrainer:
    """The other side: a network that goes on from epoch to epoch."""

    def __init__(self, folder: Path, workers: int) -> None:
        """Make the network and the loader of a folder of images."""
        backbone = resnet18(zero_init_residual=True)
        width, backbone.fc = backbone.fc.in_features, nn.Identity()
        layers: list[nn.Module] = [backbone]
        for inputs in (width, Q):
            layers += [nn.Linear(inputs, Q), nn.BatchNorm1d(Q), nn.ReLU(True)]
        self._network = nn.Sequential(*layers, nn.Linear(Q, Q, bias=False))
        self._optimizer = PlainLars(self._network.parameters(), lr=0.01)
        images = ImageFolder(str(folder), TwoViews())
        self._loader = DataLoader(images, BATCH, shuffle=True, num_workers=workers, drop_last=True)

    def epoch_s(self) -> float:
        """Train for an epoch, and return its seconds; its workers start anew, as there."""
        began_s = time.perf_counter()
        for views, _ in self._loader:
            self._optimizer.zero_grad()
            # Each view by itself, so that BN's statistics are those of a view.
            x, y = (nn.functional.normalize(self._network(view)) for view in views)
            alignment = nn.functional.mse_loss(x, y)
            loss = WEIGHT_OF_ALIGNMENT * alignment + (uniformity(x) + uniformity(y)) / 2
            loss.backward()
            self._optimizer.step()
            loss.item()
        return time.perf_counter() - began_s


def regbench_epoch_s(images: PreparedImages, precision: str) -> float:
    """Train two epochs by regbench, and return the seconds of the second."""
    settings = [
        *images.overrides,
        *("network=resnet18", f"embedding_dim={Q}", f"batch_size={BATCH}"),
        *("method=sfrik_l3", f"precision={precision}", "epochs=2", "optimizer.base_lr=0.01"),
        *("optimizer.warmup_epochs=0", "evaluation.protocols=[]", "runtime.device=cpu"),
    ]
    # Two epochs, because the first also compiles and fills caches.
    with tempfile.TemporaryDirectory() as runs:
        cell, runtime = load_run([*settings, f"runtime.runs_dir={runs}"])
        record = run_cell(cell, runtime, "speed")
        assert record is not None
        return float(record.history[-1]["epoch_s"])


def main() -> None:
    """Print the images a second of both sides, regbench in float32 and in bf16, and the ratios
    of each round.
    """
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    scenario = replace(SCENARIOS["256"], name="jpegs", image_size=SIDE_PX, distinct=count, copies=1)
    with tempfile.TemporaryDirectory() as name:
        images = make_images(scenario, Path(name))
        files, stored = Path(name) / "files" / "made", Beton(images.file)
        files.mkdir(parents=True)
        # The other side reads the same JPEGs, as files.
        for i in range(count):
            (files / f"{i}.jpg").write_bytes(stored.stored_bytes(i).tobytes())
        turns: dict[str, Callable[[], float]] = {
            "as released": ReleasedTrainer(files.parent, cores).epoch_s
        }
        for precision in ("fp32", "bf16"):
            turns[f"regbench, {precision}"] = partial(regbench_epoch_s, images, precision)
        take_turns(turns, 1)  # warms up
        found = take_turns(turns, ROUNDS)
        print(
            in_words(
                machine("cpu", ("torch", "torchvision", "pillow"), rounds=ROUNDS, threads=cores)
            )
        )
        print(
            f"ResNet-18, {SIDE_PX} px, q = {Q}, batches of {BATCH}, epochs of {count} of {images}"
        )
        for title, times in found.items():
            faster = ratios(found["as released"], times)
            rates = [count // BATCH * BATCH / seconds for seconds in times]
            print(
                f"{title}: {number(median(rates))} img/s, {number(median(faster))} times as fast "
                f"({span(faster)})"
            )


if __name__ == "__main__":
    main()
