"""VICReg: variance, invariance, covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.engine import Shard
from regbench.methods.pairwise import alignment, chunks, energy, mean_squared_difference, second_moment, square


@register("vicreg")
@dataclass(frozen=True, kw_only=True)
class VICReg(Regularizer):
    """λ mse(Z₁, Z₂) + μ ½ (v(Z₁) + v(Z₂)) + ν (c(Z₁) + c(Z₂)) (Bardes et al., ICLR 2022).

    v and c are those of Eq. (9) of Zheng et al. (ICLR 2023) with γ = 1: v = mean over coordinates of
    max(0, 1 − √(var + ε)), c = (1/q) Σ_{j≠k} C_{jk}², the embeddings not normalised, var and C with the true n − 1.
    The weights are those of the official code and of the paper's tables, where v is halved and c is not: (25, 25, 1) is
    the official VICReg. solo-learn does not halve v: its variance weight 12.5 is 25 here. In the paper's Eq. (2)
    with λ' and μ', this loss is twice the paper's for λ' = λ/(2q), μ' = μ/2.

    Attributes:
        alignment_weight: λ; the paper tunes 10 at q = 8192 on IN20 %.
        variance_weight: μ; the paper tunes 10 at q = 8192 on IN20 %.
        covariance_weight: ν.
        epsilon: ε, added to the variance under the root.
    """

    alignment_weight: float = 25.0
    variance_weight: float = 25.0
    covariance_weight: float = 1.0
    epsilon: float = 1e-4

    metadata: ClassVar[Metadata] = Metadata(
        title="VICReg",
        reference="Bardes, Ponce, LeCun, ICLR 2022",
        url="https://arxiv.org/abs/2105.04906",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + Σ_v [ ½μ mean_j max(0, 1 − √(var_j + ε)) + ν Σ_{j≠k} C_{jk}²/q ]",
        time="O(n² q) or O(n q²)",
        memory="O(n q) or O(q²)",
        published="(25, 25, 1) on ImageNet, ResNet-50, q = 8192, batch 2048; Zheng et al. tune (10, 10, 1) on IN20 %",
    )

    def __post_init__(self) -> None:
        """Refuses negative weights."""
        weights = (self.alignment_weight, self.variance_weight, self.covariance_weight)
        self.require(min(weights) >= 0 and self.epsilon > 0, "weights must be >= 0 and epsilon > 0")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Alignment, variance and covariance."""
        (variance1, covariance1), (variance2, covariance2) = self._spread(z1_NQ), self._spread(z2_NQ)
        return {
            "alignment": self.alignment_weight * mean_squared_difference(z1_NQ, z2_NQ),
            "variance": self.variance_weight * 0.5 * (variance1 + variance2),
            "covariance": self.covariance_weight * (covariance1 + covariance2),
        }

    def _spread(self, z_NQ: Tensor) -> tuple[Tensor, Tensor]:
        n, q = z_NQ.shape
        centred_NQ = z_NQ - z_NQ.mean(dim=0)
        covariance_QQ = centred_NQ.T @ centred_NQ / (n - 1)
        variance_Q = covariance_QQ.diagonal()
        hinge = (1 - (variance_Q + self.epsilon).sqrt()).relu().mean()
        return hinge, (covariance_QQ.square().sum() - variance_Q.square().sum()) / q

    @property
    def forms(self) -> tuple[str, ...]:
        """‖ZᵀZ‖ = ‖ZZᵀ‖: the covariance term does not need the covariance."""
        return ("textbook", "gram", "covariance")

    def value_and_gradient(
        self, z1_NQ: Tensor, z2_NQ: Tensor, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Streamed in Gram or covariance form, see `Regularizer.value_and_gradient`."""
        views = (z1_NQ, z2_NQ)
        gradients = (torch.zeros_like(z1_NQ), torch.zeros_like(z2_NQ))
        spreads = [self._streamed(*pair, shard, form) for pair in zip(views, gradients, strict=True)]
        weight = self.alignment_weight / (shard.n * z1_NQ.shape[1])
        difference = shard.sum(alignment(*views, None, None, gradients, weight))
        (variance1, covariance1), (variance2, covariance2) = spreads
        terms = {
            "alignment": weight * difference,
            "variance": self.variance_weight * 0.5 * (variance1 + variance2),
            "covariance": self.covariance_weight * (covariance1 + covariance2),
        }
        return terms, *gradients

    def _streamed(self, z_NQ: Tensor, gradient_NQ: Tensor, shard: Shard, form: str) -> tuple[Tensor, Tensor]:
        """(v, c) of one view; adds the gradient of ½μ v + ν c."""
        n, q = shard.n, z_NQ.shape[1]
        mean_Q = shard.sum(z_NQ.sum(dim=0)) / n
        ones_N = z_NQ.new_ones(len(z_NQ))
        if form == "gram":
            centred_NQ = z_NQ - mean_Q
            variance_Q = shard.sum(torch.linalg.vecdot(centred_NQ, centred_NQ, dim=0)) / (n - 1)
            # With n <= q the covariance has rank < n and the diagonal is a small part of its norm: no cancellation.
            total = shard.sum(energy(centred_NQ, ones_N, square, gradient_NQ, shard, diagonal=True))
            covariance = (total / (n - 1) ** 2 - variance_Q.double().square().sum()) / q
            gradient_NQ.mul_(2 * self.covariance_weight / (q * (n - 1) ** 2))
        else:
            covariance_QQ = second_moment(z_NQ, ones_N, shard, mean_Q).div_(n - 1)
            variance_Q = covariance_QQ.diagonal().clone()
            covariance_QQ.diagonal().zero_()
            covariance = torch.linalg.vector_norm(covariance_QQ).double().square() / q
        deviation_Q = (variance_Q + self.epsilon).sqrt()
        hinge = (1 - deviation_Q).relu().double().mean()
        factor_Q = (deviation_Q < 1) / deviation_Q * (-0.5 * self.variance_weight / (q * (n - 1)))
        if form == "gram":
            factor_Q -= 4 * self.covariance_weight / (q * (n - 1)) * variance_Q
            gradient_NQ.addcmul_(centred_NQ, factor_Q)
        else:
            covariance_QQ.mul_(4 * self.covariance_weight / (q * (n - 1)))
            covariance_QQ.diagonal().copy_(factor_Q)
            for rows in chunks(z_NQ):
                gradient_NQ[rows].addmm_(z_NQ[rows] - mean_Q, covariance_QQ)
        return hinge, covariance
