"""Barlow Twins: redundancy reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.forms.engine import Shard
from regbench.methods.forms.pairwise import chunks, frobenius_norm, panels
from regbench.settings import NonNegative, Positive, settings
from regbench.spaces import Range, Space


@register("barlow_twins")
@settings
class BarlowTwins(Regularizer):
    """s [ Σⱼ (1 − Cⱼⱼ)² + λ Σ_{j≠k} Cⱼₖ² ] with C = Ẑ₁ᵀẐ₂/n (Zbontar et al., ICML 2021, Eqs. (1)
    and (2)).

    Ẑ is the batch-normalised batch: mean 0 and biased variance 1 for each coordinate, with ε under
    the root as in the authors' code. The factor s is not in the paper: the code behind its ImageNet
    checkpoint multiplied the loss by 0.024; the code released later has a learning rate of its own
    for biases and batch normalisation instead. LARS does not see s on weight matrices.

    Attributes:
        redundancy_weight: λ >= 0.
        scale: s > 0.
        epsilon: ε > 0, added to the variance under the root.
    """

    redundancy_weight: NonNegative = 0.0051
    scale: Positive = 0.024
    # torch's batch normalisation, which the authors' code applies, has this ε.
    epsilon: Positive = 1e-5

    metadata: ClassVar[Metadata] = Metadata(
        title="Barlow Twins",
        reference="Zbontar, Jing, Misra, LeCun, Deny, ICML 2021",
        url="https://arxiv.org/abs/2103.03230",
        formula="s [ Σⱼ (1 − Cⱼⱼ)² + λ Σ_{j≠k} Cⱼₖ² ],  C = Ẑ₁ᵀẐ₂/n",
        latex=r"s \left[ \sum_j (1 - C_{jj})^2 + \lambda \sum_{j \neq k} C_{jk}^2 \right], \quad C "
        r"= \frac{1}{n} \hat{Z}_1^\top \hat{Z}_2",
        time="O(n² q) or O(n q²)",
        memory="O(n q) or O(q²)",
        published="λ = 0.0051, s = 0.024 on ImageNet, ResNet-50, q = 8192, batch 2048",
    )
    # As ‖Ẑ₁ᵀẐ₂‖² = ⟨Ẑ₁Ẑ₁ᵀ, Ẑ₂Ẑ₂ᵀ⟩, the redundancy does not need the correlation.
    forms = ("textbook", "gram", "covariance")
    # The q² − q squares are weighed against q others, so λ moves as 1/q; the published one is 42/q
    # at q = 8192.
    space: ClassVar[Space] = {"redundancy_weight": Range(1, 1000, times="1/q", balances=True)}

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute invariance (the diagonal) and redundancy (the rest of the correlation)."""
        correlation_QQ = self._normalize(z1_NQ).T @ self._normalize(z2_NQ) / len(z1_NQ)
        diagonal_Q = correlation_QQ.diagonal()
        redundancy = correlation_QQ.square().sum() - diagonal_Q.square().sum()
        return {
            "alignment": self.scale * (1 - diagonal_Q).square().sum(),
            "redundancy": self.scale * self.redundancy_weight * redundancy,
        }

    def _normalize(self, z_NQ: Tensor) -> Tensor:
        variance_Q, mean_Q = torch.var_mean(z_NQ, dim=0, correction=0)
        return (z_NQ - mean_Q) * (variance_Q + self.epsilon).rsqrt()

    def form_at(self, form: str, n: int, q: int) -> str:
        """Take the covariance form for `auto` at n = q too: both have 6 n³ FLOP, but panels cut
        a ragged triangle.
        """
        return "covariance" if form == "auto" and n == q else super().form_at(form, n, q)

    def pair_value_and_gradient(
        self, z1_NQ: Tensor, z2_NQ: Tensor, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Compute it in Gram or covariance form, see `Regularizer.pair_value_and_gradient`."""
        n = shard.n
        # The Gram form needs normalised rows in every panel and keeps them. The other form makes
        # them by chunks, unless they take no more memory than the correlation: a large product is a
        # little faster than many.
        kept = form == "gram" or len(z1_NQ) <= z1_NQ.shape[1]
        parts = [slice(None)] if kept else list(chunks(z1_NQ))
        views = [self._normalizer(z_NQ, shard, kept=kept) for z_NQ in (z1_NQ, z2_NQ)]
        if kept:
            y1_NQ, y2_NQ = (rows(slice(None)) for rows, _ in views)
            views = [(y1_NQ.__getitem__, views[0][1]), (y2_NQ.__getitem__, views[1][1])]
        (rows1, _), (rows2, _) = views
        weight = self.scale * self.redundancy_weight
        if form == "gram":
            diagonal_Q = shard.sum(torch.linalg.vecdot(y1_NQ, y2_NQ, dim=0)) / n
            gradients = (torch.zeros_like(z1_NQ), torch.zeros_like(z2_NQ))
            # With n <= q the diagonal is a small part of the norm, so nothing cancels.
            norm = shard.sum(_product_of_grams(y1_NQ, y2_NQ, gradients, shard)) / n**2
            redundancy = norm - diagonal_Q.double().square().sum()
            for gradient_NQ in gradients:
                gradient_NQ.mul_(2 * weight / n**2)
            slope_Q = (2 / n) * (self.scale * (diagonal_Q - 1) - weight * diagonal_Q)
            gradients[0].addcmul_(y2_NQ, slope_Q)
            gradients[1].addcmul_(y1_NQ, slope_Q)
        else:
            correlation_QQ = z1_NQ.new_zeros(z1_NQ.shape[1], z1_NQ.shape[1])
            for part in parts:
                correlation_QQ.addmm_(rows1(part).T, rows2(part))
            shard.sum(correlation_QQ).div_(n)
            diagonal_Q = correlation_QQ.diagonal().clone()
            # The diagonal, near 1, is left out before the norm: subtracted from it, it would cost
            # the rest its digits.
            correlation_QQ.diagonal().zero_()
            redundancy = frobenius_norm(correlation_QQ).double().square()
            correlation_QQ.mul_(2 * weight / n)
            # The diagonal's slope takes its place, so that one product gives the gradients of both
            # terms.
            correlation_QQ.diagonal().copy_((2 / n) * self.scale * (diagonal_Q - 1))
            gradients = (torch.empty_like(z1_NQ), torch.empty_like(z2_NQ))
            for part in parts:
                torch.mm(rows2(part), correlation_QQ.T, out=gradients[0][part])
                torch.mm(rows1(part), correlation_QQ, out=gradients[1][part])
        for (rows, inverse_Q), gradient_NQ in zip(views, gradients, strict=True):
            # Back through the normalisation: the mean and the part along y are taken off, as mean
            # and variance would undo them.
            moments_2Q = torch.stack([gradient_NQ.sum(dim=0), torch.zeros_like(inverse_Q)])
            for part in chunks(gradient_NQ):
                moments_2Q[1] += torch.linalg.vecdot(gradient_NQ[part], rows(part), dim=0)
            mean_Q, along_Q = shard.sum(moments_2Q) / n
            for part in chunks(gradient_NQ):
                gradient_PQ = gradient_NQ[part].sub_(mean_Q)
                gradient_PQ.addcmul_(rows(part), along_Q, value=-1).mul_(inverse_Q)
        terms = {
            "alignment": self.scale * (1 - diagonal_Q.double()).square().sum(),
            "redundancy": weight * redundancy,
        }
        return terms, *gradients

    def _normalizer(
        self, z_NQ: Tensor, shard: Shard, *, kept: bool
    ) -> tuple[Callable[[slice], Tensor], Tensor]:
        """Return a function giving a slice of this rank's rows, normalised over all ranks, and
        1/√(variance + ε).

        Each call of the function overwrites its earlier result. If `kept`, it may be called once
        only, for all rows.
        """
        # Fresh memory of this size comes from the system, page by page, which takes longer than to
        # fill it.
        scratch_PQ = torch.empty_like(z_NQ if kept else z_NQ[next(chunks(z_NQ), slice(0))])

        def centred(part: slice) -> Tensor:
            return torch.sub(z_NQ[part], mean_Q, out=scratch_PQ[: len(z_NQ[part])])

        mean_Q = shard.sum(z_NQ.sum(dim=0)) / shard.n
        variance_Q = torch.zeros_like(mean_Q)
        # A second pass, because E z² − (E z)² would lose digits to a large mean.
        for part in chunks(z_NQ):
            variance_Q += centred(part).square_().sum(dim=0)
        inverse_Q = (shard.sum(variance_Q) / shard.n + self.epsilon).rsqrt()
        return lambda part: centred(part).mul_(inverse_Q), inverse_Q


def _product_of_grams(
    a_NQ: Tensor, b_NQ: Tensor, gradients: tuple[Tensor, Tensor], shard: Shard
) -> Tensor:
    """Sum (aᵢ·aⱼ)(bᵢ·bⱼ) over this rank's i and all j.

    Add half of the gradients of the whole batch's sum to `gradients`.
    """
    total = torch.zeros((), dtype=torch.float64, device=a_NQ.device)
    gradient_a_NQ, gradient_b_NQ = gradients
    n = len(a_NQ)
    others = shard.others(a_NQ, b_NQ)
    for rows in panels(n, n, a_NQ, triangle=True):
        width, later = rows.stop - rows.start, slice(rows.start, n)
        gram_a_PM = a_NQ[rows] @ a_NQ[later].T
        gram_b_PM = b_NQ[rows] @ b_NQ[later].T
        product_PM = gram_a_PM * gram_b_PM
        total += 2 * product_PM.sum() - product_PM[:, :width].sum()
        gradient_a_NQ[rows].addmm_(gram_b_PM, a_NQ[later])
        gradient_b_NQ[rows].addmm_(gram_a_PM, b_NQ[later])
        gradient_a_NQ[rows.stop :].addmm_(gram_b_PM[:, width:].T, a_NQ[rows])
        gradient_b_NQ[rows.stop :].addmm_(gram_a_PM[:, width:].T, b_NQ[rows])
    for a_MQ, b_MQ in others:
        for rows in panels(n, len(a_MQ), a_NQ):
            gram_a_PM, gram_b_PM = a_NQ[rows] @ a_MQ.T, b_NQ[rows] @ b_MQ.T
            total += (gram_a_PM * gram_b_PM).sum()
            gradient_a_NQ[rows].addmm_(gram_b_PM, a_MQ)
            gradient_b_NQ[rows].addmm_(gram_a_PM, b_MQ)
    return total
