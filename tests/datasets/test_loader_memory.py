"""The memory of ranks that read one file: it does not grow with the file."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regbench.datasets.config import AugmentationConfig, ViewsConfig
from regbench.datasets.loading.loaders import PretrainingLoader
from regbench.instruments.cost.images import SCENARIOS, PreparedImages, make_images
from regbench.processes import Place, Processes

BATCH, BATCHES = 32, 40  # of each rank
PLAIN = ViewsConfig(jitter_p=0.0, grayscale_p=0.0, blur_p=0.0, solarize_p=0.0)
CROPS = AugmentationConfig(
    name="crops", views={"view1": PLAIN, "view2": PLAIN}, interpolation="area"
)


def private_bytes() -> int:
    """Sum up this process's anonymous and shared memory.

    The file's own pages are in the page cache, once for all. Anonymous pages count in full:
    a share of them would change when another process of the fork server begins or ends.
    """
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kibibytes = {line.split()[0]: line.split()[1] for line in lines[1:]}
    return 1024 * (int(kibibytes["Anonymous:"]) + int(kibibytes["Pss_Shmem:"]))


def read_some(here: Place, images: PreparedImages) -> Iterator[int]:
    """Read batches from all over the file, and give the most private bytes between two of them."""
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
        batches = itertools.chain.from_iterable(map(loader.epoch, itertools.count()))
        yield max(private_bytes() for _ in itertools.islice(batches, BATCHES))


def most(images: PreparedImages) -> int:
    """Return the private bytes of that of two ranks which needs more."""
    with Processes(2, read_some, images) as readers:
        found: list[int] = readers.ask(lambda reader: next(reader))
        return max(found)


@pytest.mark.slow
def test_private_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Small crops: it is the reading that matters."""
    files = []
    for copies in (19, 76):  # 130 and 520 MiB
        scenario = replace(
            SCENARIOS["500x375"], name=f"{copies}_copies", image_size=64, distinct=64, copies=copies
        )
        files.append(make_images(scenario, tmp_path))
    small, large = (images.file.stat().st_size for images in files)
    assert most(files[1]) - most(files[0]) < 0.1 * (large - small)
