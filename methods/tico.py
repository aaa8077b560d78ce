"""TiCo: transformation invariance and covariance contrast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.decomposed import Addends
from regbench.methods.engine import Shard
from regbench.methods.kernel import KernelEnergy
from regbench.spaces import Range, Space


@register("tico")
@dataclass(frozen=True, kw_only=True)
class TiCo(KernelEnergy):
    """1 − mean z₁ᵢ·z₂ᵢ + ρ ½ Σ_v (1/n) Σᵢ zᵢᵀ C_v zᵢ on unit embeddings (Zhu et al., 2022).

    C_v = (1/n) Σⱼ zⱼ zⱼᵀ, through which no gradient flows. The value of the second term is that of the quadratic
    kernel, ρ n⁻² Σᵢⱼ (zᵢ·zⱼ)², and its gradient, which comes by one of its two factors, half of that kernel's.

    The original keeps C ← β C + (1 − β) C_batch over the steps, with β = 0.9, and compares with the embeddings of a
    momentum network, through which no gradient flows. This is β = 0, which needs no state, and the mean over the views;
    `network.teacher=ema` is the momentum network.

    Attributes:
        covariance_weight: ρ >= 0.
    """

    covariance_weight: float = 8.0

    metadata: ClassVar[Metadata] = Metadata(
        title="TiCo",
        reference="Zhu, Moraes, Karakulak, Sobol, Canziani, LeCun, arXiv 2022",
        url="https://arxiv.org/abs/2206.10698",
        formula="1 − (1/n) Σᵢ z₁ᵢ·z₂ᵢ + ρ ½ Σ_v (1/n) Σᵢ zᵢᵀ stop[C_v] zᵢ,  C_v = Z_vᵀZ_v/n",
        latex=r"1 - \frac{1}{n} \sum_i z_{1,i} \cdot z_{2,i} + \frac{\rho}{2n} \sum_v \sum_i z_{v,i}^\top \, "
        r"\mathrm{stop}[C_v] \, z_{v,i}, \quad C_v = \frac{1}{n} Z_v^\top Z_v",
        time="O(n² q) or O(n q²)",
        memory="O(1) or O(q²)",
        published="ρ = 8, β = 0.9",
        limitation="the covariance is that of the batch, not a running mean over the steps; the original's momentum "
        "encoder is network.teacher=ema",
        scale_invariant=True,
        rotation_invariant=True,
        exact_gradient=False,
    )
    space: ClassVar[Space] = {"covariance_weight": Range(0.3, 300, balances=True)}

    def __post_init__(self) -> None:
        """Refuse a negative weight."""
        self.require(self.covariance_weight >= 0, "covariance_weight must be >= 0")

    def alignment_scale(self, q: int) -> float:
        """Return ½ q: 1 − cos is half of a squared distance, which is not divided by q."""
        return 0.5 * q

    def kernel(self, t: Tensor, q: int) -> Tensor:
        """Compute ρ t², same shape as t."""
        return self.covariance_weight * t.square()

    def quadratic(self, q: int) -> tuple[float, float, float]:
        """Return (0, 0, ρ)."""
        return 0.0, 0.0, self.covariance_weight

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute the kernel's energy with half of its gradient."""
        return {name: 0.5 * (term + term.detach()) for name, term in super().regularizer(u_NQ).items()}

    def add_regularizer(
        self, z_NQ: Tensor, inverse_N: Tensor, gradient_NQ: Tensor, share: float, shard: Shard, form: str
    ) -> Addends:
        """Compute it in Gram or covariance form, see `Decomposed.add_regularizer`."""
        # The share scales the gradient alone, not the value.
        return super().add_regularizer(z_NQ, inverse_N, gradient_NQ, 0.5 * share, shard, form)
