"""How fast the loaders are: regbench's, torchvision's and FFCV's on the same images and the same cores.

Every contestant has a process of its own that stays alive. They take turns in rounds, one at a time and with nothing
left at work between two turns. What comes before the rounds (compiling, starting workers, filling the page cache) is
not counted.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

import torch
from tqdm import tqdm

from regbench.datasets.beton import RAW, Beton
from regbench.errors import RegbenchError
from regbench.files import write_text
from regbench.instruments.cost.contestants import BASELINE, CONTESTANTS, Contestant, Task
from regbench.instruments.cost.harness import Column, Machine, median, number, ratios, span, table, take_turns, to_csv
from regbench.instruments.cost.images import PreparedImages
from regbench.processes import Place, Processes, WorkFailed

log = logging.getLogger("regbench")
PACKAGES = ("torch", "torchvision", "pillow", "ffcv", "numba", "numpy")


@dataclass(frozen=True, kw_only=True)
class LoaderSpeed:
    """The speed of one contestant on some images.

    Attributes:
        images: Name of the images.
        raw: Whether they are stored as pixels and not as JPEGs.
        part: "crops" (decoded, cropped, resized, flipped) or "views" (the whole chain).
        device: Where the photometric part runs and the result is delivered.
        contestant: Whose loader.
        interpolation: Its filter.
        delivered: Type and shape of one view's batch.
        img_per_s: Source images a second in each round; each gives two views.
        ratio: To torchvision's PIL loader, in each round; empty if one of the two is missing.
        note: Why it was not measured; empty if it was.
    """

    images: str
    raw: bool
    part: str
    device: str
    contestant: str
    interpolation: str
    delivered: str = ""
    img_per_s: Sequence[float] = ()
    ratio: Sequence[float] = ()
    note: str = ""


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


@dataclass(frozen=True)
class Pass:
    """What a contestant did at one go.

    Attributes:
        img_per_s: Source images a second, from the call to the last view on the device; two views of each.
        seconds: How long it took.
        delivered: What one view's batch is.
    """

    img_per_s: float
    seconds: float
    delivered: str


class Opened:
    """A contestant in its process, warmed up.

    Attributes:
        warm: Its last pass before it takes turns.
    """

    def __init__(self, here: Place, contestant: Contestant, part: str, task: Task, seconds: float) -> None:
        """Open a loader and warm it up until a pass takes about so many seconds."""
        warnings.simplefilter("ignore")
        self._device = torch.device(task.device)
        self._batches = contestant.make(task, part, contestant.interpolation)
        # In multiples of the workers, so that each of these has the same to do.
        self._count = task.workers
        self.next()
        while (passed := self.next()).seconds < seconds / 2:
            self._count *= 2
        self._count = max(1, round(self._count * seconds / passed.seconds / task.workers)) * task.workers
        self.warm = passed

    def next(self) -> Pass:
        """Take a turn: load some batches and measure the time."""
        images, view = 0, torch.empty(0)
        began_s = time.perf_counter()
        for view, second in self._batches(self._count):
            # A contestant that delivered less would look fast.
            assert view.shape == second.shape and view.dtype == second.dtype
            images += len(view)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        took_s = time.perf_counter() - began_s
        shape = "x".join(map(str, view.shape))
        return Pass(images / took_s, took_s, f"{str(view.dtype).removeprefix('torch.')} {shape}")


@contextmanager
def _only_cores(count: int) -> Iterator[None]:
    """Leave this process and those that it starts so many of its cores."""
    # Libraries may start threads by the number of cores that they see.
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def measure(
    chosen: Sequence[PreparedImages],
    *,
    workers: int,
    seconds: float,
    rounds: int,
    contestants: Sequence[Contestant] = CONTESTANTS,
) -> tuple[list[LoaderSpeed], Machine]:
    """Measure contestants on all images: the crops, and the views on the CPU and on the GPU if there is one.

    Args:
        chosen: What to load.
        workers: Threads or worker processes of each, and the number of cores that are used.
        seconds: About so long is one contestant's turn in a round.
        rounds: How many.
        contestants: Who takes part.

    Returns:
        A row for each contestant, those that were left out too, and the machine.

    Raises:
        RegbenchError: A number that cannot be, or images that are not prepared.
    """
    refuse_impossible(workers=workers, seconds=seconds, rounds=rounds)
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    groups = [("crops", "cpu"), ("views", "cpu"), *([("views", "cuda")] if gpu else [])]
    rows = []
    with _only_cores(workers):
        machine = Machine.here("cpu", PACKAGES, **gpu, workers=workers, rounds=rounds, seconds=seconds)
        for images in chosen:
            for part, device in groups:
                those = [each for each in contestants if part in each.parts]
                if those:
                    rows += _measure_group(those, part, Task.of(images, workers, device), seconds, rounds)
    return rows, machine


def _measure_group(
    contestants: Sequence[Contestant], part: str, task: Task, seconds: float, rounds: int
) -> list[LoaderSpeed]:
    """Measure those that deliver the same, in turns."""
    notes: dict[Contestant, str] = {}
    pools: dict[Contestant, Processes] = {}
    title = f"{task.images.name}, {part} on the {'GPU' if task.device == 'cuda' else 'CPU'}"
    bar = tqdm(total=len(contestants) * (rounds + 1), desc=title, unit="turn", disable=None, leave=False)

    def turn(each: Contestant, what: Callable[[Opened], Pass] = Opened.next) -> Pass | None:
        """Let a contestant do something, unless it has failed before."""
        bar.update()
        if each in notes:
            return None
        try:
            return pools[each].ask(what)[0]
        except WorkFailed as error:
            notes[each] = f"left out: {error}"
            pools[each].close()  # what is left of it must not be at work while others take turns
            return None

    delivered: dict[Contestant, str] = {}
    with bar, ExitStack() as stack:
        for each in contestants:
            if each.needs_ffcv and importlib.util.find_spec("ffcv") is None:
                notes[each] = "left out: FFCV is not installed: pip install 'regbench[ffcv]'"
                continue
            pool = Processes(1, Opened, each, part, task, seconds, threads=task.workers)
            pools[each] = stack.enter_context(pool)
            warm = turn(each, lambda opened: opened.warm)
            if warm is not None:
                delivered[each] = warm.delivered
                if not sys.stderr.isatty():
                    log.info("%s: %s, %s, warm-up: %.0f images/s", title, each.name, each.interpolation, warm.img_per_s)
        passes = take_turns({each: partial(turn, each) for each in contestants}, rounds)
    rates = {each: [done.img_per_s for done in passes[each] if done] for each in contestants}
    base = next((rates[each] for each in contestants if each.name == BASELINE), [])
    rows = []
    for each in contestants:
        row = LoaderSpeed(
            images=task.images.name,
            raw=bool((Beton(task.images.file).modes == RAW).all()),
            part=part,
            device=task.device,
            contestant=each.name,
            interpolation=each.interpolation,
            delivered=delivered.get(each, ""),
            note=notes.get(each, ""),
        )
        if each not in notes:
            row = replace(row, img_per_s=rates[each], ratio=ratios(rates[each], base))
        rows.append(row)
    return rows


COLUMNS: tuple[Column[LoaderSpeed], ...] = (
    Column("", lambda row: row.contestant, "left"),
    Column("filter", lambda row: row.interpolation, "left"),
    Column("images/s", lambda row: number(median(row.img_per_s))),
    Column("min–max", lambda row: span(row.img_per_s)),
    Column("views/s", lambda row: number(median([2 * rate for rate in row.img_per_s]))),
    Column("ratio", lambda row: number(median(row.ratio))),
    Column("min–max", lambda row: span(row.ratio)),
    Column("delivered", lambda row: row.note or f"2 x {row.delivered}", "left"),
)


_DELIVERED = {"crops": "decoded, cropped, flipped", "views": "whole chain, normalised"}


def tables(rows: Sequence[LoaderSpeed]) -> str:
    """Set the rows for people: what is compared with what stands together."""
    groups: dict[tuple[str, str, str], list[LoaderSpeed]] = {}
    for row in rows:
        groups.setdefault((row.images, row.part, row.device), []).append(row)
    texts = []
    for (images, part, device), own in groups.items():
        where = "CPU"
        if part == "views":
            where = f"photometry of regbench on the {'GPU' if device == 'cuda' else 'CPU'}"
        texts.append(f"{images}: {_DELIVERED[part]} ({where})\n\n{table(own, COLUMNS)}")
    return "\n\n".join(texts)


LEGEND = """\
Median over rounds and range. Source images a second, each of which gives two views; ratio: to torchvision's PIL loader
in the same round. FFCV's own decoder has the area filter only, so it is to be compared with regbench's area.
No FFCV row has the whole chain, because FFCV has no blur."""


def write(rows: Sequence[LoaderSpeed], machine: Machine, path: Path) -> None:
    """Write a line of CSV for each contestant and round, or one for a contestant that was left out."""
    lines = []
    for row in rows:
        rates: Sequence[float | None] = row.img_per_s or [None]
        for i, (rate, ratio) in enumerate(zip_longest(rates, row.ratio), 1):
            lines.append({**asdict(row), "round": rate and i, "img_per_s": rate, "ratio": ratio})
    write_text(path, to_csv(lines, machine))
