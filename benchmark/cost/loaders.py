"""How fast the loaders are: regbench's, torchvision's and FFCV's on the same images and the same cores.

Every contestant has a process of its own that stays alive. They take turns in rounds, A B C A B C …, one at a time and
with nothing left at work between two turns, and ratios are taken within a round: all sides see the same machine. What
comes before the rounds (compiling, starting workers, filling the page cache) is not counted.

The images are made, unless a prepared data set is given: noise with the spectrum of natural images and flat shapes,
from a fixed seed, as JPEGs of 4:2:0 that are about as large as ImageNet's.
"""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import io
import logging
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from tabulate import tabulate
from tqdm import tqdm

from regbench import RegbenchError, __version__
from regbench.benchmark.cost.contestants import BASELINE, CONTESTANTS, Contestant, Pass, Task, serve
from regbench.benchmark.machine import hardware
from regbench.benchmark.settings.config import load_run
from regbench.datasets.beton import JPEG, RAW, Beton, Sample, write_beton
from regbench.datasets.config import AugmentationConfig, DatasetConfig, ViewConfig
from regbench.datasets.manifest import Manifest
from regbench.files import write_text

log = logging.getLogger("regbench")

# ---------------------------------------------------------------------------------------------------------- images


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Images to be made.

    Attributes:
        name: On the command line.
        height: px; every second JPEG stands upright.
        width: px.
        quality: Of the JPEGs; None for raw images.
        image_size: Side of the crops, px.
        augmentation: Of the two views.
        distinct: Number of different images.
        copies: How often each is in the file, which makes an epoch long enough.
    """

    name: str
    height: int
    width: int
    quality: int | None
    image_size: int
    augmentation: AugmentationConfig
    distinct: int
    copies: int


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="256",
            height=256,
            width=341,
            quality=90,
            image_size=224,
            augmentation=AugmentationConfig(),
            distinct=512,
            copies=4,
        ),
        Scenario(
            name="500x375",
            height=375,
            width=500,
            quality=96,
            image_size=224,
            augmentation=AugmentationConfig(),
            distinct=512,
            copies=4,
        ),
        Scenario(
            name="raw32",
            height=32,
            width=32,
            quality=None,
            image_size=32,
            augmentation=AugmentationConfig(
                name="small_color",
                view1=ViewConfig(crop_scale=(0.2, 1.0), blur_p=0.0),
                view2=ViewConfig(crop_scale=(0.2, 1.0), blur_p=0.0, solarize_p=0.0),
            ),
            distinct=1024,
            copies=48,
        ),
    )
}


def photo(seed: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """A picture that a JPEG coder finds as hard as a photograph, (height, width, 3).

    The amplitude of its noise falls with the frequency f as f^-1.3, colours vary less than the light, and a dozen flat
    ellipses give edges.
    """
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = np.inf
    shape = (3, *frequency.shape)
    spectrum = (rng.normal(size=shape) + 1j * rng.normal(size=shape)) / frequency**1.3
    planes = np.fft.irfft2(spectrum, (height, width))
    light, u, v = 30 * planes / planes.std(axis=(1, 2), keepdims=True)
    image = 120 + light[:, :, None] + 0.3 * np.stack([u, -u - v, v], axis=2)
    row, column = np.mgrid[:height, :width]
    for _ in range(12):
        down, along = row - rng.uniform(0, height), column - rng.uniform(0, width)
        cosine, sine = np.cos(turn := rng.uniform(0, np.pi)), np.sin(turn)
        long, short = rng.uniform(0.03, 0.35, 2) * min(height, width)
        inside = ((along * cosine + down * sine) / long) ** 2 + ((down * cosine - along * sine) / short) ** 2 < 1
        image[inside] += rng.normal(0, 45, 3)
    pixels: npt.NDArray[np.uint8] = image.clip(0, 255).astype(np.uint8)
    return pixels


def _sample(scenario: Scenario, number: int) -> Sample:
    upright = scenario.quality is not None and number % 2 == 1
    height, width = (scenario.width, scenario.height) if upright else (scenario.height, scenario.width)
    pixels = photo(number, height, width)
    if scenario.quality is None:
        return Sample(RAW, height, width, 0, pixels.tobytes(), f"image {number}")
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=scenario.quality, subsampling="4:2:0")
    return Sample(JPEG, height, width, 0, buffer.getvalue(), f"image {number}")


def make_images(scenario: Scenario, data_dir: Path) -> DatasetConfig:
    """Make the images of a scenario and write them as a prepared data set."""
    config = DatasetConfig(
        name=scenario.name,
        source="imagefolder",
        image_size=scenario.image_size,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        num_classes=1,
        eval_resize=scenario.image_size,
    )
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = pool.map(lambda number: _sample(scenario, number), range(scenario.distinct))
        title = f"making images, {scenario.name}"
        if not sys.stderr.isatty():
            log.info(title)
        samples = list(tqdm(made, title, scenario.distinct, disable=not sys.stderr.isatty(), leave=False))
    count = scenario.distinct * scenario.copies
    path = data_dir / config.name / "train.beton"
    path.parent.mkdir(parents=True)
    content_sha256 = write_beton(path, samples * scenario.copies, count)
    Manifest(
        name=config.name,
        source=config.source,
        selection={"train_per_class": None, "tuning_per_class": None},
        splits={
            "train": {
                "file": path.name,
                "num_samples": count,
                "counts_per_class": [count],
                "content_sha256": content_sha256,
                "bytes": path.stat().st_size,
            }
        },
        class_names=["made"],
        beton={"version": 2},
        regbench_version=__version__,
        created="",
    ).save(data_dir)
    return config


@dataclass(frozen=True, kw_only=True)
class Images:
    """A prepared data set to load.

    Attributes:
        name: For the tables.
        dataset: Which.
        augmentation: Of the two views.
        data_dir: Folder of prepared data sets.
    """

    name: str
    dataset: DatasetConfig
    augmentation: AugmentationConfig
    data_dir: Path

    def task(self, workers: int, device: str) -> Task:
        """What a contestant is to do; small images come in larger batches, as they would in training.

        Raises:
            RegbenchError: The data set is not prepared.
        """
        task = Task(
            dataset=self.dataset,
            augmentation=self.augmentation,
            data_dir=self.data_dir,
            batch_size=1,
            workers=workers,
            device=device,
        )
        at_once = 64 if self.dataset.image_size > 96 else 512
        images = len(Beton(task.file()))
        return replace(task, batch_size=min(at_once, images))

    def __str__(self) -> str:
        """One line."""
        beton = Beton(self.task(1, "cpu").file())
        form = "raw" if (beton.modes == RAW).all() else f"JPEG, {beton.size.mean() / 1e3:.0f} kB each"
        sides = np.sort(np.stack([beton.heights, beton.widths]), axis=0)
        short, long = np.median(sides, axis=1)
        return f"{self.name}: {len(beton):,} images, {long:.0f} x {short:.0f} px, {form}"


@contextmanager
def images(scenarios: Sequence[str], data: str | None, overrides: Sequence[str] = ()) -> Iterator[list[Images]]:
    """What to load; images that are made lie in a temporary folder.

    Args:
        scenarios: Names in `SCENARIOS`; empty for all, or for none if `data` is given.
        data: Name of a prepared data set's configuration, whose augmentation and folder are its own.
        overrides: Of this configuration.

    Yields:
        The images, made.

    Raises:
        RegbenchError: An unknown scenario or data set, or one that is not prepared.
    """
    for name in scenarios:
        if name not in SCENARIOS:
            raise RegbenchError(f"unknown scenario '{name}'; choose {', '.join(SCENARIOS)}")
    chosen = []
    if data:
        cell, runtime = load_run([f"dataset={data}", *overrides])
        chosen.append(
            Images(
                name=cell.dataset.name,
                dataset=cell.dataset,
                augmentation=cell.augmentation,
                data_dir=Path(runtime.data_dir),
            )
        )
    with tempfile.TemporaryDirectory(prefix="regbench-loader-") as folder:
        for name in dict.fromkeys(scenarios) if scenarios or data else SCENARIOS:
            scenario = SCENARIOS[name]
            config = make_images(scenario, Path(folder))
            chosen.append(Images(name=name, dataset=config, augmentation=scenario.augmentation, data_dir=Path(folder)))
        yield chosen


# ------------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contestant on some images.

    Attributes:
        images: Name of the images.
        raw: Whether they are stored as pixels and not as JPEGs.
        part: "crops" (decoded, cropped, resized, flipped) or "views" (the whole chain).
        device: Where the photometric part runs and the result is delivered.
        contestant: Whose loader.
        interpolation: Its filter.
        delivered: Type and shape of one view's batch.
        img_per_s: Source images a second in each round; each gives two views.
        ratio: To torchvision's PIL loader, in each round; empty if that one is missing.
        note: Why it was not measured; empty if it was.
    """

    images: str
    raw: bool
    part: str
    device: str
    contestant: str
    interpolation: str
    delivered: str = ""
    img_per_s: tuple[float, ...] = ()
    ratio: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and with what it was measured.

    Attributes:
        cpu: Name and number of the cores that were used.
        gpu: Name of the GPU; empty if there is none.
        workers: Threads or worker processes of each contestant, as many as the cores.
        rounds: How many.
        seconds: About so long is one contestant's turn.
        versions: Of the packages that do the work.
    """

    cpu: str
    gpu: str
    workers: int
    rounds: int
    seconds: float
    versions: str

    def __str__(self) -> str:
        """One line."""
        hardware = " and ".join(filter(None, (self.cpu, self.gpu)))
        turns = f"{self.workers} workers, {self.rounds} rounds of about {self.seconds:g} s each"
        return f"{hardware}; {turns}; {self.versions}"


def _versions() -> str:
    found = []
    for package in ("torch", "torchvision", "pillow", "ffcv", "numba", "numpy"):
        if importlib.util.find_spec({"pillow": "PIL"}.get(package, package)):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)


def refuse_impossible(*, workers: int, seconds: float, rounds: int) -> None:
    """Refuse numbers that cannot be measured with, for `measure` and before its images are made.

    Raises:
        RegbenchError: There are not so many cores, or nothing would be measured.
    """
    cores = len(os.sched_getaffinity(0))
    if not 1 <= workers <= cores:
        raise RegbenchError(f"--workers is {workers}; choose 1 to {cores}, the number of cores here")
    if rounds < 1 or not 0 < seconds < math.inf:
        raise RegbenchError(f"--rounds is {rounds} and --seconds {seconds:g}; give at least one round and some time")


@contextmanager
def _only_cores(count: int) -> Iterator[None]:
    """Leave this process and those that it starts so many of its cores."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


