"""The value of a loss against the textbook of what it claims to be, and what explains the difference.

An explanation is a hypothesis (another setting, another method, an embedding normalised or not, …) and a fit: the
textbook times a factor, plus a constant, or with weights of its own on its addends. Simple explanations are tried
first, and one counts only if it reproduces every value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regbench.instruments.audit.closed_forms import named
from regbench.instruments.audit.finding import Finding, Severity
from regbench.instruments.audit.target import Target
from regbench.instruments.audit.variants import Hypothesis, Terms, hypotheses
from regbench.instruments.conformance import draw_views
from regbench.methods import Regularizer
from regbench.methods.pairwise import normalize

SIZES = ((8, 4), (12, 3), (6, 9))
DRAWS = 7
_EXACT, _CLOSE = 1e-7, 2e-4
_SINGLE = 1e-4
_SEEDS = 48


@dataclass(frozen=True)
class Samples:
    """Embeddings, and the values that a loss has there.

    Attributes:
        views: Of each draw, shape (n, q) each.
        sizes: Of each draw, (n, q).
        values: Of the loss, shape (draws,).
        unit_values: Of the loss on normalised embeddings, shape (draws,).
        single: Whether the loss takes float32 only.
    """

    views: list[list[Tensor]]
    sizes: list[tuple[int, int]]
    values: Tensor
    unit_values: Tensor
    single: bool


def sample(target: Target) -> Samples:
    """Evaluate a loss at some sizes; those that it refuses are left out.

    Raises:
        Exception: Of the loss, if it refuses all of them.
    """
    refusal: Exception | None = None
    for dtype in (torch.float64, torch.float32):
        views: list[list[Tensor]] = []
        sizes: list[tuple[int, int]] = []
        values: list[float] = []
        unit_values: list[float] = []
        for n, q in SIZES:
            draws = [[z.to(dtype) for z in draw_views(n, q, 2, seed)] for seed in range(DRAWS)]
            try:
                values += [target.value(pair).item() for pair in draws]
                unit_values += [target.value([normalize(z) for z in pair]).item() for pair in draws]
            except Exception as error:
                del values[len(views) :], unit_values[len(views) :]
                refusal = error
                continue
            views += draws
            sizes += [(n, q)] * DRAWS
        if views:
            found, unit = (torch.tensor(x, dtype=torch.float64) for x in (values, unit_values))
            return Samples(views, sizes, found, unit, dtype == torch.float32)
    assert refusal is not None
    raise refusal


def explain(samples: Samples, method: Regularizer) -> Finding | None:
    """Find what makes a loss differ from the textbook of `method`; None if nothing does.

    Args:
        samples: Of the loss.
        method: What it claims to be.
    """
    exact = _SINGLE if samples.single else _EXACT
    claimed, *others = hypotheses(method)
    columns = _columns(samples, claimed.terms, method)
    difference = _relative(columns, samples.values)
    if difference <= exact:
        return None
    fit = _fit(columns, samples.values, samples.sizes, exact)
    changed = fit and (
        any(fit.constants) or any(abs(x - 1) > 1e-5 for factors in fit.factors.values() for x in factors)
    )
    if difference <= _CLOSE and not changed:
        return _small(difference)
    close: Finding | None = None
    for hypothesis in (claimed, *others):
        values = samples.unit_values if hypothesis.on_unit_embeddings else samples.values
        loose = _fit_of(hypothesis, samples, values, method, max(exact, _CLOSE))
        if loose is None:
            continue
        if fit := _fit_of(hypothesis, samples, values, method, exact):
            return _finding(hypothesis, fit, method)
        close = close or _finding(hypothesis, loose, method)
    if close is not None:
        return close
    text = f"differs from {method.label}'s textbook by {difference:.2g} of its value, and nothing tried explains it"
    return Finding(name="another value", severity="defect", size=difference, text=text, probe="value")


def _fit_of(
    hypothesis: Hypothesis, samples: Samples, values: Tensor, method: Regularizer, tolerance: float
) -> _Fit | None:
    """Fit a hypothesis, the draws of one size first: most of them fail there."""
    for count in (DRAWS, len(samples.sizes)):
        columns = _columns(samples, hypothesis.terms, method, count)
        fit = _fit(columns, values[:count], samples.sizes[:count], tolerance) if columns else None
        if fit is None:
            return None
    return fit


def textbook(method: Regularizer, views: Sequence[Tensor], global_views: int, seed: int = 0) -> Tensor:
    """Compute a method's published formula; what it draws follows from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return torch.stack(list(method.view_terms(views, global_views).values())).sum()


