"""A multilayer perceptron, for vectors."""

from __future__ import annotations

from torch import nn

from regbench.benchmark.backbones.base import Backbone, register
from regbench.benchmark.training.layers import SmallLinear
from regbench.settings import AtLeastOne, AtLeastTwo, settings


@register("mlp")
@settings
class MLP(Backbone):
    """A multilayer perceptron; images are flattened.

    Attributes:
        width: Width of each layer, the representation among them.
        depth: Linear layers, each followed by batch norm and ReLU, but for the last one.
    """

    width: AtLeastTwo = 256
    depth: AtLeastOne = 3

    reference = "Rumelhart, Hinton and Williams, Nature 1986; Ioffe and Szegedy, ICML 2015"

    def build(self, channels: int, image_size: int) -> tuple[nn.Module, int]:
        """Return the network and the width of its representation."""
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = channels * image_size**2
        for _ in range(self.depth - 1):
            layers += [SmallLinear(inputs, self.width), nn.BatchNorm1d(self.width), nn.ReLU()]
            inputs = self.width
        return nn.Sequential(*layers, SmallLinear(inputs, self.width)), self.width
