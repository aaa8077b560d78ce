"""The network: a backbone, the projector and, if there is one, the predictor.

Shapes: N = images, C = channels, H, W = pixels, D = representation, Q = embedding (q).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regbench.benchmark.settings.architecture import NetworkConfig, ProjectorConfig
from regbench.benchmark.training.layers import SmallLinear
from regbench.errors import RegbenchError
from regbench.methods.base import PrototypeWeights


class SiameseNetwork(nn.Module):
    """Backbone, projector and predictor; `forward` maps the views' images (n, c, h, w) to their
    embeddings (n, q).

    Views may differ in size.

    Attributes:
        backbone: Network from images (n, c, h, w) to representations (n, representation_dim).
        projector: Network from representations to embeddings.
        predictor: Network from embeddings to predictions of another view's; None: there is none.
        representation_dim: Width of the backbone's output.
    """

    def __init__(
        self,
        config: NetworkConfig,
        embedding_dim: int,
        channels: int,
        image_size: int,
        seed: int,
        *,
        prototypes: int = 0,
        prototype_weights: PrototypeWeights = "uniform",
    ) -> None:
        """Build the parts for images of a side of `image_size` px, with weights that depend on the
        seed alone.

        With `prototypes`, the embeddings are scores of that many trained vectors: see `Prototypes`.

        Raises:
            RegbenchError: If the backbone does not take such images, or the embedding dimension
                does not fit.
        """
        super().__init__()
        self.statistics = config.statistics
        # torch's global generator is left as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.backbone, self.representation_dim = config.backbone.build(channels, image_size)
            if config.checkpointing:
                _compute_blocks_again(self.backbone, config.architecture)
            self.projector = _projector(config.projector, self.representation_dim, embedding_dim)
            if prototypes:
                self.projector.append(Prototypes(embedding_dim, prototypes, prototype_weights))
            self.predictor: nn.Sequential | None = None
            if config.predictor.depth:
                depth, hidden_dim = config.predictor.depth, config.predictor.hidden_dim
                layers = ProjectorConfig(depth=depth, hidden_dim=hidden_dim)
                self.predictor = _projector(layers, embedding_dim, embedding_dim)

    def forward(self, *views_NCHW: Tensor) -> tuple[Tensor, ...]:
        """Return the embeddings (n, q) of each view's images (n, c, h, w), not normalised, and then
        the predictions of each view, if there is a predictor.

        Each view is a pass of its own, so that BN statistics are per view; with `statistics=size`
        views of one size pass together through backbone and projector.
        """
        passes: list[list[Tensor]] = []
        for x_NCHW in views_NCHW:
            if self.statistics == "size" and passes and passes[-1][-1].shape == x_NCHW.shape:
                passes[-1].append(x_NCHW)
            else:
                passes.append([x_NCHW])
        hidden_ND = []
        for xs_NCHW in passes:
            images_NCHW = torch.cat(xs_NCHW) if len(xs_NCHW) > 1 else xs_NCHW[0]
            hidden_ND.append(self.projector[:-1](self.backbone(images_NCHW)))
        # The last layer has no statistics, so it takes all views at once: its weight, the largest
        # of all, then gets one gradient instead of one for each view.
        embeddings: Tensor = self.projector[-1](torch.cat(hidden_ND))
        return self._with_predictions(embeddings.split([len(x_NCHW) for x_NCHW in views_NCHW]))

    def _with_predictions(self, views_NQ: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return views_NQ if self.predictor is None else (*views_NQ, *map(self.predictor, views_NQ))


class Prototypes(nn.Module):
    """Cosines of embeddings (n, q) with vectors, shape (n, prototypes): the last layer of DINO and
    SwAV.

    Vectors that are rescaled to length 1 after each step are not normalised here, so that the
    gradient has a part along them, as in SwAV's code.
    """

    def __init__(self, embedding_dim: int, count: int, weights: PrototypeWeights) -> None:
        """Draw the vectors."""
        super().__init__()
        self._unit = weights == "unit"
        weight_KQ, bound = torch.empty(count, embedding_dim), embedding_dim**-0.5
        if weights == "normal":
            weight_KQ.normal_()
        else:
            weight_KQ.uniform_(-bound, bound)
        self.weight = nn.Parameter(weight_KQ)
        self.rescale()

    @torch.no_grad()
    def rescale(self) -> None:
        """Give the vectors length 1 if they are to have it."""
        if self._unit:
            self.weight.copy_(F.normalize(self.weight, dim=1))

    def forward(self, z_NQ: Tensor) -> Tensor:
        """Return the scores."""
        weight_KQ = self.weight if self._unit else F.normalize(self.weight, dim=1)
        return F.linear(F.normalize(z_NQ, dim=1), weight_KQ)


def rescale_prototypes(network: nn.Module) -> None:
    """Give the prototypes of a network length 1, where they are to have it."""
    for module in network.modules():
        if isinstance(module, Prototypes):
            module.rescale()


def _compute_blocks_again(backbone: nn.Module, name: str) -> None:
    """Let the backward pass recompute the activations within each block of a backbone of timm.

    Raises:
        RegbenchError: If the backbone cannot, or has BN, whose running statistics the second pass
            would change again.
    """
    kinds = map(type, backbone.modules())
    has_statistics = any(issubclass(kind, nn.modules.batchnorm._BatchNorm) for kind in kinds)
    if has_statistics or not hasattr(backbone, "set_grad_checkpointing"):
        raise RegbenchError(
            f"network.checkpointing=true: {name} is no model of timm without batch norm; set it to "
            "false, or choose a transformer, such as network=vit_tiny"
        )
    backbone.set_grad_checkpointing(True)  # type: ignore[operator]


def _projector(
    config: ProjectorConfig, representation_dim: int, embedding_dim: int
) -> nn.Sequential:
    """Return an MLP whose last layer can take all views at once, because it has no statistics.

    Raises:
        RegbenchError: If there is no projector and the embedding dimension is not the
            representation's.
    """
    if not config.depth:
        if embedding_dim != representation_dim:
            raise RegbenchError(
                f"embedding_dim={embedding_dim} must be the representation's {representation_dim} "
                "with network.projector.depth=0; set it, or add a layer"
            )
        return nn.Sequential(nn.Identity())
    layers: list[nn.Module] = []
    width, hidden_dim = representation_dim, config.hidden_dim or embedding_dim
    for _ in range(config.depth - 1):
        activation = nn.ReLU(inplace=True) if config.activation == "relu" else nn.GELU()
        layers += [SmallLinear(width, hidden_dim), *_norm(config.norm, hidden_dim), activation]
        width = hidden_dim
    layers.append(SmallLinear(width, embedding_dim, bias=config.bias))
    if config.last_norm != "none":
        # The norm must take each view by itself, so an identity is the layer that takes all views.
        layers += [*_norm(config.last_norm, embedding_dim), nn.Identity()]
    return nn.Sequential(*layers)


def _norm(name: str, width: int) -> list[nn.Module]:
    if name == "none":
        return []
    if name == "layer":
        return [nn.LayerNorm(width)]
    return [nn.BatchNorm1d(width, affine=name == "batch")]
