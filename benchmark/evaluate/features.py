"""Representations of a split's images by a frozen encoder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from regbench.benchmark.machine.bf16 import fast_bf16
from regbench.benchmark.machine.compute import Compute
from regbench.datasets.config import DatasetConfig
from regbench.datasets.loading.loaders import EvalLoader
from regbench.errors import RegbenchError

T = TypeVar("T")
Batches = Iterable[tuple[Tensor, Tensor]]
Epochs = Callable[[int], Batches]

# Features that need more than this part of a GPU's memory stay in main memory and are moved by
# blocks: beside them lie the network, the features of other splits, and the similarities of kNN.
_DEVICE_SHARE = 1 / 8


class NotFinite(RegbenchError):
    """Representations hold NaN or infinity, or are too long for float32, so that no evaluation
    could score them: the weights have exploded.
    """


def progress_bar(items: Iterable[T], title: str, total: int | None = None, done: int = 0) -> Any:
    """Wrap items in a progress bar, on a terminal only; `done` of `total` are done already."""
    return tqdm(items, title, total, initial=done, disable=None, leave=False)


@dataclass(frozen=True)
class Features:
    """Representations of a split: `x_ND` (n, d) float32 and labels `y_N` (n,) int64, on one
    device.
    """

    x_ND: Tensor
    y_N: Tensor

    def of_classes(self, classes: Tensor) -> Features:
        """Return the features of the images that belong to one of `classes`."""
        chosen_N = torch.isin(self.y_N, classes.to(self.y_N.device))
        return Features(self.x_ND[chosen_N], self.y_N[chosen_N])


@dataclass(frozen=True)
class Encoder:
    """A frozen backbone, as evaluations see it.

    Attributes:
        module: Images (n, c, h, w) to representations (n, dim).
        dim: Width of the representation.
        precision: "bf16" (autocast) or "fp32".
    """

    module: nn.Module
    dim: int
    precision: str = "fp32"

    @torch.no_grad()
    def represent(self, x_NCHW: Tensor) -> Tensor:
        """Return the representations (n, dim) of normalised images, float32, in evaluation mode."""
        device = x_NCHW.device
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16")
        with fast_bf16(device, self.precision), autocast:
            features: Tensor = self.module.eval()(x_NCHW)
        return features.float()


@dataclass(frozen=True)
class Images:
    """A data set's images, as an evaluation reads them.

    Attributes:
        dataset: The data set.
        compute: Folder that the images are read from, and device that they go to.
        choice: Record that opens the test split: nothing may be chosen after it is open.
    """

    dataset: DatasetConfig
    compute: Compute
    choice: Path

    def loader(self, split: str, batch_size: int, **options: Any) -> EvalLoader:
        """Return a loader of a split; `options` as for `EvalLoader`."""
        return EvalLoader(self.dataset, split, batch_size=batch_size, **self.reading(), **options)

    def reading(self) -> dict[str, Any]:
        """Return the options of every loader of these images."""
        compute = self.compute
        return {
            "data_dir": compute.data_dir,
            "device": compute.device,
            "backend": compute.runtime.loader,
            "workers": compute.workers,
            "choice": self.choice,
        }

    def features(
        self, encoder: Encoder, split: str, interpolation: str, batch_size: int
    ) -> tuple[Features, str]:
        """Return the representations of a split's centre crops, in the file's order, and the name
        of the loader that read the images.

        Raises:
            NotFinite: If they are not finite.
        """
        # Features are written to their place batch by batch, so there is no second copy of them at
        # any time. On a GPU they stay there if they need an eighth of its memory at most, else they
        # are in main memory.
        with (
            self.loader(split, batch_size, interpolation=interpolation) as loader,
            loader.epoch() as epoch,
        ):
            place = _place(self.compute.device, 4 * loader.num_samples * encoder.dim)
            x_ND = torch.empty(loader.num_samples, encoder.dim, device=place)
            y_N = torch.empty(loader.num_samples, dtype=torch.int64, device=place)
            first, finite = 0, torch.tensor(True, device=self.compute.device)
            for x_NCHW, y in progress_bar(epoch, f"features of {split}", len(loader)):
                x_BD = encoder.represent(x_NCHW)
                # Added up on the device: to ask in every step would make the GPU wait for the CPU.
                finite &= x_BD.norm(dim=1).isfinite().all()
                batch = slice(first, first + len(y))
                x_ND[batch], y_N[batch] = x_BD, y
                first += len(y)
        if not finite:
            raise NotFinite(f"the representations of the {split} split are not finite in length")
        return Features(x_ND, y_N), loader.backend

    @contextlib.contextmanager
    def augmented(self, config: Any, seed: int) -> Iterator[Epochs]:
        """Give a function that returns the batches of an epoch, by the epoch's number.

        Training images are randomly cropped and flipped. `config` has the settings `batch_size`,
        `crop_scale`, `interpolation` and `epochs`.
        """
        with self.loader(
            "train",
            config.batch_size,
            transform="crop_flip",
            crop_scale=config.crop_scale,
            seed=seed,
            interpolation=config.interpolation,
        ) as loader:

            def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
                with loader.epoch(number) as batches:
                    title = f"epoch {number + 1} of {config.epochs}"
                    yield from progress_bar(batches, title, len(loader))

            yield epoch


def _place(device: torch.device, size_bytes: int) -> torch.device:
    """Return the device that features of a size are kept on."""
    if device.type != "cuda":
        return device
    # The whole memory, not what is free now: the same features then lie in the same place in every
    # run.
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return device if size_bytes <= _DEVICE_SHARE * total_bytes else torch.device("cpu")
