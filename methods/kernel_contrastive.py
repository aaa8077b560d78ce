"""Kernel contrastive learning: kernels of the positive pairs against kernel energies of the
views.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.forms.engine import Shard
from regbench.methods.forms.gradients import with_slopes
from regbench.methods.forms.pairwise import (
    energy,
    fused,
    inverse_lengths,
    normalize,
    off_diagonal_energy,
    to_embedding_gradient,
)
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@register(
    "kcl",
    kcl_gaussian={"kernel": "gaussian"},
    kcl_log={"kernel": "log"},
    kcl_imq={"kernel": "imq"},
    kcl_riesz={"kernel": "riesz", "scale": -1.0},
)
@settings
class KernelContrastive(Regularizer):
    """−2 mean_i k(z1ᵢ, z2ᵢ) + γ Σ_v mean_{i≠j} K(zvᵢ, zvⱼ) on unit embeddings (Koromilas et al.,
    ICML 2024).

    With d = ‖u − v‖ the kernels K of the authors' code (pakoromilas/DHEL-KCL, losses.py and
    utils.py) are

    - `gaussian`: exp(−s d²),
    - `log`: −½ log(1 + s d²),
    - `imq`: s/√(s² + d²),
    - `riesz`: −d^{−s} with −2 < s < 0. The code also has d^{−s} for s > 0, which is left out: the
      positive pairs' term has no lower bound then.

    k = K, but without the ½ for `log`. Where two embeddings coincide a Riesz kernel has no
    derivative; it counts as 0 there, and where the squared distance is below the dtype's epsilon.

    Attributes:
        kernel: `gaussian`, `log`, `imq` or `riesz`.
        scale: s, which the code names `t`: positive, but between −2 and 0 for `riesz`.
        energy_weight: γ >= 0.
    """

    kernel: Literal["gaussian", "log", "imq", "riesz"] = "gaussian"
    scale: float = 2.0
    energy_weight: NonNegative = 16.0

    metadata: ClassVar[Metadata] = Metadata(
        title="KCL",
        reference="Koromilas, Bouritsas, Giannakopoulos, Nicolaou, Panagakis, ICML 2024",
        url="https://arxiv.org/abs/2405.18045",
        formula="−2 (1/n) Σᵢ k(z1ᵢ, z2ᵢ) + γ Σ_v (1/(n(n − 1))) Σ_{i≠j} K(zvᵢ, zvⱼ)",
        latex=r"-\frac{2}{n} \sum_i k(z_{1,i}, z_{2,i}) + \frac{\gamma}{n(n-1)} \sum_v \sum_{i "
        r"\neq j} K(z_{v,i}, z_{v,j})",
        time="O(n² q)",
        memory="O(n q)",
        published="gaussian, s = 2, γ = 16 (defaults of the authors' code); s = −1 of `riesz` is "
        "ours",
        scale_invariant=True,
        rotation_invariant=True,
    )
    # `gram`, streamed over panels of the Gram matrices of the views.
    forms = ("textbook", "gram")
    space: ClassVar[Space] = {"energy_weight": Range(0.3, 300, balances=True)}

    def __post_init__(self) -> None:
        """Refuse a scale that the kernel cannot have."""
        if self.kernel == "riesz":
            self.require(-2 < self.scale < 0, "scale of riesz must be between -2 and 0")
        else:
            self.require(self.scale > 0, "scale must be > 0")

    @property
    def label(self) -> str:
        """The kernel: another one is another method."""
        return f"KCL ({self.kernel})"

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute alignment (the positive pairs) and the energies."""
        n = len(z1_NQ)
        units = normalize(z1_NQ), normalize(z2_NQ)
        # `off_diagonal_energy` divides by n², the paper by the number of pairs i ≠ j.
        energies = [off_diagonal_energy(u_NQ, self._of_products) * n / (n - 1) for u_NQ in units]
        return {
            "alignment": self._attraction(*units).mean(),
            "energy": self.energy_weight * torch.stack(energies).sum(),
        }

    def _attraction(self, u1_NQ: Tensor, u2_NQ: Tensor) -> Tensor:
        """Compute −2 k of each positive pair, shape (n,)."""
        # The kernel k of `log` lacks the ½ that K has.
        factor = -4 if self.kernel == "log" else -2
        return factor * self._of_squares((u1_NQ - u2_NQ).square().sum(dim=1))

    def _of_products(self, t: Tensor) -> Tensor:
        return self._of_squares(2 - 2 * t)

    def _of_squares(self, squared: Tensor) -> Tensor:
        """Compute K of squared distances of any shape."""
        if self.kernel == "gaussian":
            return (-self.scale * squared).exp()
        if self.kernel == "log":
            # Rounding can make small squares negative. They keep their slope, but have a bound.
            return -0.5 * (self.scale * squared).clamp_min(-0.5).log1p()
        if self.kernel == "imq":
            least = -0.5 * self.scale**2
            return self.scale * (self.scale**2 + squared.clamp_min(least)).rsqrt()
        tiny = torch.finfo(squared.dtype).eps
        # `where` alone would not do: zero times the infinite slope of what it leaves out would be
        # NaN.
        return -torch.where(squared <= tiny, 0.0, squared.clamp_min(tiny) ** (-self.scale / 2))

    def _energy_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        # Autograd saves a derivative by hand, which could be wrong, for each of the four kernels.
        value, slope = with_slopes(self._of_products, t)
        return value, slope

    def pair_value_and_gradient(
        self, z1_NQ: Tensor, z2_NQ: Tensor, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Compute it in Gram form, see `Regularizer.pair_value_and_gradient`."""
        pairs = shard.n * (shard.n - 1)
        views = [z_NQ.detach().requires_grad_() for z_NQ in (z1_NQ, z2_NQ)]
        with torch.enable_grad():
            attraction = self._attraction(*map(normalize, views)).sum() / shard.n
        gradient1_NQ, gradient2_NQ = torch.autograd.grad(attraction, views)
        total = torch.zeros((), dtype=torch.float64, device=z1_NQ.device)
        for z_NQ, gradient_NQ in ((z1_NQ, gradient1_NQ), (z2_NQ, gradient2_NQ)):
            inverse_N, energy_NQ = inverse_lengths(z_NQ), torch.zeros_like(z_NQ)
            total += energy(z_NQ, inverse_N, fused(self._energy_and_slope), energy_NQ, shard)
            to_embedding_gradient(energy_NQ, z_NQ, inverse_N)
            gradient_NQ.add_(energy_NQ, alpha=2 * self.energy_weight / pairs)
        alignment, total = shard.sum(torch.stack([attraction.detach().double(), total]))
        terms = {"alignment": alignment, "energy": self.energy_weight * total / pairs}
        return terms, gradient1_NQ, gradient2_NQ
