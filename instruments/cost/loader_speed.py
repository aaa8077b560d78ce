"""Compare the loaders' speed: regbench's and torchvision's on the same images and the same cores.

Every contestant reads the stored bytes of one `.beton` file and delivers pairs of batches, two
augmented views of each image: float32, normalised, on the device. They take turns in rounds, with
nothing left at work between two turns. What comes before the rounds (compiling, starting workers,
filling the page cache) is not counted.

Torchvision's loader is written as its users have it. Two choices are made in its favour: it blurs
with Pillow, as the published codes of VICReg and DINO do (torchvision's own `GaussianBlur` on 23
taps is several times slower), and its workers read the images from the memory map instead of
opening files.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any

import pandas as pd
import torch
from PIL import Image, ImageFilter
from tabulate import tabulate
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from regbench.datasets.config import Interpolation, ViewConfig
from regbench.datasets.loading.loaders import PretrainingLoader
from regbench.datasets.stored.beton import RAW, Beton
from regbench.errors import RegbenchError
from regbench.instruments.cost.harness import machine, median, number, span, take_turns
from regbench.instruments.cost.images import PreparedImages
from regbench.processes import Place, Processes, WorkFailed, one_line

log = logging.getLogger("regbench")

Pair = tuple[Tensor, Tensor]
# Gives so many batches; when it ends, nothing is at work any more.
Batches = Callable[[int], Iterator[Pair]]


@dataclass(frozen=True)
class Contestant:
    """A loader with a filter.

    Attributes:
        name: Name of the library.
        interpolation: The filter.
        backend: Backend of regbench's loader; None for torchvision's usual code.
    """

    name: str
    interpolation: Interpolation
    backend: str | None

    def open(
        self, images: PreparedImages, batch_size: int, workers: int, device: torch.device
    ) -> Batches:
        """Open the loader."""
        if self.backend is None:
            return _torchvision(images, batch_size, workers, device)
        loader = PretrainingLoader(
            images.dataset,
            replace(images.augmentation, interpolation=self.interpolation),
            data_dir=images.data_dir,
            batch_size=batch_size,
            seed=0,
            device=device,
            backend=self.backend,
            workers=workers,
        )
        epochs = itertools.count()

        def batches(count: int) -> Iterator[Pair]:
            while count > 0:
                # The end of an epoch, not its beginning: one that is left early leaves batches in
                # the making.
                taken = min(count, len(loader))
                yield from loader.epoch(next(epochs), first=len(loader) - taken)
                count -= taken

        return batches


# The first is what the others are compared with.
CONTESTANTS = (
    Contestant("torchvision PIL", "bicubic", None),
    Contestant("regbench without FFCV", "bicubic", "torchvision"),
    Contestant("regbench", "bicubic", "ffcv"),
    Contestant("regbench", "area", "ffcv"),
)


def _blur(image: Image.Image, sigma: tuple[float, float]) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(random.uniform(*sigma)))


class _TwoViews(Dataset[Pair]):
    """Reads an image with Pillow and puts it through two chains of torchvision."""

    def __init__(self, images: PreparedImages) -> None:
        self._beton = Beton(images.file)
        self._dataset = images.dataset
        first, second = images.augmentation.views.values()
        self._first, self._second = self._chain(first), self._chain(second)

    def _chain(self, view: ViewConfig) -> Any:
        bicubic = transforms.InterpolationMode.BICUBIC
        size = self._dataset.image_size
        jitter = transforms.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)
        blur = transforms.Lambda(partial(_blur, sigma=view.blur_sigma))
        steps = [
            transforms.RandomResizedCrop(
                size, view.crop_scale, view.crop_ratio, interpolation=bicubic
            ),
            transforms.RandomHorizontalFlip(view.flip_p),
            transforms.RandomApply([jitter], view.jitter_p),
            transforms.RandomGrayscale(view.grayscale_p),
            transforms.RandomApply([blur], view.blur_p),
            transforms.RandomSolarize(view.solarize_threshold, view.solarize_p),
            transforms.ToTensor(),
            transforms.Normalize(self._dataset.mean, self._dataset.std),
        ]
        return transforms.Compose(steps)

    def __len__(self) -> int:
        return len(self._beton)

    def __getitem__(self, index: int) -> Pair:
        if self._beton.modes[index] == RAW:
            image = Image.fromarray(self._beton.image(index))
        else:
            image = Image.open(BytesIO(self._beton.stored_bytes(index).tobytes())).convert("RGB")
        if self._dataset.channels == 1:
            image = image.getchannel(0)
        return self._first(image), self._second(image)


def _torchvision(
    prepared: PreparedImages, batch_size: int, workers: int, device: torch.device
) -> Batches:
    images = _TwoViews(prepared)
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

    def batches(count: int) -> Iterator[Pair]:
        # Exactly what is asked for: an epoch that is left early leaves workers busy with the
        # batches after it.
        order[:] = torch.randint(len(images), (count * batch_size,)).tolist()
        for first, second in loader:
            yield first.to(device, non_blocking=True), second.to(device, non_blocking=True)

    return batches


class _Turn:
    """A contestant that has warmed up; calling it loads some batches.

    Attributes:
        delivered: Type and shape of one view's batch.
    """

    def __init__(
        self, batches: Batches, workers: int, device: torch.device, seconds: float
    ) -> None:
        """Load more and more until a turn takes about so many seconds."""
        self._batches, self._device = batches, device
        # In multiples of the workers, so that each of these has the same to do.
        self._count = workers
        # The first call compiles and starts workers; only the second tells how long a turn takes.
        self()
        self()
        # From half of the time on, a turn tells the rate well enough to set the count once.
        while self._took_s < seconds / 2:
            self._count *= 2
            self()
        self._count = max(1, round(self._count * seconds / self._took_s / workers)) * workers

    def __call__(self) -> float:
        """Take a turn, and return source images a second."""
        images, view = 0, torch.empty(0)
        began_s = time.perf_counter()
        for view, second in self._batches(self._count):
            # A contestant that delivered less would look fast.
            assert view.shape == second.shape and view.dtype == second.dtype
            images += len(view)
        if self._device.type == "cuda":
            # The host has the tensors before the device has filled them.
            torch.cuda.synchronize(self._device)
        self._took_s = time.perf_counter() - began_s
        self.delivered = (
            f"{str(view.dtype).removeprefix('torch.')} {'x'.join(map(str, view.shape))}"
        )
        return images / self._took_s


def measure(
    chosen: Sequence[PreparedImages],
    *,
    workers: int,
    seconds: float,
    rounds: int,
    contestants: Sequence[Contestant] = CONTESTANTS,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure contestants on all images, on the CPU and on the GPU if there is one.

    Args:
        chosen: Images to load.
        workers: Threads or worker processes of each, and the number of cores that are used.
        seconds: About so long is one contestant's turn in a round.
        rounds: Number of rounds.
        contestants: Loaders to compare; the others are compared with the first.

    Returns:
        A line for each contestant and round, or one for a contestant that was left out; and the
        machine.

    Raises:
        RegbenchError: Images that are not prepared, or a process that ended.
    """
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    packages = ("torch", "torchvision", "pillow", "ffcv", "numba", "numpy")
    lines = []
    cores = os.sched_getaffinity(0)
    # Libraries may start threads by the number of cores that they see.
    os.sched_setaffinity(0, sorted(cores)[:workers])
    try:
        here = machine("cpu", packages, **gpu, workers=workers, rounds=rounds, seconds=seconds)
        for images in chosen:
            for device in ("cpu", "cuda") if gpu else ("cpu",):
                log.info(
                    "%s, delivered on %s: %d rounds of %g s each", images, device, rounds, seconds
                )
                # A process of its own, so that no threads are left from the images before.
                with Processes(1, _place, threads=workers) as process:
                    lines += process.ask(
                        _measure_images, images, device, workers, seconds, rounds, contestants
                    )[0]
    except WorkFailed as error:
        raise RegbenchError(f"the loaders could not be compared: {error}") from error
    finally:
        os.sched_setaffinity(0, cores)
    return lines, here


