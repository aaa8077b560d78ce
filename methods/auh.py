"""AUH: alignment and uniformity on the hypersphere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.pairwise import mean_squared_difference, normalize, off_diagonal_logsumexp


@register("auh")
@dataclass(frozen=True, kw_only=True)
class AUH(Regularizer):
    """λ ℓ_a + ½ Σ_v log mean_{i≠j} exp(−t ‖zᵢ − zⱼ‖²) on unit embeddings (Wang & Isola, ICML 2020).

    Zheng et al. (ICLR 2023, appendix "Regularization loss of SimCLR, AUH and VICReg") print the sum over all pairs
    with 1/n² outside the logarithm. The form here, the mean over pairs i ≠ j inside it, is that of Wang & Isola
    and of the code that gave the paper's figures; counting the diagonal would scale the gradient by a factor that
    depends on n.

    Attributes:
        scale: t > 0; the paper's tuned value is 2.5.
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
        memory="O(n²)",
        published="λ = 3000, t = 2.5 at q = 8192 on IN20 % (Zheng et al., ICLR 2023, appendix); λ = 1 for ℓ_a, t = 2 by its authors",
        scale_invariant=True,
        rotation_invariant=True,
    )

    def __post_init__(self) -> None:
        """Refuses a negative weight and a scale that is not positive."""
        self.require(self.scale > 0 and self.alignment_weight >= 0, "scale must be > 0 and alignment_weight >= 0")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Alignment and uniformity."""
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        return {
            "alignment": self.alignment_weight * mean_squared_difference(z1_NQ, z2_NQ),
            "uniformity": 0.5 * (self._log_mean_energy(z1_NQ) + self._log_mean_energy(z2_NQ)),
        }

    def _log_mean_energy(self, z_NQ: Tensor) -> Tensor:
        n = len(z_NQ)
        log_sum = off_diagonal_logsumexp(z_NQ, 2 * self.scale).logsumexp(dim=0)
        return log_sum - 2 * self.scale - math.log(n * (n - 1))
