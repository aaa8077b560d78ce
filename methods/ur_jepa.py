"""UR-JEPA: embeddings on a surface of few dimensions, at every place and scale (uniform
rectifiability).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Native, register
from regbench.methods.forms.pairwise import squared_distances
from regbench.methods.forms.views import mean_squared_spread
from regbench.settings import AtLeastOne, Fraction, NonNegative, Positive, settings
from regbench.spaces import Range, Space


@register("ur_jepa", ur_jepa_derivative={"statistic": "derivative"})
@settings
class URJEPA(Native):
    """(1 − λ) mean_v (Z_v − Z̄)² + λ s U(Z) (Le, arXiv 2606.01443, 2026), Z the M embeddings of all
    views.

    By the released code (SPATIOLYX/UR-JEPA, ur_jepa/ and scripts/pretrain.py). Its views are all
    global, and Z̄ is their mean; with local views, which the release lacks, Z̄ is the mean of the
    global ones. Radii r_0 > … > r_K are spaced evenly in their logarithm, from the median distance
    to the mean down to M^{−1/m} of it, m being the dimension aimed at; no gradient flows through
    them. δ = log(r_0/r_K)/K. With weights w_ij = exp(−‖zᵢ − zⱼ‖²/2r²) and the density θ_r(zᵢ) =
    r^{−m} mean_j w_ij, pairs i = j included, U is

    - `cglt`: δ Σ_k mean_i [log θ_{r_k}(zᵢ) − log θ_{r_{k−1}}(zᵢ)]² + a A, the square function of
      Chousionis, Garnett, Le and Tolsa, with the regularity term A = mean_k var_i log θ_{r_k}(zᵢ)
      (over M);
    - `derivative`: δ Σ_k mean_i [Σ_j w_ij (‖zᵢ − zⱼ‖²/r_k² − m) / Σ_j w_ij]² + a A, over k = 0 … K.

    Of the release's other losses, `cglt_deriv_raw`, which it calls less stable, and those of Jones'
    numbers, which take the eigenvalues of a q × q matrix for every embedding and scale, are left
    out.

    Attributes:
        statistic: `cglt` or `derivative`.
        regularization_weight: λ in [0, 1].
        scale: s > 0.
        dimension: m >= 1.
        scales: K >= 1.
        regularity_weight: a >= 0.
    """

    statistic: Literal["cglt", "derivative"] = "cglt"
    regularization_weight: Fraction = 0.02
    scale: Positive = 1000.0
    dimension: AtLeastOne = 7
    scales: AtLeastOne = 5
    regularity_weight: NonNegative = 0.1

    revision: ClassVar[int] = 3
    metadata: ClassVar[Metadata] = Metadata(
        title="UR-JEPA",
        reference="Le, arXiv 2026",
        url="https://arxiv.org/abs/2606.01443",
        formula="(1−λ) ¼ ‖Z₁ − Z₂‖²/(nq) + λ s [ δ Σ_k mean_i (log θ_{r_k}(zᵢ) − log "
        "θ_{r_{k−1}}(zᵢ))² + a mean_k var_i log θ_{r_k}(zᵢ) ],  θ_r(z) = r^{−m} mean_j exp(−‖z − "
        "zⱼ‖²/2r²)",
        latex=r"\frac{1 - \lambda}{4nq} \Vert Z_1 - Z_2 \Vert_F^2 + \lambda s \left[ \delta \sum_k "
        r"\mathbb{E}_i \left( \log \theta_{r_k}(z_i) - \log \theta_{r_{k-1}}(z_i) \right)^2 + a \, "
        r"\mathbb{E}_k \mathrm{Var}_i \log \theta_{r_k}(z_i) \right], \quad \theta_r(z) = r^{-m} "
        r"\mathbb{E}_j e^{-\Vert z - z_j \Vert^2 / 2r^2}",
        time="O(n² (q + K))",
        memory="O(n² K)",
        published="λ = 0.02, s = 1000, m = 7, K = 5, a = 0.1, 4 views, q = 32: ResNet-18 and ViT "
        "on Imagenette and ImageNet-100 (batch 256), Galaxy10 (batch 512)",
        views="the released code: the statistic of the embeddings of all views together, views "
        "aligned with the mean of the global ones (all of its views are)",
        limitation="the release takes 128 random embeddings for the outer mean; here it "
        "is over all",
        rotation_invariant=True,
        # The radii are taken as given.
        exact_gradient=False,
        # The regularizer is not for spreading over all dimensions.
        ordered=False,
    )
    space: ClassVar[Space] = {"regularization_weight": Range(0.001, 0.5, "logit", balances=True)}

    @property
    def label(self) -> str:
        """The name with the statistic, since another statistic is another method."""
        return "UR-JEPA" if self.statistic == "cglt" else f"UR-JEPA ({self.statistic})"

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute alignment, and the addends of U over the embeddings of all views."""
        z_MQ = torch.cat(list(views_NQ))
        # The mean is taken off, so that the squares of embeddings near a collapse cancel less.
        z_MQ = z_MQ - z_MQ.detach().mean(dim=0)
        squared_MM = squared_distances(z_MQ)
        radii = self._radii(z_MQ.detach())
        step = (radii[0] / radii[-1]).log() / self.scales
        alignment = mean_squared_spread(views_NQ, global_views, to_center=True)
        m = self.dimension
        logs = []
        for r in radii:
            log_sum_M = (-squared_MM / (2 * r * r)).logsumexp(dim=1)
            logs.append(log_sum_M - m * r.log() - math.log(len(z_MQ)))
        logs_KM = torch.stack(logs)
        if self.statistic == "cglt":
            total = logs_KM.diff(dim=0).square().mean(dim=1).sum()
        else:
            slopes = []
            for r in radii:
                # A softmax is w_ij / Σ_j w_ij, and is sound where every weight but one underflows.
                share_MM = (-squared_MM / (2 * r * r)).softmax(dim=1)
                slopes.append((share_MM * (squared_MM / (r * r) - m)).sum(dim=1))
            total = torch.stack(slopes).square().mean(dim=1).sum()
        factor = self.regularization_weight * self.scale
        return {
            "alignment": (1 - self.regularization_weight) * alignment,
            "rectifiability": factor * step * total,
            "regularity": factor * self.regularity_weight * logs_KM.var(dim=1, correction=0).mean(),
        }

    def _radii(self, z_MQ: Tensor) -> Tensor:
        """Compute the radii of embeddings about their mean."""
        largest = torch.linalg.vector_norm(z_MQ, dim=1).quantile(0.5).clamp_min(1e-6)
        exponents = torch.linspace(
            0, 1 / self.dimension, self.scales + 1, dtype=z_MQ.dtype, device=z_MQ.device
        )
        radii: Tensor = largest * (-math.log(len(z_MQ)) * exponents).exp()
        return radii
