"""The base of optimizers: their settings, and the schedule of the learning rate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from regbench.errors import RegbenchError
from regbench.plugins import Registry
from regbench.settings import AtLeastZero, Fraction, NonNegative, Positive, settings
from regbench.spaces import Space

if TYPE_CHECKING:
    import torch


@settings
class OptimizerConfig(ABC):
    """An optimizer, with the schedule of its learning rate.

    A subclass adds its own settings, is decorated by the `register` of this module and implements
    `build`.

    Attributes:
        base_lr: Learning rate for a batch of 256 images; `lr_scaling` gives the peak for others.
        lr_scaling: Growth of the peak with the batch: "linear" (base_lr · batch_size / 256), "sqrt"
            (base_lr · √(batch_size / 256)) or "none".
        warmup_epochs: Epochs of linear increase to the peak; fractions allowed. Unless it is given,
            it is half of the epochs at most.
        warmup_steps: Steps of the warm-up in place of the epochs; null: as many as the epochs have.
        warmup_start_fraction: First learning rate over the peak.
        schedule: Schedule after the warm-up: "cosine" (decay to the last step), "constant", or
            "wsd" (warm-up, stable, decay; Hägele et al., NeurIPS 2024: constant, then a linear
            decay).
        decay_fraction: Part of all steps that the decay of "wsd" takes.
        final_lr_fraction: Learning rate at the end of a decay over the peak.
        weight_decay: Weight decay; its meaning depends on the optimizer.
        exclude_bias_and_norm: Whether tensors of fewer than two dimensions (biases, norms) get no
            weight decay.
        clip_grad_norm: Largest norm of the gradient of all weights together, which is scaled down
            to it; null: any.
    """

    base_lr: Positive = 1.0
    lr_scaling: Literal["linear", "sqrt", "none"] = "linear"
    warmup_epochs: NonNegative = 1.0
    warmup_steps: AtLeastZero | None = None
    warmup_start_fraction: Fraction = 0.0
    schedule: Literal["cosine", "constant", "wsd"] = "cosine"
    decay_fraction: Fraction = 0.2
    final_lr_fraction: Fraction = 0.001
    weight_decay: NonNegative = 1e-6
    exclude_bias_and_norm: bool = True
    clip_grad_norm: Positive | None = None

    reference: ClassVar[str]
    """Authors and year of its paper."""
    space: ClassVar[Space | None] = None
    """Ranges of the settings that a tuning searches beside those of the method; None: nobody
    has stated them.
    """

    @abstractmethod
    def build(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """Return the optimizer of the tensors to train.

        The trainer sets the learning rate of each step.
        """

    def build_clipping(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """Return the optimizer, which clips the gradients before each of its steps if that is set.

        See `build`.
        """
        import torch  # here, because settings are read without torch, whose import takes seconds

        # Parameters are gone through twice, and may come from a generator.
        trained, limit = list(parameters), self.clip_grad_norm
        optimizer = self.build(trained)

        def clip(*_: object) -> None:
            if limit is not None:
                torch.nn.utils.clip_grad_norm_(trained, limit)

        optimizer.register_step_pre_hook(clip)
        return optimizer

    def groups(self, parameters: Iterable[torch.Tensor]) -> list[dict[str, Any]]:
        """Return torch's parameter groups: tensors with weight decay, and those that are
        excluded from it.
        """
        trained = list(parameters)
        if not self.exclude_bias_and_norm:
            return [{"params": trained, "weight_decay": self.weight_decay}]
        return [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]

    def warmup(self, steps_per_epoch: int) -> float:
        """Return the steps of the warm-up, which may be fractional if its epochs are."""
        if self.warmup_steps is None:
            return self.warmup_epochs * steps_per_epoch
        return self.warmup_steps

    def refuse_long_warmup(self, steps_per_epoch: int, epochs: int) -> None:
        """Refuse a run that ends, or in which the rate begins to decay, before the warm-up has
        ended.
        """
        # A warm-up in epochs does not depend on the steps in an epoch.
        name, warmup, unit = "warmup_epochs", self.warmup_epochs, 1
        if self.warmup_steps is not None:
            name, warmup, unit = "warmup_steps", self.warmup_steps, steps_per_epoch
        limit = f"epochs={epochs}" if unit == 1 else f"the run's {epochs * unit} steps"
        if warmup >= epochs * unit:
            raise RegbenchError(
                f"optimizer.{name}={warmup:g} must be less than {limit}, or the learning rate "
                "never reaches its peak"
            )
        if self.schedule == "wsd" and warmup + self.decay_fraction * epochs * unit > epochs * unit:
            raise RegbenchError(
                f"optimizer.{name}={warmup:g} and optimizer.decay_fraction={self.decay_fraction:g} "
                f"take more than {limit} together; lower one of them"
            )

    def learning_rate(self, batch_size: int, step: int, steps_per_epoch: int, epochs: int) -> float:
        """Return the rate of the step after `step` steps; the batch size is that of all ranks."""
        # The published rates are for 256 images.
        scales = {"linear": batch_size / 256, "sqrt": math.sqrt(batch_size / 256), "none": 1.0}
        peak = self.base_lr * scales[self.lr_scaling]
        warmup, total = self.warmup(steps_per_epoch), epochs * steps_per_epoch
        if step < warmup:
            first = peak * self.warmup_start_fraction
            return first + (peak - first) * step / warmup
        # Where the rate is between the final one (0) and the peak (1).
        left = 1.0
        if self.schedule == "cosine":
            left = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        elif self.schedule == "wsd" and self.decay_fraction:
            left = min(1.0, (total - step) / (self.decay_fraction * total))
        return peak * (left + (1 - left) * self.final_lr_fraction)


OPTIMIZERS: Registry[OptimizerConfig] = Registry("optimizer")
"""All optimizers by their names."""

register = OPTIMIZERS.register
