"""Backbones and the projector.

Shapes: N = images, C = channels, H, W = pixels, D = representation, Q = embedding (q).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50
from torchvision.models.resnet import BasicBlock

from regbench import RegbenchError
from regbench.benchmark.settings.config import NetworkConfig

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
            self.backbone, self.representation_dim = build_backbone(config, channels)
            self.projector = _projector(self.representation_dim, config.hidden_dim or embedding_dim, embedding_dim)

    def forward(self, *views_NCHW: Tensor) -> tuple[Tensor, ...]:
        """Embeddings (n, q) of each view's images (n, c, h, w), not normalised.

        Each view is a pass of its own, so that BN statistics are per view. Only the last layer, which has none, takes
        the views together: its weight, the largest of all, then gets one gradient instead of one for each view.
        """
        hidden_ND = [self.projector[:-1](self.backbone(x_NCHW)) for x_NCHW in views_NCHW]
        embeddings: Tensor = self.projector[-1](torch.cat(hidden_ND))
        views_NQ: tuple[Tensor, ...] = embeddings.split([len(x_NCHW) for x_NCHW in views_NCHW])
        return views_NQ


class PlainSiameseNetwork(SiameseNetwork):
    """The same network of torch's own layers, each view apart: equal but for rounding, and needs more memory."""

    def __init__(self, config: NetworkConfig, embedding_dim: int, channels: int, seed: int) -> None:
        """See `SiameseNetwork`."""
        super().__init__(config, embedding_dim, channels, seed)
        for module in self.modules():
            if isinstance(module, _Linear):
                module.__class__ = nn.Linear  # type: ignore[assignment]
            elif isinstance(module, _MaxPool):
                module.__class__ = nn.MaxPool2d  # type: ignore[assignment]

    def forward(self, *views_NCHW: Tensor) -> tuple[Tensor, ...]:
        """Embeddings (n, q) of each view's images (n, c, h, w), not normalised."""
        return tuple(self.projector(self.backbone(x_NCHW)) for x_NCHW in views_NCHW)


class _Linear(nn.Linear):
    """A linear layer that, under autocast, keeps no copies of its weight's size.

    Autocast keeps the cast weight from forward to backward, and the gradient exists in the low precision and as its
    float32 copy before it reaches `weight.grad`: with 8192 × 32768 weights 1 GB all the time and 1.6 GB when backward
    begins and all activations are alive. Here blocks of the weight are cast where they are used, and blocks of the
    gradient are added to `weight.grad`, if there is one, by this layer itself: autograd is then given none, though its
    hooks run. The numbers are the same, for no sum is split. `torch.autograd.grad` must not be asked for the weight's
    gradient while there is a `weight.grad`.
    """

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        if not torch.is_autocast_enabled(device) or torch.compiler.is_compiling():
            return super().forward(x)
        out: Tensor = _CastLinear.apply(x.to(torch.get_autocast_dtype(device)), self.weight, self.bias)
        return out


_BLOCK_ELEMENTS = 2**23  # 16 MB cast, which a GPU's cache holds until the product has read it


def _blocks(length: int, width: int) -> Iterator[slice]:
    """Slices of so many rows (or columns) of a width each, that no block is large."""
    step = max(1, _BLOCK_ELEMENTS // width)
    for start in range(0, length, step):
        yield slice(start, start + step)


class _CastLinear(torch.autograd.Function):
    """Shapes: N = rows, I = inputs, O = outputs; the suffix of a block is that of the whole."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        out_NO = x_NI.new_empty(len(x_NI), len(weight_OI))
        for rows in _blocks(*weight_OI.shape):
            bias = None if bias_O is None else bias_O[rows].to(x_NI.dtype)
            out_NO[:, rows] = F.linear(x_NI, weight_OI[rows].to(x_NI.dtype), bias)
        return out_NO

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_NO,) = outputs
        x_NI, weight_OI = ctx.saved_tensors
        gradient_NI = gradient_OI = gradient_O = None
        if ctx.needs_input_grad[0]:
            gradient_NI = torch.empty_like(x_NI)
            for columns in _blocks(*weight_OI.T.shape):
                gradient_NI[:, columns] = gradient_NO @ weight_OI[:, columns].to(x_NI.dtype)
        if ctx.needs_input_grad[1]:
            total_OI = weight_OI.grad
            if total_OI is None:
                total_OI = gradient_OI = torch.zeros_like(weight_OI)
            for rows in _blocks(*weight_OI.shape):
                total_OI[rows] += gradient_NO[:, rows].T @ x_NI
        if ctx.needs_input_grad[2]:
            gradient_O = gradient_NO.sum(dim=0)
        return gradient_NI, gradient_OI, gradient_O


class _MaxPool(nn.MaxPool2d):
    """A max-pool that keeps two bytes (four for large maps) an output instead of its input and eight."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)
        out: Tensor = _SmallMaxPool.apply(x, (self.kernel_size, self.stride, self.padding))
        return out


class _SmallMaxPool(torch.autograd.Function):
    """`window` is kernel size, stride and padding."""

    @staticmethod
    def forward(ctx: Any, x_NCHW: Tensor, window: tuple[int, int, int]) -> Tensor:
        out: Tensor
        out, indices = F.max_pool2d(x_NCHW, *window, return_indices=True)
        small = torch.int16 if x_NCHW.shape[2] * x_NCHW.shape[3] <= 2**15 else torch.int32
        ctx.save_for_backward(indices.to(small))
        channels_last = x_NCHW.is_contiguous(memory_format=torch.channels_last)
        ctx.format = torch.channels_last if channels_last else torch.contiguous_format
        ctx.shape, ctx.window = x_NCHW.shape, window
        return out

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = outputs
        (indices,) = ctx.saved_tensors
        # The function looks at the shape of its input, not at the values.
        shape_NCHW = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=ctx.format)
        sides = ([side, side] for side in (*ctx.window, 1))
        into = torch.ops.aten.max_pool2d_with_indices_backward
        return into(gradient, shape_NCHW, *sides, False, indices.long()), None


def build_backbone(config: NetworkConfig, channels: int) -> tuple[nn.Module, int]:
    """A backbone for images of so many channels, and the width of its representation.

    Raises:
        RegbenchError: If the backbone or the stem is unknown.
    """
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
    else:
        # The maximum of rectified values is the rectified maximum: this order keeps a quarter of the size.
        backbone.relu = nn.Identity()
        backbone.maxpool = nn.Sequential(_MaxPool(3, 2, 1), nn.ReLU(inplace=True))
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
        layers += [_Linear(width, hidden_dim), nn.BatchNorm1d(hidden_dim), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, _Linear(hidden_dim, embedding_dim, bias=False))
