"""Adam."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch

from regbench.benchmark.training.optimizers.base import OptimizerConfig, register
from regbench.settings import Momentum, NonNegative, Positive, settings
from regbench.spaces import Range, Space


@register("adam")
@settings
class AdamConfig(OptimizerConfig):
    """torch's Adam; the defaults are W-MSE's on CIFAR in solo-learn.

    Weight decay is added to the gradient, before its means are taken.

    Attributes:
        betas: The decay rates of the means of the gradient and of its square.
        epsilon: A number that is added to the root of the latter.
    """

    base_lr: Positive = 2e-3
    weight_decay: NonNegative = 1e-6
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    epsilon: Positive = 1e-8

    reference = "Kingma and Ba, ICLR 2015"
    space: ClassVar[Space] = {"base_lr": Range(1e-4, 1e-2)}
    kind: ClassVar[type[torch.optim.Adam]] = torch.optim.Adam
    """torch's class; AdamW has another."""

    def build(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """Return torch's optimizer for the parameters."""
        # Fused for the reason that `SGDConfig` gives.
        groups = self.groups(parameters)
        return self.kind(groups, lr=0.0, betas=self.betas, eps=self.epsilon, fused=True)
