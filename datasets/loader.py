"""The loaders that training and evaluation use: two augmented views, or one plain image with its label.

Both stand on one of two backends that deliver the same crops: FFCV (`ffcv_loader`) or a PyTorch `DataLoader`
(`torchvision_loader`). The photometric augmentation is the same code for both (`photometric`).
"""

from __future__ import annotations

import importlib.util
import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from regbench import RegbenchError
from regbench.datasets import draws
from regbench.datasets.beton import Beton
from regbench.datasets.config import (
    ARRAY_SOURCES,
    UNCHANGED,
    AugmentationConfig,
    CropConfig,
    DatasetConfig,
    MultiCropConfig,
    check_interpolation,
)
from regbench.datasets.crops import CropLoader, CropShape, CropStream, Floats, Ints, boxes_of
from regbench.datasets.manifest import Manifest
from regbench.datasets.photometric import Normalize, chains, photometric
from regbench.datasets.prepare import check_matches
from regbench.datasets.torchvision_loader import TorchvisionCrops

BACKENDS = ("auto", "ffcv", "torchvision")
TRANSFORMS = ("center", "crop_flip")
Batch = TypeVar("Batch")


class Epoch(Generic[Batch]):
    """One epoch's batches. Leaving it, in whatever way, stops the work behind it.

    It is an iterator and a context manager. When it is dropped half-way without either, it is closed when Python
    collects it.
    """

    def __init__(self, stream: CropStream, finish: Callable[[Ints, Tensor], Batch]) -> None:
        """Make an epoch of `stream`, each of whose batches goes through `finish`."""
        self._stream = stream
        self._finish = finish
        self._close = weakref.finalize(self, stream.close)

    def __iter__(self) -> Epoch[Batch]:
        """Return itself."""
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            RegbenchError: an image cannot be decoded.
        """
        try:
            return self._finish(*next(self._stream))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop; harmless when repeated."""
        self._close()

    def __enter__(self) -> Epoch[Batch]:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.close()


