"""What every optimizer is: settings, the schedule of its learning rate, and how it is built."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from regbench.plugins import Registry
from regbench.settings import Fraction, NonNegative, Positive, settings

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


@settings
class OptimizerConfig(ABC):
    """An optimizer, with linear warm-up and cosine decay of its learning rate.

    A subclass adds its own settings, is decorated by the `register` of this module and implements `build`.

    Attributes:
        base_lr: Learning rate for a batch of 256; the peak is base_lr · batch_size / 256.
        warmup_epochs: Epochs of linear increase from 0; fractions allowed. Unless it is given, it is half of the epochs
            at most.
        final_lr_fraction: Last learning rate over the peak.
        weight_decay: As the optimizer says.
    """

    base_lr: Positive = 1.0
    warmup_epochs: NonNegative = 1.0
    final_lr_fraction: Fraction = 0.001
    weight_decay: NonNegative = 1e-6

    reference: ClassVar[str]
    """Where it is from: authors and year."""
    shares: ClassVar[bool] = False
    """Whether the ranks of a run can share its state (`runtime.shard_optimizer`)."""

    @abstractmethod
    def build(
        self, parameters: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None
    ) -> torch.optim.Optimizer:
        """Return the optimizer; the trainer sets the learning rate of each step.

        Args:
            parameters: To train.
            group: The ranks that share its state, each of which has the same gradients; None, unless it `shares`.
        """

    def learning_rate(self, batch_size: int, step: int, steps_per_epoch: int, epochs: int) -> float:
        """Return the rate of one step: linear warm-up from 0 to base_lr · batch_size / 256, then cosine decay.

        Args:
            batch_size: Global images a step.
            step: Steps done before this one.
            steps_per_epoch: Steps in an epoch.
            epochs: Of the whole run.
        """
        peak = self.base_lr * batch_size / 256
        warmup, total = self.warmup_epochs * steps_per_epoch, epochs * steps_per_epoch
        if step < warmup:
            return peak * step / warmup
        cosine = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        return peak * (cosine + (1 - cosine) * self.final_lr_fraction)


OPTIMIZERS: Registry[OptimizerConfig] = Registry(
    "optimizer", "regbench.optimizers", "regbench.benchmark.training.optimizers"
)
"""The optimizers there are."""

register = OPTIMIZERS.register
