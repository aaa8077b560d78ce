"""The memory of ranks that read one file: it does not grow with the file."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regbench.benchmark.settings.sweep import load_dataset
from regbench.datasets.config import UNCHANGED, AugmentationConfig, DatasetConfig
from regbench.datasets.loading.loaders import PretrainingLoader
from regbench.datasets.stored.prepare import prepare
from regbench.processes import Place, Processes

BATCH, BATCHES = 32, 40  # of each rank
VIEWS = {"view1": UNCHANGED, "view2": UNCHANGED}
CROPS = AugmentationConfig(name="crops", views=VIEWS, interpolation="area")


def private_bytes() -> int:
    """Sum up this process's anonymous and shared memory.

    The file's own pages are in the page cache, once for all. Anonymous pages count in full:
    a share of them would change when another process of the fork server begins or ends.
    """
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kibibytes = {line.split()[0]: line.split()[1] for line in lines[1:]}
    return 1024 * (int(kibibytes["Anonymous:"]) + int(kibibytes["Pss_Shmem:"]))


def read_some(here: Place, dataset: DatasetConfig, data_dir: Path) -> Iterator[int]:
    """Read batches from all over the file, and give the most private bytes between two of them."""
    warnings.simplefilter("ignore")
    options: Any = {"data_dir": data_dir, "device": torch.device("cpu"), "batch_size": BATCH}
    ranks: Any = {"rank": here.rank, "world_size": here.world}
    with PretrainingLoader(dataset, CROPS, seed=0, **options, **ranks) as loader:
        batches = itertools.chain.from_iterable(map(loader.epoch, itertools.count()))
        yield max(private_bytes() for _ in itertools.islice(batches, BATCHES))


def sizes(folder: Path, copies: int) -> tuple[int, int]:
    """Prepare copies of 64 noisy JPEGs of 500 x 375 px.

    Return the size of the file, and the private bytes of that of two ranks which needs more.
    """
    train = folder / str(copies) / "train" / "noise"
    train.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(64):
        pixels = rng.integers(0, 256, (375, 500, 3), dtype=np.uint8)
        first = train / f"{number}_0.jpg"
        Image.fromarray(pixels).save(first, quality=50)
        for copy in range(1, copies):
            first.with_name(f"{number}_{copy}.jpg").hardlink_to(first)
    test = folder / str(copies) / "val" / "noise"
    test.mkdir(parents=True)
    Image.fromarray(pixels[:32, :32]).save(test / "one.png")
    settings = f"dataset=imagefolder dataset.name=noise_{copies} dataset.num_classes=1"
    settings += " dataset.image_size=64 dataset.eval_resize=64 dataset.source.held_out=null"
    dataset, _ = load_dataset(settings.split())
    entries = prepare(dataset, folder, source_dir=folder / str(copies)).splits
    with Processes(2, read_some, dataset, folder) as readers:
        return entries["train"]["bytes"], max(readers.ask(lambda reader: next(reader)))


@pytest.mark.slow
def test_private_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Small crops: it is the reading that matters."""
    small_bytes, small_private = sizes(tmp_path, 19)
    large_bytes, large_private = sizes(tmp_path, 76)
    assert large_bytes - small_bytes > 200 * 2**20
    assert large_private - small_private < 0.1 * (large_bytes - small_bytes)
