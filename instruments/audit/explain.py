"""The value of a loss against the textbook of what it claims to be, and what explains the difference.

An explanation is a hypothesis (another setting, another method, an embedding normalised or not, …) and a fit: the
textbook times a factor, plus a constant, or with weights of its own on its addends. Simple explanations are tried
first, and one counts only if it reproduces every value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from regbench.instruments.audit.closed_forms import named
from regbench.instruments.audit.finding import Finding
from regbench.instruments.audit.target import Target
from regbench.instruments.audit.variants import Hypothesis, Terms, hypotheses
from regbench.instruments.loss_checks import MEAN_SEEDS, Views, chance, draw_views, mean_value, seeded
from regbench.methods import Regularizer
from regbench.methods.pairwise import normalize

SIZES = ((8, 4), (12, 3), (6, 9))
DRAWS = 7
_EXACT, _CLOSE = 1e-7, 2e-4
_SINGLE = 1e-4
# The simplest first. `free` is what gets factors: nothing, the textbook's sum, or each of its addends.
_FITS = (
    ("equal", "nothing", False),
    ("factor", "sum", False),
    ("shift", "nothing", True),
    ("both", "sum", True),
    ("addends", "addends", False),
    ("addends", "addends", True),
)

Size = tuple[int, int]
"""n and q."""


@dataclass(frozen=True)
class Samples:
    """Embeddings, and the values that a loss has there.

    Attributes:
        views: The draws of each size, each the embeddings of two views, shape (n, q).
        values: Values of the loss for each size, shape (draws,).
        unit_values: Its values on normalised embeddings, shape (draws,).
        single: Whether the loss takes float32 only.
    """

    views: dict[Size, list[list[Tensor]]]
    values: dict[Size, Tensor]
    unit_values: dict[Size, Tensor]
    single: bool


def sample(target: Target) -> Samples:
    """Evaluate a loss at some sizes; those that it refuses are left out.

    Raises:
        Exception: Whatever the loss raises, if it refuses all of them.
    """
    samples = Samples({}, {}, {}, target.single)
    refusal: Exception | None = None
    for size in SIZES:
        draws = [[z.to(target.dtype) for z in draw_views(*size, 2, seed)] for seed in range(DRAWS)]
        try:
            values = [target.value(views).item() for views in draws]
            unit_values = [target.value([normalize(z) for z in views]).item() for views in draws]
        except Exception as error:
            refusal = error
            continue
        samples.views[size] = draws
        samples.values[size] = torch.tensor(values, dtype=torch.float64)
        samples.unit_values[size] = torch.tensor(unit_values, dtype=torch.float64)
    if not samples.views:
        assert refusal is not None
        raise refusal
    return samples


def explain(samples: Samples, method: Regularizer) -> Finding | None:
    """Find what makes a loss differ from the textbook of `method`; None if nothing does.

    Args:
        samples: Values of the loss.
        method: What it claims to be.
    """
    exact = _SINGLE if samples.single else _EXACT
    claimed, *others = hypotheses(method)
    columns = _columns(claimed.terms, samples, method, list(samples.views))
    difference = _relative_difference(columns, samples.values)
    if difference <= exact:
        return None
    fit = _fit(columns, samples.values, exact)
    if difference <= _CLOSE and (fit is None or fit.is_plain):
        text = f"equals the textbook up to {difference:.1g} of the value, as another ε or single precision within does"
        return Finding("small constant", "note", difference, text)
    close: Finding | None = None
    for hypothesis in (claimed, *others):
        loose = _fit_of(hypothesis, samples, method, max(exact, _CLOSE))
        if loose is None:
            continue
        if fit := _fit_of(hypothesis, samples, method, exact):
            return _worded(hypothesis, fit)
        close = close or _worded(hypothesis, loose)
    if close is not None:
        return close
    text = f"differs from {method.label}'s textbook by {difference:.2g} of its value, and nothing tried explains it"
    return Finding("another value", "defect", difference, text)


def explain_random(target: Target, method: Regularizer, count: int = 2, global_views: int = 2) -> Finding | None:
    """Compare the means over random numbers of a loss and of the textbook, where they draw different ones."""
    views = draw_views(16, 4, count)
    found = mean_value(partial(target.value, global_views=global_views), [z.float() for z in views])
    wanted = mean_value(partial(textbook, method, global_views=global_views), views)
    if abs(found[0] - wanted[0]) <= chance(found, wanted) + 1e-6 * abs(wanted[0]):
        return None
    ratio, spread = found[0] / wanted[0], math.hypot(found[1], wanted[1]) / abs(wanted[0])
    text = f"is {ratio:.4g} times {method.label}'s textbook in the mean over {MEAN_SEEDS} draws, ± {spread:.1g}"
    text += f", with {count} views" if count > 2 else ""
    return Finding("another value in the mean", "defect", ratio, text)


def textbook(method: Regularizer, views: Views, global_views: int, *, seed: int = 0) -> Tensor:
    """Compute a method's published formula; what it draws follows from the seed."""
    with seeded(seed):
        return torch.stack(list(method.view_terms(views, global_views).values())).sum()


def least_squares(basis: Sequence[Tensor], y: Tensor) -> tuple[list[float], float]:
    """Find the weights of the columns whose sum is nearest to y, and the largest rest."""
    if not basis:
        return [], y.abs().max().item()
    matrix = torch.stack(list(basis), dim=1)
    lengths = matrix.norm(dim=0).clamp_min(1e-300)
    solution = torch.linalg.lstsq(matrix / lengths, y[:, None], driver="gelsd").solution[:, 0]
    rest = (matrix / lengths @ solution - y).abs().max().item()
    return (solution / lengths).tolist(), rest


Columns = Mapping[Size, Mapping[str, Tensor]]
"""The addends of a hypothesis for each size, shape (draws,) each."""


