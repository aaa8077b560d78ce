"""What the test between rows promises, by simulation: its power, and how often it claims a difference that is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from regbench.reports.rows.notes import power_notes
from regbench.reports.rows.significance import LEVEL, POWER, Tukey, best
from regbench.reports.tables.leaderboard import leaderboard
from tests.reports.reading import Make, task

LABELS = ("VICReg", "AUH", "SimCLR")


def fitted(rows: int, seeds: int, rng: np.random.Generator, ahead: float = 0.0) -> Tukey:
    """Rows with a spread of 1, of which the first is ahead; seeds move all rows together."""
    scores = rng.normal(size=(rows, seeds)) + 3 * rng.normal(size=seeds)
    scores[0] += ahead
    return Tukey([dict(enumerate(row)) for row in scores])


@pytest.mark.parametrize(("rows", "seeds"), [(6, 3), (10, 5)])
def test_the_detectable_difference_is_found_in_four_of_five_simulated_tables(rows: int, seeds: int) -> None:
    rng = np.random.default_rng(0)
    known = fitted(rows, seeds, rng)
    known.deviation = 1.0  # what the approximation takes as known
    found = []
    for _ in range(1000):
        (pair,) = fitted(rows, seeds, rng, known.power.detectable(seeds)).compare(0, [1])
        found.append(pair.p <= LEVEL)
    assert np.mean(found) == pytest.approx(POWER, abs=0.05)  # the approximation, and three standard errors


def test_seeds_for_a_difference_are_the_fewest_that_find_it() -> None:
    test = fitted(6, 3, np.random.default_rng(0)).power
    for difference in (3.0, 1.0, 0.5):
        seeds = test.seeds_for(difference)
        assert test.detectable(seeds) <= difference < test.detectable(seeds - 1)
    assert test.seeds_for(100.0) == 3


def test_the_leaderboard_says_what_it_can_tell(runs: Path, record: Make) -> None:
    rng = np.random.default_rng(0)
    for seed, scores in enumerate(70 + rng.normal(size=(3, 3))):
        for label, linear in zip(LABELS, scores, strict=True):
            record(label, seed, linear=linear)
    summary = task(runs)
    test = summary.tukey("linear_top1").power
    (note,) = power_notes(summary)
    assert leaderboard(summary).notes[-1] == note
    assert (
        f"with 3 seeds of each of 3 rows, a true difference of {test.detectable(3):.2g} points of linear top-1" in note
    )
    assert f"1 point takes {test.seeds_for(1)} seeds, one of 0.5 points {test.seeds_for(0.5)}." in note


def test_without_a_spread_nothing_is_promised(runs: Path, record: Make) -> None:
    for label in LABELS:
        record(label)
    assert power_notes(task(runs)) == []


@pytest.mark.parametrize("spread", ["equal", "1 to 3", "few of 3"])
def test_at_most_one_table_in_twenty_of_equal_rows_claims_a_difference_from_the_best(spread: str) -> None:
    """54 rows with three seeds, also where some rows scatter three times as much as others."""
    deviations = {"equal": np.ones(54), "1 to 3": np.linspace(1, 3, 54), "few of 3": np.repeat([1.0, 3.0], [49, 5])}
    rng = np.random.default_rng(0)
    false = []
    for scores in rng.normal(size=(400, 54, 3)) * deviations[spread][:, None] + rng.normal(size=(400, 1, 3)):
        found = best(Tukey([dict(enumerate(row)) for row in scores]))
        false.append(any(p <= LEVEL for p in found.p.values()))
    assert np.mean(false) <= LEVEL + 2 * np.sqrt(LEVEL * (1 - LEVEL) / 400)
