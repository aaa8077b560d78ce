"""What a loss of more than two views is put through: every view has to count, and as much as the textbook says.

A textbook is a sum over pairs of views, over views, or of its addends. The weights that a loss has on these follow from
its values on many draws. They are held against the textbook's weights, times the factor that the loss has with two
views, so that a convention that is known from two views is not found again.

Shapes: N = batch (n), Q = embedding dimension (q), V = views, of which the first G are global.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regbench.instruments.audit.closed_forms import named_by_views
from regbench.instruments.audit.explain import chance, explain_random, mean_value, textbook
from regbench.instruments.audit.finding import Finding, Severity
from regbench.instruments.audit.target import Target
from regbench.instruments.conformance import draw_views
from regbench.methods import Regularizer
from regbench.methods.decomposed import Decomposed
from regbench.methods.pairwise import normalize

SIZE = (12, 4)
"""n and q of what most probes draw."""
_DRAWS = 16
Layout = tuple[int, int]
"""V and G."""
Part = tuple[str, tuple[int, ...]]
"""What a textbook is a sum of: the name of a term, and the views that it is of; none if it is of all."""


def drawn(target: Target, count: int, seed: int = 7) -> tuple[list[Tensor], bool]:
    """Draw views, in float32 if the loss refuses float64; whether it does."""
    views = draw_views(*SIZE, count, seed)
    try:
        target.value(views)
    except Exception:
        return [z.float() for z in views], True
    return views, False


def left_out(target: Target, layout: Layout) -> list[Finding]:
    """Replace one view after the other: the value has to change."""
    count, global_views = layout
    views, single = drawn(target, count)
    other_NQ = draw_views(*SIZE, 1, seed=19)[0].to(views[0])
    value = target.value(views, global_views=global_views).item()
    changes = []
    for view in range(count):
        changed = [other_NQ if v == view else z for v, z in enumerate(views)]
        changes.append(abs(target.value(changed, global_views=global_views).item() - value))
    least = (1e-5 if single else 1e-9) * max(abs(value), *changes)
    forgotten = [str(view + 1) for view, change in enumerate(changes) if change <= least]
    if not forgotten:
        return []
    text = f"{_of(layout)} the value does not depend on view {', '.join(forgotten)}"
    return [_found("view left out", "defect", len(forgotten), text)]


def order(target: Target, layout: Layout) -> list[Finding]:
    """Turn the order of the global views round, and that of the local ones."""
    count, global_views = layout
    views, single = drawn(target, count)
    turned = [*views[:global_views][::-1], *views[global_views:][::-1]]
    value, other = (mean_value(target, order, global_views) for order in (views, turned))
    scale = max(abs(value[0]), 1e-12)
    size = abs(other[0] - value[0]) / scale
    if size <= (1e-3 if single else 1e-8) + chance(value, other) / scale:
        return []
    method = target.claimed
    if method is not None:
        orders = ([z.double() for z in order] for order in (views, turned))
        wanted, turned_wanted = (textbook(method, order, global_views).item() for order in orders)
        if abs(wanted - turned_wanted) > 1e-8 * abs(wanted):
            return []
    text = f"{_of(layout)} the value changes by {size:.2g} when their order is turned round"
    return [_found("order of views", "defect" if method else "note", size, text)]


def values(target: Target, method: Regularizer) -> list[Finding]:
    """Compare the value with the textbook of as many views."""
    two = _weights(target, method, (2, 2))
    if two is None:
        # The loss draws numbers of its own, or has another value with two views already.
        if not method.random or explain_random(target, method) is not None:
            return []
        by_chance = [explain_random(target, method, *layout) for layout in target.adapter.layouts]
        return [finding for finding in by_chance if finding is not None][:1]
    # What is not there with two views has been told of them.
    usual = {name: factor for name in two.names if abs(factor := two.factor(name)) > two.tolerance}
    findings: list[Finding] = []
    grown: dict[str, dict[int, float]] = {}
    for layout in target.adapter.layouts:
        weights = _weights(target, method, layout)
        if weights is None:
            findings.append(_unexplained(method, layout))
            continue
        for name in [name for name in weights.names if name in usual]:
            factor = weights.factor(name)
            if not weights.are(name, factor):
                findings.append(_uneven(weights, method, name, usual[name], layout))
            elif layout[0] == layout[1]:
                grown.setdefault(name, {2: usual[name]})[layout[0]] = factor
            else:
                of_global = grown.get(name, {}).get(layout[0], usual[name])
                if not weights.are(name, of_global):
                    ratio = factor / of_global
                    text = f"{_of(layout)} the {name} has {ratio:.4g} times the weight of global ones only"
                    findings.append(_found("weight by global views", "convention", ratio, text))
    for name, factors in grown.items():
        if any(abs(factor - usual[name]) > 1e-4 * abs(usual[name]) for factor in factors.values()):
            form = named_by_views(factors)
            whose = "value is the textbook's" if len(two.names) == 1 else f"{name} is the textbook's"
            text = f"the {whose} times {form} with V views: its weight depends on their number"
            findings.append(_found("weight by views", "convention", factors[max(factors)], text))
    return findings


@dataclass(frozen=True)
class _Weights:
    """The weights of a loss and of the textbook on the parts."""

    found: dict[Part, float]
    wanted: dict[Part, float]
    tolerance: float

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.wanted))

    def factor(self, name: str) -> float:
        """The weight of a term over all its parts, as a multiple of the textbook's."""
        found, wanted = (sum(x for part, x in all_.items() if part[0] == name) for all_ in (self.found, self.wanted))
        return found / wanted

    def are(self, name: str, factor: float) -> bool:
        """Tell whether all weights of a term are that multiple of the textbook's."""
        parts = [part for part in self.wanted if part[0] == name]
        scale = max(abs(factor * self.wanted[part]) for part in parts)
        return all(abs(self.found[part] - factor * self.wanted[part]) <= self.tolerance * scale for part in parts)


