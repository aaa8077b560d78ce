"""The device that is compared with the CPU: a GPU (`make gpu`), or the CPU itself, which tries
tests on small sizes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from regbench.benchmark.machine.compute import forbid_tf32
from regbench.benchmark.settings.sweep import load_dataset
from regbench.datasets.stored.prepare import prepare
from tests.gpu.training import CLASSES, SETTINGS, photo

PER_CLASS = 64
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("cpu", marks=pytest.mark.slow),
        pytest.param("cuda", marks=[pytest.mark.gpu, CUDA]),
    ],
)
def device(request: pytest.FixtureRequest) -> torch.device:
    forbid_tf32()
    return torch.device(request.param)


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a prepared data set: a few classes of images that differ in their colours."""
    folder = tmp_path_factory.mktemp("generated")
    for part, count in (("train", PER_CLASS), ("val", PER_CLASS // 4)):
        for label in range(CLASSES):
            place = folder / "source" / part / f"class{label}"
            place.mkdir(parents=True)
            for number in range(count):
                pixels = photo(1000 * label + number + 500 * (part == "val"), 40)
                Image.fromarray(np.roll(pixels, label, axis=2)).save(place / f"{number}.jpg")
    dataset, _ = load_dataset([setting for setting in SETTINGS if setting.startswith("dataset")])
    prepare(dataset, folder / "data", source_dir=folder / "source")
    return str(folder / "data")
