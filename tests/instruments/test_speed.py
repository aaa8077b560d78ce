"""Made images are hard and always the same, and a training on them is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regbench.datasets.stored.beton import Beton
from regbench.instruments.cost.images import SCENARIOS, PreparedImages, make_images
from regbench.instruments.speed.training import row

CPU = torch.device("cpu")
JPEGS = replace(SCENARIOS["256"], height=40, width=56, image_size=24, distinct=6, copies=4)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speed")


@pytest.fixture(scope="module")
def jpegs(data_dir: Path) -> PreparedImages:
    return make_images(JPEGS, data_dir)


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


@pytest.mark.slow
def test_a_training_is_measured_beside_a_bare_loop(jpegs: PreparedImages) -> None:
    network, batch, q, rate, bare, ratio, *parts = row("resnet18", jpegs, CPU)
    assert (network, batch, q) == ("resnet18", 16, 64)
    assert isinstance(rate, float) and isinstance(bare, float) and min(rate, bare) > 0
    assert ratio == rate / bare
    assert None not in parts[:7]
