"""The views of a batch: cut from the images of a file, or drawn, then brought to the device."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from regbench.datasets.config import DatasetConfig, Interpolation, ViewsConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.crops import CropShape, CropStream, Ints, boxes_of
from regbench.datasets.loading.latent_split import LatentSplit
from regbench.datasets.loading.photometric import Chain, Normalize, chains, photometric
from regbench.datasets.loading.torchvision_crops import TorchvisionCrops
from regbench.datasets.stored.beton import Beton
from regbench.errors import RegbenchError

if TYPE_CHECKING:
    from regbench.datasets.loading.ffcv_crops import FfcvCrops


@dataclass(frozen=True)
class View:
    """One view of an image.

    Attributes:
        kind: Kind of the view.
        number: Number of the view among those of its kind.
        drawn: The number that its random draws depend on.
    """

    kind: ViewsConfig
    number: int
    drawn: int


def list_views(kinds: Sequence[ViewsConfig]) -> list[View]:
    """List the views of all kinds, in the order in which they are delivered."""
    numbers = (number for number in count() if number != draws.EVALUATION_VIEW)
    views = []
    for kind in kinds:
        own = list(islice(numbers, kind.count))
        for number, drawn in enumerate(own):
            # Patches are parts of one crop, so they share its draws.
            views.append(View(kind, number, own[0] if kind.cut == "patches" else drawn))
    return views


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of reading that all loaders have.

    Attributes:
        device: Device that views are augmented on and delivered to.
        seed: Seed that decides all draws, together with the epoch.
        backend: "ffcv", "torchvision", or "auto": FFCV if it is installed.
        workers: Threads (FFCV) or processes (torchvision; 1: this one) that decode and crop.
        dtype: Type that views are rounded to at the end.
    """

    device: torch.device
    seed: int = 0
    backend: str = "auto"
    workers: int = 1
    dtype: torch.dtype = torch.float32


class Transfer:
    """Brings crops to the device without waiting for the training step that is at work there."""

    def __init__(self, device: torch.device) -> None:
        """Take a stream of the device for the copies."""
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, crops: Tensor) -> Tensor:
        """Return the crops on the device."""
        if self._side is None:
            return crops.to(self._device)  # a CPU needs no copy: later steps make a float tensor
        # The copy has a stream of its own, so that it alone is waited for and not the training step
        # before it.
        with torch.cuda.stream(self._side):
            copied = crops.to(self._device, non_blocking=True)
        self._side.synchronize()
        copied.record_stream(torch.cuda.current_stream(self._device))
        return copied


class LatentViews:
    """Draws the views of a latent world's examples, on the device."""

    backend = "auto"

    def __init__(
        self, split: LatentSplit, views: Sequence[View], batch_size: int, reading: Reading
    ) -> None:
        """Move the world to the device."""
        self._split = LatentSplit(split.source, split.path, reading.device)
        self._drawn = [view.drawn for view in views]
        self._batch_size, self._seed, self._dtype = batch_size, reading.seed, reading.dtype

    def stream(self, order: Ints, e: int) -> CropStream:
        """Start epoch `e` over the examples `order` (places in the split), in that order."""
        return self._split.stream(order, self._batch_size, self._seed, e, self._drawn)

    def finished(self, e: int, indices: Ints, flat: Tensor) -> list[Tensor]:
        """Return the views, (N, D, 1, 1) or (N, 3, S, S) each, of a batch that `stream` gave."""
        return list(flat.to(self._dtype))


class ImageViews:
    """Cuts the views of a file's images and augments them."""

    def __init__(
        self,
        dataset: DatasetConfig,
        beton: Beton,
        views: Sequence[View],
        transfer: Transfer,
        interpolation: Interpolation,
        batch_size: int,
        reading: Reading,
    ) -> None:
        """Set up the backend."""
        self.backend, device, workers = reading.backend, reading.device, reading.workers
        # find_spec does not import FFCV, which would be slow.
        if self.backend == "auto":
            self.backend = "ffcv" if importlib.util.find_spec("ffcv") is not None else "torchvision"
        self._beton, self._views, self._transfer = beton, views, transfer
        self._seed, self._dtype = reading.seed, reading.dtype
        sizes = tuple(view.kind.side for view in views)
        self._shape = CropShape(sizes=sizes, channels=dataset.channels, interpolation=interpolation)
        self._normalize = Normalize(dataset.mean, dataset.std, device)
        self._crops: FfcvCrops | TorchvisionCrops
        pins = device.type == "cuda"
        if self.backend == "ffcv":
            try:
                from regbench.datasets.loading.ffcv_crops import FfcvCrops
            except (ImportError, RuntimeError) as error:
                # RuntimeError: numba finds no folder to keep its compiled code in.
                raise RegbenchError(
                    f"FFCV cannot be used ({error}); install it with pip install 'regbench[ffcv]', "
                    "or choose the loader 'torchvision'"
                ) from error
            # A GPU is better at the photometric part than the few cores beside it.
            normalize = self._normalize if device.type == "cpu" else None
            self._crops = FfcvCrops(
                beton, self._shape, batch_size, workers, normalize, pin_memory=pins
            )
        else:
            self._crops = TorchvisionCrops(beton, self._shape, batch_size, workers, pin_memory=pins)

    def stream(self, order: Ints, e: int) -> CropStream:
        """Start epoch `e` over the images `order` (places in the file), in that order."""
        return self._crops.stream(order, partial(self._boxes, e), partial(self._chains, e))

    def finished(self, e: int, indices: Ints, flat: Tensor) -> list[Tensor]:
        """Return the views, (N, C, S, S) each on the device, of a batch that `stream` gave."""
        if self._crops.finishes:
            return [view.permute(0, 3, 1, 2).to(self._dtype) for view in self._shape.split(flat)]
        crops = self._shape.split(self._transfer(flat))
        augmented = map(photometric, crops, self._chains(e, indices).T)
        return [self._normalize(x, self._dtype) for x in augmented]

    def _boxes(self, e: int, indices: Ints) -> Ints:
        """Draw what is cut out of images in epoch `e`: (N, views, 9), see `crops.Boxes`."""
        sides = self._beton.heights[indices], self._beton.widths[indices]
        found = []
        for view in self._views:
            key = draws.keys(self._seed, e, indices, draws.CROP, view.drawn)
            found.append(boxes_of(view.kind, view.number, key, *sides))
        return np.stack(found, axis=1)

    def _chains(self, e: int, indices: Ints) -> Chain:
        """Draw what is done to the views of images in epoch `e`: (N, views)."""
        found = []
        for view in self._views:
            key = draws.keys(self._seed, e, indices, draws.PHOTOMETRIC, view.drawn)
            found.append(chains(key, view.kind, self._shape.channels))
        return np.stack(found, axis=1)
