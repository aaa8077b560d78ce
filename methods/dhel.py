"""DHEL: the decoupled hyperspherical energy."""

from __future__ import annotations

from typing import ClassVar

from regbench.methods.base import Metadata, register
from regbench.methods.forms.contrastive import Contrastive
from regbench.settings import Positive, settings


@register("dhel")
@settings
class DHEL(Contrastive):
    """Decoupled hyperspherical energy loss (Koromilas et al., ICML 2024).

    loss = −(1/n) Σᵢ sim(z1ᵢ, z2ᵢ)/τ + Σ_v (1/n) Σᵢ log Σ_{j≠i} exp(sim(zvᵢ, zvⱼ)/τ): negatives come
    from the anchor's own view only. The sum of both views' energies is the default of the authors'
    code; its option leaves one out.

    Attributes:
        temperature: τ > 0; 0.3 is the default of the authors' code.
    """

    temperature: Positive = 0.3
    cross_view: ClassVar[str] = "none"
    # The energies of both views are added up; `Contrastive` takes their mean.
    uniformity_weight: ClassVar[float] = 2.0

    metadata: ClassVar[Metadata] = Metadata(
        title="DHEL",
        reference="Koromilas, Bouritsas, Giannakopoulos, Nicolaou, Panagakis, ICML 2024",
        url="https://arxiv.org/abs/2405.18045",
        formula="(1/n) Σᵢ [ −z1ᵢ·z2ᵢ/τ + Σ_v log Σ_{j≠i} exp(zvᵢ·zvⱼ/τ) ]",
        latex=r"\frac{1}{n} \sum_i \left[ -\frac{z_{1,i} \cdot z_{2,i}}{\tau} + \sum_v \log "
        r"\sum_{j \neq i} \exp \frac{z_{v,i} \cdot z_{v,j}}{\tau} \right]",
        time="O(n² q)",
        memory="O(1)",
        published="τ = 0.3 (the authors' code)",
        scale_invariant=True,
        rotation_invariant=True,
    )
