"""SUSReg, the regularizer of SPHERE-JEPA: a sliced test of uniformity on the sphere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.decomposed import Addends
from regbench.methods.slicing import Sliced
from regbench.spaces import Range, Space


@register("susreg")
@dataclass(frozen=True, kw_only=True)
class SUSReg(Sliced):
    """(1 − λ) ¼ mean_i ‖z₁ᵢ − z₂ᵢ‖² + λ ½ Σ_v E_a D(Z_v a) on unit embeddings (SPHERE-JEPA, arXiv 2605.26900, 2026).

    D = ∫ |φ̂(t) − ψ(t)|² w(t) dt / ∫ (1 − ψ²) w dt, where φ̂ is the empirical characteristic function along the random
    direction a, ψ that of a coordinate of a uniform vector on the sphere, ₀F₁(; q/2; −t²/4), and w the density of N(0,
    1). Its mean over directions is `susreg_mmd` (Eq. (4) of Nicollier et al., arXiv 2606.17603, 2026), from which the
    statistic is taken; the divisor is that of `susreg_mmd` too, so that a point has D = 1. The integral is by the
    trapezoid rule on [0, T], doubled.

    Attributes:
        regularization_weight: λ in [0, 1].
        directions: Number of random directions, >= 1.
        knots: Points of the quadrature, >= 2.
        largest_frequency: T > 0.
    """

    regularization_weight: float = 0.05
    directions: int = 1024
    knots: int = 17
    largest_frequency: float = 5.0
    unit: ClassVar[bool] = True
    to_center: ClassVar[bool] = True

    metadata: ClassVar[Metadata] = Metadata(
        title="SUSReg",
        reference="SPHERE-JEPA, arXiv 2026",
        url="https://arxiv.org/abs/2605.26900",
        formula="(1−λ) ¼ ‖Z₁ − Z₂‖²/n + λ ½ Σ_v E_a ∫ |φ̂_{Z_v a}(t) − ψ(t)|² w(t) dt / ∫ (1 − ψ²) w dt",
        latex=r"\frac{1 - \lambda}{4n} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{\lambda}{2} \sum_v \mathbb{E}_a "
        r"\frac{\int | \hat{\varphi}_{Z_v a}(t) - \psi(t) |^2 w(t) \, dt}{\int (1 - \psi(t)^2) w(t) \, dt}",
        time="O(n K (q + T)), K directions, T knots",
        memory="O(n K T)",
        published="λ = 0.05 at q = 256, ResNet-18 on ImageNet-100; directions and quadrature are ours",
        views="as those of `spherical_mmd`: views are aligned with the mean of the global ones",
        scale_invariant=True,
    )
    space: ClassVar[Space] = {"regularization_weight": Range(0.01, 0.99, "logit", balances=True)}

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        self.require(0 <= self.regularization_weight <= 1, "regularization_weight must be in [0, 1]")
        self.require(self.directions >= 1 and self.knots >= 2, "directions must be >= 1 and knots >= 2")
        self.require(self.largest_frequency > 0, "largest_frequency must be > 0")

    def alignment_scale(self, q: int) -> float:
        """(1 − λ) q: the mean over views and images of the squared distance to the global views' mean."""
        return (1 - self.regularization_weight) * q

    def sliced(self, u_NQ: Tensor, directions_QK: Tensor) -> Addends:
        """Compute λ times the mean statistic over directions."""
        projections_NK = u_NQ @ directions_QK
        step = self.largest_frequency / (self.knots - 1)
        total, constant = projections_NK.new_zeros(projections_NK.shape[1]), 0.0
        for knot in range(self.knots):
            frequency = knot * step
            weight = (1 if knot in (0, self.knots - 1) else 2) * step * math.exp(-(frequency**2) / 2)
            # Less 1, which both are close to: projections are about 1/√q.
            uniform = _characteristic_less_one(frequency, u_NQ.shape[1])
            real_K = -2 * (projections_NK * (frequency / 2)).sin().square().mean(dim=0) - uniform
            imaginary_K = (projections_NK * frequency).sin().mean(dim=0)
            total = total + weight * (real_K.square() + imaginary_K.square())
            constant -= weight * uniform * (2 + uniform)
        return {"uniformity": self.regularization_weight * total.mean() / constant}


@lru_cache(maxsize=1024)
def _characteristic_less_one(frequency: float, q: int) -> float:
    """₀F₁(; q/2; −t²/4) − 1, the characteristic function of a coordinate of a uniform unit vector, by its series."""
    term, total = 1.0, 0.0
    for k in range(1, 200):
        term *= -(frequency**2) / 4 / ((q / 2 + k - 1) * k)
        total += term
        if abs(term) <= 1e-18 * abs(total):
            break
    return total
