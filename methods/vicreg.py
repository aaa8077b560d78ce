"""VICReg: variance, invariance, covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.pairwise import mean_squared_difference


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
        time="O(n q²)",
        memory="O(q²)",
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
