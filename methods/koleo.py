"""KoLeo: the Kozachenko-Leonenko entropy estimator."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends, Decomposed
from regbench.methods.forms.pairwise import panels
from regbench.settings import NonNegative, Positive, settings
from regbench.spaces import Range, Space


@register("koleo")
@settings
class KoLeo(Decomposed):
    """λ mean (Z₁ − Z₂)² − μ ½ Σ_v (1/n) Σᵢ log( min_{j≠i} ‖zvᵢ − zvⱼ‖ + ε ) (Sablayrolles et al.,
    ICLR 2019).

    On unit embeddings. The regularizer is Eq. (3) of its paper, with ε as in DINOv2, where it is
    one of several losses; here it stands beside the alignment that the other methods have, whose λ
    is this benchmark's: 1000/q times the mean over the images of ‖z₁ᵢ − z₂ᵢ‖². DINOv2
    (facebookresearch/dinov2, dinov2/train/ssl_meta_arch.py) **sums** over its two global crops with
    the weight 0.1, which is μ = 0.2 of the mean here, and takes the backbone's class tokens, not
    what a projector makes of them.

    Attributes:
        alignment_weight: λ >= 0, the weight of the mean over n and q.
        uniformity_weight: μ >= 0.
        epsilon: ε > 0, which keeps equal embeddings finite.
    """

    alignment_weight: NonNegative = 1000.0
    uniformity_weight: NonNegative = 0.2
    epsilon: Positive = 1e-8
    unit: ClassVar[bool] = True

    revision: ClassVar[int] = 2
    metadata: ClassVar[Metadata] = Metadata(
        title="KoLeo",
        reference="Sablayrolles, Douze, Schmid, Jégou, ICLR 2019; Oquab et al. (DINOv2), TMLR 2024",
        url="https://arxiv.org/abs/1806.03198",
        formula="λ ‖Z₁ − Z₂‖²/(nq) − μ ½ Σ_v (1/n) Σᵢ log(min_{j≠i} ‖zᵢ − zⱼ‖ + ε)",
        latex=r"\frac{\lambda}{nq} \Vert Z_1 - Z_2 \Vert_F^2 - \frac{\mu}{2n} \sum_v \sum_i "
        r"\log(\min_{j \neq i} \Vert z_{v,i} - z_{v,j} \Vert + \epsilon)",
        time="O(n² q)",
        memory="O(n q)",
        published="0.1 for the sum over two crops (μ = 0.2), ε = 1e-8 in DINOv2, beside other "
        "losses; λ is ours",
        limitation="in DINOv2 it acts on the backbone's class tokens, beside other losses; the "
        "alignment is this benchmark's",
        scale_invariant=True,
        rotation_invariant=True,
    )
    space: ClassVar[Space] = {"alignment_weight": Range(0.1, 100, times="q", balances=True)}

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute −μ times the mean logarithm of the distance to the nearest embedding."""
        # The choice has no gradient. The distance is computed anew, without the cancellation of a
        # Gram matrix.
        nearest_N = _nearest(u_NQ.detach())
        distance_N = torch.linalg.vector_norm(u_NQ - u_NQ[nearest_N], dim=1)
        return {"uniformity": -self.uniformity_weight * (distance_N + self.epsilon).log().mean()}


def _nearest(z_NQ: Tensor) -> Tensor:
    """Find the index of each row's nearest other row, shape (n,), in panels of the Gram matrix."""
    found = []
    # The mean is taken off, so that the squares of embeddings near a collapse cancel less.
    z_NQ = z_NQ - z_NQ.mean(dim=0)
    squared_N = z_NQ.square().sum(dim=1)
    for rows in panels(len(z_NQ), len(z_NQ), z_NQ):
        # The row's own square is left out: it does not change which is nearest.
        squared_distance_PN = squared_N - 2 * (z_NQ[rows] @ z_NQ.T)
        squared_distance_PN[:, rows.start :].diagonal().fill_(torch.inf)
        found.append(squared_distance_PN.argmin(dim=1))
    return torch.cat(found)