class _Process:
    """A contestant in its own process."""

    def __init__(self, number: int, part: str, task: Task, seconds: float, folder: Path) -> None:
        # Started anew and not forked: numba's and PyTorch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._connection: Connection
        self._connection, theirs = context.Pipe()
        self._errors = folder / f"{number}.txt"
        # No daemon, because these may not have worker processes.
        start_method = multiprocessing.get_start_method()
        arguments = (theirs, number, part, task, seconds, self._errors, start_method)
        self._process = context.Process(target=serve, args=arguments)
        self._process.start()
        theirs.close()

    def answer(self) -> Pass | str:
        """What it did, or why it could not."""
        try:
            answer: Pass | str = self._connection.recv()
            return answer
        except EOFError:
            self._process.join()
            said = self._errors.read_text(errors="replace").strip().splitlines()
            return f"its process ended with code {self._process.exitcode}" + (f": {said[-1]}" if said else "")

    def again(self) -> Pass | str:
        """A turn."""
        with suppress(BrokenPipeError):  # `answer` says why
            self._connection.send(None)
        return self.answer()

    def close(self) -> None:
        """End it."""
        self._connection.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def measure(chosen: Sequence[Images], *, workers: int, seconds: float, rounds: int) -> tuple[list[Row], Machine]:
    """Measure all contestants on all images: the crops, and the views on the CPU and on the GPU if there is one.

    Args:
        chosen: What to load.
        workers: Threads or worker processes of each, and the number of cores that are used.
        seconds: About so long is one contestant's turn in a round.
        rounds: How many.

    Returns:
        A row for each contestant, those that were left out too, and the machine.

    Raises:
        RegbenchError: A number that cannot be, or images that are not prepared.
    """
    refuse_impossible(workers=workers, seconds=seconds, rounds=rounds)
    cuda = torch.cuda.is_available()
    groups = [("crops", "cpu"), ("views", "cpu"), *([("views", "cuda")] if cuda else [])]
    rows = []
    with _only_cores(workers):
        machine = Machine(
            cpu=hardware(torch.device("cpu")),
            gpu=torch.cuda.get_device_name() if cuda else "",
            workers=workers,
            rounds=rounds,
            seconds=seconds,
            versions=_versions(),
        )
        for each in chosen:
            for part, device in groups:
                rows += _measure_group(each, part, each.task(workers, device), seconds, rounds)
    return rows, machine


