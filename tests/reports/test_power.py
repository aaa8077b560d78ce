"""What a sweep takes to tell a difference, by simulation."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from regbench.benchmark.settings.sweep import Sweep, load_grid
from regbench.reports.rows import power
from regbench.reports.rows.power import BETWEEN_SEEDS, power_text
from regbench.reports.rows.significance import LEVEL, POWER, Power, Tukey
from regbench.sweeps.forecast import Planned
from tests.refusals import is_refused


def unplanned(grid: Sweep) -> list[Planned]:
    """The cells of a sweep, without knowing what they will take."""
    return [Planned(cell, False, 1, None, None, None, False) for cell in grid.cells]


def test_so_many_searches_find_the_difference_in_four_of_five_simulated_tables(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "BETWEEN_SEEDS", 2.0)
    monkeypatch.setattr(power, "BETWEEN_SEARCHES", 1.0)
    planned = unplanned(load_grid([*tiny, "seed=0,1,2", "method=vicreg,tcr"]))
    words = r"(\d+) searches of each row and (\d+) final seeds of each search, ([\d,]+) trainings"
    found = re.search(words, power_text(planned, 3.0, 9))
    assert found is not None
    searches, finals, trainings = (int(each.replace(",", "")) for each in found.groups())
    assert trainings == 2 * searches * (9 + finals)
    # The variance of a row's mean, times what a search takes with its final runs.
    assert finals == min(range(1, 50), key=lambda number: (0.5**2 + 1 / number) * (9 + number))
    rng, hits = np.random.default_rng(0), []
    for _ in range(400):
        of_search = 0.5 * rng.normal(size=(2, searches))
        means = of_search + rng.normal(size=(2, searches, finals)).mean(axis=2)
        means[0] += 1.5  # all in units of a seed's deviation
        (pair,) = Tukey([dict(enumerate(row)) for row in means]).compare(0, [1])
        hits.append(pair.p <= LEVEL)
    # The approximation, and two standard errors.
    assert np.mean(hits) == pytest.approx(POWER, abs=0.08)
    monkeypatch.setattr(power, "BETWEEN_SEEDS", 0.01)
    assert "and 1 final seeds of each search" in power_text(planned, 3.0, 9)


def test_hours_are_estimated_where_any_is_and_unknown_where_one_is(tiny: list[str]) -> None:
    one, two = unplanned(load_grid([*tiny, "method=vicreg,simclr"]))
    one, two = replace(one, gpu_hours=1.0), replace(two, gpu_hours=2.0, from_flop=True)
    seeds = Power(2, BETWEEN_SEEDS).seeds_for(1.0)
    told = power_text([one, two], 1.0, None)
    assert f"{2 * seeds} trainings, ≈ {3.0 * seeds:.3g} GPU hours" in told
    assert "searches of each row" not in told  # nothing is tuned
    told = power_text([one, replace(two, gpu_hours=None)], 1.0, None)
    assert "trainings, GPU hours unknown" in told


def test_one_row_has_nothing_to_be_told_from(tiny: list[str]) -> None:
    one = unplanned(load_grid([*tiny, "method=vicreg", "seed=0,1"]))
    with is_refused("there is one; give a sweep of several methods"):
        power_text(one, 1.0, None)
    untrained = unplanned(load_grid([*tiny, "epochs=0", "optimizer.warmup_epochs=0"]))
    assert "between any two of 2 rows" in power_text(one + untrained, 1.0, None)


def test_a_search_is_as_long_as_that_of_the_row_with_most_configurations(tiny: list[str]) -> None:
    planned = unplanned(load_grid([*tiny, "method.alignment_weight=1,2"]))
    planned += unplanned(load_grid([*tiny, "method=tcr"]))
    assert "- tuned by 2 trainings a search" in power_text(planned, 1.0, None)
