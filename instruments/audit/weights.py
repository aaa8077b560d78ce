"""Factors that turn a weight of a loss into the textbook's setting, and into the publication's.

A setting of the textbook is x times a weight w of the loss if halving w changes value and gradient
of the loss as halving the setting x w changes those of the textbook. So other terms, and constants,
do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from regbench.instruments.audit.explain import SIZES, Size, in_n_and_q
from regbench.instruments.audit.finding import Finding
from regbench.instruments.audit.target import Target
from regbench.instruments.audit.textbook import textbook
from regbench.instruments.loss_checks import LossOfViews, Views, cast, evaluate
from regbench.methods import Regularizer
from regbench.methods.barlow_twins import BarlowTwins
from regbench.methods.forms.pairwise import normalize
from regbench.methods.sigreg import SIGReg
from regbench.methods.vicreg import VICReg

# The publication's weight as a function of the setting, n and q, where that is not the setting
# itself.
PUBLISHED: Mapping[tuple[type[Regularizer], str], Callable[[float, int, int], float]] = {
    # The publication's distance is a sum over q, ours a mean.
    (VICReg, "alignment_weight"): lambda weight, n, q: weight / q,
    # The publication sums the variance term over the two views; the official code takes the mean,
    # as ours does.
    (VICReg, "variance_weight"): lambda weight, n, q: weight / 2,
    # The published distance is a sum over q, the code's a mean: λ / (1 − λ) there is q times that
    # here.
    (SIGReg, "regularization_weight"): lambda weight, n, q: q * weight / (1 + (q - 1) * weight),
    # The publication has no such factor.
    (BarlowTwins, "scale"): lambda weight, n, q: math.nan,
}
# Relative changes by another ε under a root, and by rounding in single precision.
_CLOSE, _SINGLE = 2e-4, 5e-3


def weights(target: Target) -> list[Finding]:
    """Find the factor of each weight that the loss has, at several sizes."""
    method = target.claimed
    if method is None or not target.weights:
        return []
    told, plain = [], True
    for argument, (weight, setting) in target.weights.items():
        ours: dict[Size, float] = {}
        published: dict[Size, float] = {}
        convert = PUBLISHED.get((type(method), setting))
        for size in SIZES:
            ours[size] = factor = _factor(target, method, argument, size)
            published[size] = convert(factor * weight, *size) / weight if convert else factor
        if any(map(math.isnan, ours.values())):
            told.append(f"{argument} is no multiple of {setting}")
            plain = False
            continue
        words = [in_n_and_q(factors, _CLOSE) for factors in (ours, published)]
        theirs = "the publication has none"
        if words[1]:
            theirs = f"× {words[1]} = the publication's"
        told.append(f"{argument} × {words[0]} = {setting}, {theirs}")
        plain = plain and words[0] == "1" and words[1] in ("1", "")
    return [Finding("weights", "note" if plain else "convention", len(told), "; ".join(told))]


def _factor(target: Target, method: Regularizer, argument: str, size: Size) -> float:
    """Find the factor of one weight; NaN if the setting is no multiple of it."""
    weight, setting = target.weights[argument]
    views = target.draw(2, size=size)
    exact = cast(views, torch.float64)

    def of_loss(weight: float) -> LossOfViews:
        loss = replace(target, weights={**target.weights, argument: (weight, setting)}).value
        if not method.metadata.scale_invariant:
            return loss
        # The probe `value` shows whether the loss normalises.
        return lambda views, seed: loss(list(map(normalize, views)), seed=seed)

    def of_textbook(weight: float) -> LossOfViews:
        return partial(textbook, replace(method, **{setting: weight}), global_views=2)  # type: ignore[type-var]

    gradients = not target.detaches
    wanted = _change(of_loss, weight, views, gradients)

    def rest(factors: Sequence[float]) -> np.ndarray[Any, Any]:
        return (_change(of_textbook, factors[0] * weight, exact, gradients) - wanted).numpy()

    solved: Any = optimize.least_squares(rest, [1.0])
    tolerance = target.tolerance(_CLOSE, _SINGLE)
    if np.linalg.norm(solved.fun) <= tolerance * wanted.norm().item():  # not so for NaN
        return float(solved.x[0])
    return math.nan


def _change(
    loss_at: Callable[[float], LossOfViews], weight: float, views: Views, gradients: bool
) -> Tensor:
    """Compute by how much halving a weight changes the value and, unless some are detached, the
    gradients.
    """
    found = []
    for given in (weight, weight / 2):
        value, slopes = evaluate(loss_at(given), views)
        # Gradients of two views are compared; those of targets are judged apart.
        parts = [value.reshape(1), *(slope_NQ.flatten() for slope_NQ in slopes[:2] if gradients)]
        found.append(torch.cat(parts).double())
    return found[0] - found[1]
