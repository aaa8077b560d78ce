"""The base class of backbones, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from regbench.errors import RegbenchError
from regbench.plugins import Registry

if TYPE_CHECKING:
    from torch import nn


class Backbone(ABC):
    """A network from images to representations.

    A subclass is a dataclass of its settings, decorated by `regbench.settings.settings` and by the
    `register` of this module.
    """

    reference: ClassVar[str]
    """Source: authors and year."""

    @property
    def architecture(self) -> str:
        """Name for tables."""
        return BACKBONES.name(self)

    @abstractmethod
    def build(self, channels: int, image_size: int) -> tuple[nn.Module, int]:
        """Return the network, with weights drawn from torch's global generator, and the width of
        its representation.

        Views may be smaller or larger than `image_size` px. An image that the network does not take
        is refused.
        """

    def timm_arguments(self, channels: int, image_size: int) -> dict[str, Any] | None:
        """Return the arguments of `timm.create_model` for this network; None if timm lacks it.

        The weights have the same names in both.
        """
        return None


def representation_dim(source: str, module: nn.Module, channels: int, image_size: int) -> int:
    """Return the width of the representation, measured on a black image.

    Refuse a network whose output is not one vector per image. The network `module` stays in its
    mode; messages call it `source`.
    """
    import torch

    training = module.training
    # Evaluation mode, because batch norm in training mode refuses a single image, or counts it in
    # its statistics.
    try:
        with torch.no_grad():
            out = module.eval()(torch.zeros(1, channels, image_size, image_size))
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise RegbenchError(
            f"{source} does not take images of {image_size} px "
            f"({' '.join(str(error).split())[:200]}); choose another dataset.image_size"
        ) from error
    module.train(training)
    if not isinstance(out, torch.Tensor) or out.ndim != 2:
        raise RegbenchError(f"{source} does not give one vector for an image; choose another model")
    return out.shape[1]


BACKBONES: Registry[Backbone] = Registry("backbone")
"""All backbones, by name."""

register = BACKBONES.register
