"""The radial basis function kernel without AUH's logarithm."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.kernel import KernelRegularizer
from regbench.settings import NonNegative, Positive, settings
from regbench.spaces import Range, Space


@register("rbf")
@settings
class RBF(KernelRegularizer):
    """K(u, v) = exp(−t ‖u − v‖²) = exp(−2t (1 − u·v)), Example 1 of Zheng et al. (ICLR 2023).

    Attributes:
        scale: t > 0 of the formula; the paper's tuned value is 2.
        alignment_weight: λ as in the paper's tables, see `KernelRegularizer`; 100 at q = 8192.
    """

    scale: Positive = 2.0
    alignment_weight: NonNegative = 100.0

    metadata: ClassVar[Metadata] = Metadata(
        title="RBF kernel",
        reference="Zheng, Puy, Riccietti, Pérez, Gribonval, ICLR 2023 (ablation, Table 3)",
        url="https://openreview.net/forum?id=8uu6JStuYm",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + ½ Σ_v n⁻² Σᵢⱼ exp(−t ‖zᵢ − zⱼ‖²)",
        latex=r"\frac{\lambda}{nq} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{1}{2n^2} \sum_v \sum_{i,j} "
        r"\exp(-t \Vert z_{v,i} - z_{v,j} \Vert^2)",
        time="O(n² q)",
        memory="O(1)",
        published="λ = 100, t = 2 at q = 8192 on IN20 %, ResNet-18, batch 2048 (appendix)",
        scale_invariant=True,
        rotation_invariant=True,
    )
    # The range is lower than those of other kernels: the paper's λ is 0.012 q at q = 8192.
    space: ClassVar[Space] = {
        "alignment_weight": Range(0.003, 3, times="q", balances=True),
        "scale": Range(0.3, 10),
    }

    def kernel(self, t: Tensor, q: int) -> Tensor:
        """Compute exp(−2 scale (1 − t)), same shape as t."""
        return (-2 * self.scale * (1 - t)).exp()

    def kernel_and_derivative(self, t: Tensor, q: int) -> tuple[Tensor, Tensor]:
        """Compute φ and φ′ = 2 scale φ."""
        phi = self.kernel(t, q)
        return phi, 2 * self.scale * phi
