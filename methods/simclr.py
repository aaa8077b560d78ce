"""SimCLR: the normalised temperature-scaled cross-entropy (NT-Xent)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.pairwise import normalize, off_diagonal_logsumexp


@register("simclr")
@dataclass(frozen=True, kw_only=True)
class SimCLR(Regularizer):
    """NT-Xent over the 2n unit embeddings of both views (Chen et al., ICML 2020, Eq. (1)).

    loss = (1/2n) Σᵢ [ −sim(i, positive of i)/τ + log Σ_{j≠i} exp(sim(i, j)/τ) ]. Zheng et al. (ICLR 2023, appendix)
    write it as λ ℓ_a + ℓ_r with λ = 1/τ; the two agree, up to the constant 1/τ, for λ = 1/(2τ), and NT-Xent is
    what their code computes.

    Attributes:
        temperature: τ > 0; the paper's tuned value is 0.15.
    """

    temperature: float = 0.15

    metadata: ClassVar[Metadata] = Metadata(
        title="SimCLR",
        reference="Chen, Kornblith, Norouzi, Hinton, ICML 2020",
        url="https://arxiv.org/abs/2002.05709",
        formula="(1/2n) Σᵢ [ −zᵢ·z⁺ᵢ/τ + log Σ_{j≠i} exp(zᵢ·zⱼ/τ) ] over both views",
        time="O(n² q)",
        memory="O(n²)",
        published="τ = 0.15 at q = 8192 on IN20 % (Zheng et al., ICLR 2023, appendix); τ = 0.1 on ImageNet by its authors",
        scale_invariant=True,
        rotation_invariant=True,
    )

    def __post_init__(self) -> None:
        """Refuses a temperature that is not positive."""
        self.require(self.temperature > 0, "temperature must be > 0")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Alignment (the positives) and uniformity (the log-sum-exp)."""
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        return {
            "alignment": -(z1_NQ * z2_NQ).sum(dim=1).mean() / self.temperature,
            "uniformity": off_diagonal_logsumexp(torch.cat([z1_NQ, z2_NQ]), 1 / self.temperature).mean(),
        }
