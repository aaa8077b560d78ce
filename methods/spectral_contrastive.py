"""The spectral contrastive loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.pairwise import off_diagonal_mask


@register("spectral_contrastive")
@dataclass(frozen=True, kw_only=True)
class SpectralContrastive(Regularizer):
    """[ −2 mean z1ᵢ·z2ᵢ + mean_{i≠j} (z1ᵢ·z2ⱼ)² ] / μ (HaoChen et al., NeurIPS 2021, Eq. (6)).

    As in the authors' code, embeddings longer than √μ are first scaled back to that length, and the loss is divided
    by μ.

    Attributes:
        squared_radius: μ > 0.
    """

    squared_radius: float = 1.0

    metadata: ClassVar[Metadata] = Metadata(
        title="spectral contrastive",
        reference="HaoChen, Wei, Gaidon, Ma, NeurIPS 2021",
        url="https://arxiv.org/abs/2106.04156",
        formula="[ −(2/n) Σᵢ z1ᵢ·z2ᵢ + (n(n−1))⁻¹ Σ_{i≠j} (z1ᵢ·z2ⱼ)² ] / μ, ‖z‖² ≤ μ",
        time="O(n² q)",
        memory="O(n²)",
        published="μ = 1 (default of the authors' code)",
        rotation_invariant=True,
    )

    def __post_init__(self) -> None:
        """Refuses a radius that is not positive."""
        self.require(self.squared_radius > 0, "squared_radius must be > 0")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Alignment (the positives) and uniformity (the squares)."""
        n, mu = len(z1_NQ), self.squared_radius
        z1_NQ, z2_NQ = self._within_radius(z1_NQ), self._within_radius(z2_NQ)
        squares_NN = (z1_NQ @ z2_NQ.T).square().where(off_diagonal_mask(n, z1_NQ), 0.0)
        return {
            "alignment": -2 / mu * (z1_NQ * z2_NQ).sum(dim=1).mean(),
            "uniformity": squares_NN.sum() / (mu * n * (n - 1)),
        }

    def _within_radius(self, z_NQ: Tensor) -> Tensor:
        radius = self.squared_radius**0.5
        length_N = torch.linalg.vector_norm(z_NQ, dim=1, keepdim=True)
        scaled_NQ: Tensor = z_NQ * (radius / length_N.clamp_min(radius))
        return scaled_NQ
