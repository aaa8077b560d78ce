"""W-MSE: the distance of whitened views."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from regbench.errors import RegbenchError
from regbench.methods.base import Metadata, Native, register
from regbench.methods.forms.pairwise import normalize
from regbench.settings import AtLeastZero, Fraction, settings
from regbench.spaces import Range, Space

NARROW = 1024
"""Number of dimensions up to which L is formed whatever n is, and the smallest width of a block:
narrower ones would be too many.
"""


@register("w_mse")
@settings
class WMSE(Native):
    """Mean over the images of ‖u₁ᵢ − u₂ᵢ‖² = 2 − 2 cos(w₁ᵢ, w₂ᵢ) of whitened views (Ermolov et al.,
    ICML 2021).

    wᵢ = L⁻¹ (zᵢ − z̄), where L Lᵀ = (1 − ε) Σ + ε I is the Cholesky factorisation of the view's
    covariance (with n − 1), shrunk, and uᵢ = wᵢ/‖wᵢ‖. Each view is whitened by itself. The authors'
    ε is 0, which fails unless n > q and Σ has full rank; a positive ε keeps every batch defined,
    and the default matters only beside variances as small as itself. The paper whitens random
    sub-batches of 2q images, each by itself, the same ones in all views; by default the whole batch
    is whitened here. Computed in float64, since L⁻¹ magnifies the rounding of Σ. With more
    dimensions than images and than `NARROW`, L is not formed, see `_whiten_by_blocks`.

    Attributes:
        epsilon: ε, the shrinkage towards the identity; 0 raises `NotComputable` where the
            covariance is singular.
        sub_batch_size: Images that are whitened together, drawn anew at each step, >= 2 and a
            divisor of larger batches; 0: the whole batch.
    """

    epsilon: Fraction = 1e-4
    sub_batch_size: AtLeastZero = 0
    random: ClassVar[bool] = True

    metadata: ClassVar[Metadata] = Metadata(
        title="W-MSE",
        reference="Ermolov, Siarohin, Sangineto, Sebe, ICML 2021",
        url="https://arxiv.org/abs/2007.06346",
        formula="(1/n) Σᵢ ‖w₁ᵢ/‖w₁ᵢ‖ − w₂ᵢ/‖w₂ᵢ‖‖², wᵢ = L⁻¹(zᵢ − z̄), LLᵀ = (1 − ε) Cov + ε I",
        latex=r"\frac{1}{n} \sum_i \left\Vert \frac{w_{1,i}}{\Vert w_{1,i} \Vert} - "
        r"\frac{w_{2,i}}{\Vert w_{2,i} \Vert} \right\Vert^2, \quad w_{v,i} = L_v^{-1} (z_{v,i} - "
        r"\bar{z}_v), \quad L_v L_v^\top = (1 - \epsilon) \mathrm{Cov}(Z_v) + \epsilon I",
        time="O(n q min(n, q))",
        memory="O(n q)",
        published="ε = 0; q = 64, sub-batches of 128 on CIFAR; q = 128, 256 on STL-10, Tiny "
        "ImageNet, ImageNet-100",
        views="the authors' code: the mean over all pairs of views, local ones included",
        limitation="by default the whole batch is whitened, not random sub-batches: n should be "
        "well above q",
    )
    space: ClassVar[Space] = {"epsilon": Range(1e-4, 0.3, most=1)}

    def __post_init__(self) -> None:
        """Refuse sub-batches without a covariance."""
        self.require(self.sub_batch_size != 1, "sub_batch_size must be >= 2, or 0")

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute alignment of the whitened views, of all pairs alike: the only term."""
        parts = self._parts(views_NQ[0])
        units = []
        for z_NQ in views_NQ:
            # Rows come in the order of the parts, which is the same for all views.
            units.append(torch.cat([self._whiten(z_NQ[part].double()) for part in parts]))
        cosines = []
        for one_NQ, other_NQ in itertools.combinations(units, 2):
            cosines.append((one_NQ * other_NQ).sum(dim=1).mean())
        return {"alignment": (2 - 2 * torch.stack(cosines).mean()).to(views_NQ[0])}

    def _parts(self, like_NQ: Tensor) -> Sequence[Tensor | slice]:
        """Divide the images at random into those that are whitened together.

        Raises:
            RegbenchError: If they cannot be divided equally.
        """
        n, size = len(like_NQ), self.sub_batch_size
        if size == 0 or n <= size:
            return [slice(None)]
        if n % size:
            raise RegbenchError(f"method.sub_batch_size={size} must divide the batch of {n} images")
        # The CPU draws, so that a seed gives the same parts on every device.
        parts: tuple[Tensor, ...] = torch.randperm(n).to(like_NQ.device).split(size)
        return parts

    def _whiten(self, z_NQ: Tensor) -> Tensor:
        n, q = z_NQ.shape
        centred_NQ = z_NQ - z_NQ.mean(dim=0)
        # Without shrinkage L exists only if q < n.
        if q > max(n, NARROW) and self.epsilon > 0:
            return normalize(self._whiten_by_blocks(centred_NQ))
        covariance_QQ = centred_NQ.T @ centred_NQ / (n - 1)
        identity_QQ = torch.eye(q, dtype=z_NQ.dtype, device=z_NQ.device)
        factor_QQ = torch.linalg.cholesky(
            (1 - self.epsilon) * covariance_QQ + self.epsilon * identity_QQ
        )
        return normalize(torch.linalg.solve_triangular(factor_QQ, centred_NQ.T, upper=False).T)

    def _whiten_by_blocks(self, centred_NQ: Tensor) -> Tensor:
        """Compute the rows of L⁻¹ Zᵀ a block of coordinates at a time, from matrices as large as a
        block or n.

        With c = (1 − ε)/(n − 1), Z_B a block's columns and A those before it, the block's diagonal
        block of L is the factor L_B of εI + c Z_Bᵀ S Z_B, its covariance given A, where S = (I +
        (c/ε) A Aᵀ)⁻¹, and its rows are L_B⁻¹ Z_Bᵀ S (block elimination, and Woodbury's identity for
        S).
        """
        n = len(centred_NQ)
        scale = (1 - self.epsilon) / (n - 1)
        # Wider blocks would take more FLOP, narrower ones more operations.
        width = max(3 * n // 2, NARROW)
        identity = torch.eye(width, dtype=centred_NQ.dtype, device=centred_NQ.device)
        before_NN, previous_NB = identity[:n, :n], None
        whitened_BN = []
        for block_NB in centred_NQ.split(width, dim=1):
            rest_NB = block_NB
            if previous_NB is not None:
                before_NN = torch.addmm(
                    before_NN, previous_NB, previous_NB.T, alpha=scale / self.epsilon
                )
                rest_NB = torch.cholesky_solve(block_NB, torch.linalg.cholesky(before_NN))
            identity_BB = identity[: block_NB.shape[1], : block_NB.shape[1]]
            given_BB = torch.addmm(identity_BB, block_NB.T, rest_NB, beta=self.epsilon, alpha=scale)
            factor_BB = torch.linalg.cholesky(given_BB)
            whitened_BN.append(torch.linalg.solve_triangular(factor_BB, rest_NB.T, upper=False))
            previous_NB = block_NB
        return torch.cat(whitened_BN).T
