"""Probes of a loss of more than two views: every view has to count, and as much as the textbook
says.

A textbook is a sum over pairs of views, over views, or of its addends. The weights that a loss has
on these follow from its values on many draws. They are held against the textbook's weights, times
the factor that the loss has with two views, so that a convention that is known from two views is
not found again.

Shapes: N = batch (n), Q = embedding dimension (q), V = views, of which the first G are global.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from regbench.instruments.audit.explain import explain_random, least_squares
from regbench.instruments.audit.finding import Finding, Severity, in_words
from regbench.instruments.audit.target import SIZE, Target
from regbench.instruments.audit.textbook import has_targets, is_own_target, step_of, textbook
from regbench.instruments.loss_checks import (
    Layout,
    Views,
    cast,
    chance,
    draw_views,
    mean_value,
    seeded,
)
from regbench.methods import Regularizer
from regbench.methods.forms.decomposed import Decomposed
from regbench.methods.forms.pairwise import normalize

# Four views have six pairs and four regularizers: the weights of these ten are overdetermined.
_DRAWS = 16
Part = tuple[int, ...]
"""The one or two views that an addend depends on; empty if it depends on all."""


def left_out(target: Target, layout: Layout) -> list[Finding]:
    """Replace one view after the other: the value has to change."""
    count, global_views = layout
    views = target.draw(count, global_views=global_views)
    other_NQ, *_ = target.draw(1, seed=19)
    value = target.value(views, global_views=global_views).item()
    changes = []
    # The prediction of the only global view has no target but its own, and is not used.
    unused = int(target.has_targets and global_views == 1)
    for view in range(unused, len(views)):
        changed = list(views)
        changed[view] = other_NQ
        changes.append(abs(target.value(changed, global_views=global_views).item() - value))
    least = target.tolerance(1e-9, 1e-5) * max(abs(value), *changes)
    forgotten = [str(view + 1) for view, change in enumerate(changes, unused) if change <= least]
    if not forgotten:
        return []
    text = f"{_with(layout)} the value does not depend on view {', '.join(forgotten)}"
    return [Finding("view left out", "defect", len(forgotten), text)]


def order(target: Target, layout: Layout) -> list[Finding]:
    """Turn the order of the global views round, and that of the local ones."""
    count, global_views = layout
    views = target.draw(count, global_views=global_views)
    turned = [*views[:global_views][::-1], *views[global_views:count][::-1], *views[count:][::-1]]
    loss = partial(target.value, global_views=global_views)
    value, other = mean_value(loss, views), mean_value(loss, turned)
    scale = max(abs(value[0]), 1e-12)
    size = abs(other[0] - value[0]) / scale
    if size <= target.tolerance(1e-8, 1e-3) + chance(value, other) / scale:
        return []
    method = target.claimed
    if method is not None:
        exact, turned_exact = cast(views, torch.float64), cast(turned, torch.float64)
        wanted = textbook(method, exact, global_views).item()
        turned_wanted = textbook(method, turned_exact, global_views).item()
        if abs(wanted - turned_wanted) > 1e-8 * abs(wanted):
            return []
    text = f"{_with(layout)} the value changes by {size:.2g} when their order is turned round"
    return [Finding("order of views", "defect" if method else "note", size, text)]


def values(target: Target, method: Regularizer) -> list[Finding]:
    """Compare the value with the textbook of as many views."""
    two = _weights(target, method, (2, 2))
    if two is None:
        # The loss draws numbers of its own, or its value is another one with two views already.
        if not method.random or explain_random(target, method) is not None:
            return []
        for layout in target.layouts:
            by_chance = explain_random(target, method, *layout)
            if by_chance is not None:
                return [by_chance]
        return []
    # An addend that is missing with two views was reported for two views.
    usual = {term.name: term.factor for term in two if abs(term.factor) > term.tolerance}
    # If the publication of a loss of pairs has two views only, it may be extended to more in any
    # way.
    severity: Severity = "defect"
    if method.kind == "pairwise" and not method.metadata.views:
        severity = "convention"
    findings: list[Finding] = []
    grown: dict[str, dict[int, float]] = {}
    for layout in target.layouts:
        count, global_views = layout
        terms = _weights(target, method, layout)
        if terms is None:
            more = "; the publication has two views, ours is the mean over pairs" * (
                severity == "convention"
            )
            text = f"{_with(layout)} it is not {method.label}'s, and no sum of its parts{more}"
            findings.append(Finding("another value of many views", severity, float("nan"), text))
            continue
        for term in terms:
            if term.name not in usual:
                continue
            factors = grown.setdefault(term.name, {2: usual[term.name]})
            of_global = factors.get(count, usual[term.name])
            if not term.is_times(term.factor):
                findings.append(_uneven(term, severity, usual[term.name], layout))
            elif count == global_views:
                factors[count] = term.factor
            elif not term.is_times(of_global):
                ratio = term.factor / of_global
                text = (
                    f"{_with(layout)} the {term.name} has {ratio:.4g} times the weight of global "
                    "ones only"
                )
                findings.append(Finding("weight by global views", "convention", ratio, text))
    for name, factors in grown.items():
        if any(abs(factor - usual[name]) > 1e-4 * abs(usual[name]) for factor in factors.values()):
            whose = "value is the textbook's" if len(two) == 1 else f"{name} is the textbook's"
            by_views = in_words({f"{count} views": factor for count, factor in factors.items()})
            text = f"the {whose} times {by_views}: its weight depends on their number"
            findings.append(Finding("weight by views", "convention", factors[max(factors)], text))
    return findings


@dataclass(frozen=True)
class _Term:
    """The weights that a loss and the textbook give to the parts of one term, and how exact
    they are.
    """

    name: str
    found: dict[Part, float]
    wanted: dict[Part, float]
    tolerance: float

    @property
    def factor(self) -> float:
        """The weight over all parts, as a multiple of the textbook's."""
        return sum(self.found.values()) / sum(self.wanted.values())

    def is_times(self, factor: float) -> bool:
        """Return True if all weights are that multiple of the textbook's."""
        found, wanted = np.array([*self.found.values()]), np.array([*self.wanted.values()])
        allowed = self.tolerance * abs(factor * wanted).max()
        return bool(np.all(abs(found - factor * wanted) <= allowed))


