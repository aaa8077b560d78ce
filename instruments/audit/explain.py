"""The value of a loss against the textbook of what it claims to be, and what explains the
difference.

An explanation is a hypothesis (another setting, an embedding normalised or not, …) and a fit: the
textbook times a factor, plus a constant, or with weights of its own on its addends. Simple
explanations are tried first, and one counts only if it reproduces every value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from regbench.instruments.audit.finding import Finding, in_words
from regbench.instruments.audit.target import Target
from regbench.instruments.audit.textbook import textbook
from regbench.instruments.audit.variants import SCALES, Hypothesis, Terms, hypotheses
from regbench.instruments.loss_checks import (
    MEAN_SEEDS,
    cast,
    chance,
    draw_views,
    mean_value,
    relative,
    seeded,
)
from regbench.methods import Regularizer
from regbench.methods.forms.pairwise import normalize

# More and fewer images than dimensions; each n, q and n q occurs once, so that forms of them can be
# distinguished.
SIZES = ((8, 4), (12, 3), (6, 9))
# More than the unknowns of any fit, so that an exact fit is no chance.
DRAWS = 7
# Rounding of float64 and of float32; and what another ε under a root changes.
_EXACT, _SINGLE, _CLOSE = 1e-7, 1e-4, 2e-4

Size = tuple[int, int]
"""n and q."""


@dataclass(frozen=True)
class _Samples:
    """Embeddings, and the values that a loss has there.

    Attributes:
        sizes: The sizes that the loss takes.
        views: Draws for each size: the embeddings of two views, shape (n, q).
        values: Values of the loss, shape (sizes, draws).
        unit_values: Values on normalised embeddings, shape (sizes, draws).
        single: Whether the loss takes float32 only.
    """

    sizes: list[Size]
    views: list[list[list[Tensor]]]
    values: Tensor
    unit_values: Tensor
    single: bool


def _sample(target: Target) -> _Samples:
    """Evaluate a loss at some sizes; those that it refuses are left out, unless it refuses all."""
    sizes, drawn, values, unit_values = [], [], [], []
    refusal: Exception | None = None
    for size in SIZES:
        draws = [target.draw(2, seed, size) for seed in range(DRAWS)]
        try:
            found = [target.value(views).item() for views in draws]
            unit_found = [target.value(list(map(normalize, views))).item() for views in draws]
        except Exception as error:
            refusal = error
            continue
        sizes.append(size)
        drawn.append(draws)
        values.append(found)
        unit_values.append(unit_found)
    if refusal is not None and not sizes:
        raise refusal
    found_SD = torch.tensor(values, dtype=torch.float64)
    unit_SD = torch.tensor(unit_values, dtype=torch.float64)
    return _Samples(sizes, drawn, found_SD, unit_SD, target.single)


def explain(target: Target, method: Regularizer) -> Finding | None:
    """Find what makes a loss differ from the textbook of `method`, which it claims to be; None
    if nothing does.
    """
    samples = _sample(target)
    if not samples.values.isfinite().all():
        text = "the value of ordinary embeddings is NaN or infinite"
        return Finding("not finite", "defect", math.nan, text)
    exact = target.tolerance(_EXACT, _SINGLE)
    claimed, *others = hypotheses(method)
    columns = _columns(claimed.terms, samples, method, len(samples.sizes))
    total = sum(columns.values(), torch.zeros_like(samples.values))
    difference = relative(samples.values, total)
    if difference <= exact:
        return None
    fit = _fit(columns, samples.values, samples.sizes, exact)
    if difference <= _CLOSE and (fit is None or fit.is_plain):
        text = (
            f"equals the textbook up to {difference:.1g} of the value, as another ε or single "
            "precision within does"
        )
        return Finding("small constant", "note", difference, text)
    close: Finding | None = None
    # A hypothesis that fits exactly is better than an earlier one that fits nearly.
    for hypothesis in (claimed, *others):
        loose = _fit_of(hypothesis, samples, method, max(exact, _CLOSE))
        if loose is None:
            continue
        if fit := _fit_of(hypothesis, samples, method, exact):
            return _describe(hypothesis, fit)
        close = close or _describe(hypothesis, loose)
    if close is not None:
        return close
    text = (
        f"differs from {method.label}'s textbook by {difference:.2g} of its value, and nothing "
        "tried explains it"
    )
    return Finding("another value", "defect", difference, text)


def explain_random(
    target: Target, method: Regularizer, count: int = 2, global_views: int = 2
) -> Finding | None:
    """Compare the means over random numbers of a loss and of the textbook, where they draw
    different ones.
    """
    views = draw_views(16, 4, count)
    found = mean_value(partial(target.value, global_views=global_views), cast(views, torch.float32))
    wanted = mean_value(partial(textbook, method, global_views=global_views), views)
    if abs(found[0] - wanted[0]) <= chance(found, wanted) + 1e-6 * abs(wanted[0]):
        return None
    ratio, spread = found[0] / wanted[0], math.hypot(found[1], wanted[1]) / abs(wanted[0])
    text = (
        f"is {ratio:.4g} times {method.label}'s textbook in the mean over {MEAN_SEEDS} draws, ± "
        f"{spread:.1g}"
    )
    if count > 2:
        text += f", with {count} views"
    return Finding("another value in the mean", "defect", ratio, text)


def least_squares(basis: Sequence[Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    """Find the weights of columns, shape (..., draws), whose sum is nearest to y, and the largest
    residuals.
    """
    if not basis:
        return y.new_zeros(0), y.abs().amax(dim=-1)
    # Columns of length 1, because addends may differ by orders of magnitude, and the driver drops
    # small ones.
    matrix = torch.stack(list(basis), dim=-1)
    lengths = matrix.norm(dim=-2, keepdim=True).clamp_min(1e-300)
    # Only the driver "gelsd" takes linearly dependent columns.
    solution = torch.linalg.lstsq(matrix / lengths, y[..., None], driver="gelsd").solution
    rest = (matrix / lengths @ solution - y[..., None]).abs().amax(dim=(-2, -1))
    return (solution[..., 0] / lengths[..., 0, :]).movedim(-1, 0), rest


def _columns(terms: Terms, samples: _Samples, method: Regularizer, count: int) -> dict[str, Tensor]:
    """Evaluate addends at the first sizes, shape (sizes, draws) each.

    Empty if the hypothesis cannot be evaluated or is not finite.
    """
    # A random method has to draw in the loss's own dtype to draw the same numbers.
    dtype = torch.float32 if method.random and samples.single else torch.float64
    rows = []
    for views in itertools.chain(*samples.views[:count]):
        try:
            with seeded(0):
                rows.append(terms(cast(views, dtype)))
        except Exception:  # such as a setting that the method refuses
            return {}
    found = {}
    for name in rows[0]:
        found[name] = torch.stack([row[name] for row in rows]).double().view(count, -1)
    return found if all(column.isfinite().all() for column in found.values()) else {}


@dataclass(frozen=True)
class _Fit:
    """Factors and constants by size: values = Σ factors · addends + constant."""

    kind: str
    factors: dict[str, dict[Size, float]]
    constants: dict[Size, float]

    @property
    def is_plain(self) -> bool:
        """Whether no factor is needed, and no constant."""
        factors = itertools.chain(*map(dict.values, self.factors.values()))
        differs = any(abs(factor - 1) > 1e-5 for factor in factors)
        return not differs and not any(self.constants.values())


def _fit_of(
    hypothesis: Hypothesis, samples: _Samples, method: Regularizer, tolerance: float
) -> _Fit | None:
    values = samples.unit_values if hypothesis.on_unit_embeddings else samples.values
    fit = None
    for count in (1, len(samples.sizes)):  # most hypotheses fail at the first size
        columns = _columns(hypothesis.terms, samples, method, count)
        fit = _fit(columns, values[:count], samples.sizes[:count], tolerance)
        if fit is None:
            return None
    return fit


def _fit(
    columns: Mapping[str, Tensor], values: Tensor, sizes: Sequence[Size], tolerance: float
) -> _Fit | None:
    """Find the simplest fit whose residual is within the tolerance."""
    if not columns:
        return None
    total = torch.stack(list(columns.values())).sum(dim=0)
    tries = [
        ("equal", {}, False),
        ("factor", {"": total}, False),
        ("shift", {}, True),
        ("both", {"": total}, True),
    ]
    if len(columns) > 1:
        tries += [("addends", dict(columns), False), ("addends", dict(columns), True)]
    # The residual is relative to how much the values differ among draws, or to their size if that
    # is small.
    spread = (values - values.mean(dim=1, keepdim=True)).abs().amax(dim=1)
    size = torch.maximum(values.abs(), total.abs()).amax(dim=1)
    scale = (1e-3 * size).maximum(spread).clamp_min(1e-12)
    # Fewer unknowns first: with more of them, a fit by chance is likelier.
    for kind, factored, constant in tries:
        varying = {}
        for name, column in factored.items():
            # Beside the constant, an addend that is constant itself has no factor.
            if not constant or (column.std(dim=1) > 1e-9 * column.abs().amax(dim=1)).all():
                varying[name] = column
        y = values if factored else values - total
        weights, rest = least_squares([*varying.values(), *[torch.ones_like(y)] * constant], y)
        if (rest / scale).max() <= tolerance:
            by_size = [dict(zip(sizes, column.tolist(), strict=True)) for column in weights]
            known = dict(zip(varying, by_size, strict=False))
            factors = {name: known.get(name, dict.fromkeys(sizes, math.nan)) for name in factored}
            return _Fit(kind, factors, by_size[-1] if constant else {})
    return None


def _describe(hypothesis: Hypothesis, fit: _Fit) -> Finding:
    """Describe an explanation."""
    finding = _fitted(fit)
    finding = replace(finding, text=f"equals {hypothesis.text}{finding.text}")
    # A wrong sign is worse than another convention.
    if hypothesis.name and finding.severity != "defect":
        return Finding(hypothesis.name, hypothesis.severity, hypothesis.size, finding.text)
    return finding


def _fitted(fit: _Fit) -> Finding:
    """Name the factors and the constant; the text follows the name of what the loss equals."""
    constant = ""
    if any(fit.constants.values()):
        constant = f", plus a constant ({in_n_and_q(fit.constants)})"
    if fit.kind == "equal":
        return Finding("", "note", math.nan, "")
    if fit.kind == "shift":
        return Finding("shift", "convention", next(iter(fit.constants.values())), constant)
    firsts = {name: next(iter(by_size.values())) for name, by_size in fit.factors.items()}
    if fit.kind in ("factor", "both"):
        text = f" times {in_n_and_q(fit.factors[''])}{constant}"
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
    changed = [f"{name} times {in_n_and_q(fit.factors[name])}" for name in odd]
    text = f" with {' and '.join(changed)}{constant}"
    for name in odd:
        if firsts[name] < 0:
            return Finding("wrong sign of a term", "defect", firsts[name], text)
    return Finding("weight of a term", "convention", firsts[odd[0]] if odd else 1.0, text)


def in_n_and_q(values: Mapping[Size, float], tolerance: float = 1e-5) -> str:
    """Write a number once if it is always the same, else as a form of n and q with its cases.

    Empty if it is NaN.
    """
    known = {size: value for size, value in values.items() if not math.isnan(value)}
    if not known:
        return ""
    words = in_words({f"n={n} q={q}": value for (n, q), value in known.items()}, tolerance)
    if len(known) > 1 and " at " in words:
        for form, scale in SCALES.items():
            scaled = {str(size): value / scale(*size) for size, value in known.items()}
            constant = in_words(scaled, tolerance)
            if " at " not in constant:
                return f"{form} ({words})" if constant == "1" else f"{constant} · {form} ({words})"
    return words
