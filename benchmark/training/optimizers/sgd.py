"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from regbench.benchmark.training.optimizers.base import OptimizerConfig, register
from regbench.errors import RegbenchError
from regbench.settings import Momentum, NonNegative, Positive, settings
from regbench.spaces import Range, Space


@register("sgd")
@settings
class SGDConfig(OptimizerConfig):
    """torch's SGD; the defaults are SimSiam's (Chen and He, CVPR 2021).

    Weight decay is added to the gradient.

    Attributes:
        momentum: The momentum of the update.
        nesterov: Whether the momentum is Nesterov's.
    """

    base_lr: Positive = 0.05
    weight_decay: NonNegative = 1e-4
    momentum: Momentum = 0.9
    nesterov: bool = False

    reference = "Robbins and Monro, 1951; Nesterov, 1983"
    space: ClassVar[Space] = {"base_lr": Range(0.005, 0.5)}

    def __post_init__(self) -> None:
        """Refuse what torch refuses, by the names of the settings."""
        if self.nesterov and not self.momentum:
            raise RegbenchError("optimizer.nesterov=true needs optimizer.momentum above 0")

    def build(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """Return SGD for the parameters."""
        # One fused kernel: torch's default on a GPU makes tensors of the size of the model in each
        # step.
        options: dict[str, Any] = {"momentum": self.momentum, "nesterov": self.nesterov}
        return torch.optim.SGD(self.groups(parameters), lr=0.0, fused=True, **options)
