"""Wasserstein uniformity: the distance to a Gaussian of the same scale as the uniform distribution on the sphere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.pairwise import mean_squared_difference, normalize


@register("wasserstein_uniformity")
@dataclass(frozen=True, kw_only=True)
class WassersteinUniformity(Regularizer):
    """λ mean (Z₁ − Z₂)² + μ W₂( N(m, Σ), N(0, I/q) ) (Fang et al., ICLR 2024).

    m and Σ are mean and biased covariance of the 2n unit embeddings of both views, and W₂² = ‖m‖² + 1 + tr Σ − (2/√q)
    tr Σ^{1/2}; tr Σ^{1/2} is the sum of the singular values of the centred embeddings over √(2n).

    Attributes:
        alignment_weight: λ >= 0, the weight of the mean over n and q.
        uniformity_weight: μ >= 0.
    """

    alignment_weight: float = 1000.0
    uniformity_weight: float = 1.0

    metadata: ClassVar[Metadata] = Metadata(
        title="Wasserstein uniformity",
        reference="Fang, Li, Sun, Wang, ICLR 2024",
        url="https://arxiv.org/abs/2403.00642",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + μ √( ‖m‖² + 1 + tr Σ − (2/√q) tr Σ^{1/2} )",
        time="O(n q min(n, q))",
        memory="O(n q)",
        published="no weights of its own: added to MoCo v2, BYOL, Barlow Twins and others",
        limitation="an addition to other losses in its paper; the alignment is this benchmark's",
        scale_invariant=True,
        rotation_invariant=True,
    )

    def __post_init__(self) -> None:
        """Refuses negative weights."""
        self.require(min(self.alignment_weight, self.uniformity_weight) >= 0, "weights must be >= 0")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Alignment and the distance."""
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        z_MQ = torch.cat([z1_NQ, z2_NQ])
        mean_Q = z_MQ.mean(dim=0)
        centred_MQ = (z_MQ - mean_Q) / math.sqrt(len(z_MQ))
        trace, root_trace = centred_MQ.square().sum(), torch.linalg.matrix_norm(centred_MQ, ord="nuc")
        squared = mean_Q.square().sum() + 1 + trace - 2 / math.sqrt(z_MQ.shape[1]) * root_trace
        # Zero only in the limit of a Gaussian; rounding must not make it negative.
        distance = squared.clamp_min(torch.finfo(squared.dtype).eps).sqrt()
        return {
            "alignment": self.alignment_weight * mean_squared_difference(z1_NQ, z2_NQ),
            "uniformity": self.uniformity_weight * distance,
        }
