"""Measures losses beside released code: `python results/speed/released_losses.py FOLDER [N Q]`.

FOLDER holds clones of github.com/rbalestr-lab/lejepa and github.com/facebookresearch/barlowtwins,
by these names. Each side computes value and gradient of two views in float32 on one thread, and all
take turns. Processor time does not depend on what runs beside it, but for caches.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from unittest import mock

import lightly.loss
import torch
from torch import Tensor, nn

from regbench import methods
from regbench.benchmark.machine.meters import draw_embeddings
from regbench.instruments.cost.harness import in_words, machine
from turns import compare
from regbench.methods import Engine

ROUNDS = 9
Loss = Callable[[Tensor, Tensor], Tensor]


def released_sigreg(folder: str) -> Loss:
    """Return LeJEPA's loss with the authors' test, in the weights of `sigreg`."""
    sys.path.insert(0, f"{folder}/lejepa")
    lejepa = importlib.import_module("lejepa")
    test = lejepa.multivariate.SlicingUnivariateTest(
        lejepa.univariate.EppsPulley(), num_slices=1024
    )

    def loss(z1_NQ: Tensor, z2_NQ: Tensor) -> Tensor:
        views_VNQ = torch.stack([z1_NQ, z2_NQ])
        alignment = (views_VNQ - views_VNQ.mean(dim=0)).square().mean()
        value: Tensor = 0.95 * alignment + 0.05 * test(views_VNQ)
        return value

    return loss


def released_barlow_twins(folder: str, n: int, q: int) -> Loss:
    """Return the authors' loss: their model's forward pass, without networks and other
    processes.
    """
    sys.path.insert(0, f"{folder}/barlowtwins")
    released = importlib.import_module("main")
    nothing, settings = nn.Identity(), SimpleNamespace(batch_size=n, lambd=0.0051)
    model = SimpleNamespace(
        projector=nothing, backbone=nothing, bn=nn.BatchNorm1d(q, affine=False), args=settings
    )

    def loss(z1_NQ: Tensor, z2_NQ: Tensor) -> Tensor:
        with mock.patch("torch.distributed.all_reduce"):
            value: Tensor = released.BarlowTwins.forward(model, z1_NQ, z2_NQ)
        return value

    return loss


def losses(folder: str, n: int, q: int) -> dict[str, dict[str, Loss]]:
    """List the losses by method: those of others, and ours in each form."""
    found: dict[str, dict[str, Loss]] = {
        "barlow_twins": {
            "released": released_barlow_twins(folder, n, q),
            "lightly": lightly.loss.BarlowTwinsLoss(lambda_param=0.0051),
        },
        "sigreg": {"released": released_sigreg(folder)},
        "susreg": {},
    }
    for name, sides in found.items():
        method = methods.build(name, scale=1.0) if name == "barlow_twins" else methods.build(name)
        for form in ("auto", *method.forms):
            sides[form] = partial(method.loss, engine=Engine(form=form))
    return found


def timed_ms(loss: Loss, leaves: list[Tensor]) -> float:
    """Compute value and gradient, and return the processor time."""
    begun = time.process_time()
    torch.autograd.grad(loss(*leaves), leaves)
    return 1e3 * (time.process_time() - begun)


def main() -> None:
    """Print the milliseconds of each side, and the ratios to `auto`."""
    folder, *sizes = sys.argv[1:]
    n, q = map(int, sizes or ("256", "512"))
    torch.set_num_threads(1)
    leaves = draw_embeddings(n, q, 2, torch.float32, torch.device("cpu"))
    for z_NQ in leaves:
        z_NQ.requires_grad_()
    print(in_words(machine("cpu", ("torch", "lightly"), rounds=ROUNDS, n=n, q=q)))
    for name, sides in losses(folder, n, q).items():
        print(f"\n{name}, ms:")
        turns = {side: partial(timed_ms, loss, leaves) for side, loss in sides.items()}
        compare(turns, ROUNDS, "auto")


if __name__ == "__main__":
    main()