def _weights(target: Target, method: Regularizer, layout: Layout) -> _Weights | None:
    """Find the weights; None if the loss is no sum of the parts."""
    count, global_views = layout
    single = drawn(target, count)[1]
    columns: dict[Part, list[float]] = {}
    found, wanted = [], []
    for seed in range(_DRAWS):
        views = draw_views(*SIZE, count, seed)
        if method.metadata.scale_invariant:
            views = [normalize(z) for z in views]  # whether it normalises, two views tell
        found.append(target.value([z.float() if single else z for z in views], global_views=global_views).item())
        wanted.append(textbook(method, views, global_views).item())
        for part, value in _parts(method, views, global_views).items():
            columns.setdefault(part, []).append(value.item())
    varying = {part: values for part, values in columns.items() if max(values) - min(values) > 1e-9}
    tolerance = 2e-3 if single else 1e-4  # constants of single precision too
    fits = [_fit(list(varying.values()), y, tolerance / 10) for y in (found, wanted)]
    if fits[0] is None or fits[1] is None:
        return None
    return _Weights(dict(zip(varying, fits[0], strict=True)), dict(zip(varying, fits[1], strict=True)), tolerance)


def _fit(columns: Sequence[Sequence[float]], y: Sequence[float], tolerance: float) -> list[float] | None:
    matrix = torch.tensor(columns, dtype=torch.float64).T
    matrix = matrix - matrix.mean(dim=0)
    lengths = matrix.norm(dim=0)
    centered = torch.tensor(y, dtype=torch.float64)
    centered = centered - centered.mean()
    solution = torch.linalg.lstsq(matrix / lengths, centered[:, None], driver="gelsd").solution[:, 0]
    rest = (matrix / lengths @ solution - centered).abs().max()
    return (solution / lengths).tolist() if rest <= tolerance * centered.abs().max() else None


