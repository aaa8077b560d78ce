"""The loaders that `regbench loader-bench` compares.

Every contestant reads the stored bytes of one `.beton` file and delivers pairs of batches, two views of each image:

- "crops": uint8, cropped, resized and flipped; the part that only a CPU does;
- "views": float32, with the whole chain, normalised, on the device.

The contestants of others are written as their users have them. Two choices are made in their favour: torchvision's PIL
chain blurs with Pillow, as the published codes of VICReg and DINO do (torchvision's own `GaussianBlur` on 23 taps is
several times slower), and its workers read the images from the memory map instead of opening files.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from regbench.datasets.beton import RAW, Beton
from regbench.datasets.config import DatasetConfig, Interpolation, ViewConfig, ViewsConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.crops import CropLoader, CropShape, Ints, boxes_of
from regbench.datasets.loading.loaders import PretrainingLoader
from regbench.datasets.loading.photometric import blur_taps
from regbench.datasets.loading.torchvision_crops import TorchvisionCrops
from regbench.instruments.cost.images import PreparedImages

Pair = tuple[Tensor, Tensor]
# Gives at least so many batches; when it ends, nothing is at work any more.
Batches = Callable[[int], Iterator[Pair]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a contestant is to load, and with what.

    Attributes:
        images: A prepared data set; each contestant has the filter of its own.
        workers: Threads or worker processes.
        device: Where views are delivered.
        batch_size: Images a batch.
    """

    images: PreparedImages
    workers: int
    device: str
    batch_size: int

    @staticmethod
    def of(images: PreparedImages, workers: int, device: str) -> Task:
        """Choose the batch: small images come in larger batches, as they would in training."""
        at_once = 64 if images.dataset.image_size > 96 else 512
        return Task(images=images, workers=workers, device=device, batch_size=min(at_once, len(Beton(images.file))))

    @property
    def dataset(self) -> DatasetConfig:
        """The configuration of the images."""
        return self.images.dataset

    @property
    def views(self) -> tuple[ViewsConfig, ViewsConfig]:
        """The augmentation of each."""
        first, second = self.images.augmentation.views.values()
        return first, second

    def order(self, images: int, count: int) -> Ints:
        """List the images of `count` batches: all in random order, again and again."""
        passes = -(-count * self.batch_size // images)
        generator = np.random.default_rng(0)
        order = np.concatenate([generator.permutation(images) for _ in range(passes)])
        return order[: count * self.batch_size]


# ---------------------------------------------------------------------------------------------------- torchvision


class _PillowBlur:
    """Gaussian blur by Pillow, with a standard deviation drawn for each image."""

    def __init__(self, sigma: tuple[float, float]) -> None:
        self._sigma = sigma

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(*self._sigma)))


def _chain(task: Task, view: ViewConfig, part: str, version: Any, blur: Any, last: list[Any]) -> Any:
    """Make one view's transforms; `version` is `torchvision.transforms` or its `v2`."""
    interpolation = version.InterpolationMode.BICUBIC
    size = task.dataset.image_size
    steps = [
        version.RandomResizedCrop(size, view.crop_scale, view.crop_ratio, interpolation=interpolation, antialias=True),
        version.RandomHorizontalFlip(view.flip_p),
    ]
    if part == "views":
        jitter = version.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)
        steps += [
            version.RandomApply([jitter], view.jitter_p),
            version.RandomGrayscale(view.grayscale_p),
            version.RandomApply([blur], view.blur_p),
            version.RandomSolarize(view.solarize_threshold, view.solarize_p),
        ]
    return version.Compose([*steps, *last])


class _TwoViews(Dataset[Any]):
    """Reads an image with Pillow and puts it through two chains, after what both have in common."""

    def __init__(self, task: Task, chains: Sequence[Any], common: Callable[[Any], Any] = lambda image: image) -> None:
        self.beton = Beton(task.images.file)
        self._grey = task.dataset.channels == 1
        self._chains = chains
        self._common = common

    def __getitem__(self, index: int) -> Pair:
        if self.beton.modes[index] == RAW:
            image = Image.fromarray(self.beton.image(index))
        else:
            image = Image.open(BytesIO(self.beton.stored_bytes(index).tobytes())).convert("RGB")
        if self._grey:
            image = image.getchannel(0)
        shared = self._common(image)
        first, second = (chain(shared) for chain in self._chains)
        return first, second


def _data_loader(task: Task, images: Any) -> Batches:
    device = torch.device(task.device)
    order: list[int] = []  # filled anew for each pass
    loader = DataLoader(
        images,
        batch_size=task.batch_size,
        sampler=order,
        num_workers=task.workers,
        persistent_workers=True,
        pin_memory=device.type == "cuda",
    )

    def batches(count: int) -> Iterator[Pair]:
        order[:] = task.order(len(images.beton), count).tolist()
        for first, second in loader:
            yield first.to(device, non_blocking=True), second.to(device, non_blocking=True)

    return batches


def _torchvision_pil(task: Task, part: str, interpolation: Interpolation) -> Batches:
    from torchvision import transforms

    last = [transforms.PILToTensor()]
    if part == "views":
        last = [transforms.ToTensor(), transforms.Normalize(task.dataset.mean, task.dataset.std)]
    chains = [_chain(task, view, part, transforms, _PillowBlur(view.blur_sigma), last) for view in task.views]
    return _data_loader(task, _TwoViews(task, chains))