Mean = tuple[float, float]
"""A mean over random numbers, and its standard error: 0 if none were drawn."""


def mean_value(target: Target, views: Sequence[Tensor], global_views: int | None = None) -> Mean:
    """Return a loss's mean over the numbers that it draws."""
    first, second = (target.value(views, seed=seed, global_views=global_views).item() for seed in (0, 1))
    if math.isclose(first, second, rel_tol=1e-9):
        return first, 0.0
    others = (target.value(views, seed=seed, global_views=global_views).item() for seed in range(2, _SEEDS))
    return _mean([first, second, *others])


def _mean(values: Sequence[float]) -> Mean:
    found = torch.tensor(values, dtype=torch.float64)
    return found.mean().item(), (found.var() / len(found)).sqrt().item()


def chance(one: Mean, other: Mean) -> float:
    """Return how far two means may be apart by chance: five standard errors."""
    return 5 * math.hypot(one[1], other[1])


def explain_random(target: Target, method: Regularizer, count: int = 2, global_views: int = 2) -> Finding | None:
    """Compare the means over random numbers of a loss and of the textbook, where they draw different ones."""
    views = draw_views(16, 4, count)
    found = mean_value(target, [z.float() for z in views], global_views)
    wanted = _mean([textbook(method, views, global_views, seed).item() for seed in range(_SEEDS)])
    if abs(found[0] - wanted[0]) <= chance(found, wanted) + 1e-6 * abs(wanted[0]):
        return None
    ratio, spread = found[0] / wanted[0], math.hypot(found[1], wanted[1]) / abs(wanted[0])
    text = f"is {ratio:.4g} times {method.label}'s textbook in the mean over {_SEEDS} draws, ± {spread:.1g}"
    text += f", with {count} views" if count > 2 else ""
    probe = "views" if count > 2 else "value"
    return Finding(name="another value in the mean", severity="defect", size=ratio, text=text, probe=probe)


def _columns(samples: Samples, terms: Terms, method: Regularizer, count: int | None = None) -> dict[str, Tensor]:
    """Evaluate the addends for the first draws; empty if the hypothesis is not made for them."""
    rows = []
    for views in samples.views[:count]:
        dtype = torch.float32 if method.random and samples.single else torch.float64
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            try:
                rows.append(terms([z.to(dtype) for z in views]))
            except Exception:  # such as a setting that the method refuses
                return {}
    found = {name: torch.stack([row[name].double() for row in rows]) for name in rows[0]}
    return found if all(column.isfinite().all() for column in found.values()) else {}


@dataclass(frozen=True)
class _Fit:
    """Factors and constants by size: values = Σ factors · addends + constant."""

    kind: str
    factors: dict[str, list[float]]
    constants: list[float]
    sizes: list[tuple[int, int]]
    rest: float


def _fit(columns: dict[str, Tensor], values: Tensor, sizes: Sequence[tuple[int, int]], tolerance: float) -> _Fit | None:
    total = torch.stack(list(columns.values())).sum(dim=0)
    groups = list(dict.fromkeys(sizes))
    where = {size: torch.tensor([other == size for other in sizes]) for size in groups}
    tries: Iterator[tuple[str, dict[str, Tensor], bool]] = itertools.chain(
        [("equal", {}, False), ("factor", {"": total}, False), ("shift", {}, True), ("both", {"": total}, True)],
        [("addends", columns, False), ("addends", columns, True)] if len(columns) > 1 else [],
    )
    for kind, free, constant in tries:
        factors: dict[str, list[float]] = {name: [] for name in free}
        constants: list[float] = []
        worst = 0.0
        for size in groups:
            mask = where[size]
            y = values[mask] if free else (values - total)[mask]
            varying = {name: column[mask] for name, column in free.items() if _varies(column[mask]) or not constant}
            basis = [*varying.values(), *([torch.ones_like(y)] if constant else [])]
            solution, rest = _solve(basis, y)
            worst = max(worst, rest / _magnitude(values[mask], total[mask]))
            for name in free:
                factors[name].append(solution[list(varying).index(name)] if name in varying else math.nan)
            constants.append(solution[-1] if constant else 0.0)
        if worst <= tolerance:
            return _Fit(kind, factors, constants, groups, worst)
    return None


