"""The loaders that training and evaluation use: augmented views of the images, or one plain image
with its label.

Images come from one of two backends that deliver the same crops: FFCV (`ffcv_crops`) or a PyTorch
`DataLoader` (`torchvision_crops`). Examples of latent worlds are drawn.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regbench.datasets.config import UNCHANGED, AugmentationConfig, DatasetConfig, Interpolation
from regbench.datasets.loading import draws
from regbench.datasets.loading.epochs import Epoch, EpochLoader
from regbench.datasets.loading.latent_split import LatentSplit
from regbench.datasets.loading.splits import evenly, open_pretraining_split, open_split
from regbench.datasets.loading.views import View, list_views
from regbench.datasets.stored.beton import Beton
from regbench.errors import RegbenchError


class PretrainingLoader(EpochLoader):
    """Augmented views of every training image, two or many, in an order drawn anew for each
    epoch.
    """

    def __init__(
        self,
        dataset: DatasetConfig,
        augmentation: AugmentationConfig,
        *,
        data_dir: Path,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        parts: int = 1,
        labels: bool = False,
        **reading: Any,
    ) -> None:
        """Open the pretraining images of a prepared data set: its "unlabeled" split if it has one
        and no labels are asked for, else "train".

        Args:
            dataset: Data set; `train_per_class` is honoured.
            augmentation: Augmentation of the views.
            data_dir: The folder of all prepared data sets.
            batch_size: Images a batch, in this process.
            rank: This process among `world_size`. Process r gets images r B to (r + 1) B - 1 of
                each global batch of `world_size` x B images (of each part of it), which is the
                batch that one process with that batch size would get.
            world_size: Number of processes.
            parts: Number of parts that each batch is cut into, each with a pass of its own. The
                p-th parts of all processes together hold the images of the p-th part of a single
                process's batch, so that statistics over a pass do not depend on `world_size`.
            labels: Whether to deliver the images' labels, after their views.
            **reading: Further options, see `views.Reading`.
        """
        split, indices = open_pretraining_split(dataset, data_dir)
        if labels and isinstance(split, Beton):
            # Labelled images may be only a part of those to pretrain on.
            split, indices = open_split(dataset, "train", data_dir, None)
            indices = evenly(indices, dataset.pretraining_images or len(indices))
        if batch_size * world_size > len(indices):
            whole = f"{batch_size}"
            if world_size > 1:
                whole += f" x {world_size} processes"
            what = f"batch size {whole} is larger than the {len(indices):,} training images"
            raise RegbenchError(f"{what}; choose at most {len(indices) // world_size}")
        delivered: Tensor | None = None
        if labels and isinstance(split, LatentSplit):
            # The target of a vector is its content, not a class.
            delivered = split.content(np.arange(len(split))).float()
        elif labels:
            delivered = torch.from_numpy(split.labels)
        views = list_views(augmentation.kinds(dataset.image_size))
        interpolation = augmentation.interpolation
        super().__init__(
            dataset, (split, indices), views, interpolation, batch_size, delivered, **reading
        )
        self._rank, self._world_size, self._parts = rank, world_size, parts
        if self.backend == "ffcv":
            # numba reads its compiled code with the first image, or compiles it. Training's time
            # does not include that.
            with self._epoch(self._indices[:1], 0) as first:
                next(first)

    def __len__(self) -> int:
        """Count the batches of an epoch; a last one that would be short is left out."""
        return self.num_samples // (self.batch_size * self._world_size)

    def epoch(self, e: int, first: int = 0) -> Epoch:
        """Start epoch `e` at batch `first`: a (N, C, S, S) for each view, normalised, on the
        device.

        Labels, (N,) int64, come after the views if they were asked for; for vectors their content,
        (N, values) float32.
        """
        order = draws.epoch_order(self._seed, e, self._indices)
        # A last batch that would be short is left out.
        order = order[: len(self) * self.batch_size * self._world_size]
        # Each batch is cut into parts first and each part among the ranks, see `parts`.
        shape = (len(self), self._parts, self._world_size, self.batch_size // self._parts)
        return self._epoch(order.reshape(shape)[first:, :, self._rank].reshape(-1), e)


class ViewLoader(EpochLoader):
    """Two augmented views of some images of a split, which are in the same order in each epoch."""

    def __init__(
        self,
        dataset: DatasetConfig,
        augmentation: AugmentationConfig,
        split: str,
        *,
        images: int,
        data_dir: Path,
        batch_size: int,
        choice: Path | None = None,
        **reading: Any,
    ) -> None:
        """Open a split for measures over the first two views of an augmentation.

        `images` of them are taken at even distances over the file, which may be sorted by class.
        For `choice` see `EvalLoader`, for `reading` see `views.Reading`.
        """
        opened, indices = open_split(dataset, split, data_dir, choice)
        views = list_views(augmentation.pair().kinds(dataset.image_size))
        chosen = opened, evenly(indices, images)
        super().__init__(dataset, chosen, views, augmentation.interpolation, batch_size, **reading)

    def epoch(self, e: int) -> Epoch:
        """Start epoch `e`: pairs of (N, C, S, S) float32, normalised, on the device.

        The last batch may be short.
        """
        return self._epoch(self._indices, e)


class EvalLoader(EpochLoader):
    """Images of a split with their labels, each once per epoch."""

    def __init__(
        self,
        dataset: DatasetConfig,
        split: str,
        *,
        data_dir: Path,
        batch_size: int,
        transform: Literal["center", "crop_flip"] = "center",
        interpolation: Interpolation = "bicubic",
        crop_scale: tuple[float, float] = (0.08, 1.0),
        choice: Path | None = None,
        **reading: Any,
    ) -> None:
        """Open a split for evaluation.

        Args:
            dataset: Data set; `train_per_class` is honoured for "train".
            split: "train", "tuning" or "test".
            data_dir: The folder of all prepared data sets.
            batch_size: Images a batch; at most all of them are taken.
            transform: "center": the shorter side resized to `eval_resize` px, the central
                `image_size` px kept, in the file's order; "crop_flip": random resized crop and
                flip, in an order drawn from (seed, epoch).
            interpolation: "bicubic", "bilinear" or "area".
            crop_scale: Range of the crop's area, for "crop_flip".
            choice: Record of what was chosen, and on which split, before "test" is opened.
            **reading: Further options, see `views.Reading`.
        """
        opened = open_split(dataset, split, data_dir, choice)
        self._random = transform == "crop_flip"
        kind = replace(UNCHANGED, size=dataset.image_size, crop_scale=crop_scale)
        if not self._random:
            kind = replace(kind, flip_p=0.0, cut="center", resize=dataset.eval_resize)
        views = [View(kind, 0, draws.EVALUATION_VIEW)]
        labels = torch.from_numpy(opened[0].labels)
        super().__init__(dataset, opened, views, interpolation, batch_size, labels, **reading)

    def __len__(self) -> int:
        """Count the batches of an epoch; the last one may be short."""
        return -(-self.num_samples // self.batch_size)

    def epoch(self, e: int = 0) -> Epoch:
        """Start epoch `e`: images (N, C, S, S) float32, normalised, and labels (N,) int64, on
        the device.
        """
        order = draws.epoch_order(self._seed, e, self._indices) if self._random else self._indices
        return self._epoch(order, e)
