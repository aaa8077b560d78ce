"""The network of a run as published code has it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regbench.benchmark.training.layers import SmallLinear, SmallMaxPool
from regbench.benchmark.training.network import SiameseNetwork


class PlainSiameseNetwork(SiameseNetwork):
    """The same network made of torch's own layers, each view apart: equal but for rounding,
    with more memory.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """See `SiameseNetwork`."""
        super().__init__(*args, **options)
        for module in self.modules():
            if isinstance(module, SmallLinear):
                module.__class__ = nn.Linear  # type: ignore[assignment]
            elif isinstance(module, SmallMaxPool):
                module.__class__ = nn.MaxPool2d  # type: ignore[assignment]

    def forward(self, *views_NCHW: Tensor) -> tuple[Tensor, ...]:
        """See `SiameseNetwork.forward`."""
        views_NQ = tuple(self.projector(self.backbone(x_NCHW)) for x_NCHW in views_NCHW)
        return self._with_predictions(views_NQ)
