"""Measures what ranks that read one file need in memory: python instruments/speed/loader_memory.py.

Each rank is a process with a `PretrainingLoader` of its own that reads some batches from all over the file, as many
from a small one as from a large one. Counted is the highest sum of a process's anonymous and shared memory between two
batches, as Linux reports it; the file's own pages are in the page cache, once for all ranks, and given back when memory
is short. A rank's libraries are in the number, so it is the difference between a small and a large file that tells.
"""

from __future__ import annotations

import itertools
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from regbench.datasets.config import AugmentationConfig, ViewsConfig
from regbench.datasets.loading.loaders import PretrainingLoader
from regbench.instruments.cost.harness import MIB, Column, table
from regbench.instruments.cost.images import SCENARIOS, Images, Scenario, make_images
from regbench.processes import Place, Processes

BATCH, BATCHES = 32, 100  # of each rank
PLAIN = ViewsConfig(jitter_p=0.0, grayscale_p=0.0, blur_p=0.0, solarize_p=0.0)
CROPS = AugmentationConfig(name="crops", views={"view1": PLAIN, "view2": PLAIN}, interpolation="area")


@dataclass(frozen=True, kw_only=True)
class LoaderMemory:
    """The memory of some ranks on one file.

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
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    values = {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines}
    return sum(values[name] for name in names)


def _reader(here: Place, images: Images) -> Iterator[int]:
    """Read some batches; give the most private bytes between two of them, then this process's share of all pages."""
    warnings.simplefilter("ignore")
    with PretrainingLoader(
        images.dataset,
        CROPS,
        data_dir=images.data_dir,
        batch_size=BATCH,
        seed=0,
        device=torch.device("cpu"),
        rank=here.rank,
        world_size=here.world,
    ) as loader:
        read = itertools.chain.from_iterable(map(loader.epoch, itertools.count()))
        yield max(_rollup_bytes("Pss_Anon", "Pss_Shmem") for _ in itertools.islice(read, BATCHES))
        yield _rollup_bytes("Pss")


def _next(reader: Iterator[int]) -> int:
    return next(reader)


def measure(
    ranks: Sequence[int] = (1, 4), copies: Sequence[int] = (19, 155), scenario: Scenario = SCENARIOS["500x375"]
) -> list[LoaderMemory]:
    """Measure with a small and a large file of made images.

    Args:
        ranks: Numbers of processes on one file.
        copies: How often 64 images of about 110 kB are in the file: 130 MiB and 1 GiB.
        scenario: What the images are like.

    Returns:
        A row for each file and number of ranks.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="regbench-loader-") as folder:
        for number in copies:
            # Small crops: it is the reading that matters.
            made = replace(scenario, name=f"{number} copies", image_size=64, distinct=64, copies=number)
            images = make_images(made, Path(folder))
            for count in ranks:
                with Processes(count, _reader, images) as readers:
                    private, shares = readers.ask(_next), readers.ask(_next)
                sizes = {"private_bytes": max(private), "total_bytes": sum(shares)}
                rows.append(LoaderMemory(file_bytes=images.file.stat().st_size, ranks=count, **sizes))
    return rows


def growth(rows: Sequence[LoaderMemory]) -> float:
    """Compute by how much a rank's private bytes grow for each byte of the file, at the largest number of ranks."""
    ranks = max(row.ranks for row in rows)
    small, *_, large = sorted((row for row in rows if row.ranks == ranks), key=lambda row: row.file_bytes)
    return (large.private_bytes - small.private_bytes) / (large.file_bytes - small.file_bytes)


COLUMNS = (
    Column[LoaderMemory]("ranks", lambda row: str(row.ranks)),
    Column[LoaderMemory]("file MiB", lambda row: f"{row.file_bytes / MIB:,.0f}"),
    Column[LoaderMemory]("private MiB a rank", lambda row: f"{row.private_bytes / MIB:,.0f}"),
    Column[LoaderMemory]("all ranks with page cache, MiB", lambda row: f"{row.total_bytes / MIB:,.0f}"),
)


def main() -> None:
    """Print the memory of ranks, and how it grows with the file."""
    rows = measure()
    print(table(rows, COLUMNS))
    print(f"\na rank's private memory grows by {growth(rows):.2%} of what the file grows")


if __name__ == "__main__":
    main()
