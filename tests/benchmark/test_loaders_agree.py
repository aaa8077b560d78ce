"""A run comes to the same whichever loader it has."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regbench.benchmark.run import run_cell
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.stored.prepare import prepare
from tests.there import there

SETTINGS = (
    *("dataset=imagefolder", "dataset.name=digits", "dataset.num_classes=10"),
    *("dataset.image_size=32", "dataset.eval_resize=32", "augmentation=small_color"),
    *("augmentation.views.view1.flip_p=0", "augmentation.views.view2.flip_p=0"),
    *("network=resnet_tiny", "method=sfrik_l2", "method.alignment_weight=250"),
    *("embedding_dim=128", "batch_size=128", "epochs=4"),
    *("optimizer.warmup_epochs=1", "optimizer.base_lr=2", "evaluation.protocols=[knn]"),
    *("runtime.device=cpu", "runtime.threads=1"),
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scikit-learn's digits as JPEGs of 40 px, a third of each class for the test."""
    source, data_dir = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("data")
    from sklearn.datasets import load_digits

    digits = load_digits()
    seen = [0] * 10
    for image, label in zip(digits.images, digits.target, strict=True):
        part = "val" if seen[label] % 3 == 0 else "train"
        path = source / part / str(label) / f"{seen[label]:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        seen[label] += 1
        picture = Image.fromarray((image * 255 / 16).astype(np.uint8))
        larger = picture.resize((40, 40), Image.Resampling.BICUBIC)
        larger.convert("RGB").save(path, quality=90)
    prepare(load_run(SETTINGS)[0].dataset, data_dir, source_dir=source)
    return data_dir


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ffcv") is None, reason="FFCV is not installed")
def test_the_accuracy_is_the_same_within_the_noise_of_seeds(data_dir: Path, tmp_path: Path) -> None:
    def accuracy(loader: str, seed: int) -> float:
        folders = (f"runtime.data_dir={data_dir}", f"runtime.runs_dir={tmp_path}")
        runtime = (*folders, f"runtime.loader={loader}")
        record = there(run_cell(*load_run([*SETTINGS, *runtime, f"seed={seed}"]), sweep=loader))
        assert record.environment["loader"] == loader
        return there(record.score("knn_top1", "test"))

    from scipy import stats

    ffcv = [accuracy("ffcv", seed) for seed in range(6)]
    torchvision = [accuracy("torchvision", seed) for seed in range(6)]
    assert statistics.mean(ffcv) > 50
    assert stats.ttest_ind(ffcv, torchvision).pvalue > 0.01, (ffcv, torchvision)
