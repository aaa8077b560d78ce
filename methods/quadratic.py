"""The quadratic kernel: the sample-contrastive criterion."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.kernel import KernelRegularizer
from regbench.settings import NonNegative, settings


@register("quadratic")
@settings
class Quadratic(KernelRegularizer):
    """K(u, v) = (u·v)², Table 1 and the appendix on the sample-contrastive criterion of Zheng et
    al. (ICLR 2023).

    Up to a factor and a constant this is Σ_{i≠j} (zᵢ·zⱼ)², the criterion of Garrido et al. (ICLR
    2023), on unit embeddings, and SFRIK with its second order alone.

    Attributes:
        alignment_weight: λ as in the paper's tables, see `KernelRegularizer`.
    """

    alignment_weight: NonNegative = 2000.0

    metadata: ClassVar[Metadata] = Metadata(
        title="quadratic kernel",
        reference="Garrido, Chen, Bardes, Najman, LeCun, ICLR 2023",
        url="https://arxiv.org/abs/2206.02574",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + ½ Σ_v n⁻² Σᵢⱼ (zᵢ·zⱼ)²",
        latex=r"\frac{\lambda}{nq} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{1}{2n^2} \sum_v \sum_{i,j} "
        r"(z_{v,i} \cdot z_{v,j})^2",
        time="O(n² q) or O(n q²)",
        memory="O(1) or O(q²)",
        published="none with this alignment; the default is that of SFRIK, L = 2, at q = 8192",
        scale_invariant=True,
        rotation_invariant=True,
    )

    def kernel(self, t: Tensor, q: int) -> Tensor:
        """Compute t², same shape as t."""
        return t.square()

    def quadratic(self, q: int) -> tuple[float, float, float]:
        """Return (0, 0, 1)."""
        return 0.0, 0.0, 1.0
