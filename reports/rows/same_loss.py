"""Rows of one loss under two names: A/A tests that a comparison holds for free.

docs/identities.md says which methods are the same. Here each of these losses is written in common
terms: a factor times λ mean (z₁ − z₂)² plus the energy of a kernel, less a constant. Rows with the
same kernel, λ and other settings then have gradients that differ by the ratio of their factors
alone. z are unit embeddings; beside a predictor or a teacher z₁ is a prediction and z₂ a target.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regbench.reports.rows.summary import Row, Summary

_NONE, _LINEAR, _QUADRATIC, _CANDIDATES = "0", "u·v", "(u·v)²", "log Σ exp(u·v/τ)"
_TOLERANCE = 1e-6  # of weights that somebody has rounded, as q/ρ
_MOST_ORDERS = 20  # nobody lists more weights of SFRIK, and a stranger's cell may have any number


@dataclass(frozen=True)
class CommonTerms:
    """A loss as factor × (λ mean (z₁ − z₂)² + energy of a kernel) + constant; of TiCo the gradient
    is meant.

    Attributes:
        kernel: The kernel.
        alignment_weight: λ.
        factor: Factor of both terms.
    """

    kernel: str
    alignment_weight: float
    factor: float


def _of_sfrik(method: Mapping[str, Any], q: int) -> CommonTerms | None:
    return (
        _of_series(method["weights"], method["alignment_weight"], q)
        if method["regularize_local"]
        else None
    )


def _of_series(weights: Sequence[float], alignment: float, q: int) -> CommonTerms:
    """Write λ mean (z₁ − z₂)² + Σ b_ℓ P_ℓ, whose weights b_ℓ begin with that of ℓ = 1, in
    common terms.
    """
    kernel, factor = _LINEAR, math.fsum(weights)
    if len(weights) == 2 and weights[0] == 0:  # P₂(t) = (q t² − 1)/(q − 1)
        kernel, factor = _QUADRATIC, weights[1] * q / (q - 1)
    elif len(weights) > 1:
        kernel = " + ".join(
            f"{weight / factor:.6g} P_{order}" for order, weight in enumerate(weights, 1)
        )
    return CommonTerms(kernel, alignment / factor, factor)


def _of_spherical(method: Mapping[str, Any], q: int) -> CommonTerms | None:
    order, share = method["order"], method["regularization_weight"]
    if method["spectrum"] != "bandlimited" or order > _MOST_ORDERS:
        return None
    weights = []
    for degree in range(1, order + 1):
        # The number of spherical harmonics, and Legendre's eigenvalue.
        harmonics = math.comb(q + degree - 1, degree) - (
            math.comb(q + degree - 3, degree - 2) if degree > 1 else 0
        )
        weights.append(
            harmonics * (degree * (degree + q - 2) if method["statistic"] == "ksd" else 1)
        )
    total = sum(weights)
    return _of_series([share * weight / total for weight in weights], (1 - share) * q / 4, q)


def _of_generalized_distance(method: Mapping[str, Any], q: int) -> CommonTerms | None:
    # −‖u − v‖² = 2 u·v − 2
    return (
        CommonTerms(_LINEAR, method["alignment_weight"] / 2, 2.0)
        if method["exponent"] == 2
        else None
    )


def _of_quadratic(method: Mapping[str, Any], q: int) -> CommonTerms:
    return CommonTerms(_QUADRATIC, method["alignment_weight"], 1.0)


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
    "quadratic": _of_quadratic,
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
    """Write the loss of a cell, plain data, in common terms; None for a loss that no other is."""
    try:
        method = cell["method"]
        write = _TERMS.get(method["name"])
        views = sum(kind["count"] for kind in cell["augmentation"]["views"].values())
        # It aligns views with their mean, so of more than two it is another loss.
        if write is None or (write is _of_spherical and views != 2):
            return None
        terms = write(method, cell["embedding_dim"])
        return terms if terms and math.isfinite(terms.alignment_weight) else None
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ):  # a stranger's cell may hold anything
        return None


def same_losses(summary: Summary) -> list[Pair]:
    """Find the pairs of rows with different names that are one loss, in one setting of the
    table.
    """
    written = []
    for row in summary.methods:
        terms = common_terms(row.first.cell)
        if terms is not None:
            written.append((row, terms))
    pairs = []
    for (one, a), (other, b) in itertools.combinations(written, 2):
        if a.kernel == b.kernel and one.label != other.label and one.settings == other.settings:
            pairs.append(
                Pair(one, other, (a, b), _trained_alike(one, other) and _same_step(one, a, b))
            )
    return pairs


def same_loss_marks(summary: Summary) -> dict[Row, str]:
    """Return the sign behind the name of each row of a pair: ≡, or ≈ for up to weights."""
    marks: dict[Row, str] = {}
    # The pairs that are equal come last, so that ≡ stands where a row has a pair of both kinds.
    for pair in sorted(same_losses(summary), key=lambda pair: pair.equal):
        marks |= dict.fromkeys((pair.one, pair.other), "≡" if pair.equal else "≈")
    return marks


def same_loss_notes(summary: Summary) -> list[str]:
    """Say of each pair how far apart luck, or the search, has put two rows of one loss."""
    notes = []
    for pair in same_losses(summary):
        names, apart = f"{pair.one.name} and {pair.other.name}", _differences(summary, pair)
        if not pair.equal:
            told = (
                f"They differ by {apart}: by the search and by luck, not by the loss."
                if apart
                else ""
            )
            notes.append(f"≈ One loss up to weights: {names} ({_unlike(pair)}). {told}".rstrip())
            continue
        ratio = pair.terms[0].factor / pair.terms[1].factor
        factor = (
            "" if math.isclose(ratio, 1) else f" (up to a factor of {max(ratio, 1 / ratio):.3g})"
        )
        parts = [f"≡ The same loss{factor}: {names}."]
        if apart:
            parts.append(
                f"They differ by {apart}. This is the floor of what to believe of other rows' "
                "differences."
            )
        places = [summary.rows.index(pair.one), summary.rows.index(pair.other)]
        wrong = [
            summary.scores[name].title
            for name in summary.leading
            if _one_is_best(summary, name, places)
        ]
        if wrong:
            parts.append(
                f"By {' and '.join(wrong)} only one of them is bold, which says nothing about the "
                "loss."
            )
        notes.append(" ".join(parts))
    return notes


def _one_is_best(summary: Summary, name: str, places: list[int]) -> bool:
    best = summary.best(name)
    # A row without the score is bold nowhere, and says nothing of the other.
    scored = {*best.rows, *best.p}.issuperset(places)
    return len(best.rows & set(places)) == 1 and scored


def _differences(summary: Summary, pair: Pair) -> str:
    """Write how far apart a pair is by each leading score, over the seeds that both have."""
    texts = []
    # The score that orders the rows is the last of the leading ones, and a reader wants it first.
    for name in reversed(summary.leading):
        ours, theirs = pair.one.by_unit(name), pair.other.by_unit(name)
        apart = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
        units = "searches" if summary.unit == "search" else "seeds"
        if apart:
            score, mean = summary.scores[name], abs(math.fsum(apart)) / len(apart)
            of = f" points of {score.title}" if score.unit == "%" else f" of {score.title}"
            most = (
                f" (up to {max(map(abs, apart)):.2f} in one of {len(apart)} {units})"
                if len(apart) > 1
                else ""
            )
            texts.append(f"{mean:.2f}{of}{most}")
    return " and ".join(texts)


def _unlike(pair: Pair) -> str:
    """Say what is not equal of a pair."""
    if pair.one.repeated or pair.other.repeated:
        return "several searches"
    a, b = (terms.alignment_weight for terms in pair.terms)
    if math.isclose(a, b, rel_tol=_TOLERANCE):
        return "the same weights; other settings differ"
    return f"λ = {a:.4g} and {b:.4g} beside the kernel {pair.terms[0].kernel}"


def _trained_alike(one: Row, other: Row) -> bool:
    """Tell whether nothing but the method differs.

    Of several searches each chose settings of its own.
    """
    if one.repeated or other.repeated:
        return False
    ours, theirs = one.first.settings, other.first.settings
    for key in (*ours, *theirs):
        is_free = key.startswith("method.") or key == "seed"
        if not is_free and ours.get(key) != theirs.get(key):
            return False
    return True


def _same_step(one: Row, a: CommonTerms, b: CommonTerms) -> bool:
    # A factor of the loss is one of SGD's learning rate; other optimizers take it out of the step,
    # all or nearly all.
    factors = one.first.settings.get("optimizer.name") == "sgd" and not math.isclose(
        a.factor, b.factor
    )
    return math.isclose(a.alignment_weight, b.alignment_weight, rel_tol=_TOLERANCE) and not factors