def _parts(method: Regularizer, views: Sequence[Tensor], global_views: int) -> dict[Part, Tensor]:
    """Compute what the textbook is a sum of."""
    pairs = list(itertools.combinations(range(len(views)), 2))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if isinstance(method, Decomposed):
            units = [normalize(z) if method.unit else z for z in views]
            regularizer = method.regularizer_of_step(units[0])
            scale = method.alignment_scale(units[0].shape[1])
            parts = {("alignment", (i, j)): scale * (units[i] - units[j]).square().mean() for i, j in pairs}
            return parts | {
                ("regularizer", (v,)): torch.stack(list(regularizer(u).values())).sum() for v, u in enumerate(units)
            }
        if method.kind == "pairwise":
            terms = {(i, j): method.terms(views[i], views[j]) for i, j in pairs}
            return {("loss", pair): torch.stack(list(of_pair.values())).sum() for pair, of_pair in terms.items()}
        return {(name, ()): term for name, term in method.view_terms(list(views), global_views).items()}


def _uneven(weights: _Weights, method: Regularizer, name: str, usual: float, layout: Layout) -> Finding:
    """Name what is wrong with weights that are not in the textbook's proportion."""
    parts = {part[1]: weights.found[part] / usual for part in weights.found if part[0] == name}
    wanted = {part[1]: weights.wanted[part] for part in weights.wanted if part[0] == name}
    largest = max(abs(x) for x in wanted.values())
    of_pairs = len(next(iter(parts))) == 2
    what, many = ("pair of views", "pairs") if of_pairs else ("view", "views")

    def listed(members: Sequence[tuple[int, ...]]) -> str:
        return ", ".join("–".join(str(v + 1) for v in of) for of in members)

    none = [of for of, x in parts.items() if abs(x) <= 1e-3 * largest < abs(wanted[of])]
    if none:
        title = "pairs left out" if of_pairs else f"view left out of the {name}"
        text = f"{_of(layout)} the {name} leaves out {many if len(none) > 1 else what} {listed(none)}"
        return _found(title, _blame(method), len(none), text)
    ratios = {of: x / wanted[of] for of, x in parts.items() if abs(wanted[of]) > 1e-3 * largest}
    least = min(ratios.values())
    twice = [of for of, ratio in ratios.items() if abs(ratio - 2 * least) <= 1e-2 * abs(least)]
    if twice and all(abs(ratio - least) <= 1e-2 * abs(least) for of, ratio in ratios.items() if of not in twice):
        text = f"{_of(layout)} the {name} counts {many if len(twice) > 1 else what} {listed(twice)} twice"
        return _found(f"{many} counted twice", _blame(method), len(twice), text)
    each = ", ".join(f"{listed([of])}: {x:.3g} for {wanted[of]:.3g}" for of, x in parts.items())
    return _found(
        "uneven weights of views", _blame(method), max(ratios.values()), f"{_of(layout)} the {name} has {each}"
    )


def _unexplained(method: Regularizer, layout: Layout) -> Finding:
    severity = _blame(method)
    ours = "" if severity == "defect" else "; the publication has two views, ours is the mean over pairs"
    text = f"{_of(layout)} it is not {method.label}'s, and no sum of its parts{ours}"
    return _found("another value of many views", severity, float("nan"), text)


def _blame(method: Regularizer) -> Severity:
    """A loss of pairs of whose publication nothing is known but two views may be continued to more as one likes."""
    return "convention" if method.kind == "pairwise" and not method.metadata.views else "defect"


def _of(layout: Layout) -> str:
    count, global_views = layout
    return f"with {count} views" + (f", {global_views} of them global," if global_views < count else "")


def _found(name: str, severity: Severity, size: float, text: str) -> Finding:
    return Finding(name=name, severity=severity, size=size, text=text, probe="views")
