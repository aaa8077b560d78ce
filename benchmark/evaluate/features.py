"""Representations of a split's images by a frozen backbone."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from regbench.benchmark.train import Compute
from regbench.datasets.config import AugmentationConfig, DatasetConfig
from regbench.datasets.loader import EvalLoader, ViewLoader

Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Features:
    """Representations of a split: `x_ND` (n, d) float32 and labels `y_N` (n,) int64."""

    x_ND: Tensor
    y_N: Tensor


@dataclass(frozen=True)
class Backbone:
    """What is evaluated.

    Attributes:
        module: Images (n, c, h, w) to representations (n, dim).
        dim: Width of the representation.
    """

    module: nn.Module
    dim: int

    @torch.no_grad()
    def represent(self, x_NCHW: Tensor) -> Tensor:
        """The representations (n, dim) of normalised images, float32, in evaluation mode."""
        features: Tensor = self.module.eval()(x_NCHW)
        return features.float()


@dataclass(frozen=True)
class Images:
    """The images of a data set, as an evaluation reads them.

    Attributes:
        dataset: Which.
        compute: From where and to which device.
        choice: The record that opens the test split.
    """

    dataset: DatasetConfig
    compute: Compute
    choice: Path

    def loader(self, split: str, batch_size: int, **options: Any) -> EvalLoader:
        """A loader of a split; `options` as for `EvalLoader`."""
        compute = self.compute
        return EvalLoader(
            self.dataset,
            split,
            data_dir=compute.data_dir,
            batch_size=batch_size,
            device=compute.device,
            backend=compute.loader,
            workers=compute.workers,
            choice=self.choice,
            **options,
        )

    def features(self, backbone: Backbone, split: str, interpolation: str, batch_size: int) -> tuple[Features, str]:
        """The representations of a split's images, centre crops, in the file's order; and what read the images."""
        with self.loader(split, batch_size, interpolation=interpolation) as loader, loader.epoch() as epoch:
            bar = tqdm(epoch, f"features of {split}", len(loader), disable=not sys.stderr.isatty(), leave=False)
            pairs = [(backbone.represent(x), y) for x, y in bar]
        return Features(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])), loader.backend

    def views(
        self,
        backbone: Backbone,
        augmentation: AugmentationConfig,
        split: str,
        *,
        images: int,
        views: int,
        seed: int,
        batch_size: int,
    ) -> tuple[Tensor, str]:
        """The representations (n, views, d) of augmented views of images of a split; and what read the images.

        Views come in pairs, of the first and of the second view's augmentation; `seed` decides them.
        """
        compute = self.compute
        with ViewLoader(
            self.dataset,
            augmentation,
            split,
            images=images,
            data_dir=compute.data_dir,
            batch_size=batch_size,
            seed=seed,
            device=compute.device,
            backend=compute.loader,
            workers=compute.workers,
            choice=self.choice,
        ) as loader:
            epochs = []
            pairs = range(-(-views // 2))
            for e in tqdm(pairs, f"views of {split}", disable=not sys.stderr.isatty(), leave=False):
                with loader.epoch(e) as epoch:
                    epochs.append(torch.cat([torch.stack([backbone.represent(x) for x in two], 1) for two in epoch]))
        return torch.cat(epochs, dim=1)[:, :views], loader.backend
