"""The files of a latent world: for each split, one with the settings its examples are drawn by.

The digest of such a file stands for the examples, which no file holds.
"""

from __future__ import annotations

import json
from pathlib import Path

from regbench.datasets.config import DatasetConfig
from regbench.datasets.loading.latent_split import LAW
from regbench.datasets.sources.latents import Latents
from regbench.datasets.stored.manifest import FILE_NAME, SplitEntry, prepared_from, save_text
from regbench.files import file_sha256


def write_latents(config: DatasetConfig, source: Latents, folder: Path) -> dict[str, SplitEntry]:
    """Write the file of each split of a latent world."""
    # The manifest must never describe files that are not its own.
    (folder / FILE_NAME).unlink(missing_ok=True)
    entries: dict[str, SplitEntry] = {}
    for split, count in source.counts.items():
        path = folder / f"{split}.json"
        drawn_by = {"law": LAW, "split": split, "source": prepared_from(config)}
        save_text(path, json.dumps(drawn_by, indent=2, sort_keys=True) + "\n")
        digest = file_sha256(path)
        entries[split] = {
            "file": path.name,
            "num_samples": count,
            "counts_per_class": [],
            "content_sha256": digest,
            "bytes": path.stat().st_size,
            "origins": path.name,
            "origins_sha256": digest,
            "left_out": {},
            "image_px": config.image_size,
            "grey": False,
        }
    return entries
