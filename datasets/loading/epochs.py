"""One epoch of batches: the views of every image, drawn, cut, augmented and brought to the
device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, Required, Self, TypedDict, TypeVar

import torch
from torch import Tensor

from regbench.datasets.config import DatasetConfig, Interpolation
from regbench.datasets.loading import draws
from regbench.datasets.loading.crops import CropStream, Ints
from regbench.datasets.loading.latent_split import LatentSplit
from regbench.datasets.loading.views import ImageViews, LatentViews, Transfer, View, Views
from regbench.datasets.stored.beton import Beton

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
        self.batch_size = batch_size
        self.device = device
        self._seed = seed
        self._split, self._bits, self._dtype = beton.path.stem, dataset.shared_bits, dtype
        self._transfer = Transfer(device)
        self._open: weakref.WeakSet[Epoch[Any]] = weakref.WeakSet()
        self._views: Views
        if isinstance(beton, LatentSplit):
            self._views = LatentViews(
                beton, views, batch_size=batch_size, seed=seed, device=device, dtype=dtype
            )
        else:
            self._views = ImageViews(
                dataset,
                beton,
                views,
                self._transfer,
                interpolation=interpolation,
                batch_size=batch_size,
                seed=seed,
                device=device,
                backend=backend,
                workers=workers,
                dtype=dtype,
            )
        self.backend = self._views.backend

    def _epoch(
        self, order: Ints, e: int, give: Callable[[Ints, list[Tensor]], Batch]
    ) -> Epoch[Batch]:
        """Start epoch `e` over the images `order`.

        `give` makes a batch of its indices and views.
        """

        def finish(indices: Ints, flat: Tensor) -> Batch:
            views = self._views.finished(e, indices, flat)
            return give(indices, self._with_bits(indices, views))

        epoch = Epoch(self._views.stream(order, e), finish)
        self._open.add(epoch)
        return epoch

    def _with_bits(self, indices: Ints, views: list[Tensor]) -> list[Tensor]:
        """Append the shared bits to each view (N, C, S, S) as channels of -1 or 1, about as
        large as pixels are.
        """
        if not self._bits:
            return views
        bits = 2 * draws.shared_bits(self._split, indices, self._bits) - 1
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
