"""Rows of one loss under two names: A/A tests that a comparison holds for free.

docs/identities.md says which methods are the same. Here each of these losses is written in common
terms: factor × (λ mean (z₁ − z₂)² + energy of a kernel), up to a constant. Rows with the
same kernel, λ and other settings then have gradients that differ by the ratio of their factors
alone. z are unit embeddings; with a predictor or a teacher z₁ is a prediction and z₂ a target.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regbench.reports.rows.notes import UNITS
from regbench.reports.rows.summary import Row, Summary

_NONE, _LINEAR, _QUADRATIC, _CANDIDATES = "0", "u·v", "(u·v)²", "log Σ exp(u·v/τ)"
_TOLERANCE = 1e-6  # for weights that somebody has rounded, such as q/ρ
_MOST_ORDERS = 20  # nobody lists more weights of SFRIK, and an untrusted cell may have any number


@dataclass(frozen=True)
class CommonTerms:
    """A loss as factor × (λ mean (z₁ − z₂)² + energy of a kernel) + constant; for TiCo, one with
    the same gradient.

    Attributes:
        kernel: The kernel.
        alignment_weight: λ.
        factor: Factor of both terms.
    """

    kernel: str
    alignment_weight: float
    factor: float


def _of_sfrik(method: Mapping[str, Any], q: int) -> CommonTerms | None:
    if not method["regularize_local"]:
        return None
    return _of_series(method["weights"], method["alignment_weight"], q)


def _of_series(weights: Sequence[float], alignment: float, q: int) -> CommonTerms:
    """Write λ mean (z₁ − z₂)² + Σ b_ℓ P_ℓ, whose weights b_ℓ begin with that of ℓ = 1, in
    common terms.
    """
    kernel, factor = _LINEAR, math.fsum(weights)
    if len(weights) == 2 and weights[0] == 0:  # P₂(t) = (q t² − 1)/(q − 1)
        kernel, factor = _QUADRATIC, weights[1] * q / (q - 1)
    elif len(weights) > 1:
        shares = [weight / factor for weight in weights]
        kernel = " + ".join(f"{share:.6g} P_{order}" for order, share in enumerate(shares, 1))
    return CommonTerms(kernel, alignment / factor, factor)


def _of_spherical(method: Mapping[str, Any], q: int) -> CommonTerms | None:
    order, share = method["order"], method["regularization_weight"]
    if method["spectrum"] != "bandlimited" or order > _MOST_ORDERS:
        return None
    weights = []
    for degree in range(1, order + 1):
        weight = math.comb(q + degree - 1, degree)  # the number of spherical harmonics
        if degree > 1:
            weight -= math.comb(q + degree - 3, degree - 2)
        if method["statistic"] == "ksd":
            weight *= degree * (degree + q - 2)  # Legendre's eigenvalue
        weights.append(weight)
    total = sum(weights)
    return _of_series([share * weight / total for weight in weights], (1 - share) * q / 4, q)


def _of_generalized_distance(method: Mapping[str, Any], q: int) -> CommonTerms | None:
    if method["exponent"] != 2:
        return None
    return CommonTerms(_LINEAR, method["alignment_weight"] / 2, 2.0)  # −‖u − v‖² = 2 u·v − 2


def _of_tico(method: Mapping[str, Any], q: int) -> CommonTerms | None:
    if not method["covariance_weight"]:
        return _cosines(1.0, q)
    if method.get("covariance_momentum"):
        return None
    # No gradient flows through one of the kernel's two factors. 1 − cos is half of a squared
    # distance.
    return CommonTerms(_QUADRATIC, q / method["covariance_weight"], method["covariance_weight"] / 2)


def _cosines(factor: float, q: int) -> CommonTerms:
    # −cos is ½ q mean (z₁ − z₂)², less 1.
    return CommonTerms(_NONE, 1.0, factor * q / 2)


def _of_candidates(method: Mapping[str, Any], q: int) -> CommonTerms:
    factor = 4 * method["temperature"] if method["name"] == "moco_v3" else 1.0
    return CommonTerms(_CANDIDATES, q / (2 * method["temperature"]), factor)


_TERMS: Mapping[str, Callable[[Mapping[str, Any], int], CommonTerms | None]] = {
    "sfrik": _of_sfrik,
    "generalized_distance": _of_generalized_distance,
    "quadratic": lambda method, q: CommonTerms(_QUADRATIC, method["alignment_weight"], 1.0),
    "tico": _of_tico,
    "simsiam": lambda method, q: _cosines(1.0, q),
    "byol": lambda method, q: _cosines(4.0, q),
    "mec": lambda method, q: _cosines(1.0, q) if method["order"] == 1 else None,
    "info_nce": _of_candidates,
    "moco_v3": _of_candidates,
    "spherical_mmd": _of_spherical,
}


@dataclass(frozen=True)
class Pair:
    """Two rows of one loss.

    Attributes:
        one: The one that stands higher.
        other: The other.
        terms: Losses of the two in common terms.
        equal: Whether they were trained alike but for a factor of the loss; else they are one loss
            up to weights.
    """

    one: Row
    other: Row
    terms: tuple[CommonTerms, CommonTerms]
    equal: bool


def common_terms(cell: Mapping[str, Any]) -> CommonTerms | None:
    """Write the loss of a cell, plain data, in common terms; None if no other loss equals it."""
    try:
        method = cell["method"]
        write = _TERMS.get(method["name"])
        views = sum(kind["count"] for kind in cell["augmentation"]["views"].values())
        # spherical_mmd aligns views with their mean, so with more than two it is another loss.
        if write is None or (write is _of_spherical and views != 2):
            return None
        terms = write(method, cell["embedding_dim"])
        return terms if terms and math.isfinite(terms.alignment_weight) else None
    # An untrusted cell may hold anything.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def same_losses(summary: Summary) -> list[Pair]:
    """Find the pairs of rows with different names that are one loss, in one setting of the
    table.
    """
    written = [(row, terms) for row in summary.methods if (terms := common_terms(row.first.cell))]
    pairs = []
    for (one, a), (other, b) in itertools.combinations(written, 2):
        if a.kernel == b.kernel and one.label != other.label and one.settings == other.settings:
            equal = _trained_alike(one, other) and _same_step(one, a, b)
            pairs.append(Pair(one, other, (a, b), equal))
    return pairs


def same_loss_marks(summary: Summary) -> dict[Row, str]:
    """Return the sign behind the name of each row of a pair: ≡, or ≈ for up to weights."""
    marks: dict[Row, str] = {}
    # Equal pairs come last, so that a row in pairs of both kinds gets ≡.
    for pair in sorted(same_losses(summary), key=lambda pair: pair.equal):
        marks |= dict.fromkeys((pair.one, pair.other), "≡" if pair.equal else "≈")
    return marks


def same_loss_notes(summary: Summary) -> list[str]:
    """Describe how far luck, or the search, has put the two rows of each pair apart."""
    notes = []
    for pair in same_losses(summary):
        names, apart = f"{pair.one.name} and {pair.other.name}", _differences(summary, pair)
        if pair.equal:
            ratio = pair.terms[0].factor / pair.terms[1].factor
            factor = ""
            if not math.isclose(ratio, 1):
                factor = f" (up to a factor of {max(ratio, 1 / ratio):.3g})"
            text = f"≡ The same loss{factor}: {names}."
            why = ". This is the floor of what to believe of other rows' differences."
        else:
            text = f"≈ One loss up to weights: {names} ({_unlike(pair)})."
            why = ": by the search and by luck, not by the loss."
        notes.append(f"{text} They differ by {apart}{why}" if apart else text)
    return notes


def _differences(summary: Summary, pair: Pair) -> str:
    """Format how far apart a pair is by each leading score, over the seeds that both have."""
    texts = []
    # The score that orders the rows is the last of the leading ones, and a reader wants it first.
    for name in reversed(summary.leading):
        score = summary.scores[name]
        ours, theirs = pair.one.by_unit(name), pair.other.by_unit(name)
        apart = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
        if not apart:
            continue
        points = " points" * (score.unit == "%")
        text = f"{abs(math.fsum(apart)) / len(apart):.2f}{points} of {score.title}"
        if len(apart) > 1:
            units = UNITS[summary.unit]
            text += f" (up to {max(map(abs, apart)):.2f} in one of {len(apart)} {units})"
        texts.append(text)
    return " and ".join(texts)


def _unlike(pair: Pair) -> str:
    """Describe how the rows of a pair differ."""
    if pair.one.repeated or pair.other.repeated:
        return "several searches"
    a, b = (terms.alignment_weight for terms in pair.terms)
    if math.isclose(a, b, rel_tol=_TOLERANCE):
        return "the same weights; other settings differ"
    return f"λ = {a:.4g} and {b:.4g} beside the kernel {pair.terms[0].kernel}"


def _trained_alike(one: Row, other: Row) -> bool:
    """Return True if nothing but the method differs.

    False for rows of several searches, because each search chose its own settings.
    """
    if one.repeated or other.repeated:
        return False
    differing = one.first.settings.items() ^ other.first.settings.items()
    return all(key == "seed" or key.startswith("method.") for key, _ in differing)


def _same_step(one: Row, a: CommonTerms, b: CommonTerms) -> bool:
    # A factor of the loss is one of SGD's learning rate. With other optimizers, the step depends
    # on it little or not at all.
    if one.first.settings.get("optimizer.name") == "sgd" and not math.isclose(a.factor, b.factor):
        return False
    return math.isclose(a.alignment_weight, b.alignment_weight, rel_tol=_TOLERANCE)
