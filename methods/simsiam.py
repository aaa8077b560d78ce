"""SimSiam: predict the network's own embedding of another view, without a gradient through it."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.forms.pairwise import normalize
from regbench.settings import settings
from regbench.spaces import Space


@register("simsiam")
@settings
class SimSiam(Regularizer):
    """−½ mean cos(p₁ᵢ, z₂ᵢ) − ½ mean cos(p₂ᵢ, z₁ᵢ), z without a gradient (Chen and He, CVPR 2021,
    Eq. (2)).

    p is the predictor's output. A single point is a minimum of the loss: the predictor and the
    stopped gradient keep the network from it.
    """

    metadata: ClassVar[Metadata] = Metadata(
        title="SimSiam",
        reference="Chen, He, CVPR 2021",
        url="https://arxiv.org/abs/2011.10566",
        formula="−(1/n) Σᵢ p̄₁ᵢ·z̄₂ᵢ, mean over both orders of the views",
        latex=r"-\frac{1}{n} \sum_i \bar p_{1,i} \cdot \bar z_{2,i}",
        time="O(n q)",
        memory="O(n q)",
        published="no hyperparameter; predictor 512-2048, a last BN in the projector, batch 512, "
        "ResNet-50 on ImageNet",
        limitation="the original's predictor keeps its learning rate constant, and its last layer "
        "has a bias",
        scale_invariant=True,
        rotation_invariant=True,
        ordered=False,
    )
    needs: ClassVar[tuple[str, ...]] = ("predictor", "stop_gradient")
    space: ClassVar[Space] = {}

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the negative cosine of predictions z1 and targets z2."""
        return {"alignment": -(normalize(z1_NQ) * normalize(z2_NQ)).sum(dim=1).mean()}
