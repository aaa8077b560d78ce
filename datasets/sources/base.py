"""The base of all sources of images: settings, metadata, and splits that are read once, in
order.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from regbench.datasets.published import PUBLISHED, Published, refuse_if
from regbench.errors import RegbenchError
from regbench.plugins import Registry
from regbench.settings import AtLeastOne, settings

Labels = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]
Image = Path | bytes | Pixels
"""An image file, its content, or pixels: (height, width, 3), or (height, width) if they are
grey.
"""
T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """One split, ready to be read once, in order.

    Attributes:
        labels: Labels, (N,) int64; -1 for an image without one.
        images: Function, called once, that gives each image in the order of the labels, and its
            place in the source.
        largest_bytes: Size of the largest image, if it may not fit a page of the smallest size.
        factors: Values of each factor of the images, by name, (N,) each; empty if they are not
            known.
    """

    labels: Labels
    images: Callable[[], Iterable[tuple[Image, str]]]
    largest_bytes: int = 0
    factors: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)


@dataclass(frozen=True)
class Contents:
    """The splits and classes of an opened source.

    Attributes:
        splits: Splits by name: "train", "test", and "tuning" or "unlabeled" if there is one.
        class_names: Names in the order of the labels.
        taken_from: Split -> which of the source's images are in it, if that needs to be said.
        notes: Notes on what was not read, or not as a user may expect, and why, each in one line.
    """

    splits: dict[str, Split]
    class_names: list[str]
    taken_from: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Source(ABC):
    """The source of a data set's images.

    A subclass is a class of settings, decorated by `regbench.settings.settings` and by the
    `register` of this module. It states `title` and `layout`, and implements `open`. Image files
    are read by subclasses of `ImageFiles`; any other source gives pixels. A setting with
    `field(compare=False)` decides nothing about a run and is no part of a cell.
    """

    title: ClassVar[str]
    """Name in messages, such as "a folder of images"."""
    partial: ClassVar[str] = "dataset.source.published=null"
    """The override that says that it is a part of a published data set."""
    own: ClassVar[bool] = True
    """Whether it reads images of one's own, from a folder that must be given. Other sources find,
    download or generate theirs.
    """

    @property
    def layout(self) -> str:
        """Layout that a folder of one's own images must have."""
        return ""

    @property
    def about(self) -> Published | None:
        """The published data set that it is, or is a part of, if any."""
        return None

    @property
    def expected(self) -> Mapping[str, int]:
        """The number of images that parts of it must have: the published ones."""
        return self.about.num_images if self.about else {}

    @property
    def drawn_shape(self) -> tuple[int, int] | None:
        """Channels and side of examples that loaders draw; None: examples are read from a file."""
        return None

    @abstractmethod
    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Find the images, in `folder` or where they usually are, and divide them into splits.

        `folder` may be None only if the source is not `own`. Downloads go to `downloads`.

        Raises:
            RegbenchError: If the source cannot be found or is incomplete; the message lists all
                faults, and says where to get it.
        """

    def inputs(self, folder: Path) -> str:
        """State what images of one's own are made of: the folder and, a line each, what else."""
        return f"/{named(folder.resolve(), Path('/'))}"

    def refuse(
        self, where: object, wrong: Sequence[str], found: Mapping[str, int] | None = None
    ) -> None:
        """Refuse the source at `where` if anything is `wrong`, or if the number of images `found`
        in a part is.
        """
        miscounted = []
        for part, count in (found or {}).items():
            expected = self.expected.get(part, count)
            if count != expected:
                miscounted.append(f"{part} has {count:,} images, not {expected:,}")
        what = f"{where} cannot be used"
        remedy = f"mend it, or give another folder, with {self.layout}"
        if self.about:
            what = f"{where} is not the complete {self.about.title}"
            remedy = f"get it from {self.about.address}"
        # A part is welcome as long as it does not pass for the whole.
        if miscounted:
            remedy += f", or say that it is a part or a set of your own: {self.partial}"
        refuse_if([*wrong, *miscounted], what, remedy)


