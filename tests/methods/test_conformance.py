"""What every registered method must do, whoever wrote it; a new method is tested by being registered."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from torch import Tensor

from regbench import RegbenchError, methods
from regbench.methods import Regularizer
from regbench.methods.kernel import KernelRegularizer

VARIANTS: dict[str, Regularizer] = {name: methods.build(name) for name in methods.names()} | {
    "generalized_distance, p=1": methods.build("generalized_distance", exponent=1.0),
    "generalized_distance, p=0.5": methods.build("generalized_distance", exponent=0.5),
    "sfrik, L=5": methods.build("sfrik", weights=(1.0, 2.0, 3.0, 4.0, 5.0)),
}
every_method = pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS.keys())


def draw(n: int, q: int, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z1 = 0.6 * torch.randn(n, q, dtype=torch.float64, generator=generator)
    z2 = z1 + 0.3 * torch.randn(n, q, dtype=torch.float64, generator=generator)
    return z1.to(dtype), z2.to(dtype)


def value_and_gradients(method: Regularizer, z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    leaf1, leaf2 = z1.clone().requires_grad_(), z2.clone().requires_grad_()
    loss = method.loss(leaf1, leaf2)
    gradient1, gradient2 = torch.autograd.grad(loss, [leaf1, leaf2])
    return loss.detach(), gradient1, gradient2


@every_method
@pytest.mark.parametrize(("n", "q"), [(4, 3), (3, 5), (2, 2)])
def test_gradient(method: Regularizer, n: int, q: int) -> None:
    z1, z2 = draw(n, q)
    assert torch.autograd.gradcheck(lambda a, b: method.loss(a, b), (z1.requires_grad_(), z2.requires_grad_()))


@every_method
def test_terms_are_scalars_that_sum_to_the_loss(method: Regularizer) -> None:
    z1, z2 = draw(6, 4)
    terms = method(z1, z2).terms
    assert all(term.shape == () for term in terms.values())
    assert method.loss(z1, z2).item() == pytest.approx(sum(term.item() for term in terms.values()), rel=1e-12)


@every_method
def test_value_does_not_depend_on_the_order_of_the_images(method: Regularizer) -> None:
    z1, z2 = draw(9, 5)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    assert method.loss(z1[order], z2[order]).item() == pytest.approx(method.loss(z1, z2).item(), rel=1e-12)


@every_method
def test_value_depends_on_which_views_are_of_one_image(method: Regularizer) -> None:
    z1, z2 = draw(9, 5)
    assert method.loss(z1, z2.roll(1, dims=0)).item() > method.loss(z1, z2).item() + 1e-3


@every_method
def test_views_are_interchangeable(method: Regularizer) -> None:
    z1, z2 = draw(7, 4)
    assert method.loss(z2, z1).item() == pytest.approx(method.loss(z1, z2).item(), rel=1e-12)


def on_the_sphere(method: Regularizer) -> bool:
    return isinstance(method, KernelRegularizer) or methods.registry_name(method) in ("auh", "simclr")


@pytest.mark.parametrize("method", [m for m in VARIANTS.values() if on_the_sphere(m)], ids=lambda m: repr(m)[:50])
def test_methods_on_the_sphere_see_angles_only(method: Regularizer) -> None:
    z1, z2 = draw(8, 5)
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))[0]
    value = method.loss(z1, z2).item()
    assert method.loss(z1 @ rotation, z2 @ rotation).item() == pytest.approx(value, rel=1e-11)
    lengths = torch.linspace(0.1, 7, 8, dtype=torch.float64)[:, None]
    assert method.loss(lengths * z1, z2 / lengths).item() == pytest.approx(value, rel=1e-11)


def test_vicreg_is_not_invariant_under_rotations() -> None:
    z1, z2 = draw(8, 5)
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))[0]
    vicreg = methods.build("vicreg")
    for term in ("variance", "covariance"):
        rotated, plain = vicreg(z1 @ rotation, z2 @ rotation).terms[term].item(), vicreg(z1, z2).terms[term].item()
        assert abs(rotated - plain) > 1e-3


@every_method
def test_float32_is_close_to_float64(method: Regularizer) -> None:
    z1, z2 = draw(64, 32)
    exact, *exact_gradients = value_and_gradients(method, z1, z2)
    single, *gradients = value_and_gradients(method, z1.float(), z2.float())
    assert exact.dtype == torch.float64
    assert single.dtype == torch.float32
    size = sum(abs(term.item()) for term in method(z1, z2).terms.values())
    assert single.item() == pytest.approx(exact.item(), abs=2e-6 * size)
    for gradient, exact_gradient in zip(gradients, exact_gradients, strict=True):
        assert ((gradient - exact_gradient).norm() / exact_gradient.norm()).item() < 1e-5


@every_method
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_embeddings_are_computed_in_float32(method: Regularizer, dtype: torch.dtype) -> None:
    z1, z2 = draw(16, 8, dtype=dtype)
    expected = value_and_gradients(method, z1.float(), z2.float())
    leaf1, leaf2 = z1.requires_grad_(), z2.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = method.loss(leaf1, leaf2)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected[0])
    for gradient, wanted in zip(torch.autograd.grad(loss, [leaf1, leaf2]), expected[1:], strict=True):
        assert torch.equal(gradient, wanted.to(dtype))


def degenerate() -> dict[str, tuple[Tensor, Tensor]]:
    z1, z2 = draw(6, 4, dtype=torch.float32)
    zero_row = z1.clone()
    zero_row[2] = 0
    duplicates = z1[[0, 0, 0, 3, 4, 4]]
    return {
        "collapsed": (z1[:1].repeat(6, 1), z1[:1].repeat(6, 1)),
        "collapsed on an axis": (torch.eye(6, 4)[[0] * 6], torch.eye(6, 4)[[0] * 6]),  # inner products of exactly 1
        "duplicates": (duplicates, duplicates.clone()),
        "equal views": (z1, z1.clone()),
        "opposite views": (z1, -z1),
        "two images": (z1[:2], z2[:2]),
        "two equal images": (z1[:1].repeat(2, 1), z2[:1].repeat(2, 1)),
        "a zero row": (zero_row, z2),
        "all zero": (torch.zeros_like(z1), torch.zeros_like(z1)),
        "large": (1e4 * z1, 1e4 * z2),
        "small": (1e-6 * z1, 1e-6 * z2),
    }


@every_method
@pytest.mark.parametrize("case", degenerate().keys())
def test_value_and_gradient_are_finite(method: Regularizer, case: str) -> None:
    z1, z2 = degenerate()[case]
    assert all(torch.isfinite(x).all() for x in value_and_gradients(method, z1, z2))


@every_method
def test_collapse_costs_more_than_spread(method: Regularizer) -> None:
    """What a regularizer is for: with the views aligned, one point is worse than an orthonormal set of them."""
    spread = 8 * torch.eye(8, dtype=torch.float64)
    collapsed = spread[:1].repeat(8, 1)
    assert method.loss(collapsed, collapsed).item() > method.loss(spread, spread).item() + 1e-6


@every_method
@pytest.mark.parametrize(
    ("shape1", "shape2"),
    [*itertools.permutations([(4, 3), (4, 2), (3, 3)], 2), ((1, 3), (1, 3)), ((12,), (12,)), ((2, 3, 4),) * 2],
)
def test_impossible_shapes_are_refused(method: Regularizer, shape1: tuple[int, ...], shape2: tuple[int, ...]) -> None:
    with pytest.raises(RegbenchError, match="n >= 2"):
        method(torch.ones(shape1), torch.ones(shape2))


@every_method
def test_class_names_its_source(method: Regularizer) -> None:
    data = method.metadata
    assert all(getattr(data, field) for field in ("title", "reference", "url", "formula", "time", "memory"))
    assert data.url.startswith("https://")
    assert re.search(r"\b(19|20)\d\d\b", data.reference)
    assert re.search(r"\b(19|20)\d\d\b", type(method).__doc__ or "")
