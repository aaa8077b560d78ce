"""Checks of a loss that is a function of the views' embeddings, whoever wrote it.

`CHECKS` lists what is asked of every loss. `conformance` holds our own methods to it if they claim
so. The audit holds losses of other libraries to it, and looks for explanations of a deviation.

Shapes: N = batch (n), Q = embedding dimension (q).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TINY = 1e-300  # the divisor if all is 0
# The standard error of the mean is then a seventh of the deviation of single draws.
MEAN_SEEDS = 48

KEEPS_STATE = (
    "a second call with the same embeddings and seed gives another value: it draws from "
    "another generator than torch's global one, or changes a state (a centre, a schedule); compute "
    "that from the embeddings, make it a setting, or, except in a challenge, let the "
    "target_transform of a regularizer keep it"
)
"""Advice to the reader of a check about a loss whose gradient differences cannot verify."""

Views = Sequence[Tensor]
LossOfViews = Callable[..., Tensor]
"""A loss, a scalar, of the embeddings of each view, shape (n, q), and of the seed of what it draws.
"""
Outcome = tuple[float, str]
"""A deviation, and where it was."""
Mean = tuple[float, float]
"""A mean over random numbers, and its standard error: 0 if none were drawn."""


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


# What is measured.


def relative(found: Tensor, wanted: Tensor, floor: float = TINY) -> float:
    """Return the norm of the difference divided by that of `wanted`, or by `floor` if that is
    larger.

    If something is NaN, the result is infinite, because max() may lose a NaN.
    """
    difference = float((found.double() - wanted.double()).norm())
    error = difference / max(float(wanted.double().norm()), floor)
    return math.inf if math.isnan(error) else error


def errors(
    found: Views, wanted: Views, where: str, size: float = TINY, floor: float = TINY
) -> list[Outcome]:
    """Compare a value and gradients with those wanted.

    The error of the value is relative to `size` at least, those of gradients to `floor` at least.
    """
    pairs = zip(found[1:], wanted[1:], strict=True)
    of_gradients = [(relative(a, b, floor), f"gradient{where}") for a, b in pairs]
    return [(relative(found[0], wanted[0], size), f"value{where}"), *of_gradients]


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """Find the largest deviation.

    NaN counts as the largest; without the key, max() may lose it.
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


def failures(loss: LossOfViews, cases: Mapping[str, Views]) -> dict[str, str | Exception]:
    """Return what goes wrong, by case: what is NaN or infinite, `value` or `gradient`, or the error
    that the loss raises.
    """
    found: dict[str, str | Exception] = {}
    for name, views in cases.items():
        try:
            value, gradients = evaluate(loss, views)
        except Exception as error:
            found[name] = error
            continue
        if not value.isfinite():
            found[name] = "value"
        elif not torch.cat(gradients).isfinite().all():
            found[name] = "gradient"
    return found


def slope(loss: LossOfViews, views: Views, directions: Views, step: float) -> float:
    """Differentiate a loss along a direction, by differences of fourth order, so the step need
    not be tiny.
    """

    def moved(shift: float) -> float:
        return loss([z + shift * d for z, d in zip(views, directions, strict=True)]).item()

    near, far = moved(step) - moved(-step), moved(2 * step) - moved(-2 * step)
    # The differences of one step and of two cancel the term of third order.
    return (8 * near - far) / (12 * step)


def slopes(loss: LossOfViews, views: Views, step: float) -> Tensor:
    """Differentiate a loss along each view's own gradient, where a wrong factor shows most, and at
    random.

    A gradient that is wrong anywhere is wrong along a random direction.

    Returns:
        A row for each direction, float64: the view, the derivative as autograd gives it, and by
        differences.
    """
    _, gradients = evaluate(loss, views)
    generator = torch.Generator().manual_seed(3)
    found = []
    for view, gradient_NQ in enumerate(gradients):
        noise_NQ = torch.randn(gradient_NQ.shape, generator=generator, dtype=torch.float64)
        for direction_NQ in (gradient_NQ, noise_NQ.to(gradient_NQ.dtype)):
            length = direction_NQ.norm().item()
            if length == 0:
                continue
            directions = list(map(torch.zeros_like, views))
            directions[view] = direction_NQ / length
            wanted = slope(loss, views, directions, step)
            found.append((view, (gradient_NQ * directions[view]).sum().item(), wanted))
    return torch.tensor(found, dtype=torch.float64)


def mean_value(loss: LossOfViews, views: Views) -> Mean:
    """Return a loss's mean over the numbers that it draws."""
    values: list[float] = []
    for seed in range(MEAN_SEEDS):
        values.append(loss(views, seed=seed).item())
        # Two calls show whether the loss draws at all, and most losses do not.
        if seed == 1 and math.isclose(*values, rel_tol=1e-9):
            return values[0], 0.0
    found = torch.tensor(values, dtype=torch.float64)
    return found.mean().item(), (found.var() / len(found)).sqrt().item()


