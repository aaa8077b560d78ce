"""MoCo v3: InfoNCE of predictions among the teacher's embeddings of the batch."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.contrastive import Contrastive
from regbench.methods.forms.engine import Shard
from regbench.settings import Positive, settings


@register("moco_v3")
@settings
class MoCoV3(Contrastive):
    """2τ (ℓ(q₁, k₂) + ℓ(q₂, k₁)) with ℓ InfoNCE without a queue (Chen, Xie and He, ICCV 2021,
    Algorithm 1).

    ℓ(q, k) = (1/n) Σᵢ [ −qᵢ·kᵢ/τ + log Σⱼ exp(qᵢ·kⱼ/τ) ] on unit vectors, q the predictor's output,
    k the teacher's embedding. The publication adds both orders of the views where `loss_of_targets`
    takes their mean, hence 4τ ℓ.

    Attributes:
        temperature: τ > 0.
    """

    temperature: Positive = 1.0
    own_view: ClassVar[bool] = False  # the candidates are the targets alone
    anchors: ClassVar[int] = 1  # a prediction looks for its target, never the reverse

    metadata: ClassVar[Metadata] = Metadata(
        title="MoCo v3",
        reference="Chen, Xie, He, ICCV 2021",
        url="https://arxiv.org/abs/2104.02057",
        formula="(4τ/n) Σᵢ [ −q₁ᵢ·k₂ᵢ/τ + log Σⱼ exp(q₁ᵢ·k₂ⱼ/τ) ], mean over both orders of the "
        "views",
        latex=r"\frac{4 \tau}{n} \sum_i \left[ -\frac{q_{1,i} \cdot k_{2,i}}{\tau} + \log \sum_j "
        r"\exp \frac{q_{1,i} \cdot k_{2,j}}{\tau} \right]",
        time="O(n² q)",
        memory="O(1)",
        published="τ = 1 for ResNet-50, 0.2 for ViTs; teacher's momentum 0.99 rising to 1, batch "
        "4096, ImageNet",
        limitation="the original's projector ends in a BN without scale and shift "
        "(network.projector.last_norm=plain_batch), for ViTs its predictor too; its teacher "
        "follows before it embeds a batch, ours after the step",
        scale_invariant=True,
        rotation_invariant=True,
        symmetric=False,
    )
    needs: ClassVar[tuple[str, ...]] = ("predictor", "ema")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute alignment and uniformity of predictions z1 and targets z2."""
        return {
            name: 4 * self.temperature * term for name, term in super().terms(z1_NQ, z2_NQ).items()
        }

    def pair_value_and_gradient(
        self, z1_NQ: Tensor, z2_NQ: Tensor, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Compute it streamed, see `Contrastive.pair_value_and_gradient`."""
        scale = 4 * self.temperature
        terms, *gradients = super().pair_value_and_gradient(z1_NQ, z2_NQ, shard, form)
        scaled = {name: scale * term for name, term in terms.items()}
        return scaled, gradients[0].mul_(scale), gradients[1].mul_(scale)
