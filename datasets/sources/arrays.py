"""Small images that are published as arrays: what Fashion-MNIST, CIFAR, STL-10 and digits have in
common.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from regbench.datasets.published import Faults, Published
from regbench.datasets.sources.base import SOURCES, Contents, Labels, Pixels, Source, Split
from regbench.errors import RegbenchError
from regbench.files import regular
from regbench.settings import settings


class ArrayFiles:
    """The reader of a source's files, which collects all their faults.

    Attributes:
        folder: The folder that they are in.
        wrong: The faults so far.
        parts: The images and labels that could be read, by part.
    """

    def __init__(self, folder: Path) -> None:
        """Begin with nothing read."""
        self.folder = folder
        self.wrong = Faults()
        self.parts: dict[str, tuple[Pixels, Labels]] = {}

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if it cannot be read."""
        try:
            return regular(self.folder / name).read_bytes()
        except FileNotFoundError:
            self.wrong.append(f"{name} is missing")
        except OSError as error:
            self.wrong.append(f"{name} cannot be read ({error.strerror})")
        return None

    def add(
        self, part: str, name: str, images: Pixels | None, labels: Labels | None, num_classes: int
    ) -> None:
        """Take images and the labels of file `name` as a part, unless they have a fault or are
        None, which stands for a file that could not be read.
        """
        if images is None or labels is None:
            return
        if len(images) != len(labels) or len(labels) == 0:
            self.wrong.append(f"{name}: {len(images):,} images but {len(labels):,} labels")
        elif labels.min() < 0 or labels.max() >= num_classes:
            self.wrong.append(
                f"{name}: labels from {labels.min()} to {labels.max()}, not 0 to {num_classes - 1}"
            )
        else:
            self.parts[part] = images, labels


@settings
class Arrays(Source):
    """A published data set of arrays; of each class the last training images, in file order, are
    for tuning.

    A subclass has the name of its class in torchvision, which downloads it.

    Attributes:
        tuning_split: Whether some training images of each class are for tuning; false: all are for
            training, and there is no tuning split.
        published: Whether it must be the whole of it: its images are counted.
    """

    tuning_split: bool = True
    published: bool = field(default=True, compare=False)

    own = False
    partial = "dataset.source.published=false"
    about: ClassVar[Published]
    inside: ClassVar[str]
    """The folder of its files inside the given folder."""
    downloaded_to: ClassVar[str] = ""
    """The folder of its files inside that of the downloads, if it is not `inside`."""
    tuning_share: ClassVar[int]
    """One in this many of a class's training images is for tuning."""

    @property
    def expected(self) -> Mapping[str, int]:
        """The published numbers of images."""
        return self.about.num_images if self.published else {}

    @abstractmethod
    def read(self, files: ArrayFiles) -> list[str]:
        """Add the parts "train" and "test" of the files, and return the names of the classes."""

    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Read all files; see `Source.open`."""
        where = folder / self.inside if folder else self._downloaded(downloads)
        # All faults are collected, so that one try finds them.
        files = ArrayFiles(where)
        class_names = self.read(files)
        counts = {part: len(labels) for part, (_, labels) in files.parts.items()}
        again = "" if folder else ", which was downloaded (remove it to try again),"
        self.refuse(f"{where}{again}", files.wrong, counts)
        name = SOURCES.name(self)
        splits = {}
        for part, (images, labels) in files.parts.items():
            of_part = {part: np.arange(len(labels))}
            if part == "train" and self.tuning_split:
                tuning = last_of_each_class(labels, self.tuning_share)
                of_part = {"train": np.flatnonzero(~tuning), "tuning": np.flatnonzero(tuning)}
            for split, rows in of_part.items():
                splits[split] = _split(f"{name} {part}", images, labels, rows)
        return Contents(splits, class_names)

    def _downloaded(self, downloads: Path) -> Path:
        place = self.downloaded_to or self.inside
        folder = downloads / place
        if not folder.is_dir():
            import torchvision.datasets

            # torchvision checks the archive's MD5 digest, and unpacks it. The folder appears when
            # it is whole, so that a download which is stopped begins again.
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=downloads) as new:
                    getattr(torchvision.datasets, type(self).__name__)(new, download=True)
                    if not folder.is_dir():  # another process may have been faster
                        Path(new, place).rename(folder)
            except (OSError, RuntimeError) as error:
                raise RegbenchError(
                    f"cannot download {self.about.title} ({error}); get it by other means from "
                    f"{self.about.address} and give its folder with --source-dir"
                ) from error
        return folder


def last_of_each_class(labels: Labels, share: int) -> npt.NDArray[np.bool_]:
    """Mark the last images of each class: one in `share` of its images."""
    last = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        # rows[-n:] would be all of them if n is 0.
        last[rows[len(rows) - len(rows) // share :]] = True
    return last


def _split(name: str, images: Pixels, labels: Labels, rows: npt.NDArray[np.intp]) -> Split:
    """Make the split of the images at `rows`."""
    return Split(labels[rows], lambda: ((images[row], f"{name}[{row}]") for row in rows))
