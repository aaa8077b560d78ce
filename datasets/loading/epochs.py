"""One epoch of batches: the views of every image, drawn, cut, augmented and brought to the
device.
"""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, Required, Self, TypedDict, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from regbench.datasets.config import DatasetConfig, Interpolation, ViewsConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.crops import (
    CropLoader,
    CropShape,
    CropStream,
    Ints,
    boxes_of,
)
from regbench.datasets.loading.latent_split import LatentSplit
from regbench.datasets.loading.photometric import Chain, Normalize, chains, photometric
from regbench.datasets.loading.torchvision_crops import TorchvisionCrops
from regbench.datasets.stored.beton import Beton
from regbench.errors import RegbenchError

BACKENDS = ("auto", "ffcv", "torchvision")
Batch = TypeVar("Batch")


class Epoch(Generic[Batch]):
    """One epoch's batches. Leaving it, in whatever way, stops the work behind it.

    It is an iterator and a context manager. When it is dropped half-way without either, it is
    closed when Python collects it.
    """

    def __init__(self, stream: CropStream, finish: Callable[[Ints, Tensor], Batch]) -> None:
        """Make an epoch of `stream`, each of whose batches goes through `finish`."""
        self._stream = stream
        self._finish = finish
        # Unlike `__del__`, it also runs when Python ends in the middle of an epoch.
        self._close = weakref.finalize(self, stream.close)

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Batch:
        """Make the next batch; refuse an image that cannot be decoded."""
        try:
            return self._finish(*next(self._stream))
        # BaseException includes the end of the stream (StopIteration) and a signal.
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop; harmless when repeated."""
        self._close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.close()


class _Transfer:
    """Brings crops to the device without waiting for the training step that is at work there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, crops: Tensor) -> Tensor:
        if self._side is None:
            # Later steps make a new float tensor of the crops, so no copy is needed here.
            return crops if self._device.type == "cpu" else crops.to(self._device)
        # The copy has a stream of its own, so that it alone is waited for and not the training step
        # before it.
        with torch.cuda.stream(self._side):
            copied = crops.to(self._device, non_blocking=True)
        self._side.synchronize()
        copied.record_stream(torch.cuda.current_stream(self._device))
        return copied


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
    numbers = iter(draws.view_numbers(sum(kind.count for kind in kinds)))
    views = []
    for kind in kinds:
        own = list(islice(numbers, kind.count))
        for number, drawn in enumerate(own):
            # Patches are parts of one crop, so they share its draws.
            views.append(View(kind, number, own[0] if kind.cut == "patches" else drawn))
    return views


class Reading(TypedDict, total=False):
    """Options of reading that all loaders have.

    Attributes:
        seed: Decides all draws, together with the epoch.
        device: Device that views are augmented on and delivered to.
        backend: "ffcv", "torchvision", or "auto": FFCV if it is installed.
        workers: Threads (FFCV) or processes (torchvision; 1: this one) that decode and crop.
        dtype: Type that views are rounded to at the end.
    """

    seed: int
    device: Required[torch.device]
    backend: str
    workers: int
    dtype: torch.dtype


