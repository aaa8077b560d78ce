"""Weak-SIGReg: the covariance of a random sketch against the identity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends, Decomposed
from regbench.methods.forms.pairwise import frobenius_norm
from regbench.methods.forms.slicing import standard_normal
from regbench.settings import AtLeastOne, NonNegative, settings
from regbench.spaces import Range, Space


@register("weak_sigreg")
@settings
class WeakSIGReg(Decomposed):
    """mean (Z₁ − Z₂)² + λ ½ Σ_v ‖Cov(Z_v Sᵀ) − I‖_F (Akbar, arXiv 2603.05924, 2026).

    By the released code (kreasof-ai/sigreg, README.md). S, shape (K, q), is a sketch with entries
    N(0, 1/q), drawn anew at each step; for q <= K there is none. Cov has n − 1. The publication
    regularizes hidden states of supervised networks: its scripts minimise (1 − α) times the
    cross-entropy plus α times this distance. The alignment in place of the cross-entropy is this
    benchmark's, and so is λ, which would be α/(1 − α).

    Attributes:
        regularization_weight: λ >= 0.
        sketch_dim: K >= 1.
    """

    regularization_weight: NonNegative = 1.0
    sketch_dim: AtLeastOne = 64
    random: ClassVar[bool] = True
    alignment_weight = 1.0

    metadata: ClassVar[Metadata] = Metadata(
        title="Weak-SIGReg",
        reference="Akbar, arXiv 2026; SIGReg: Balestriero, LeCun, arXiv 2025",
        url="https://arxiv.org/abs/2603.05924",
        formula="‖Z₁ − Z₂‖²/(nq) + λ ½ Σ_v ‖Cov(Z_v Sᵀ) − I‖_F,  S_{jk} ~ N(0, 1/q)",
        latex=r"\frac{1}{nq} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{\lambda}{2} \sum_v \Vert "
        r"\mathrm{Cov}(Z_v S^\top) - I \Vert_F, \quad S_{jk} \sim \mathcal{N}(0, 1/q)",
        time="O(n K (q + K)), K dimensions of the sketch",
        memory="O(n K + K²)",
        published="K = 64; α = 0.1 on CIFAR-100, 0.01 on ImageNet, beside a cross-entropy; λ is "
        "ours",
        # Twice the variance costs as much as none.
        ordered=False,
        limitation="an addition to supervised losses in its publication; the alignment is this "
        "benchmark's",
    )
    space: ClassVar[Space] = {"regularization_weight": Range(0.01, 10, balances=True)}

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute the distance of one view with a sketch of its own."""
        return self.regularizer_of_step(u_NQ)(u_NQ)

    def regularizer_of_step(self, like_NQ: Tensor) -> Callable[[Tensor], Addends]:
        """Draw the sketch of a step, in one precision on each device: a seed gives the same one
        whatever the dtype.
        """
        q = like_NQ.shape[1]
        # A covariance that is no larger than its sketch needs none.
        if q <= self.sketch_dim:
            return self._distance
        sketch_QK = standard_normal(q, self.sketch_dim, like_NQ.device).to(like_NQ) / math.sqrt(q)
        return lambda u_NQ: self._distance(u_NQ @ sketch_QK)

    def _distance(self, x_NK: Tensor) -> Addends:
        n, dimensions = x_NK.shape
        centred_NK = x_NK - x_NK.mean(dim=0)
        identity_KK = torch.eye(dimensions, dtype=x_NK.dtype, device=x_NK.device)
        distance = frobenius_norm(centred_NK.T @ centred_NK / (n - 1) - identity_KK)
        return {"normality": self.regularization_weight * distance}
