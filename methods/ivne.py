"""I-VNE+: invariance and the von Neumann entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.pairwise import normalize


@register("ivne")
@dataclass(frozen=True, kw_only=True)
class IVNE(Regularizer):
    """−α₁ mean_i cos(z₁ᵢ, z₂ᵢ) − α₂ ½ (S(Z₁) + S(Z₂)) (Kim et al., CVPR 2023).

    S(Z) = −Σ_j λ_j log λ_j over the eigenvalues λ_j of ZᵀZ/n for unit embeddings: the von Neumann entropy of the
    autocorrelation, between 0 and log min(n, q). They are taken from the smaller of ZᵀZ/n and ZZᵀ/n. The logarithm's
    argument is bounded below by the smallest normal number, so that 0 log 0 = 0 has a finite gradient.

    Attributes:
        alignment_weight: α₁; the authors' code notes that its 4.16 is the logarithm of the batch size 64.
        entropy_weight: α₂.
    """

    alignment_weight: float = 4.16
    entropy_weight: float = 1.0

    metadata: ClassVar[Metadata] = Metadata(
        title="I-VNE+",
        reference="Kim, Kang, Hwang, Shin, Rhee, CVPR 2023",
        url="https://arxiv.org/abs/2304.01434",
        formula="−α₁ mean_i z₁ᵢ·z₂ᵢ + α₂ ½ Σ_v tr(C_v log C_v), C_v = Z_vᵀZ_v/n",
        time="O(n q min(n, q))",
        memory="O(min(n, q)²)",
        published="α₁ = 4.16, α₂ = 1, batch 64, 2 + 4 views on ImageNet-100 (released script)",
        limitation="two views, where the released ImageNet-100 script has four more small crops",
        scale_invariant=True,
        rotation_invariant=True,
    )

    def __post_init__(self) -> None:
        """Refuses negative weights."""
        self.require(min(self.alignment_weight, self.entropy_weight) >= 0, "weights must be >= 0")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Alignment and entropy."""
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        return {
            "alignment": -self.alignment_weight * (z1_NQ * z2_NQ).sum(dim=1).mean(),
            "entropy": -0.5 * self.entropy_weight * (_entropy(z1_NQ) + _entropy(z2_NQ)),
        }


def _entropy(z_NQ: Tensor) -> Tensor:
    """The von Neumann entropy of ZᵀZ/n. The gradient of `eigvalsh` is sound at repeated eigenvalues."""
    n, q = z_NQ.shape
    eigenvalues: Tensor = torch.linalg.eigvalsh((z_NQ.T @ z_NQ if q < n else z_NQ @ z_NQ.T) / n)
    return -(eigenvalues * eigenvalues.clamp_min(torch.finfo(z_NQ.dtype).tiny).log()).sum()
