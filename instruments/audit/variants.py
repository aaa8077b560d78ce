"""What a loss may be instead of what it claims: other settings, other statistics, other methods."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regbench import methods
from regbench.errors import RegbenchError
from regbench.instruments.audit.finding import Severity
from regbench.methods import Regularizer
from regbench.methods.auh import AUH
from regbench.methods.barlow_twins import BarlowTwins
from regbench.methods.contrastive import Contrastive
from regbench.methods.decomposed import Decomposed
from regbench.methods.pairwise import normalize
from regbench.methods.vicreg import VICReg
from regbench.methods.views import mean_squared_spread

Terms = Callable[[Sequence[Tensor]], Mapping[str, Tensor]]
"""From the views to the addends of a loss."""


@dataclass(frozen=True)
class Hypothesis:
    """Something that a loss may be.

    Attributes:
        terms: Its addends.
        name: Of the finding if it is that; empty for what the loss claims.
        text: What it equals, in words.
        severity: Of the finding.
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
    yield Hypothesis(_textbook(method))
    label = method.label
    yield from _statistics(method)
    if isinstance(method, Decomposed):
        text = f"{label}'s textbook with the regularizer of all views' embeddings as one batch, in place of each view's"
        yield Hypothesis(_pooled(method), "views pooled", text)
    if not method.metadata.symmetric:
        swapped: Terms = lambda views: method.terms(views[1], views[0])  # noqa: E731
        yield Hypothesis(swapped, "views swapped", f"{label}'s textbook with the views exchanged")
    for name, value, other in _settings(method):
        text = f"{label}'s textbook with {name} = {value:.6g} in place of {getattr(method, name):.6g}"
        yield Hypothesis(_textbook(other), "another setting", text, size=value)
    for name, form, scaled in _scaled_settings(method):
        text = f"{label}'s textbook with {name} times {form}"
        yield Hypothesis(scaled, "a setting that depends on the batch", text, severity="defect")
    if method.metadata.scale_invariant:
        text = f"{label}'s textbook on unit embeddings only: the caller has to normalise"
        yield Hypothesis(_textbook(method), "does not normalise", text, on_unit_embeddings=True)
    else:
        unit: Terms = lambda views: method.view_terms([normalize(z) for z in views], len(views))  # noqa: E731
        yield Hypothesis(unit, "normalises", f"{label}'s textbook on normalised embeddings")
    for name, other in _others(method):
        text = f"{other.label}'s textbook (`{name}`), not {label}'s"
        yield Hypothesis(_textbook(other), "another method", text, severity="defect")


def _textbook(method: Regularizer) -> Terms:
    return lambda views: method.view_terms(list(views), len(views))


def _pooled(method: Decomposed) -> Terms:
    def terms(views: Sequence[Tensor]) -> Mapping[str, Tensor]:
        units = [normalize(z) if method.unit else z for z in views]
        regularizer = method.regularizer_of_step(units[0])
        alignment = mean_squared_spread(units, len(units), to_center=method.to_center)
        return {"alignment": method.alignment_scale(units[0].shape[1]) * alignment, **regularizer(torch.cat(units))}

    return terms


def _settings(method: Regularizer) -> Iterator[tuple[str, float, Regularizer]]:
    """Vary each setting that is a real number, as releases do."""
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        old = getattr(method, field.name)
        if not isinstance(old, float) or old <= 0:
            if isinstance(old, bool):
                yield field.name, not old, dataclasses.replace(method, **{field.name: not old})  # type: ignore[type-var]
            continue
        for new in (2 * old, old / 2, 4 * old, old / 4, math.sqrt(old), old**2, 1 / old, 1 - old):
            try:
                yield field.name, new, dataclasses.replace(method, **{field.name: new})  # type: ignore[type-var]
            except RegbenchError:  # no value that the setting can have
                continue


def _scaled_settings(method: Regularizer) -> Iterator[tuple[str, str, Terms]]:
    """Multiply each setting that is a real number by n, 1/n or q."""
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        old = getattr(method, field.name)
        if not isinstance(old, float) or old <= 0:
            continue
        for form, factor in (("n", lambda n, q: n), ("1/n", lambda n, q: 1 / n), ("q", lambda n, q: q)):

            def terms(
                views: Sequence[Tensor],
                name: str = field.name,
                old: float = old,
                factor: Callable[[int, int], float] = factor,
            ) -> Mapping[str, Tensor]:
                other: Regularizer = dataclasses.replace(method, **{name: old * factor(*views[0].shape)})  # type: ignore[type-var]
                return _textbook(other)(views)

            yield field.name, form, terms


