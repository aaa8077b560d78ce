"""LARS and its schedule, as the paper states them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from regbench.benchmark.config import OptimizerConfig


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You et al., 2017), in the form of VICReg's and SFRIK's training.

    For a tensor p of two or more dimensions with gradient g: g ← g + wd·p, then g ← g · η‖p‖/‖g‖ (left as it is
    where a norm is 0). Tensors of one dimension (biases, BN) get neither. Then m ← momentum·m + g and p ← p − lr·m.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        trust_coefficient: float,
    ) -> None:
        """Sets up the optimizer.

        Args:
            parameters: Tensors to train.
            lr: Learning rate; the trainer sets it at each step.
            weight_decay: wd.
            momentum: Of the scaled gradients.
            trust_coefficient: η.
        """
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "trust_coefficient": trust_coefficient,
        }
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all tensors that have a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            updates = [p.grad for p in parameters]
            matrices = [i for i, p in enumerate(parameters) if p.ndim > 1]
            if matrices:  # torch's foreach functions refuse empty lists
                weights = [parameters[i] for i in matrices]
                decayed = torch._foreach_add([updates[i] for i in matrices], weights, alpha=group["weight_decay"])
                scales = [
                    torch.where((weight > 0) & (update > 0), group["trust_coefficient"] * weight / update, 1.0)
                    for weight, update in zip(torch._foreach_norm(weights), torch._foreach_norm(decayed), strict=True)
                ]
                torch._foreach_mul_(decayed, scales)
                for i, update in zip(matrices, decayed, strict=True):
                    updates[i] = update
            for p in parameters:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in parameters]
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_add_(momenta, updates)
            torch._foreach_add_(parameters, momenta, alpha=-group["lr"])


def learning_rate(config: OptimizerConfig, batch_size: int, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The rate of one step: linear warm-up from 0 to base_lr · batch_size / 256, then cosine decay.

    Args:
        config: base_lr, warmup_epochs and final_lr_fraction.
        batch_size: Global images a step.
        step: Steps done before this one.
        steps_per_epoch: Steps in an epoch.
        epochs: Of the whole run.
    """
    peak = config.base_lr * batch_size / 256
    warmup, total = config.warmup_epochs * steps_per_epoch, epochs * steps_per_epoch
    if step < warmup:
        return peak * step / warmup
    cosine = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
    return peak * (cosine + (1 - cosine) * config.final_lr_fraction)
