"""DCL and DCLW: contrastive learning without the positive pair in the denominator."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.contrastive import Contrastive
from regbench.settings import Positive, settings


@register("dcl")
@settings
class DCL(Contrastive):
    """Decoupled contrastive learning (Yeh et al., ECCV 2022, Eq. (6)).

    loss = (1/2n) Σᵢ [ −sim(i, positive of i)/τ + log Σ_j exp(sim(i, j)/τ) ], j over the embeddings
    of all other images in both views: SimCLR without the positive pair in the sum. The mean over
    images and views is taken where the paper prints the sum.

    Attributes:
        temperature: τ > 0.
    """

    temperature: Positive = 0.1
    cross_view: ClassVar[str] = "others"  # which leaves out the positive pair: the decoupling

    metadata: ClassVar[Metadata] = Metadata(
        title="DCL",
        reference="Yeh, Hong, Hsu, Liu, Chen, LeCun, ECCV 2022",
        url="https://arxiv.org/abs/2110.06848",
        formula="(1/2n) Σᵢ [ −zᵢ·z⁺ᵢ/τ + log Σ_{j of other images} exp(zᵢ·zⱼ/τ) ] over both views",
        latex=r"\frac{1}{2n} \sum_v \sum_i \left[ -\frac{z_{1,i} \cdot z_{2,i}}{\tau} + \log "
        r"\sum_w \sum_{j \neq i} \exp \frac{z_{v,i} \cdot z_{w,j}}{\tau} \right]",
        time="O(n² q)",
        memory="O(1)",
        published="τ = 0.1",
        scale_invariant=True,
        rotation_invariant=True,
    )


@register("dclw")
@settings
class DCLW(DCL):
    """DCL with weighted positive pairs (Yeh et al., ECCV 2022, Section 3.2).

    The positives' addend is −(1/n) Σᵢ wᵢ sim(zᵢ, z⁺ᵢ)/τ with the negative von Mises-Fisher weight
    wᵢ = 2 − exp(sim(zᵢ, z⁺ᵢ)/σ) / meanⱼ exp(sim(zⱼ, z⁺ⱼ)/σ). Gradients flow through it, as nothing
    in the paper stops them; lightly's code stops them.

    Attributes:
        temperature: τ > 0.
        sigma: σ > 0.
    """

    sigma: Positive = 0.5

    metadata: ClassVar[Metadata] = replace(
        DCL.metadata,
        title="DCLW",
        formula="(1/2n) Σᵢ [ −wᵢ zᵢ·z⁺ᵢ/τ + log Σ_{j of other images} exp(zᵢ·zⱼ/τ) ], wᵢ = 2 − n "
        "softmaxᵢ(z·z⁺/σ)",
        latex=r"\frac{1}{2n} \sum_v \sum_i \left[ -w_i \frac{z_{1,i} \cdot z_{2,i}}{\tau} + \log "
        r"\sum_w \sum_{j \neq i} \exp \frac{z_{v,i} \cdot z_{w,j}}{\tau} \right], \quad w_i = 2 "
        r"- n \, \mathrm{softmax}_i(z_1 \cdot z_2 / \sigma)",
        published="τ = 0.1, σ = 0.5",
    )

    def alignment(self, similarity_N: Tensor) -> Tensor:
        """Compute −mean w sim/τ."""
        # A softmax times n has the mean 1, and so have these weights.
        weight_N = 2 - len(similarity_N) * (similarity_N / self.sigma).softmax(dim=0)
        return -(weight_N * similarity_N).mean() / self.temperature
