"""What a loss may be instead of what it claims: other settings, other statistics, other methods.

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

from regbench import methods
from regbench.errors import RegbenchError
from regbench.instruments.audit.finding import Severity
from regbench.instruments.loss_checks import Views
from regbench.methods import Regularizer
from regbench.methods.auh import AUH
from regbench.methods.barlow_twins import BarlowTwins
from regbench.methods.contrastive import Contrastive
from regbench.methods.decomposed import Decomposed
from regbench.methods.pairwise import normalize
from regbench.methods.vicreg import VICReg
from regbench.methods.views import mean_squared_spread

Addends = Mapping[str, Tensor]
Terms = Callable[[Views], Addends]
"""From the views to the addends of a loss."""
_SCALES: dict[str, Callable[[int, int], float]] = {
    "n": lambda n, q: n,
    "1/n": lambda n, q: 1 / n,
    "q": lambda n, q: q,
}


@dataclass(frozen=True)
class Hypothesis:
    """Something that a loss may be.

    Attributes:
        terms: Its addends.
        name: Name of the finding if it is that; empty for what the loss claims.
        text: What it equals, in words.
        severity: Severity of the finding.
        size: How large the difference is, as far as a number tells it.
        on_unit_embeddings: Whether it holds for normalised embeddings only.
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
    for name, text, severity, terms in _statistics(method):
        yield Hypothesis(terms, name, f"{ours} {text}", severity)
    if not method.metadata.symmetric:
        swapped: Terms = lambda views: method.terms(views[1], views[0])  # noqa: E731
        yield Hypothesis(swapped, "views swapped", f"{ours} with the views exchanged")
    for name, value, other in _settings(method):
        text = f"{ours} with {name} = {value:.6g} in place of {getattr(method, name):.6g}"
        yield Hypothesis(partial(_textbook, other), "another setting", text, size=value)
    for name in _real_settings(method):
        for form, scale in _SCALES.items():
            text = f"{ours} with {name} times {form}"
            terms = partial(_scaled_setting, method, name, scale)
            yield Hypothesis(terms, "a setting that depends on the batch", text, "defect")
    if method.metadata.scale_invariant:
        text = f"{ours} on unit embeddings only: the caller has to normalise"
        yield Hypothesis(partial(_textbook, method), "does not normalise", text, on_unit_embeddings=True)
    else:
        unit: Terms = lambda views: _textbook(method, [normalize(z_NQ) for z_NQ in views])  # noqa: E731
        yield Hypothesis(unit, "normalises", f"{ours} on normalised embeddings")
    for name, other in _others(method):
        text = f"{other.label}'s textbook (`{name}`), not {method.label}'s"
        yield Hypothesis(partial(_textbook, other), "another method", text, "defect")


def _textbook(method: Regularizer, views: Views) -> Addends:
    return method.view_terms(list(views), len(views))


def _real_settings(method: Regularizer) -> dict[str, float]:
    """Return the settings that are positive real numbers."""
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if isinstance(value, float) and value > 0}


def _settings(method: Regularizer) -> Iterator[tuple[str, float, Regularizer]]:
    """Vary each setting that is a switch or a real number, as releases do."""
    real = _real_settings(method)
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        name, old = field.name, getattr(method, field.name)
        tried: tuple[float, ...] = (not old,) if isinstance(old, bool) else ()
        if name in real:
            tried = (2 * old, old / 2, 4 * old, old / 4, math.sqrt(old), old**2, 1 / old, 1 - old)
        for new in tried:
            try:
                yield name, new, replace(method, **{name: new})  # type: ignore[type-var]
            except RegbenchError:  # no value that the setting can have
                continue


def _scaled_setting(method: Regularizer, name: str, scale: Callable[[int, int], float], views: Views) -> Addends:
    value = getattr(method, name) * scale(*views[0].shape)
    return _textbook(replace(method, **{name: value}), views)  # type: ignore[type-var]


def _others(method: Regularizer) -> Iterator[tuple[str, Regularizer]]:
    """Build every other method, with the settings that it shares with this one."""
    own = methods.registry_name(method)
    for name in methods.names():
        shared = {}
        for field in methods.defaults(name):
            # The weight of the alignment has other units in each method.
            if field != "alignment_weight" and hasattr(method, field):
                shared[field] = getattr(method, field)
        try:
            other = methods.build(name, **shared)
        except RegbenchError:
            continue
        if methods.registry_name(other) != own and other.random == method.random:
            yield name, other


