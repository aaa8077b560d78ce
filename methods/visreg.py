"""VISReg: centre, scale and a sliced Wasserstein distance for the shape."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends
from regbench.methods.forms.slicing import Sliced
from regbench.settings import AtLeastOne, Fraction, NonNegative, Positive, settings
from regbench.spaces import Range, Space


@register("visreg")
@settings
class VISReg(Sliced):
    """(1 − λ) ¼ mean (Z₁ − Z₂)² + λ ½ Σ_v (centre + scale + shape) (Wu et al., arXiv 2606.02572,
    2026).

    For one view with mean m and s = ε plus the biased standard deviation of each coordinate: centre
    = mean m² (Eq. (6)), scale = mean (1 − s)² (Eq. (1)), shape = the mean square of sorted
    projections of (z − m)/s onto random directions minus the normal quantiles at i/(n + 1) (Eq.
    (5)); no gradient flows through s in the shape. ε and its place are those of the authors' code
    (HaiyuWu/visreg, visreg/losses/visreg.py). Directions are drawn anew at each step.

    Attributes:
        regularization_weight: λ in [0, 1].
        directions: Number of random directions, >= 1.
        center_weight: Weight of the centre, >= 0.
        scale_weight: Weight of the scale, >= 0.
        shape_weight: Weight of the shape, >= 0.
        epsilon: ε > 0.
    """

    regularization_weight: Fraction = 0.9
    directions: AtLeastOne = 4096
    center_weight: NonNegative = 1.0
    scale_weight: NonNegative = 1.0
    shape_weight: NonNegative = 1.0
    epsilon: Positive = 1e-6
    to_center: ClassVar[bool] = True

    metadata: ClassVar[Metadata] = Metadata(
        title="VISReg",
        reference="Wu, Balestriero, Levine, arXiv 2026",
        url="https://arxiv.org/abs/2606.02572",
        formula="(1−λ) ¼ ‖Z₁ − Z₂‖²/(nq) + λ ½ Σ_v [ mean m² + mean (1 − s)² + E_a W₂²(Ẑ_v a, N(0, "
        "1)) ]",
        latex=r"\frac{1 - \lambda}{4nq} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{\lambda}{2} \sum_v "
        r"\left[ \frac{1}{q} \Vert m_v \Vert^2 + \frac{1}{q} \Vert 1 - s_v \Vert^2 + "
        r"\mathbb{E}_a W_2^2(\hat{Z}_v a, \mathcal{N}(0, 1)) \right]",
        time="O(n K (q + log n)), K directions",
        memory="O(n K)",
        published="λ = 0.9, weights 1, 4096 directions, ε = 1e-6 on ImageNet; λ = 0.6 "
        "on small sets",
        views="the authors' code",
        # No gradient flows through s in the shape.
        exact_gradient=False,
    )
    space: ClassVar[Space] = {"regularization_weight": Range(0.01, 0.99, "logit", balances=True)}

    def alignment_scale(self, q: int) -> float:
        """Return 1 − λ, whatever q is."""
        return 1 - self.regularization_weight

    def sliced(self, u_NQ: Tensor, directions_QK: Tensor) -> Addends:
        """Compute centre, scale and shape of one view."""
        n = len(u_NQ)
        mean_Q = u_NQ.mean(dim=0)
        centred_NQ = u_NQ - mean_Q
        # A norm has a (zero) derivative where a coordinate is constant, unlike a root of the
        # variance.
        deviation_Q = torch.linalg.vector_norm(centred_NQ, dim=0) / math.sqrt(n) + self.epsilon
        projections_NK = centred_NQ / deviation_Q.detach() @ directions_QK
        # Float32 quantiles of 1,024 images would be off by 6e-7.
        positions_N = torch.arange(1, n + 1, dtype=torch.float64, device=u_NQ.device) / (n + 1)
        quantiles_N = torch.special.ndtri(positions_N).to(u_NQ)
        shape = (projections_NK.sort(dim=0).values - quantiles_N[:, None]).square().mean()
        scale = (1 - deviation_Q).square().mean()
        return {
            "center": self.regularization_weight * self.center_weight * mean_Q.square().mean(),
            "scale": self.regularization_weight * self.scale_weight * scale,
            "shape": self.regularization_weight * self.shape_weight * shape,
        }
