"""The two losses of PointContrast, taken from points of a scene to images of a batch."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.forms.contrastive import Contrastive
from regbench.methods.forms.pairwise import centred_units
from regbench.settings import NonNegative, Positive, settings
from regbench.spaces import Range, Space

_REFERENCE = "Xie, Gu, Guo, Qi, Guibas, Litany, ECCV 2020"
_URL = "https://arxiv.org/abs/2007.10985"


@register("info_nce")
@settings
class InfoNCE(Contrastive):
    """InfoNCE across views (PointInfoNCE of Xie et al., ECCV 2020; van den Oord et al., 2018).

    loss = −(1/n) Σᵢ log( exp(z1ᵢ·z2ᵢ/τ) / Σⱼ exp(z1ᵢ·z2ⱼ/τ) ) on unit embeddings: the first views
    are anchors, the second views of all images, the positive one included, the candidates.

    Attributes:
        temperature: τ > 0; 0.4 in PointContrast's training script.
    """

    temperature: Positive = 0.4
    own_view: ClassVar[bool] = False
    anchors: ClassVar[int] = 1

    metadata: ClassVar[Metadata] = Metadata(
        title="InfoNCE",
        reference=_REFERENCE,
        url=_URL,
        formula="(1/n) Σᵢ [ −z1ᵢ·z2ᵢ/τ + log Σⱼ exp(z1ᵢ·z2ⱼ/τ) ]",
        latex=r"\frac{1}{n} \sum_i \left[ -\frac{z_{1,i} \cdot z_{2,i}}{\tau} + \log \sum_j \exp "
        r"\frac{z_{1,i} \cdot z_{2,j}}{\tau} \right]",
        time="O(n² q)",
        memory="O(1)",
        published="τ = 0.4, 4096 points of ScanNet scenes",
        limitation="points that match in two views of a scene become two views of an image",
        scale_invariant=True,
        rotation_invariant=True,
        symmetric=False,
    )


@register("hardest_contrastive")
@settings
class HardestContrastive(Regularizer):
    """The hardest-contrastive loss (Choy et al., ICCV 2019; Xie et al., ECCV 2020, Section 3.2).

    loss = (1/n) Σᵢ max(0, ‖z1ᵢ − z2ᵢ‖² − m_p) + μ ½ Σ_v (1/n) Σᵢ max(0, m_n − min_{j≠i} ‖zvᵢ −
    z(3−v)ⱼ‖)² on unit embeddings. The papers print max(0, ‖·‖ − m_p)² for the positives; the
    authors' code, followed here, squares the distance before it takes off the margin. The code
    searches a random part of the other view and drops anchors whose nearest is their own match;
    here all images but the anchor's are searched. Zheng et al. (ICLR 2023) name it as a variation
    of the generalized distance kernel.

    Attributes:
        positive_margin: m_p >= 0.
        negative_margin: m_n > 0.
        negative_weight: μ >= 0.
    """

    positive_margin: NonNegative = 0.1
    negative_margin: Positive = 1.4
    negative_weight: NonNegative = 1.0

    metadata: ClassVar[Metadata] = Metadata(
        title="hardest-contrastive",
        reference=_REFERENCE,
        url=_URL,
        formula="mean max(0, ‖z1ᵢ − z2ᵢ‖² − m_p) + μ ½ Σ_v mean max(0, m_n − min_{j≠i} ‖zvᵢ − "
        "z(3−v)ⱼ‖)²",
        latex=r"\frac{1}{n} \sum_i \max(0, \Vert z_{1,i} - z_{2,i} \Vert^2 - m_p) + \frac{\mu}{2n} "
        r"\sum_v \sum_i \max(0, m_n - \min_{j \neq i} \Vert z_{v,i} - z_{3-v,j} \Vert)^2",
        time="O(n² q)",
        memory="O(n²)",
        published="m_p = 0.1, m_n = 1.4, q = 32, on points of ScanNet scenes",
        limitation="points that match in two views of a scene become two views of an image; the "
        "code searches a random part of the other view for the nearest and drops anchors whose "
        "nearest is their own match, none here",
        scale_invariant=True,
        rotation_invariant=True,
    )
    revision: ClassVar[int] = 2
    space: ClassVar[Space] = {"negative_weight": Range(0.1, 100, balances=True)}

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the alignment above its margin, and the distance to the nearest other image
        below its own.
        """
        z1_NQ, z2_NQ = centred_units(torch.cat([z1_NQ, z2_NQ])).chunk(2)
        nearest1_N, nearest2_N = _nearest_others(z1_NQ.detach(), z2_NQ.detach())
        positive = ((z1_NQ - z2_NQ).square().sum(dim=1) - self.positive_margin).relu().mean()
        negatives = [
            self._below_margin(z1_NQ - z2_NQ[nearest1_N]),
            self._below_margin(z2_NQ - z1_NQ[nearest2_N]),
        ]
        return {
            "alignment": positive,
            "uniformity": self.negative_weight * torch.stack(negatives).mean(),
        }

    def _below_margin(self, difference_NQ: Tensor) -> Tensor:
        # Two embeddings that coincide do not repel: the norm has the gradient 0 there.
        distance_N: Tensor = torch.linalg.vector_norm(difference_NQ, dim=1)
        return (self.negative_margin - distance_N).relu().square().mean()


def _nearest_others(z1_NQ: Tensor, z2_NQ: Tensor) -> tuple[Tensor, Tensor]:
    """Find the other image whose second view is nearest to each first view, and the reverse:
    indices, shape (n,).
    """
    squared_NN = (
        z1_NQ.square().sum(dim=1)[:, None] + z2_NQ.square().sum(dim=1) - 2 * (z1_NQ @ z2_NQ.T)
    )
    squared_NN.fill_diagonal_(torch.inf)
    return squared_NN.argmin(dim=1), squared_NN.argmin(dim=0)
