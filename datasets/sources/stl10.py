"""STL-10: files of bytes, images and labels from 1 to 10.

torchvision's class would hold the 2.8 GB of images without labels in memory.
"""

from __future__ import annotations

import numpy as np

from regbench.datasets.published import PUBLISHED
from regbench.datasets.sources.arrays import ArrayFiles, Arrays
from regbench.datasets.sources.base import Pixels, register
from regbench.settings import settings

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
_IMAGE_BYTES = 3 * 96 * 96


@register("stl10")
@settings
class STL10(Arrays):
    """STL-10; of 500 labelled images a class 400 are for training, the last 100 for tuning;
    100,000 have no label.
    """

    about = PUBLISHED["stl10"]
    title = about.title
    inside = "stl10_binary"
    tuning_share = 5

    def read(self, files: ArrayFiles) -> list[str]:
        """Add the parts "train", "test" and "unlabeled"."""
        for part in ("train", "test"):
            name = f"{part}_y.bin"
            labels = None
            if (content := files.read(name)) is not None:
                labels = np.frombuffer(content, np.uint8).astype(np.int64) - 1
            files.add(part, name, _images(files, f"{part}_X.bin"), labels, len(CLASSES))
        if (unlabeled := _images(files, "unlabeled_X.bin")) is not None:
            files.parts["unlabeled"] = unlabeled, np.full(len(unlabeled), -1, np.int64)
        return list(CLASSES)


def _images(files: ArrayFiles, name: str) -> Pixels | None:
    path = files.folder / name
    size = path.stat().st_size if path.is_file() else 0
    if size == 0:
        files.wrong.append(f"{name} is missing or empty")
        return None
    if size % _IMAGE_BYTES:
        files.wrong.append(f"{name} is cut short: {size:,} bytes, no multiple of {_IMAGE_BYTES:,}")
        return None
    # Mapped, because the images without labels are 2.8 GB. Each is three planes, each stored column
    # by column.
    planes: Pixels = np.memmap(path, np.uint8, "r").reshape(-1, 3, 96, 96)
    return planes.transpose(0, 3, 2, 1)