def _columns(terms: Terms, samples: Samples, method: Regularizer, sizes: Sequence[Size]) -> Columns:
    """Evaluate the addends; empty if the hypothesis is not made for these embeddings."""
    # A random method has to draw in the loss's own dtype to draw the same numbers.
    dtype = torch.float32 if method.random and samples.single else torch.float64
    columns = {}
    for size in sizes:
        rows = []
        for views in samples.views[size]:
            try:
                with seeded(0):
                    rows.append(terms([z.to(dtype) for z in views]))
            except Exception:  # such as a setting that the method refuses
                return {}
        columns[size] = {name: torch.stack([row[name].double() for row in rows]) for name in rows[0]}
        if not all(column.isfinite().all() for column in columns[size].values()):
            return {}
    return columns


def _total(addends: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(list(addends.values())).sum(dim=0)


def _relative_difference(columns: Columns, values: Mapping[Size, Tensor]) -> float:
    wanted = torch.cat(list(values.values()))
    total = torch.cat([_total(addends) for addends in columns.values()]) if columns else torch.zeros_like(wanted)
    return float((wanted - total).norm() / max(total.norm().item(), 1e-300))


@dataclass(frozen=True)
class _Fit:
    """Factors and constants by size: values = Σ factors · addends + constant."""

    kind: str
    factors: dict[str, dict[Size, float]]
    constants: dict[Size, float]

    @property
    def is_plain(self) -> bool:
        """Whether no factor is needed, and no constant."""
        factors = [factor for by_size in self.factors.values() for factor in by_size.values()]
        return not any(self.constants.values()) and not any(abs(factor - 1) > 1e-5 for factor in factors)


def _fit_of(hypothesis: Hypothesis, samples: Samples, method: Regularizer, tolerance: float) -> _Fit | None:
    """Fit a hypothesis, the draws of one size first: most of them fail there."""
    values = samples.unit_values if hypothesis.on_unit_embeddings else samples.values
    sizes = list(samples.views)
    fit = None
    for tried in (sizes[:1], sizes):
        columns = _columns(hypothesis.terms, samples, method, tried)
        fit = _fit(columns, values, tolerance) if columns else None
        if fit is None:
            return None
    return fit


def _fit(columns: Columns, values: Mapping[Size, Tensor], tolerance: float) -> _Fit | None:
    """Find the simplest fit that leaves no more than the tolerance."""
    for kind, free, constant in _FITS:
        fit = _Fit(kind, {}, {})
        worst = 0.0
        for size, addends in columns.items():
            if kind == "addends" and len(addends) == 1:
                return None
            total = _total(addends)
            factored = {"nothing": {}, "sum": {"": total}, "addends": addends}[free]
            rest = _fit_at(size, factored, total, values[size], constant, fit)
            worst = max(worst, rest)
        if worst <= tolerance:
            return fit
    return None


def _fit_at(
    size: Size, factored: Mapping[str, Tensor], total: Tensor, values: Tensor, constant: bool, fit: _Fit
) -> float:
    """Add the factors and the constant of one size to a fit, and return the rest, relative."""
    # Beside a constant, an addend that is one has no factor.
    varying = {name: x for name, x in factored.items() if not constant or x.std() > 1e-9 * x.abs().max()}
    y = values if factored else values - total
    solution, rest = least_squares([*varying.values(), *[torch.ones_like(y)] * constant], y)
    known = dict(zip(varying, solution, strict=False))
    for name in factored:
        fit.factors.setdefault(name, {})[size] = known.get(name, math.nan)
    fit.constants[size] = solution[-1] if constant else 0.0
    # The rest counts by how much the values differ among draws, or by their size where that is small.
    spread = (values - values.mean()).abs().max().item()
    return rest / max(spread, 1e-3 * values.abs().max().item(), 1e-3 * total.abs().max().item(), 1e-12)


def _worded(hypothesis: Hypothesis, fit: _Fit) -> Finding:
    """Put an explanation into words."""
    finding = _fitted(fit)
    finding = replace(finding, text=f"equals {hypothesis.text}{finding.text}")
    if hypothesis.name and finding.severity != "defect":  # a wrong sign is worse than another convention
        return Finding(hypothesis.name, hypothesis.severity, hypothesis.size, finding.text)
    return finding


def _fitted(fit: _Fit) -> Finding:
    """Name the factors and the constant; the text goes on after what the loss equals."""
    constant = f", plus a constant ({named(fit.constants)})" if any(fit.constants.values()) else ""
    if fit.kind == "equal":
        return Finding("", "note", math.nan, "")
    if fit.kind == "shift":
        return Finding("shift", "convention", next(iter(fit.constants.values())), constant)
    firsts = {name: next(iter(by_size.values())) for name, by_size in fit.factors.items()}
    if fit.kind in ("factor", "both"):
        text = f" times {named(fit.factors[''])}{constant}"
        if firsts[""] < 0:
            return Finding("wrong sign", "defect", firsts[""], text)
        return Finding("factor", "convention", firsts[""], text)
    odd = []
    for name, by_size in fit.factors.items():
        if math.isnan(firsts[name]):
            continue
        if all(abs(factor) < 1e-6 for factor in by_size.values()):
            return Finding("missing term", "defect", 0.0, f" without its {name}{constant}")
        if any(abs(factor - 1) > 1e-5 for factor in by_size.values()):
            odd.append(name)
    text = f" with {' and '.join(f'{name} times {named(fit.factors[name])}' for name in odd)}{constant}"
    for name in odd:
        if firsts[name] < 0:
            return Finding("wrong sign of a term", "defect", firsts[name], text)
    return Finding("weight of a term", "convention", firsts[odd[0]] if odd else 1.0, text)
