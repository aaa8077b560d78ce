"""What the tests of sources ask of them."""

from __future__ import annotations

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


def refused(
    config: DatasetConfig, source: Path | None, *reasons: str, downloads: Path = Path("/none")
) -> None:
    """It is refused in one line that has all these in it."""
    with pytest.raises(RegbenchError) as refusal:
        open_source(config, source, downloads)
    for reason in reasons:
        assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)
