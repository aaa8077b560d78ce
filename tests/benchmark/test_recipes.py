"""Published recipes: their cells against the released values, and a few steps of each on
generated images.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.interruption import Interruption
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.preset_tree import merged
from regbench.benchmark.settings.presets import preset_files
from regbench.benchmark.settings.recipes import PublishedNumber, published_numbers
from regbench.benchmark.settings.sweep import load_sweep
from regbench.datasets.sources import imagefolder
from regbench.datasets.stored.prepare import prepare
from tests.cifar import cifar_files

RECIPES = sorted({number.preset for number in published_numbers()})


def numbers_of(recipe: str) -> list[PublishedNumber]:
    return [number for number in published_numbers() if number.preset == recipe]


def cells_of(recipe: str, *overrides: str) -> tuple[Cell, ...]:
    return load_sweep(recipe, overrides).cells


# ------------------------------------------------------------------ the numbers


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_number_is_of_one_cell_and_each_cell_has_a_line(recipe: str) -> None:
    cells, numbers = cells_of(recipe, "seed=0"), numbers_of(recipe)
    for number in numbers:
        assert [number.is_of(cell.plain()) for cell in cells].count(True) == 1, number.cell
    for cell in cells:
        assert any(number.is_of(cell.plain()) for number in numbers), cell
    # Another seed is no other cell of the publication, but another length of the training is.
    for cell in cells_of(recipe, "seed=3"):
        assert any(number.is_of(cell.plain()) for number in numbers)
    for cell in cells_of(recipe, "epochs=1", "optimizer.warmup_epochs=0"):
        assert not any(number.is_of(cell.plain()) for number in numbers)
    assert len({(number.cell, number.score, number.setting) for number in numbers}) == len(numbers)


def test_the_file_of_numbers_is_whole() -> None:
    for number in published_numbers():
        for field in ("preset", "cell", "dataset", "method", "what", "source"):
            text = getattr(number, field)
            assert text and text == text.strip(), number
        assert number.on_test in ("yes", "no", "not stated")
        assert number.number is None or 0 < number.number < 100
        if number.number is None:
            assert (number.deviation, number.what) == (None, "no published number")
        # A score that the cell's evaluations give.
        (cell,) = [cell for cell in cells_of(number.preset, "seed=0") if number.is_of(cell.plain())]
        needed = {"linear": "probe", "knn": "knn"}[number.score.partition("_")[0]]
        assert needed in cell.evaluation.protocols


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_says_what_it_does_otherwise(recipe: str) -> None:
    text = preset_files("sweep")[recipe].read_text()
    listed = text.partition("# Deviations from the release:\n")[2]
    lines = listed.splitlines()
    assert lines and all(line.startswith("# - ") and line.endswith(".") for line in lines)


# ------------------------------------------------------------------ the released values

RELEASED = yaml.safe_load(Path(__file__).with_name("released_recipes.yaml").read_text())


def facts(cell: Cell, images: int) -> dict[str, Any]:
    """The settings of a cell, and what follows from several of them."""
    views = []
    for v in cell.augmentation.views.values():
        jitter = (v.brightness, v.contrast, v.saturation, v.hue)
        views += [[v.crop_scale[0], *jitter, v.blur_p, v.solarize_p]] * v.count
    p = cell.network.projector
    widths = [p.hidden_dim or cell.embedding_dim] * (p.depth - 1)
    steps = images // cell.batch_size
    # The highest rate begins an epoch.
    places = [*(epoch * steps for epoch in range(cell.epochs)), cell.epochs * steps - 1]
    rate = cell.optimizer.learning_rate
    rates = [rate(cell.batch_size, step, steps, cell.epochs) for step in places]
    return {
        **cell.plain(),
        "views": sorted(views),
        "projector": [*widths, cell.embedding_dim] if p.depth else [],
        "rates": [rates[0], max(rates), rates[-1]],
        "sizes_px": cell.augmentation.sizes_px(cell.dataset.image_size),
        "global_views": cell.augmentation.global_views,
    }


def assert_holds(found: Any, wanted: Any, place: str) -> None:
    """Compare all that is wanted."""
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            assert_holds(found[name], value, f"{place}.{name}")
    elif place.endswith("rates"):
        assert found == pytest.approx([float(rate) for rate in wanted], abs=1e-6), place
    elif isinstance(wanted, str) and not isinstance(found, str):
        assert found == float(wanted), place  # YAML reads 1e-4 as a text
    else:
        assert found == wanted, place


@pytest.mark.parametrize("recipe", RECIPES)
def test_cells_have_the_released_values(recipe: str) -> None:
    released = RELEASED[recipe]
    cells = cells_of(recipe, "seed=0")
    assert len(cells) == len(released["cells"])
    for number, (cell, own) in enumerate(zip(cells, released["cells"], strict=True)):
        wanted = merged(copy.deepcopy(released["all"]), own)
        if recipe == "solo_cifar100":
            wanted["dataset"]["name"] = "cifar100_full"
        assert_holds(facts(cell, released["images"]), wanted, f"{recipe} {number}")


def test_the_weights_of_eb_jepas_sigreg() -> None:
    """s (1 - λ) ¼ mse + s λ n ½ Σ EP = mse + 10 · ½ Σ EP"""
    for cell in cells_of("eb_jepa_cifar10", "seed=0")[2:]:
        method = cell.plain()["method"]
        weight, scale = method["regularization_weight"], method["scale"]
        assert scale * (1 - weight) / 4 == pytest.approx(1, rel=1e-12)
        assert scale * weight * cell.batch_size == pytest.approx(10, rel=1e-12)


# ------------------------------------------------------------------ a few steps


def write_folders(root: Path, classes: Iterable[str]) -> None:
    """Two JPEGs of each class in train/ and one in val/."""
    rng = np.random.default_rng(0)
    for part, number in (("train", 2), ("val", 1)):
        for name in classes:
            folder = root / part / name
            folder.mkdir(parents=True)
            for i in range(number):
                pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{name}_{i}.JPEG")


def listed_classes() -> list[str]:
    """Those of ImageNet-100 and one more."""
    lines = Path(imagefolder.__file__).with_name("imagenet100.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")] + ["n00000000"]


# The class folders of each data set that is read from a folder.
CLASSES = {"in100": [f"n{i:08d}" for i in range(4)], "imagenet100": listed_classes()}
CLASSES["imagenette"] = [f"n{i:08d}" for i in range(10)]
SIZES = ("dataset.image_size=32", "dataset.eval_resize=32")
SHRUNK = (
    *("epochs=1", "optimizer.warmup_epochs=0", "evaluation.probe.epochs=1", "evaluation.knn.k=5"),
    *("runtime.device=cpu", "runtime.threads=1", "runtime.workers=1"),
)
SMALL = {
    "cifar10_full": ("batch_size=16", "dataset.train_per_class=4"),
    "imagenette": ("batch_size=8", *SIZES),
    # At the printed rate, noise collapses.
    "imagenet100": ("batch_size=16", *SIZES, "dataset.train_per_class=1", "optimizer.base_lr=1e-3"),
    "in100": (
        *("batch_size=4", "dataset.num_classes=4"),
        *("embedding_dim=64", "network.projector.hidden_dim=64"),
    ),
    "cifar100_full": ("batch_size=50", "dataset.train_per_class=1"),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    """Each data set of a recipe, generated in its published layout and prepared: name ->
    overrides.
    """
    root = tmp_path_factory.mktemp("recipes")
    found: dict[str, tuple[str, ...]] = {}
    (cifar := root / "cifar").mkdir()
    with cifar_files(cifar):
        for name, small in SMALL.items():
            source, partial = cifar, "dataset.source.published=false"
            if name in CLASSES:
                source = root / f"source-{name}"
                write_folders(source, CLASSES[name])
                partial = "dataset.source.published=null"
            overrides = (*SHRUNK, *small, partial, f"runtime.data_dir={root / 'data'}")
            recipe = next(recipe for recipe in RECIPES if cells_of(recipe)[0].dataset.name == name)
            prepare(cells_of(recipe, *overrides)[0].dataset, root / "data", source_dir=source)
            found[name] = overrides
    return found


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_few_steps_of_each_cell(
    recipe: str, prepared: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    overrides = (*prepared[cells_of(recipe)[0].dataset.name], f"runtime.runs_dir={tmp_path}")
    sweep = load_sweep(recipe, overrides)
    for cell, published in zip(sweep.cells, cells_of(recipe), strict=True):
        record = run_cell(cell, sweep.runtime, sweep.name, interruption=Interruption())
        assert record is not None and not record.diverged
        for number in numbers_of(recipe):
            if number.is_of(published.plain()):
                assert record.score(number.score, "test") is not None
