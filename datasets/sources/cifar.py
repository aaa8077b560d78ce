"""CIFAR-10 and CIFAR-100: pickles of arrays, in the Python versions that their authors
published.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

import numpy as np

from regbench.datasets.published import PUBLISHED
from regbench.datasets.sources.arrays import ArrayFiles, Arrays
from regbench.datasets.sources.base import Labels, Pixels, register
from regbench.settings import settings

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


@register("cifar10")
@settings
class CIFAR10(Arrays):
    """CIFAR-10.

    Of 5,000 training images a class 4,500 are for training and the last 500 for tuning.
    """

    about = PUBLISHED["cifar10"]
    title = about.title
    inside = "cifar-10-batches-py"
    tuning_share = 10

    def read(self, files: ArrayFiles) -> list[str]:
        """Add the parts "train", which is five files, and "test"."""
        batches = [_batch(files, f"data_batch_{i}", b"labels") for i in range(1, 6)]
        if not files.wrong:
            # A batch that could not be read is None, and among the faults.
            images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
            files.add("train", "data_batch_1 to 5", images, labels, len(CIFAR10_CLASSES))
        files.add(
            "test", "test_batch", *_batch(files, "test_batch", b"labels"), len(CIFAR10_CLASSES)
        )
        return list(CIFAR10_CLASSES)


@register("cifar100")
@settings
class CIFAR100(Arrays):
    """CIFAR-100 with its fine classes.

    Of 500 training images a class 450 are for training, the last 50 for tuning.
    """

    about = PUBLISHED["cifar100"]
    title = about.title
    inside = "cifar-100-python"
    tuning_share = 10

    def read(self, files: ArrayFiles) -> list[str]:
        """Add the parts "train" and "test"."""
        names: list[str] = []
        if (packed := files.read("meta")) is not None:
            try:
                names = [name.decode() for name in _unpickled(packed)[b"fine_label_names"]]
            except _NO_PICKLE as error:
                files.wrong.append(f"meta is {_STRANGE} ({error})")
        for part in ("train", "test"):
            images, labels = _batch(files, part, b"fine_labels")
            if names:  # without them nothing is known of the labels
                files.add(part, part, images, labels, len(names))
        return names


class _ArrayUnpickler(pickle.Unpickler):
    """Reads NumPy arrays and plain containers, and nothing that could run code."""

    _ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        # The files were pickled by a NumPy that had this module under another name.
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


_NO_PICKLE = (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError)
_STRANGE = "not the file that CIFAR's authors published"


def _unpickled(packed: bytes) -> Any:
    return _ArrayUnpickler(BytesIO(packed), encoding="bytes").load()


def _batch(files: ArrayFiles, name: str, labels_key: bytes) -> tuple[Pixels | None, Labels | None]:
    if (packed := files.read(name)) is None:
        return None, None
    try:
        content = _unpickled(packed)
        # Each row is three planes of 32 x 32.
        images = np.asarray(content[b"data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = np.asarray(content[labels_key], np.int64)
        if len(images) != len(labels):
            raise ValueError(f"{len(images):,} images but {len(labels):,} labels")
        return images, labels
    except _NO_PICKLE as error:
        files.wrong.append(f"{name} is {_STRANGE} ({error})")
        return None, None