def _measure_group(images: Images, part: str, task: Task, seconds: float, rounds: int) -> list[Row]:
    """Those that deliver the same, in turns."""
    chosen = {number: each for number, each in enumerate(CONTESTANTS) if part in each.parts}
    notes: dict[int, str] = {}
    delivered: dict[int, str] = {}
    rates: dict[int, list[float]] = {number: [] for number in chosen}
    running: dict[int, _Process] = {}
    title = f"{images.name}, {part} on the {'GPU' if task.device == 'cuda' else 'CPU'}"
    on_terminal = sys.stderr.isatty()
    bar = tqdm(total=len(chosen) * (rounds + 1), desc=title, unit="turn", disable=not on_terminal, leave=False)

    def note(number: int, answer: Pass | str) -> Pass | None:
        bar.update()
        if isinstance(answer, Pass):
            return answer
        notes[number] = f"left out: {answer}"
        if number in running:
            running.pop(number).close()
        return None

    with tempfile.TemporaryDirectory(prefix="regbench-loader-") as folder:
        try:
            for number, contestant in chosen.items():
                if contestant.needs_ffcv and importlib.util.find_spec("ffcv") is None:
                    note(number, "FFCV is not installed: pip install 'regbench[ffcv]'")
                    continue
                running[number] = _Process(number, part, task, seconds, Path(folder))
                if passed := note(number, running[number].answer()):
                    delivered[number] = passed.delivered
                    if not on_terminal:
                        rate = passed.images / passed.seconds
                        log.info("%s: %s, warm-up: %.0f images/s", title, _label(contestant), rate)
            for done in range(rounds):
                for number in list(running):
                    if passed := note(number, running[number].again()):
                        rates[number].append(passed.images / passed.seconds)
                if not on_terminal:
                    log.info("%s: round %d of %d", title, done + 1, rounds)
        finally:
            bar.close()
            for process in running.values():
                process.close()
    raw = bool((Beton(task.file()).modes == RAW).all())
    base = next((rates[number] for number, each in chosen.items() if each.name == BASELINE), [])
    return [
        Row(
            images=images.name,
            raw=raw,
            part=part,
            device=task.device,
            contestant=contestant.name,
            interpolation=contestant.interpolation,
            delivered=delivered.get(number, ""),
            img_per_s=() if number in notes else tuple(rates[number]),
            # If one of the two died half-way, there is nothing to compare.
            ratio=tuple(own / other for own, other in zip(rates[number], base, strict=True))
            if len(rates[number]) == len(base)
            else (),
            note=notes.get(number, ""),
        )
        for number, contestant in chosen.items()
    ]


