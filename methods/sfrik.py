"""SFRIK: the truncated rotation-invariant kernel."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.kernel import (
    KernelRegularizer,
    legendre,
    legendre_series,
    series_derivative,
)
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@register(
    "sfrik",
    sfrik_l1={"weights": (1.0,), "alignment_weight": 10000.0},
    sfrik_l2={"weights": (1.0, 20.0), "alignment_weight": 2000.0},
    sfrik_l3={"weights": (1.0, 40.0, 40.0), "alignment_weight": 4000.0},
)
@settings
class SFRIK(KernelRegularizer):
    """Truncated kernel φ(t) = Σ_{ℓ=1}^{L} b_ℓ P_ℓ(q; t), Eq. (8) of Zheng et al. (ICLR 2023).

    P_1 = t, P_2 = (q t² − 1)/(q − 1), P_3 = ((q + 2) t³ − 3t)/(q − 1), and so on for any order. The
    defaults and the presets `sfrik_l1`, `sfrik_l2`, `sfrik_l3` are the paper's choices at q = 8192
    on IN20 % (its appendix).

    Attributes:
        weights: (b_1, …, b_L), each >= 0 and not all zero.
        alignment_weight: λ as in the paper's tables, see `KernelRegularizer`. It grows with q in
            the paper.
        regularize_local: Whether the kernel's energy is the mean over all views or over the global
            ones, which is the option `reg_small` of the authors' code. Two views are both global.
    """

    weights: tuple[NonNegative, ...] = (1.0, 40.0, 40.0)
    alignment_weight: NonNegative = 4000.0
    regularize_local: bool = True
    least_dim: ClassVar[int] = 2

    metadata: ClassVar[Metadata] = Metadata(
        title="SFRIK",
        reference="Zheng, Puy, Riccietti, Pérez, Gribonval, ICLR 2023",
        url="https://openreview.net/forum?id=8uu6JStuYm",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + ½ Σ_v n⁻² Σᵢⱼ Σ_ℓ b_ℓ P_ℓ(q; zᵢ·zⱼ)",
        latex=r"\frac{\lambda}{nq} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{1}{2n^2} \sum_v \sum_{i,j} "
        r"\sum_{\ell=1}^{L} b_\ell P_\ell(q; z_{v,i} \cdot z_{v,j})",
        time="O(n² q), for L ≤ 2 also O(n q²)",
        memory="O(1); O(q²) in the covariance form of L ≤ 2",
        published="λ = 4000, b = (1, 40, 40) at q = 8192 on IN20 %, ResNet-18, batch 2048 "
        "(appendix)",
        views="the authors' code (`--augmentations SwAV` and `OBoW`): alignment over all pairs "
        "with a global view",
        scale_invariant=True,
        rotation_invariant=True,
    )
    # The paper's λ at q = 8192 are 1.2 q (L = 1), 0.24 q (L = 2) and 0.49 q (L = 3).
    space: ClassVar[Space] = {"alignment_weight": Range(0.03, 30, times="q", balances=True)}

    def __post_init__(self) -> None:
        """Refuse weights that are all zero, and drop zeros after the last order with a weight."""
        self.require(
            any(self.weights), "weights must not be all zero; give some, such as [1,40,40]"
        )
        # The paper writes (1, 20, 0) for L = 2: the same kernel is the same method.
        object.__setattr__(self, "weights", self.weights[: self.order])

    @property
    def order(self) -> int:
        """L, the highest order with a weight."""
        return max(order for order, weight in enumerate(self.weights, 1) if weight)

    def regularized_views(self, count: int, global_views: int) -> int:
        """Return how many views there are, or how many global ones."""
        return count if self.regularize_local else global_views

    @property
    def label(self) -> str:
        """SFRIK with its order: another order is another kernel."""
        return f"SFRIK (L={self.order})"

    def kernel(self, t: Tensor, q: int) -> Tensor:
        """Compute Σ_ℓ b_ℓ P_ℓ(q; t), same shape as t."""
        total = torch.zeros_like(t)
        # The order 0 is a constant, which has no weight.
        for weight, polynomial in zip(self.weights, legendre(self.order, t, q)[1:], strict=True):
            total = total + weight * polynomial
        return total

    def kernel_and_derivative(self, t: Tensor, q: int) -> tuple[Tensor, Tensor]:
        """Compute both as Legendre series; the derivative's is in dimension q + 2."""
        coefficients = (0.0, *self.weights)
        slopes = series_derivative(coefficients, q)
        return legendre_series(coefficients, t, q), legendre_series(slopes, t, q + 2)

    def quadratic(self, q: int) -> tuple[float, float, float] | None:
        """Return the coefficients of b_1 t + b_2 (q t² − 1)/(q − 1) for L <= 2."""
        if self.order > 2:
            return None
        b1, b2 = (*self.weights, 0.0)[:2]  # of L = 1 there is no b_2
        return -b2 / (q - 1), b1, b2 * q / (q - 1)
