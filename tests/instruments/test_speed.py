"""Scripts that measure, on few images: made images are hard and always the same, every loader
delivers two views.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from regbench.datasets.stored.beton import Beton
from regbench.datasets.stored.prepare import prepare
from regbench.instruments.cost.images import SCENARIOS, PreparedImages, make_images, photo
from regbench.instruments.speed.loaders import compare_loaders, regbench_turn, torchvision_turn
from regbench.instruments.speed.training import row

CPU = torch.device("cpu")
JPEGS = replace(SCENARIOS["256"], height=40, width=56, image_size=24, distinct=6, copies=4)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speed")


@pytest.fixture(scope="module")
def jpegs(data_dir: Path) -> PreparedImages:
    return make_images(JPEGS, data_dir)


@pytest.fixture(scope="module")
def raws(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedImages:
    """Small images, stored as pixels."""
    folder = tmp_path_factory.mktemp("raws")
    for split, count in (("train", 24), ("val", 1)):
        (folder / split / "made").mkdir(parents=True)
        for number in range(count):
            Image.fromarray(photo(number, 28, 28)).save(folder / split / "made" / f"{number}.png")
    settings = "dataset=imagefolder dataset.name=raws dataset.image_size=20 dataset.eval_resize=20"
    settings += " dataset.num_classes=1 dataset.source.held_out=null augmentation=small_color"
    images = PreparedImages.of([*settings.split(), f"runtime.data_dir={data_dir}"])
    prepare(images.dataset, data_dir, source_dir=folder, progress=False)
    assert str(images) == "raws: 24 images, 28 x 28 px, raw"
    return images


def test_the_images_are_as_hard_to_code_as_photographs(tmp_path: Path) -> None:
    for name, low, high in (("256", 20e3, 40e3), ("500x375", 90e3, 130e3)):
        scenario = replace(SCENARIOS[name], distinct=4, copies=2)
        images = make_images(scenario, tmp_path)
        beton = Beton(images.file)
        assert low < beton.size.mean() < high
        sides = sorted((scenario.height, scenario.width))
        for found in zip(beton.heights.tolist(), beton.widths.tolist(), strict=True):
            assert sorted(found) == sides
        assert f"made_{name}: 8 images, {sides[1]} x {sides[0]} px, JPEG, " in str(images)


def test_the_images_are_the_same_each_time(tmp_path: Path, jpegs: PreparedImages) -> None:
    again = make_images(JPEGS, tmp_path)
    assert jpegs.file.read_bytes() == again.file.read_bytes()
    assert len(set(Beton(again.file).size.tolist())) > 1


@pytest.mark.parametrize("form", ["jpegs", "raws"])
@pytest.mark.parametrize("backend", ["", "torchvision", "ffcv"])
def test_every_loader_delivers_two_different_views(
    backend: str, form: str, request: pytest.FixtureRequest
) -> None:
    if backend == "ffcv" and not importlib.util.find_spec("ffcv"):
        pytest.skip("needs FFCV")
    images: PreparedImages = request.getfixturevalue(form)
    turn: Callable[[], Iterator[tuple[Tensor, ...]]]
    if backend:
        turn = regbench_turn(images, 4, 1, CPU, interpolation="bicubic", backend=backend)  # type: ignore[assignment]
    else:
        turn = torchvision_turn(images, 4, 1, CPU)  # type: ignore[assignment]
    size = images.dataset.image_size
    first: list[Tensor] = []
    for _ in range(2):  # as often as one asks
        batches = 0
        for one, two in turn():
            batches += 1
            assert one.dtype == two.dtype == torch.float32
            assert one.shape == two.shape == (4, 3, size, size)
            assert one.std() > 0
            assert not torch.equal(one, two)
            first.append(one.clone())
        assert batches == 6
    assert not torch.equal(first[0], first[6])


@pytest.mark.slow
def test_what_the_scripts_print(
    raws: PreparedImages, jpegs: PreparedImages, capsys: pytest.CaptureFixture[str]
) -> None:
    compare_loaders(raws, CPU, rounds=2)
    printed = capsys.readouterr().out
    assert "raws: 24 images, 28 x 28 px, raw, batches of 24 on cpu" in printed
    assert "torchvision PIL: " in printed and "; 1.00 (1.00–1.00) of torchvision PIL" in printed
    network, batch, q, rate, bare, ratio, *parts = row("resnet18", jpegs, CPU)
    assert (network, batch, q) == ("resnet18", 16, 64)
    assert isinstance(rate, float) and isinstance(bare, float) and min(rate, bare) > 0
    assert ratio == rate / bare
    assert None not in parts[:7]
