"""I-VNE+: invariance and the von Neumann entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Native, register
from regbench.methods.forms.pairwise import normalize, smaller_gram
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@register("ivne")
@settings
class IVNE(Native):
    """−α₁ mean_{g<v} mean_i cos(z_gᵢ, z_vᵢ) − α₂ mean_v S(Z_v) (Kim et al., CVPR 2023), g a global
    view.

    S(Z) = −Σ_j λ_j log λ_j over the eigenvalues λ_j of ZᵀZ/n for unit embeddings: the von Neumann
    entropy of the autocorrelation, between 0 and log min(n, q). They are taken from the smaller of
    ZᵀZ/n and ZZᵀ/n, in double precision. The logarithm's argument is bounded below by the smallest
    normal number, so that 0 log 0 = 0 has a finite gradient.

    Attributes:
        alignment_weight: α₁; the authors' code notes that its 4.16 is the logarithm of the batch
            size 64.
        entropy_weight: α₂.
    """

    alignment_weight: NonNegative = 4.16
    entropy_weight: NonNegative = 1.0

    revision: ClassVar[int] = 2
    metadata: ClassVar[Metadata] = Metadata(
        title="I-VNE+",
        reference="Kim, Kang, Hwang, Shin, Rhee, CVPR 2023",
        url="https://arxiv.org/abs/2304.01434",
        formula="−α₁ mean_{g<v} mean_i z_gᵢ·z_vᵢ + α₂ mean_v tr(C_v log C_v), C_v = Z_vᵀZ_v/n",
        latex=r"-\alpha_1 \, \mathrm{mean}_{g<v, \, i} \; z_{g,i} \cdot z_{v,i} + \alpha_2 \, "
        r"\mathrm{mean}_v \, \mathrm{tr}(C_v \log C_v), \quad C_v = \frac{1}{n} Z_v^\top Z_v",
        time="O(n q min(n, q))",
        memory="O(min(n, q)²)",
        published="α₁ = 4.16, α₂ = 1, batch 64, 2 + 4 views on ImageNet-100 (released script)",
        views="the authors' code: each pair with a global view once, the entropy of every view",
        scale_invariant=True,
        rotation_invariant=True,
    )
    # The entropy grows as the logarithm of the batch; the published 4.16 is log 64.
    space: ClassVar[Space] = {"alignment_weight": Range(0.03, 30, times="log(n)", balances=True)}

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute alignment and entropy."""
        views_NQ = [normalize(z_NQ) for z_NQ in views_NQ]
        # The authors' code counts each pair once; `pairs` would count one of two global views
        # twice.
        cosines = []
        for g in range(global_views):
            for v in range(g + 1, len(views_NQ)):
                cosines.append((views_NQ[g] * views_NQ[v]).sum(dim=1).mean())
        entropy = torch.stack([_entropy(z_NQ) for z_NQ in views_NQ]).mean()
        return {
            "alignment": -self.alignment_weight * torch.stack(cosines).mean(),
            "entropy": (-self.entropy_weight * entropy).to(views_NQ[0]),
        }


def _entropy(z_NQ: Tensor) -> Tensor:
    """Compute the von Neumann entropy of ZᵀZ/n, in double precision.

    Near a collapse the logarithms of the smaller eigenvalues dominate, and in single precision
    these are rounding. The gradient of `eigvalsh` is sound at repeated eigenvalues.
    """
    z_NQ = z_NQ.double()
    eigenvalues: Tensor = torch.linalg.eigvalsh(smaller_gram(z_NQ) / len(z_NQ))
    return -(eigenvalues * eigenvalues.clamp_min(torch.finfo(z_NQ.dtype).tiny).log()).sum()
