"""The network's settings: backbone, projector, predictor and teacher."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from regbench.benchmark.backbones.base import BACKBONES, Backbone
from regbench.errors import RegbenchError
from regbench.methods import Regularizer
from regbench.settings import AtLeastOne, AtLeastZero, Fraction, settings

# BYOL's momentum for 1,000 epochs; for 300 it is 0.99.
_MOMENTUM = 0.996


@settings
class ProjectorConfig:
    """The MLP from representations to embeddings; the defaults are the SFRIK paper's.

    Attributes:
        depth: Linear layers; 0: no projector, the loss acts on the representation, whose width is
            the embedding dimension.
        hidden_dim: Width of the hidden layers; null: the embedding dimension.
        norm: Normalization after each hidden layer: "batch" (BN), "layer" (LayerNorm) or "none".
        activation: Activation after the normalization: "relu" or "gelu".
        bias: Whether the last layer has a bias.
        last_norm: Normalization after the last layer: "none", "batch", "layer" or "plain_batch" (BN
            without scale and shift).
    """

    depth: AtLeastZero = 3
    hidden_dim: AtLeastOne | None = None
    norm: Literal["batch", "layer", "none"] = "batch"
    activation: Literal["relu", "gelu"] = "relu"
    bias: bool = False
    last_norm: Literal["none", "batch", "plain_batch", "layer"] = "none"


@settings
class PredictorConfig:
    """The MLP from the embedding of one view to that of another: BN and ReLU after each hidden
    layer, a last one plain.

    Attributes:
        depth: Linear layers; 0: no predictor. BYOL, SimSiam and MoCo v3 have two.
        hidden_dim: Width of the hidden layers; null: the embedding dimension.
    """

    depth: AtLeastZero = 0
    hidden_dim: AtLeastOne | None = None


@settings
class NetworkConfig:
    """Backbone and projector, and what else may keep them from collapsing.

    Attributes:
        backbone: Network from images to representations.
        init: Weights that the backbone begins with: a file, as `regbench export`, timm,
            torchvision, DINO, VICReg and SFRIK write it; "timm": those that timm has of this
            backbone; timm:NAME or torchvision:NAME@WEIGHTS; null: random ones.
        init_sha256: SHA-256 of these weights, which is filled in; null: not known yet.
        projector: Network from representations to embeddings.
        predictor: Network from the embedding of a view to its prediction of another view's; none by
            default.
        teacher: Source of the embeddings that a view is compared with: "none": the network, through
            which the gradient flows; "stop_gradient": the network, without a gradient; "ema": a
            copy, whose weights are a moving mean of the network's. Evaluations are of the network
            itself.
        momentum: Share of its own weights that an EMA teacher keeps in the first step; it rises to
            1 along a cosine.
        statistics: Images that BN's statistics are taken over: those of each "view", or of all
            views of one "size".
        checkpointing: Whether a transformer keeps the inputs of its blocks only, and the backward
            pass computes each block again (Chen et al., 2016): less memory, about a third more
            work, equal results.
    """

    backbone: Annotated[Backbone, BACKBONES.setting("network.backbone.")]
    init: str | None = None
    init_sha256: str | None = None
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    predictor: PredictorConfig = field(default_factory=PredictorConfig)
    teacher: Literal["none", "stop_gradient", "ema"] = "none"
    momentum: Fraction = _MOMENTUM
    statistics: Literal["view", "size"] = "view"
    checkpointing: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that are without effect.

        Raises:
            RegbenchError: Naming the setting that would give them one.
        """
        if self.predictor.hidden_dim is not None and not self.predictor.depth:
            raise RegbenchError(
                f"network.predictor.hidden_dim={self.predictor.hidden_dim} is without effect: "
                "there is no predictor; set network.predictor.depth=2 too"
            )
        if self.init_sha256 is not None and self.init is None:
            raise RegbenchError(
                "network.init_sha256 is without effect: it is that of network.init; give both"
            )
        if self.momentum != _MOMENTUM and self.teacher != "ema":
            raise RegbenchError(
                f"network.momentum={self.momentum} is without effect with "
                f"network.teacher={self.teacher}; set network.teacher=ema too"
            )

    def refuse_other_weights(self, sha256: str) -> None:
        """Refuse weights that have another SHA-256 than those that the network is to begin with."""
        if sha256 != self.init_sha256:
            what = f"network.init={self.init} are not the weights of this cell: their SHA-256 is"
            raise RegbenchError(f"{what} {sha256}, not {self.init_sha256}")

    @property
    def is_asymmetric(self) -> bool:
        """Whether a prediction is compared with a target, instead of views with each other."""
        return self.predictor.depth > 0 or self.teacher != "none"

    @property
    def unused(self) -> list[str]:
        """Names of settings that decide nothing here, which cells leave out."""
        used = {"predictor": self.predictor.depth > 0, "teacher": self.teacher != "none"}
        used["momentum"] = self.teacher == "ema"
        used["checkpointing"] = self.checkpointing
        used["init"] = used["init_sha256"] = self.init is not None
        return [name for name, is_used in used.items() if not is_used]

    @property
    def architecture(self) -> str:
        """The backbone's name, for tables."""
        return self.backbone.architecture


# A need of a method: the setting that meets it.
_MET_BY = {"predictor": "network.predictor.depth=2"}
_MET_BY |= {name: f"network.teacher={name}" for name in ("stop_gradient", "ema")}


def needed_settings(method: Regularizer) -> list[str]:
    """List the settings of the network, as overrides, that a method cannot do without."""
    return [_MET_BY[need] for need in method.needs]


def refuse_unmet_needs(network: NetworkConfig, method: Regularizer) -> None:
    """Refuse a network that lacks what a method needs, or has what it cannot use.

    Raises:
        RegbenchError: Naming the settings that mend it.
    """
    has = {
        "predictor": network.predictor.depth > 0,
        # An EMA teacher gets no gradient either.
        "stop_gradient": network.teacher != "none",
        "ema": network.teacher == "ema",
    }
    unmet = [_MET_BY[need] for need in method.needs if not has[need]]
    if unmet:
        raise RegbenchError(
            f"{method.label} collapses without {' and '.join(method.needs)}; set {' '.join(unmet)}"
        )
    if network.teacher == "none":
        given = {name: getattr(method, name) for name in method.of_training}
        idle = [f"method.{name}={value}" for name, value in given.items() if value]
        if method.target_transform(2) is not None:  # of the least dimension, which takes least
            idle.append(f"the target_transform of {method.label}, whose needs name no teacher,")
        if idle:
            what = f"{idle[0]} is without effect with network.teacher=none"
            raise RegbenchError(f"{what}; set network.teacher=ema too")
    if method.prototypes and has["predictor"]:
        what = f"{method.label} compares scores of prototypes, not predictions"
        raise RegbenchError(f"{what}; set network.predictor.depth=0")