def _label(contestant: Contestant | Row) -> str:
    name = contestant.name if isinstance(contestant, Contestant) else contestant.contestant
    return f"{name}, {contestant.interpolation}"


# --------------------------------------------------------------------------------------------------------- targets


@dataclass(frozen=True)
class Target:
    """A speed that is to be reached.

    Attributes:
        what: In words.
        part: Of the rows that it is for, all on the CPU.
        interpolation: Of ours.
        against: The other contestant, with its filter; None for torchvision's PIL loader.
        least: Our speed divided by the other's.
        raw: For raw images only (True), for JPEGs only (False), or for both (None).
    """

    what: str
    part: str
    interpolation: str
    against: str | None
    least: float
    raw: bool | None


_PER_VIEW = "regbench, a decode per view"
TARGETS = (
    Target("CPU part, against torchvision PIL", "crops", "bicubic", None, 2.5, False),
    Target("the same with the area filter", "crops", "area", None, 4.0, False),
    Target("one decode against one per view, same kernel", "crops", "bicubic", _PER_VIEW, 1.25, False),
    Target("whole chain on the CPU, against torchvision PIL", "views", "bicubic", None, 2.0, None),
    Target("raw images, two views, against torchvision PIL", "crops", "bicubic", None, 10.0, True),
)


@dataclass(frozen=True)
class Outcome:
    """A target beside what was measured.

    Attributes:
        target: The target.
        images: Name of the images.
        ratio: Of each round; empty if it was not measured.
    """

    target: Target
    images: str
    ratio: tuple[float, ...]


