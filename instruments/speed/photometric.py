"""Measures the photometric augmentation: python instruments/speed/photometric.py [--images N] [--size S] [--rounds R].

Ours in batches and, on a CPU with numba, image by image as in the loader, kornia's in batches (if it is installed: pip
install kornia) and torchvision's v2 transforms image by image, because these draw once for a whole batch. All give
every image parameters of its own: the paper's two views, from uint8 crops on the device to float32. They take turns,
and ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regbench.datasets.config import AugmentationConfig, ViewConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.photometric import blur_taps, chains, photometric
from regbench.instruments.cost.harness import Column, Machine, median, number, ratios, span, table, take_turns

View = Callable[[Tensor], Tensor]


def _drawn(view: ViewConfig, images: int) -> npt.NDArray[np.float64]:
    key = draws.keys(0, time.perf_counter_ns(), np.arange(images), draws.PHOTOMETRIC)
    return chains(draws.photometric_draws(key, view), view, 3)


def ours(view: ViewConfig, size: int) -> View:
    """Make the batched one of `regbench.datasets.loading.photometric`."""

    def run(crops_NHWC: Tensor) -> Tensor:
        return photometric(crops_NHWC, _drawn(view, len(crops_NHWC)))

    return run


def ours_in_threads(view: ViewConfig, size: int) -> View:
    """Make the one of `regbench.datasets.loading.kernels`, in a thread for each core, as in the loader."""
    from regbench.datasets.loading.kernels import finish

    pool = ThreadPoolExecutor(torch.get_num_threads())
    unchanged = np.ones(3, np.float32), np.zeros(3, np.float32)

    def run(crops_NHWC: Tensor) -> Tensor:
        crops, chain = crops_NHWC.numpy(), _drawn(view, len(crops_NHWC))
        out = np.empty(crops.shape, np.float32)
        list(pool.map(lambda n: finish(crops[n], chain[n], blur_taps(size), *unchanged, out[n]), range(len(crops))))
        return torch.from_numpy(out).permute(0, 3, 1, 2)

    return run


def kornias(view: ViewConfig, size: int) -> View:
    """Make kornia's own transforms, whose parameters are drawn for each image."""
    from kornia import augmentation as k

    taps = blur_taps(size)
    chain = k.AugmentationSequential(
        k.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue, p=view.jitter_p),
        k.RandomGrayscale(p=view.grayscale_p),
        k.RandomGaussianBlur((taps, taps), view.blur_sigma, p=view.blur_p),
        k.RandomSolarize(thresholds=(view.solarize_threshold / 255,) * 2, additions=(0.0, 0.0), p=view.solarize_p),
        data_keys=["input"],
    )

    def run(crops_NHWC: Tensor) -> Tensor:
        done: Tensor = chain(crops_NHWC.permute(0, 3, 1, 2).to(torch.float32).div_(255))
        return done

    return run


def torchvisions(view: ViewConfig, size: int) -> View:
    """Make those of torchvision, one image after the other."""
    from torchvision.transforms import v2

    jitter = v2.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)
    chain: Any = v2.Compose(
        [
            v2.RandomApply([jitter], view.jitter_p),
            v2.RandomGrayscale(view.grayscale_p),
            v2.RandomApply([v2.GaussianBlur(blur_taps(size), view.blur_sigma)], view.blur_p),
            v2.RandomSolarize(view.solarize_threshold, view.solarize_p),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )

    def run(crops_NHWC: Tensor) -> Tensor:
        return torch.stack([chain(image) for image in crops_NHWC.permute(0, 3, 1, 2)])

    return run


def main() -> None:
    """Print source images a second, two views of each, and the ratio to torchvision's."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--images", type=int, default=64, help="in a batch")
    parser.add_argument("--size", type=int, default=224, help="px")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.images, arguments.size, arguments.size, 3)
    crops_NHWC = torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(device)
    makers = {"torchvision v2": torchvisions, "regbench, in batches": ours}
    if device.type == "cpu" and importlib.util.find_spec("numba"):
        makers["regbench, image by image"] = ours_in_threads
    if importlib.util.find_spec("kornia"):
        makers["kornia"] = kornias
    else:
        print("kornia is not installed and left out")
    augmentation = AugmentationConfig()

    def rate(views: Sequence[View]) -> float:
        began_s = time.perf_counter()
        for view in views:
            assert view(crops_NHWC).shape == (arguments.images, 3, arguments.size, arguments.size)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return len(crops_NHWC) / (time.perf_counter() - began_s)

    turns = {
        name: partial(rate, [make(view, arguments.size) for view in augmentation.views.values()])
        for name, make in makers.items()
    }
    take_turns(turns, 1)  # warms up
    rates = take_turns(turns, arguments.rounds)
    columns = (
        Column[str]("", str, "left"),
        Column[str]("images/s", lambda name: number(median(rates[name]))),
        Column[str]("min–max", lambda name: span(rates[name])),
        Column[str]("ratio", lambda name: number(median(ratios(rates[name], rates["torchvision v2"])))),
        Column[str]("min–max", lambda name: span(ratios(rates[name], rates["torchvision v2"]))),
    )
    settings = {"images": arguments.images, "px": arguments.size, "rounds": arguments.rounds}
    print(Machine.here(device.type, **settings), table(list(rates), columns), sep="\n\n")


if __name__ == "__main__":
    main()
