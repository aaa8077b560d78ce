"""CorInfoMax: correlative information maximisation."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends, Decomposed
from regbench.methods.forms.pairwise import log_det_identity_plus
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@register("corinfomax")
@settings
class CorInfoMax(Decomposed):
    """α mse(Z₁, Z₂) − (1/q) Σ_v log det(R_v + ε I) over unit embeddings (Ozsoy et al., NeurIPS
    2022).

    R_v = (1/n) Σᵢ (zᵢ − z̄)(zᵢ − z̄)ᵀ, shape (q, q), is the covariance of this batch. The original
    keeps R ← λ R + (1 − λ) R_batch over the steps, around a mean kept likewise, with λ = 0.01 in
    most of its experiments and 0.1 in the others; this is λ = 0, which needs no state. The 1/q and
    the mean over n and q are those of the authors' code; the paper's objective is q times this loss
    with its α.

    The determinant is computed in float64, as in the authors' code, by ε^q det(I + R_v/ε) and in
    the smaller of n and q. A column of ones next to the centred embeddings, to which it is
    orthogonal, takes out the zero eigenvalue that centring gives the (n, n) side; its factor 1 +
    1/ε is divided out. In a batch of low rank some per cent of the gradient is rounding all the
    same: that of the embeddings in directions they do not fill is divided by ε.

    Attributes:
        alignment_weight: α, multiplying the mean over n and q.
        epsilon: ε.
    """

    alignment_weight: NonNegative = 500.0
    epsilon: Annotated[float, Field(ge=1e-12)] = 1e-8
    unit: ClassVar[bool] = True

    metadata: ClassVar[Metadata] = Metadata(
        title="CorInfoMax",
        reference="Ozsoy, Hamdan, Arik, Yuret, Erdogan, NeurIPS 2022",
        url="https://arxiv.org/abs/2209.07999",
        formula="α ‖Z₁ − Z₂‖²/(nq) − (1/q) Σ_v log det(R_v + εI), R_v the covariance of unit "
        "embeddings",
        latex=r"\frac{\alpha}{nq} \Vert Z_1 - Z_2 \Vert_F^2 - \frac{1}{q} \sum_v \log \det (R_v + "
        r"\epsilon I), \quad R_v = \mathrm{Cov}(Z_v)",
        time="O(n q min(n, q))",
        memory="O(min(n, q)²)",
        published="α = 250 (CIFAR-10, q = 64), 1000 (CIFAR-100, q = 128), 500 (Tiny ImageNet, "
        "ImageNet-100, q = 128), 2000 (ImageNet, q = 512)",
        limitation="the covariance is that of the batch; the original's is a running mean over the "
        "steps",
        scale_invariant=True,
        rotation_invariant=True,
    )
    # The published α is 3.9 q, and 7.8 q on CIFAR-100.
    space: ClassVar[Space] = {"alignment_weight": Range(0.1, 100, times="q", balances=True)}

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute −(2/q) log det(R + ε I) of one view."""
        z_NQ = u_NQ.double()
        n, q = z_NQ.shape
        with_ones = torch.cat([z_NQ - z_NQ.mean(dim=0), z_NQ.new_ones(n, 1)], dim=1)
        log_det = (
            log_det_identity_plus(with_ones, 1 / (n * self.epsilon))
            - math.log1p(1 / self.epsilon)
            + q * math.log(self.epsilon)
        )
        # The factor 2 turns the mean over views, which is taken of this, into the publication's
        # sum.
        return {"log-determinant": (-2 * log_det / q).to(u_NQ)}
