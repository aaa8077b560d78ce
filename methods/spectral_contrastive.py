"""The spectral contrastive loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register


@register("spectral_contrastive")
@dataclass(frozen=True, kw_only=True)
class SpectralContrastive(Regularizer):
    """(1/μ) [ −2/n Σᵢ uᵢ·vᵢ + 1/(n(n − 1)) Σ_{i≠j} (uᵢ·vⱼ)² ] (HaoChen et al., NeurIPS 2021).

    The batch estimate of −2 E[f(x)·f(x⁺)] + E[(f(x)·f(x⁻))²], whose minimum over f is a spectral decomposition of the
    graph of augmentations. uᵢ and vᵢ are the embeddings of the two views projected onto the ball of radius √μ:
    longer ones are scaled down to √μ, shorter ones stay as they are. The negatives are views of two different images,
    one of each kind, n(n − 1) ordered pairs. The projection and the division by μ are those of the official code;
    without them (μ → ∞, times μ) it is the loss as the theory states it.

    Attributes:
        mu: μ, the squared radius of the ball: 10 on ImageNet and 1 on CIFAR-10 in the official configurations.
    """

    mu: float = 10.0

    metadata: ClassVar[Metadata] = Metadata(
        title="spectral contrastive",
        reference="HaoChen, Wei, Gaidon, Ma, NeurIPS 2021",
        url="https://arxiv.org/abs/2106.04156",
        formula="(1/μ) [ −2/n Σᵢ z₁ᵢ·z₂ᵢ + 1/(n(n − 1)) Σ_{i≠j} (z₁ᵢ·z₂ⱼ)² ],  ‖z‖ clipped to √μ",
        time="O(n² q)",
        memory="O(n²)",
        published="μ = 10 on ImageNet, ResNet-50, q = 8192, batch 384; μ = 1 on CIFAR-10, q = 1000, batch 512",
        limitation="the original trains with SGD and a projector without a last ReLU; only the loss is here",
        rotation_invariant=True,
    )

    def __post_init__(self) -> None:
        """Refuses a ball without inside, or of infinite radius."""
        self.require(0 < self.mu < float("inf"), "mu must be > 0 and finite")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Attraction of the two views of an image, and repulsion of the views of different images."""
        n = len(z1_NQ)
        z1_NQ, z2_NQ = self._clip(z1_NQ), self._clip(z2_NQ)
        different_NN = ~torch.eye(n, dtype=torch.bool, device=z1_NQ.device)
        squares_NN = (z1_NQ @ z2_NQ.T).square().where(different_NN, 0.0)
        return {
            "attraction": -2 / self.mu * (z1_NQ * z2_NQ).sum() / n,
            "repulsion": squares_NN.sum() / (self.mu * n * (n - 1)),
        }

    def _clip(self, z_NQ: Tensor) -> Tensor:
        radius = self.mu**0.5
        length_N: Tensor = torch.linalg.vector_norm(z_NQ, dim=1, keepdim=True)
        factor_N: Tensor = radius / length_N.clamp_min(radius)
        return z_NQ * factor_N
