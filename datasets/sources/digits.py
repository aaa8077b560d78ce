"""Handwritten digits of 8 px: the part of UCI's "optdigits" that comes with scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from regbench.datasets.published import PUBLISHED
from regbench.datasets.sources.arrays import ArrayFiles, Arrays, last_of_each_class
from regbench.datasets.sources.base import Contents, register
from regbench.settings import settings

# The largest value of a pixel.
_WHITE = 16
_TEST_SHARE = 3


@register("digits")
@settings
class Digits(Arrays):
    """Scikit-learn's digits; of each class the last third is the test, and of the others the last
    third for tuning.

    They have no official test split: scikit-learn has UCI's test part alone. They are in the order
    in which people wrote them, so few of those who wrote the test wrote anything else.
    """

    about = PUBLISHED["digits"]
    title = about.title
    inside = ""
    tuning_share = 3

    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Read what comes with scikit-learn, whatever the folder."""
        return super().open(Path("scikit-learn"), downloads)

    def read(self, files: ArrayFiles) -> list[str]:
        """Add the parts "train" and "test"."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = (digits.images * (255 / _WHITE)).round().astype(np.uint8)
        labels = digits.target.astype(np.int64)
        test = last_of_each_class(labels, _TEST_SHARE)
        for part, chosen in (("train", ~test), ("test", test)):
            files.add(part, "digits", pixels[chosen], labels[chosen], 10)
        return [str(digit) for digit in range(10)]
