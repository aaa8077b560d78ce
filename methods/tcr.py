"""TCR: the total coding rate, as in EMP-SSL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Native, register
from regbench.methods.forms.pairwise import log_det_identity_plus, normalize
from regbench.settings import NonNegative, Positive, settings
from regbench.spaces import Range, Space


@register("tcr")
@settings
class TotalCodingRate(Native):
    """−λ mean_v mean_i cos(z_{v,i}, z̄ᵢ) − mean_v R(Z_v), the loss of EMP-SSL (Tong et al., 2023).

    R(Z) = ½ log det(I + q/(n ε²) ZᵀZ) over unit embeddings is the total coding rate, and z̄ᵢ the
    mean of the unit embeddings of all views of image i; with two views both cosines are √((1 +
    z₁ᵢ·z₂ᵢ)/2). The length of z̄ᵢ is bounded below by 10⁻¹², for opposite views. The number that
    the authors' code names `eps`, 0.2, is ε².

    Attributes:
        alignment_weight: λ.
        distortion: ε², the squared coding error.
    """

    alignment_weight: NonNegative = 200.0
    distortion: Positive = 0.2

    metadata: ClassVar[Metadata] = Metadata(
        title="TCR",
        reference="Tong, Chen, Ma, LeCun, 2023 (EMP-SSL)",
        url="https://arxiv.org/abs/2304.03977",
        formula="−mean_v [ λ mean_i cos(z_{v,i}, z̄ᵢ) + ½ log det(I + q/(nε²) Z_vᵀZ_v) ]",
        latex=r"-\mathrm{mean}_v \left[ \frac{\lambda}{n} \sum_i \cos(z_{v,i}, \bar{z}_i) + "
        r"\frac{1}{2} \log \det \left( I + \frac{q}{n \epsilon^2} Z_v^\top Z_v \right) \right]",
        time="O(n q min(n, q))",
        memory="O(min(n, q)²)",
        published="λ = 200, ε² = 0.2, q = 1024, batch 100, 20 crops, ResNet-18 on CIFAR and "
        "ImageNet-100",
        views="the authors' code: every view against the mean of all",
        scale_invariant=True,
        rotation_invariant=True,
    )
    # The log-determinant is a sum over min(n, q) eigenvalues; the published λ is 2 min(n, q).
    space: ClassVar[Space] = {"alignment_weight": Range(0.1, 100, times="min(n, q)", balances=True)}

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute alignment with the mean of the views, and the coding rate."""
        n, q = views_NQ[0].shape
        views = [normalize(z_NQ) for z_NQ in views_NQ]
        direction_NQ = normalize(torch.stack(views).mean(dim=0))
        cosine = torch.stack([(view * direction_NQ).sum(dim=1).mean() for view in views]).mean()
        scale = q / (n * self.distortion)
        log_det = torch.stack([log_det_identity_plus(view, scale) for view in views]).mean()
        return {
            "alignment": -self.alignment_weight * cosine,
            "coding rate": (-0.5 * log_det).to(cosine),
        }