def _varies(column: Tensor) -> bool:
    return bool(column.std() > 1e-9 * column.abs().max())


def _magnitude(values: Tensor, total: Tensor) -> float:
    """What a rest is measured against: how much the values differ among draws, or their size where that is small."""
    spread = (values - values.mean()).abs().max().item()
    return max(spread, 1e-3 * values.abs().max().item(), 1e-3 * total.abs().max().item(), 1e-12)


def _solve(basis: list[Tensor], y: Tensor) -> tuple[list[float], float]:
    if not basis:
        return [], y.abs().max().item()
    matrix = torch.stack(basis, dim=1)
    lengths = matrix.norm(dim=0).clamp_min(1e-300)
    solution = torch.linalg.lstsq(matrix / lengths, y[:, None], driver="gelsd").solution[:, 0]
    rest = (matrix / lengths @ solution - y).abs().max().item()
    return (solution / lengths).tolist(), rest


def _relative(columns: dict[str, Tensor], values: Tensor) -> float:
    total = torch.stack(list(columns.values())).sum(dim=0) if columns else torch.zeros_like(values)
    return float((values - total).norm() / max(total.norm().item(), 1e-300))


def _small(difference: float) -> Finding:
    text = f"equals the textbook up to {difference:.1g} of the value, as another ε or single precision within does"
    return Finding(name="small constant", severity="note", size=difference, text=text, probe="value")


def _finding(hypothesis: Hypothesis, fit: _Fit, method: Regularizer) -> Finding:
    """Put an explanation into words."""
    fitted = _fitted(fit)
    name, severity, size, words = fitted or ("", "note", math.nan, "")
    what = hypothesis.text or f"{method.label}'s textbook"
    text = f"equals {what}{words}"
    if hypothesis.name and severity != "defect":  # a wrong sign is worse than another convention
        found, size = hypothesis.name, hypothesis.size
        return Finding(name=found, severity=hypothesis.severity, size=size, text=text, probe="value")
    return Finding(name=name, severity=severity, size=size, text=text, probe="value")


def _fitted(fit: _Fit) -> tuple[str, Severity, float, str] | None:
    factors = {name: named(values, fit.sizes) for name, values in fit.factors.items()}
    constant = "" if not any(fit.constants) else f", plus a constant ({named(fit.constants, fit.sizes)})"
    if fit.kind == "equal":
        return None
    if fit.kind == "shift":
        return "shift", "convention", fit.constants[0], constant
    if fit.kind in ("factor", "both"):
        (values,) = fit.factors.values()
        negative = values[0] < 0
        name = "wrong sign" if negative else "factor"
        return name, "defect" if negative else "convention", values[0], f" times {factors['']}{constant}"
    known = {name: values for name, values in fit.factors.items() if not math.isnan(values[0])}
    for name, values in known.items():
        if all(abs(value) < 1e-6 for value in values):
            return "missing term", "defect", 0.0, f" without its {name}{constant}"
    odd = {name: values for name, values in known.items() if any(abs(value - 1) > 1e-5 for value in values)}
    words = " and ".join(f"{name} times {factors[name]}" for name in odd)
    name, value = next(((name, values[0]) for name, values in odd.items() if values[0] < 0), ("", math.nan))
    if name:
        return "wrong sign of a term", "defect", value, f" with {words}{constant}"
    return "weight of a term", "convention", next(iter(odd.values()), [1.0])[0], f" with {words}{constant}"
