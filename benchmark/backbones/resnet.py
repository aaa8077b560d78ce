"""ResNets: torchvision's, and a tiny one for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from regbench.benchmark.backbones.base import Backbone, register
from regbench.benchmark.training.layers import SmallMaxPool
from regbench.settings import AtLeastOne, settings

if TYPE_CHECKING:
    from torchvision.models import ResNet as TorchvisionResNet


@settings
class ResNet(Backbone):
    """One of torchvision's ResNets.

    Attributes:
        stem: "imagenet" (7×7 stride 2, max-pool) or "small" (3×3 stride 1, none), for images of 28
            to 64 px.
        stem_padding: Padding of the small stem, px; solo-learn and its descendants have 2, which
            enlarges maps by 2 px.
        zero_init_residual: Whether residual blocks begin as the identity; torchvision's do not.
    """

    stem: Literal["imagenet", "small"] = "imagenet"
    stem_padding: AtLeastOne = 1
    zero_init_residual: bool = True

    reference = "He et al., CVPR 2016"

    def build(self, channels: int, image_size: int) -> tuple[nn.Module, int]:
        """Return the network and the width of its representation: 512 of a ResNet-18, 2048 of a
        ResNet-50.
        """
        from torchvision import models  # takes longer than reading a sweep

        make = getattr(models, self.architecture)  # registered under torchvision's names
        network: TorchvisionResNet = make(weights=None, zero_init_residual=self.zero_init_residual)
        dim = network.fc.in_features
        network.fc = nn.Identity()
        if self.stem == "small":
            network.conv1 = _convolution(channels, 64, stride=1, padding=self.stem_padding)
            network.maxpool = nn.Identity()
        else:
            if channels != 3:
                network.conv1 = _convolution(channels, 64, stride=2, padding=3, kernel=7)
            # ReLU and max-pooling commute; pooling first leaves a quarter of the values to rectify.
            network.relu = nn.Identity()
            network.maxpool = nn.Sequential(SmallMaxPool(3, 2, 1), nn.ReLU(inplace=True))
        return network, dim

    def timm_arguments(self, channels: int, image_size: int) -> dict[str, Any] | None:
        """Return the arguments for the same ResNet, which timm has with the large stem only."""
        if self.stem == "small":
            return None
        return {"model_name": self.architecture, "in_chans": channels, "num_classes": 0}


@register("resnet18")
@settings
class ResNet18(ResNet):
    """torchvision's ResNet-18."""


@register("resnet50")
@settings
class ResNet50(ResNet):
    """torchvision's ResNet-50."""


@register("resnet_tiny")
@settings
class ResNetTiny(Backbone):
    """Three basic blocks after a stride-2 stem, of width 32, 64 and 128: 4×4 maps at 28 px.

    It trains on a CPU.
    """

    reference = "ours, of the blocks of He et al., CVPR 2016"

    def build(self, channels: int, image_size: int) -> tuple[nn.Module, int]:
        """Return the network and the width of its representation, 128."""
        network, width = _three_blocks(channels, _strided_shortcut)
        # Blocks begin as the identity, as with torchvision's zero_init_residual.
        for name, parameter in network.named_parameters():
            if name.endswith("bn2.weight"):
                nn.init.zeros_(parameter)
        return network, width


@register("resnet_mini")
@settings
class ResNetMini(Backbone):
    """A `resnet_tiny` in which every pixel counts and every layer works from the start.

    It trains on a CPU.

    Shortcuts take the mean of 2×2 places, where a strided convolution drops three of four (He et
    al., CVPR 2019, ResNet-D). Residual branches have torch's ordinary initial weights, so that the
    network as it is initialised is an honest baseline: with branches of zero it is two
    convolutions.
    """

    reference = (
        "ours, of the blocks of He et al., CVPR 2016, with the shortcuts of ResNet-D, CVPR 2019"
    )

    def build(self, channels: int, image_size: int) -> tuple[nn.Module, int]:
        """Return the network and the width of its representation, 128."""
        return _three_blocks(channels, _averaged_shortcut)


def _three_blocks(
    channels: int, shortcut: Callable[[int, int], nn.Module]
) -> tuple[nn.Sequential, int]:
    """Return a stem and three basic blocks, and the width of the last."""
    from torchvision.models.resnet import BasicBlock

    blocks, width = [], 32
    for out, stride in ((32, 1), (64, 2), (128, 2)):
        blocks.append(BasicBlock(width, out, stride, shortcut(width, out) if stride > 1 else None))
        width = out
    stem = [_convolution(channels, 32, stride=2), nn.BatchNorm2d(32), nn.ReLU(inplace=True)]
    network = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network, width


def _strided_shortcut(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(width, out, 1, 2, bias=False), nn.BatchNorm2d(out))


def _averaged_shortcut(width: int, out: int) -> nn.Module:
    convolution = nn.Conv2d(width, out, 1, bias=False)
    return nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), convolution, nn.BatchNorm2d(out))


def _convolution(
    channels: int, width: int, stride: int, padding: int = 1, kernel: int = 3
) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, width, kernel, stride, padding, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