class _Transfer:
    """Brings crops to the device as tensors that are safe to keep, though the crops' memory is used again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, crops: Tensor) -> Tensor:
        if self._side is None:
            # Whatever follows makes a new float tensor out of it.
            return crops if self._device.type == "cpu" else crops.to(self._device)
        # On a stream of its own, so that only the copy is waited for and not the training step before it.
        with torch.cuda.stream(self._side):
            copied = crops.to(self._device, non_blocking=True)
        self._side.synchronize()
        copied.record_stream(torch.cuda.current_stream(self._device))
        return copied


@dataclass(frozen=True)
class _View:
    """One view of an image: its kind, which of that kind it is, and the number that its draws depend on."""

    crop: CropConfig
    number: int
    drawn: int


def _views(crops: Sequence[CropConfig]) -> list[_View]:
    numbers = iter(draws.view_numbers(sum(crop.count for crop in crops)))
    views = []
    for crop in crops:
        own = list(islice(numbers, crop.count))
        views += [_View(crop, n, own[0] if crop.cut == "patches" else own[n]) for n in range(crop.count)]
    return views


class _Loader:
    """What the loaders share: an open split, the views of an image, the backend and the way to the device."""

    def __init__(
        self,
        dataset: DatasetConfig,
        beton: Beton,
        views: Sequence[_View],
        interpolation: str,
        batch_size: int,
        seed: int,
        device: torch.device,
        backend: str,
        workers: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if backend not in BACKENDS:
            raise RegbenchError(f"unknown loader '{backend}'; choose one of {', '.join(BACKENDS)}")
        if workers < 1 or batch_size < 1:
            raise RegbenchError(f"workers ({workers}) and batch size ({batch_size}) are at least 1")
        if backend == "auto":
            backend = "ffcv" if importlib.util.find_spec("ffcv") is not None else "torchvision"
        self.backend = backend
        self.batch_size = batch_size
        self._beton = beton
        self._views = views
        self._seed = seed
        self._dtype = dtype
        sizes = tuple(view.crop.size for view in views)
        self._shape = CropShape(sizes=sizes, channels=dataset.channels, interpolation=interpolation)
        self._transfer = _Transfer(device)
        self._normalize = Normalize(dataset.mean, dataset.std, device)
        self._crops: CropLoader
        if backend == "ffcv":
            try:
                from regbench.datasets.ffcv_loader import FfcvCrops
            except (ImportError, RuntimeError) as error:
                # RuntimeError: numba finds no folder to keep its compiled code in.
                raise RegbenchError(
                    f"FFCV cannot be used ({error}); install it with pip install 'regbench[ffcv]', or choose the "
                    "loader 'torchvision'"
                ) from error
            # A GPU is better at the photometric part than the few cores beside it.
            normalize = self._normalize if device.type == "cpu" else None
            self._crops = FfcvCrops(beton, self._shape, batch_size, workers, normalize)
        else:
            self._crops = TorchvisionCrops(beton, self._shape, workers, pin_memory=device.type == "cuda")
        self._open: weakref.WeakSet[Epoch[Any]] = weakref.WeakSet()

    def _epoch(self, order: Ints, e: int, give: Callable[[Ints, list[Tensor]], Batch]) -> Epoch[Batch]:
        """Start epoch `e` over the images `order`; `give` makes a batch of its indices and views."""

        def boxes(indices: Ints) -> Ints:
            heights, widths = self._beton.heights[indices], self._beton.widths[indices]
            per_view = []
            for view in self._views:
                key = draws.keys(self._seed, e, indices, draws.CROP, view.drawn)
                per_view.append(boxes_of(view.crop, view.number, key, heights, widths))
            return np.stack(per_view, axis=1)

        def chains_of(indices: Ints) -> Floats:
            per_view = []
            for view in self._views:
                key = draws.keys(self._seed, e, indices, draws.PHOTOMETRIC, view.drawn)
                drawn = draws.photometric_draws(key, view.crop.view)
                per_view.append(chains(drawn, view.crop.view, self._shape.channels))
            return np.stack(per_view, axis=1)

        def finish(indices: Ints, flat: Tensor) -> Batch:
            if self._crops.finishes:
                views = [view.permute(0, 3, 1, 2) for view in self._shape.split(flat)]
            else:
                crops, todo = self._shape.split(self._transfer(flat)), chains_of(indices)
                views = [self._normalize(photometric(crop, todo[:, v])) for v, crop in enumerate(crops)]
            return give(indices, [view.to(self._dtype) for view in views])

        chains_then = chains_of if self._crops.finishes else None
        epoch = Epoch(self._crops.stream(order, self.batch_size, boxes, chains_then), finish)
        self._open.add(epoch)
        return epoch

    def close(self) -> None:
        """Stop every epoch that is still open and free what is held."""
        for epoch in list(self._open):
            epoch.close()
        self._crops.close()

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class PretrainingLoader(_Loader):
    """Augmented views of every training image, two or many, in an order drawn anew for each epoch.

    Attributes:
        backend: "ffcv" or "torchvision", whichever runs.
        num_samples: number of training images.
    """

    def __init__(
        self,
        dataset: DatasetConfig,
        augmentation: AugmentationConfig | MultiCropConfig,
        *,
        data_dir: Path,
        batch_size: int,
        seed: int,
        device: torch.device,
        backend: str = "auto",
        workers: int = 1,
        rank: int = 0,
        world_size: int = 1,
        parts: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Open the pretraining images of a prepared data set: its "unlabeled" split if it has one, else "train".

        Args:
            dataset: which; `train_per_class` is honoured.
            augmentation: of the views.
            data_dir: the folder of all prepared data sets.
            batch_size: images a batch, in this process.
            seed: decides order and augmentation, together with the epoch.
            device: where the views are augmented and delivered.
            backend: "ffcv", "torchvision", or "auto": FFCV if it is installed.
            workers: threads (FFCV) or processes (torchvision; 1: this one) that decode and crop.
            rank: this process among `world_size`. Process r gets images r B to (r + 1) B - 1 of each global batch of
                `world_size` x B images (of each part of it), which is the batch that one process with that batch size
                would get.
            world_size: number of processes.
            parts: into which each batch is cut for passes of their own. The p-th parts of all processes hold the images
                of the p-th part of one process's batch, so that statistics over a pass do not depend on `world_size`.
            dtype: what the views are rounded to at the end.

        Raises:
            RegbenchError: the data set is not prepared or not usable, or the batch is larger than it.
        """
        manifest = Manifest.load(data_dir, dataset)
        split = manifest.pretraining_split
        beton = _open(manifest, dataset, split, data_dir)
        self._indices = _first_of_each_class(beton.labels, dataset, split)
        self.num_samples = len(self._indices)
        if batch_size * world_size > self.num_samples:
            whole = f"{batch_size}" if world_size == 1 else f"{batch_size} x {world_size} processes"
            raise RegbenchError(
                f"batch size {whole} is larger than the {self.num_samples:,} training images; "
                f"choose at most {self.num_samples // world_size}"
            )
        if isinstance(augmentation, AugmentationConfig):
            augmentation = augmentation.crops(dataset.image_size)
        views = _views(augmentation.crops)
        super().__init__(
            dataset, beton, views, augmentation.interpolation, batch_size, seed, device, backend, workers, dtype
        )
        self._rank, self._world_size, self._parts = rank, world_size, parts

    def __len__(self) -> int:
        """Batches per epoch; a last one that would be short is left out."""
        return self.num_samples // (self.batch_size * self._world_size)

    def __enter__(self) -> PretrainingLoader:
        """Return itself."""
        return self

    def epoch(self, e: int, first: int = 0) -> Epoch[tuple[Tensor, ...]]:
        """The batches of epoch `e` from number `first` on: a (N, C, S, S) for each view, normalised, on the device."""
        order = draws.epoch_order(self._seed, e, self._indices)
        order = order[: len(self) * self.batch_size * self._world_size]
        shape = (len(self), self._parts, self._world_size, self.batch_size // self._parts)
        order = order.reshape(shape)[first:, :, self._rank].reshape(-1)
        return self._epoch(order, e, lambda _, views: tuple(views))


class ViewLoader(_Loader):
    """Two augmented views of some images of a split, which are in the same order in each epoch.

    Attributes:
        backend: "ffcv" or "torchvision", whichever runs.
        num_samples: number of images.
    """

    def __init__(
        self,
        dataset: DatasetConfig,
        augmentation: AugmentationConfig,
        split: str,
        *,
        images: int,
        data_dir: Path,
        batch_size: int,
        seed: int,
        device: torch.device,
        backend: str = "auto",
        workers: int = 1,
        choice: Path | None = None,
    ) -> None:
        """Open a split for measures over views.

        Args:
            dataset: which.
            augmentation: of the two views.
            split: "train", "tuning" or "test".
            images: how many, at even distances over the file, which may be sorted by class; at most all.
            data_dir: the folder of all prepared data sets.
            batch_size: images a batch.
            seed: decides the augmentation, together with the epoch.
            device: where the views are augmented and delivered.
            backend: as for `PretrainingLoader`.
            workers: as for `PretrainingLoader`.
            choice: for "test", as for `EvalLoader`.

        Raises:
            RegbenchError: the data set is not prepared or not usable, or the test split is to be opened without a
                choice on record.
        """
        beton = _open_split(dataset, split, data_dir, choice)
        self._indices = evenly(_first_of_each_class(beton.labels, dataset, split), images)
        self.num_samples = len(self._indices)
        views = _views(augmentation.crops(dataset.image_size).crops)
        batch_size = min(batch_size, self.num_samples)
        super().__init__(dataset, beton, views, augmentation.interpolation, batch_size, seed, device, backend, workers)

    def __enter__(self) -> ViewLoader:
        """Return itself."""
        return self

    def epoch(self, e: int) -> Epoch[tuple[Tensor, ...]]:
        """The batches of epoch `e`: pairs of (N, C, S, S) float32, normalised, on the device; the last may be short."""
        return self._epoch(self._indices, e, lambda _, views: tuple(views))


def evenly(indices: Ints, count: int) -> Ints:
    """So many of the indices at even distances; all if there are no more."""
    return indices[np.arange(count) * len(indices) // count] if count < len(indices) else indices


class EvalLoader(_Loader):
    """Images of a split with their labels, each once per epoch.

    Attributes:
        backend: "ffcv" or "torchvision", whichever runs.
        num_samples: number of images.
    """

    def __init__(
        self,
        dataset: DatasetConfig,
        split: str,
        *,
        data_dir: Path,
        batch_size: int,
        device: torch.device,
        transform: str = "center",
        seed: int = 0,
        backend: str = "auto",
        workers: int = 1,
        interpolation: str = "bicubic",
        crop_scale: tuple[float, float] = (0.08, 1.0),
        choice: Path | None = None,
    ) -> None:
        """Open a split for evaluation.

        Args:
            dataset: which; `train_per_class` is honoured for "train".
            split: "train", "tuning" or "test".
            data_dir: the folder of all prepared data sets.
            batch_size: images a batch; more than there are means all of them.
            device: where the images are delivered.
            transform: "center": the shorter side resized to `eval_resize` px, the central `image_size` px kept, in the
                file's order; "crop_flip": random resized crop and flip, in an order drawn from (seed, epoch).
            seed: for "crop_flip".
            backend: as for `PretrainingLoader`.
            workers: as for `PretrainingLoader`.
            interpolation: "bicubic", "bilinear" or "area".
            crop_scale: range of the crop's area, for "crop_flip".
            choice: for "test": the record of what was chosen, and on which split, before this one is opened.

        Raises:
            RegbenchError: the data set is not prepared or not usable, an argument is unknown, or the test split is to
                be opened without a choice on record.
        """
        check_interpolation(interpolation)
        if transform not in TRANSFORMS:
            raise RegbenchError(f"unknown transform '{transform}'; choose one of {', '.join(TRANSFORMS)}")
        beton = _open_split(dataset, split, data_dir, choice)
        self._indices = _first_of_each_class(beton.labels, dataset, split)
        self._labels = torch.from_numpy(beton.labels)
        self.num_samples = len(self._indices)
        self._random = transform == "crop_flip"
        crop = CropConfig(view=replace(UNCHANGED, crop_scale=crop_scale), size=dataset.image_size)
        if not self._random:
            crop = replace(crop, view=replace(UNCHANGED, flip_p=0.0), cut="center", resize=dataset.eval_resize)
        views = [_View(crop, 0, draws.EVALUATION_VIEW)]
        batch_size = min(batch_size, self.num_samples)
        super().__init__(dataset, beton, views, interpolation, batch_size, seed, device, backend, workers)
        self._device = device

    def __len__(self) -> int:
        """Batches per epoch; the last one may be short."""
        return -(-self.num_samples // self.batch_size)

    def __enter__(self) -> EvalLoader:
        """Return itself."""
        return self

    def epoch(self, e: int = 0) -> Epoch[tuple[Tensor, Tensor]]:
        """The batches of epoch `e`: images (N, C, S, S) float32, normalised, and labels (N,) int64, on the device."""
        order = draws.epoch_order(self._seed, e, self._indices) if self._random else self._indices

        def give(indices: Ints, views: list[Tensor]) -> tuple[Tensor, Tensor]:
            return views[0], self._labels[torch.from_numpy(indices)].to(self._device)

        return self._epoch(order, e, give)


def _open_split(dataset: DatasetConfig, split: str, data_dir: Path, choice: Path | None) -> Beton:
    """A split for evaluation; the test split with the record of the choice only."""
    if split == "test":
        _check_choice(choice)
    return _open(Manifest.load(data_dir, dataset), dataset, split, data_dir)


def _open(manifest: Manifest, dataset: DatasetConfig, split: str, data_dir: Path) -> Beton:
    check_matches(manifest, dataset, data_dir)
    beton = Beton(manifest.split_file(data_dir, split))
    if beton.labels.min() < -1 or beton.labels.max() >= dataset.num_classes:
        raise RegbenchError(
            f"{beton.path} is damaged: it has labels from {beton.labels.min()} to {beton.labels.max()} for "
            f"{dataset.num_classes} classes; write it again: {dataset.prepare_command} --force"
        )
    return beton


def _check_choice(path: Path | None) -> None:
    """Keep the test split closed until it is on disk what was chosen on which split.

    Raises:
        RegbenchError: there is no such record.
    """
    try:
        choice = json.loads(path.read_text()) if path else {}
        selected_on = choice["hyperparameters"]["selected_on"]
    except (OSError, ValueError, KeyError, TypeError):
        selected_on = None
    if selected_on not in ("given", "tuning", "test"):
        raise RegbenchError(
            "the test split is for final scores: it is opened with the record of what was chosen before, and "
            f"{path or 'none was given'} is none"
        )


def _first_of_each_class(labels: Ints, dataset: DatasetConfig, split: str) -> Ints:
    """Indices of the images to use, ascending: in "train" the first `train_per_class` of each class.

    Raises:
        RegbenchError: a class has fewer.
    """
    # Of other sources the file holds no others.
    if split != "train" or dataset.train_per_class is None or dataset.source not in ARRAY_SOURCES:
        return np.arange(len(labels))
    counts = np.bincount(labels, minlength=dataset.num_classes)
    if counts.min() < dataset.train_per_class:
        raise RegbenchError(
            f"data set '{dataset.name}': train_per_class is {dataset.train_per_class}, but class {counts.argmin()} has "
            f"{counts.min()} training images; choose at most {counts.min()}"
        )
    rows = [np.flatnonzero(labels == label)[: dataset.train_per_class] for label in range(dataset.num_classes)]
    return np.sort(np.concatenate(rows))