def _weights(target: Target, method: Regularizer, layout: Layout) -> list[_Term] | None:
    """Find the weights by least squares over draws; None if the loss is no sum of the parts."""
    count, global_views = layout
    columns: dict[tuple[str, Part], list[float]] = {}
    found, wanted = [], []
    for seed in range(_DRAWS):
        views = draw_views(*SIZE, count + (global_views if target.has_targets else 0), seed)
        if method.metadata.scale_invariant:
            views = list(map(normalize, views))  # two views tell whether the loss normalises
        found.append(target.value(cast(views, target.dtype), global_views=global_views).item())
        wanted.append(textbook(method, views, global_views).item())
        for key, value in _parts(method, views, global_views).items():
            columns.setdefault(key, []).append(value.item())
    varying = {key: values for key, values in columns.items() if max(values) - min(values) > 1e-9}
    tolerance = target.tolerance(1e-4, 2e-3)  # constants of single precision too
    basis = [_centred(values) for values in varying.values()]
    terms: dict[str, _Term] = {}
    fits = []
    for y in (_centred(found), _centred(wanted)):
        weights, rest = least_squares(basis, y)
        # A fit that is not well within the tolerance of weights says nothing about weights.
        if not rest <= tolerance / 10 * y.abs().max():
            return None
        fits.append(weights.tolist())
    for (name, part), one, other in zip(varying, *fits, strict=True):
        term = terms.setdefault(name, _Term(name, {}, {}, tolerance))
        term.found[part], term.wanted[part] = one, other
    return list(terms.values())


def _centred(values: Sequence[float]) -> Tensor:
    column = torch.tensor(values, dtype=torch.float64)
    return column - column.mean()


def _parts(method: Regularizer, views: Views, global_views: int) -> dict[tuple[str, Part], Tensor]:
    """Compute the parts that the textbook sums."""
    pairs = list(itertools.combinations(range(len(views)), 2))
    parts: dict[tuple[str, Part], Tensor] = {}
    with seeded(0):
        if has_targets(method) or is_own_target(method):
            step, predictions, targets = step_of(method, views, global_views)
            for v, g in itertools.product(range(len(predictions)), range(global_views)):
                if v != g:
                    terms = step.terms(predictions[v], targets[g])
                    parts["loss", (v, g)] = torch.stack(list(terms.values())).sum()
        elif isinstance(method, Decomposed):
            units = method.seen(views)
            regularizer = method.regularizer_of_step(units[0])
            scale = method.alignment_scale(units[0].shape[1])
            for i, j in pairs:
                parts["alignment", (i, j)] = scale * (units[i] - units[j]).square().mean()
            for v, u_NQ in enumerate(units):
                parts["regularizer", (v,)] = torch.stack(list(regularizer(u_NQ).values())).sum()
        elif method.kind == "pairwise":
            for i, j in pairs:
                terms = method.terms(views[i], views[j])
                parts["loss", (i, j)] = torch.stack(list(terms.values())).sum()
        else:
            for name, term in method.view_terms(list(views), global_views).items():
                parts[name, ()] = term
    return parts


def _uneven(term: _Term, severity: Severity, usual: float, layout: Layout) -> Finding:
    """Describe the weights that are not in the textbook's proportion."""
    ratios, listed = [], []
    for part, wanted in term.wanted.items():
        weight = term.found[part] / usual
        ratios.append(abs(weight / wanted - 1) if wanted else abs(weight))
        if ratios[-1] > term.tolerance:
            views = "–".join(str(view + 1) for view in part)
            listed.append(f"{views}: {weight:.3g} for {wanted:.3g}")
    text = (
        f"{_with(layout)} the {term.name} weighs the views otherwise than the textbook "
        f"({', '.join(listed)})"
    )
    return Finding("uneven weights of views", severity, max(ratios), text)


def _with(layout: Layout) -> str:
    count, global_views = layout
    if global_views == count:
        return f"with {count} views"
    return f"with {count} views, {global_views} of them global,"
