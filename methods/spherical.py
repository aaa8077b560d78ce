"""Spherical MMD and kernel Stein discrepancy to the uniform distribution: heat, band-limited
and SUSReg's kernel.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.polynomial import Chebyshev
from pydantic import Field
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.chebyshev import chebyshev_series
from regbench.methods.forms.kernel import KernelEnergy, legendre_series
from regbench.methods.forms.spectrum import log_harmonics, log_heat_weights, quadrature
from regbench.methods.spherical_kl import log_heat_kernel
from regbench.settings import AtLeastOne, Fraction, settings
from regbench.spaces import Range, Space

# Weights below this share of the largest are lost in a float64 sum, whose rounding is 1e-16.
_PRECISION = 1e-17


@register(
    "spherical_mmd",
    spherical_mmd_heat={"spectrum": "heat"},
    spherical_mmd_bandlimited={"spectrum": "bandlimited"},
    susreg_mmd={"spectrum": "susreg"},
    spherical_ksd_heat={"statistic": "ksd", "spectrum": "heat"},
    spherical_ksd_bandlimited={"statistic": "ksd", "spectrum": "bandlimited"},
)
@settings
class SphericalDiscrepancy(KernelEnergy):
    """(1 − λ) ℓ_inv + λ ½ Σ_v D(Z_v) (Nicollier et al., arXiv 2606.17603, 2026).

    Eqs. (1), (2), (5), (11) and (12) of "Expanding SPHERE-JEPA". With two views ℓ_inv = (1/n) Σᵢ ¼
    ‖z1ᵢ − z2ᵢ‖² on unit embeddings. D is a V-statistic of a zonal kernel φ(t) = Σ_ℓ b_ℓ P_ℓ(q; t),
    scaled so that a point has D = 1 and the uniform distribution 0:

    - `mmd`: Σ_{ℓ≥1} b_ℓ P_ℓ / Σ_{ℓ≥1} b_ℓ, which is Eq. (11), since the bias ∫ φ is b_0;
    - `ksd`: Σ λ_ℓ b_ℓ P_ℓ / Σ λ_ℓ b_ℓ with λ_ℓ = ℓ (ℓ + q − 2), which is Eq. (12), since Legendre's
      differential equation is (t² − 1) P_ℓ″ + (q − 1) t P_ℓ′ = λ_ℓ P_ℓ.

    The spectra: `heat` has b_ℓ ∝ exp(−s λ_ℓ/q) N(q, ℓ), `bandlimited` b_ℓ ∝ N(q, ℓ) for ℓ <= L,
    N(q, ℓ) being the number of spherical harmonics; `susreg` is the kernel that SUSReg's random
    slices estimate (Eq. (4)), φ(t) = E exp(−(1 − t) x²) for a coordinate x of a uniform vector:
    SUSReg, of SPHERE-JEPA (arXiv 2605.26900, 2026), in the limit of infinitely many slices
    (`susreg` has them). The paper's third statistic, a KL divergence by kernel density, is
    `spherical_kl`.

    Attributes:
        statistic: `mmd` or `ksd`.
        spectrum: `heat`, `bandlimited` or `susreg`.
        regularization_weight: λ in [0, 1].
        diffusion_time: s, the paper's t times q, in (0, 1000]; for `heat`.
        order: L >= 1; for `bandlimited`.
    """

    statistic: Literal["mmd", "ksd"] = "mmd"
    spectrum: Literal["heat", "bandlimited", "susreg"] = "heat"
    regularization_weight: Fraction = 0.05
    # From about 40 on nothing but the first order is left in double precision.
    diffusion_time: Annotated[float, Field(gt=0, le=1000)] = 5.0
    order: AtLeastOne = 2
    to_center: ClassVar[bool] = True
    least_dim: ClassVar[int] = 2

    revision: ClassVar[int] = 2
    metadata: ClassVar[Metadata] = Metadata(
        title="spherical MMD/KSD",
        reference="Nicollier, Meinhardt-Llopis, Dunitz, Pic, Musé, Facciolo, arXiv 2026",
        url="https://arxiv.org/abs/2606.17603",
        formula="(1−λ) ¼ ‖Z₁ − Z₂‖²/n + λ ½ Σ_v n⁻² Σᵢⱼ Σ_{ℓ≥1} c_ℓ P_ℓ(q; zᵢ·zⱼ),  Σ c_ℓ = 1",
        latex=r"\frac{1 - \lambda}{4n} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{\lambda}{2n^2} \sum_v "
        r"\sum_{i,j} \sum_{\ell \geq 1} c_\ell P_\ell(q; z_{v,i} \cdot z_{v,j}), \quad \sum_{\ell "
        r"\geq 1} c_\ell = 1",
        time="O(n² (q + L))",
        memory="O(1)",
        published="λ = 0.05, s = 5, L = 2 at q = 256, ResNet-18 on ImageNet-100, batch 256; "
        "spectrum susreg: the limit of infinitely many slices of SUSReg (SPHERE-JEPA, arXiv "
        "2605.26900, 2026)",
        views="Eq. (1): views are aligned with the mean of the global ones",
        scale_invariant=True,
        rotation_invariant=True,
    )
    space: ClassVar[Space] = {"regularization_weight": Range(0.01, 0.99, "logit", balances=True)}

    def __post_init__(self) -> None:
        """Refuse a discrepancy that there is no formula for."""
        self.require(
            (self.statistic, self.spectrum) != ("ksd", "susreg"),
            "spectrum susreg goes with statistic mmd only",
        )

    @property
    def label(self) -> str:
        """Statistic and spectrum: another one is another method."""
        return f"{self.statistic.upper()} ({self.spectrum})"

    def alignment_scale(self, q: int) -> float:
        """Return (1 − λ) q: the squared distance to the global views' mean is a sum over
        coordinates.
        """
        return (1 - self.regularization_weight) * q

    def kernel(self, t: Tensor, q: int) -> Tensor:
        """Compute λ Σ_{ℓ≥1} c_ℓ P_ℓ(q; t), same shape as t."""
        if self.spectrum == "susreg":
            below_one = torch.zeros_like(t)
            for k, c in enumerate(_susreg_series(q), 1):
                below_one = below_one + c * (t - 1) ** k
            return self.regularization_weight * (1 + below_one)
        if self._is_fitted(q):
            log_heat, factor, _, constant = _fit(self.statistic, self.diffusion_time, q)
            value = chebyshev_series(log_heat, t).exp() * chebyshev_series(factor, t)
            return self.regularization_weight * (value - constant)
        coefficients = _coefficients(
            self.statistic, self.spectrum, self.diffusion_time, self.order, q
        )
        return self.regularization_weight * legendre_series(coefficients, t, q)

    def at_one(self, like: Tensor, q: int) -> Tensor:
        """Compute λ φ(1) = λ, without the series."""
        return torch.full_like(like, self.regularization_weight)

    def _is_fitted(self, q: int) -> bool:
        # For shorter times the fit of the kernel is not exact. From the longest on the
        # first order weighs less than the constant: digits would cancel in φ − b_0, and the
        # Legendre series is short.
        longest = math.log(q) * q / (q - 1)
        return self.spectrum == "heat" and 1 <= self.diffusion_time < longest

    def kernel_and_derivative(self, t: Tensor, q: int) -> tuple[Tensor, Tensor]:
        """Compute both from the three series of a fit, if there is one, else by autograd."""
        if not self._is_fitted(q):
            return super().kernel_and_derivative(t, q)
        log_heat, factor, slope, constant = _fit(self.statistic, self.diffusion_time, q)
        heat = chebyshev_series(log_heat, t).exp_().mul_(self.regularization_weight)
        value = (heat * chebyshev_series(factor, t)).sub_(self.regularization_weight * constant)
        return value, heat.mul_(chebyshev_series(slope, t))


@lru_cache(maxsize=64)
def _fit(
    statistic: str, diffusion_time: float, q: int
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...], float]:
    """Write a heat kernel as φ A − c and its derivative as φ B, where log φ, A and B are short
    Chebyshev series.

    The Legendre series itself has hundreds of terms at large q. With L = log φ, φ(1) = 1, an MMD
    has A = 1/(1 − b_0) and c = b_0/(1 − b_0), b_0 being the mean of φ. A KSD has A ∝ (t² − 1) (L″ +
    L′²) + (q − 1) t L′, by Legendre's differential equation, and c = 0. B = A L′ + A′.
    """
    log_heat = Chebyshev(log_heat_kernel(q, diffusion_time))
    log_heat -= log_heat(1.0)
    slope = log_heat.deriv()
    if statistic == "mmd":
        logarithms = log_heat_weights(q, diffusion_time, _last_order(diffusion_time, q))
        # The logarithms begin with that of the first weight, which is 1.
        weights = np.exp(logarithms - logarithms.max())
        mean = float(weights[0] / weights.sum())
        factor, constant = Chebyshev([1 / (1 - mean)]), mean / (1 - mean)
    else:
        t = Chebyshev([0.0, 1.0])
        factor, constant = (t**2 - 1) * (slope.deriv() + slope**2) + (q - 1) * t * slope, 0.0
        factor /= factor(1.0)
    of_derivative = factor * slope + factor.deriv()
    return (
        tuple(log_heat.coef.tolist()),
        tuple(factor.coef.tolist()),
        tuple(of_derivative.coef.tolist()),
        constant,
    )


@lru_cache(maxsize=64)
def _coefficients(
    statistic: str, spectrum: str, diffusion_time: float, order: int, q: int
) -> tuple[float, ...]:
    """Compute 0, c_1, c_2, … up to the order where they vanish in double precision.

    Their sum is 1.
    """
    last = order if spectrum == "bandlimited" else _last_order(diffusion_time, q)
    orders = np.arange(last + 1)
    logarithms = (
        log_heat_weights(q, diffusion_time, last) if spectrum == "heat" else log_harmonics(q, last)
    )
    # b_0 is the bias, which Eq. (11) takes off.
    logarithms[0] = -np.inf
    # N(q, ℓ) itself overflows, and only shares of the sum are wanted.
    weights = np.exp(logarithms - logarithms.max())
    if statistic == "ksd":
        weights = weights * orders * (orders + q - 2)
    return tuple((weights / weights.sum()).tolist())


def _last_order(diffusion_time: float, q: int) -> int:
    """Find an order from which on the heat kernel's weights are below double precision."""
    last = 8
    while True:
        logarithms = log_heat_weights(q, diffusion_time, last)
        # Weights rise with the order before they fall, so only falling ones may be called small.
        if logarithms[-2] > logarithms[-1] < logarithms[1:].max() + math.log(_PRECISION):
            return last
        last *= 2


@lru_cache(maxsize=64)
def _susreg_series(q: int) -> tuple[float, ...]:
    """Compute the coefficients of (t − 1)^k, k = 1, 2, …, of (φ(t) − 1)/(1 − b_0) for SUSReg's
    kernel φ.

    φ(t) = E exp(−(1 − t) x²) = ₁F₁(½; q/2; −(1 − t)) = Σ_k (½)_k/(q/2)_k (t − 1)^k/k!. The 1 is
    taken off before it can cost digits: φ differs from it by about 1/q.
    """
    series = np.cumprod([(0.5 + k) / (q / 2 + k) / (k + 1) for k in range(40)])
    # 40 nodes are exact to degree 79, and the series ends at 40.
    points, weights = quadrature(q, 40)
    one_minus_b0 = 0.0
    for k, c in enumerate(series, 1):
        one_minus_b0 -= c * (weights * (points - 1) ** k).sum()
    # No |t − 1| exceeds 2.
    largest = series * 2.0 ** np.arange(1, 41)
    return tuple((series / one_minus_b0)[largest > _PRECISION * one_minus_b0].tolist())
