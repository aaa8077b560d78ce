"""What several ranks that read one file need in memory beyond the page cache: that it does not grow with the file.

Each rank is a process with a `PretrainingLoader` of its own that reads some batches from all over it, as many from a
small one as from a large one. Counted is the highest sum of a process's anonymous and shared memory between two
batches, as Linux reports it; the file's own pages are in the page cache, once for all ranks, and given back when memory
is short. A rank's libraries are in the number, so it is the difference between a small and a large file that tells.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from tabulate import tabulate
from tqdm import tqdm

from regbench import RegbenchError
from regbench.benchmark.cost.loaders import SCENARIOS, Scenario, make_images
from regbench.datasets.config import AugmentationConfig, DatasetConfig, ViewConfig
from regbench.datasets.loading.loaders import PretrainingLoader

log = logging.getLogger("regbench")

MIB = 2**20
# What each rank keeps of an image: where it lies, its size and its label, a hundred bytes or so.
TARGET = 0.01
_ROLLUP = Path("/proc/self/smaps_rollup")
_BATCH = 32
_BATCHES = 100  # of each rank
_PLAIN = ViewConfig(jitter_p=0.0, grayscale_p=0.0, blur_p=0.0, solarize_p=0.0)
_CROPS = AugmentationConfig(name="crops", view1=_PLAIN, view2=_PLAIN, interpolation="area")


@dataclass(frozen=True, kw_only=True)
class MemoryRow:
    """Some ranks on one file.

    Attributes:
        file_bytes: Size of the file.
        ranks: Processes.
        private_bytes: Of the rank that needs most, without the file's pages.
        total_bytes: Of all ranks with the file's and the libraries' pages, each page counted once.
    """

    file_bytes: int
    ranks: int
    private_bytes: int
    total_bytes: int


def _rollup_bytes(*names: str) -> int:
    lines = (line.split() for line in _ROLLUP.read_text().splitlines()[1:])
    values = {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines}
    return sum(values[name] for name in names)


def _read(connection: Connection, config: DatasetConfig, data_dir: Path, rank: int, ranks: int) -> None:
    """Reads some batches as one of `ranks`, sends its private bytes and, once all have, its share of the total."""
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    loader = PretrainingLoader(
        config,
        _CROPS,
        data_dir=data_dir,
        batch_size=_BATCH,
        seed=0,
        device=torch.device("cpu"),
        rank=rank,
        world_size=ranks,
    )
    private = 0
    with loader:
        read = itertools.chain.from_iterable(loader.epoch(e) for e in itertools.count())
        for _ in itertools.islice(read, _BATCHES):
            private = max(private, _rollup_bytes("Pss_Anon", "Pss_Shmem"))
        connection.send(private)
        connection.recv()
        connection.send(_rollup_bytes("Pss"))
        with suppress(EOFError):
            connection.recv()


@contextmanager
def _rank(config: DatasetConfig, data_dir: Path, rank: int, ranks: int) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read, args=(theirs, config, data_dir, rank, ranks), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.terminate()
        process.join()


def _measure(config: DatasetConfig, data_dir: Path, ranks: int) -> MemoryRow:
    with ExitStack() as stack:
        readers = [stack.enter_context(_rank(config, data_dir, rank, ranks)) for rank in range(ranks)]
        try:
            private = [reader.recv() for reader in readers]
            for reader in readers:
                reader.send(None)
            shares = [reader.recv() for reader in readers]
        except EOFError:
            raise RegbenchError(
                f"a rank of {ranks} that read {data_dir / config.name} ended early; is there enough memory?"
            ) from None
    file_bytes = (data_dir / config.name / "train.beton").stat().st_size
    return MemoryRow(file_bytes=file_bytes, ranks=ranks, private_bytes=max(private), total_bytes=sum(shares))


def measure_memory(
    ranks: Sequence[int] = (1, 4), copies: Sequence[int] = (19, 155), scenario: Scenario = SCENARIOS["500x375"]
) -> list[MemoryRow]:
    """Measure with a small and a large file of made images.

    Args:
        ranks: Numbers of processes on one file.
        copies: How often 64 images of about 110 kB are in the file: 130 MiB and 1 GiB.
        scenario: What the images are like.

    Returns:
        A row for each file and number of ranks.

    Raises:
        RegbenchError: The system does not tell a process's memory, or a process died.
    """
    if not _ROLLUP.is_file():
        raise RegbenchError(f"memory is read from {_ROLLUP}, which is not here; it takes Linux 4.14 or newer")
    rows = []
    total = len(copies) * len(ranks)
    on_terminal = sys.stderr.isatty()
    bar = tqdm(total=total, desc="memory", disable=not on_terminal, leave=False)
    with bar, tempfile.TemporaryDirectory(prefix="regbench-loader-") as folder:
        for number in copies:
            # Small crops: it is the reading that matters.
            made = replace(scenario, name=f"{number}", image_size=64, distinct=64, copies=number)
            config = make_images(made, Path(folder))
            for count in ranks:
                rows.append(_measure(config, Path(folder), count))
                bar.update()
                if not on_terminal:
                    log.info("memory: %d of %d done", len(rows), total)
    return rows


def growth(rows: Sequence[MemoryRow]) -> float:
    """Of one rank's private bytes for each byte that the file grows, at the largest number of ranks."""
    ranks = max(row.ranks for row in rows)
    small, *_, large = sorted((row for row in rows if row.ranks == ranks), key=lambda row: row.file_bytes)
    return (large.private_bytes - small.private_bytes) / (large.file_bytes - small.file_bytes)


def memory_table(rows: Sequence[MemoryRow], style: str = "simple") -> str:
    """The rows and the target, for people."""
    cells = [
        [row.ranks, *(f"{value / MIB:,.0f}" for value in (row.file_bytes, row.private_bytes, row.total_bytes))]
        for row in rows
    ]
    headers = ("ranks", "file MiB", "private MiB a rank", "all ranks with page cache, MiB")
    body = tabulate(cells, headers=headers, tablefmt=style, disable_numparse=True, colalign=("right",) * 4)
    share = growth(rows)
    met = "met" if share < TARGET else "not met"
    return (
        f"{body}\n\na rank's private memory grows by {share:.2%} of what the file grows; target: < {TARGET:.0%}: {met}"
    )
