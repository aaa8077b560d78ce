"""The log-determinant of the identity plus a Gram matrix, in the smaller of two dimensions.

Shapes: N = batch (n), Q = embedding dimension (q).
"""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.methods.forms.pairwise import smaller_gram


def log_det_identity_plus(z_NQ: Tensor, scale: float) -> Tensor:
    """Compute log det(I + scale · ZᵀZ) = log det(I + scale · ZZᵀ) in float64, by a Cholesky factor
    of size min(n, q).

    Every eigenvalue is at least 1, so neither the value nor the gradient needs a guard as long as
    the rounding of the largest one stays below 1. In TF32 that can fail in a collapse, so this is
    float64: scale · ‖Z‖² may be 10¹⁴.
    """
    z_NQ = z_NQ.double()
    gram = smaller_gram(z_NQ)
    shifted = torch.eye(len(gram), dtype=z_NQ.dtype, device=z_NQ.device) + scale * gram
    factor: Tensor = torch.linalg.cholesky(shifted)
    return 2 * factor.diagonal().log().sum()
