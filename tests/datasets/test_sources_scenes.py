"""Generated scenes: what they show is what their factors say, and any of them can be made again."""

from __future__ import annotations

import colorsys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.config import DatasetConfig
from regbench.datasets.loading.loaders import EvalLoader
from regbench.datasets.sources.base import SOURCES, Contents
from regbench.datasets.sources.scene_pixels import PATTERNS, pattern, pink, sampled
from regbench.datasets.stored.factor_tables import read_factors
from regbench.datasets.stored.manifest import Manifest
from regbench.datasets.stored.prepare import prepare
from regbench.datasets.stored.verify import verify
from regbench.files import write_text
from tests.datasets.test_sources_arrays import pixels
from tests.refusals import is_refused

SMALL = {"foreground": "digits", "train_images": 60, "tuning_images": 20, "test_images": 30}


def scenes(**changes: Any) -> Contents:
    return SOURCES.build("scenes", **{**SMALL, **changes}).open(None, Path())


def config(*changes: str) -> DatasetConfig:
    settings = [f"dataset.source.{name}={value}" for name, value in SMALL.items()]
    return load_run(["dataset=scenes", *settings, *changes])[0].dataset


def test_a_scene_depends_on_its_seed_split_and_number_alone() -> None:
    first = pixels(scenes().splits["train"])
    more = pixels(scenes(train_images=200).splits["train"])
    other_seed = pixels(scenes(scene_seed=1).splits["train"])
    tuning = pixels(scenes().splits["tuning"])
    assert np.array_equal(first, more[:60])
    assert not any(np.array_equal(one, other) for one, other in zip(first, other_seed, strict=True))
    assert not any(np.array_equal(one, other) for one, other in zip(first, tuning, strict=False))


@pytest.mark.parametrize("size_px", [28, 96])
@pytest.mark.parametrize("grey", [False, True])
def test_sizes_and_colours(size_px: int, grey: bool) -> None:
    shape = (size_px, size_px) if grey else (size_px, size_px, 3)
    split = scenes(size_px=size_px, grey=grey).splits["test"]
    assert {image.shape for image in pixels(split)} == {shape}


def test_the_factors_say_where_a_garment_is_which_colour_it_has_and_how_far_it_is_turned() -> None:
    """The stroke of a one runs through its centre; of a pixel there the hue is that of the garment.

    A positive angle turns the garment clockwise, from a slope of the stroke that is another in each
    image.
    """
    split = scenes(train_images=700, size_px=96).splits["train"]
    found, slopes = [], []
    for number, image in enumerate(pixels(split)):
        if split.labels[number] == 1:
            column = int(96 * float(split.factors["x_share"][number]))
            line = int(96 * float(split.factors["y_share"][number]))
            hue = colorsys.rgb_to_hsv(*(image[line, column] / 255))[0]
            apart = abs(hue - float(split.factors["hue_turns"][number]))
            found.append(min(apart, 1 - apart))
            colours = image / np.linalg.norm(image, axis=2, keepdims=True).clip(1)
            lines, columns = np.nonzero(colours @ colours[line, column] > 0.998)
            down, right = lines - line, columns - column
            near = np.hypot(down, right) < 25
            slope = -np.polyfit(down[near], right[near], 1)[0]
            slopes.append((slope, split.factors["angle_deg"][number]))
    assert len(found) == 70
    assert np.mean(np.array(found) < 0.02) > 0.9
    assert np.corrcoef(np.array(slopes, float).T)[0, 1] > 0.3


def test_an_image_is_sampled_at_the_centres_of_its_pixels_and_fades_out_beyond() -> None:
    grey_NFF = np.random.default_rng(0).uniform(0, 255, (3, 5, 5))
    v_FF, u_FF = (np.mgrid[:5, :5] + 0.5) / 5
    rows = np.array([2, 0])

    def moved(right: float, down: float) -> Any:
        u_NFF, v_NFF = np.stack([u_FF + right / 5] * 2), np.stack([v_FF + down / 5] * 2)
        return sampled(grey_NFF, rows, u_NFF, v_NFF)

    framed_NFF = np.pad(grey_NFF[rows], ((0, 0), (0, 1), (0, 1)))
    assert np.allclose(moved(0, 0), grey_NFF[rows])
    assert np.allclose(moved(0.25, 0), 0.75 * framed_NFF[:, :5, :5] + 0.25 * framed_NFF[:, :5, 1:])
    assert np.allclose(moved(0, 0.25), 0.75 * framed_NFF[:, :5, :5] + 0.25 * framed_NFF[:, 1:, :5])
    for beyond in ((6, 0), (-6, 0), (0, 6), (0, -6)):
        assert moved(*beyond).max() < 0.3  # of 255 levels


