"""Measures of how the embeddings of a batch are spread, whichever loss trained them.

Shapes: N = batch (n), Q = embedding dimension (q), B = rows of a block, D = embedding or
representation.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

COLLAPSED_SPREAD = 0.05
"""Below this feature spread a run counts as collapsed: the embeddings are nearly one point."""


@torch.no_grad()
def feature_spread(z_NQ: Tensor) -> float:
    """Return the root of the total variance of (n, q) embeddings that are scaled to length 1: 0
    (collapsed) to 1.
    """
    return F.normalize(z_NQ.float(), dim=1).var(dim=0, correction=0).sum().sqrt().item()


@torch.no_grad()
def uniformity(z_ND: Tensor, block: int = 1024) -> float:
    """Return the logarithm of E exp(−2‖uᵢ − uⱼ‖²) over pairs i ≠ j of rows: 0 (collapsed) to about
    −4.

    ℓ_uniform with t = 2 of Wang and Isola (ICML 2020, Section 4.1), on unit rows. As in their code
    a row of zeros stays one: at the distance 0 from other such rows, and 1 from the rest.

    Args:
        z_ND: Embeddings or representations, (n, d), n ≥ 2.
        block: Rows at a time; memory is block × n.
    """
    u_ND = F.normalize(z_ND.float(), dim=1)
    n, squared_N = len(u_ND), u_ND.square().sum(dim=1)
    # −2‖u − v‖² is 4 u·v − 4, plus this for each row whose length is not 1.
    more_N = torch.where(squared_N < 0.99, 2 - 2 * squared_N, 0.0)
    # The exponentials are added up as logarithms, which neither overflow nor vanish.
    parts = []
    for start in range(0, n, block):
        rows = slice(start, start + block)
        exponent_BN = 4 * (u_ND[rows] @ u_ND.T) - 4 + more_N[rows, None] + more_N
        exponent_BN[:, start:].fill_diagonal_(-torch.inf)
        parts.append(exponent_BN.flatten().logsumexp(dim=0))
    return torch.stack(parts).logsumexp(dim=0).item() - math.log(n * (n - 1))


@torch.no_grad()
def effective_rank(z_NQ: Tensor) -> float:
    """Return RankMe (Garrido et al., ICML 2023, Eq. 4) of (n, q) embeddings: 1 to min(n, q)."""
    # RankMe is exp of the entropy of the singular values. The embeddings are neither centred nor
    # normalised, and the paper's ε within the logarithm is 0.
    z, (n, q) = z_NQ.double(), z_NQ.shape
    # The squared singular values are the eigenvalues of whichever Gram matrix is smaller.
    eigenvalues = torch.linalg.eigvalsh(z @ z.T if n <= q else z.T @ z).clamp_min(0)
    singular = eigenvalues.sqrt()
    p = singular / singular.sum().clamp_min(torch.finfo(singular.dtype).tiny)
    rank: float = torch.special.entr(p).sum().exp().item()
    return rank


@torch.no_grad()
def spread_metrics(z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, float]:
    """Return alignment, uniformity, effective rank and feature spread of two views' embeddings.

    Args:
        z1_NQ: Embeddings of the first views, (n, q), not normalised.
        z2_NQ: Embeddings of the second views, (n, q).

    Returns:
        `alignment`: mean ‖u − v‖² of the unit embeddings of both views, 0 (same) to 4 (Wang &
        Isola, 2020). `uniformity`, `effective_rank`, `feature_spread`: of the first view.
    """
    u1, u2 = F.normalize(z1_NQ.float(), dim=1), F.normalize(z2_NQ.float(), dim=1)
    return {
        "alignment": (u1 - u2).square().sum(dim=1).mean().item(),
        "uniformity": uniformity(z1_NQ),
        "effective_rank": effective_rank(z1_NQ),
        "feature_spread": feature_spread(z1_NQ),
    }
