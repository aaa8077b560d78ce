"""One epoch of batches: the views of every image, drawn, cut, augmented and brought to the
device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor

from regbench.datasets.config import DatasetConfig, Interpolation
from regbench.datasets.loading import draws
from regbench.datasets.loading.crops import CropStream, Ints
from regbench.datasets.loading.latent_split import LatentSplit
from regbench.datasets.loading.splits import Opened
from regbench.datasets.loading.views import ImageViews, LatentViews, Reading, Transfer, View

Batch = tuple[Tensor, ...]
"""The views of some images, and then their labels if there are any."""


class Epoch(ExitStack, Iterator[Batch]):
    """One epoch's batches. Leaving it, in whatever way, stops the work behind it.

    It is an iterator and a context manager. When it is dropped half-way without either, it is
    closed when Python collects it.
    """

    def __init__(self, stream: CropStream, finish: Callable[[Ints, Tensor], Batch]) -> None:
        """Make an epoch of `stream`, each of whose batches goes through `finish`."""
        super().__init__()
        self._stream = stream
        self._finish = finish
        # Unlike `__del__`, it also runs when Python ends in the middle of an epoch.
        self.callback(weakref.finalize(self, stream.close))

    def __next__(self) -> Batch:
        """Make the next batch; refuse an image that cannot be decoded."""
        try:
            return self._finish(*next(self._stream))
        # BaseException includes the end of the stream (StopIteration) and a signal.
        except BaseException:
            self.close()
            raise


class EpochLoader:
    """Hands out epochs over an open split; the base of the loaders that training and evaluation
    use.

    Attributes:
        backend: "ffcv" or "torchvision", whichever runs; "auto" if no file is read.
        num_samples: Number of images.
        batch_size: Images a batch.
        device: Device that views are delivered to.
    """

    def __init__(
        self,
        dataset: DatasetConfig,
        opened: tuple[Opened, Ints],
        views: Sequence[View],
        interpolation: Interpolation,
        batch_size: int,
        labels: Tensor | None = None,
        **reading: Any,
    ) -> None:
        """Set up the backend for some images of a split.

        `labels` are those of all images of the split. They are delivered after the views. For
        `reading` see `Reading`.
        """
        given = Reading(**reading)
        split, self._indices = opened
        self.num_samples = len(self._indices)
        self.batch_size = min(batch_size, self.num_samples)
        self.device = given.device
        self._seed, self._dtype, self._labels = given.seed, given.dtype, labels
        self._split, self._bits = split.path.stem, dataset.shared_bits
        self._transfer = Transfer(self.device)
        self._open: weakref.WeakSet[Epoch] = weakref.WeakSet()
        self._views: ImageViews | LatentViews
        if isinstance(split, LatentSplit):
            self._views = LatentViews(split, views, self.batch_size, given)
        else:
            self._views = ImageViews(
                dataset, split, views, self._transfer, interpolation, self.batch_size, given
            )
        self.backend = self._views.backend

    def _epoch(self, order: Ints, e: int) -> Epoch:
        """Start epoch `e` over the images `order`."""

        def finish(indices: Ints, flat: Tensor) -> Batch:
            views = self._with_bits(indices, self._views.finished(e, indices, flat))
            if self._labels is None:
                return tuple(views)
            # Labels travel like the crops: a plain copy would wait for all work of the device.
            return *views, self._transfer(self._labels[torch.from_numpy(indices)])

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
