"""Published data sets: where to get each, how many images it has, and the refusal of incomplete
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regbench.csv_files import read_csv
from regbench.errors import RegbenchError
from regbench.text import few


@dataclass(frozen=True)
class Published:
    """A data set as it is published.

    Attributes:
        title: Name in messages.
        address: Address where it can be had.
        num_images: Number of images in each of its parts.
    """

    title: str
    address: str
    num_images: Mapping[str, int]


PUBLISHED: dict[str, Published] = {}
for _line in read_csv(Path(__file__).with_name("published.csv").read_text()):
    _parts = dict(part.split("=") for part in _line["num_images"].split())
    _numbers = {part: int(count) for part, count in _parts.items()}
    PUBLISHED[_line["name"]] = Published(_line["title"], _line["address"], _numbers)
# Where the lists of images that keep their labels in semi-supervised learning are.
SIMCLR_LISTS = "https://raw.githubusercontent.com/google-research/simclr/master/imagenet_subsets/"


class Faults(list[str]):
    """All that is wrong with a source, each fault in one line."""

    def add(self, names: Sequence[object], what: str) -> None:
        """Add a fault that all `names` have, unless there are none: their number, the fault, and
        the first of them.
        """
        if names:
            self.append(f"{len(names):,} {what}: {few(names)}")


def refuse_if(wrong: Sequence[str], what: str, remedy: str) -> None:
    """Refuse `what` in one line with all its faults, or with the first of them and how many more
    there are.
    """
    # Faults are listed together, as nobody wants to mend a terabyte fault by fault.
    if wrong:
        faults = few(wrong, between="; ")
        # A library's message about a damaged file can have several lines.
        raise RegbenchError(" ".join(f"{what}: {faults}; {remedy}".split()))
