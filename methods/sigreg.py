"""SIGReg, the regularizer of LeJEPA: a sliced test of normality."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends
from regbench.methods.forms.slicing import SlicedCharacteristic, epps_pulley
from regbench.settings import AtLeastOne, AtLeastTwo, Fraction, Positive, settings
from regbench.spaces import Range, Space


@register("sigreg")
@settings
class SIGReg(SlicedCharacteristic):
    """s [ (1 − λ) ¼ mean (Z₁ − Z₂)² + λ ½ Σ_v mean over directions of n EP(Z_v a) ] (Balestriero,
    LeCun, arXiv 2025).

    EP is the Epps-Pulley statistic against N(0, 1): ∫ |φ̂(t) − e^{−t²/2}|² e^{−t²/2} dt with the
    empirical characteristic function φ̂, by the trapezoid rule on [0, 3], doubled. That is the
    quadrature of the authors' code (rbalestr-lab/lejepa). λ and the number of directions, which are
    drawn anew at each step, are those of its README (`num_slices=1024`) and of its launch scripts
    (`bstat_lambda=0.05`); its minimal example (MINIMAL.md) has 0.02, and 256 of them. The alignment
    is the mean over views of the squared distance to the views' mean. The factor s is for the codes
    that weigh the terms otherwise: mean (Z₁ − Z₂)² + w ½ Σ_v EP(Z_v a) is λ = w / (4n + w), s = 4 /
    (1 − λ).

    Attributes:
        regularization_weight: λ in [0, 1].
        directions: Number of random directions, >= 1.
        knots: Points of the quadrature, >= 2.
        largest_frequency: Upper end of the frequencies, > 0.
        scale: s > 0.
    """

    regularization_weight: Fraction = 0.05
    directions: AtLeastOne = 1024
    knots: AtLeastTwo = 17
    largest_frequency: Positive = 3.0
    scale: Positive = 1.0
    to_center: ClassVar[bool] = True
    addend: ClassVar[str] = "normality"

    metadata: ClassVar[Metadata] = Metadata(
        title="SIGReg",
        reference="Balestriero, LeCun, arXiv 2025 (LeJEPA)",
        url="https://arxiv.org/abs/2511.08544",
        formula="s [ (1−λ) ¼ ‖Z₁ − Z₂‖²/(nq) + λ ½ Σ_v E_a n ∫ |φ̂_{Z_v a}(t) − e^{−t²/2}|² "
        "e^{−t²/2} dt ]",
        latex=r"s \left[ \frac{1 - \lambda}{4nq} \Vert Z_1 - Z_2 \Vert_F^2 + \frac{\lambda}{2} "
        r"\sum_v \mathbb{E}_a \, n \int | \hat{\varphi}_{Z_v a}(t) - e^{-t^2/2} |^2 e^{-t^2/2} \, "
        r"dt \right]",
        time="O(n K (q + T)), K directions, T knots",
        memory="O(n K)",
        published="λ = 0.05, 1024 directions, 17 knots (README and launch scripts); λ = 0.02, 256 "
        "directions, 4 views of Imagenette, ViT-S/8, q = 16, batch 256 (minimal example)",
        views="the authors' code: distance to the mean of the global views, the statistic of every "
        "view",
    )
    space: ClassVar[Space] = {"regularization_weight": Range(0.001, 0.5, "logit", balances=True)}

    def alignment_scale(self, q: int) -> float:
        """Return s (1 − λ), whatever q is."""
        return self.scale * (1 - self.regularization_weight)

    @property
    def weight(self) -> float:
        """Factor s λ of the statistic."""
        return self.scale * self.regularization_weight

    def characteristic(self, frequencies_T: Tensor, q: int) -> Tensor:
        """Compute e^{−t²/2}, that of N(0, 1), whatever q is."""
        return (-(frequencies_T**2) / 2).exp()

    def sliced(self, u_NQ: Tensor, directions_QK: Tensor) -> Addends:
        """Compute s λ times the mean statistic over directions."""
        n, projections_NK = len(u_NQ), u_NQ @ directions_QK
        # At frequency 0, which is left out, both functions are 1.
        frequencies_T = torch.linspace(
            0, self.largest_frequency, self.knots, dtype=torch.float64, device=u_NQ.device
        )[1:]
        cosines, sines = [], []
        for frequency in frequencies_T:
            angles_NK = projections_NK * frequency
            cosines.append(angles_NK.cos().sum(dim=0))
            sines.append(angles_NK.sin().sum(dim=0))
        normal_T = self.characteristic(frequencies_T, u_NQ.shape[1]).to(u_NQ)
        real_TK = torch.stack(cosines) / n - normal_T[:, None]
        statistic = epps_pulley(real_TK, torch.stack(sines) / n, frequencies_T)
        return {self.addend: self.weight * n * statistic}
