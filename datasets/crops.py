"""What both loaders have in common: which crops to make, and the stream of batches that they give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]
# Called with the indices of N images, gives what to cut out of them: (N, views, 9), each a box as in `BOX`.
Boxes = Callable[[Ints], Ints]
# A box of the image (px), whether it is flipped after that (0 or 1), the size it is resized to, and the first row and
# column of the square that is kept of the result.
BOX = ("top", "left", "height", "width", "flip", "to_height", "to_width", "first_row", "first_column")


@dataclass(frozen=True, kw_only=True)
class CropShape:
    """The shape of what a loader delivers, and the filter.

    Attributes:
        views: crops per image.
        size: their side, px.
        channels: 1 (the first) or 3.
        interpolation: one of `config.INTERPOLATIONS`.
    """

    views: int
    size: int
    channels: int
    interpolation: str


def random_boxes(boxes: Ints, size: int) -> Ints:
    """Complete boxes (N, 5) from `draws.crop_boxes`: each is resized to `size` x `size` px, all of which is kept."""
    rest = np.broadcast_to(np.array([size, size, 0, 0]), (len(boxes), 4))
    return np.concatenate([boxes, rest], axis=1)


def center_boxes(heights: Ints, widths: Ints, resize: int, size: int) -> Ints:
    """Boxes (N, 9): the shorter side is resized to `resize` px, the central `size` x `size` px are kept.

    The longer side is cut down to whole pixels and the margins are rounded, as torchvision's `Resize` and `CenterCrop`
    do.
    """
    shorter = np.minimum(heights, widths)
    boxes = np.zeros((len(heights), 9), np.int64)
    for side, lengths in enumerate((heights, widths)):
        boxes[:, 2 + side] = lengths
        boxes[:, 5 + side] = resize * lengths // shorter
        boxes[:, 7 + side] = np.rint((boxes[:, 5 + side] - size) / 2)
    return boxes


class CropStream(Iterator[tuple[Ints, torch.Tensor]], Protocol):
    """One epoch: (indices, crops) per batch; crops (N, views, size, size, channels) uint8, valid until the next."""

    def close(self) -> None:
        """Stop the work behind it; harmless when repeated."""


class CropLoader(Protocol):
    """Makes the crops of one `.beton` file."""

    def stream(self, order: Ints, batch_size: int, boxes: Boxes) -> CropStream:
        """Start an epoch over the images `order`, in that order; the last batch may be short."""

    def close(self) -> None:
        """Free what is held."""
