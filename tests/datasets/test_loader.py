from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.config import AugmentationConfig, DatasetConfig, ViewsConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.crops import boxes_of, center_boxes
from regbench.datasets.loading.loaders import EvalLoader, PretrainingLoader
from regbench.datasets.loading.views import list_views
from regbench.datasets.sources.base import SOURCES
from regbench.datasets.stored.beton import Beton
from regbench.datasets.stored.prepare import prepare
from tests.datasets.preparing import BACKENDS, NEEDS_FFCV, fashion_config, folder_config
from tests.refusals import is_refused
from tests.waiting import PATIENCE_S

Open = Callable[..., PretrainingLoader]
Evaluate = Callable[..., EvalLoader]

CPU = torch.device("cpu")
# Crops alone: what remains is what the backends do themselves.
PLAIN = ViewsConfig(jitter_p=0, grayscale_p=0, blur_p=0, solarize_p=0)


def two(first: ViewsConfig, second: ViewsConfig, **options: Any) -> AugmentationConfig:
    return AugmentationConfig(views={"view1": first, "view2": second}, **options)


def preset(name: str, **views: object) -> AugmentationConfig:
    """A preset of the augmentation with other settings of its views, such as local__count=3."""
    overrides = [f"augmentation={name}"]
    for key, value in views.items():
        overrides.append(f"augmentation.views.{key.replace('__', '.')}={value}")
    return load_run(overrides)[0].augmentation


CROPS_ONLY = two(PLAIN, PLAIN, name="crops")


@pytest.fixture
def two_views(data_dir: Path) -> Open:
    def make(
        config: DatasetConfig | None = None,
        augmentation: AugmentationConfig | None = None,
        **options: object,
    ) -> PretrainingLoader:
        settings: Any = {"data_dir": data_dir, "batch_size": 5, "seed": 3, "device": CPU}
        arguments = (config or folder_config(), augmentation or AugmentationConfig())
        return PretrainingLoader(*arguments, **(settings | options))

    return make


@pytest.fixture
def evaluation(data_dir: Path) -> Evaluate:
    def make(
        split: str = "train", config: DatasetConfig | None = None, **options: object
    ) -> EvalLoader:
        settings: Any = {"data_dir": data_dir, "batch_size": 5, "device": CPU}
        settings |= {"backend": "torchvision", **options}
        return EvalLoader(config or folder_config(), split, **settings)

    return make


def batches(loader: PretrainingLoader | EvalLoader, epoch: int = 0) -> list[tuple[Tensor, ...]]:
    with loader, loader.epoch(epoch) as items:
        return list(items)


def decoded(beton: Beton, index: int, backend: str) -> npt.NDArray[np.uint8]:
    """Image `index` as the backend's own JPEG decoder gives it: FFCV's uses a faster, less
    exact transform.
    """
    if backend == "torchvision":
        return beton.image(index)
    from ffcv.libffcv import imdecode

    height, width = int(beton.heights[index]), int(beton.widths[index])
    image = np.empty((height, width, 3), np.uint8)
    data = beton.stored_bytes(index)
    assert imdecode(data, image, height, width, height, width, 0, 0, 1, 1, False, False) == 0
    difference = image.astype(int) - beton.image(index)
    assert np.abs(difference).max() <= 8
    assert np.abs(difference).mean() < 1.3
    return image


