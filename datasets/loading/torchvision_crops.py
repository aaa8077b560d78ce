"""The crops without FFCV: a PyTorch `DataLoader` over the same `.beton` file, with Pillow's
resize.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from regbench.datasets.loading.crops import Boxes, Chains, CropShape, CropStream, Ints
from regbench.datasets.stored.beton import Beton
from regbench.errors import RegbenchError

_RESAMPLE = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


# The matrices depend on two sizes only, and random crops meet the same sizes again and again.
@lru_cache(maxsize=4096)
def _area_weights(n_in: int, n_out: int) -> npt.NDArray[np.float32]:
    """Make the area filter as an (n_out, n_in) matrix; see `kernels_cut` for its definition."""
    scale = n_in / n_out
    center = (np.arange(n_out)[:, None] + 0.5) * scale
    pixel = np.arange(n_in)[None, :]
    if scale >= 1:
        weights = np.minimum(center + scale / 2, pixel + 1) - np.maximum(center - scale / 2, pixel)
    else:
        weights = 1 - np.abs(pixel + 0.5 - center)
    weights = np.maximum(weights, 0)
    weights /= weights.sum(axis=1, keepdims=True)
    normalised: npt.NDArray[np.float32] = weights.astype(np.float32)
    return normalised


def resize(
    image: npt.NDArray[np.uint8], height: int, width: int, interpolation: str
) -> npt.NDArray[np.uint8]:
    """Resize (H, W, C) uint8; the horizontal pass first, each rounded to whole grey levels."""
    if interpolation == "area":
        pixels: npt.NDArray[Any] = image.astype(np.float32)
        for sums, weights in (
            ("xw,hwc->hxc", _area_weights(image.shape[1], width)),
            ("yh,hxc->yxc", _area_weights(image.shape[0], height)),
        ):
            pixels = np.floor(np.einsum(sums, weights, pixels, optimize=True) + 0.5)
        return pixels.astype(np.uint8)
    resample = _RESAMPLE[interpolation]
    grey = image.shape[2] == 1
    picture = Image.fromarray(image[:, :, 0] if grey else image)
    # Width and height have a call each because the order of the passes within one differs between
    # Pillow's versions.
    picture = picture.resize((width, picture.height), resample).resize((width, height), resample)
    resized = np.asarray(picture)
    return resized[:, :, None] if grey else resized


class _Batches(Dataset[Any]):
    """A data set whose items are whole batches: the crops for given indices and boxes, or the
    refusal of one of the images.

    The refusal is handed on and raised by the receiver, because a `DataLoader` would wrap it in a
    worker's traceback.
    """

    def __init__(self, beton: Beton, shape: CropShape) -> None:
        self.beton = beton
        self.shape = shape

    def __getitem__(self, batch: tuple[Ints, Ints]) -> tuple[Ints, torch.Tensor] | RegbenchError:
        (indices, boxes), shape = batch, self.shape
        crops = torch.empty(len(indices) * shape.numbers_per_image, dtype=torch.uint8)
        views = [view.numpy() for view in shape.split(crops)]
        for n, index in enumerate(indices):
            try:
                image = self.beton.image(int(index))[:, :, : shape.channels]
            except RegbenchError as error:
                return error
            for view, size, box in zip(views, shape.sizes, boxes[n].tolist(), strict=True):
                top, left, height, width, flip, to_height, to_width, row, column = box
                part = np.ascontiguousarray(image[top : top + height, left : left + width])
                resized = resize(part, to_height, to_width, shape.interpolation)
                crop = resized[row : row + size, column : column + size]
                view[n] = crop[:, ::-1] if flip else crop
        return indices, crops


def _as_it_is(batch: Any) -> Any:
    return batch


class TorchvisionCrops:
    """Makes the crops of one `.beton` file in worker processes."""

    finishes = False

    def __init__(
        self, beton: Beton, shape: CropShape, batch_size: int, workers: int, *, pin_memory: bool
    ) -> None:
        """Make a loader of batches of `batch_size` images with `workers` processes (1: this one).

        With `pin_memory` crops are in page-locked memory, which is quicker to copy to a GPU.
        """
        self._dataset = _Batches(beton, shape)
        self._batch_size, self._workers = batch_size, workers
        self._pin_memory = pin_memory

    def stream(self, order: Ints, boxes: Boxes, chains: Chains) -> CropStream:
        """Start an epoch."""
        starts = range(0, len(order), self._batch_size)
        chunks = (order[start : start + self._batch_size] for start in starts)
        loader = DataLoader(
            self._dataset,
            batch_size=None,  # the sampler gives whole batches
            sampler=((chunk, boxes(chunk)) for chunk in chunks),
            collate_fn=_as_it_is,
            # One worker is this process: a signal that arrives while a process is forked can be
            # lost.
            num_workers=self._workers if self._workers > 1 else 0,
            pin_memory=self._pin_memory,
            # The global generator must not depend on which loader runs, so the loader has its own.
            generator=torch.Generator(),
        )
        # Closing the generator drops the `DataLoader`'s iterator, whose finalizer stops its workers
        # and joins them.
        for batch in loader:
            if isinstance(batch, RegbenchError):
                raise batch
            yield batch
