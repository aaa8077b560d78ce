"""DINO: the network's distribution over prototypes is to be its teacher's, centred and sharpened.

Shapes: N = batch (n), Q = prototypes, whose scores stand in the place of embeddings here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regbench.methods.base import Metadata, PrototypeWeights, Regularizer, register
from regbench.methods.forms.engine import mean_over_ranks
from regbench.methods.forms.pairwise import infinite_as_nan
from regbench.settings import AtLeastTwo, Fraction, Momentum, Positive, settings
from regbench.spaces import Range, Space


@register("dino")
@settings
class DINO(Regularizer):
    """−mean Σ_k softmax((t₂ᵢ − c)/τ_t)_k log softmax(s₁ᵢ/τ_s)_k of scores s, t (Caron et al., ICCV
    2021, Eq. (1)).

    s are the network's scores of its prototypes, t the teacher's of its own. In training, c is a
    moving mean of t, and τ_t rises; both are in what `Centering` gives as t. A call by itself takes
    t as it is.

    Attributes:
        prototypes: K, the number of prototypes.
        student_temperature: τ_s > 0.
        teacher_temperature: τ_t > 0 after the warm-up.
        first_teacher_temperature: τ_t > 0 in the first step.
        warmup: Share of the training in which τ_t changes linearly.
        center_momentum: Share of c that stays in each step, below 1.
        prototype_weights: How prototypes begin and are kept: `uniform`, the authors', from numbers
            within ±1/√q, so a length of about 0.58; `unit`, of length 1 and rescaled to it after
            each step; or `normal`, of a length of √q, as in cells without the setting.
    """

    prototypes: AtLeastTwo = 65536
    student_temperature: Positive = 0.1
    teacher_temperature: Positive = 0.07
    first_teacher_temperature: Positive = 0.04
    warmup: Fraction = 0.1
    center_momentum: Momentum = 0.9
    prototype_weights: PrototypeWeights = "uniform"

    metadata: ClassVar[Metadata] = Metadata(
        title="DINO",
        reference="Caron, Touvron, Misra, Jégou, Mairal, Bojanowski, Joulin, ICCV 2021",
        url="https://arxiv.org/abs/2104.14294",
        formula="−(1/n) Σᵢ Σ_k softmax((t₂ᵢ − c)/τ_t)_k log softmax(s₁ᵢ/τ_s)_k, mean over both "
        "orders of the views",
        latex=r"-\frac{1}{n} \sum_i \sum_k \mathrm{softmax}\left(\frac{t_{2,i} - "
        r"c}{\tau_t}\right)_k \log \mathrm{softmax}\left(\frac{s_{1,i}}{\tau_s}\right)_k",
        time="O(n (q + k))",
        memory="O(n k)",
        published="65536 prototypes, τ_s = 0.1, τ_t from 0.04 to 0.07 in 30 of 300 epochs, "
        "center's momentum 0.9, teacher's 0.996 rising to 1, batch 1024, ViT-S/16 on ImageNet",
        views="the same paper, Eq. (3)",
        limitation="the original keeps the prototypes as they are in the first epoch, its weight "
        "decay rises, and its temperature rises by epochs, to its end at the warm-up's last one, "
        "ours by steps",
        symmetric=False,
        ordered=False,
    )
    needs: ClassVar[tuple[str, ...]] = ("ema",)
    absent: ClassVar[Mapping[str, Any]] = {"prototype_weights": "normal"}
    space: ClassVar[Space] = {"teacher_temperature": Range(0.02, 0.2)}

    def target_transform(self, q: int) -> nn.Module:
        """Center the teacher's scores, see `Centering`."""
        return Centering(self)

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the cross-entropy of scores z1 with the distribution of centred scores z2."""
        wanted_NQ = (infinite_as_nan(z2_NQ) / self.teacher_temperature).softmax(dim=1)
        found_NQ = (z1_NQ / self.student_temperature).log_softmax(dim=1)
        return {"cross_entropy": -(wanted_NQ * found_NQ).sum(dim=1).mean()}


class Centering(nn.Module):
    """Subtracts the center from a teacher's scores, and lets the center follow them.

    Attributes:
        center: c, the moving mean of the scores, shape (prototypes,).
    """

    center: Tensor

    def __init__(self, method: DINO) -> None:
        """Begin with a center of zeros."""
        super().__init__()
        self._method = method
        # A buffer is part of checkpoints.
        self.register_buffer("center", torch.zeros(method.prototypes))

    def forward(
        self,
        views_NQ: Sequence[Tensor],
        predictions_NQ: Sequence[Tensor],
        done: float,
        group: dist.ProcessGroup | None,
    ) -> tuple[DINO, list[Tensor]]:
        """Return the method and the centred scores, scaled as if the temperature was that of the
        training's end.

        Args:
            views_NQ: This rank's scores of each global view, shape (n, prototypes).
            predictions_NQ: Not used.
            done: Share of the training that is done, on which the temperature depends.
            group: The ranks, whose mean the center follows.
        """
        method = self._method
        first, last = method.first_teacher_temperature, method.teacher_temperature
        risen = min(done / method.warmup, 1.0) if method.warmup else 1.0
        # `terms` divides by the last temperature. This factor turns that into the temperature of
        # this step.
        scale = last / (first + (last - first) * risen)
        centred = [(view_NQ - self.center) * scale for view_NQ in views_NQ]
        mean_Q = torch.stack([view_NQ.mean(dim=0) for view_NQ in views_NQ]).mean(dim=0)
        # The scores of a step count from the next step on, as in the authors' code.
        self.center.lerp_(mean_over_ranks(mean_Q, group), 1 - method.center_momentum)
        return method, centred
