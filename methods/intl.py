"""INTL: iterative normalisation with trace loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from regbench.methods.base import Metadata, Native, register
from regbench.methods.forms.pairwise import normalize
from regbench.methods.forms.views import pairs
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@register("intl")
@settings
class INTL(Native):
    """Mean over the images of 2 − 2 cos(w₁ᵢ, w₂ᵢ), plus β (t(W₁) + t(W₂)) (Weng et al., ICLR 2024).

    W = P_T X / √(tr Σ), where X is Z with the mean over the coordinates taken from each row, Σ = X
    Xᵀ/(q − 1), shape (n, n), and P_T is T Newton steps P ← (3 P − P³ Σ/tr Σ)/2 from P = I towards
    (Σ/tr Σ)^{−1/2}. The trace loss t(W) = Σᵢ (vᵢ − 1)², where vᵢ is the variance, with q − 1, of
    row i of W. This is the authors' default axis ("channel whitening"), which normalises over the
    images; their other one exchanges the roles of n and q. Their rule for β is 0.01 (log₂ n − 3);
    here β is a number, and the default is that of n = 256. A view without variance has tr Σ = 0,
    which is bounded below by the smallest normal number.

    Attributes:
        trace_weight: β.
        iterations: T, the Newton steps, 6 at most.
    """

    trace_weight: NonNegative = 0.05
    # Rounding grows with each step: in float32, near a point, the gradient is off by 3 % after
    # 6 and lost after 8.
    iterations: Annotated[int, Field(ge=0, le=6)] = 4
    revision: ClassVar[int] = 2
    least_dim: ClassVar[int] = 2

    metadata: ClassVar[Metadata] = Metadata(
        title="INTL",
        reference="Weng, Ni, Song, Luo, Anwer, Khan, Khan, Huang, ICLR 2024",
        url="https://arxiv.org/abs/2305.16789",
        formula="mean_i (2 − 2 cos(w₁ᵢ, w₂ᵢ)) + β Σ_v Σᵢ (var(w_{v,i}) − 1)², W_v ≈ Σ_v^{−1/2} X_v "
        "by Newton steps",
        latex=r"\frac{1}{n} \sum_i (2 - 2 \cos(w_{1,i}, w_{2,i})) + \beta \sum_v \sum_i "
        r"(\mathrm{var}(w_{v,i}) - 1)^2, \quad W_v \approx \Sigma_v^{-1/2} X_v",
        time="O(n² q + n³)",
        memory="O(n²)",
        published="T = 4, β = 0.01 (log₂ n − 3), q = 8192, batch 256, ResNet-50 on ImageNet",
        views="the authors' code with one global view: the first view with every other",
        limitation="no momentum encoder (a variant of the original)",
    )
    space: ClassVar[Space] = {"trace_weight": Range(0.001, 1, balances=True)}

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute alignment of the normalised views, and the trace loss of both views of each
        pair.
        """
        w_NQ = [self._normalize_spectrum(z_NQ) for z_NQ in views_NQ]
        unit_NQ = [normalize(w) for w in w_NQ]
        # Every variance would be 1 if Newton's steps had converged.
        traces = [(w.var(dim=1) - 1).square().sum() for w in w_NQ]
        alignment, trace = [], []
        for g, v, share in pairs(len(views_NQ), global_views):
            alignment.append(share * (2 - 2 * (unit_NQ[g] * unit_NQ[v]).sum(dim=1).mean()))
            trace.append(share * self.trace_weight * (traces[g] + traces[v]))
        return {"alignment": torch.stack(alignment).sum(), "trace": torch.stack(trace).sum()}

    def _normalize_spectrum(self, z_NQ: Tensor) -> Tensor:
        n, q = z_NQ.shape
        centred_NQ = z_NQ - z_NQ.mean(dim=1, keepdim=True)
        sigma_NN = centred_NQ @ centred_NQ.T / (q - 1)
        # The derivative of `trace` makes a GPU's host wait.
        trace = sigma_NN.diagonal().sum().clamp_min(torch.finfo(z_NQ.dtype).tiny)
        root_NN = torch.eye(n, dtype=z_NQ.dtype, device=z_NQ.device)
        for _ in range(self.iterations):
            # Newton's steps from I converge because no eigenvalue of Σ/tr Σ exceeds 1.
            root_NN = 1.5 * root_NN - 0.5 * (root_NN @ root_NN @ root_NN @ (sigma_NN / trace))
        return root_NN @ (centred_NQ / trace.sqrt())
