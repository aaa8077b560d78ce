"""SimCLR: the normalised temperature-scaled cross-entropy (NT-Xent)."""

from __future__ import annotations

from typing import ClassVar

from regbench.methods.base import Metadata, register
from regbench.methods.forms.contrastive import Contrastive
from regbench.settings import Positive, settings


@register("simclr")
@settings
class SimCLR(Contrastive):
    """NT-Xent over the 2n unit embeddings of both views (Chen et al., ICML 2020, Eq. (1)).

    loss = (1/2n) Σᵢ [ −sim(i, positive of i)/τ + log Σ_{j≠i} exp(sim(i, j)/τ) ]. Zheng et al. (ICLR
    2023, appendix) write it as λ ℓ_a + ℓ_r with λ = 1/τ; the two agree, up to the constant 1/τ, for
    λ = 1/(2τ), and NT-Xent is what their code computes.

    Attributes:
        temperature: τ > 0; the paper's tuned value is 0.15.
    """

    temperature: Positive = 0.15

    metadata: ClassVar[Metadata] = Metadata(
        title="SimCLR",
        reference="Chen, Kornblith, Norouzi, Hinton, ICML 2020",
        url="https://arxiv.org/abs/2002.05709",
        formula="(1/2n) Σᵢ [ −zᵢ·z⁺ᵢ/τ + log Σ_{j≠i} exp(zᵢ·zⱼ/τ) ] over both views",
        latex=r"\frac{1}{2n} \sum_v \sum_i \left[ -\frac{z_{1,i} \cdot z_{2,i}}{\tau} + \log "
        r"\sum_{(w,j) \neq (v,i)} \exp \frac{z_{v,i} \cdot z_{w,j}}{\tau} \right]",
        time="O(n² q)",
        memory="O(1)",
        published="τ = 0.1 on ImageNet, batch 4096; 0.15 at q = 8192 on IN20 % (Zheng et al., ICLR "
        "2023, appendix)",
        scale_invariant=True,
        rotation_invariant=True,
    )
