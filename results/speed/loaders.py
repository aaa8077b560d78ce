"""Compares loaders: `python results/speed/loaders.py [SETTINGS]`, source images a second.

Each delivers two augmented views of every image, normalised, in float32, on the device: regbench's
loaders, and torchvision's as its users have it. Two choices are made in torchvision's favour: it
blurs with Pillow, as the published codes of VICReg and DINO do, and its workers read images from
the memory map instead of opening files. FFCV's own loader takes no part, because FFCV has no blur.

Without settings the images are made: JPEGs of about ImageNet's sizes. Settings such as
`dataset=in20 runtime.data_dir=FOLDER` choose a prepared data set. All loaders have the cores of
this process (`taskset` gives fewer), and take turns.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path

import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from regbench.datasets.config import DatasetConfig, Interpolation, ViewConfig
from regbench.datasets.loading.loaders import PretrainingLoader
from regbench.datasets.stored.beton import RAW, Beton
from regbench.instruments.cost.harness import in_words, machine
from turns import compare
from made_images import SCENARIOS, PreparedImages, make_images

ROUNDS, IMAGES_A_TURN = 5, 2048
Pair = tuple[Tensor, ...]
Turn = Callable[[], Iterable[Pair]]


def blur(image: Image.Image, sigma: tuple[float, float]) -> Image.Image:
    """Blur with Pillow, by a random amount."""
    return image.filter(ImageFilter.GaussianBlur(random.uniform(*sigma)))


def torchvision_chain(view: ViewConfig, dataset: DatasetConfig) -> transforms.Compose:
    """Write the augmentation of a view in torchvision's transforms of Pillow images."""
    bicubic = transforms.InterpolationMode.BICUBIC
    jitter = transforms.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)
    steps = [
        transforms.RandomResizedCrop(
            dataset.image_size, view.crop_scale, view.crop_ratio, interpolation=bicubic
        ),
        transforms.RandomHorizontalFlip(view.flip_p),
        transforms.RandomApply([jitter], view.jitter_p),
        transforms.RandomGrayscale(view.grayscale_p),
        transforms.RandomApply(
            [transforms.Lambda(partial(blur, sigma=view.blur_sigma))], view.blur_p
        ),
        transforms.RandomSolarize(view.solarize_threshold, view.solarize_p),
        transforms.ToTensor(),
        transforms.Normalize(dataset.mean, dataset.std),
    ]
    return transforms.Compose(steps)


class StoredImages(Dataset[Pair]):
    """Reads an image with Pillow and puts it through two chains of torchvision."""

    def __init__(self, images: PreparedImages) -> None:
        """Open the images."""
        self._beton = Beton(images.file)
        self._channels = images.dataset.channels
        self._chains = []
        for view in images.augmentation.views.values():
            self._chains.append(torchvision_chain(view, images.dataset))

    def __len__(self) -> int:
        """Count the images."""
        return len(self._beton)

    def __getitem__(self, index: int) -> Pair:
        """Make the views of an image."""
        if self._beton.modes[index] == RAW:
            image = Image.fromarray(self._beton.image(index))
        else:
            image = Image.open(BytesIO(self._beton.stored_bytes(index).tobytes())).convert("RGB")
        if self._channels == 1:
            image = image.getchannel(0)
        return tuple(chain(image) for chain in self._chains)


def torchvision_turn(
    prepared: PreparedImages, batch_size: int, workers: int, device: torch.device
) -> Turn:
    """Open torchvision's usual loader; what is returned gives the batches of a turn."""
    images = StoredImages(prepared)
    order: list[int] = []
    loader = DataLoader(
        images,
        batch_size=batch_size,
        sampler=order,
        num_workers=workers,
        # Workers that start anew would be most of a short turn.
        persistent_workers=True,
        # Only from pinned memory does a copy to a GPU run beside other work.
        pin_memory=device.type == "cuda",
    )

    def batches() -> Iterable[Pair]:
        # An epoch that is left early would leave workers busy, so it has the images of the turn.
        order[:] = torch.randperm(len(images))[:IMAGES_A_TURN].tolist()
        for views in loader:
            yield tuple(view.to(device, non_blocking=True) for view in views)

    return batches


def regbench_turn(
    images: PreparedImages,
    batch_size: int,
    workers: int,
    device: torch.device,
    *,
    interpolation: Interpolation,
    backend: str,
) -> Turn:
    """Open regbench's loader; what is returned gives the batches of a turn."""
    loader = PretrainingLoader(
        images.dataset,
        replace(images.augmentation, interpolation=interpolation),
        data_dir=images.data_dir,
        batch_size=batch_size,
        device=device,
        backend=backend,
        workers=workers,
    )
    epochs = count()
    taken = min(len(loader), IMAGES_A_TURN // batch_size)
    # The end of an epoch, because one that is left early leaves batches in the making.
    return lambda: loader.epoch(next(epochs), first=len(loader) - taken)


def images_per_s(batches: Turn, device: torch.device) -> float:
    """Take a turn, and return source images a second."""
    images, began_s = 0, time.perf_counter()
    for first, second in batches():
        # A loader that delivered less would look fast.
        assert first.shape == second.shape and first.dtype == second.dtype == torch.float32
        images += len(first)
    if device.type == "cuda":
        # The host has the tensors before the device has filled them.
        torch.cuda.synchronize(device)
    return images / (time.perf_counter() - began_s)


LOADERS: dict[str, Callable[..., Turn]] = {
    "torchvision PIL": torchvision_turn,
    "without FFCV": partial(regbench_turn, interpolation="bicubic", backend="torchvision"),
}
if importlib.util.find_spec("ffcv"):
    LOADERS["FFCV"] = partial(regbench_turn, interpolation="bicubic", backend="ffcv")
    LOADERS["FFCV, area filter"] = partial(regbench_turn, interpolation="area", backend="ffcv")


def compare_loaders(images: PreparedImages, device: torch.device, rounds: int = ROUNDS) -> None:
    """Print the images a second of each loader, and the ratio to torchvision's."""
    workers = len(os.sched_getaffinity(0))
    # Small images come in larger batches, as they would in training.
    batch_size = 64 if images.dataset.image_size > 96 else 512
    batch_size = min(batch_size, len(Beton(images.file)))
    turns = {}
    for name, opened in LOADERS.items():
        turns[name] = partial(images_per_s, opened(images, batch_size, workers, device), device)
    print(f"\n{images}, batches of {batch_size} on {device}, source images a second:")
    compare(turns, rounds, "torchvision PIL")


def main() -> None:
    """Compare on the images that are asked for, on the CPU and on a GPU if there is one."""
    packages = ("torch", "torchvision", "pillow", "ffcv", "numba", "numpy")
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    devices = ["cuda"] * torch.cuda.is_available() + ["cpu"]
    print(in_words(machine(devices[0], packages, cores=cores, rounds=ROUNDS)))
    with tempfile.TemporaryDirectory(prefix="regbench-loaders-") as folder:
        if sys.argv[1:]:
            chosen = [PreparedImages.of(sys.argv[1:])]
        else:
            chosen = [make_images(scenario, Path(folder)) for scenario in SCENARIOS.values()]
        for images in chosen:
            for device in devices:
                compare_loaders(images, torch.device(device))


if __name__ == "__main__":
    main()
