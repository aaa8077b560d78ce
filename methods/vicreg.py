"""VICReg: variance, invariance, covariance."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends, Decomposed, StreamedView
from regbench.methods.forms.pairwise import chunks, energy, frobenius_norm, second_moment, square
from regbench.settings import NonNegative, Positive, settings
from regbench.spaces import Range, Space


@settings
class VarianceCovariance(Decomposed):
    """VICReg and its kin: alignment, a hinge on the deviation of each coordinate, a penalty on what
    they share.

    Attributes:
        alignment_weight: λ.
        variance_weight: μ.
        covariance_weight: ν.
        epsilon: ε, added to the variance under the root.
    """

    alignment_weight: NonNegative = 25.0
    variance_weight: NonNegative = 25.0
    covariance_weight: NonNegative = 1.0
    # The official code has this number.
    epsilon: Positive = 1e-4

    space: ClassVar[Space] = {"alignment_weight": Range(0.5, 500, balances=True)}

    def hinge(self, variance_Q: Tensor) -> Tensor:
        """Compute v = mean over coordinates of max(0, 1 − √(var + ε))."""
        return (1 - (variance_Q + self.epsilon).sqrt()).relu().mean()

    def weighted(self, hinge: Tensor, covariance: Tensor) -> Addends:
        """Weigh the two parts of one view.

        The official code of VICReg takes the mean of v over views and the sum of c. Here the mean
        is taken of both, hence the factor 2.
        """
        return {
            "variance": self.variance_weight * hinge,
            "covariance": 2 * self.covariance_weight * covariance,
        }


@register("vicreg")
@settings
class VICReg(VarianceCovariance):
    """λ mse(Z₁, Z₂) + μ ½ (v(Z₁) + v(Z₂)) + ν (c(Z₁) + c(Z₂)) (Bardes et al., ICLR 2022).

    v and c are those of Eq. (9) of Zheng et al. (ICLR 2023) with γ = 1: v = mean over coordinates
    of max(0, 1 − √(var + ε)), c = (1/q) Σ_{j≠k} C_{jk}², the embeddings not normalised, var and C
    with the true n − 1. The weights are those of the official code and of the paper's tables, where
    v is halved and c is not: (25, 25, 1) is the official VICReg. solo-learn does not halve v: its
    variance weight 12.5 is 25 here. In the paper's Eq. (2) with λ' and μ', this loss is twice the
    paper's for λ' = λ/(2q), μ' = μ/2.

    Attributes:
        alignment_weight: λ; the paper tunes 10 at q = 8192 on IN20 %.
        variance_weight: μ; the paper tunes 10 at q = 8192 on IN20 %.
        covariance_weight: ν.
        epsilon: ε, added to the variance under the root.
    """

    metadata: ClassVar[Metadata] = Metadata(
        title="VICReg",
        reference="Bardes, Ponce, LeCun, ICLR 2022",
        url="https://arxiv.org/abs/2105.04906",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + Σ_v [ ½μ mean_j max(0, 1 − √(var_j + ε)) + ν Σ_{j≠k} "
        "C_{jk}²/q ]",
        latex=r"\frac{\lambda}{nq} \Vert Z_1 - Z_2 \Vert_F^2 + \sum_v \left[ \frac{\mu}{2q} \sum_j "
        r"\max(0, 1 - \sqrt{\mathrm{var}_j + \epsilon}) + \frac{\nu}{q} \sum_{j \neq k} C_{jk}^2 "
        r"\right]",
        time="O(n² q) or O(n q²)",
        memory="O(n q) or O(q²)",
        published="(25, 25, 1) on ImageNet, ResNet-50, q = 8192, batch 2048; Zheng et al. tune "
        "(10, 10, 1) on IN20 %",
    )
    # As ‖ZᵀZ‖ = ‖ZZᵀ‖, the covariance term does not need the covariance.
    forms = ("textbook", "gram", "covariance")

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute μ v and 2 ν c of one view."""
        n, q = u_NQ.shape
        centred_NQ = u_NQ - u_NQ.mean(dim=0)
        covariance_QQ = centred_NQ.T @ centred_NQ / (n - 1)
        variance_Q = covariance_QQ.diagonal()
        hinge = self.hinge(variance_Q)
        covariance = (covariance_QQ.square().sum() - variance_Q.square().sum()) / q
        return self.weighted(hinge, covariance)

    def add_regularizer(self, view: StreamedView) -> Addends:
        """Compute it in Gram or covariance form, see `Decomposed.add_regularizer`."""
        z_NQ, inverse_N, gradient_NQ, share, shard, form = view
        variance_weight = share * self.variance_weight
        covariance_weight = 2 * share * self.covariance_weight
        n, q = shard.n, z_NQ.shape[1]
        mean_Q = shard.sum(z_NQ.sum(dim=0)) / n
        if form == "gram":
            centred_NQ = z_NQ - mean_Q
            variance_Q = shard.sum(torch.linalg.vecdot(centred_NQ, centred_NQ, dim=0)) / (n - 1)
            # With n <= q the covariance has rank < n and the diagonal is a small part of its norm,
            # so nothing cancels.
            total = energy(centred_NQ, inverse_N, square, gradient_NQ, shard, diagonal=True)
            covariance = (shard.sum(total) / (n - 1) ** 2 - variance_Q.double().square().sum()) / q
            gradient_NQ.mul_(2 * covariance_weight / (q * (n - 1) ** 2))
        else:
            covariance_QQ = second_moment(z_NQ, inverse_N, shard, mean_Q).div_(n - 1)
            variance_Q = covariance_QQ.diagonal().clone()
            # The diagonal is left out before the norm: subtracted from it, it would cost the rest
            # its digits.
            covariance_QQ.diagonal().zero_()
            covariance = frobenius_norm(covariance_QQ).double().square() / q
        deviation_Q = (variance_Q + self.epsilon).sqrt()
        hinge = (1 - deviation_Q).relu().double().mean()
        # The hinge's gradient is this multiple of the centred embeddings.
        factor_Q = (deviation_Q < 1) / deviation_Q * (-variance_weight / (q * (n - 1)))
        if form == "gram":
            # `energy` counts the diagonal, which the covariance term leaves out.
            factor_Q -= 4 * covariance_weight / (q * (n - 1)) * variance_Q
            gradient_NQ.addcmul_(centred_NQ, factor_Q)
        else:
            covariance_QQ.mul_(4 * covariance_weight / (q * (n - 1)))
            # The hinge's factor takes the diagonal's place, so that one product gives both
            # gradients.
            covariance_QQ.diagonal().copy_(factor_Q)
            for rows in chunks(z_NQ):
                gradient_NQ[rows].addmm_(z_NQ[rows] - mean_Q, covariance_QQ)
        return self.weighted(hinge, covariance)
