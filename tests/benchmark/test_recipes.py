"""Published recipes: their cells against the released values, and a few steps of each on
generated images.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.interruption import Interruption
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.recipes import PublishedNumber, published_numbers
from regbench.benchmark.settings.sweep import load_sweep
from regbench.datasets.sources import imagefolder
from regbench.datasets.stored.prepare import prepare

RECIPES = sorted({number.preset for number in published_numbers()})


def numbers_of(recipe: str) -> list[PublishedNumber]:
    return [number for number in published_numbers() if number.preset == recipe]


def cells_of(recipe: str, *overrides: str) -> tuple[Cell, ...]:
    return load_sweep(recipe, overrides).cells


def setting(cell: Cell, name: str) -> Any:
    value: Any = cell.plain()
    for part in name.split("."):
        value = value[part]
    return value


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
        texts = (
            number.preset,
            number.cell,
            number.dataset,
            number.method,
            number.what,
            number.source,
        )
        assert all(text == text.strip() and text for text in texts), number
        assert number.on_test in ("yes", "no", "not stated")
        assert number.number is None or 0 < number.number < 100
        assert number.number is not None or (
            number.deviation is None and number.what == "no published number"
        )
        # A score that the cell's evaluations give.
        (cell,) = [cell for cell in cells_of(number.preset, "seed=0") if number.is_of(cell.plain())]
        needed = {"linear": "probe", "knn": "knn"}[number.score.partition("_")[0]]
        assert needed in cell.evaluation.protocols


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_says_what_it_does_otherwise(recipe: str) -> None:
    deviations = load_sweep(recipe).deviations
    assert deviations and all(line.endswith(".") for line in deviations)


# ------------------------------------------------------------------ the released values

VICREG_VIEW = (0.2, 0.4, 0.4, 0.2, 0.1, 0.0, 0.1)
BYOL_VIEWS = [(0.08, 0.4, 0.4, 0.2, 0.1, 0.0, 0.0), (0.08, 0.4, 0.4, 0.2, 0.1, 0.0, 0.2)]


def views(cell: Cell) -> list[tuple[float, ...]]:
    """Smallest crop, jitter, blur and solarization of each view.

    The losses do not ask which is the first.
    """
    return sorted(
        (v.crop_scale[0], v.brightness, v.contrast, v.saturation, v.hue, v.blur_p, v.solarize_p)
        for v in cell.augmentation.views.values()
        for _ in range(v.count)
    )


def rates(cell: Cell, images: int) -> tuple[float, float, float]:
    """The first, the highest and the last learning rate; the highest begins an epoch."""
    steps = images // cell.batch_size
    places = [*(epoch * steps for epoch in range(cell.epochs)), cell.epochs * steps - 1]
    found = [
        cell.optimizer.learning_rate(cell.batch_size, step, steps, cell.epochs) for step in places
    ]
    return found[0], max(found), found[-1]


def projector(cell: Cell) -> tuple[int, ...]:
    """Widths of the layers."""
    p = cell.network.projector
    return (
        *[p.hidden_dim or cell.embedding_dim] * (p.depth - 1),
        *[cell.embedding_dim] * (p.depth > 0),
    )


def test_eb_jepa() -> None:
    released = {
        ("vicreg", (2048, 2048, 1024)): {
            "alignment_weight": 1,
            "variance_weight": 2,
            "covariance_weight": 100 / 1023,
        },
        ("vicreg", ()): {
            "alignment_weight": 1,
            "variance_weight": 2,
            "covariance_weight": 100 / 511,
        },
        ("sigreg", (2048, 2048, 128)): {},
        ("sigreg", ()): {},
    }
    cells = cells_of("eb_jepa_cifar10")
    assert {(setting(cell, "method.name"), projector(cell)) for cell in cells} == set(released)
    for cell in cells:
        method = setting(cell, "method")
        for key, value in released[method["name"], projector(cell)].items():
            assert method[key] == pytest.approx(value, rel=1e-12)
        if method["name"] == "sigreg":
            # s (1 - λ) ¼ mse + s λ n ½ Σ EP = mse + 10 · ½ Σ EP
            weight, scale = method["regularization_weight"], method["scale"]
            assert scale * (1 - weight) / 4 == pytest.approx(1, rel=1e-12)
            assert scale * weight * cell.batch_size == pytest.approx(10, rel=1e-12)
        assert (cell.batch_size, cell.epochs, cell.precision) == (256, 300, "bf16")
        assert rates(cell, 50_000) == pytest.approx((3e-5, 0.3, 0), abs=1e-5)
        assert views(cell) == [VICREG_VIEW] * 2
        lars = {
            "weight_decay": 1e-4,
            "trust_coefficient": 0.02,
            "clip_lr": True,
            "momentum": 0.9,
            "warmup_epochs": 10,
        }
        assert setting(cell, "optimizer").items() >= lars.items()
        backbone = {
            "name": "resnet18",
            "stem": "small",
            "stem_padding": 2,
            "zero_init_residual": False,
        }
        assert setting(cell, "network.backbone") == backbone
        assert setting(cell, "dataset.std") == [0.2023, 0.1994, 0.2010]


def test_lightly_cifar10() -> None:
    released: dict[str, tuple[tuple[int, ...], str, dict[str, float]]] = {
        "simclr": ((512, 128), "batch", {"temperature": 0.5}),
        "dcl": ((512, 128), "batch", {"temperature": 0.1}),
        "dclw": ((512, 128), "batch", {"temperature": 0.1, "sigma": 0.5}),
        "barlow_twins": ((2048, 2048), "none", {"redundancy_weight": 0.005, "scale": 1}),
    }
    cells = {setting(cell, "method.name"): cell for cell in cells_of("lightly_cifar10")}
    assert cells.keys() == released.keys()
    for name, (widths, last_norm, hyperparameters) in released.items():
        cell = cells[name]
        assert setting(cell, "method").items() >= hyperparameters.items()
        assert (projector(cell), cell.network.projector.last_norm) == (widths, last_norm)
        assert (cell.batch_size, cell.epochs, cell.precision) == (512, 200, "fp32")
        assert rates(cell, 50_000) == pytest.approx((0.24, 0.24, 0), abs=1e-5)
        sgd = {
            "name": "sgd",
            "weight_decay": 5e-4,
            "momentum": 0.9,
            "nesterov": False,
            "exclude_bias_and_norm": False,
        }
        assert setting(cell, "optimizer").items() >= sgd.items()
        assert views(cell) == (
            BYOL_VIEWS if name == "barlow_twins" else [(0.08, 0.4, 0.4, 0.4, 0.1, 0.0, 0.0)] * 2
        )
        assert setting(cell, "evaluation.knn").items() >= {"k": 200, "temperature": 0.1}.items()


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_solo_learn(dataset: str) -> None:
    lars = {
        "name": "lars",
        "weight_decay": 1e-4,
        "trust_coefficient": 0.02,
        "clip_lr": True,
        "momentum": 0.9,
    }
    adam = {
        "name": "adam",
        "weight_decay": 1e-6,
        "betas": [0.9, 0.999],
        "exclude_bias_and_norm": False,
    }
    released: dict[str, tuple[Any, ...]] = {
        "vicreg": ((2048,) * 3, "batch", lars, (3e-5, 0.3, 0), [VICREG_VIEW] * 2),
        "barlow_twins": ((2048,) * 3, "batch", lars, (3e-5, 0.3, 0), BYOL_VIEWS),
        "simclr": (
            (2048, 256),
            "none",
            lars,
            (3e-5, 0.4, 0),
            [(0.08, 0.8, 0.8, 0.8, 0.2, 0.5, 0.0)] * 2,
        ),
        "w_mse": (
            (1024, 64),
            "batch",
            adam,
            (0, 2e-3, 0),
            [(0.2, 0.8, 0.8, 0.8, 0.2, 0.0, 0.0)] * 2,
        ),
    }
    hyperparameters: dict[str, dict[str, float]] = {
        "vicreg": {"alignment_weight": 25, "variance_weight": 50, "covariance_weight": 1},
        "barlow_twins": {"redundancy_weight": 0.0051, "scale": 0.1},
        "simclr": {"temperature": 0.2},
        "w_mse": {"sub_batch_size": 128},
    }
    cells = {setting(cell, "method.name"): cell for cell in cells_of(f"solo_{dataset}")}
    assert cells.keys() == released.keys()
    for name, (widths, norm, optimizer, rate, two_views) in released.items():
        cell = cells[name]
        assert setting(cell, "method").items() >= hyperparameters[name].items()
        assert (projector(cell), cell.network.projector.norm, cell.network.projector.bias) == (
            widths,
            norm,
            True,
        )
        assert (cell.batch_size, cell.epochs, cell.dataset.name) == (256, 1000, f"{dataset}_full")
        assert setting(cell, "optimizer").items() >= optimizer.items()
        assert cell.optimizer.warmup_epochs == 10
        assert rates(cell, 50_000) == pytest.approx(rate, abs=1e-6)
        assert (views(cell), cell.augmentation.interpolation) == (two_views, "bicubic")
        assert setting(cell, "network.backbone.stem_padding") == 2


def test_lightly_imagenette() -> None:
    sgd = {
        "name": "sgd",
        "weight_decay": 5e-4,
        "momentum": 0.9,
        "nesterov": False,
        "exclude_bias_and_norm": False,
    }
    lars = {
        "name": "lars",
        "weight_decay": 1e-4,
        "momentum": 0.9,
        "trust_coefficient": 0.001,
        "clip_lr": False,
    }
    simclr = [(0.08, 0.4, 0.4, 0.4, 0.1, 0.5, 0.0)] * 2
    byol = [(0.08, 0.4, 0.4, 0.2, 0.1, 0.1, 0.2), (0.08, 0.4, 0.4, 0.2, 0.1, 1.0, 0.0)]
    constant, warmed = (0.06, 0.06, 0), (0, 0.3, 3e-4)
    released: dict[str, tuple[Any, ...]] = {
        "simclr": ((512, 128), "batch", sgd, constant, simclr, {"temperature": 0.5}),
        "dcl": ((512, 128), "batch", sgd, constant, simclr, {"temperature": 0.1}),
        "dclw": ((512, 128), "batch", sgd, constant, simclr, {"temperature": 0.1, "sigma": 0.5}),
        "barlow_twins": (
            (2048,) * 3,
            "none",
            sgd,
            constant,
            byol,
            {"redundancy_weight": 0.005, "scale": 1},
        ),
        "vicreg": (
            *(
                (2048,) * 3,
                "none",
                lars | {"exclude_bias_and_norm": False, "warmup_epochs": 40},
                warmed,
            ),
            [(0.08, 0.4, 0.4, 0.2, 0.1, 0.5, 0.1)] * 2,
            {"alignment_weight": 25, "variance_weight": 25, "covariance_weight": 1},
        ),
    }
    cells = {setting(cell, "method.name"): cell for cell in cells_of("lightly_imagenette")}
    assert cells.keys() == released.keys()
    for name, (widths, last_norm, optimizer, rate, two_views, hyperparameters) in released.items():
        cell = cells[name]
        assert setting(cell, "method").items() >= hyperparameters.items()
        assert (projector(cell), cell.network.projector.last_norm) == (widths, last_norm)
        assert setting(cell, "optimizer").items() >= optimizer.items()
        assert rates(cell, 9_469) == pytest.approx(rate, abs=1e-6)
        assert views(cell) == two_views
        assert (cell.batch_size, cell.epochs, cell.precision, cell.dataset.image_size) == (
            256,
            800,
            "fp32",
            128,
        )
        assert (
            setting(cell, "evaluation.knn").items()
            >= {"k": 200, "other_k": [20], "temperature": 0.1}.items()
        )
        assert setting(cell, "network.backbone.stem") == "imagenet"


def test_lejepa_imagenette() -> None:
    (cell,) = cells_of("lejepa_imagenette")
    sigreg = {
        "name": "sigreg",
        "regularization_weight": 0.02,
        "directions": 256,
        "knots": 17,
        "scale": 1.0,
    }
    assert setting(cell, "method").items() >= sigreg.items()
    assert views(cell) == [(0.08, 0.8, 0.8, 0.8, 0.2, 0.5, 0.2)] * 4
    assert (
        cell.augmentation.global_views,
        cell.augmentation.sizes_px(cell.dataset.image_size),
    ) == (4, [128] * 4)
    backbone = {
        "model": "vit_small_patch8_224",
        "representation": "class_token",
        "drop_path_rate": 0.1,
    }
    assert setting(cell, "network.backbone").items() >= backbone.items()
    assert (projector(cell), cell.network.statistics) == ((2048, 2048, 16), "size")
    assert (cell.batch_size, cell.epochs, cell.precision) == (256, 800, "bf16")
    adamw = {
        "name": "adamw",
        "weight_decay": 0.05,
        "exclude_bias_and_norm": False,
        "warmup_epochs": 1,
    }
    assert setting(cell, "optimizer").items() >= adamw.items()
    assert rates(cell, 9_469) == pytest.approx((2e-5, 2e-3, 1e-3), abs=1e-6)


def test_sphere_in100() -> None:
    cells = cells_of("sphere_in100")
    spherical = [
        ("mmd", "susreg"),
        ("mmd", "heat"),
        ("mmd", "bandlimited"),
        ("ksd", "heat"),
        ("ksd", "bandlimited"),
    ]
    (sigreg,) = [cell for cell in cells if setting(cell, "method.name") == "sigreg"]
    assert (
        setting(sigreg, "method").items()
        >= {"regularization_weight": 0.05, "directions": 1024}.items()
    )
    others = [setting(cell, "method") for cell in cells if cell != sigreg]
    assert [(method["statistic"], method["spectrum"]) for method in others] == spherical
    for method in others:
        assert (method["regularization_weight"], method["diffusion_time"], method["order"]) == (
            0.05,
            5.0,
            2,
        )
    for cell in cells:
        assert (projector(cell), cell.network.projector.activation) == ((2048, 2048, 256), "gelu")
        assert (cell.batch_size, cell.epochs, cell.augmentation.global_views) == (256, 200, 2)
        assert (
            setting(cell, "optimizer").items()
            >= {"name": "adamw", "weight_decay": 5e-4, "warmup_epochs": 1}.items()
        )
        assert rates(cell, 126_689) == pytest.approx((0, 0.05, 0), abs=1e-6)
        assert setting(cell, "dataset.source.class_list") == "imagenet100.txt"


def test_sfrik_multicrop() -> None:
    released = {
        "imagenet": ([224, 224], 2, "view", True),
        "swav": ([224] * 2 + [96] * 6, 2, "size", False),
        "obow": ([224] + [160] * 2 + [96] * 5, 1, "size", True),
    }
    cells = {cell.augmentation.name: cell for cell in cells_of("sfrik_multicrop")}
    assert cells.keys() == released.keys()
    for name, (sizes, global_views, statistics, regularize_local) in released.items():
        cell = cells[name]
        assert cell.augmentation.sizes_px(224) == sizes
        assert (cell.augmentation.global_views, cell.network.statistics) == (
            global_views,
            statistics,
        )
        method = {
            "alignment_weight": 40000,
            "weights": [1, 40, 40],
            "regularize_local": regularize_local,
        }
        assert setting(cell, "method").items() >= method.items()
        assert (projector(cell), cell.batch_size, cell.epochs) == ((8192, 8192, 32768), 2048, 200)
        assert (
            cell.optimizer.base_lr,
            cell.optimizer.warmup_epochs,
            cell.network.architecture,
        ) == (
            0.4,
            10,
            "resnet50",
        )


# ------------------------------------------------------------------ a few steps


def write_cifar10(root: Path) -> None:
    """An image a class in each of CIFAR-10's six pickles."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        content = {
            b"data": rng.integers(0, 256, (10, 3072), dtype=np.uint8),
            b"labels": [*range(10)],
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def write_cifar100(root: Path) -> None:
    """Two training images of each class and a test image, in CIFAR-100's pickles."""
    folder = root / "cifar-100-python"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, number in (("train", 2), ("test", 1)):
        labels = [*range(100)] * number
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        content = {
            b"data": data,
            b"fine_labels": labels,
            b"coarse_labels": [label // 5 for label in labels],
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    names = {
        b"fine_label_names": [f"class {i}".encode() for i in range(100)],
        b"coarse_label_names": [],
    }
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))


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


