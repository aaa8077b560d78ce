"""CIFAR-10 and CIFAR-100, by torchvision: the Python versions that their authors published.

They are pickles, which can run code when they are read. So files whose MD5 is not the published one
are refused, whatever `published` says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regbench.datasets.published import PUBLISHED
from regbench.datasets.sources.arrays import ArrayFiles, Arrays
from regbench.datasets.sources.base import register
from regbench.settings import settings


class _CIFAR(Arrays):
    """What both have in common: of each class a tenth of the training images is for tuning."""

    tuning_share = 10

    def read(self, files: ArrayFiles) -> list[str]:
        """Add the parts "train" and "test"."""
        from torchvision import datasets
        from torchvision.datasets.utils import check_integrity

        kind: Any = getattr(datasets, type(self).__name__)
        strange = []
        meta = kind.meta["filename"], kind.meta["md5"]
        for name, md5 in (*kind.train_list, *kind.test_list, meta):
            try:
                if not check_integrity(files.folder / name, md5):
                    strange.append(name)
            except OSError as error:
                strange.append(f"{name} ({error.strerror})")
        files.wrong.add(strange, "files are missing or not those that CIFAR's authors published")
        if strange:
            return []
        for part in ("train", "test"):
            read = kind(files.folder.parent, train=part == "train")
            files.add(part, part, read.data, np.array(read.targets, np.int64), len(read.classes))
        return list(read.classes)


@register("cifar10")
@settings
class CIFAR10(_CIFAR):
    """CIFAR-10.

    Of 5,000 training images a class 4,500 are for training and the last 500 for tuning.
    """

    about = PUBLISHED["cifar10"]
    title = about.title
    inside = "cifar-10-batches-py"


@register("cifar100")
@settings
class CIFAR100(_CIFAR):
    """CIFAR-100 with its fine classes.

    Of 500 training images a class 450 are for training, the last 50 for tuning.
    """

    about = PUBLISHED["cifar100"]
    title = about.title
    inside = "cifar-100-python"
