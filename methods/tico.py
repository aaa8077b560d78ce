"""TiCo: transformation invariance and covariance contrast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.forms.decomposed import Addends, StreamedView
from regbench.methods.forms.engine import mean_over_ranks
from regbench.methods.forms.kernel import KernelEnergy
from regbench.methods.forms.pairwise import normalize
from regbench.settings import Momentum, NonNegative, settings
from regbench.spaces import Range, Space


@register("tico")
@settings
class TiCo(KernelEnergy):
    """1 − mean z₁ᵢ·z₂ᵢ + ρ ½ Σ_v (1/n) Σᵢ zᵢᵀ C_v zᵢ on unit embeddings (Zhu et al., 2022).

    C_v = (1/n) Σⱼ zⱼ zⱼᵀ, through which no gradient flows. The value of the second term is that of
    the quadratic kernel, ρ n⁻² Σᵢⱼ (zᵢ·zⱼ)², and its gradient, which comes by one of its two
    factors, half of that kernel's.

    The original keeps C ← β C + (1 − β) C_batch over the steps, with β = 0.9, and compares with the
    embeddings of a momentum network, `network.teacher=ema`, through which no gradient flows. By
    default β = 0, which needs no state, and the second term is the mean over the views. With β > 0,
    beside a teacher, the second term is ρ mean pᵢᵀ C pᵢ of the predictions p alone, in both orders
    of the views: `CovarianceContrast`. C then moves once a step, by the predictions of all views;
    released codes take one order of the views, and C of that one's predictions.

    Attributes:
        covariance_weight: ρ >= 0.
        covariance_momentum: β, the share of C that stays in each step, below 1.
    """

    covariance_weight: NonNegative = 8.0
    covariance_momentum: Momentum = 0.0

    metadata: ClassVar[Metadata] = Metadata(
        title="TiCo",
        reference="Zhu, Moraes, Karakulak, Sobol, Canziani, LeCun, arXiv 2022",
        url="https://arxiv.org/abs/2206.10698",
        formula="1 − (1/n) Σᵢ z₁ᵢ·z₂ᵢ + ρ ½ Σ_v (1/n) Σᵢ zᵢᵀ stop[C_v] zᵢ,  C_v = Z_vᵀZ_v/n",
        latex=r"1 - \frac{1}{n} \sum_i z_{1,i} \cdot z_{2,i} + \frac{\rho}{2n} \sum_v \sum_i "
        r"z_{v,i}^\top \, \mathrm{stop}[C_v] \, z_{v,i}, \quad C_v = \frac{1}{n} Z_v^\top Z_v",
        time="O(n² q) or O(n q²)",
        memory="O(1) or O(q²)",
        published="ρ = 8, β = 0.9",
        limitation="as published with method.covariance_momentum=0.9 network.teacher=ema, but that "
        "the covariance follows all views; by default it is that of the batch, not a running mean "
        "over the steps",
        scale_invariant=True,
        rotation_invariant=True,
        exact_gradient=False,
    )
    of_training: ClassVar[tuple[str, ...]] = ("covariance_momentum",)
    absent: ClassVar[Mapping[str, Any]] = {"covariance_momentum": 0.0}
    space: ClassVar[Space] = {"covariance_weight": Range(0.3, 300, balances=True)}

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of a single step's covariance, or with momentum the textbook's alone."""
        return ("textbook",) if self.covariance_momentum else super().forms

    def target_transform(self, q: int) -> nn.Module | None:
        """Follow the covariance over the steps, see `RunningCovariance`."""
        # Without momentum nothing is kept from step to step, and the streamed forms serve.
        return RunningCovariance(self, q) if self.covariance_momentum else None

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
        return {
            name: 0.5 * (term + term.detach()) for name, term in super().regularizer(u_NQ).items()
        }

    def add_regularizer(self, view: StreamedView) -> Addends:
        """Compute it in Gram or covariance form, see `Decomposed.add_regularizer`."""
        # The share scales the gradient alone, not the value.
        return super().add_regularizer(view._replace(share=0.5 * view.share))


@dataclass(frozen=True, kw_only=True, eq=False)
class CovarianceContrast(Regularizer):
    """1 − mean p̄ᵢ·t̄ᵢ + ρ mean p̄ᵢᵀ C p̄ᵢ of unit predictions and targets, with a given C: TiCo in
    one step.

    Attributes:
        covariance_weight: ρ.
        covariance_QQ: C.
    """

    covariance_weight: NonNegative
    covariance_QQ: Tensor
    metadata: ClassVar[Metadata] = TiCo.metadata

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the alignment of predictions z1 with targets z2, and the energy of z1 in C."""
        u1_NQ, u2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        # Only the diagonal of U C Uᵀ is asked for: the whole would take n² numbers.
        energy = (u1_NQ @ self.covariance_QQ * u1_NQ).sum(dim=1).mean()
        return {
            "alignment": 1 - (u1_NQ * u2_NQ).sum(dim=1).mean(),
            "uniformity": self.covariance_weight * energy,
        }


class RunningCovariance(nn.Module):
    """Keeps the mean of unit predictions' second moments over the steps.

    Attributes:
        covariance: C, shape (q, q).
    """

    covariance: Tensor

    def __init__(self, method: TiCo, q: int) -> None:
        """Begin with zeros."""
        super().__init__()
        self._method = method
        # A buffer is part of checkpoints.
        self.register_buffer("covariance", torch.zeros(q, q))

    def forward(
        self,
        targets_NQ: Sequence[Tensor],
        predictions_NQ: Sequence[Tensor],
        done: float,
        group: dist.ProcessGroup | None,
    ) -> tuple[CovarianceContrast, Sequence[Tensor]]:
        """Return TiCo with the C of this step, and the targets as they are.

        See `Regularizer.target_transform`.
        """
        u_NQ = normalize(torch.cat(list(predictions_NQ)))
        # C is that of the whole batch, the same on every rank.
        moment_QQ = mean_over_ranks(u_NQ.T @ u_NQ / len(u_NQ), group)
        self.covariance.lerp_(moment_QQ, 1 - self._method.covariance_momentum)
        weight, c_QQ = self._method.covariance_weight, self.covariance
        return CovarianceContrast(covariance_weight=weight, covariance_QQ=c_QQ), targets_NQ
