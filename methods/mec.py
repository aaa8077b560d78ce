"""MEC: maximum entropy coding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.forms.pairwise import normalize
from regbench.settings import AtLeastOne, Fraction, Positive, settings
from regbench.spaces import Range, Space


@register("mec")
@settings
class MaximumEntropyCoding(Regularizer):
    """−(1/(nλ)) tr Σ_{k=1}^{K} (−1)^{k+1} (λ Z₁Z₂ᵀ)ᵏ/k with λ = q/(n ε²) (Liu et al., NeurIPS
    2022).

    On unit embeddings. The series is that of log det(I + λ Z₁Z₂ᵀ), whose Taylor series about I
    converges where the eigenvalues of λ Z₁Z₂ᵀ are below 1 in modulus; for one view it is the coding
    rate, of which `tcr` takes the logarithm itself. The factor 1/(nλ) and the number called `eps`
    there, 64, which is ε² here, are those of the authors' code (xinliu20/MEC, main_pretrain.py). tr
    (Z₁Z₂ᵀ)ᵏ = tr (Z₂ᵀZ₁)ᵏ, so the smaller of both is taken.

    Attributes:
        distortion: ε².
        order: K, the terms of the series.
        warmup: Share of the training in which 1/λ falls from eight times its value, so that the
            series converges before the embeddings have spread; 0: none.
    """

    distortion: Positive = 64.0
    order: AtLeastOne = 4
    warmup: Fraction = 0.0

    metadata: ClassVar[Metadata] = Metadata(
        title="MEC",
        reference="Liu, Wang, Li, Wang, NeurIPS 2022",
        url="https://arxiv.org/abs/2210.11464",
        formula="−(1/(nλ)) tr log(I + λ Z₁Z₂ᵀ) to 4th order,  λ = q/(nε²)",
        latex=r"-\frac{1}{n \lambda} \sum_{k=1}^{4} \frac{(-1)^{k+1}}{k} \mathrm{tr} (\lambda Z_1 "
        r"Z_2^\top)^k, \quad \lambda = \frac{q}{n \epsilon^2}",
        time="O(n q min(n, q))",
        memory="O(min(n, q)²)",
        published="ε² = 64, order 4, q = 2048, batch 1024, ResNet-50 on "
        "ImageNet (released command)",
        limitation="as published with method.warmup=0.1 (10 of 100 epochs) "
        "network.predictor.depth=2 network.teacher=ema network.projector.last_norm=plain_batch; λ "
        "then rises from an eighth of its value, and arrives a step later than in the authors' "
        "code",
        scale_invariant=True,
        rotation_invariant=True,
    )
    of_training: ClassVar[tuple[str, ...]] = ("warmup",)
    absent: ClassVar[Mapping[str, Any]] = {"warmup": 0.0}
    space: ClassVar[Space] = {"distortion": Range(6, 600)}

    def target_transform(self, q: int) -> nn.Module | None:
        """Let λ rise, see `RisingScale`."""
        return RisingScale(self) if self.warmup else None

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the term of the first order, which is the alignment of the views, and the
        others.
        """
        n, q = z1_NQ.shape
        scale = q / (n * self.distortion)
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        alignment = -(z1_NQ * z2_NQ).sum() / n
        base = scale * (z2_NQ.T @ z1_NQ if q < n else z1_NQ @ z2_NQ.T)
        power, rest = base, torch.zeros_like(alignment)
        for k in range(2, self.order + 1):
            # tr(A B) is the sum of the products of A and Bᵀ: one matrix product fewer.
            trace = (power * base.T).sum()
            rest = rest + (-1) ** k / k * trace
            # The product after the last term would be thrown away.
            power = power @ base if k < self.order else power
        return {"alignment": alignment, "coding rate": rest / (n * scale)}


class RisingScale(nn.Module):
    """Lets λ of MEC rise with the training; it has no state."""

    def __init__(self, method: MaximumEntropyCoding) -> None:
        """Begin with λ/8, as the authors' code."""
        super().__init__()
        self._method = method

    def forward(
        self,
        targets_NQ: Sequence[Tensor],
        predictions_NQ: Sequence[Tensor],
        done: float,
        group: dist.ProcessGroup | None,
    ) -> tuple[MaximumEntropyCoding, Sequence[Tensor]]:
        """Return MEC at this λ, and the targets as they are; see `Regularizer.target_transform`."""
        method = self._method
        risen = min(done / method.warmup, 1.0)
        # 1/λ is a multiple of ε².
        return replace(method, distortion=method.distortion * (8 - 7 * risen)), targets_NQ
