"""The values of a hyperparameter that a tuning tries."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from regbench.spaces import Choice, Range, halton
from tests.refusals import is_refused


@pytest.mark.parametrize(
    ("space", "middle"),
    [(Range(1, 100), 10), (Range(1, 100, "linear"), 50.5), (Range(0.01, 0.99, "logit"), 0.5)],
)
def test_positions_are_even_on_the_scale(space: Range, middle: float) -> None:
    assert (space.value(0), space.value(0.5), space.value(1)) == pytest.approx(
        (space.low, middle, space.high)
    )
    for position in (-0.5, 0.0, 0.3, 1.2):
        assert space.position(space.value(position)) == pytest.approx(position, abs=0.005)


def test_values_have_three_digits() -> None:
    assert Range(1, 1000).value(0.123) == 2.34
    assert Range(0.001, 0.999, "logit").value(0.9) == 0.99603  # of 1 - λ = 0.00397


def test_nothing_lies_beyond_the_bounds_that_there_are() -> None:
    space = Range(0, 0.2, "linear", least=0)
    assert (space.value(-1), space.value(2)) == (0, 0.4)
    assert Range(0.3, 10, most=20).value(2) == 20
    assert Range(0.01, 0.5, "logit", most=0.9).value(2) == 0.9
    assert Range(0.01, 0.5, "logit", least=0.005).value(-3) == 0.005
    assert 0 < Range(0.01, 0.99, "logit").value(-3) < Range(0.01, 0.99, "logit").value(4) < 1


def test_shifted_points_are_as_even_and_are_others() -> None:
    """Of 64 points each eighth of an axis has some 8, whatever the shift, and random ones would
    have 3 to 14.
    """
    found = []
    for shift in (0, 1, 2):
        points = np.array([halton(index, 2, shift) for index in range(64)])
        assert np.all((points >= 0) & (points < 1))
        for axis in (0, 1):
            counts = np.histogram(points[:, axis], 8, (0, 1))[0]
            assert 6 <= counts.min() <= counts.max() <= 10
        found.append(points)
    apart = [np.abs(one - other).min() for one, other in itertools.combinations(found, 2)]
    assert min(apart) > 0.01
    assert halton(3, 2) == halton(3, 2, 0)


@pytest.mark.parametrize(("n", "q"), [(64, 1024), (1024, 64)])
def test_a_range_moves_with_the_sizes_that_it_names(n: int, q: int) -> None:
    ends = {times: Range(1, 10, times=times).at(n, q) for times in ("1", "q", "1/q", "min(n, q)")}
    seen = {times: (each.low, each.high) for times, each in ends.items()}
    assert seen == {"1": (1, 10), "q": (q, 10 * q), "1/q": (1 / q, 10 / q), "min(n, q)": (64, 640)}
    assert Range(1, 10, times="log(n)").at(n=64, q=2).low == pytest.approx(4.1589, abs=1e-4)


@pytest.mark.parametrize(
    ("low", "high", "more", "match"),
    [
        (5, 1, {}, "from 5 to 1 on a log scale: .*above 0, from a smaller to a larger one"),
        (0, 1, {}, "above 0"),
        (1, float("inf"), {}, "finite numbers"),
        (0.5, 1, {"scale": "logit"}, "between 0 and 1"),
    ],
)
def test_an_impossible_range_is_refused(
    low: float, high: float, more: dict[str, Any], match: str
) -> None:
    with is_refused(match):
        Range(low, high, **more)


def test_a_choice_gives_each_value_an_equal_part() -> None:
    values = [Choice(("a", "b", "c")).value((index + 0.5) / 9) for index in range(9)]
    assert values == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_points_fill_the_cube_however_many_are_taken(dimensions: int) -> None:
    for count in (8, 32):
        points = [halton(index, dimensions) for index in range(count)]
        for axis in range(dimensions):
            taken = {int(point[axis] * count / 2) for point in points}
            assert len(taken) >= 0.9 * count / 2  # of count / 2 equal parts nearly all hold a point
    assert len({tuple(halton(index, dimensions)) for index in range(32)}) == 32
