"""The verdicts: how often noise is called a difference, and that a gain is found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from regbench.tracks.verdicts import Verdict, verdicts

# Rows that scatter as unequally as those of the quickstart.
UNEQUAL = (0.4, 1.6, 2.4, 3.4, 2.2, 2.0, 0.7, 1.6)


def challenged(
    rng: np.random.Generator,
    deviations: tuple[float, ...],
    own: float,
    gain: float,
    *,
    machine: float = 0.0,
) -> list[Verdict]:
    """Judge a challenger whose scores are drawn."""
    trained = {str(k): rng.normal(0, each, 3).tolist() for k, each in enumerate(deviations)}
    untrained = {"untrained": rng.normal(0, 0.5, 3).tolist()}
    untrained["pixels"] = rng.normal(0, 0.001, 3).tolist()
    shift = rng.normal(0, machine)
    shifts = rng.normal(shift, machine / 2, 2).tolist()
    scores = rng.normal(gain + shift, own, 3).tolist()
    return verdicts(scores, trained, untrained, shifts)


@pytest.mark.parametrize(
    "deviations, own, machine",
    [
        (UNEQUAL, 1.0, 0.0),
        (UNEQUAL, 3.5, 0.0),
        ((1.0,) * 8, 3.0, 0.0),
        ((1.0,) * 8, 1.0, 2.0),
        ((0.3, 0.3), 1.0, 0.0),
    ],
)
def test_noise_comes_out_as_better_in_five_of_a_hundred_challenges_at_most(
    deviations: tuple[float, ...], own: float, machine: float
) -> None:
    rng, count = np.random.default_rng(0), 1000
    better = 0
    for _ in range(count):
        judged = challenged(rng, deviations, own, 0.0, machine=machine)
        better += any(verdict.words == "better than" for verdict in judged)
    assert better <= 0.05 * count


def test_a_lucky_search_comes_out_as_better_in_five_of_a_hundred_challenges_at_most() -> None:
    rng, count, better = np.random.default_rng(0), 1000, 0
    for _ in range(count):
        searched = rng.normal(0, (0.5, 1, 2, 1, 1, 3, 1, 1, 2, 1), (3, 10))
        trained = dict(zip("abcdefghij", searched.T.tolist(), strict=True))
        # Seeds of one search hardly differ, and searches do.
        seeds = (rng.normal(0, 1.4) + rng.normal(0, 0.1, 5)).tolist()
        judged = verdicts(seeds, trained, {}, [0.0], of_searches=True)
        better += any(verdict.words == "better than" for verdict in judged)
    assert better <= 0.05 * count


def test_a_gain_of_two_points_is_found() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        found = challenged(rng, (0.2,) * 8, 0.2, 2.0)
        assert [verdict.words for verdict in found[:8]] == ["better than"] * 8
        assert "worse than" not in {verdict.words for verdict in found}


def test_without_the_machines_difference_a_shift_of_it_would_be_taken_for_a_gain() -> None:
    rows = {str(place): [10.0, 10.2, 10.4] for place in range(8)}
    scores = [12.0, 12.2, 12.4]
    assert {verdict.words for verdict in verdicts(scores, rows, {}, [0.0, 0.0])} == {"better than"}
    assert {verdict.words for verdict in verdicts(scores, rows, {}, [2.0, 2.1])} == {
        "not significantly different from"
    }


def test_an_interval_is_that_of_two_samples_with_its_share_of_the_level() -> None:
    """By hand: variances of 1, 4 and 9.

    Of three samples each variance has half of its own besides the common one.
    """
    trained = {"small": [0.0, 2.0, 4.0], "large": [0.0, 3.0, 6.0]}
    own, pooled = 1.0, (1 + 4 + 9) / 3
    found = verdicts([6.0, 7.0, 8.0], trained, {"untrained": [1.0, 1.0, 1.0, 1.0]}, [0.5, -0.1])
    critical = t.ppf(1 - 0.05 / 2 / 3, 3 * 2)
    machine = (0.5**2 + 0.1**2) / 2
    rows = zip(found, (2.0, 3.0, 1.0), (4.0, 9.0, 0.0), (3, 3, 4), strict=True)
    for verdict, mean, variance, seeds in rows:
        fixed = (pooled + variance / 2) / seeds + machine
        assert verdict.difference == pytest.approx(7.0 - mean)
        whole = (pooled + own / 2) / 3 + fixed
        assert verdict.half_width == pytest.approx(critical * math.sqrt(whole))


def test_an_interval_beside_searches_has_the_variance_of_one_search() -> None:
    """By hand: searches with variances of 1 and 4.

    The challenger has their mean and half of it, a row their mean and half of its own.
    """
    trained = {"small": [0.0, 1.0, 2.0], "large": [0.0, 2.0, 4.0]}
    pooled = (1 + 4) / 2
    pixels = {"pixels": [1.0, 1.0, 1.0, 1.0]}
    found = verdicts([6.0, 7.0, 8.0], trained, pixels, [1.0], of_searches=True)
    critical = t.ppf(1 - 0.05 / 2 / 3, 4)
    rows = zip(found, (1.0, 2.0, 1.0), (1.0, 4.0, 0.0), (3, 3, 4), strict=True)
    for verdict, mean, own, searches in rows:
        variance = 1.5 * pooled + (pooled + own / 2) / searches + 1.0**2
        assert verdict.difference == pytest.approx(7.0 - mean)
        assert verdict.half_width == pytest.approx(critical * math.sqrt(variance))


def test_a_twin_is_not_significantly_different() -> None:
    rows = {"twin": [10.0, 10.2, 10.4], "other": [4.0, 4.2, 4.4]}
    words = [verdict.words for verdict in verdicts(rows["twin"], rows, {}, [0.0, 0.0])]
    assert words == ["not significantly different from", "better than"]
    assert Verdict("of one seed", 9.0, math.nan).words == words[0]
