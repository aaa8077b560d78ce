"""Regularizers that are the squared MMD to the uniform distribution for a rotation-invariant kernel.

Shapes: N = batch (n), Q = embedding dimension (q).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from regbench.methods.base import Regularizer
from regbench.methods.pairwise import mean_squared_difference, normalize, off_diagonal_energy


@dataclass(frozen=True, kw_only=True)
class KernelRegularizer(Regularizer):
    """λ ℓ_a + ½ (ℓ_u(Z₁) + ℓ_u(Z₂)), Eqs. (2), (3) and (7) of Zheng et al. (ICLR 2023), for K(u, v) = φ(u·v).

    ℓ_u(Z) = n⁻² Σᵢ Σⱼ φ(zᵢ·zⱼ) over unit embeddings, diagonal included, as printed. The diagonal is a constant,
    φ(1)/n, and near uniform nearly all of the value, so it is given as the addend `diagonal`.

    Attributes:
        alignment_weight: λ as the paper's tables print it: the weight of the mean over n and q of (z₁ − z₂)², which
            is q times the λ of Eq. (2).
    """

    alignment_weight: float

    def __post_init__(self) -> None:
        """Refuses a negative alignment weight."""
        self.require(self.alignment_weight >= 0, "alignment_weight must be >= 0")

    @abstractmethod
    def kernel(self, t: Tensor, q: int) -> Tensor:
        """φ(t) for inner products t of any shape, in embedding dimension q; same shape."""

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Alignment, uniformity over pairs i ≠ j, and the constant diagonal of the Gram matrices."""
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        n, q = z1_NQ.shape

        def phi(t: Tensor) -> Tensor:
            return self.kernel(t, q)

        uniformity = 0.5 * (off_diagonal_energy(z1_NQ, phi) + off_diagonal_energy(z2_NQ, phi))
        return {
            "alignment": self.alignment_weight * mean_squared_difference(z1_NQ, z2_NQ),
            "uniformity": uniformity,
            "diagonal": phi(torch.ones_like(uniformity)) / n,
        }


def legendre(order: int, t: Tensor, q: int) -> list[Tensor]:
    """Legendre (Gegenbauer) polynomials P_0(q; t) … P_order(q; t), normalised to P_ℓ(q; 1) = 1.

    By the three-term recurrence (ℓ + q − 2) P_{ℓ+1} = (2ℓ + q − 2) t P_ℓ − ℓ P_{ℓ−1}, which stays within [−1, 1]
    at every q, where the explicit sum (Theorem 1 of the paper) overflows.

    Args:
        order: Highest degree, >= 0.
        t: Inner products in [−1, 1], any shape.
        q: Dimension of the space, >= 2.

    Returns:
        order + 1 tensors of t's shape.
    """
    polynomials = [torch.ones_like(t), t]
    for degree in range(1, order):
        previous, last = polynomials[-2:]
        polynomials.append(((2 * degree + q - 2) * t * last - degree * previous) / (degree + q - 2))
    return polynomials[: order + 1]
