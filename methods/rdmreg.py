"""RDMReg, the regularizer of Rectified LpJEPA: a sliced distance to a rectified distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from regbench.methods.base import Metadata, Native, register
from regbench.methods.forms.pairwise import infinite_as_nan
from regbench.methods.forms.slicing import random_directions
from regbench.methods.forms.views import mean_squared_spread
from regbench.settings import AtLeastOne, NonNegative, settings
from regbench.spaces import Range, Space


@register("rdmreg")
@settings
class RDMReg(Native):
    """λ mse(X₁, X₂) + μ ½ Σ_v E_a W₂²(X_v a, Y_v a) of rectified embeddings X = max(0, Z) (Kuang et
    al., 2026).

    Y_v is a sample of n vectors with independent coordinates max(0, m + σ g), drawn anew for each
    view and step, where g has the density ∝ exp(−|g|ᵖ/p) and σ = p^{−1/p} √(Γ(1/p)/Γ(3/p)) makes
    the variance of σ g equal to 1. W₂² is the mean square of the differences of the sorted
    projections, over random directions a. This is what the authors' code does
    (YilunKuang/rectified-lp-jepa, solo/losses/rectified_lpjepa.py, with `sigma_GN`), whose
    projector ends with the rectifier; here the loss has it, so that the projector is that of the
    other methods.

    Attributes:
        alignment_weight: λ >= 0, the weight of the mean over n and q.
        regularization_weight: μ >= 0.
        directions: Number of random directions, >= 1.
        power: p >= 0.02: 1 for a rectified Laplace distribution, 2 for a rectified normal one.
        shift: m: the smaller, the sparser.
    """

    alignment_weight: NonNegative = 25.0
    regularization_weight: NonNegative = 125.0
    directions: AtLeastOne = 8192
    power: Annotated[float, Field(ge=0.02)] = 1.0
    shift: float = 0.0
    random: ClassVar[bool] = True

    metadata: ClassVar[Metadata] = Metadata(
        title="RDMReg",
        reference="Kuang et al., arXiv 2026 (Rectified LpJEPA)",
        url="https://arxiv.org/abs/2602.01456",
        formula="λ ‖X₁ − X₂‖²/(nq) + μ ½ Σ_v E_a W₂²(X_v a, Y a),  X = max(0, Z), Y_ij = max(0, m "
        "+ σ g_ij)",
        latex=r"\frac{\lambda}{nq} \Vert X_1 - X_2 \Vert_F^2 + \frac{\mu}{2} \sum_v \mathbb{E}_a "
        r"W_2^2(X_v a, Y_v a), \quad X_v = \max(0, Z_v), \quad Y_{v,ij} = \max(0, m + \sigma "
        r"g_{ij})",
        time="O(n K (q + log n)), K directions",
        memory="O(n K)",
        published="(25, 125), p = 1, m = 0, 8192 directions, q = 2048, ResNet-50 on ImageNet-100; "
        "(25, 250), q = 512 in the minimal example on CIFAR-100",
        # Each view has a sample of its own.
        symmetric=False,
        # The gradient jumps where two projections change places; finite differences over 8192
        # directions meet such places.
        exact_gradient=False,
    )
    space: ClassVar[Space] = {"regularization_weight": Range(3, 3000, balances=True)}

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute the alignment of the rectified views, and their distances to the rectified
        distribution.
        """
        rectified = [infinite_as_nan(z_NQ).relu() for z_NQ in views_NQ]
        directions_QK = random_directions(rectified[0].shape[1], self.directions, rectified[0])
        distances = []
        for x_NQ in rectified:
            wanted_NK = self._projected(self._sample(x_NQ), directions_QK)
            # Between samples on a line W₂ pairs the smallest with the smallest, and so on.
            distances.append((self._projected(x_NQ, directions_QK) - wanted_NK).square().mean())
        return {
            "alignment": self.alignment_weight * mean_squared_spread(rectified, global_views),
            "distribution": self.regularization_weight * torch.stack(distances).mean(),
        }

    def _projected(self, x_NQ: Tensor, directions_QK: Tensor) -> Tensor:
        return (x_NQ @ directions_QK).sort(dim=0).values

    def _sample(self, like_NQ: Tensor) -> Tensor:
        """Draw as many vectors of the rectified distribution as there are rows, in one
        precision on each device.
        """
        dtype = torch.float64 if like_NQ.device.type == "cpu" else torch.float32
        # |g|ᵖ/p has the gamma distribution of shape 1/p.
        shape = torch.full((), 1 / self.power, dtype=dtype, device=like_NQ.device)
        # A plan has no values to validate. A number for the rate would be copied to a GPU, whose
        # host waits for that.
        gamma = torch.distributions.Gamma(shape, torch.ones_like(shape), validate_args=False)
        magnitude_NQ = (self.power * gamma.sample(like_NQ.shape)) ** (1 / self.power)
        sign_NQ = torch.randint(2, like_NQ.shape, device=like_NQ.device) * 2 - 1
        sigma = self.power ** (-1 / self.power) * math.sqrt(
            math.gamma(1 / self.power) / math.gamma(3 / self.power)
        )
        sample_NQ: Tensor = (self.shift + magnitude_NQ * sign_NQ * sigma).relu()
        return sample_NQ.to(like_NQ)
