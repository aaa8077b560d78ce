"""The network: a backbone and the projector.

Shapes: N = images, C = channels, H, W = pixels, D = representation, Q = embedding (q).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regbench.benchmark.settings.cell import NetworkConfig
from regbench.benchmark.training.layers import SmallLinear, SmallMaxPool


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
            config: Which backbone and hidden width.
            embedding_dim: q.
            channels: Of the images.
            seed: Of the initial weights; torch's global generator is left as it was.

        Raises:
            RegbenchError: If the backbone does not take such images.
        """
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.backbone, self.representation_dim = config.backbone.build(channels)
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
            if isinstance(module, SmallLinear):
                module.__class__ = nn.Linear  # type: ignore[assignment]
            elif isinstance(module, SmallMaxPool):
                module.__class__ = nn.MaxPool2d  # type: ignore[assignment]

    def forward(self, *views_NCHW: Tensor) -> tuple[Tensor, ...]:
        """Embeddings (n, q) of each view's images (n, c, h, w), not normalised."""
        return tuple(self.projector(self.backbone(x_NCHW)) for x_NCHW in views_NCHW)


def _projector(representation_dim: int, hidden_dim: int, embedding_dim: int) -> nn.Sequential:
    """The paper's three-layer MLP: hidden layers with bias, BN and ReLU, a last layer without bias."""
    layers: list[nn.Module] = []
    for width in (representation_dim, hidden_dim):
        layers += [SmallLinear(width, hidden_dim), nn.BatchNorm1d(hidden_dim), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, SmallLinear(hidden_dim, embedding_dim, bias=False))
