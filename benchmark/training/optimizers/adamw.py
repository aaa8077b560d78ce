"""AdamW."""

from __future__ import annotations

import torch

from regbench.benchmark.training.optimizers.adam import AdamConfig
from regbench.benchmark.training.optimizers.base import register
from regbench.settings import NonNegative, Positive, settings


@register("adamw")
@settings
class AdamWConfig(AdamConfig):
    """torch's AdamW; the default learning rate is DINO's (Caron et al., ICCV 2021).

    Weight decay shrinks tensors by lr · weight_decay in each step.
    """

    base_lr: Positive = 5e-4
    weight_decay: NonNegative = 0.05

    reference = "Loshchilov and Hutter, ICLR 2019"
    kind = torch.optim.AdamW