def chance(one: Mean, other: Mean) -> float:
    """Return how far two means may be apart by chance: five standard errors."""
    return 5 * math.hypot(one[1], other[1])


# What is asked of every loss.

Layout = tuple[int, int]
"""Number of views, and of global ones among them."""
TWO_VIEWS: Layout = (2, 2)


@dataclass(frozen=True)
class Subject:
    """A loss that is checked: one of ours, or a black box.

    Attributes:
        value: The loss as a function of embeddings, a seed and a number of global views.
        draw: Function that draws embeddings for n, q and a layout, then targets if there are any.
        size: Scale that deviations of the value are relative to.
        places: The n, q and layouts at which gradients are compared.
        step: Step of differences.
        floor: Share of `size` that errors of the gradient are relative to at least.
    """

    value: Callable[..., Tensor]
    draw: Callable[[int, int, Layout], list[Tensor]]
    size: Callable[..., float]
    places: Sequence[tuple[int, int, Layout]]
    step: float
    floor: float


def gradient(subject: Subject) -> Outcome:
    """Return the largest deviation of derivatives from differences of the value, relative to the
    largest derivative.

    No direction may be off, since a wrong addend can hide along one.
    """
    outcomes = []
    for n, q, (count, global_views) in subject.places:
        drawn = subject.draw(n, q, (count, global_views))
        views, loss = drawn[:count], of_views(subject.value, drawn[count:], global_views)
        first, second = loss(views), loss(views)
        if not torch.allclose(first, second, rtol=1e-9, equal_nan=True):
            return math.inf, KEEPS_STATE
        _, found, wanted = slopes(loss, views, subject.step).T
        # Below this, the differences' own rounding would be measured; a loss may be 0 for any two
        # images.
        least = max(subject.floor * subject.size(drawn, global_views=global_views), 1e-12)
        error = (found - wanted).abs().max().item() / max(wanted.abs().max().item(), least)
        outcomes.append((error, f"n={n}, q={q}, {count} views, {global_views} global"))
    return worst(outcomes)


def of_views(value: Callable[..., Tensor], targets: Views, global_views: int) -> LossOfViews:
    """Return a loss as a function of the views alone, with targets that stay."""

    def loss(views_NQ: Views, /, *, seed: int = 0) -> Tensor:
        return value([*views_NQ, *targets], seed=seed, global_views=global_views)

    return loss


def order_of_images(subject: Subject) -> Outcome:
    """Return the relative change of the value when the images are permuted."""
    views = subject.draw(12, 4, TWO_VIEWS)
    other = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    return change_in_the_mean(subject, views, [z_NQ[other] for z_NQ in views]), "n=12, q=4"


def order_of_views(subject: Subject) -> Outcome:
    """Return the relative change of the value when the views are exchanged."""
    views = subject.draw(12, 4, TWO_VIEWS)
    return change_in_the_mean(subject, views, [*views[1::-1], *views[:1:-1]]), "n=12, q=4"


def change(subject: Subject, views: Views, other: Views) -> float:
    """Return the relative change of the value by other embeddings, with the same random numbers."""
    return abs(subject.value(other).item() - subject.value(views).item()) / subject.size(views)


def change_in_the_mean(subject: Subject, views: Views, other: Views) -> float:
    """Return `change`; for a loss that draws for each image, that of the mean beyond chance."""
    found = change(subject, views, other)
    if found <= 1e-10:  # of nearly all losses, which need no mean
        return found
    before, after = mean_value(subject.value, views), mean_value(subject.value, other)
    return max(abs(after[0] - before[0]) - chance(before, after), 0.0) / subject.size(views)


@dataclass(frozen=True)
class Check:
    """A question about a loss.

    Attributes:
        measure: Function that returns the largest deviation and its place.
        bound: Largest deviation that is allowed of our methods.
        claim: The claim in a method's metadata that the check is about; empty if it is for all.
        allowed: Largest deviations that are allowed of other losses, in float64 and of those that
            take float32 only.
        words: What is done to other losses, in the audit's words.
    """

    measure: Callable[[Any], Outcome | None]
    bound: float
    claim: str = ""
    allowed: tuple[float, float] = (math.nan, math.nan)
    words: str = ""


CHECKS = {
    "gradient": Check(gradient, 1e-6, "exact_gradient", (1e-5, 0.02)),
    "order of images": Check(
        order_of_images, 1e-10, "", (1e-8, 1e-3), "the images of the batch are permuted"
    ),
    "order of views": Check(
        order_of_views, 1e-10, "symmetric", (1e-8, 1e-3), "the views are exchanged"
    ),
}
