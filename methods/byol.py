"""BYOL: predict the embedding that a slowly following teacher has of another view."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.forms.pairwise import normalize
from regbench.settings import settings
from regbench.spaces import Space


@register("byol")
@settings
class BYOL(Regularizer):
    """Mean ‖p̄₁ᵢ − t̄₂ᵢ‖² + mean ‖p̄₂ᵢ − t̄₁ᵢ‖² on unit vectors (Grill et al., NeurIPS 2020, Eq.
    (2)).

    p is the predictor's output, t the teacher's embedding. The publication adds both orders of the
    views where `loss_of_targets` takes their mean, hence twice the squared distance. A single point
    is a minimum of the loss: the predictor and the teacher keep the network from it.
    """

    metadata: ClassVar[Metadata] = Metadata(
        title="BYOL",
        reference="Grill, Strub, Altché, Tallec, Richemond et al., NeurIPS 2020",
        url="https://arxiv.org/abs/2006.07733",
        formula="(2/n) Σᵢ ‖p̄₁ᵢ − t̄₂ᵢ‖², mean over both orders of the views",
        latex=r"\frac{2}{n} \sum_i \Vert \bar p_{1,i} - \bar t_{2,i} \Vert^2",
        time="O(n q)",
        memory="O(n q)",
        published="no hyperparameter; teacher's momentum 0.996 rising to 1, predictor 4096-256, "
        "batch 4096, ImageNet",
        views="DINO (Caron et al., ICCV 2021, Eq. (3))",
        scale_invariant=True,
        rotation_invariant=True,
        ordered=False,
    )
    needs: ClassVar[tuple[str, ...]] = ("predictor", "ema")
    space: ClassVar[Space] = {}

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute twice the alignment of predictions z1 with targets z2."""
        return {"alignment": 2 * (normalize(z1_NQ) - normalize(z2_NQ)).square().sum(dim=1).mean()}
