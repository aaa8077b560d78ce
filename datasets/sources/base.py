"""What every source comes to: splits that are read once, in order, and the names of the classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from regbench import RegbenchError
from regbench.datasets.beton import MIN_PAGE_BYTES, Sample
from regbench.datasets.config import DatasetConfig
from regbench.datasets.encode import Unreadable, encode
from regbench.datasets.published import PUBLISHED, refuse_if

Labels = npt.NDArray[np.int64]
Image = Path | bytes
"""An image file, or its content."""
T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """One split, ready to be read once, in order.

    Attributes:
        labels: (N,) int64; -1 where there is none.
        page_bytes: page size for the `.beton` file.
        samples: called with a number of threads, reads and yields every sample in order, or what is wrong with it.
        stored_bytes: about how many bytes of images that will be.
        identity: a hash that changes when the images do (names, sizes, times, labels); None: never taken over.
    """

    labels: Labels
    page_bytes: int
    samples: Callable[[int], Iterator[Sample | Unreadable]]
    stored_bytes: int = 0
    identity: str | None = None


@dataclass(frozen=True)
class Source:
    """A source's splits by name, its classes in the order of the labels, and see `Manifest.taken_from`."""

    splits: dict[str, Split]
    class_names: list[str]
    taken_from: dict[str, str] = field(default_factory=dict)


def page_bytes(largest_bytes: int) -> int:
    """The page for images of up to so many bytes, which can grow where they have to be converted."""
    return max(MIN_PAGE_BYTES, 1 << (4 * largest_bytes - 1).bit_length())


def stored_bytes(sample: Sequence[tuple[Image, int]], total_bytes: int, config: DatasetConfig) -> int:
    """About how many bytes images take when they are stored, by what becomes of some of them.

    Args:
        sample: some images, and their sizes in bytes.
        total_bytes: the size of all.
        config: says whether they are shrunk.
    """
    read = stored = 0
    for image, size_bytes in sample:
        if isinstance(encoded := encode(image, 0, "", config), Sample):
            read += size_bytes
            stored += len(encoded.data)
    return total_bytes * stored // max(read, 1)


def miscounted(config: DatasetConfig, found: Mapping[str, int]) -> list[str]:
    """Parts of a published data set that have not as many images as were published."""
    expected = PUBLISHED[config.published].num_images if config.published else {}
    return [
        f"{part} has {found[part]:,} images, not {count:,}"
        for part, count in expected.items()
        if part in found and found[part] != count
    ]


def refuse_incomplete(
    config: DatasetConfig, where: object, wrong: Sequence[str], found: Mapping[str, int], layout: str = ""
) -> None:
    """Refuse a source with all that is wrong with it.

    Args:
        config: the data set.
        where: the folder.
        wrong: the faults; wrong counts are added.
        found: number of images of the parts that could be counted.
        layout: what a folder of one's own is to hold.

    Raises:
        RegbenchError: something is wrong.
    """
    counts = miscounted(config, found)
    if published := PUBLISHED.get(config.published or config.source):
        what, remedy = f"{where} is not the complete {published.title}", f"get it from {published.address}"
    else:
        what, remedy = f"{where} cannot be used", f"mend it, or give another folder, with {layout}"
    if counts:
        remedy += ", or say that it is a part or a set of your own: dataset.published=null"
    refuse_if([*wrong, *counts], what, remedy)


def check_selection(config: DatasetConfig) -> None:
    """Refuse settings that leave no images for tuning, or say twice which ones are for training.

    Raises:
        RegbenchError: such settings.
    """
    keep, tune = config.train_per_class, config.tuning_per_class
    if config.train_list is not None and keep is not None:
        raise RegbenchError(
            f"data set '{config.name}': train_list and train_per_class both say which images are for training; "
            "set dataset.train_per_class=null"
        )
    if tune is not None and keep is None and config.train_list is None:
        raise RegbenchError(
            f"data set '{config.name}': the splits overlap: without train_per_class all images are for training and "
            f"none are left for tuning_per_class {tune}; set dataset.train_per_class too"
        )


def divided(
    train: Mapping[str, Sequence[T]], keep: int | None, tune: int | None, wrong: list[str]
) -> dict[str, dict[str, Sequence[T]]]:
    """The first `keep` images of each class and, after one that is skipped, the next `tune`.

    Args:
        train: images by class.
        keep: how many are for "train"; None for all.
        tune: how many are for "tuning"; None for no such split.
        wrong: gets a line for each class that has too few.
    """
    needed = (keep or 1) + (0 if tune is None else 1 + tune)
    wrong += [
        f"{name} has {len(images):,} images; train_per_class and tuning_per_class need {needed}"
        for name, images in train.items()
        if 0 < len(images) < needed  # one that has none is a fault of its own
    ]
    chosen = {"train": {name: images[:keep] for name, images in train.items()}}
    if keep is not None and tune is not None:
        chosen["tuning"] = {name: images[keep + 1 : keep + 1 + tune] for name, images in train.items()}
    return chosen
