"""What every backbone is: settings, and how it is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from regbench.plugins import Registry

if TYPE_CHECKING:
    from torch import nn


class Backbone(ABC):
    """A network from images to representations.

    A subclass is a dataclass of its settings, decorated by `regbench.settings.settings` and by the `register` of this
    module.
    """

    reference: ClassVar[str]
    """Where it is from: authors and year."""

    @abstractmethod
    def build(self, channels: int) -> tuple[nn.Module, int]:
        """Return the network, with weights drawn from torch's global generator, and the width of its representation.

        Args:
            channels: Of the images.

        Raises:
            RegbenchError: If it does not take such images.
        """


BACKBONES: Registry[Backbone] = Registry("backbone", "regbench.backbones", "regbench.benchmark.backbones")
"""The backbones there are."""

register = BACKBONES.register
