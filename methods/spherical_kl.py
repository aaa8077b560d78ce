"""KL (heat): the Kullback-Leibler divergence to the uniform distribution by a kernel density
estimate.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.chebyshev import chebyshev_series, series_derivative
from regbench.methods.forms.decomposed import Addends, Decomposed, StreamedView
from regbench.methods.forms.pairwise import blocks, mask_diagonal, panels
from regbench.methods.forms.spectrum import log_heat_weights
from regbench.settings import Fraction, settings
from regbench.spaces import Range, Space

# The degree of the Chebyshev series of log φ.
_DEGREE = 60
# The dimensions at which a polynomial in 1/q is fitted; above the last of them it gives log φ.
_SUMMED_UP_TO = (64, 96, 128, 192, 256, 320)
# Digits that a sum keeps beyond those that cancel: a float64 has 16.
_DIGITS = 20


@register("spherical_kl")
@settings
class SphericalKL(Decomposed):
    """(1 − λ) ℓ_inv + λ ½ Σ_v D(Z_v), the KL (heat) of Nicollier et al. (arXiv 2606.17603, 2026).

    Eqs. (1), (2), (5) and (13) of "Expanding SPHERE-JEPA": ℓ_inv as in `spherical_mmd`, and on unit
    embeddings D = [mean_i log mean_{j≠i} φ(zᵢ·zⱼ) − log |S^{q−1}|] / C with the heat kernel φ(t) ∝
    Σ_ℓ exp(−s λ_ℓ/q) N(q, ℓ) P_ℓ(q; t), φ(1) = 1, λ_ℓ = ℓ (ℓ + q − 2), and the area |S^{q−1}| = 2
    π^{q/2}/Γ(q/2). The density at an embedding is that of the others (leave one out), and C = −log
    |S^{q−1}|, so that a point has D = 1.

    Up to q = 18 the area is above 1 and the paper's C negative: it would reward the point. C is its
    magnitude here, which for q >= 19, and so for the paper's q = 256, is the same.

    In double precision the kernel's series loses all digits where it is small: at q = 256, s = 2 it
    is off by 4e-7 of its value at an inner product of −0.3 and by 3e-3 at −0.4. Here log φ is
    summed with as many digits as it takes at the nodes of a Chebyshev series, which is right to ten
    digits of the range of log φ in float64, and streams. Above q = 320, where that takes long, the
    series is extrapolated: log φ is q g(t) + h(t) + O(1/q), which is right to nine digits up to s =
    20 and to six up to s = 40; from s = 60 on it is not.

    Attributes:
        regularization_weight: λ in [0, 1].
        diffusion_time: s, the paper's t times q, from 1, as for less the Chebyshev series would be
            too short, to 1000.
    """

    regularization_weight: Fraction = 0.5
    diffusion_time: Annotated[float, Field(ge=1, le=1000)] = 2.0
    unit: ClassVar[bool] = True
    to_center: ClassVar[bool] = True
    least_dim: ClassVar[int] = 2

    revision: ClassVar[int] = 2
    metadata: ClassVar[Metadata] = Metadata(
        title="KL (heat)",
        reference="Nicollier, Meinhardt-Llopis, Dunitz, Pic, Musé, Facciolo, arXiv 2026",
        url="https://arxiv.org/abs/2606.17603",
        formula="(1−λ) ¼ ‖Z₁ − Z₂‖²/n + (λ/C) ½ Σ_v [ (1/n) Σᵢ log mean_{j≠i} φ(zᵢ·zⱼ) − log "
        "|S^{q−1}| ]",
        latex=r"\frac{1 - \lambda}{4n} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{\lambda}{2C} \sum_v "
        r"\left[ \frac{1}{n} \sum_i \log \frac{1}{n-1} "
        r"\sum_{j \ne i} \varphi(z_{v,i} \cdot z_{v,j}) "
        r"- \log | S^{q-1} | \right]",
        time="O(n² q)",
        memory="O(n)",
        published="λ = 0.5, s = 2 at q = 256, ResNet-18 on ImageNet-100, ResNet-50 on Galaxy10, "
        "batch 256",
        views="Eq. (1): views are aligned with the mean of the global ones",
        scale_invariant=True,
        rotation_invariant=True,
    )
    # `gram`: densities, then gradients, in two passes over the Gram matrix.
    forms = ("textbook", "gram")
    space: ClassVar[Space] = {"regularization_weight": Range(0.01, 0.99, "logit", balances=True)}

    def alignment_scale(self, q: int) -> float:
        """Return (1 − λ) q: the squared distance to the global views' mean is a sum over
        coordinates.
        """
        return (1 - self.regularization_weight) * q

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute the mean logarithm of the others' density, and the constant."""
        n, q = u_NQ.shape
        logits_NN = chebyshev_series(log_heat_kernel(q, self.diffusion_time), u_NQ @ u_NQ.T)
        return self._addends(mask_diagonal(logits_NN).logsumexp(dim=1).mean() - math.log(n - 1), q)

    def _addends(self, log_density: Tensor, q: int) -> Addends:
        weight, area = self.regularization_weight, _log_area(q)
        return {
            "entropy": weight / abs(area) * log_density,
            "constant": torch.full_like(log_density, -math.copysign(weight, area)),
        }

    def add_regularizer(self, view: StreamedView) -> Addends:
        """Compute it in Gram form, see `Decomposed.add_regularizer`: 6 n² q FLOP."""
        z_NQ, inverse_N, gradient_NQ, share, shard, _ = view
        q = z_NQ.shape[1]
        logs = log_heat_kernel(q, self.diffusion_time)
        slopes = series_derivative(logs)
        log_sum_N = torch.full_like(inverse_N, -torch.inf)

        def products(rows: slice, other_MQ: Tensor, inverse_M: Tensor) -> Tensor:
            return ((z_NQ[rows] * inverse_N[rows, None]) @ other_MQ.T).mul_(inverse_M)

        for own, (other_MQ, inverse_M) in blocks(shard, z_NQ, inverse_N):
            for rows in panels(len(z_NQ), len(other_MQ), z_NQ):
                logits_PM = chebyshev_series(logs, products(rows, other_MQ, inverse_M))
                if own:
                    logits_PM[:, rows].fill_diagonal_(-torch.inf)
                log_sum_N[rows] = torch.logaddexp(log_sum_N[rows], logits_PM.logsumexp(dim=1))
        for own, (other_MQ, inverse_M, log_sum_M) in blocks(shard, z_NQ, inverse_N, log_sum_N):
            for rows in panels(len(z_NQ), len(other_MQ), z_NQ):
                gram_PM = products(rows, other_MQ, inverse_M)
                logits_PM = chebyshev_series(logs, gram_PM)
                # The pair counts in the density at either end.
                weight_PM = (logits_PM - log_sum_N[rows, None]).exp_()
                weight_PM.add_(logits_PM.sub_(log_sum_M).exp_())
                if own:
                    weight_PM[:, rows].fill_diagonal_(0.0)
                weight_PM.mul_(chebyshev_series(slopes, gram_PM)).mul_(inverse_M)
                gradient_NQ[rows].addmm_(weight_PM, other_MQ)
        gradient_NQ.mul_(share * self.regularization_weight / (abs(_log_area(q)) * shard.n))
        total = shard.sum(log_sum_N.double().sum())
        return self._addends(total / shard.n - math.log(shard.n - 1), q)


