"""CIFAR's files as torchvision reads them, with few images."""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100

# The pickler that is written in Python, which can be changed.
PurePickler: Any = vars(pickle)["_Pickler"]


class Python2Pickler(PurePickler):  # type: ignore[misc]
    """Writes bytes as the strings of Python 2, as CIFAR's authors had them."""

    dispatch: ClassVar = dict(PurePickler.dispatch)

    def save_string(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)

    dispatch[bytes] = save_string


def write_pickle(path: Path, content: dict[bytes, object]) -> list[str]:
    """Write a file of CIFAR's; return its name and its MD5, as torchvision lists them."""
    buffer = BytesIO()
    Python2Pickler(buffer, protocol=2).dump(content)
    path.write_bytes(buffer.getvalue())
    return [path.name, hashlib.md5(buffer.getvalue()).hexdigest()]


@contextmanager
def cifar_files(root: Path) -> Iterator[None]:
    """Write CIFAR-10 with 20 training images a class and CIFAR-100 with 10, both with 2 for the
    test; meanwhile torchvision takes them for the published ones.
    """
    rng = np.random.default_rng(1)
    parts = {f"data_batch_{i}": (CIFAR10, 10, 4) for i in range(1, 6)}
    parts |= {"test_batch": (CIFAR10, 10, 2), "train": (CIFAR100, 100, 10)}
    parts |= {"test": (CIFAR100, 100, 2)}
    written: dict[str, list[str]] = {}
    for name, (kind, classes, per_class) in parts.items():
        folder = root / kind.base_folder
        folder.mkdir(exist_ok=True)
        labels = rng.permutation(np.repeat(np.arange(classes), per_class)).tolist()
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        key = b"labels" if kind is CIFAR10 else b"fine_labels"
        written[name] = write_pickle(folder / name, {b"data": data, key: labels})
    with pytest.MonkeyPatch.context() as patch:
        for kind, classes in ((CIFAR10, 10), (CIFAR100, 100)):
            names = [f"class {i}".encode() for i in range(classes)]
            path = root / kind.base_folder / kind.meta["filename"]
            _, md5 = write_pickle(path, {kind.meta["key"].encode(): names})
            patch.setattr(kind, "meta", kind.meta | {"md5": md5})
            for files in ("train_list", "test_list"):
                listed = [written[name] for name, _ in getattr(kind, files)]
                patch.setattr(kind, files, listed)
        yield
