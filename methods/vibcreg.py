"""VIbCReg: VICReg with correlations for covariances."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends
from regbench.methods.forms.pairwise import normalize_columns, smaller_gram
from regbench.methods.vicreg import VarianceCovariance
from regbench.settings import NonNegative, settings


@register("vibcreg")
@settings
class VIbCReg(VarianceCovariance):
    """λ mse(Z₁, Z₂) + μ (v(Z₁) + v(Z₂)) + ν (c(Z₁) + c(Z₂)) (Lee and Aune, 2021).

    v = mean over coordinates of max(0, 1 − √(var + ε)) as in VICReg, and c = q⁻² Σ_{j≠k} R_jk² with
    the correlations R of the coordinates in place of their covariances. Weights, conventions (v is
    not halved, c is a mean over all q² entries) and ε are those of the authors' code
    (ML4ITS/vibcreg, vibcreg/frameworks/vibcreg_.py and vibcreg/losses/covariance_loss.py), which
    solo-learn has too. A constant coordinate has the correlation 0.

    Attributes:
        alignment_weight: λ.
        variance_weight: μ.
        covariance_weight: ν.
        epsilon: ε, added to the variance under the root.
    """

    covariance_weight: NonNegative = 200.0

    metadata: ClassVar[Metadata] = Metadata(
        title="VIbCReg",
        reference="Lee, Aune, arXiv 2021",
        url="https://arxiv.org/abs/2109.00783",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + Σ_v [ μ mean_j max(0, 1 − √(var_j + ε)) + ν Σ_{j≠k} "
        "R_{jk}²/q² ], R correlations",
        latex=r"\frac{\lambda}{nq} \Vert Z_1 - Z_2 \Vert_F^2 + \sum_v \left[ \frac{\mu}{q} \sum_j "
        r"\max(0, 1 - \sqrt{\mathrm{var}_j + \epsilon}) + \frac{\nu}{q^2} \sum_{j \neq k} R_{jk}^2 "
        r"\right]",
        time="O(n q min(n, q))",
        memory="O(n q + min(n, q)²)",
        published="(25, 25, 200) on time series, q = 4096; solo-learn: the same on CIFAR and "
        "ImageNet-100, q = 2048",
        limitation="the original's projector ends in an iterative normalization (IterNorm)",
    )

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute 2 μ v and 2 ν c of one view."""
        q = u_NQ.shape[1]
        hinge = self.hinge(u_NQ.var(dim=0))
        unit_NQ = normalize_columns(u_NQ - u_NQ.mean(dim=0), u_NQ)
        gram = smaller_gram(unit_NQ)  # of the same norm as the correlations
        diagonal_Q = unit_NQ.square().sum(dim=0)
        covariance = (gram.square().sum() - diagonal_Q.square().sum()) / q**2
        # The factor 2 turns the mean over views, which is taken of this, into the publication's
        # sum. VICReg's publication has the mean.
        return self.weighted(2 * hinge, covariance)