def _statistics(method: Regularizer) -> Iterator[tuple[str, str, Severity, Terms]]:
    """Vary what a family's losses do differently: the diagonal, n against n − 1, the square root, views pooled."""
    itself = "with each embedding's similarity to itself in the sum"
    if isinstance(method, Contrastive):
        yield "diagonal kept", itself, "defect", partial(_contrastive_with_itself, method)
    if isinstance(method, AUH):
        yield "diagonal kept", itself, "defect", partial(_auh_with_itself, method)
    if isinstance(method, VICReg):
        yield "n for n − 1", "with the variance in the hinge over n", "convention", partial(_biased_hinge, method)
        square = partial(_hinge_of_the_variance, method)
        yield "no square root", "with the variance in the hinge in place of its root", "defect", square
        kept = partial(_variance_in_the_covariance, method)
        yield "diagonal kept", "with the variances in the covariance term", "defect", kept
    if isinstance(method, BarlowTwins):
        text = "with standard deviations over n − 1, products over n"
        yield "n for n − 1", text, "convention", partial(_barlow_twins, method, correction=1)
        kept = partial(_barlow_twins, method, diagonal=True)
        yield "diagonal kept", "with the diagonal in the redundancy", "defect", kept
    if isinstance(method, Decomposed):
        text = "with the regularizer of all views' embeddings as one batch, in place of each view's"
        yield "views pooled", text, "convention", partial(_pooled, method)


def _contrastive_with_itself(method: Contrastive, views: Views) -> Addends:
    z1_NQ, z2_NQ = (normalize(z_NQ) for z_NQ in views)
    log_sums = []
    for a_NQ, b_NQ in ((z1_NQ, z2_NQ), (z2_NQ, z1_NQ))[: method.anchors]:
        logits = [a_NQ @ a_NQ.T] if method.own_view else []
        logits += [a_NQ @ b_NQ.T] if method.cross_view != "none" else []
        log_sums.append((torch.cat(logits, dim=1) / method.temperature).logsumexp(dim=1))
    alignment = method.alignment((z1_NQ * z2_NQ).sum(dim=1))
    return {"alignment": alignment, "uniformity": method.uniformity_weight * torch.cat(log_sums).mean()}


def _auh_with_itself(method: AUH, views: Views) -> Addends:
    units = [normalize(z_NQ) for z_NQ in views]
    means = [(-method.scale * torch.cdist(u_NQ, u_NQ).square()).exp().mean().log() for u_NQ in units]
    alignment = method.alignment_weight * (units[0] - units[1]).square().mean()
    return {"alignment": alignment, "uniformity": torch.stack(means).mean()}


def _biased_hinge(method: VICReg, views: Views) -> Addends:
    n = len(views[0])
    shrunk = _textbook(method, [math.sqrt((n - 1) / n) * z_NQ for z_NQ in views])
    return {**_textbook(method, views), "variance": shrunk["variance"]}


def _hinge_of_the_variance(method: VICReg, views: Views) -> Addends:
    hinges = [(1 - z_NQ.var(dim=0) - method.epsilon).relu().mean() for z_NQ in views]
    return {**_textbook(method, views), "variance": method.variance_weight * torch.stack(hinges).mean()}


def _variance_in_the_covariance(method: VICReg, views: Views) -> Addends:
    terms = _textbook(method, views)
    squares = torch.stack([z_NQ.var(dim=0).square().mean() for z_NQ in views])
    return {**terms, "covariance": terms["covariance"] + method.covariance_weight * squares.sum()}


def _barlow_twins(method: BarlowTwins, views: Views, *, diagonal: bool = False, correction: int = 0) -> Addends:
    standard = []
    for z_NQ in views:
        variance_Q, mean_Q = torch.var_mean(z_NQ, dim=0, correction=correction)
        standard.append((z_NQ - mean_Q) * (variance_Q + method.epsilon).rsqrt())
    correlation_QQ = standard[0].T @ standard[1] / len(standard[0])
    diagonal_Q = correlation_QQ.diagonal()
    redundancy = correlation_QQ.square().sum() - (0 if diagonal else diagonal_Q.square().sum())
    alignment = method.scale * (1 - diagonal_Q).square().sum()
    return {"alignment": alignment, "redundancy": method.scale * method.redundancy_weight * redundancy}


def _pooled(method: Decomposed, views: Views) -> Addends:
    units = [normalize(z_NQ) if method.unit else z_NQ for z_NQ in views]
    regularizer = method.regularizer_of_step(units[0])
    alignment = mean_squared_spread(units, len(units), to_center=method.to_center)
    return {"alignment": method.alignment_scale(units[0].shape[1]) * alignment, **regularizer(torch.cat(units))}
