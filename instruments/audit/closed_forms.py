"""Numbers put into words: as functions of n and q, or of the number of views V, where they are ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Forms = Mapping[str, Callable[..., float]]

_OF_BATCH: Forms = {
    "": lambda n, q: 1.0,
    "n": lambda n, q: n,
    "1/n": lambda n, q: 1 / n,
    "q": lambda n, q: q,
    "1/q": lambda n, q: 1 / q,
    "n q": lambda n, q: n * q,
    "1/(n q)": lambda n, q: 1 / (n * q),
    "n/(n − 1)": lambda n, q: n / (n - 1),
    "(n − 1)/n": lambda n, q: (n - 1) / n,
    "(n/(n − 1))²": lambda n, q: (n / (n - 1)) ** 2,
    "((n − 1)/n)²": lambda n, q: ((n - 1) / n) ** 2,
    "q/(q − 1)": lambda n, q: q / (q - 1),
    "1/(q − 1)": lambda n, q: 1 / (q - 1),
    "1/(n − 1)": lambda n, q: 1 / (n - 1),
    "n²": lambda n, q: n**2,
    "1/n²": lambda n, q: 1 / n**2,
    "√q": lambda n, q: math.sqrt(q),
    "1/√q": lambda n, q: 1 / math.sqrt(q),
    "log n": lambda n, q: math.log(n),
    "log(n − 1)": lambda n, q: math.log(n - 1),
    "log 2n": lambda n, q: math.log(2 * n),
    "log(2n − 1)": lambda n, q: math.log(2 * n - 1),
    "log(2n − 2)": lambda n, q: math.log(2 * n - 2),
    "log n(n − 1)": lambda n, q: math.log(n * (n - 1)),
    "log q": lambda n, q: math.log(q),
    "log(q − 1)": lambda n, q: math.log(q - 1),
}
_OF_VIEWS: Forms = {
    "": lambda v: 1.0,
    "V": lambda v: v,
    "1/V": lambda v: 1 / v,
    "(V − 1)": lambda v: v - 1,
    "1/(V − 1)": lambda v: 1 / (v - 1),
    "V(V − 1)": lambda v: v * (v - 1),
    "1/(V(V − 1))": lambda v: 1 / (v * (v - 1)),
    "V/(V − 1)": lambda v: v / (v - 1),
    "(V − 1)/V": lambda v: (v - 1) / v,
    "V²": lambda v: v**2,
    "1/V²": lambda v: 1 / v**2,
}


def named(values: Mapping[tuple[int, int], float]) -> str:
    """Find what number it is as a function of n and q; by its values if it is none of those known."""
    known = {size: value for size, value in values.items() if not math.isnan(value)}
    # A factor of many digits would fit a form by chance.
    form = _form(known, _OF_BATCH, 1e-5, longest=4)
    return form or ", ".join([f"{value:.6g} at n={n}, q={q}" for (n, q), value in known.items()][:3])


def named_by_views(values: Mapping[int, float]) -> str:
    """Find what number it is as a function of the number of views; by its values if it is none of those known."""
    form = _form({(count,): value for count, value in values.items()}, _OF_VIEWS, 1e-4, longest=12)
    return form or ", ".join(f"{value:.4g} (V = {count})" for count, value in values.items())


def _form(values: Mapping[Any, float], forms: Forms, tolerance: float, longest: int) -> str:
    """Find the form of which all values are one multiple; empty if there is none."""
    for form, function in forms.items():
        ratios = [value / function(*arguments) for arguments, value in values.items()]
        # With one size of batch every form would fit.
        if not ratios or (form and len(ratios) < 2):
            break
        if max(ratios) - min(ratios) > tolerance * max(map(abs, ratios)):
            continue
        number = _number(ratios[0])
        if form and number in ("1", "-1"):
            return number[:-1] + form
        if not form or len(number) <= longest:
            return f"{number} {form}".strip()
    return ""


def _number(value: float) -> str:
    fraction = Fraction(value).limit_denominator(64)
    if fraction and math.isclose(value, float(fraction), rel_tol=1e-5):
        return str(fraction)
    return f"{value:.6g}"
