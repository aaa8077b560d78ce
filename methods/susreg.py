"""SUSReg, the regularizer of SPHERE-JEPA: a sliced test of uniformity on the sphere."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends
from regbench.methods.forms.slicing import SlicedCharacteristic, epps_pulley
from regbench.settings import AtLeastOne, AtLeastTwo, Fraction, settings
from regbench.spaces import Range, Space


@register("susreg")
@settings
class SUSReg(SlicedCharacteristic):
    """(1 − λ) ¼ mean_i ‖z₁ᵢ − z₂ᵢ‖² + λ ½ Σ_v E_a EP(Z_v a) on unit embeddings (Nicollier et al.,
    arXiv 2605.26900).

    Eqs. (2) to (5) of "SPHERE-JEPA": EP = n ∫ |φ̂(t) − ψ(t)|² e^{−t²/2} dt, the Epps-Pulley
    statistic, where φ̂ is the empirical characteristic function along the random direction a, and ψ
    that of a coordinate of a uniform vector on the sphere, ₀F₁(; q/2; −t²/4). Above q = 256 the
    paper takes N(0, 1/q) for the coordinate; here it is exact at every q. Its mean over directions
    is n ∫ (1 − ψ²) e^{−t²/2} dt, about √(2π) n/q, times `susreg_mmd`, in which a point costs 1. The
    paper says of the weight only that it is Gaussian; e^{−t²/2} is LeJEPA's. The density
    e^{−t²/2}/√(2π), in Eq. (14) of the same authors' next paper (arXiv 2606.17603, 2026), makes EP
    smaller by √(2π). If the paper's λ belongs to that, ours has to have a λ/(1 − λ) smaller by
    √(2π): 0.021 for their 0.05. The integral is by the trapezoid rule on [0, T], doubled; T and the
    number of knots are this benchmark's.

    Attributes:
        regularization_weight: λ in [0, 1].
        directions: Number of random directions, >= 1.
        knots: Points of the quadrature, >= 2.
        largest_frequency: T in (0, 20].
    """

    regularization_weight: Fraction = 0.05
    directions: AtLeastOne = 1024
    knots: AtLeastTwo = 17
    # The weight e^{−t²/2} is below 4e-6 beyond 5, and the series of ψ is but rounding beyond 20.
    largest_frequency: Annotated[float, Field(gt=0, le=20)] = 5.0
    unit: ClassVar[bool] = True
    to_center: ClassVar[bool] = True
    addend: ClassVar[str] = "uniformity"

    metadata: ClassVar[Metadata] = Metadata(
        title="SUSReg",
        reference="Nicollier, Dunitz, Pic, Musé, Meinhardt-Llopis, Facciolo, arXiv 2026 "
        "(SPHERE-JEPA)",
        url="https://arxiv.org/abs/2605.26900",
        formula="(1−λ) ¼ ‖Z₁ − Z₂‖²/n + λ ½ Σ_v E_a n ∫ |φ̂_{Z_v a}(t) − ψ(t)|² e^{−t²/2} dt",
        latex=r"\frac{1 - \lambda}{4n} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{\lambda}{2} \sum_v "
        r"\mathbb{E}_a \, n \int | \hat{\varphi}_{Z_v a}(t) - \psi(t) |^2 e^{-t^2/2} \, dt",
        time="O(n K (q + T)), K directions, T knots",
        memory="O(n K)",
        published="λ = 0.05, 1024 directions at q = 256; ViT-B/14 on ImageNet (batch 512), "
        "ResNet-18 on ImageNet-100, ResNet-50 on Galaxy10; the quadrature is ours, and the weight "
        "is not scaled to a density",
        views="Eq. (5): views are aligned with the mean of the global ones",
        scale_invariant=True,
    )
    space: ClassVar[Space] = {"regularization_weight": Range(0.01, 0.99, "logit", balances=True)}

    def alignment_scale(self, q: int) -> float:
        """Return (1 − λ) q: the squared distance to the global views' mean is a sum over
        coordinates.
        """
        return (1 - self.regularization_weight) * q

    @property
    def weight(self) -> float:
        """Factor λ of the statistic."""
        return self.regularization_weight

    def characteristic(self, frequencies_T: Tensor, q: int) -> Tensor:
        """Compute ₀F₁(; q/2; −t²/4), that of an entry of a uniform unit vector."""
        return 1 + _characteristic_less_one(frequencies_T, q)

    def sliced(self, u_NQ: Tensor, directions_QK: Tensor) -> Addends:
        """Compute λ times the mean statistic over directions."""
        n, projections_NK = len(u_NQ), u_NQ @ directions_QK
        step = self.largest_frequency / (self.knots - 1)
        squares, sines = [], []
        # At the first knot, frequency 0, both functions are 1.
        for knot in range(1, self.knots):
            squares.append((projections_NK * (knot * step / 2)).sin().square().sum(dim=0))
            sines.append((projections_NK * (knot * step)).sin().sum(dim=0))
        frequencies_T = step * torch.arange(1, self.knots, dtype=torch.float64, device=u_NQ.device)
        # Both are close to 1, as projections are about 1/√q, so 1 is taken off: cos x − 1 = −2
        # sin²(x/2).
        uniform_T = _characteristic_less_one(frequencies_T, u_NQ.shape[1]).to(u_NQ)
        real_TK = -2 * (torch.stack(squares) / n) - uniform_T[:, None]
        statistic = epps_pulley(real_TK, torch.stack(sines) / n, frequencies_T)
        return {self.addend: self.weight * n * statistic}


def _characteristic_less_one(frequencies_T: Tensor, q: int) -> Tensor:
    """Sum the series of ₀F₁(; q/2; −t²/4) − 1; ₀F₁ is the characteristic function of a uniform
    unit vector's entry.
    """
    k = torch.arange(1, 200, dtype=torch.float64, device=frequencies_T.device)
    return (-(frequencies_T[:, None] ** 2) / 4 / ((q / 2 + k - 1) * k)).cumprod(dim=1).sum(dim=1)
