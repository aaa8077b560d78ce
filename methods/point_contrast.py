"""The two losses of PointContrast, taken from points of a scene to images of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.contrastive import Contrastive
from regbench.methods.pairwise import normalize
from regbench.spaces import Range, Space

_REFERENCE = "Xie, Gu, Guo, Qi, Guibas, Litany, ECCV 2020"
_URL = "https://arxiv.org/abs/2007.10985"


@register("info_nce")
@dataclass(frozen=True, kw_only=True)
class InfoNCE(Contrastive):
    """InfoNCE across views (PointInfoNCE of Xie et al., ECCV 2020; van den Oord et al., 2018).

    loss = −(1/n) Σᵢ log( exp(z1ᵢ·z2ᵢ/τ) / Σⱼ exp(z1ᵢ·z2ⱼ/τ) ) on unit embeddings: the first views are anchors, the
    second views of all images, the positive one included, the candidates.

    Attributes:
        temperature: τ > 0; 0.4 in PointContrast's training script.
    """

    temperature: float = 0.4
    own_view: ClassVar[bool] = False
    anchors: ClassVar[int] = 1

    metadata: ClassVar[Metadata] = Metadata(
        title="InfoNCE",
        reference=_REFERENCE,
        url=_URL,
        formula="(1/n) Σᵢ [ −z1ᵢ·z2ᵢ/τ + log Σⱼ exp(z1ᵢ·z2ⱼ/τ) ]",
        latex=r"\frac{1}{n} \sum_i \left[ -\frac{z_{1,i} \cdot z_{2,i}}{\tau} + \log \sum_j \exp \frac{z_{1,i} "
        r"\cdot z_{2,j}}{\tau} \right]",
        time="O(n² q)",
        memory="O(1)",
        published="τ = 0.4, 4096 points of ScanNet scenes",
        limitation="points that match in two views of a scene become two views of an image",
        scale_invariant=True,
        rotation_invariant=True,
        symmetric=False,
    )


@register("hardest_contrastive")
@dataclass(frozen=True, kw_only=True)
class HardestContrastive(Regularizer):
    """The hardest-contrastive loss (Choy et al., ICCV 2019; Xie et al., ECCV 2020, Section 3.2).

    loss = (1/n) Σᵢ max(0, ‖z1ᵢ − z2ᵢ‖² − m_p) + μ ½ Σ_v (1/n) Σᵢ max(0, m_n − min_{j≠i} ‖zvᵢ − z(3−v)ⱼ‖)² on unit
    embeddings. The papers print max(0, ‖·‖ − m_p)² for the positives; the authors' code, followed here, squares the
    distance before it takes off the margin. The code searches a random part of the other view and drops anchors whose
    nearest is their own match; here all images but the anchor's are searched. Zheng et al. (ICLR 2023) name it as a
    variation of the generalized distance kernel.

    Attributes:
        positive_margin: m_p >= 0.
        negative_margin: m_n > 0.
        negative_weight: μ >= 0.
    """

    positive_margin: float = 0.1
    negative_margin: float = 1.4
    negative_weight: float = 1.0

    metadata: ClassVar[Metadata] = Metadata(
        title="hardest-contrastive",
        reference=_REFERENCE,
        url=_URL,
        formula="mean max(0, ‖z1ᵢ − z2ᵢ‖² − m_p) + μ ½ Σ_v mean max(0, m_n − min_{j≠i} ‖zvᵢ − z(3−v)ⱼ‖)²",
        latex=r"\frac{1}{n} \sum_i \max(0, \Vert z_{1,i} - z_{2,i} \Vert^2 - m_p) + \frac{\mu}{2n} \sum_v \sum_i "
        r"\max(0, m_n - \min_{j \neq i} \Vert z_{v,i} - z_{3-v,j} \Vert)^2",
        time="O(n² q)",
        memory="O(n²)",
        published="m_p = 0.1, m_n = 1.4, q = 32, on points of ScanNet scenes",
        limitation="points that match in two views of a scene become two views of an image; the code searches a random "
        "part of the other view for the nearest and drops anchors whose nearest is their own match, none here",
        scale_invariant=True,
        rotation_invariant=True,
    )
    space: ClassVar[Space] = {"negative_weight": Range(0.1, 100, balances=True)}

    def __post_init__(self) -> None:
        """Refuse margins and weights below their bounds."""
        self.require(
            self.positive_margin >= 0 and self.negative_margin > 0 and self.negative_weight >= 0,
            "positive_margin and negative_weight must be >= 0, negative_margin > 0",
        )

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the alignment above its margin, and the distance to the nearest other image below its own."""
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        square1_N, square2_N = (z_NQ.square().sum(dim=1) for z_NQ in (z1_NQ, z2_NQ))
        # The squares are not all 1, as in 2 − 2 cos: `normalize` sets the shortest rows to zero.
        squared_NN = square1_N[:, None] + square2_N - 2 * (z1_NQ @ z2_NQ.T)
        others_NN = squared_NN.masked_fill(torch.eye(len(z1_NQ), dtype=torch.bool, device=z1_NQ.device), torch.inf)
        positive = ((z1_NQ - z2_NQ).square().sum(dim=1) - self.positive_margin).relu().mean()
        # Rows are the first view in search of the second, columns the reverse.
        negative = 0.5 * (self._below_margin(others_NN.amin(dim=0)) + self._below_margin(others_NN.amin(dim=1)))
        return {"alignment": positive, "uniformity": self.negative_weight * negative}

    def _below_margin(self, squared_N: Tensor) -> Tensor:
        # The root has no derivative where two embeddings coincide: they repel from a distance of about 1e-6 on.
        distance_N = squared_N.clamp_min(torch.finfo(squared_N.dtype).eps).sqrt()
        return (self.negative_margin - distance_N).relu().square().mean()
