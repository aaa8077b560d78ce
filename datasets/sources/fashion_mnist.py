"""Fashion-MNIST: four gzipped IDX files; in Debian they are a package."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from regbench.datasets.published import PUBLISHED
from regbench.datasets.sources.arrays import ArrayFiles, Arrays
from regbench.datasets.sources.base import Contents, Pixels, register
from regbench.settings import settings

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")

# fmt: off
CLASSES = (
    "t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
        "ankle boot",
)
# fmt: on


@register("fashion_mnist")
@settings
class FashionMNIST(Arrays):
    """Fashion-MNIST.

    Of 6,000 training images a class 5,000 are for training and the last 1,000 for tuning.
    """

    about = PUBLISHED["fashion_mnist"]
    title = about.title
    inside = ""
    downloaded_to = "FashionMNIST/raw"
    tuning_share = 6

    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Read the folder that is given, Debian's, or a download; see `Source.open`."""
        if folder is None and (DEBIAN_FOLDER / "train-images-idx3-ubyte.gz").is_file():
            folder = DEBIAN_FOLDER
        return super().open(folder, downloads)

    def read(self, files: ArrayFiles) -> list[str]:
        """Add the parts "train" and "test"."""
        for part, name in (("train", "train"), ("test", "t10k")):
            labels_file = f"{name}-labels-idx1-ubyte.gz"
            labels = _idx(files, labels_file, 1)
            images = _idx(files, f"{name}-images-idx3-ubyte.gz", 3)
            as_int = None if labels is None else labels.astype(np.int64)
            files.add(part, labels_file, images, as_int, len(CLASSES))
        return list(CLASSES)


def _idx(files: ArrayFiles, name: str, dimensions: int) -> Pixels | None:
    """Read a gzipped IDX file of bytes: 0, 0, 8 (bytes), number of dimensions, sizes
    (big-endian), values.
    """
    if (packed := files.read(name)) is None:
        return None
    # The magic number and the sizes come first, four bytes each.
    values_start = 4 + 4 * dimensions
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        files.wrong.append(f"{name} is damaged ({error})")
        return None
    if len(content) < values_start or content[:4] != bytes([0, 0, 8, dimensions]):
        files.wrong.append(f"{name} is not an IDX file of bytes in {dimensions} dimensions")
        return None
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    values = np.frombuffer(content, np.uint8, offset=values_start)
    if math.prod(shape) != len(values):
        files.wrong.append(f"{name} is cut short: {len(values):,} values for the shape {shape}")
        return None
    return values.reshape(shape)