@settings
class ImageFiles(Source):
    """A source of image files.

    Attributes:
        resize_px: A larger image is shrunk to so many px when the data set is prepared; null: the
            original JPEGs are kept bit for bit.
        resize_side: The side that resize_px is about.
        jpeg_quality: Quality of images that are shrunk or converted when the data set is prepared.
        levels: Number of grey levels of images that have more than 8 bits, such as 4096 for 12 bits
            in 16: a value v becomes v * 256 // levels, at most 255; null: 65536.
    """

    resize_px: AtLeastOne | None = None
    resize_side: Literal["shorter", "longer"] = "shorter"
    # Pillow advises against more: files grow, and the images hardly change.
    jpeg_quality: Annotated[int, Field(ge=1, le=100)] = 95
    levels: Annotated[int, Field(ge=2, le=2**31)] | None = None

    def __post_init__(self) -> None:
        """Refuse a side without a size."""
        if self.resize_side == "longer" and self.resize_px is None:
            raise RegbenchError("dataset.source.resize_side=longer needs dataset.source.resize_px")


@settings
class DividedFiles(ImageFiles):
    """A source of image files whose training images are divided by numbers.

    Attributes:
        train_per_class: The train split holds the first so many images of each class; null: all of
            them.
        tuning_per_class: The tuning split holds so many images of each class, taken from the
            training images after those for training and one skipped; null: no such split.
        published: The published data set that the source must be the whole of: its images are
            counted; null: a part of one, or any other images.
    """

    train_per_class: AtLeastOne | None = None
    tuning_per_class: AtLeastOne | None = None
    published: Literal["ilsvrc2012", "places205", "imagenette2-160", "imagenet100"] | None = field(
        default=None, compare=False
    )

    @property
    def about(self) -> Published | None:
        """The published data set that it must be, if any."""
        return PUBLISHED[self.published] if self.published else None

    def refuse_overlap(self) -> None:
        """Refuse numbers that take all images for training and some for tuning."""
        if self.tuning_per_class is not None and self.train_per_class is None:
            raise RegbenchError(
                "the splits overlap: without dataset.source.train_per_class all images are for "
                "training and none are left for "
                f"dataset.source.tuning_per_class={self.tuning_per_class}"
            )

    def divided(
        self, train: Mapping[str, Sequence[T]], where: str
    ) -> dict[str, dict[str, Sequence[T]]]:
        """Divide training images by class: the first for "train" and, after one that is skipped,
        the next for "tuning".

        A class with too few is refused; messages call the images `where`.
        """
        keep, tune = self.train_per_class, self.tuning_per_class
        needed = keep or 1
        chosen = {"train": {name: images[:keep] for name, images in train.items()}}
        if keep is not None and tune is not None:
            # One image is skipped in the published code of SFRIK, whose subsets of ImageNet these
            # are.
            needed += 1 + tune
            tuning = slice(keep + 1, needed)
            chosen["tuning"] = {name: images[tuning] for name, images in train.items()}
        too_few = []
        for name, images in train.items():
            if len(images) < needed:
                asked = f"train_per_class and tuning_per_class need {needed}"
                too_few.append(f"{name} has {len(images):,} images; {asked}")
        refuse_if(too_few, f"{where} is too small", "choose other numbers, or add images")
        return chosen


NO_CLASS = ""
"""Class name that stands for images without a class, whose label is -1."""


def named(path: Path, root: Path) -> str:
    """Name a file relative to `root`, in UTF-8 and in one line, even if its own name is not."""
    name = os.fsencode(os.path.relpath(path, root)).decode(errors="backslashreplace")
    return name.replace("\n", "\\n")


def split_of_files(classes: Mapping[str, Sequence[Path]], root: Path) -> Split:
    """Make a split of the files of each class, in the order of the labels.

    Messages name them relative to `root`.
    """
    numbers = [-1 if name == NO_CLASS else label for label, name in enumerate(classes)]
    labels = np.repeat(np.array(numbers, np.int64), [len(paths) for paths in classes.values()])
    files = [(path, named(path, root)) for path in chain.from_iterable(classes.values())]
    return Split(labels, lambda: files, max(path.stat().st_size for path, _ in files))


SOURCES: Registry[Source] = Registry("source")
"""The registered sources."""

register = SOURCES.register
