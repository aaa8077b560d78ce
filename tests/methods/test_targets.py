"""Losses of predictions and targets: the published ones, and any regularizer beside a predictor or a teacher."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import lightly.loss
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regbench import methods
from regbench.methods import Engine
from regbench.methods.targets import loss_of_targets

assert_close = functools.partial(torch.testing.assert_close, rtol=1e-8, atol=1e-12)


def draw(count: int, n: int = 12, q: int = 7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(n, q, dtype=torch.float64, generator=generator) for _ in range(count)]


def of_two_views() -> tuple[list[Tensor], list[Tensor]]:
    """Predictions, which need a gradient, and targets."""
    p1, p2, t1, t2 = draw(4)
    return [p1.requires_grad_(), p2.requires_grad_()], [t1, t2]


def assert_same(name: str, wanted: Tensor, predictions: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Compare value and gradients in every form with those of another loss."""
    gradients = torch.autograd.grad(wanted, predictions)
    method = methods.build(name)
    for form in ("auto", *method.forms):
        loss = loss_of_targets(method, predictions, targets, Engine(form=form))
        assert_close(loss.total, wanted)
        assert_close(sum(loss.terms.values()), wanted.detach())
        assert_close(torch.autograd.grad(loss.total, predictions), gradients)


def test_byol_and_simsiam_of_lightly() -> None:
    """Lightly has the negative cosine, of which BYOL's sum over both orders is an affine function."""
    (p1, p2), (t1, t2) = predictions, targets = of_two_views()
    cosine = lightly.loss.NegativeCosineSimilarity()
    assert_same("simsiam", 0.5 * (cosine(p1, t2) + cosine(p2, t1)), predictions, targets)
    assert_same("byol", 4 + 2 * (cosine(p1, t2) + cosine(p2, t1)), predictions, targets)


def test_moco_v3_is_the_sum_of_two_cross_entropies() -> None:
    (p1, p2), (t1, t2) = predictions, targets = of_two_views()

    def contrast(query: Tensor, keys: Tensor) -> Tensor:
        cosines = F.cosine_similarity(query[:, None], keys[None], dim=2)
        return F.cross_entropy(cosines, torch.arange(len(query))) * 2

    assert_same("moco_v3", contrast(p1, t2) + contrast(p2, t1), predictions, targets)


@pytest.mark.parametrize(("done", "temperature"), [(0.25, 1 / 16), (0.75, 3 / 32)])
def test_dino_of_lightly(done: float, temperature: float) -> None:
    """The center begins at zero and follows the targets of the step before; the temperature rises, and then stays."""
    # Lightly has the temperature in single precision.
    temperatures = {"first_teacher_temperature": 1 / 32, "teacher_temperature": 3 / 32}
    method = methods.build("dino", prototypes=7, warmup=0.5, **temperatures)
    theirs, centering = lightly.loss.DINOLoss(output_dim=7, warmup_teacher_temp_epochs=1), method.target_transform()
    assert centering is not None
    theirs.double(), centering.double()
    for _ in range(2):
        predictions, targets = of_two_views()
        wanted = theirs(targets, predictions, teacher_temp=temperature)
        found = loss_of_targets(method, predictions, centering(targets, done, None), Engine())
        assert_close(found.total, wanted)
        assert_close(torch.autograd.grad(found.total, predictions), torch.autograd.grad(wanted, predictions))
        assert_close(centering.center, theirs.center.flatten())
    assert torch.any(theirs.center != 0)


def test_swav_of_lightly() -> None:
    predictions, _ = of_two_views()
    method = methods.build("swav", temperature=0.3, epsilon=0.2)
    wanted = lightly.loss.SwaVLoss(temperature=0.3, sinkhorn_epsilon=0.2)(predictions, [])
    found = loss_of_targets(method, predictions, [z.detach() for z in predictions], Engine())
    assert_close(found.total, wanted[0])
    assert_close(torch.autograd.grad(found.total, predictions), torch.autograd.grad(wanted, predictions))


@pytest.mark.parametrize("name", ["sfrik_l2", "vicreg", "simclr", "mmcr"])
def test_a_regularizer_is_the_mean_over_both_orders(name: str) -> None:
    (p1, p2), (t1, t2) = predictions, targets = of_two_views()
    textbook = Engine(form="textbook")
    both = [methods.build(name).loss(*pair, engine=textbook) for pair in ((p1, t2), (p2, t1))]
    assert_same(name, 0.5 * (both[0] + both[1]), predictions, targets)


def test_local_views_are_compared_with_the_targets_of_the_global_ones() -> None:
    p1, p2, p3, t1, t2 = draw(5)
    predictions = [p.requires_grad_() for p in (p1, p2, p3)]
    pairs = ((p2, t1), (p3, t1), (p1, t2), (p3, t2))
    wanted = torch.stack([methods.build("vicreg").loss(p, t) for p, t in pairs]).mean()
    assert_same("vicreg", wanted, predictions, [t1, t2])


def test_a_gradient_flows_to_the_targets_that_need_one() -> None:
    p1, p2 = draw(2)
    z1, z2 = p1.clone().requires_grad_(), p2.clone().requires_grad_()
    loss = loss_of_targets(methods.build("vicreg"), [z1, z2], [z1, z2], Engine()).total
    wanted = methods.build("vicreg").loss(z1, z2)
    # The loss is symmetric, so without a stop both orders are the loss itself.
    assert_close(loss, wanted)
    assert_close(torch.autograd.grad(loss, (z1, z2)), torch.autograd.grad(wanted, (z1, z2)))