def levels(x: Tensor, config: DatasetConfig) -> Tensor:
    """Back from normalised values to grey levels."""
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (config.mean, config.std))
    return (x * std + mean) * 255


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["fashion", "insects"])
def test_two_views(backend: str, name: str, two_views: Open) -> None:
    config = fashion_config() if name == "fashion" else folder_config()
    loader = two_views(config, backend=backend)
    assert loader.backend == backend
    assert loader.num_samples == (100 if name == "fashion" else 24)
    assert len(loader) == loader.num_samples // 5
    items = batches(loader)
    assert len(items) == len(loader)
    for x1, x2 in items:
        for x in (x1, x2):
            assert x.shape == (5, config.channels, config.image_size, config.image_size)
            assert x.dtype == torch.float32
            assert -0.01 <= levels(x, config).min() <= levels(x, config).max() <= 255.01
            assert config.channels == 1 or x.is_contiguous(memory_format=torch.channels_last)
        assert not torch.equal(x1, x2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_crops_are_pillows_of_drawn_boxes(backend: str, data_dir: Path, two_views: Open) -> None:
    config = folder_config()
    items = batches(two_views(augmentation=CROPS_ONLY, backend=backend), 2)
    beton = Beton(data_dir / "insects" / "train.beton")
    order = draws.epoch_order(3, 2, np.arange(24))
    kind = Image.Resampling.BICUBIC
    for view in (0, 1):
        got = levels(torch.cat([pair[view] for pair in items]), config)
        key = draws.keys(3, 2, order, draws.CROP, view)
        sides = beton.heights[order], beton.widths[order]
        boxes = draws.crop_boxes(key, *sides, (0.08, 1.0), (3 / 4, 4 / 3), 0.5)
        for n, (top, left, height, width, flip) in enumerate(boxes[:20]):
            image = Image.fromarray(decoded(beton, int(order[n]), backend))
            image = image.crop((left, top, left + width, top + height))
            resized = np.asarray(image.resize((32, height), kind).resize((32, 32), kind))
            expected = resized[:, ::-1] if flip else resized
            difference = np.abs(got[n].permute(1, 2, 0).numpy() - expected).max()
            assert difference <= (1.01 if backend == "ffcv" else 0.01)


@NEEDS_FFCV
def test_both_backends_have_the_same_area_filter(two_views: Open) -> None:
    augmentation = two(PLAIN, PLAIN, interpolation="area")
    for config in (fashion_config(), folder_config()):
        by_ffcv = batches(two_views(config, augmentation, backend="ffcv"), 1)
        by_pillow = batches(two_views(config, augmentation, backend="torchvision"), 1)
        for ours, theirs in zip(by_ffcv, by_pillow, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                difference = (levels(a, config) - levels(b, config)).abs()
                # Beyond one level only by the JPEG decoder, see `decoded`.
                assert difference.max() <= (1.01 if config.channels == 1 else 9.01)
                assert difference.mean() < (0.1 if config.channels == 1 else 1.3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pictures_depend_on_seed_epoch_image_and_view_alone(backend: str, two_views: Open) -> None:
    def pictures(
        epoch: int = 0, seed: int = 3, **options: object
    ) -> dict[int, tuple[Tensor, Tensor]]:
        indices = draws.epoch_order(seed, epoch, np.arange(24))
        items = batches(two_views(backend=backend, seed=seed, **options), epoch)
        views = [torch.cat([pair[view] for pair in items]) for view in (0, 1)]
        return {int(i): (a, b) for i, a, b in zip(indices, *views, strict=False)}

    reference = pictures(batch_size=24)
    many = 16 if backend == "ffcv" else 2  # more processes than cores are a warning
    for batch_size, workers in ((5, 1), (24, 2), (12, many)):
        other = pictures(batch_size=batch_size, workers=workers)
        assert len(other) >= 20
        for i, views in other.items():
            # PyTorch's matrix product for the blur may sum in another order when a batch has
            # another size.
            atol = 1e-4 if backend == "torchvision" else 0
            for a, b in zip(views, reference[i], strict=True):
                torch.testing.assert_close(a, b, atol=atol, rtol=0)
    for changed in (pictures(1, batch_size=24), pictures(batch_size=24, seed=4)):
        assert sum(torch.equal(changed[i][0], reference[i][0]) for i in reference) == 0


@pytest.mark.parametrize("world_size", [3, 8])
def test_ranks_share_the_batches_of_one_process(world_size: int, two_views: Open) -> None:
    def views(batch_size: int, **options: int) -> list[Tensor]:
        settings: Any = {"backend": "torchvision", "batch_size": batch_size, **options}
        return [x1 for x1, _ in batches(two_views(fashion_config(), CROPS_ONLY, **settings))]

    alone = views(2 * world_size)
    ranks = [views(2, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert len(alone) == 100 // (2 * world_size)
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert torch.equal(whole, torch.cat(parts))
    seen = {x.numpy().tobytes() for batch in alone for x in batch}
    assert len(seen) == len(alone) * 2 * world_size


def test_an_epoch_can_begin_in_its_middle(two_views: Open) -> None:
    with two_views(backend="torchvision") as loader, loader.epoch(1, first=3) as rest:
        for views, expected in zip(rest, list(loader.epoch(1))[3:], strict=True):
            assert all(torch.equal(*pair) for pair in zip(views, expected, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_can_be_rounded_to_bfloat16(backend: str, two_views: Open) -> None:
    exact = batches(two_views(backend=backend))
    rounded = batches(two_views(backend=backend, dtype=torch.bfloat16))
    for ours, theirs in zip(rounded, exact, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b.to(torch.bfloat16))
            assert a.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_may_be_kept(backend: str, two_views: Open) -> None:
    with two_views(fashion_config(), backend=backend) as loader:
        with loader.epoch(0) as epoch:
            kept = [(x1, x1.clone()) for x1, _ in epoch]
        assert len(kept) == 20
        assert all(torch.equal(x, copy) for x, copy in kept)
        with loader.epoch(0) as epoch:
            for (x, _), (again, _) in zip(kept, epoch, strict=True):
                assert torch.equal(x, again)


def quiet() -> bool:
    """Whether no thread and no process is left but ours."""
    homes = {type(thread).__module__.partition(".")[0] for thread in threading.enumerate()}
    return not homes & {"ffcv", "regbench"} and not multiprocessing.active_children()


@pytest.mark.parametrize("backend", BACKENDS)
def test_leaving_early_leaves_nothing(backend: str, two_views: Open) -> None:
    loader = two_views(fashion_config(), backend=backend, batch_size=2, workers=2)
    for _ in range(3):
        with loader.epoch(0) as epoch:
            next(epoch)
        assert quiet()
    with pytest.raises(ZeroDivisionError), loader.epoch(0) as epoch:
        for _ in epoch:
            raise ZeroDivisionError
    assert quiet()
    dropped = loader.epoch(0)
    next(dropped)
    assert not quiet()
    del dropped
    gc.collect()
    assert quiet()
    left_open = loader.epoch(1)
    next(left_open)
    loader.close()
    assert quiet()
    with pytest.raises(StopIteration):
        next(left_open)
    loader.close()


@NEEDS_FFCV
def test_two_loaders_at_once(two_views: Open) -> None:
    a, b = (two_views(fashion_config(), backend="ffcv", workers=2, seed=seed) for seed in (0, 1))
    with a, b, a.epoch(0) as first, b.epoch(0) as second:
        assert len(list(zip(first, second, strict=True))) == 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_global_state_is_left_alone(backend: str, two_views: Open) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert len(batches(two_views(fashion_config(), backend=backend, workers=2))) == 20
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]


@pytest.mark.parametrize("backend", BACKENDS)
def test_center(backend: str, data_dir: Path, evaluation: Evaluate, choice: Path) -> None:
    config = folder_config()
    loader = evaluation("test", backend=backend, choice=choice)
    assert len(loader) == -(-loader.num_samples // 5)
    items = batches(loader)
    x, y = (torch.cat(parts) for parts in zip(*items, strict=True))
    beton = Beton(data_dir / "insects" / "test.beton")
    assert y.tolist() == beton.labels.tolist()
    assert y.dtype == torch.int64
    for n in range(len(beton)):
        image = Image.fromarray(decoded(beton, n, backend))
        resized = F.resize(image, [40], interpolation=F.InterpolationMode.BICUBIC)
        expected = np.asarray(F.center_crop(resized, [32, 32]))
        found = levels(x[n : n + 1], config)[0].permute(1, 2, 0).numpy()
        assert np.abs(found - expected).mean() < 0.5


def test_the_test_split_stays_closed_without_a_choice_on_record(
    evaluation: Evaluate, tmp_path: Path
) -> None:
    path = tmp_path / "choice.json"
    for content in (None, "{", "[]", '{"hyperparameters": {"selected_on": "train"}}'):
        if content is not None:
            path.write_text(content)
        with is_refused("the test split is for final scores"):
            evaluation("test", choice=path)
    with is_refused("none was given"):
        evaluation("test")


@pytest.mark.parametrize("backend", BACKENDS)
def test_crop_flip(backend: str, data_dir: Path, evaluation: Evaluate, two_views: Open) -> None:
    def loader(**options: object) -> EvalLoader:
        return evaluation(transform="crop_flip", backend=backend, **options)

    first, again, next_epoch = batches(loader()), batches(loader()), batches(loader(), 1)
    assert len(first) == 5
    for a, b, c in zip(first, again, next_epoch, strict=True):
        assert torch.equal(a[0], b[0])
        assert not torch.equal(a[0], c[0])
    labels = torch.cat([y for _, y in first])
    assert labels.bincount().tolist() == [8, 8, 8]
    assert labels.tolist() != sorted(labels.tolist())
    # A nearly whole crop has nearly the mean colour of its image, flipped or not.
    ((x, y),) = batches(loader(crop_scale=(0.99, 1.0), batch_size=24))
    order = draws.epoch_order(0, 0, np.arange(24))
    beton = Beton(data_dir / "insects" / "train.beton")
    assert y.tolist() == beton.labels[order].tolist()
    colours = levels(x, folder_config()).mean((2, 3)).numpy()
    expected = np.stack([beton.image(int(i)).mean((0, 1)) for i in order])
    # Not in images whose ratio no crop may have: of these it is the centre. (FFCV decodes JPEGs a
    # little darker.)
    assert np.median(np.abs(colours - expected)) < 2
    # Pretraining cuts other crops out of the same images, in the same order.
    ((evaluated, _),) = batches(loader(seed=3, batch_size=24))
    (views,) = batches(two_views(augmentation=CROPS_ONLY, backend=backend, batch_size=24))
    assert not any(torch.equal(evaluated, view) for view in views)


def test_train_per_class_takes_the_first(data_dir: Path, evaluation: Evaluate) -> None:
    config = fashion_config(train_per_class=3)
    ((x, y),) = batches(evaluation("train", config, batch_size=100))
    beton = Beton(data_dir / "fashion" / "train.beton")
    of_classes = [np.flatnonzero(beton.labels == label)[:3] for label in range(10)]
    rows = np.sort(np.concatenate(of_classes))
    assert y.tolist() == beton.labels[rows].tolist()
    fifth = beton.image(int(rows[4]))[:, :, 0]
    np.testing.assert_allclose(levels(x, config)[4, 0], fifth, atol=1e-3)
    assert evaluation("tuning", config).num_samples == 20


def test_stl10_pretrains_on_the_unlabeled(tmp_path: Path, stl_source: Path) -> None:
    source = SOURCES.build("stl10", published=False)
    preset = load_run(["dataset=stl10", "dataset.image_size=64", "dataset.eval_resize=64"])[0]
    config = replace(preset.dataset, source=source, train_per_class=2)
    prepare(config, tmp_path, source_dir=stl_source)
    options: Any = {"data_dir": tmp_path, "batch_size": 4, "device": CPU, "backend": "torchvision"}
    loader = PretrainingLoader(config, AugmentationConfig(), **options)
    assert loader.num_samples == 30
    x1, _ = batches(loader)[0]
    assert x1.shape == (4, 3, 64, 64)
    assert EvalLoader(config, "train", **options).num_samples == 20
    # With labels it can only train on those that have one.
    assert PretrainingLoader(config, AugmentationConfig(), **options, labels=True).num_samples == 20


@NEEDS_FFCV
def test_a_flaw_that_pillow_reads_past_is_read_past(tmp_path: Path) -> None:
    root = tmp_path / "source"
    for part in ("train", "val"):
        for number, name in enumerate("abc"):
            (root / part / name).mkdir(parents=True)
            noise = np.random.default_rng(number).integers(0, 256, (48, 48, 3), dtype=np.uint8)
            path = root / part / name / "x.jpg"
            Image.fromarray(noise).save(path, quality=90)
            content = path.read_bytes()
            # Extra bytes before the end marker: the JPEG library warns, and FFCV's decoder reports
            # a failure.
            path.write_bytes(content[:-2] + b"\x12\x34" * 8 + content[-2:])
    config = folder_config(train_per_class=None, tuning_per_class=None)
    prepare(config, tmp_path, source_dir=root)
    got = []
    for backend in ("ffcv", "torchvision"):
        options: Any = {"data_dir": tmp_path, "batch_size": 3, "device": CPU, "backend": backend}
        ((images, _),) = batches(EvalLoader(config, "train", **options))
        got.append(levels(images, config))
    assert (got[0] - got[1]).abs().max() <= 3.01


def test_refusals_of_loaders(two_views: Open, evaluation: Evaluate, tmp_path: Path) -> None:
    few, many = folder_config(train_per_class=5), fashion_config(train_per_class=11)
    command = "regbench prepare imagefolder .* dataset.name=insects"
    cases: tuple[tuple[str, Callable[..., object], dict[str, object]], ...] = (
        ("batch size 25 is larger than the 24 .* at most 24", two_views, {"batch_size": 25}),
        ("batch size 9 x 3 .* at most 8", two_views, {"batch_size": 9, "world_size": 3}),
        (f"'insects' is not prepared in .*; run: {command}", two_views, {"data_dir": tmp_path}),
        ("train_per_class 8.* not .*train_per_class 5", two_views, {"config": few}),
        ("train_per_class is 11, but class 0 has 10", two_views, {"config": many}),
        ("has no split 'val'; it has train, ", evaluation, {"split": "val"}),
    )
    for reason, function, options in cases:
        with is_refused(reason):
            function(**options)


def test_views_are_two_or_more() -> None:
    for views in ({}, {"a": ViewsConfig()}):
        with is_refused("give two or more, the global ones before"):
            AugmentationConfig(views=views)


def test_a_label_of_no_class_is_refused(tmp_path: Path, data_dir: Path, two_views: Open) -> None:
    shutil.copytree(data_dir / "insects", tmp_path / "insects")
    beton = Beton(tmp_path / "insects" / "train.beton")
    for label in (-2, 3):
        with beton.path.open("r+b") as file:
            # After the header, two descriptors and the first image's entry.
            file.seek(24 + 2 * 1041 + 16)
            file.write(label.to_bytes(8, "little", signed=True))
        with is_refused(r"train\.beton is damaged: it has labels from .*insects --force"):
            two_views(data_dir=tmp_path)


def test_views_are_augmented_as_their_config_says(two_views: Open) -> None:
    grey = ViewsConfig(jitter_p=0, grayscale_p=1, blur_p=0, solarize_p=0)
    inverted = ViewsConfig(jitter_p=0, grayscale_p=0, blur_p=0, solarize_p=1, solarize_threshold=0)
    augmentation = two(grey, inverted)
    options: Any = {"backend": "torchvision", "batch_size": 24}
    ((x1, x2),) = batches(two_views(augmentation=augmentation, **options))
    ((_, plain),) = batches(two_views(augmentation=CROPS_ONLY, **options))
    config = folder_config()
    x1, x2, plain = (levels(x, config) for x in (x1, x2, plain))
    assert (x1[:, 0] - x1[:, 2]).abs().max() < 1e-3
    torch.testing.assert_close(x2, 255 - plain, atol=1e-3, rtol=0)


def test_without_ffcv_the_other_backend_runs(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    util, find = importlib.util, importlib.util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "ffcv" else find(name))
    # As in a process that begins: the loader's modules are imported anew, and find neither FFCV nor
    # numba.
    package = sys.modules[draws.__name__.rpartition(".")[0]]
    for name in [name for name in sys.modules if name.startswith(f"{package.__name__}.")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(package, name.rpartition(".")[2])
    for name in ("ffcv", "numba"):
        monkeypatch.setitem(sys.modules, name, None)
    loaders = importlib.import_module(f"{package.__name__}.loaders")
    arguments = fashion_config(), AugmentationConfig()
    options: Any = {"data_dir": data_dir, "batch_size": 50, "device": CPU}
    loader = loaders.PretrainingLoader(*arguments, **options)
    assert loader.backend == "torchvision"
    assert len(batches(loader)) == 2
    with is_refused(r"FFCV cannot be used .*regbench\[ffcv\]"):
        loaders.PretrainingLoader(*arguments, **options, backend="ffcv")


def test_two_views_of_one_crop_are_coloured_independently(two_views: Open) -> None:
    whole = replace(PLAIN, crop_scale=(1, 1), crop_ratio=(1, 1), flip_p=0, jitter_p=1, contrast=0)
    config = fashion_config()
    loader = two_views(config, two(whole, whole), backend="torchvision", batch_size=100)
    ((x1, x2),) = batches(loader)
    # Only the brightness differs: two factors in [0.6, 1.4], hardly ever nearly the same.
    dark = levels(x1, config) < 150
    ratios = []
    for a, b, m in zip(x1, x2, dark, strict=True):
        ratios.append((levels(a, config)[0, m].sum() / levels(b, config)[0, m].sum()).item())
    assert ((torch.tensor(ratios) - 1).abs() > 0.02).float().mean() > 0.8


@NEEDS_FFCV
def test_leaving_early_stops_the_work(two_views: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    crop_boxes = draws.crop_boxes
    monkeypatch.setattr(draws, "crop_boxes", lambda *args: calls.append(1) or crop_boxes(*args))  # type: ignore[func-returns-value]
    loader = two_views(fashion_config(), backend="ffcv", batch_size=1)
    with loader, loader.epoch(0) as epoch:
        next(epoch)
    # Of 100 batches with two views: the one taken and the few made ahead.
    assert len(calls) <= 2 * 10


class _Compiling:
    """Numba's dispatcher of `decode` while a thread compiles it: the first image waits until
    somebody has looked.

    Only `overloads` can be looked at: numba's lists cannot be walked while a thread that compiles
    adds to them.
    """

    def __init__(self, decode: Callable[..., None]) -> None:
        self._decode = decode
        self._looked = threading.Event()

    def __getattr__(self, name: str) -> dict[object, None]:
        self._looked.set()
        if name == "overloads":
            return {}
        raise AttributeError(name)

    def __call__(self, *arguments: object) -> None:
        assert self._looked.wait(PATIENCE_S)
        self._decode(*arguments)


@NEEDS_FFCV
def test_it_waits_while_the_decoder_is_compiled(
    two_views: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regbench.datasets.loading import ffcv_crops, kernels

    expected = batches(two_views(backend="ffcv"))
    monkeypatch.setattr(ffcv_crops, "decode", _Compiling(kernels.decode))
    for views, others in zip(batches(two_views(backend="ffcv")), expected, strict=True):
        assert all(torch.equal(view, other) for view, other in zip(views, others, strict=True))


@NEEDS_FFCV
def test_the_decoder_is_compiled_before_an_epoch_is_timed(
    two_views: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regbench.datasets.loading import ffcv_crops, kernels

    decode = mock.Mock(side_effect=kernels.decode)
    monkeypatch.setattr(ffcv_crops, "decode", decode)
    two_views(backend="ffcv")
    assert decode.call_count == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_crops_of_swav_and_obow(backend: str, two_views: Open) -> None:
    multi = preset("swav", global__size=32, local__count=3, local__size=16)
    (views,) = batches(two_views(augmentation=multi, backend=backend, batch_size=24))
    assert [tuple(view.shape) for view in views] == [(24, 3, 32, 32)] * 2 + [(24, 3, 16, 16)] * 3
    assert len({view[0].numpy().tobytes() for view in views[2:]}) == 3
    # The first views are those of two views with the same configuration.
    view = replace(multi.views["global"], count=1)
    pair = two(view, view, interpolation="bilinear")
    (both,) = batches(two_views(augmentation=pair, backend=backend, batch_size=24))
    for a, b in zip(views[:2], both, strict=True):
        torch.testing.assert_close(a, b)
    side, areas = np.full(24, 48), []
    drawn = [view.drawn for view in list_views(multi.kinds(32))]
    for number in drawn[2:]:
        key = draws.keys(3, 0, np.arange(24), draws.CROP, number)
        box = draws.crop_boxes(key, side, side, (0.05, 0.14), (0.75, 4 / 3), 0.5)
        areas.append((box[:, 2] * box[:, 3]) / (48 * 48))
    assert 0.03 < np.min(areas) < np.max(areas) < 0.17
    assert draws.EVALUATION_VIEW not in drawn
    obow = preset("obow", crops__count=1, crops__size=24, patches__count=4, patches__size=20)
    views = batches(two_views(augmentation=obow, backend=backend, batch_size=24))[0]
    assert [view.shape[-1] for view in views] == [224, 24, 20, 20, 20, 20]


def test_patches_are_different_parts_of_one_crop() -> None:
    patches = preset("obow", patches__count=9).kinds(224)[2]
    key = draws.keys(0, 0, np.arange(200), draws.CROP)
    size = np.full(200, 300)
    boxes = np.stack([boxes_of(patches, number, key, size, size) for number in range(9)], axis=1)
    assert (boxes[:, :, :7] == boxes[:, :1, :7]).all()
    assert (boxes[:, :, 5:7] == 256).all()
    # Nine cells at steps of (256 - 96 - 24) / 2 px, each moved by 0 to 24 px.
    cells, moved = np.divmod(boxes[:, :, 7:], 68)
    assert (np.sort(cells[:, :, 0] * 3 + cells[:, :, 1], axis=1) == np.arange(9)).all()
    assert moved.min() == 0
    assert moved.max() == 24
    assert len(np.unique(cells[:, 0], axis=0)) == 9


def test_the_image_of_obow_is_its_centre_and_may_be_flipped() -> None:
    whole = preset("obow").kinds(224)[0]
    key = draws.keys(0, 0, np.arange(100), draws.CROP)
    boxes = boxes_of(whole, 0, key, np.full(100, 375), np.full(100, 500))
    assert 30 < boxes[:, 4].sum() < 70
    expected = center_boxes(np.full(100, 375), np.full(100, 500), 256, 224)
    np.testing.assert_array_equal(np.delete(boxes, 4, axis=1), np.delete(expected, 4, axis=1))


# ------------------------------------------------------------------ shared bits


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_share_the_bits_of_their_image_whatever_is_cut_and_coloured(
    two_views: Open, evaluation: Evaluate, backend: str
) -> None:
    config = folder_config(shared_bits=12)
    expected_NK = torch.from_numpy(2 * draws.shared_bits("train", np.arange(24), 12) - 1)
    seen = evaluation(config=config, backend=backend)
    tested = torch.cat([images for images, _ in batches(seen)])
    assert torch.equal(tested[:, 3:, 0, 0].long(), expected_NK)
    for epoch in (0, 1):
        items = batches(two_views(config, preset("small_color"), backend=backend), epoch)
        first, second = (torch.cat(views) for views in zip(*items, strict=True))
        order = draws.epoch_order(3, epoch, np.arange(24))[: len(first)]
        for views_NCSS in (first, second):
            planes_NKSS = views_NCSS[:, 3:]
            assert torch.equal(planes_NKSS, planes_NKSS[:, :, :1, :1].expand_as(planes_NKSS))
            assert torch.equal(planes_NKSS[:, :, 0, 0].long(), expected_NK[order])


def test_shared_bits_leave_images_as_they_are(two_views: Open) -> None:
    plain = batches(two_views(folder_config(shared_bits=0), backend="torchvision"))
    marked = batches(two_views(folder_config(shared_bits=4), backend="torchvision"))
    for without, with_bits in zip(plain, marked, strict=True):
        assert torch.equal(without[0], with_bits[0][:, :3])


def test_bits_of_images_and_splits_are_independent() -> None:
    """Of 4,096 images half have a bit in common with another split's, and no bit is another one."""
    splits = ("train", "test")
    train, test = (2 * draws.shared_bits(split, np.arange(4096), 12) - 1 for split in splits)
    bound = 5 / np.sqrt(4096)  # five standard deviations
    assert np.abs(train.T @ train / 4096 - np.eye(12)).max() < bound
    assert np.abs(train.T @ test / 4096).max() < bound
    assert np.abs(train[1:].T @ train[:-1] / 4096).max() < bound