def test_a_larger_scale_covers_more_and_distractors_add_more_still() -> None:
    def changed(image: Any, other: Any) -> float:
        return float(np.mean(np.any(image != other, axis=-1)))

    plain = scenes(train_images=400).splits["train"]
    cluttered = scenes(train_images=400, distractors=8).splits["train"]
    parts = [changed(*two) for two in zip(pixels(plain), pixels(cluttered), strict=True)]
    assert "distractors" not in plain.factors
    assert set(np.unique(cluttered.factors["distractors"])) == set(range(9))
    numbers = [float(number) for number in cluttered.factors["distractors"]]
    assert np.corrcoef(parts, numbers)[0, 1] > 0.6
    assert np.array_equal(plain.factors["scale"], cluttered.factors["scale"])


def test_classes_are_balanced_or_follow_a_power_law_in_training_alone() -> None:
    even = scenes().splits
    assert np.bincount(even["train"].labels).tolist() == [6] * 10
    tailed = scenes(train_images=200, imbalance=1.0).splits
    counts = np.bincount(tailed["train"].labels, minlength=10)
    shares = 1 / np.arange(1, 11)
    assert np.abs(counts - 200 * shares / shares.sum()).max() < 4
    assert np.bincount(tailed["test"].labels).tolist() == [3] * 10


def test_a_class_is_a_garment_in_a_pattern() -> None:
    contents = scenes(patterns=4, train_images=120)
    assert len(contents.class_names) == 40
    first = ["0, plain", "0, stripes across", "0, stripes along", "0, checks", "1, plain"]
    assert contents.class_names[:5] == first
    split = contents.splits["train"]
    assert np.bincount(split.labels).tolist() == [3] * 40
    plain = pixels(scenes(train_images=120).splits["train"])
    assert not np.array_equal(plain, pixels(split))


def test_no_two_patterns_are_alike() -> None:
    line, column = np.mgrid[:64, :64] / 64
    count = len(PATTERNS)
    found = pattern(np.arange(count), np.stack([column] * count), np.stack([line] * count))
    assert len({image.tobytes() for image in found}) == count
    shown = dict(zip(PATTERNS, found, strict=True))
    for name in ("stripes", "fine stripes"):
        assert np.array_equal(shown[f"{name} along"], shown[f"{name} across"].T)


def test_more_scenes_than_the_foreground_has_images_are_refused() -> None:
    with is_refused("train needs 500 images of '0' and digits has "):
        scenes(train_images=5000)


def test_factors_lie_beside_the_images(tmp_path: Path) -> None:
    prepare(config(), tmp_path)
    factors = read_factors(tmp_path, config(), "tuning")
    expected = scenes().splits["tuning"]
    assert factors.keys() == expected.factors.keys()
    for name, values in expected.factors.items():
        assert np.array_equal(factors[name], values), name
    assert factors["class"].dtype == np.int64
    assert verify("scenes", tmp_path) == (110, [])


def test_factors_are_those_of_the_training_images_that_are_used(tmp_path: Path) -> None:
    """Rare classes have few images, so that two of each class are not the first twenty of all."""
    whole = config("dataset.source.imbalance=0.5")
    prepare(whole, tmp_path)
    part = replace(whole, train_per_class=2)
    table, factors = (read_factors(tmp_path, each, "train") for each in (whole, part))
    options: Any = {"device": torch.device("cpu"), "backend": "torchvision"}
    with (
        EvalLoader(part, "train", data_dir=tmp_path, batch_size=20, **options) as loader,
        loader.epoch() as batches,
    ):
        ((_, labels),) = batches
    assert factors["class"].tolist() == labels.tolist()
    assert np.bincount(factors["class"]).tolist() == [2] * 10
    used, all_rows = (set(zip(t["class"], t["scale"], strict=True)) for t in (factors, table))
    assert used < all_rows