def write_imagenette(root: Path) -> None:
    write_folders(root, [f"n{i:08d}" for i in range(10)])


def write_imagenet(root: Path) -> None:
    write_folders(root, [f"n{i:08d}" for i in range(4)])


def write_imagenet100(root: Path) -> None:
    """The listed classes and one more."""
    lines = Path(imagefolder.__file__).with_name("imagenet100.txt").read_text().splitlines()
    write_folders(root, [line for line in lines if not line.startswith("#")] + ["n00000000"])


WRITERS = {
    **{
        "cifar10_full": write_cifar10,
        "cifar100_full": write_cifar100,
        "imagenette": write_imagenette,
    },
    **{"in100": write_imagenet, "imagenet100": write_imagenet100},
}
SHRUNK = (
    *("epochs=1", "optimizer.warmup_epochs=0", "evaluation.probe.epochs=1", "evaluation.knn.k=5"),
    *("runtime.device=cpu", "runtime.threads=1", "runtime.workers=1"),
)
SMALL = {
    "cifar10_full": (
        "batch_size=16",
        "dataset.source.published=false",
        "dataset.train_per_class=4",
    ),
    "imagenette": (
        *(
            "batch_size=8",
            "dataset.source.published=null",
            "dataset.image_size=32",
            "dataset.eval_resize=32",
        ),
    ),
    "imagenet100": (
        *(
            "batch_size=16",
            "dataset.source.published=null",
            "dataset.image_size=32",
            "dataset.eval_resize=32",
        ),
        *(
            "dataset.train_per_class=1",
            "optimizer.base_lr=1e-3",
        ),  # at the printed rate, noise collapses
    ),
    "in100": (
        *("batch_size=4", "dataset.source.published=null", "dataset.num_classes=4"),
        *("embedding_dim=64", "network.projector.hidden_dim=64"),
    ),
    "cifar100_full": (
        "batch_size=50",
        "dataset.source.published=false",
        "dataset.train_per_class=1",
    ),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, ...]]]:
    """Each data set of a recipe, generated in its published layout and prepared: name ->
    overrides.
    """
    root = tmp_path_factory.mktemp("recipes")
    found: dict[str, tuple[str, ...]] = {}
    for name, write in WRITERS.items():
        (source := root / f"source-{name}").mkdir()
        write(source)
        overrides = (*SHRUNK, *SMALL[name], f"runtime.data_dir={root / 'data'}")
        recipe = next(recipe for recipe in RECIPES if cells_of(recipe)[0].dataset.name == name)
        prepare(cells_of(recipe, *overrides)[0].dataset, root / "data", source_dir=source)
        found[name] = overrides
    yield found


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
