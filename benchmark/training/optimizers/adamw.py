"""AdamW."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from regbench.benchmark.training.optimizers.base import OptimizerConfig, register
from regbench.benchmark.training.optimizers.sharing import Groups, elementwise
from regbench.settings import Momentum, NonNegative, Positive, settings


@register("adamw")
@settings
class AdamWConfig(OptimizerConfig):
    """torch's AdamW; the default learning rate is DINO's (Caron et al., ICCV 2021).

    Weight decay shrinks tensors by lr · weight_decay in each step.

    Attributes:
        betas: Decay rates of the means of the gradient and of its square.
        epsilon: Added to the root of the latter.
    """

    base_lr: Positive = 5e-4
    weight_decay: NonNegative = 0.05
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    epsilon: Positive = 1e-8

    reference = "Loshchilov and Hutter, ICLR 2019"

    def build(
        self, parameters: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None
    ) -> torch.optim.Optimizer:
        """Return AdamW for the parameters."""

        def make(groups: Groups) -> torch.optim.AdamW:
            # One fused kernel: torch's default on a GPU makes several tensors of the size of the model in each step.
            return torch.optim.AdamW(groups, lr=0.0, betas=self.betas, eps=self.epsilon, fused=True)

        return elementwise(self.groups(parameters), make, group)
