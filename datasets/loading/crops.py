"""The parts that both loaders share: the crops to make, and the stream of batches that they
give.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from regbench.datasets.config import ViewsConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.draws import Ints as Ints
from regbench.datasets.loading.draws import Keys
from regbench.datasets.loading.photometric import Chain

# Called with the indices of N images, gives what to cut out of them: (N, views, 9). A box is top,
# left, height and width in the image (px), whether that is flipped (0 or 1), the height and width
# that it is resized to, and the first row and column of the square that is kept of the result.
Boxes = Callable[[Ints], Ints]
# Called with the indices of N images, gives what to do with their views: (N, views), see
# `photometric.CHAIN`.
Chains = Callable[[Ints], Chain]
# One epoch: the indices of each batch, and all its views as a flat tensor, see `CropShape.split`.
# Crops are uint8, finished views float32; the receiver may keep both. Closing the generator stops
# the work behind it.
CropStream = Generator[tuple[Ints, Tensor]]


@dataclass(frozen=True, kw_only=True)
class CropShape:
    """The shape of what a loader delivers, and the filter.

    Attributes:
        sizes: The side of each view of an image, px.
        channels: 1 (the first) or 3.
        interpolation: See `config.Interpolation`.
    """

    sizes: tuple[int, ...]
    channels: int
    interpolation: str

    @property
    def numbers_per_image(self) -> int:
        """Number of values in all views of one image."""
        return sum(size * size * self.channels for size in self.sizes)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Split what a loader delivers into views, one after the other: (N, size, size,
        channels) each.
        """
        count = len(flat) // self.numbers_per_image
        lengths = [count * size * size * self.channels for size in self.sizes]
        parts = zip(flat.split(lengths), self.sizes, strict=True)
        return [part.view(count, size, size, self.channels) for part, size in parts]


def boxes_of(kind: ViewsConfig, number: int, key: Keys, heights: Ints, widths: Ints) -> Ints:
    """Draw what to cut out of N images, of these sides in px, for one view: boxes (N, 9), see
    `Boxes`.

    `number` is the view's number among the `count` of its kind. Patches of an image have the same
    `key`, which comes from `draws.keys`.
    """
    resized = kind.resize or kind.side
    if kind.cut == "center":
        boxes = center_boxes(heights, widths, resized, kind.side)
        boxes[:, 4] = draws.flips(key, kind.flip_p)
        return boxes
    random = draws.crop_boxes(key, heights, widths, kind.crop_scale, kind.crop_ratio, kind.flip_p)
    first = np.zeros((len(key), 2), int)
    if kind.cut == "patches":
        first = draws.patches(key, number, resized, kind.side)
    return np.concatenate([random, np.full((len(key), 2), resized), first], axis=1)


def center_boxes(heights: Ints, widths: Ints, resize: int, size: int) -> Ints:
    """Make boxes (N, 9): the shorter side is resized to `resize` px, the central `size` x
    `size` px are kept.
    """
    # As in torchvision's `Resize` and `CenterCrop`, the longer side is cut down to whole pixels,
    # and margins are rounded.
    shorter = np.minimum(heights, widths)
    boxes = np.zeros((len(heights), 9), np.int64)
    for side, lengths in enumerate((heights, widths)):
        boxes[:, 2 + side] = lengths
        boxes[:, 5 + side] = resize * lengths // shorter
        # rint rounds halves to even, as Python's round does, which torchvision uses.
        boxes[:, 7 + side] = np.rint((boxes[:, 5 + side] - size) / 2)
    return boxes
