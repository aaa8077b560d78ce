"""What the test between rows promises, by simulation: its power, and how often it claims a
difference that is none.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import NormalDist, fmean

import numpy as np
import pytest
from scipy.stats import studentized_range

from regbench.reports.bundle.bundle import read_bundle
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.notes import power_notes
from regbench.reports.rows.significance import LEVEL, POWER, Best, Tukey, best, images_for
from regbench.reports.tables.leaderboard import leaderboard
from tests.reports.reading import Make, task

LABELS = ("VICReg", "AUH", "SimCLR")


def fitted(
    rows: int, seeds: int, rng: np.random.Generator, ahead: float = 0.0, methods: int | None = None
) -> Tukey:
    """Methods with a spread of 1, of which the first is ahead, above rows that hardly scatter;
    seeds move all rows together.
    """
    scores = rng.normal(size=(rows, seeds))
    scores[rows if methods is None else methods :] *= 0.05
    scores += 3 * rng.normal(size=seeds)
    scores[0] += ahead
    return Tukey([dict(enumerate(row)) for row in scores], methods)


@pytest.mark.parametrize(("rows", "methods", "seeds"), [(6, None, 3), (10, None, 5), (9, 4, 4)])
def test_the_detectable_difference_is_found_in_four_of_five_simulated_tables(
    rows: int, methods: int | None, seeds: int
) -> None:
    rng = np.random.default_rng(0)
    # Of so many seeds the variances are known, as the approximation takes them.
    difference = fitted(rows, 1000, rng, methods=methods).power.detectable(seeds)
    found = []
    for _ in range(1000):
        (pair,) = fitted(rows, seeds, rng, difference, methods).compare(0, [1])
        found.append(pair.p <= LEVEL)
    # the approximation, and three standard errors
    assert np.mean(found) == pytest.approx(POWER, abs=0.05)


def test_a_balanced_table_is_tested_by_the_textbooks_sums_of_squares() -> None:
    """Remainders of rows and seeds as blocks (Tukey 1949), and each pair's own.

    Of rows with three seeds or more.
    """
    spread = [[0.5], [1.0], [2.0], [1.5], [1.0]]
    scores = np.random.default_rng(3).normal(70, spread, (5, 4)).round(2)
    rest = scores - scores.mean(1, keepdims=True) - scores.mean(0) + scores.mean()
    variance = np.sum(rest**2) / (4 * 3)
    own = 5 / 4 * np.sum(rest**2, axis=1) / 3
    test = Tukey([*(dict(enumerate(row)) for row in scores), {0: 70.0, 3: 71.0}, {}])
    assert (test.rows, test.seeds, test.freedom) == (5, 4, 12)
    assert test.deviation == pytest.approx(np.sqrt(variance))
    assert test.means == pytest.approx({**dict(enumerate(scores.mean(1))), 5: 70.5})
    found = test.compare(1, [0, 2, 3, 4, 5, 6])
    assert [pair.pairs for pair in found] == [4, 4, 4, 4, 2, 0]
    for other, pair in zip((0, 2, 3, 4), found, strict=False):
        difference = scores[1].mean() - scores[other].mean()
        deviation = np.sqrt(variance + 3 / 4 * (own[1] + own[other]) / 2)
        assert pair.difference == pytest.approx(difference)
        p = studentized_range.sf(abs(difference) * 2 / deviation, 5, 12)
        assert pair.p == pytest.approx(p, rel=1e-3)
    assert np.isnan([found[4].p, found[5].p, found[5].difference]).all()
    assert found[4].difference == pytest.approx(np.mean(scores[1, [0, 3]]) - 70.5)
    typical = np.sqrt(variance) * np.sqrt(1 + 3 / 4)
    assert test.least == pytest.approx(studentized_range.ppf(0.95, 5, 12) * typical / np.sqrt(3))


def test_a_seed_that_no_counted_row_has_changes_nothing() -> None:
    scores = np.random.default_rng(4).normal(70, 1, (2, 4))
    rows = [dict(enumerate(row)) for row in scores]
    alone, beside = Tukey(rows), Tukey([*rows, {7: 70.0, 8: 71.0}])
    assert (alone.freedom, alone.rows, alone.seeds) == (3, 2, 4)
    assert (beside.freedom, beside.rows, beside.seeds) == (3, 2, 4)
    assert beside.compare(0, [1]) == alone.compare(0, [1])


def test_rows_without_any_luck_differ_or_are_the_same() -> None:
    """The row of fewest seeds that counts has three."""
    counted = ((5, 70.0), (3, 70.0), (4, 71.0), (2, 80.0))
    rows = [dict.fromkeys(range(count), value) for count, value in counted]
    test = Tukey(rows)
    assert (test.rows, test.seeds, test.deviation, test.least) == (3, 3, 0.0, 0.0)
    assert [pair.p for pair in test.compare(0, [1, 2])] == pytest.approx([1.0, 0.0], abs=1e-9)
    nothing = Tukey(rows[3:])
    assert (nothing.rows, nothing.seeds) == (0, 0)
    assert np.isnan([nothing.deviation, nothing.least, nothing.power.detectable(3)]).all()


def test_a_row_says_why_it_is_marked_as_best_or_is_not() -> None:
    p = {1: 0.2, 2: 0.01, 3: 0.05, 4: 0.001, 5: 0.0009, 6: math.nan, 7: math.nan, 9: 0.0501}
    p |= {10: 0.0499, 11: 0.02}
    found = Best(frozenset({0, 1, 2, 7, 9, 11}), 0, p, above=frozenset({11}))
    test = "different from the best: p"
    assert [found.reason(row) for row in range(12)] == [
        "the best mean of this column, supervised rows aside",
        f"not significantly {test} = 0.2 (Tukey's test)",
        f"the same as the best, as printed; significantly {test} = 0.01 (Tukey's test)",
        f"significantly {test} = 0.05 (Tukey's test)",
        f"significantly {test} = 0.001 (Tukey's test)",
        f"significantly {test} < 0.001 (Tukey's test)",
        "not tested against the best: fewer than 3 seeds in common",
        "the same as the best, as printed; not tested against the best: fewer than 3 seeds in "
        "common",
        "",
        f"not significantly {test} = 0.0501 (Tukey's test)",
        f"significantly {test} = 0.0499 (Tukey's test)",
        "significantly better, over shared seeds, than the best: p = 0.02 (Tukey's test)",
    ]
    assert (found.tested, found.untested) == (8, (6, 7))


def test_the_best_is_the_highest_or_the_lowest_mean_and_what_is_printed_alike() -> None:
    rows = [{0: 70.0, 1: 71.0}, {0: 70.004, 1: 71.004}, {0: 60.0}, {}, {0: 60.004, 1: 60.004}]
    for higher, top, alike in ((True, 1, {0, 1}), (False, 2, {2, 4})):
        found = best(Tukey(rows), higher_is_better=higher)
        assert (found.top, set(found.rows), set(found.p)) == (top, alike, {0, 1, 2, 4} - {top})
    assert best(Tukey([{}, {}])) == Best()


def test_a_row_that_is_better_over_shared_seeds_is_as_good_as_the_best_mean() -> None:
    """The best mean lacks the seeds that are hard for all."""
    lacking = {0: 70.0, 1: 70.3, 2: 69.8}
    whole = {0: 71.2, 1: 71.6, 2: 71.0, 3: 60.0, 4: 61.0, 5: 60.5}
    worse = {seed: value - 5 for seed, value in whole.items()}
    for sign in (1, -1):
        scores = [lacking, whole, worse]
        rows = [{seed: sign * value for seed, value in row.items()} for row in scores]
        found = best(Tukey(rows), higher_is_better=sign > 0)
        assert (found.top, set(found.rows), set(found.above)) == (0, {0, 1}, {1})
        assert max(found.p.values()) <= LEVEL


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
            record(label, seed, linear=linear, knn=None if seed else 70.0)
        record("untrained", seed, linear=20.0, knn=None)
    summary = task(runs)
    tukey = summary.tukey("linear_top1")
    # Rows that nothing was trained for do not scatter, and are no measure of how methods do.
    of_methods = Tukey([row.by_unit("linear_top1") for row in summary.methods]).deviation
    assert tukey.power.deviation == of_methods > tukey.deviation
    test, mean = tukey.power, fmean(tukey.means.values())
    (note,) = power_notes(summary)
    assert leaderboard(summary).notes[-1] == note
    # Of one seed there is no least difference, and no test.
    notes = " ".join(leaderboard(summary).notes)
    assert re.search(r"from a difference of \d.\d \(linear top-1\) on", notes)
    assert "Not tested, with fewer than three seeds shared with the best: " in notes
    difference = f"a true difference of {test.detectable(3):.2g} points of linear top-1"
    assert f"with 3 seeds of each of 4 rows, {difference}" in note
    seeds, twice = test.seeds_for(1), test.seeds_for(0.5)
    assert f"1 point takes {seeds} seeds, one of 0.5 points {twice}." in note
    assert f"with {images_for(mean, 1):,} and {images_for(mean, 0.5):,} test images" in note


def test_the_variance_of_hits_is_not_said_of_r2() -> None:
    bundle = read_bundle(Path(__file__).parents[2] / "results" / "latents.tar.xz")
    (note,) = power_notes(summarize(bundle.records)[0])
    assert "points of content R² between methods is found" in note
    assert "binomial" not in note


def test_so_many_images_keep_the_error_of_a_difference_below_half_of_it() -> None:
    """Two methods of 70 %, simulated: of each image they share how hard it is, or nothing at
    all.
    """
    assert images_for(50.0, 1.0) == 20_000
    number = images_for(70.0, 2.0)
    rng = np.random.default_rng(0)
    shared, own = rng.normal(size=(400, 1, number)), rng.normal(size=(400, 2, number))
    errors = []
    for part in (0.0, 0.5):
        hits = math.sqrt(part) * shared + math.sqrt(1 - part) * own < NormalDist().inv_cdf(0.7)
        accuracies = 100 * hits.mean(axis=2)
        errors.append(np.std(accuracies[:, 0] - accuracies[:, 1]))
    # three standard errors of a deviation
    assert errors[0] == pytest.approx(1.0, abs=3 / math.sqrt(800))
    assert errors[1] < 0.9


def test_without_a_spread_nothing_is_promised(runs: Path, record: Make) -> None:
    for label in LABELS:
        record(label)
    assert power_notes(task(runs)) == []
    # How untrained rows scatter says nothing of methods.
    for seed in range(3):
        record("untrained", seed, linear=20.0 + seed % 2)
        record("raw pixels", seed, linear=20.0, cell={"epochs": 0, "baseline": "raw_pixels"})
    assert task(runs).tukey("linear_top1").deviation > 0
    assert power_notes(task(runs)) == []


SPREADS = [np.ones(54), np.linspace(1, 3, 54), np.repeat([1.0, 3.0], [49, 5])]


@pytest.mark.parametrize("spread", SPREADS, ids=["equal", "1 to 3", "few of 3"])
def test_at_most_one_table_in_twenty_of_equal_rows_claims_a_difference(spread: np.ndarray) -> None:
    """54 rows with three seeds, also where some rows scatter three times as much as others."""
    rng = np.random.default_rng(0)
    false = []
    tables = rng.normal(size=(400, 54, 3)) * spread[:, None] + rng.normal(size=(400, 1, 3))
    for scores in tables:
        found = best(Tukey([dict(enumerate(row)) for row in scores]))
        false.append(any(p <= LEVEL for p in found.p.values()))
    assert np.mean(false) <= LEVEL + 2 * np.sqrt(LEVEL * (1 - LEVEL) / 400)


@pytest.mark.parametrize(
    "layout",  # of each row the first and the end of its seeds
    [[(0, 10)] * more + [(0, 3)] * (10 - more) for more in range(3)]
    + [[(0, 3)] * 2 + [(3, 6)] * 8],
)
def test_how_much_a_row_scatters_is_found_also_where_few_rows_have_its_seeds(
    layout: list[tuple[int, int]],
) -> None:
    """What remains of a seed that no other row has is zero, whatever the row's variance is."""
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(600):
        scores = rng.normal(size=(10, 10)) + 3 * rng.normal(size=10)
        places = zip(layout, scores, strict=True)
        test = Tukey([dict(enumerate(row[first:end], first)) for (first, end), row in places])
        (pair,) = test.compare(0, [1])
        squares.append(pair.half**2 * pair.pairs)
    critical = studentized_range.ppf(0.95, 10, test.freedom)
    # The variance of all rows is 1, and eight ninths of the pair's own are added.
    assert np.mean(squares) / critical**2 == pytest.approx(1 + 8 / 9, abs=0.1)