def test_a_table_of_factors_that_was_changed_is_refused(tmp_path: Path) -> None:
    prepare(config(), tmp_path)
    table = tmp_path / "scenes" / Manifest.load(tmp_path, "scenes").splits["test"]["factors"]
    write_text(table, table.read_text().replace("0", "1", 1))
    with is_refused(r"test\.factors\.csv is missing or was changed; write it again: regbench"):
        read_factors(tmp_path, config(), "test")
    assert "test.factors.csv" in verify("scenes", tmp_path)[1][0]
    with is_refused("'digits' does not say what its images are made of"):
        digits = load_run(["dataset=digits"])[0].dataset
        prepare(digits, tmp_path)
        read_factors(tmp_path, digits, "test")


def test_backgrounds_are_rough_at_every_size() -> None:
    """Noise of amplitude 1/f has as much power in each octave.

    Smooth gratings have none in the last.
    """
    noise_NSS = pink(np.random.default_rng(0).standard_normal((40, 64, 64)))
    power = np.mean(np.abs(np.fft.fft2(noise_NSS)) ** 2, axis=0)
    cycles = np.hypot(np.fft.fftfreq(64)[:, None], np.fft.fftfreq(64)) * 64
    octaves = [power[(cycles >= low) & (cycles < 2 * low)].sum() for low in (2, 4, 8, 16)]
    assert np.allclose(noise_NSS.mean(axis=(1, 2)), 0)
    assert np.allclose(noise_NSS.std(axis=(1, 2)), 1)
    assert max(octaves) < 1.3 * min(octaves)


def test_no_two_scenes_share_the_texture_of_their_background() -> None:
    """The corners of scenes lie behind no garment.

    Neighbours of one row differ by the texture alone.
    """
    contents = scenes(train_images=200, foreground="digits")
    corners = []
    for split in ("train", "tuning"):
        for image in pixels(contents.splits[split]):
            corner = image[:3, :6].astype(float).mean(axis=2)
            corners.append(np.diff(corner, axis=1).ravel())
    alike = np.corrcoef(np.stack(corners))
    np.fill_diagonal(alike, 0)
    assert alike.max() < 0.999


def test_scenes_of_all_splits_share_a_few_backgrounds() -> None:
    """Most garments leave the corner of a scene free."""
    contents = scenes(train_images=200, backgrounds=3)
    seen = []
    for split in ("train", "tuning", "test"):
        corners: dict[float, Counter[bytes]] = {}
        hues = contents.splits[split].factors["background_hue_turns"].tolist()
        for image, hue in zip(pixels(contents.splits[split]), hues, strict=True):
            corners.setdefault(hue, Counter())[image[:3, :3].tobytes()] += 1
        commonest = {hue: found.most_common(1)[0][0] for hue, found in corners.items()}
        assert len(commonest) == 3
        seen.append(commonest)
    assert seen[0] == seen[1] == seen[2]
    # The garments stay those of scenes with backgrounds of their own.
    own, shared = scenes().splits["train"].factors, scenes(backgrounds=3).splits["train"].factors
    for name in ("class", "hue_turns", "x_share", "scale", "angle_deg"):
        assert np.array_equal(own[name], shared[name])


def test_a_foreground_image_may_be_in_several_scenes_where_that_is_asked() -> None:
    first = scenes(train_images=60)
    # There are 79 training images of a zero and more, and 1,000 scenes need 100 of each digit.
    many = scenes(train_images=1000, scenes_per_image=2)
    assert np.array_equal(pixels(many.splits["train"])[:60], pixels(first.splits["train"]))
    assert len({image.tobytes() for image in pixels(many.splits["train"])}) == 1000
    with is_refused(r"or a larger dataset\.source\.scenes_per_image"):
        scenes(train_images=2000, scenes_per_image=2)


def test_a_cell_of_scenes_without_the_later_settings_keeps_its_id() -> None:
    assert load_run(["dataset=scenes"])[0].id == "b054f49878cc"
    changed = {"b054f49878cc"}
    for name in ("backgrounds", "scenes_per_image"):
        changed.add(load_run(["dataset=scenes", f"dataset.source.{name}=2"])[0].id)
    assert len(changed) == 3