def _torchvision_v2(task: Task, part: str, interpolation: Interpolation) -> Batches:
    """Load uint8 tensors; Pillow decodes, because torchvision's own decoder is to be removed."""
    from torchvision.transforms import v2

    last: list[Any] = []
    if part == "views":
        last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(task.dataset.mean, task.dataset.std)]
    taps = blur_taps(task.dataset.image_size)
    chains = [_chain(task, view, part, v2, v2.GaussianBlur(taps, view.blur_sigma), last) for view in task.views]
    return _data_loader(task, _TwoViews(task, chains, v2.functional.pil_to_tensor))


# ----------------------------------------------------------------------------------------------------------- FFCV


def _ffcv(task: Task, part: str, interpolation: Interpolation) -> Batches:
    """Load with FFCV's own decoder, once for each view."""
    from ffcv.fields.decoders import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.pipeline.pipeline_spec import PipelineSpec
    from ffcv.transforms import RandomHorizontalFlip, ToTensor

    size = (task.dataset.image_size, task.dataset.image_size)

    def view(config: ViewConfig) -> Any:
        decoder = RandomResizedCropRGBImageDecoder(size, config.crop_scale, config.crop_ratio)
        return PipelineSpec("image", decoder, [RandomHorizontalFlip(config.flip_p), ToTensor()])

    first, second = task.views
    loader = Loader(
        str(task.images.file),
        task.batch_size,
        num_workers=task.workers,
        order=OrderOption.RANDOM,
        seed=0,
        pipelines={"image": view(first), "second": view(second), "label": None},
    )

    def batches(count: int) -> Iterator[Pair]:
        # Whole epochs, because leaving one early leaks its thread.
        for _ in range(-(-count // len(loader))):
            yield from loader

    return batches


# ------------------------------------------------------------------------------------------------------- regbench


def _regbench(task: Task, part: str, interpolation: Interpolation, backend: str = "ffcv") -> Batches:
    return (_regbench_crops if part == "crops" else _regbench_views)(task, interpolation, backend)


def _regbench_crops(task: Task, interpolation: Interpolation, backend: str) -> Batches:
    beton, size = Beton(task.images.file), task.dataset.image_size
    shape = CropShape(sizes=(size, size), channels=task.dataset.channels, interpolation=interpolation)
    crops: CropLoader
    if backend == "torchvision":
        crops = TorchvisionCrops(beton, shape, task.workers, pin_memory=False)
    else:
        from regbench.datasets.loading.ffcv_crops import FfcvCrops

        crops = FfcvCrops(beton, shape, task.batch_size, task.workers, normalize=None)
    epochs = itertools.count()

    def batches(count: int) -> Iterator[Pair]:
        order, epoch = task.order(len(beton), count), next(epochs)

        def draw(indices: Ints) -> Ints:
            """Draw both views' boxes, (N, 2, 9)."""
            both = []
            for number, view in enumerate(task.views):
                key = draws.keys(0, epoch, indices, draws.CROP, number)
                both.append(boxes_of(view.of_size(size), 0, key, beton.heights[indices], beton.widths[indices]))
            return np.stack(both, axis=1)

        for indices, flat in crops.stream(order, task.batch_size, draw):
            first, second = flat.view(2, len(indices), size, size, -1)
            yield first, second

    return batches


def _regbench_views(task: Task, interpolation: Interpolation, backend: str) -> Batches:
    loader = PretrainingLoader(
        task.dataset,
        replace(task.images.augmentation, interpolation=interpolation),
        data_dir=task.images.data_dir,
        batch_size=task.batch_size,
        seed=0,
        device=torch.device(task.device),
        backend=backend,
        workers=task.workers,
    )
    epochs = itertools.count()

    def batches(count: int) -> Iterator[Pair]:
        while count > 0:
            taken = min(count, len(loader))
            yield from loader.epoch(next(epochs), first=len(loader) - taken)
            count -= taken

    return batches


def _regbench_torchvision(task: Task, part: str, interpolation: Interpolation) -> Batches:
    return _regbench(task, part, interpolation, "torchvision")


# ---------------------------------------------------------------------------------------------- the contestants


@dataclass(frozen=True)
class Contestant:
    """A loader with a filter, and what it is asked for.

    Attributes:
        name: Whose it is.
        interpolation: The filter.
        parts: What it can deliver: "crops", "views".
        needs_ffcv: Whether FFCV must be installed.
        make: Opens it.
    """

    name: str
    interpolation: Interpolation
    parts: tuple[str, ...]
    needs_ffcv: bool
    make: Callable[[Task, str, Interpolation], Batches]


PARTS = ("crops", "views")
BASELINE = "torchvision PIL"
CONTESTANTS = (
    Contestant(BASELINE, "bicubic", PARTS, False, _torchvision_pil),
    Contestant("torchvision v2", "bicubic", PARTS, False, _torchvision_v2),
    Contestant("FFCV, a decode per view", "area", ("crops",), True, _ffcv),
    Contestant("regbench without FFCV", "bicubic", PARTS, False, _regbench_torchvision),
    Contestant("regbench", "bicubic", PARTS, True, _regbench),
    Contestant("regbench", "area", PARTS, True, _regbench),
)
