from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.transforms import RandomResizedCrop

from regbench.datasets.config import ViewConfig
from regbench.datasets.loading import draws
from regbench.datasets.loading.photometric import chains


def test_uniforms_are_the_published_splitmix64_sequence() -> None:
    # First outputs of SplitMix64 seeded with 0 and with 1234567, as in the reference
    # implementation's known answers.
    expected = {
        0: (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F),
        1234567: (6457827717110365317, 3203168211198807973, 9817491932198370423),
    }
    for seed, outputs in expected.items():
        got = draws.uniforms(np.array([seed], np.uint64), 0, 3)[0]
        np.testing.assert_array_equal(got, [(value >> 11) / 2**53 for value in outputs])


def test_numbers_can_be_drawn_in_parts() -> None:
    key = draws.keys(3, 1, np.arange(5), draws.CROP)
    whole = draws.uniforms(key, 0, 10)
    np.testing.assert_array_equal(whole[:, 4:7], draws.uniforms(key, 4, 3))
    assert whole.min() >= 0
    assert whole.max() < 1


def test_a_key_depends_on_every_coordinate_and_on_nothing_else() -> None:
    indices = np.arange(1000)
    seen = set()
    for seed in (0, 1):
        for epoch in (0, 1):
            for purpose in (draws.ORDER, draws.CROP, draws.PHOTOMETRIC):
                for view in (0, 1, draws.EVALUATION_VIEW):
                    key = draws.keys(seed, epoch, indices, purpose, view)
                    seen.update(key.tolist())
                    some = indices[::-7]
                    alone = draws.keys(seed, epoch, some, purpose, view)
                    np.testing.assert_array_equal(key[some], alone)
    assert len(seen) == 2 * 2 * 3 * 3 * 1000


def test_order_is_a_permutation_that_changes_with_seed_and_epoch() -> None:
    indices = np.arange(0, 2000, 2)
    orders = [draws.epoch_order(seed, epoch, indices) for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), indices)
        # A random permutation leaves about one element in place.
        assert (order == indices).sum() < 10
    assert all((orders[0] != other).mean() > 0.9 for other in orders[1:])


@pytest.mark.parametrize(("height", "width"), [(28, 28), (375, 500)])
def test_boxes_have_torchvisions_distribution(height: int, width: int) -> None:
    n = 4000
    key = draws.keys(0, 0, np.arange(n), draws.CROP)
    size = np.full(n, height), np.full(n, width)
    boxes = draws.crop_boxes(key, *size, (0.08, 1.0), (3 / 4, 4 / 3), 0.5)
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    span, ratio = [0.08, 1.0], [3 / 4, 4 / 3]
    reference = np.array([RandomResizedCrop.get_params(image, span, ratio) for _ in range(n)])
    # Two-sample Kolmogorov-Smirnov at about 1e-5: 2.4 sqrt(2 / n).
    for column in range(4):
        grid = np.arange(max(height, width) + 1)
        ours = np.searchsorted(np.sort(boxes[:, column]), grid, side="right") / n
        theirs = np.searchsorted(np.sort(reference[:, column]), grid, side="right") / n
        assert np.abs(ours - theirs).max() < 2.4 * np.sqrt(2 / n), column
    assert abs(boxes[:, 4].mean() - 0.5) < 0.04
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + boxes[:, 2] <= height).all()
    assert (boxes[:, 1] + boxes[:, 3] <= width).all()


@pytest.mark.parametrize(("height", "width"), [(4, 300), (300, 4), (30, 30)])
def test_boxes_fall_back_to_the_centre_as_torchvision_does(height: int, width: int) -> None:
    # A scale far above 1 never fits, so that only the fallback is left.
    key = draws.keys(0, 0, np.arange(3), draws.CROP)
    size = np.full(3, height), np.full(3, width)
    boxes = draws.crop_boxes(key, *size, (50.0, 60.0), (3 / 4, 4 / 3), 0.0)
    image = torch.empty(3, height, width)
    expected = RandomResizedCrop.get_params(image, [50.0, 60.0], [3 / 4, 4 / 3])
    np.testing.assert_array_equal(boxes, [[*expected, 0]] * 3)
    # Of a ratio that none of its pixels has, one is left.
    extreme = draws.crop_boxes(key, *size, (0.08, 1.0), (700.0, 800.0), 0.0)
    assert (extreme[:, 2:4] == [1, width]).all()


def test_photometric_draws_follow_the_config() -> None:
    config = ViewConfig()
    n = 20_000
    key = draws.keys(5, 2, np.arange(n), draws.PHOTOMETRIC)
    chain = chains(key, config, 3)
    # Each number has its use: another one would change the images of a seed.
    u = draws.uniforms(key, 0, 13)
    assert np.array_equal(chain["order"][u[:, 0] < 0.8], np.argsort(u[u[:, 0] < 0.8, 5:9], axis=1))
    for name, column, p in (("grayscale", 9, 0.2), ("sigma", 10, 0.1)):
        assert np.array_equal(chain[name] > 0, u[:, column] < p)
    jittered, blurred = chain["order"][:, 0] >= 0, chain["sigma"] > 0
    solarized = chain["threshold"] == config.solarize_threshold
    chosen = [jittered, chain["grayscale"], blurred, solarized]
    for drawn, p in zip(chosen, (0.8, 0.2, 0.1, 0.2), strict=True):
        assert abs(drawn.mean() - p) < 0.015
    for column, (low, high) in enumerate([(0.6, 1.4), (0.6, 1.4), (0.8, 1.2), (-0.1, 0.1)]):
        values = chain["factors"][:, column]
        assert low <= values.min() < low + 0.001 * (high - low) + 1e-4
        assert high - 0.001 * (high - low) - 1e-4 < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 0.01 * (high - low)
    # Each of the 24 orders comes equally often.
    orders, counts = np.unique(chain["order"][jittered], axis=0, return_counts=True)
    assert (np.sort(orders) == np.arange(4)).all()
    assert len(counts) == 24
    assert np.abs(counts / counts.sum() - 1 / 24).max() < 0.006
    # Each is drawn by itself: what is blurred is so by any strength.
    sigma = chain["sigma"][blurred]
    assert 0.1 <= sigma.min() < 0.11
    assert 1.99 < sigma.max() <= 2.0
    assert abs(sigma.mean() - 1.05) < 0.05
    assert np.abs(np.corrcoef([*chosen, *chain["factors"].T]) - np.eye(8)).max() < 0.05
    always = replace(config, jitter_p=1.0, blur_p=1.0)
    chain = chains(draws.keys(5, 2, np.arange(n), draws.PHOTOMETRIC), always, 3)
    others = [*chain["factors"].T, chain["grayscale"], chain["sigma"], chain["threshold"]]
    for jitter in range(4):
        rows = [chain["order"][:, 0] == jitter, *others]
        assert np.abs(np.corrcoef(rows) - np.eye(8)).max() < 0.05
