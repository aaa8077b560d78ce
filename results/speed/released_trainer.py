"""Trains as the authors of SFRIK released it, and by regbench: `python
results/speed/released_trainer.py [IMAGES]`.

A ResNet-18 at 64 px on JPEGs of 341 x 256 px, with loading, on a CPU. The other side is written in
the manner of the released trainer (github.com/valeoai/sfrik): torchvision's transforms on Pillow
images in worker processes, each view through the network by itself, LARS one parameter at
a time, the loss read in every step. Its mixed precision is for CUDA alone, so it computes in
float32. What only serves several GPUs is left out.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.models import resnet18

from regbench.instruments.cost.harness import in_words, machine
from turns import compare
from made_images import SCENARIOS, PreparedImages, make_images
from loaders import StoredImages
from training import trained

ROUNDS, BATCH, SIDE_PX, Q = 3, 64, 64, 2048
WEIGHT_OF_ALIGNMENT, WEIGHTS = 4000.0, (1.0, 40.0, 40.0)


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

    def __init__(self, images: PreparedImages, workers: int) -> None:
        """Make the network and the loader."""
        backbone = resnet18(zero_init_residual=True)
        width, backbone.fc = backbone.fc.in_features, nn.Identity()
        layers: list[nn.Module] = [backbone]
        for inputs in (width, Q):
            layers += [nn.Linear(inputs, Q), nn.BatchNorm1d(Q), nn.ReLU(True)]
        self._network = nn.Sequential(*layers, nn.Linear(Q, Q, bias=False))
        self._optimizer = PlainLars(self._network.parameters(), lr=0.01)
        views = StoredImages(images)
        self._loader = DataLoader(views, BATCH, shuffle=True, num_workers=workers, drop_last=True)

    def img_per_s(self) -> float:
        """Train for an epoch, and return its images a second; its workers start anew, as there."""
        began_s = time.perf_counter()
        for views in self._loader:
            self._optimizer.zero_grad()
            # Each view by itself, so that BN's statistics are those of a view.
            x, y = (nn.functional.normalize(self._network(view)) for view in views)
            alignment = nn.functional.mse_loss(x, y)
            loss = WEIGHT_OF_ALIGNMENT * alignment + (uniformity(x) + uniformity(y)) / 2
            loss.backward()
            self._optimizer.step()
            loss.item()
        return len(self._loader) * BATCH / (time.perf_counter() - began_s)


def regbench_img_per_s(images: PreparedImages, precision: str) -> float:
    """Train two epochs by regbench, and return the images a second of the last one."""
    sizes = ("network=resnet18", f"embedding_dim={Q}", f"batch_size={BATCH}")
    _, epochs = trained(images, *sizes, f"precision={precision}", "runtime.device=cpu")
    return float(epochs[-1]["images"] / epochs[-1]["epoch_s"])


def main() -> None:
    """Print the images a second of both sides, regbench in float32 and in bf16."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    scenario = replace(SCENARIOS["256"], name="jpegs", image_size=SIDE_PX, distinct=count, copies=1)
    packages = ("torch", "torchvision", "pillow")
    print(in_words(machine("cpu", packages, rounds=ROUNDS, threads=cores)))
    with tempfile.TemporaryDirectory() as name:
        images = make_images(scenario, Path(name))
        print(f"ResNet-18, {SIDE_PX} px, q = {Q}, batches of {BATCH}, images a second of {images}")
        turns: dict[str, Callable[[], float]] = {
            "as released": ReleasedTrainer(images, cores).img_per_s
        }
        for precision in ("fp32", "bf16"):
            turns[f"regbench, {precision}"] = partial(regbench_img_per_s, images, precision)
        compare(turns, ROUNDS, "as released")


if __name__ == "__main__":
    main()
