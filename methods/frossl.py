"""FroSSL: the Frobenius norm of the covariance, under a logarithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Native, register
from regbench.methods.forms.pairwise import normalize_columns, smaller_gram
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@register("frossl")
@settings
class FroSSL(Native):
    """Σ_v log ‖C_v‖_F² + λ V (1/n) Σ_v ‖Ẑ_v − Z̄‖_F² (Skean et al., ECCV 2024), with V views.

    Ẑ_v is Z_v with each column centred and divided by its length, Z̄ the mean of the Ẑ_v, and C_v =
    Ẑ_vᵀ Ẑ_v divided by its trace, so that −log ‖C_v‖_F² is a matrix-based Rényi entropy of order 2.
    For two views the second term is (λ/n) ‖Ẑ₁ − Ẑ₂‖_F². A column that is constant but for rounding
    is 0 in Ẑ_v. A view of such columns only has no trace; the smallest normal number is added under
    both logarithms.

    The authors' code (OFSkean/FroSSL, solo/losses/frossl.py) has two functions, which differ in the
    centring alone: `frossl_loss_func` centres and takes two views, `multiview_frossl_loss_func`
    does not centre. Its training step (solo/methods/frossl.py) says that the paper's numbers are of
    the first with two views and of the second with more, and that the release now takes the second
    for both.

    Attributes:
        alignment_weight: λ.
        centered: Whether the columns are centred: true for the paper's results of two views, false
            for those of more.
    """

    alignment_weight: NonNegative = 1.0
    centered: bool = True

    metadata: ClassVar[Metadata] = Metadata(
        title="FroSSL",
        reference="Skean, Dhakal, Jacobs, Sanchez Giraldo, ECCV 2024",
        url="https://arxiv.org/abs/2310.02903",
        formula="Σ_v log (‖Ẑ_vᵀẐ_v‖_F² / tr(Ẑ_vᵀẐ_v)²) + λ (V/n) Σ_v ‖Ẑ_v − Z̄‖_F², "
        "columns of Ẑ_v centred, of unit length",
        latex=r"\sum_v \log \frac{\Vert \hat{Z}_v^\top \hat{Z}_v \Vert_F^2}{(\mathrm{tr} \, "
        r"\hat{Z}_v^\top \hat{Z}_v)^2} + \frac{\lambda V}{n} \sum_v \Vert \hat{Z}_v - \bar{Z} "
        r"\Vert_F^2",
        time="O(n q min(n, q))",
        memory="O(min(n, q)²)",
        published="ResNet-18, q = 1024, batch 256: λ = 1 on CIFAR, ImageNet-100 and Tiny ImageNet "
        "(batch 512), 1.4 on STL-10, 2 on ImageNet",
        views="the authors' code: every view against the mean of all, sums over views",
    )
    revision: ClassVar[int] = 2
    space: ClassVar[Space] = {"alignment_weight": Range(0.01, 10, balances=True)}

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute alignment and entropy."""
        normal_NQ = []
        for z_NQ in views_NQ:
            shifted_NQ = z_NQ - z_NQ.mean(dim=0) if self.centered else z_NQ
            # The original column shows what part of the centred one is rounding.
            normal_NQ.append(normalize_columns(shifted_NQ, z_NQ))
        z_VNQ = torch.stack(normal_NQ)
        count, n, _ = z_VNQ.shape
        scale = self.alignment_weight * count / n
        return {
            "alignment": scale * (z_VNQ - z_VNQ.mean(dim=0)).square().sum(),
            "entropy": torch.stack([_log_purity(z_NQ) for z_NQ in z_VNQ]).sum(),
        }


def _log_purity(z_NQ: Tensor) -> Tensor:
    """Compute log (‖ZᵀZ‖_F² / tr(ZᵀZ)²)."""
    gram = smaller_gram(z_NQ)
    tiny = torch.finfo(z_NQ.dtype).tiny
    # The derivative of `trace` makes a GPU's host wait.
    return (gram.square().sum() + tiny).log() - 2 * (gram.diagonal().sum() + tiny).log()