class EpochLoader:
    """Hands out epochs over an open split; the base of the loaders that training and evaluation
    use.

    Attributes:
        backend: "ffcv" or "torchvision", whichever runs; "auto" where no file is read.
        batch_size: Images a batch.
        device: Device that views are delivered to.
    """

    def __init__(
        self,
        dataset: DatasetConfig,
        beton: Beton | LatentSplit,
        views: Sequence[View],
        *,
        interpolation: Interpolation,
        batch_size: int,
        seed: int = 0,
        device: torch.device,
        backend: str = "auto",
        workers: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Set up the backend; for the options see `Reading`."""
        if backend not in BACKENDS:
            raise RegbenchError(f"unknown loader '{backend}'; choose one of {', '.join(BACKENDS)}")
        if interpolation not in get_args(Interpolation):
            raise RegbenchError(f"interpolation={interpolation} must be bicubic, bilinear or area")
        if workers < 1 or batch_size < 1:
            raise RegbenchError(f"workers ({workers}) and batch size ({batch_size}) are at least 1")
        # find_spec does not import FFCV, which would be slow.
        if backend == "auto":
            backend = "ffcv" if importlib.util.find_spec("ffcv") is not None else "torchvision"
        self.backend = backend
        self.batch_size = batch_size
        self.device = device
        self._beton: Beton | LatentSplit = beton
        self._views = views
        self._seed = seed
        self._dtype = dtype
        self._bits = dataset.shared_bits
        sizes = tuple(view.kind.side for view in self._views)
        self._shape = CropShape(sizes=sizes, channels=dataset.channels, interpolation=interpolation)
        self._transfer = _Transfer(device)
        self._normalize = Normalize(dataset.mean, dataset.std, device)
        self._open: weakref.WeakSet[Epoch[Any]] = weakref.WeakSet()
        if isinstance(beton, LatentSplit):
            self.backend = "auto"
            self._beton = LatentSplit(beton.source, beton.path, device)
            return
        self._crops: CropLoader
        if backend == "ffcv":
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
            self._crops = FfcvCrops(beton, self._shape, batch_size, workers, normalize)
        else:
            self._crops = TorchvisionCrops(
                beton, self._shape, workers, pin_memory=device.type == "cuda"
            )

    def _epoch(
        self, order: Ints, e: int, give: Callable[[Ints, list[Tensor]], Batch]
    ) -> Epoch[Batch]:
        """Start epoch `e` over the images `order`.

        `give` makes a batch of its indices and views.
        """

        def finish(indices: Ints, flat: Tensor) -> Batch:
            views: list[Tensor] = []
            if isinstance(self._beton, LatentSplit):
                views.extend(flat.to(self._dtype))
            elif self._crops.finishes:
                for view in self._shape.split(flat):
                    views.append(view.permute(0, 3, 1, 2).to(self._dtype))
            else:
                chain = self._chains(e, indices)
                for number, crop in enumerate(self._shape.split(self._transfer(flat))):
                    augmented = photometric(crop, chain[:, number])
                    views.append(self._normalize(augmented, self._dtype))
            return give(indices, self._with_bits(indices, views))

        if isinstance(self._beton, LatentSplit):
            drawn = [view.drawn for view in self._views]
            stream = self._beton.stream(order, self.batch_size, self._seed, e, drawn)
        else:
            draw = partial(self._boxes, e), partial(self._chains, e)
            stream = self._crops.stream(order, self.batch_size, *draw)
        epoch = Epoch(stream, finish)
        self._open.add(epoch)
        return epoch

    def _boxes(self, e: int, indices: Ints) -> Ints:
        """Draw what is cut out of images in epoch `e`: (N, views, 9), see `crops.Boxes`."""
        assert isinstance(self._beton, Beton)
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
            drawn = draws.photometric_draws(key, view.kind)
            found.append(chains(drawn, view.kind, self._shape.channels))
        return np.stack(found, axis=1)

    def _with_bits(self, indices: Ints, views: list[Tensor]) -> list[Tensor]:
        """Append the shared bits to each view (N, C, S, S) as channels of -1 or 1, about as
        large as pixels are.
        """
        if not self._bits:
            return views
        bits = 2 * draws.shared_bits(self._beton.path.stem, indices, self._bits) - 1
        bits_NK11 = self._transfer(torch.from_numpy(bits).to(self._dtype))[:, :, None, None]
        found = []
        for x_NCSS in views:
            planes_NKSS = bits_NK11.expand(-1, -1, *x_NCSS.shape[2:])
            found.append(torch.cat([x_NCSS, planes_NKSS], dim=1))
        return found

    def close(self) -> None:
        """Stop every epoch that is still open."""
        for epoch in list(self._open):
            epoch.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