def _place(here: Place) -> Place:
    return here


def _measure_images(
    here: Place,
    images: PreparedImages,
    device_name: str,
    workers: int,
    seconds: float,
    rounds: int,
    contestants: Sequence[Contestant],
) -> list[dict[str, Any]]:
    """Measure all contestants on the same images, in turns."""
    warnings.simplefilter("ignore")
    device = torch.device(device_name)
    # Small images come in larger batches, as they would in training.
    batch_size = min(64 if images.dataset.image_size > 96 else 512, len(Beton(images.file)))
    turns: dict[Contestant, _Turn] = {}
    notes: dict[Contestant, str] = {}
    for each in contestants:
        try:
            turns[each] = _Turn(
                each.open(images, batch_size, workers, device), workers, device, seconds
            )
        except Exception as error:
            notes[each] = f"left out: {one_line(error)}"
    rates = take_turns(turns, rounds)
    base = rates.get(contestants[0])
    lines: list[dict[str, Any]] = []
    for each in contestants:
        line = {"images": images.dataset.name, "device": device_name, "contestant": each.name}
        line |= {"interpolation": each.interpolation, "note": notes.get(each, "")}
        if each in notes:
            lines.append(line)
            continue
        line["delivered"] = turns[each].delivered
        for i, rate in enumerate(rates[each]):
            ratio = rate / base[i] if base else None
            lines.append({**line, "round": i + 1, "img_per_s": rate, "ratio": ratio})
    return lines


_HEADS = ("", "filter", "images/s", "min–max", "views/s", "ratio", "min–max", "delivered")
_ALIGN = ("left", "left", *["right"] * 5, "left")


def tables(lines: Sequence[Mapping[str, Any]]) -> str:
    """Set the lines for people: what is compared with what stands together."""
    columns = (
        "images",
        "device",
        "contestant",
        "interpolation",
        "img_per_s",
        "ratio",
        "delivered",
        "note",
    )
    frame = pd.DataFrame(lines, columns=columns)
    texts = []
    for (images, device), group in frame.groupby(["images", "device"], sort=False):
        cells = []
        for (name, interpolation), own in group.groupby(
            ["contestant", "interpolation"], sort=False
        ):
            rates, ratios = own["img_per_s"].dropna().tolist(), own["ratio"].dropna().tolist()
            views = [2 * rate for rate in rates]
            delivered = own["note"].iloc[0] or f"2 x {own['delivered'].iloc[0]}"
            numbers = [
                number(median(rates)),
                span(rates),
                number(median(views)),
                number(median(ratios)),
                span(ratios),
            ]
            cells.append([name, interpolation, *numbers, delivered])
        where = "GPU" if device == "cuda" else "CPU"
        text = tabulate(cells, _HEADS, disable_numparse=True, colalign=_ALIGN)
        texts.append(
            f"{images}: whole chain, normalised (photometry of regbench on the {where})\n\n{text}"
        )
    return "\n\n".join(texts)


LEGEND = """\
Median over rounds and range. Source images a second, each of which gives two views; ratio: to
torchvision's PIL loader in the same round. FFCV's own loader takes no part, because FFCV has no
blur."""
