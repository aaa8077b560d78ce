"""AUH: alignment and uniformity on the hypersphere."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends, Decomposed, StreamedView
from regbench.methods.forms.pairwise import energy, fused, mask_diagonal
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@register("auh")
@settings
class AUH(Decomposed):
    """λ ℓ_a + ½ Σ_v log mean_{i≠j} exp(−t ‖zᵢ − zⱼ‖²) on unit embeddings (Wang & Isola, ICML 2020).

    Zheng et al. (ICLR 2023, appendix "Regularization loss of SimCLR, AUH and VICReg") print the sum
    over all pairs with 1/n² outside the logarithm. The form here, the mean over pairs i ≠ j inside
    it, is that of Wang & Isola and of the code that gave the paper's figures; counting the diagonal
    would scale the gradient by a factor that depends on n.

    Attributes:
        scale: t in (0, 20]; the paper's tuned value is 2.5.
        alignment_weight: λ as the paper's tables print it: the weight of the mean over n and q of
            (z₁ − z₂)².
    """

    # exp(−4 scale) of opposite embeddings must not vanish in float32, or so would the sum under
    # the logarithm.
    scale: Annotated[float, Field(gt=0, le=20)] = 2.5
    alignment_weight: NonNegative = 3000.0
    unit: ClassVar[bool] = True

    metadata: ClassVar[Metadata] = Metadata(
        title="AUH",
        reference="Wang, Isola, ICML 2020",
        url="https://arxiv.org/abs/2005.10242",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + ½ Σ_v log mean_{i≠j} exp(−t ‖zᵢ − zⱼ‖²)",
        latex=r"\frac{\lambda}{nq} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{1}{2} \sum_v \log "
        r"\frac{1}{n(n-1)} \sum_{i \neq j} \exp(-t \Vert z_{v,i} - z_{v,j} \Vert^2)",
        time="O(n² q)",
        memory="O(1)",
        published="t = 2, λ = 1 for ℓ_a by its authors; (3000, 2.5) at q = 8192 in Zheng et al. "
        "(ICLR 2023)",
        scale_invariant=True,
        rotation_invariant=True,
    )
    # `gram`: the logarithm of a streamed energy.
    forms = ("textbook", "gram")
    space: ClassVar[Space] = {
        # The paper's λ is 0.37 to 0.49 q at q from 1024 to 8192.
        "alignment_weight": Range(0.03, 30, times="q", balances=True),
        "scale": Range(0.3, 10, most=20),
    }

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute the logarithm of the mean energy."""
        n = len(u_NQ)
        # The constant factor of exp(−t d²) = exp(−2t) exp(2t cos) is taken out of the sum.
        log_sum = mask_diagonal(2 * self.scale * (u_NQ @ u_NQ.T)).logsumexp(dim=(0, 1))
        return {"uniformity": log_sum - 2 * self.scale - math.log(n * (n - 1))}

    def add_regularizer(self, view: StreamedView) -> Addends:
        """Compute it in Gram form, see `Decomposed.add_regularizer`."""
        z_NQ, inverse_N, gradient_NQ, share, shard, _ = view
        n, phi = shard.n, fused(self._energy_and_slope)
        total = shard.sum(energy(z_NQ, inverse_N, phi, gradient_NQ, shard))
        # The logarithm has the slope 1/total, and `energy` gives half of the total's gradient.
        gradient_NQ.mul_(2 * share / total)
        return {"uniformity": (total / (n * (n - 1))).log()}

    def _energy_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        value = (t - 1).mul_(2 * self.scale).exp_()
        return value, 2 * self.scale * value