def _others(method: Regularizer) -> Iterator[tuple[str, Regularizer]]:
    own = methods.registry_name(method)
    for name in methods.names():
        shared = {
            field: getattr(method, field)
            for field in methods.defaults(name)
            if field != "alignment_weight" and hasattr(method, field)
        }
        try:
            other = methods.build(name, **shared)
        except RegbenchError:
            continue
        if methods.registry_name(other) != own and other.random == method.random:
            yield name, other


def _statistics(method: Regularizer) -> Iterator[Hypothesis]:
    """Vary what a family's losses do differently: the diagonal, n against n − 1, the square root."""
    label = method.label
    if isinstance(method, Contrastive | AUH):
        kept = _contrastive_with_itself(method) if isinstance(method, Contrastive) else _auh_with_itself(method)
        text = f"{label}'s textbook with each embedding's similarity to itself in the sum"
        yield Hypothesis(kept, "diagonal kept", text, severity="defect")
    if isinstance(method, VICReg):
        for name, text, biased, root, diagonal, severity in (
            ("n for n − 1", "with the variance in the hinge over n", True, True, False, "convention"),
            ("no square root", "with the variance in the hinge in place of its root", False, False, False, "defect"),
            ("diagonal kept", "with the variances in the covariance term", False, True, True, "defect"),
        ):
            terms = _vicreg(method, biased=biased, root=root, diagonal=diagonal)
            yield Hypothesis(terms, name, f"{label}'s textbook {text}", severity=severity)  # type: ignore[arg-type]
    if isinstance(method, BarlowTwins):
        yield Hypothesis(
            _barlow_twins(method),
            "n for n − 1",
            f"{label}'s textbook with standard deviations over n − 1, products over n",
        )
        yield Hypothesis(
            _barlow_twins(method, diagonal=True, correction=0),
            "diagonal kept",
            f"{label}'s textbook with the diagonal in the redundancy",
            severity="defect",
        )


def _contrastive_with_itself(method: Contrastive) -> Terms:
    def terms(views: Sequence[Tensor]) -> Mapping[str, Tensor]:
        z1_NQ, z2_NQ = (normalize(z) for z in views)
        log_sums = []
        for a_NQ, b_NQ in ((z1_NQ, z2_NQ), (z2_NQ, z1_NQ))[: method.anchors]:
            logits = [a_NQ @ a_NQ.T] if method.own_view else []
            logits += [a_NQ @ b_NQ.T] if method.cross_view != "none" else []
            log_sums.append((torch.cat(logits, dim=1) / method.temperature).logsumexp(dim=1))
        uniformity = method.uniformity_weight * torch.cat(log_sums).mean()
        return {"alignment": method.alignment((z1_NQ * z2_NQ).sum(dim=1)), "uniformity": uniformity}

    return terms


def _auh_with_itself(method: AUH) -> Terms:
    def terms(views: Sequence[Tensor]) -> Mapping[str, Tensor]:
        units = [normalize(z) for z in views]
        means = [(-method.scale * torch.cdist(u, u).square()).exp().mean().log() for u in units]
        alignment = method.alignment_weight * (units[0] - units[1]).square().mean()
        return {"alignment": alignment, "uniformity": torch.stack(means).mean()}

    return terms


def _vicreg(method: VICReg, *, biased: bool, root: bool, diagonal: bool) -> Terms:
    def terms(views: Sequence[Tensor]) -> Mapping[str, Tensor]:
        variance, covariance = views[0].new_zeros(2)
        for z_NQ in views:
            var_Q = z_NQ.var(dim=0, correction=0 if biased else 1) + method.epsilon
            covariance_QQ = z_NQ.T.cov()
            off = covariance_QQ if diagonal else covariance_QQ - covariance_QQ.diagonal().diag()
            variance = variance + (1 - (var_Q.sqrt() if root else var_Q)).relu().mean() / 2
            covariance = covariance + off.square().sum() / z_NQ.shape[1]
        return {
            "alignment": method.alignment_weight * (views[0] - views[1]).square().mean(),
            "variance": method.variance_weight * variance,
            "covariance": method.covariance_weight * covariance,
        }

    return terms


def _barlow_twins(method: BarlowTwins, *, diagonal: bool = False, correction: int = 1) -> Terms:
    def terms(views: Sequence[Tensor]) -> Mapping[str, Tensor]:
        y1_NQ, y2_NQ = (
            (z - z.mean(dim=0)) * (z.var(dim=0, correction=correction) + method.epsilon).rsqrt() for z in views
        )
        correlation_QQ = y1_NQ.T @ y2_NQ / len(y1_NQ)
        redundancy = correlation_QQ.square().sum()
        if not diagonal:
            redundancy = redundancy - correlation_QQ.diagonal().square().sum()
        alignment = method.scale * (1 - correlation_QQ.diagonal()).square().sum()
        return {"alignment": alignment, "redundancy": method.scale * method.redundancy_weight * redundancy}

    return terms
