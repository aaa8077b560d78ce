"""The factors that the images of a generated data set are made of: a table beside each split, a
line for each image.

The name of a factor says how it is read: a name that ends in `_turns` is a place on a circle, a
column of whole numbers is a choice among classes, and any other column is a quantity.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from regbench.csv_files import read_csv
from regbench.datasets.config import DatasetConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.splits import open_split
from regbench.datasets.stored.manifest import Manifest, is_whole
from regbench.errors import RegbenchError

Factors = dict[str, npt.NDArray[np.generic]]


def read_factors(data_dir: Path, dataset: DatasetConfig, split: str) -> Factors:
    """Read the factors of the images of a split that are used, by name, (N,) each.

    They are integers for choices and float64 for quantities.
    """
    entry = Manifest.load(data_dir, dataset).splits[split]
    if "factors" not in entry:
        what = f"data set {dataset.name!r} does not say what its images are made of"
        raise RegbenchError(f"{what}; take one that does, such as dataset=scenes")
    path = data_dir / dataset.name / entry["factors"]
    if not is_whole(path, entry["factors_sha256"]):
        raise RegbenchError(
            f"{path} is missing or was changed; write it again: {dataset.prepare_command} --force"
        )
    lines = read_csv(path.read_bytes().decode())
    found: Factors = {}
    for name in lines[0]:
        values = [line[name] for line in lines]
        # Whole numbers are choices, others quantities.
        try:
            found[name] = np.array([*map(int, values)], np.int64)
        except ValueError:
            found[name] = np.array([*map(float, values)])
    # Bits are drawn from split and place when images are loaded, so no file holds them.
    bits = draws.shared_bits(split, np.arange(len(lines)), dataset.shared_bits)
    for number, column in enumerate(bits.T):
        found[f"bit_{number}"] = column
    if split != "train":
        return found
    # A data set may use a part of the training images alone.
    _, rows = open_split(dataset, split, data_dir, None)
    return {name: values[rows] for name, values in found.items()}
