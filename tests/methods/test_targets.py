"""Losses of predictions and targets: the published ones, and any regularizer beside a predictor
or a teacher.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import lightly.loss
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regbench import methods
from regbench.methods import Engine
from regbench.methods.base import Loss
from regbench.methods.forms.targets import loss_of_targets

assert_close = functools.partial(torch.testing.assert_close, rtol=1e-8, atol=1e-12)


def draw(count: int, n: int = 12, q: int = 7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(n, q, dtype=torch.float64, generator=generator) for _ in range(count)]


def of_two_views() -> tuple[list[Tensor], list[Tensor]]:
    """Predictions, which need a gradient, and targets."""
    p1, p2, t1, t2 = draw(4)
    return [p1.requires_grad_(), p2.requires_grad_()], [t1, t2]


def assert_equal(found: Tensor, wanted: Tensor, predictions: Sequence[Tensor]) -> None:
    """Compare value and gradients."""
    assert_close(found, wanted)
    own, other = (
        torch.autograd.grad(each, predictions, retain_graph=True) for each in (found, wanted)
    )
    assert_close(own, other)


def assert_same(
    name: str, wanted: Tensor, predictions: Sequence[Tensor], targets: Sequence[Tensor]
) -> None:
    """Compare value and gradients in every form with those of another loss."""
    method = methods.build(name)
    for form in ("auto", *method.forms):
        loss = loss_of_targets(method, predictions, targets, Engine(form=form))
        assert_equal(loss.total, wanted, predictions)
        assert_close(sum(loss.terms.values()), wanted.detach())


def loss_of_step(
    transform: nn.Module, predictions: Sequence[Tensor], targets: Sequence[Tensor], done: float
) -> Loss:
    """Compute what a step does of a method with a state, or one that follows the training."""
    method, found = transform(targets, [p.detach() for p in predictions], done, None)
    return loss_of_targets(method, predictions, found, Engine())


SYMMETRIC = [name for name in methods.names() if methods.build(name).metadata.symmetric]


@pytest.mark.parametrize("name", SYMMETRIC)
def test_a_stopped_gradient_alone_halves_the_gradient_of_a_symmetric_loss(name: str) -> None:
    views = [z.requires_grad_() for z in draw(2)]
    engine = Engine(draw_seed=lambda: 0)
    plain = torch.autograd.grad(methods.build(name)(*views, engine=engine).total, views)
    stopped = loss_of_targets(methods.build(name), views, [z.detach() for z in views], engine)
    for found, wanted in zip(torch.autograd.grad(stopped.total, views), plain, strict=True):
        assert_close(found, wanted / 2)


def test_byol_and_simsiam_of_lightly() -> None:
    """Lightly has the negative cosine, of which BYOL's sum over both orders is an affine
    function.
    """
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
    """The center begins at zero and follows the targets of the step before.

    The temperature rises, and then stays.
    """
    # Lightly has the temperature in single precision.
    temperatures = {"first_teacher_temperature": 1 / 32, "teacher_temperature": 3 / 32}
    method = methods.build("dino", prototypes=7, warmup=0.5, **temperatures)
    theirs = lightly.loss.DINOLoss(output_dim=7, warmup_teacher_temp_epochs=1)
    centering = method.target_transform(7)
    assert centering is not None
    theirs.double(), centering.double()
    for _ in range(2):
        predictions, targets = of_two_views()
        wanted = theirs(targets, predictions, teacher_temp=temperature)
        found = loss_of_step(centering, predictions, targets, done)
        assert_equal(found.total, wanted, predictions)
        assert_close(centering.center, theirs.center.flatten())
    assert torch.any(theirs.center != 0)


def test_tico_over_the_steps_is_that_of_released_codes() -> None:
    """On the batch of both orders of the views; C begins at zero and is a constant of each step.

    sayannag/TiCo-pytorch lets the gradient flow through the batch's share of C too; lightly does
    not.
    """
    beta, rho = 0.75, 3.0
    method = methods.build("tico", covariance_weight=rho, covariance_momentum=beta)
    assert (method.forms, len(methods.build("tico").forms)) == (("textbook",), 3)
    running = method.target_transform(7)
    assert running is not None
    running.double()
    library = lightly.loss.TiCoLoss(beta=beta, rho=rho)
    covariance = torch.zeros(7, 7, dtype=torch.float64)
    for n in (12, 13, 14):
        p1, p2, t1, t2 = draw(4, n)
        predictions = [p1.requires_grad_(), p2.requires_grad_()]
        found = loss_of_step(running, predictions, [t1, t2], 0.0)
        z1, z2 = F.normalize(torch.cat([p1, p2]), dim=1), F.normalize(torch.cat([t2, t1]), dim=1)
        covariance = beta * covariance + (1 - beta) * z1.detach().T @ z1.detach() / len(z1)
        released = 1 - (z1 * z2).sum(dim=1).mean() + rho * (z1 @ covariance * z1).sum(dim=1).mean()
        for wanted in (released, library(z1, z2)):
            assert_equal(found.total, wanted, predictions)
        assert_close(running.covariance, covariance)
    assert not running.covariance.requires_grad


@pytest.mark.parametrize(("done", "times"), [(0.0, 8.0), (0.05, 4.5), (0.1, 1.0), (0.7, 1.0)])
def test_mec_in_training_is_that_of_the_released_code(done: float, times: float) -> None:
    """`loss_func` of xinliu20/MEC, with its `lamda_inv` of the step."""
    predictions, targets = of_two_views()
    n, q = predictions[0].shape
    inverse = times * n * 3.0 / q

    def traces(p: Tensor, z: Tensor) -> Tensor:
        c = F.normalize(p, dim=1) @ F.normalize(z, dim=1).T / inverse
        powers = [torch.linalg.matrix_power(c, k).trace() / k for k in range(1, 5)]
        total: Tensor = powers[0] - powers[1] + powers[2] - powers[3]
        return total

    both = traces(targets[0], predictions[1]) + traces(targets[1], predictions[0])
    wanted = -0.5 * inverse / n * both
    rising = methods.build("mec", distortion=3.0, warmup=0.1).target_transform(q)
    assert rising is not None
    found = loss_of_step(rising, predictions, targets, done)
    assert_equal(found.total, wanted, predictions)


def test_swav_of_lightly() -> None:
    predictions, _ = of_two_views()
    method = methods.build("swav", temperature=0.3, epsilon=0.2)
    wanted = lightly.loss.SwaVLoss(temperature=0.3, sinkhorn_epsilon=0.2)(predictions, [])
    found = loss_of_targets(method, predictions, [z.detach() for z in predictions], Engine())
    assert_equal(found.total, wanted[0], predictions)


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
    assert_equal(loss, wanted, (z1, z2))
