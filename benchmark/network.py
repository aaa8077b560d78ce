"""Backbones and the projector.

Shapes: N = images, C = channels, H, W = pixels, D = representation, Q = embedding (q).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50
from torchvision.models.resnet import BasicBlock

from regbench import RegbenchError
from regbench.benchmark.config import NetworkConfig

BACKBONES = ("resnet18", "resnet50", "resnet_tiny")


class SiameseNetwork(nn.Module):
    """Backbone and projector; `forward` maps the views' images (n, c, h, w) to their embeddings (n, q).

    Attributes:
        backbone: Images (n, c, h, w) to representations (n, representation_dim).
        projector: Representations to embeddings.
        representation_dim: Width of the backbone's output.
    """

    def __init__(self, config: NetworkConfig, embedding_dim: int, channels: int, seed: int) -> None:
        """Builds both parts with weights that depend on `seed` alone.

        Args:
            config: Which backbone, stem and hidden width.
            embedding_dim: q.
            channels: Of the images.
            seed: Of the initial weights; torch's global generator is left as it was.

        Raises:
            RegbenchError: If the backbone or the stem is unknown.
        """
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.backbone, self.representation_dim = _backbone(config, channels)
            self.projector = _projector(self.representation_dim, config.hidden_dim or embedding_dim, embedding_dim)

    def forward(self, *views_NCHW: Tensor) -> tuple[Tensor, ...]:
        """Embeddings (n, q) of each view's images (n, c, h, w), not normalised.

        Each view is a pass of its own, so that BN statistics are per view. Only the last layer, which has none, takes
        the views together: its weight, the largest of all, then gets one gradient instead of one for each view.
        """
        hidden_ND = [self.projector[:-1](self.backbone(x_NCHW)) for x_NCHW in views_NCHW]
        embeddings: Tensor = self.projector[-1](torch.cat(hidden_ND))
        return embeddings.split([len(x_NCHW) for x_NCHW in views_NCHW])


def _backbone(config: NetworkConfig, channels: int) -> tuple[nn.Module, int]:
    if config.backbone == "resnet_tiny":
        return _resnet_tiny(channels), 128
    if config.backbone not in BACKBONES:
        raise RegbenchError(f"unknown network.backbone {config.backbone!r}; known: {', '.join(BACKBONES)}")
    build = {"resnet18": resnet18, "resnet50": resnet50}[config.backbone]
    backbone = build(weights=None, zero_init_residual=True)
    dim = backbone.fc.in_features
    backbone.fc = nn.Identity()
    if config.stem == "small":
        backbone.conv1 = _convolution(channels, 64, stride=1)
        backbone.maxpool = nn.Identity()
    elif config.stem != "imagenet":
        raise RegbenchError(f"unknown network.stem {config.stem!r}; known: imagenet, small")
    elif channels != 3:
        raise RegbenchError(f"network.stem=imagenet needs 3 channels and the data set has {channels}; use small")
    return backbone, dim


def _resnet_tiny(channels: int) -> nn.Module:
    """Three basic blocks after a stride-2 stem: 4×4 maps at 28 px; 128-dimensional representation."""
    blocks, width = [], 32
    for out, stride in ((32, 1), (64, 2), (128, 2)):
        shortcut = None
        if stride > 1:
            shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        block = BasicBlock(width, out, stride, shortcut)
        nn.init.zeros_(block.bn2.weight)  # torchvision's zero_init_residual
        blocks.append(block)
        width = out
    stem = [_convolution(channels, 32, stride=2), nn.BatchNorm2d(32), nn.ReLU(inplace=True)]
    network = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def _convolution(channels: int, width: int, stride: int) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


def _projector(representation_dim: int, hidden_dim: int, embedding_dim: int) -> nn.Sequential:
    """The paper's three-layer MLP: hidden layers with bias, BN and ReLU, a last layer without bias."""
    layers: list[nn.Module] = []
    for width in (representation_dim, hidden_dim):
        layers += [nn.Linear(width, hidden_dim), nn.BatchNorm1d(hidden_dim), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(hidden_dim, embedding_dim, bias=False))
