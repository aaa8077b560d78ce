"""Handwritten digits of 8 px: the part of UCI's "optdigits" that comes with scikit-learn."""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from pathlib import Path

import numpy as np

from regbench.datasets.published import PUBLISHED
from regbench.datasets.sources.arrays import ArrayFiles, Arrays, last_of_each_class
from regbench.datasets.sources.base import Contents, register
from regbench.errors import RegbenchError
from regbench.settings import settings

_FILE = "digits.csv.gz"
_SIDE = 8
_WHITE = 16  # the largest value of a pixel
_TEST_SHARE = 3


@register("digits")
@settings
class Digits(Arrays):
    """Scikit-learn's digits; of each class the last third is the test, and of the others the last third for tuning.

    They have no official test split: scikit-learn has UCI's test part alone. They are in the order in which people
    wrote them, so few of those who wrote the test wrote anything else.
    """

    about = PUBLISHED["digits"]
    title = about.title
    inside = ""
    tuning_share = 3

    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Read the folder that is given, or scikit-learn's own; see `Source.open`."""
        if folder is None:
            found = importlib.util.find_spec("sklearn")
            if found is None or found.origin is None:
                raise RegbenchError("scikit-learn, which has the digits, is not installed: pip install scikit-learn")
            folder = Path(found.origin).parent / "datasets" / "data"
        return super().open(folder, downloads)

    def read(self, files: ArrayFiles) -> list[str]:
        """Add the parts "train" and "test"."""
        names = [str(digit) for digit in range(10)]
        if (packed := files.read(_FILE)) is None:
            return names
        try:
            rows = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", ndmin=2)
            images = rows[:, : _SIDE**2].reshape(-1, _SIDE, _SIDE)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            files.wrong.append(f"{_FILE} is damaged ({error})")
            return names
        pixels, labels = (images * (255 / _WHITE)).round().astype(np.uint8), rows[:, -1].astype(np.int64)
        test = last_of_each_class(labels, _TEST_SHARE)
        for part, chosen in (("train", ~test), ("test", test)):
            files.add(part, _FILE, pixels[chosen], labels[chosen], len(names))
        return names
