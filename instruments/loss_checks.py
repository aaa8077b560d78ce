"""Checks of a loss that is a function of the views' embeddings, whoever wrote it.

Each check takes such a loss and returns numbers. `conformance` holds our own methods to bounds on
them; the audit puts losses of other libraries through the same and words what it finds.

Shapes: N = batch (n), Q = embedding dimension (q).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

TINY = 1e-300  # what is divided by where all is 0
# The error of the mean is then a seventh of what single draws scatter by.
MEAN_SEEDS = 48

KEEPS_STATE = (
    "a second call with the same embeddings and seed gives another value: it changes a state (a "
    "centre, a schedule); compute that from the embeddings, make it a setting, or let the "
    "target_transform of a regularizer keep it"
)
"""What the reader of a check can do about a loss whose gradient no differences can tell."""

Views = Sequence[Tensor]
Outcome = tuple[float, str]
"""A deviation, and where it was."""
Mean = tuple[float, float]
"""A mean over random numbers, and its standard error: 0 if none were drawn."""


class LossOfViews(Protocol):
    """A loss as a function of the embeddings of each view, shape (n, q), and of the seed of
    what it draws.
    """

    def __call__(self, views_NQ: Views, /, *, seed: int = 0) -> Tensor:
        """Compute the loss, a scalar."""


# What losses are given.


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let every generator begin at a seed; afterwards the CPU's goes on where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def draw_views(n: int, q: int, count: int, seed: int = 0) -> list[Tensor]:
    """Draw embeddings of several views of the same images, float64, shape (n, q) each."""
    generator = torch.Generator().manual_seed(seed)
    first = 0.6 * torch.randn(n, q, dtype=torch.float64, generator=generator)
    views = [first]
    for _ in range(count - 1):
        views.append(first + 0.3 * torch.randn(n, q, dtype=torch.float64, generator=generator))
    return views


def cast(views: Views, dtype: torch.dtype) -> list[Tensor]:
    """Return the embeddings of all views in a dtype."""
    return [z_NQ.to(dtype) for z_NQ in views]


def corner_cases() -> dict[str, list[Tensor]]:
    """Make two views' embeddings that training can meet and formulas forget, float32."""
    z1, z2 = cast(draw_views(6, 4, 2), torch.float32)
    zero_row = z1.clone()
    zero_row[2] = 0
    duplicates = z1[[0, 0, 0, 3, 4, 4]]
    axis = torch.eye(6, 4)[[0] * 6]  # inner products of exactly 1
    return {
        "collapsed": [z1[:1].repeat(6, 1), z1[:1].repeat(6, 1)],
        "collapsed on an axis": [axis, axis.clone()],
        "duplicates": [duplicates, duplicates.clone()],
        "equal views": [z1, z1.clone()],
        "opposite views": [z1, -z1],
        "two images": [z1[:2], z2[:2]],
        "two equal images": [z1[:1].repeat(2, 1), z2[:1].repeat(2, 1)],
        "a zero row": [zero_row, z2],
        "all zero": [torch.zeros_like(z1), torch.zeros_like(z1)],
        "large": [1e4 * z1, 1e4 * z2],
        "small": [1e-6 * z1, 1e-6 * z2],
    }


def permuted(views: Views) -> list[Tensor]:
    """Put the images of all views into another order."""
    order = torch.randperm(len(views[0]), generator=torch.Generator().manual_seed(1))
    return [z_NQ[order] for z_NQ in views]


# What is measured.


def relative(found: Tensor, wanted: Tensor, floor: float = TINY) -> float:
    """Return the norm of the difference over that of what is wanted, or over `floor` if that is
    larger.

    Where something is not a number it is infinite, which max() does not lose as it does NaN.
    """
    difference = float((found.double() - wanted.double()).norm())
    error = difference / max(float(wanted.double().norm()), floor)
    return math.inf if math.isnan(error) else error


def errors(
    found: Views, wanted: Views, where: str, size: float = TINY, floor: float = TINY
) -> list[Outcome]:
    """Compare a value and gradients with those wanted.

    `size` and `floor` are the least that they are measured by.
    """
    outcomes = [(relative(found[0], wanted[0], size), f"value{where}")]
    for a, b in zip(found[1:], wanted[1:], strict=True):
        outcomes.append((relative(a, b, floor), f"gradient{where}"))
    return outcomes


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """Find the largest deviation.

    One that is not a number is the largest, and would get lost in max().
    """
    return max(outcomes, key=lambda outcome: math.inf if math.isnan(outcome[0]) else outcome[0])


def evaluate(loss: LossOfViews, views: Views, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    """Compute a loss, detached, and its gradient with respect to each view; 0 where it has none."""
    leaves = [z_NQ.detach().clone().requires_grad_() for z_NQ in views]
    value = loss(leaves, seed=seed)
    if not value.requires_grad:
        return value, list(map(torch.zeros_like, leaves))
    gradients = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    return value.detach(), list(gradients)


def not_finite(loss: LossOfViews, views: Views) -> str:
    """Return what is NaN or infinite, `value` or `gradient`; empty if nothing is."""
    value, gradients = evaluate(loss, views)
    if not value.isfinite():
        return "value"
    return "" if all(gradient.isfinite().all() for gradient in gradients) else "gradient"


def slope(loss: LossOfViews, views: Views, directions: Views, step: float) -> float:
    """Differentiate a loss along a direction, by differences of fourth order, so the step need
    not be tiny.
    """

    def moved(shift: float) -> float:
        return loss([z + shift * d for z, d in zip(views, directions, strict=True)]).item()

    near, far = moved(step) - moved(-step), moved(2 * step) - moved(-2 * step)
    # The differences of one step and of two cancel the term of third order.
    return (8 * near - far) / (12 * step)


class Slope(NamedTuple):
    """A derivative along one direction in one view's embeddings: as autograd gives it, and by
    differences.
    """

    view: int
    found: float
    wanted: float


def slopes(loss: LossOfViews, views: Views, step: float) -> list[Slope]:
    """Differentiate a loss along each view's own gradient, where a wrong factor shows most, and at
    random.

    A gradient that is wrong anywhere is wrong along a random direction.
    """
    _, gradients = evaluate(loss, views)
    generator = torch.Generator().manual_seed(3)
    found = []
    for view, gradient_NQ in enumerate(gradients):
        noise_NQ = torch.randn(gradient_NQ.shape, generator=generator, dtype=torch.float64).to(
            gradient_NQ.dtype
        )
        for direction_NQ in (gradient_NQ, noise_NQ):
            length = direction_NQ.norm().item()
            if length == 0:
                continue
            directions = list(map(torch.zeros_like, views))
            directions[view] = direction_NQ / length
            wanted = slope(loss, views, directions, step)
            found.append(Slope(view, (gradient_NQ * directions[view]).sum().item(), wanted))
    return found


def mean_value(loss: LossOfViews, views: Views) -> Mean:
    """Return a loss's mean over the numbers that it draws."""
    values = [loss(views, seed=seed).item() for seed in range(2)]
    if math.isclose(*values, rel_tol=1e-9):
        return values[0], 0.0
    # Two draws tell whether it draws at all, and most losses do not.
    values += [loss(views, seed=seed).item() for seed in range(2, MEAN_SEEDS)]
    found = torch.tensor(values, dtype=torch.float64)
    return found.mean().item(), (found.var() / len(found)).sqrt().item()


def chance(one: Mean, other: Mean) -> float:
    """Return how far two means may be apart by chance: five standard errors."""
    return 5 * math.hypot(one[1], other[1])
