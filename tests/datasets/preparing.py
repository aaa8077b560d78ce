"""What the tests of sources ask of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from regbench import RegbenchError
from regbench.datasets.config import DatasetConfig
from regbench.datasets.sources.base import Contents
from regbench.datasets.stored.beton import Beton
from regbench.datasets.stored.prepare import open_source


def stored(data: Path, name: str, split: str) -> list[tuple[int, bytes]]:
    """Label and stored bytes of every image, in order."""
    beton = Beton(data / name / f"{split}.beton")
    return [(int(label), beton.stored_bytes(i).tobytes()) for i, label in enumerate(beton.labels)]


def opened(config: DatasetConfig, source: Path) -> Contents:
    """The source, which is usable."""
    return open_source(config, source, source)


def images(contents: Contents, split: str) -> list[tuple[int, str]]:
    """Label and origin of every image, in order."""
    found = contents.splits[split]
    return [
        (label, origin)
        for label, (_, origin) in zip(found.labels.tolist(), found.images(), strict=True)
    ]


def counts(contents: Contents) -> dict[str, int]:
    """The number of images of each split."""
    return {name: len(split.labels) for name, split in contents.splits.items()}


# Every refusal of a source that these tests meet, each in one line.
REFUSALS = Path(__file__).with_name("refusals.txt").read_text().splitlines()
# Folders of tests, and the words of libraries, which differ between their versions.
OF_THE_MACHINE = (
    (r"/\S*?/pytest-\d+/(?:popen-gw\d+/)?[\w.-]+", "TMP"),
    (r"(cannot (?:be read|read [^;]*|open [^;]*)|is damaged) \([^;]*\)", r"\1 (WHY)"),
)


def refused(
    config: DatasetConfig, source: Path | None, reason: str, downloads: Path = Path("/none")
) -> None:
    """It is refused in a line of `REFUSALS` that has this in it."""
    with pytest.raises(RegbenchError) as refusal:
        open_source(config, source, downloads)
    said = str(refusal.value).replace(str(Path.cwd()), "HERE")
    for pattern, name in OF_THE_MACHINE:
        said = re.sub(pattern, name, said)
    assert reason in said
    assert said in REFUSALS
