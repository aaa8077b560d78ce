"""Terms over all pairs of a batch: what the methods have in common.

Shapes: N = batch (n), Q = embedding dimension (q). Methods state φ; the sums are done here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def normalize(z_NQ: Tensor) -> Tensor:
    """Rows scaled to unit length, shape (n, q). A zero row stays zero."""
    return F.normalize(z_NQ, dim=1)


def mean_squared_difference(z1_NQ: Tensor, z2_NQ: Tensor) -> Tensor:
    """Mean over n **and** q of (z1 - z2)², a scalar.

    This is ℓ_a / q with ℓ_a of Eq. (3) of Zheng et al. (ICLR 2023). The weights λ printed in the paper's tables
    multiply this per-coordinate mean, as in the authors' code, not ℓ_a itself.
    """
    return F.mse_loss(z1_NQ, z2_NQ)


def _off_diagonal_mask(n: int, like: Tensor) -> Tensor:
    return ~torch.eye(n, dtype=torch.bool, device=like.device)


def off_diagonal_energy(z_NQ: Tensor, phi: Callable[[Tensor], Tensor]) -> Tensor:
    """n⁻² Σ_{i≠j} φ(zᵢ·zⱼ), a scalar; z_NQ has shape (n, q).

    The pairs i = j are left out of the sum because they are a constant on the sphere, and because φ may have no
    derivative there; a loss that counts them adds φ(1)/n.
    """
    n = len(z_NQ)
    pairs_NN = _off_diagonal_mask(n, z_NQ)
    gram_NN = (z_NQ @ z_NQ.T).where(pairs_NN, 0.0)
    return phi(gram_NN).where(pairs_NN, 0.0).sum() / n**2


def off_diagonal_logsumexp(z_NQ: Tensor, scale: float) -> Tensor:
    """Row-wise log Σ_{j≠i} exp(scale · zᵢ·zⱼ), shape (n,); z_NQ has shape (n, q)."""
    gram_NN = scale * (z_NQ @ z_NQ.T)
    return gram_NN.where(_off_diagonal_mask(len(z_NQ), z_NQ), -torch.inf).logsumexp(dim=1)
