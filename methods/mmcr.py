"""MMCR: maximum manifold capacity representations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.pairwise import normalize


@register("mmcr")
@dataclass(frozen=True, kw_only=True)
class MMCR(Regularizer):
    """λ (1/n) Σᵢ ‖[z₁ᵢ, z₂ᵢ]‖_* − ‖C‖_* (Yerxa et al., NeurIPS 2023), ‖·‖_* the nuclear norm.

    The embeddings are unit vectors, C has the centroids ½ (z₁ᵢ + z₂ᵢ) as rows, shape (n, q), and [z₁ᵢ, z₂ᵢ] has shape
    (q, 2). Aligned views make the centroids long, so one term serves both ends; the paper's experiments have λ = 0,
    where the first term is not computed. Where a singular value is 0 the nuclear norm has no gradient, and a
    subgradient is taken.

    Attributes:
        local_weight: λ.
    """

    local_weight: float = 0.0

    metadata: ClassVar[Metadata] = Metadata(
        title="MMCR",
        reference="Yerxa, Kuang, Simoncelli, Chung, NeurIPS 2023",
        url="https://arxiv.org/abs/2303.03307",
        formula="λ mean_i ‖[z₁ᵢ, z₂ᵢ]‖_* − ‖½ (Z₁ + Z₂)‖_*",
        time="O(n q min(n, q))",
        memory="O(n q)",
        published="λ = 0; several views of an image (4 in the released ImageNet command)",
        limitation="two views, where the original gains from more; no momentum encoder, one of its ImageNet variants",
        scale_invariant=True,
        rotation_invariant=True,
    )

    def __post_init__(self) -> None:
        """Refuses a negative weight."""
        self.require(self.local_weight >= 0, "local_weight must be >= 0")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """The nuclear norm of the centroids, and with λ > 0 the mean one of the views of each image."""
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        terms = {"centroids": -torch.linalg.svdvals(0.5 * (z1_NQ + z2_NQ)).sum()}
        if self.local_weight:
            local = torch.linalg.svdvals(torch.stack([z1_NQ, z2_NQ], dim=2)).sum() / len(z1_NQ)
            terms["views"] = self.local_weight * local
        return terms
