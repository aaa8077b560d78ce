"""Numbers put into words: as functions of n and q, where they are ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

_FORMS: tuple[tuple[str, Callable[[int, int], float]], ...] = (
    ("", lambda n, q: 1.0),
    ("n", lambda n, q: n),
    ("1/n", lambda n, q: 1 / n),
    ("q", lambda n, q: q),
    ("1/q", lambda n, q: 1 / q),
    ("n q", lambda n, q: n * q),
    ("1/(n q)", lambda n, q: 1 / (n * q)),
    ("n/(n − 1)", lambda n, q: n / (n - 1)),
    ("(n − 1)/n", lambda n, q: (n - 1) / n),
    ("(n/(n − 1))²", lambda n, q: (n / (n - 1)) ** 2),
    ("((n − 1)/n)²", lambda n, q: ((n - 1) / n) ** 2),
    ("q/(q − 1)", lambda n, q: q / (q - 1)),
    ("1/(q − 1)", lambda n, q: 1 / (q - 1)),
    ("1/(n − 1)", lambda n, q: 1 / (n - 1)),
    ("n²", lambda n, q: n**2),
    ("1/n²", lambda n, q: 1 / n**2),
    ("√q", lambda n, q: math.sqrt(q)),
    ("1/√q", lambda n, q: 1 / math.sqrt(q)),
    ("log n", lambda n, q: math.log(n)),
    ("log(n − 1)", lambda n, q: math.log(n - 1)),
    ("log 2n", lambda n, q: math.log(2 * n)),
    ("log(2n − 1)", lambda n, q: math.log(2 * n - 1)),
    ("log(2n − 2)", lambda n, q: math.log(2 * n - 2)),
    ("log n(n − 1)", lambda n, q: math.log(n * (n - 1))),
    ("log q", lambda n, q: math.log(q)),
    ("log(q − 1)", lambda n, q: math.log(q - 1)),
)


def named(values: Sequence[float], sizes: Sequence[tuple[int, int]]) -> str:
    """Find what number it is as a function of n and q; by its values if it is none of those known."""
    known = [(value, size) for value, size in zip(values, sizes, strict=True) if not math.isnan(value)]
    for form, function in _FORMS:
        ratios = [value / function(*size) for value, size in known]
        # With one size of batch every form would fit.
        if (form and len(known) < 2) or max(ratios) - min(ratios) > 1e-5 * max(map(abs, ratios), default=0):
            continue
        number = _number(ratios[0])
        if form and len(number) > 4:
            continue
        if form and number in ("1", "-1"):
            return f"{number[:-1]}{form}"
        return f"{number} {form}".strip()
    return ", ".join(f"{value:.6g} at n={n}, q={q}" for value, (n, q) in known[:3])


_OF_VIEWS: tuple[tuple[str, Callable[[int], float]], ...] = (
    ("", lambda v: 1.0),
    ("V", lambda v: v),
    ("1/V", lambda v: 1 / v),
    ("(V − 1)", lambda v: v - 1),
    ("1/(V − 1)", lambda v: 1 / (v - 1)),
    ("V(V − 1)", lambda v: v * (v - 1)),
    ("1/(V(V − 1))", lambda v: 1 / (v * (v - 1))),
    ("V/(V − 1)", lambda v: v / (v - 1)),
    ("(V − 1)/V", lambda v: (v - 1) / v),
    ("V²", lambda v: v**2),
    ("1/V²", lambda v: 1 / v**2),
)


def named_by_views(values: Mapping[int, float]) -> str:
    """Find what number it is as a function of the number of views; by its values if it is none of those known."""
    for form, function in _OF_VIEWS:
        ratios = [value / function(count) for count, value in values.items()]
        if max(ratios) - min(ratios) <= 1e-4 * max(map(abs, ratios)):
            number = _number(sum(ratios) / len(ratios))
            return form if form and number == "1" else f"{number} {form}".strip()
    return ", ".join(f"{value:.4g} (V = {count})" for count, value in values.items())


def _number(value: float) -> str:
    fraction = Fraction(value).limit_denominator(64)
    if fraction and math.isclose(value, float(fraction), rel_tol=1e-5):
        return str(fraction)
    return f"{value:.6g}"
