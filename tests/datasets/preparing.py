"""What the tests of sources ask of `prepare`."""

from __future__ import annotations

from pathlib import Path

import pytest

from regbench import RegbenchError
from regbench.datasets.beton import Beton
from regbench.datasets.config import DatasetConfig
from regbench.datasets.prepare import prepare


def stored(data: Path, name: str, split: str) -> list[tuple[int, bytes]]:
    """Label and stored bytes of every image, in order."""
    beton = Beton(data / name / f"{split}.beton")
    return [(int(label), beton.stored_bytes(i).tobytes()) for i, label in enumerate(beton.labels)]


def refused(config: DatasetConfig, data: Path, source: Path | None, *reasons: str) -> None:
    """It is refused in one line that has all these in it, and leaves no manifest."""
    with pytest.raises(RegbenchError) as refusal:
        prepare(config, data, source_dir=source, progress=False)
    for reason in reasons:
        assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (data / config.name / "manifest.json").exists()
