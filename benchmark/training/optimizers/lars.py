"""LARS, as the SFRIK paper states it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from regbench.benchmark.training.optimizers.base import OptimizerConfig, register
from regbench.settings import Momentum, Positive, settings
from regbench.spaces import Range, Space


@register("lars")
@settings
class LARSConfig(OptimizerConfig):
    """LARS; the defaults are the SFRIK paper's, but for the shorter warm-up.

    Weight decay is added to the gradient before the trust ratio; what `exclude_bias_and_norm`
    leaves out gets neither. (The paper warms up for 10 epochs of 100.)

    Attributes:
        momentum: The momentum of the update.
        trust_coefficient: η.
        clip_lr: Whether no tensor's rate exceeds the learning rate of the step (LARC, as in
            solo-learn): the trust ratio is min(η‖p‖/‖g‖ / lr, 1).
    """

    momentum: Momentum = 0.9
    trust_coefficient: Positive = 0.001
    clip_lr: bool = False

    reference = "You et al., 2017, as in VICReg and SFRIK"
    space: ClassVar[Space] = {"base_lr": Range(0.2, 20)}

    def build(self, parameters: Iterable[Tensor]) -> LARS:
        """Return LARS for the parameters."""
        return LARS(parameters, lr=0.0, **vars(self))


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You et al., 2017), in the form of VICReg's and SFRIK's
    training.

    For a tensor p of two or more dimensions with gradient g: g ← g + wd·p, then g ← g · η‖p‖/‖g‖
    (left as it is where a norm is 0). Tensors of fewer dimensions (biases, BN) get neither, unless
    they are asked for. Then m ← momentum·m + g and p ← p − lr·m. With `clip_lr` the factor is
    min(η‖p‖/‖g‖ / lr, 1): the rate of a tensor is η‖p‖/‖g‖, at most lr. (solo-learn, which has it,
    divides by ‖g‖ + wd·‖p‖ + 10⁻⁸ with the gradient before the decay.)
    """

    def __init__(self, parameters: Iterable[Tensor], *, lr: float, **settings: Any) -> None:
        """Set up the optimizer; `settings` are those of `LARSConfig`."""
        config = LARSConfig(**settings)
        names = ("weight_decay", "momentum", "trust_coefficient", "clip_lr")
        defaults = {name: getattr(config, name) for name in (*names, "exclude_bias_and_norm")}
        super().__init__(parameters, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all tensors that have a gradient; the gradients are used up."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            adapted = [p for p in parameters if p.ndim > 1 or not group["exclude_bias_and_norm"]]
            if adapted:  # torch's foreach functions refuse empty lists
                # The gradients are overwritten, so that a step allocates nothing of the size of the
                # model.
                gradients = [p.grad for p in adapted]
                torch._foreach_add_(gradients, adapted, alpha=group["weight_decay"])
                # The norms as one vector: a GPU takes as long to start the work on a number as on
                # all of them.
                norms = torch.stack(torch._foreach_norm([*adapted, *gradients]))
                weights_P, updates_P = norms.chunk(2)
                # A GPU gets a product for each tensor: torch has a common kernel for lists of equal
                # shapes only.
                torch._foreach_mul_(gradients, _trust(weights_P, updates_P, group).unbind())
            momenta = []
            for p in parameters:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                momenta.append(self.state[p]["momentum"])
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_add_(momenta, [p.grad for p in parameters])
            torch._foreach_add_(parameters, momenta, alpha=-group["lr"])


def _trust(weights_P: Tensor, updates_P: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the factors of the gradients of P tensors, given the norms of the tensors and of
    their gradients.
    """
    ratios_P = group["trust_coefficient"] * weights_P / updates_P
    if group["clip_lr"]:
        ratios_P = (ratios_P / group["lr"]).clamp(max=1)
    # A weight of 0 would get a factor of 0 and never leave it; a gradient of 0 would be divided by.
    return torch.where((weights_P > 0) & (updates_P > 0), ratios_P, 1.0)
