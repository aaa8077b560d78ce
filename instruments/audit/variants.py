"""Losses that a loss may be instead of what it claims: other settings, other statistics.

Shapes: N = batch (n), Q = embedding dimension (q).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from regbench.errors import RegbenchError
from regbench.instruments.audit.finding import Severity
from regbench.instruments.audit.textbook import earlier_batches, has_targets, published
from regbench.instruments.loss_checks import Views
from regbench.methods import Regularizer
from regbench.methods.barlow_twins import BarlowTwins
from regbench.methods.dino import DINO
from regbench.methods.forms.decomposed import Decomposed
from regbench.methods.forms.pairwise import normalize
from regbench.methods.forms.views import mean_squared_spread
from regbench.methods.vicreg import VICReg

Addends = Mapping[str, Tensor]
Terms = Callable[[Views], Addends]
"""From the views to the addends of a loss."""
SCALES: dict[str, Callable[[int, int], float]] = {
    "n": lambda n, q: n,
    "1/n": lambda n, q: 1 / n,
    "q": lambda n, q: q,
    "1/q": lambda n, q: 1 / q,
    "(n − 1)²/n²": lambda n, q: (1 - 1 / n) ** 2,
}
"""Effects of other divisors on a setting, by how they are written: a sum for a mean, the reverse,
n − 1 for n.
"""


@dataclass(frozen=True)
class Hypothesis:
    """Something that a loss may be.

    Attributes:
        terms: Addends of the loss.
        name: Name of the finding if the loss is that; empty for what the loss claims.
        text: Description of what the loss then equals.
        severity: Severity of the finding.
        size: Size of the difference; NaN if no number describes it.
        on_unit_embeddings: Whether the hypothesis is for normalised embeddings only.
    """

    terms: Terms
    name: str = ""
    text: str = ""
    severity: Severity = "convention"
    size: float = math.nan
    on_unit_embeddings: bool = False


def hypotheses(method: Regularizer) -> Iterator[Hypothesis]:
    """List what a loss may be that claims to be `method`, the likeliest first."""
    ours = f"{method.label}'s textbook"
    yield Hypothesis(partial(_textbook, method), text=ours)
    for name, text, terms in _statistics(method):
        yield Hypothesis(terms, name, f"{ours} {text}")
    if has_targets(method):

        def swapped(views: Views) -> Addends:
            return published(method, [*views[2:], *views[:2]]).terms

        text = f"{ours} with predictions and targets exchanged"
        yield Hypothesis(swapped, "targets for predictions", text, "defect")
    elif not method.metadata.symmetric:
        swapped = lambda views: method.terms(views[1], views[0])  # noqa: E731
        yield Hypothesis(swapped, "views swapped", f"{ours} with the views exchanged")

        def both(views: Views) -> Addends:
            one, other = method.terms(*views), method.terms(*views[::-1])
            return {name: (one[name] + other[name]) / 2 for name in one}

        text = f"{ours} in the mean over both orders of the views"
        yield Hypothesis(both, "both orders of views", text)
    for name, value, other in _settings(method):
        text = f"{ours} with {name} = {value:.6g} in place of {getattr(method, name):.6g}"
        yield Hypothesis(partial(_textbook, other), "another setting", text, size=value)
    for name in _real_settings(method):
        for form, scale in SCALES.items():
            text = f"{ours} with {name} times {form}"
            terms = partial(_scaled_setting, method, name, scale)
            yield Hypothesis(terms, "a setting that depends on the batch", text, "defect")
    if method.metadata.scale_invariant:
        text = f"{ours} on unit embeddings only: the caller has to normalise"
        terms = partial(_textbook, method)
        yield Hypothesis(terms, "does not normalise", text, on_unit_embeddings=True)
    else:
        unit: Terms = lambda views: _textbook(method, list(map(normalize, views)))  # noqa: E731
        yield Hypothesis(unit, "normalises", f"{ours} on normalised embeddings")


def _textbook(method: Regularizer, views: Views) -> Addends:
    return published(method, views).terms


def _real_settings(method: Regularizer) -> dict[str, float]:
    """Return the settings that are positive real numbers."""
    values = dataclasses.asdict(method)  # type: ignore[call-overload]
    return {name: value for name, value in values.items() if isinstance(value, float) and value > 0}


def _settings(method: Regularizer) -> Iterator[tuple[str, float, Regularizer]]:
    """Vary each setting that is a switch or a real number, as releases do."""
    real = _real_settings(method)
    for name, old in dataclasses.asdict(method).items():  # type: ignore[call-overload]
        tried: tuple[float, ...] = (not old,) if isinstance(old, bool) else ()
        if name in real:
            # Conventions about ½, a deviation given for a variance and the reverse, a temperature
            # for a scale, a weight for its complement.
            tried = (2 * old, old / 2, 4 * old, old / 4, math.sqrt(old), old**2, 1 / old, 1 - old)
        for new in tried:
            try:
                yield name, new, replace(method, **{name: new})  # type: ignore[type-var]
            except RegbenchError:  # no value that the setting can have
                continue


def _scaled_setting(
    method: Regularizer, name: str, scale: Callable[[int, int], float], views: Views
) -> Addends:
    value = getattr(method, name) * scale(*views[0].shape)
    return _textbook(replace(method, **{name: value}), views)  # type: ignore[type-var]


def _statistics(method: Regularizer) -> Iterator[tuple[str, str, Terms]]:
    """Vary what releases of a family do differently without a mistake: n against n − 1, views
    pooled.
    """
    if isinstance(method, VICReg):
        yield "n for n − 1", "with the variance in the hinge over n", partial(_biased_hinge, method)
    if isinstance(method, BarlowTwins):
        text = "with standard deviations over n − 1, products over n"
        yield "n for n − 1", text, partial(_unbiased_barlow_twins, method)
    if isinstance(method, DINO):
        text = "with a center that begins at the first batch's mean, in place of zero"
        yield "another first center", text, partial(_begun_with_a_batch, method)
    if isinstance(method, Decomposed) and not has_targets(method):
        text = "with the regularizer of all views' embeddings as one batch, in place of each view's"
        yield "views pooled", text, partial(_pooled, method)


def _biased_hinge(method: VICReg, views: Views) -> Addends:
    n = len(views[0])
    # Times this root, embeddings have a variance over n − 1 that equals the one over n without it.
    smaller = [math.sqrt((n - 1) / n) * z_NQ for z_NQ in views]
    shrunk = _textbook(method, smaller)
    return {**_textbook(method, views), "variance": shrunk["variance"]}


def _unbiased_barlow_twins(method: BarlowTwins, views: Views) -> Addends:
    standard = []
    for z_NQ in views:
        variance_Q, mean_Q = torch.var_mean(z_NQ, dim=0, correction=1)
        standard.append((z_NQ - mean_Q) * (variance_Q + method.epsilon).rsqrt())
    correlation_QQ = standard[0].T @ standard[1] / len(standard[0])
    diagonal_Q = correlation_QQ.diagonal()
    redundancy = correlation_QQ.square().sum() - diagonal_Q.square().sum()
    return {
        "alignment": method.scale * (1 - diagonal_Q).square().sum(),
        "redundancy": method.scale * method.redundancy_weight * redundancy,
    }


def _begun_with_a_batch(method: DINO, views: Views) -> Addends:
    first_Q = torch.stack(earlier_batches(views)[0][2:]).mean(dim=(0, 1))
    # A part of the first center is left after the averages of two steps; the published center,
    # which begins at zero, has no such part.
    shift_Q = method.center_momentum**2 * first_Q
    return _textbook(method, [*views[:2], *(t_NQ - shift_Q for t_NQ in views[2:])])


def _pooled(method: Decomposed, views: Views) -> Addends:
    units = method.seen(views)
    regularizer = method.regularizer_of_step(units[0])
    alignment = mean_squared_spread(units, len(units), to_center=method.to_center)
    return {
        "alignment": method.alignment_scale(units[0].shape[1]) * alignment,
        **regularizer(torch.cat(list(units))),
    }
