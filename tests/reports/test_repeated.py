"""Rows of repeated searches: what stands for them, and that their test keeps its level, by
simulation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from regbench.reports.rows.deviations import nested_deviations
from regbench.reports.rows.significance import LEVEL, Tukey, best
from regbench.reports.rows.summary import Configuration
from tests.records import CELL, knn_top1, made

SEARCH, SEED = 0.33, 0.46  # deviations as they were measured on small images


def outcomes(rows: int, searches: int, seeds: int, rng: np.random.Generator) -> np.ndarray:
    """Scores of equal rows, (rows, searches, seeds): a seed moves all rows, and a search or a
    run its own.
    """
    of_search = SEARCH * rng.normal(size=(rows, searches, 1))
    of_run = SEED * rng.normal(size=(rows, searches, seeds))
    return 70 + of_search + of_run + rng.normal(size=(searches, seeds))


def row(scores: np.ndarray) -> Configuration:
    """The row of scores that are given as (searches, seeds)."""
    records = []
    for search, seed in np.ndindex(*scores.shape):
        choice = {"hyperparameters": {"search": search, "sha256": "0"}}
        value = knn_top1(float(scores[search, seed]), "test")
        records.append(made(CELL, seed=1000 * search + seed, scores=(value,), choice=choice))
    return Configuration(tuple(records))


def claims(rows: Sequence[dict[int, float]]) -> bool:
    """Whether the test tells any row from the best."""
    return any(p <= LEVEL for p in best(Tukey(rows)).p.values())


def test_the_test_keeps_its_level_where_searches_vary_and_one_over_seeds_alone_does_not() -> None:
    rng = np.random.default_rng(0)
    nested, one_search, all_runs = [], [], []
    for _ in range(100):
        scores = outcomes(8, 3, 5, rng)
        rows = [row(own) for own in scores]
        nested.append(claims([each.by_unit("knn_top1", "test") for each in rows]))
        one_search.append(claims([dict(enumerate(own[0])) for own in scores]))
        all_runs.append(claims([dict(enumerate(own.ravel())) for own in scores]))
    assert np.mean(nested) <= LEVEL
    assert min(np.mean(one_search), np.mean(all_runs)) > 2 * LEVEL


def test_the_interval_holds_the_mean_in_nineteen_of_twenty_rows() -> None:
    scores = outcomes(400, 3, 3, np.random.default_rng(1))
    held = []
    for own in scores - scores.mean(axis=0):
        found = row(50 + own).score("knn_top1")
        assert found is not None
        low, high = found.interval()
        held.append(low <= 50 <= high)
    assert np.mean(held) == pytest.approx(0.95, abs=3 * np.sqrt(0.95 * 0.05 / 400))


def test_the_split_of_the_variance_is_found_also_where_runs_are_missing() -> None:
    rng = np.random.default_rng(2)
    rows = []
    for means in SEARCH * rng.normal(size=(2000, 3)):
        rows.append({k: 70 + mean + SEED * rng.normal(size=3 - k) for k, mean in enumerate(means)})
    seed, search = nested_deviations(rows) or (0, 0)
    assert (search, seed) == pytest.approx((SEARCH, SEED), rel=0.05)
    assert nested_deviations([{0: [70.0, 71.0]}]) is None
    assert nested_deviations([{0: [70.0], 1: [71.0]}]) is None
    # Of a row with one search nothing is taken, and searches that differ less than luck explains
    # differ by nothing.
    alike = nested_deviations([{0: [70.0, 72.0], 1: [70.0, 72.0]}, {0: [0.0, 100.0]}])
    assert alike == pytest.approx((2**0.5, 0))
