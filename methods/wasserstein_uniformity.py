"""Wasserstein uniformity: the distance to a Gaussian of the same scale as the uniform
distribution on the sphere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Native, register
from regbench.methods.forms.pairwise import normalize
from regbench.methods.forms.views import mean_squared_spread
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@register("wasserstein_uniformity")
@settings
class WassersteinUniformity(Native):
    """λ mean (Z_g − Z_v)² + μ W₂( N(m, Σ), N(0, I/q) ) (Fang et al., ICLR 2024).

    m and Σ are mean and biased covariance of the Vn unit embeddings of all views, and W₂² = ‖m‖² +
    1 + tr Σ − (2/√q) tr Σ^{1/2}; tr Σ^{1/2} is the sum of the singular values of the centred
    embeddings over √(Vn). Duplicates and a low rank make singular values of 0, where that sum has
    subgradients but no gradient. Rounding chooses one, so that single and double precision can have
    quite different gradients there.

    The paper adds it to whole methods. The commands of its code (statsle/WassersteinSSL,
    code/*/run_*+w2.sh) weigh it, at q = 256 and batch 256 on CIFAR-10 and CIFAR-100, by a constant
    0.2 beside BYOL, by a constant 1 beside MoCo v2, and by 30 falling linearly to 0 beside Barlow
    Twins with λ = 0.08. Here it stands beside an alignment alone, whose weight is this benchmark's:
    1000/q times the mean over the images of ‖z₁ᵢ − z₂ᵢ‖².

    Attributes:
        alignment_weight: λ >= 0, the weight of the mean over n and q.
        uniformity_weight: μ >= 0.
    """

    alignment_weight: NonNegative = 1000.0
    uniformity_weight: NonNegative = 1.0

    metadata: ClassVar[Metadata] = Metadata(
        title="Wasserstein uniformity",
        reference="Fang, Li, Sun, Wang, ICLR 2024",
        url="https://arxiv.org/abs/2403.00642",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + μ √( ‖m‖² + 1 + tr Σ − (2/√q) tr Σ^{1/2} )",
        latex=r"\frac{\lambda}{nq} \Vert Z_1 - Z_2 \Vert_F^2 + \mu \sqrt{\Vert m \Vert^2 + 1 + "
        r"\mathrm{tr} \, \Sigma - \frac{2}{\sqrt{q}} \mathrm{tr} \, \Sigma^{1/2}}",
        time="O(n q min(n, q))",
        memory="O(n q)",
        published="μ = 0.2 beside BYOL, 1 beside MoCo v2, 30 → 0 beside Barlow Twins (CIFAR, q = "
        "256, batch 256); λ is ours",
        limitation="an addition to other losses in its paper; the alignment is this benchmark's",
        scale_invariant=True,
        rotation_invariant=True,
    )
    space: ClassVar[Space] = {"alignment_weight": Range(0.01, 10, times="q", balances=True)}

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute alignment and the distance."""
        views_NQ = [normalize(z_NQ) for z_NQ in views_NQ]
        z_MQ = torch.cat(views_NQ)
        mean_Q = z_MQ.mean(dim=0)
        centred_MQ = (z_MQ - mean_Q) / math.sqrt(len(z_MQ))
        trace = centred_MQ.square().sum()
        root_trace = torch.linalg.matrix_norm(centred_MQ, ord="nuc")
        # The 1 is the trace of I/q.
        squared = mean_Q.square().sum() + 1 + trace - 2 / math.sqrt(z_MQ.shape[1]) * root_trace
        # Zero only in the limit of a Gaussian; rounding must not make it negative.
        distance = squared.clamp_min(torch.finfo(squared.dtype).eps).sqrt()
        return {
            "alignment": self.alignment_weight * mean_squared_spread(views_NQ, global_views),
            "uniformity": self.uniformity_weight * distance,
        }