def _log_area(q: int) -> float:
    return math.log(2) + q / 2 * math.log(math.pi) - math.lgamma(q / 2)


@lru_cache(maxsize=64)
def log_heat_kernel(q: int, diffusion_time: float) -> tuple[float, ...]:
    """Compute Chebyshev coefficients on [−1, 1] of log φ for the heat kernel φ of the sphere in q
    dimensions, φ(1) = 1.

    Args:
        q: Dimension of the space, >= 2.
        diffusion_time: s, the time of the heat equation times q.
    """
    if q <= max(_SUMMED_UP_TO):
        return _summed_log_heat_kernel(q, diffusion_time)
    # Lagrange's polynomial in 1/q of (log φ)/q.
    points = [1 / other for other in _SUMMED_UP_TO]
    found = np.zeros(_DEGREE + 1)
    for other, point in zip(_SUMMED_UP_TO, points, strict=True):
        factor = math.prod((1 / q - x) / (point - x) for x in points if x != point)
        found += q * factor / other * np.array(_summed_log_heat_kernel(other, diffusion_time))
    return tuple(found.tolist())


@lru_cache(maxsize=64)
def _summed_log_heat_kernel(q: int, diffusion_time: float) -> tuple[float, ...]:
    """Compute the coefficients by the series Σ_ℓ exp(−s λ_ℓ/q) N(q, ℓ) P_ℓ(q; t), in as many digits
    as its smallest value takes.
    """
    # The smallest value is at t = −1: about exp(−π² q/(4 s)) of the one at 1, or more.
    smallest = -(math.pi**2) * q / (4 * diffusion_time) - _DIGITS * math.log(10)
    last = 8
    while True:
        logarithms = log_heat_weights(q, diffusion_time, last)
        if logarithms[-1] < min(logarithms[-2], smallest):
            break
        last *= 2
    last = int(np.nonzero(logarithms >= min(0.0, smallest))[0][-1])
    nodes = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    with localcontext() as context:
        # The largest addends cancel down to the smallest sum.
        context.prec = int((logarithms.max() - smallest) / math.log(10)) + _DIGITS
        rate = -Decimal(diffusion_time) / q
        harmonics, decay, step = Decimal(1), Decimal(1), (rate * (q - 1)).exp()
        weights = [Decimal(1)]
        for order in range(1, last + 1):
            # N(2, ℓ) is 2, and the ratio of the first two 0/0.
            if q == 2:
                harmonics = Decimal(2)
            else:
                before = Decimal(2 * order + q - 4)
                harmonics *= (2 * order + q - 2) * Decimal(order + q - 3) / (before * order)
            decay *= step
            # λ_ℓ − λ_{ℓ−1} grows by 2 with each order.
            step *= (2 * rate).exp()
            weights.append(harmonics * decay)
        first = [Decimal(2 * k + q - 2) / (k + q - 2) if k else Decimal(1) for k in range(last)]
        second = [Decimal(k + 1) / (k + q - 1) for k in range(last)]
        logs, at_one = [], sum(weights)
        for node in nodes.tolist():
            t, value, above = Decimal(node), weights[last], Decimal(0)
            # Clenshaw's recurrence, as in `kernel`.
            for k in range(last - 1, -1, -1):
                value, above = weights[k] + first[k] * t * value - second[k] * above, value
            logs.append(float((value / at_one).ln()))
    return tuple(np.polynomial.chebyshev.chebfit(nodes, logs, _DEGREE).tolist())
