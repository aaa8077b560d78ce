"""The crops with all images on the device, as bytes: for small images of one size, beside a GPU
that would wait.

They are those of `torchvision_crops` to the bit, on any device. Pillow multiplies grey levels by
weights that are whole multiples of 2^-22, along rows and then along columns. Such products and
their sums are exact in float64, in any order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from regbench.datasets.loading.crops import Boxes, Chains, CropShape, CropStream, Ints
from regbench.datasets.loading.photometric import on_device
from regbench.datasets.loading.torchvision_crops import RESAMPLE
from regbench.datasets.stored.beton import Beton
from regbench.errors import RegbenchError

_UNIT = 1 << 22


class _Filters:
    """Matrices (pixels, size) that resize a line of pixels: made when a batch first needs them,
    kept on the device.

    A matrix has a key: the pixels of the box, what they are resized to, which is the first to be
    kept, and whether they are flipped. Pixels beyond the box have weights of zero.
    """

    def __init__(self, pixels: int, size: int, interpolation: str, device: torch.device) -> None:
        self._pixels, self._size, self._resample = pixels, size, RESAMPLE[interpolation]
        self._places: dict[tuple[int, ...], int] = {}
        self.matrices = torch.empty(0, pixels, size, dtype=torch.float64, device=device)

    def places(self, *key: Ints) -> Ints:
        """Return where in `matrices` those of the keys are, (N, 1); each part of a key is (N,)."""
        unique, inverse = np.unique(np.stack(key, axis=1), axis=0, return_inverse=True)
        wanted = [tuple(each) for each in unique.tolist()]
        new = [each for each in wanted if each not in self._places]
        if new:
            made = torch.from_numpy(np.stack([self._matrix(*each) for each in new]))
            self._places |= {each: len(self.matrices) + number for number, each in enumerate(new)}
            self.matrices = torch.cat([self.matrices, made.to(self.matrices.device)])
        return np.array([self._places[each] for each in wanted])[inverse].reshape(-1, 1)

    def _matrix(self, length: int, resized: int, first: int, flip: int) -> npt.NDArray[np.float64]:
        # Pillow itself tells its weights: of 32-bit integers it rounds them as it does for bytes.
        impulses = Image.fromarray(np.eye(length, dtype=np.int32) * _UNIT)
        weights = np.asarray(impulses.resize((resized, length), self._resample)) / _UNIT
        matrix = np.zeros((self._pixels, self._size))
        matrix[:length] = weights[:, first : first + self._size]
        return matrix[:, ::-1] if flip else matrix


class ResidentCrops:
    """Makes the crops of one `.beton` file on the device."""

    finishes = False

    def __init__(self, beton: Beton, shape: CropShape, device: torch.device) -> None:
        """Bring all images to the device.

        Refuse those of different sizes, and more than its memory holds.
        """
        height, width = int(beton.heights[0]), int(beton.widths[0])
        refused = f"runtime.loader=resident: {beton.path} "
        if (beton.heights != height).any() or (beton.widths != width).any():
            raise RegbenchError(f"{refused}has images of different sizes; choose auto")
        if shape.interpolation not in RESAMPLE:
            raise RegbenchError(
                f"{refused}cannot be resized by {shape.interpolation}; choose "
                f"{' or '.join(RESAMPLE)}"
            )
        try:
            self._images = torch.empty(
                len(beton), height, width, shape.channels, dtype=torch.uint8, device=device
            )
        except RuntimeError as error:  # as torch.OutOfMemoryError is
            raise RegbenchError(
                f"{refused}does not fit into the memory of {device}; choose auto"
            ) from error
        images = [beton.image(index)[:, :, : shape.channels] for index in range(len(beton))]
        self._images.copy_(torch.from_numpy(np.stack(images)))
        self._half = torch.full((1, 1, 1), 0.5, dtype=torch.float64, device=device)
        self._sizes, pixels = np.array(shape.sizes), max(height, width)
        self._filters = {
            size: _Filters(pixels, size, shape.interpolation, device) for size in shape.sizes
        }

    def stream(
        self, order: Ints, batch_size: int, boxes: Boxes, chains: Chains | None = None
    ) -> CropStream:
        """Start an epoch."""
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            of_views = boxes(indices).swapaxes(0, 1)
            views: dict[int, Tensor] = {}
            for size in self._filters:
                # Views of one size are cut together.
                numbers = np.flatnonzero(self._sizes == size)
                crops = self._cut(
                    np.tile(indices, len(numbers)), of_views[numbers].reshape(-1, 9), size
                )
                views |= zip(numbers.tolist(), crops.view(len(numbers), -1), strict=True)
            yield indices, torch.cat([views[number] for number in range(len(views))])

    def _cut(self, indices: Ints, boxes: Ints, size: int) -> Tensor:
        """Cut a box (N, 9) out of each image: (N, size, size, channels) uint8."""
        top, left, height, width, flip, to_height, to_width, row, column = boxes.T
        _, image_height, image_width, channels = self._images.shape
        filters, pixels = self._filters[size], max(image_height, image_width)
        of_columns = filters.places(height, to_height, row, np.zeros_like(flip))
        of_rows = filters.places(width, to_width, column, flip)
        ys = np.minimum(top[:, None] + np.arange(pixels), image_height - 1)
        xs = np.minimum(left[:, None] + np.arange(pixels), image_width - 1)
        # One transfer for all.
        places = on_device(
            np.hstack([indices[:, None], of_columns, of_rows, ys, xs]), self._images.device
        )
        image, down, across, y, x = places.split([1, 1, 1, pixels, pixels], dim=1)
        # (N, rows, channels, columns)
        lines = self._images[image[:, :, None], y[:, :, None], x[:, None, :]].permute(0, 1, 3, 2)
        lines = lines.to(torch.float64, memory_format=torch.contiguous_format).view(
            -1, pixels * channels, pixels
        )
        narrow = (
            torch.baddbmm(self._half, lines, filters.matrices[across[:, 0]]).floor_().clamp_(0, 255)
        )
        to_rows = filters.matrices[down[:, 0]].transpose(1, 2)
        # The conversion to bytes cuts the fraction off.
        crops = torch.baddbmm(self._half, to_rows, narrow.view(-1, pixels, channels * size)).clamp_(
            0, 255
        )
        crops = crops.view(-1, size, channels, size).permute(0, 1, 3, 2)
        return crops.to(torch.uint8, memory_format=torch.contiguous_format)
