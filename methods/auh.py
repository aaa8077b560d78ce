"""AUH: alignment and uniformity on the hypersphere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.engine import Shard
from regbench.methods.pairwise import (
    alignment,
    energy,
    inverse_lengths,
    mask_diagonal,
    mean_squared_difference,
    normalize,
    to_embedding_gradient,
)


@register("auh")
@dataclass(frozen=True, kw_only=True)
class AUH(Regularizer):
    """λ ℓ_a + ½ Σ_v log mean_{i≠j} exp(−t ‖zᵢ − zⱼ‖²) on unit embeddings (Wang & Isola, ICML 2020).

    Zheng et al. (ICLR 2023, appendix "Regularization loss of SimCLR, AUH and VICReg") print the sum over all pairs
    with 1/n² outside the logarithm. The form here, the mean over pairs i ≠ j inside it, is that of Wang & Isola
    and of the code that gave the paper's figures; counting the diagonal would scale the gradient by a factor that
    depends on n.

    Attributes:
        scale: t in (0, 20]; the paper's tuned value is 2.5.
        alignment_weight: λ as the paper's tables print it: the weight of the mean over n and q of (z₁ − z₂)².
    """

    scale: float = 2.5
    alignment_weight: float = 3000.0

    metadata: ClassVar[Metadata] = Metadata(
        title="AUH",
        reference="Wang, Isola, ICML 2020",
        url="https://arxiv.org/abs/2005.10242",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + ½ Σ_v log mean_{i≠j} exp(−t ‖zᵢ − zⱼ‖²)",
        time="O(n² q)",
        memory="O(1)",
        published="t = 2, λ = 1 for ℓ_a by its authors; (3000, 2.5) at q = 8192 in Zheng et al. (ICLR 2023)",
        scale_invariant=True,
        rotation_invariant=True,
    )

    def __post_init__(self) -> None:
        """Refuses a negative weight and a scale that is not positive."""
        self.require(self.alignment_weight >= 0, "alignment_weight must be >= 0")
        # exp(−4 scale) of opposite embeddings must not vanish in float32, or so would the sum under the logarithm.
        self.require(0 < self.scale <= 20, "scale must be in (0, 20]")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Alignment and uniformity."""
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        return {
            "alignment": self.alignment_weight * mean_squared_difference(z1_NQ, z2_NQ),
            "uniformity": 0.5 * (self._log_mean_energy(z1_NQ) + self._log_mean_energy(z2_NQ)),
        }

    def _log_mean_energy(self, z_NQ: Tensor) -> Tensor:
        n = len(z_NQ)
        log_sum = mask_diagonal(2 * self.scale * (z_NQ @ z_NQ.T)).logsumexp(dim=(0, 1))
        return log_sum - 2 * self.scale - math.log(n * (n - 1))

    @property
    def forms(self) -> tuple[str, ...]:
        """The logarithm of a streamed energy."""
        return ("textbook", "gram")

    def value_and_gradient(
        self, z1_NQ: Tensor, z2_NQ: Tensor, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Streamed, see `Regularizer.value_and_gradient`."""
        n, q = shard.n, z1_NQ.shape[1]
        views = (z1_NQ, z2_NQ)
        inverses = (inverse_lengths(z1_NQ), inverse_lengths(z2_NQ))
        gradients = (torch.zeros_like(z1_NQ), torch.zeros_like(z2_NQ))

        def phi(t: Tensor) -> tuple[Tensor, Tensor]:
            value = (t - 1).mul_(2 * self.scale).exp_()
            return value, 2 * self.scale * value

        uniformities = []
        for z_NQ, inverse_N, gradient_NQ in zip(views, inverses, gradients, strict=True):
            total = shard.sum(energy(z_NQ, inverse_N, phi, gradient_NQ, shard))
            uniformities.append((total / (n * (n - 1))).log())
            gradient_NQ.div_(total)
        weight = self.alignment_weight / (n * q)
        difference = shard.sum(alignment(*views, *inverses, gradients, weight))
        for z_NQ, inverse_N, gradient_NQ in zip(views, inverses, gradients, strict=True):
            to_embedding_gradient(gradient_NQ, z_NQ, inverse_N)
        return {"alignment": weight * difference, "uniformity": 0.5 * (uniformities[0] + uniformities[1])}, *gradients