def outcomes(rows: Sequence[Row]) -> list[Outcome]:
    """What was reached of each target on each images."""
    found = []
    for images in dict.fromkeys(row.images for row in rows):
        here = [row for row in rows if row.images == images and row.device == "cpu"]
        for target in TARGETS:
            if target.raw not in (None, here[0].raw):
                continue
            wanted = {
                row.contestant: row
                for row in here
                if (row.part, row.interpolation) == (target.part, target.interpolation)
            }
            ratio = wanted["regbench"].ratio
            if target.against is not None:
                own, other = wanted["regbench"].img_per_s, wanted[target.against].img_per_s
                ratio = tuple(a / b for a, b in zip(own, other, strict=True)) if len(own) == len(other) else ()
            found.append(Outcome(target, images, ratio))
    return found


# --------------------------------------------------------------------------------------------------------- written


def _number(value: float) -> str:
    """Three digits, more only before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spread(values: Sequence[float]) -> tuple[str, str]:
    if not values:
        return "–", "–"
    return _number(statistics.median(values)), f"{_number(min(values))}–{_number(max(values))}"


def table(rows: Sequence[Row], style: str = "simple") -> str:
    """The rows for people, in a format of `tabulate`: what is compared with what stands together."""
    parts = []
    for images, part, device in dict.fromkeys((row.images, row.part, row.device) for row in rows):
        cells = []
        for row in rows:
            if (row.images, row.part, row.device) == (images, part, device):
                speed, speeds = _spread(row.img_per_s)
                views, _ = _spread([2 * rate for rate in row.img_per_s])
                ratio, ratios = _spread(row.ratio)
                last = row.note or f"2 x {row.delivered}"
                cells.append((row.contestant, row.interpolation, speed, speeds, views, ratio, ratios, last))
        headers = ("", "filter", "images/s", "min–max", "views/s", "ratio", "min–max", "delivered")
        align = ("left", "left", *("right",) * 5, "left")
        what = {"crops": "decoded, cropped, flipped", "views": "whole chain, normalised"}[part]
        where = f"photometry of regbench on the {'GPU' if device == 'cuda' else 'CPU'}" if part == "views" else "CPU"
        body = tabulate(cells, headers=headers, tablefmt=style, disable_numparse=True, colalign=align)
        parts.append(f"{images}: {what} ({where})\n\n{body}")
    return "\n\n".join(parts)


def targets_table(found: Sequence[Outcome], style: str = "simple") -> str:
    """Targets beside what was measured, for people."""
    cells = []
    for outcome in found:
        ratio, ratios = _spread(outcome.ratio)
        met = "–"
        if outcome.ratio:
            met = "met" if statistics.median(outcome.ratio) >= outcome.target.least else "not met"
        cells.append((outcome.images, outcome.target.what, f"≥ {outcome.target.least:g}", ratio, ratios, met))
    headers = ("images", "", "target", "ratio", "min–max", "")
    align = ("left", "left", "right", "right", "right", "left")
    return tabulate(cells, headers=headers, tablefmt=style, disable_numparse=True, colalign=align)


LEGEND = """\
Median over rounds and range. Source images a second, each of which gives two views; ratio: to torchvision's PIL loader
in the same round. FFCV's own decoder has the area filter only, so it is to be compared with regbench's area.
No FFCV row has the whole chain, because FFCV has no blur."""


def to_csv(rows: Sequence[Row], machine: Machine) -> str:
    """A line for each contestant and round, or one for a contestant that was left out; the machine in its columns."""
    buffer = io.StringIO()
    names = [name for name in Row.__dataclass_fields__ if name not in ("img_per_s", "ratio")]
    writer = csv.DictWriter(
        buffer, [*names, "round", "img_per_s", "ratio", *Machine.__dataclass_fields__], lineterminator="\n"
    )
    writer.writeheader()
    for row in rows:
        plain: dict[str, Any] = {name: getattr(row, name) for name in names} | asdict(machine)
        for number, rate in enumerate(row.img_per_s):
            ratio = row.ratio[number] if row.ratio else None
            writer.writerow({**plain, "round": number + 1, "img_per_s": rate, "ratio": ratio})
        if not row.img_per_s:
            writer.writerow(plain)
    return buffer.getvalue()


def write_csv(rows: Sequence[Row], machine: Machine, path: Path) -> None:
    """Write `to_csv` to `path`."""
    write_text(path, to_csv(rows, machine))
