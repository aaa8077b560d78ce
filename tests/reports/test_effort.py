"""The best that so many trials of a method are expected to hold, in the table and the figure."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from regbench.reports import write_report
from regbench.reports.rows.expected_best import Effort, efforts, expected_best, luck
from regbench.reports.tables.effort import effort_table
from tests.records import chosen, ranked, tuning_choice
from tests.reports.conftest import GIVEN, score
from tests.reports.reading import Drawn, Make, grid, task, texts


def trial(
    record: Make,
    weight: float,
    accuracy: float | None,
    *,
    seed: int = 0,
    final: bool = False,
    **more: Any,
) -> str:
    """Write a trial of a tuning and return its id; it diverged where there is no accuracy."""
    fields = {
        "cell": {"method": {"name": "vicreg", "alignment_weight": float(weight)}}
        | more.pop("cell", {})
    } | more
    if final:
        path = record("VICReg", seed, tuning=accuracy, **fields)
    elif accuracy is None:
        path = record("VICReg", seed, status="diverged", knn=None, linear=None, **fields)
    else:
        path = record(
            "VICReg",
            seed,
            status="tuned",
            scores=(score("knn_top1", accuracy, "tuning"),),
            **fields,
        )
    return path.parent.name


def only(runs: Path) -> Effort:
    (one,) = efforts(task(runs))
    return one


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_the_expectation_is_the_mean_over_all_subsets(n: int) -> None:
    scores = np.random.default_rng(n).normal(size=n).tolist()
    by_hand = [
        fmean(max(chosen) for chosen in itertools.combinations(scores, k)) for k in range(1, n + 1)
    ]
    assert expected_best(scores) == pytest.approx(by_hand)


def test_it_stays_exact_for_thousands_of_trials() -> None:
    """Of the numbers from 0 to n − 1 the best of k is expected at k (n + 1) / (k + 1) − 1."""
    n = 3000
    k = np.arange(1, n + 1)
    assert expected_best(list(range(n))) == pytest.approx(k * (n + 1) / (k + 1) - 1)


def test_the_table_says_what_trials_bring_and_how_optimistic_the_best_is(
    runs: Path, record: Make
) -> None:
    for weight, accuracy in ((1, 60.0), (10, None)):
        trial(record, weight, accuracy)
    best = trial(record, 100, 80.0, final=True)
    for seed in (1, 2):  # which are no trials
        trial(record, 100, 77.0, final=True, seed=seed)
    assert only(runs).expected == pytest.approx((140 / 3, (60 + 80 + 80) / 3, 80))
    table = effort_table(task(runs))
    assert table is not None
    shown = grid(table)["VICReg"]
    assert {
        name: shown[name]
        for name in ("epochs", "trials", "best of 1 (%)", "best of 2 (%)", "of all (%)")
    } == {
        **{"epochs": "3", "trials": "3"},
        **{"best of 1 (%)": "46.67", "best of 2 (%)": "73.33", "of all (%)": "80.00"},
    }
    assert luck(task(runs)) is None
    assert table.notes[-1].startswith("The best is optimistic")
    tuning_choice(runs / "quickstart", chosen("VICReg", ranked(best)))
    assert luck(task(runs)) == pytest.approx(3)
    told = effort_table(task(runs))
    assert told is not None
    assert "score 3.00 points less with other seeds" in told.notes[-1]


@pytest.mark.parametrize("second", [1, 1000])
def test_a_trial_that_diverged_with_one_of_its_seeds_counts_0(
    runs: Path, record: Make, second: int
) -> None:
    """Where no search was repeated, a seed of 1000 is as any other."""
    for seed, accuracy in ((0, 70.0), (second, None)):
        trial(record, 1, accuracy, seed=seed)
        trial(record, 10, 60.0, final=True, seed=seed)
    assert only(runs).expected == (30.0, 60.0)


def test_trials_without_a_common_seed_are_compared_all_the_same(runs: Path, record: Make) -> None:
    trial(record, 1, 60.0)
    trial(record, 10, 70.0, seed=1, final=True)
    assert only(runs).expected == (65.0, 70.0)


def test_a_choice_that_was_unlucky_scores_more_with_other_seeds(runs: Path, record: Make) -> None:
    trial(record, 10, 60.0)
    best = trial(record, 20, 80.0, final=True)
    for seed in (1, 2):
        trial(record, 20, 81.0, final=True, seed=seed)
    tuning_choice(runs / "quickstart", chosen("VICReg", ranked(best)))
    told = effort_table(task(runs))
    assert told is not None
    assert "score 1.00 points more with other seeds" in told.notes[-1]


def test_trials_of_a_search_are_compared_at_the_length_that_most_have(
    runs: Path, record: Make
) -> None:
    trial(record, 10, 75.0, final=True)
    trial(record, 20, 70.0)
    short = [
        trial(record, w, a, cell={"epochs": 1}) for w, a in ((10, 66.0), (20, 65.0), (30, 60.0))
    ]
    (runs / "quickstart" / "sweep.json").write_text('{"cells": []}')
    search = runs / "quickstart" / "search.json"
    search.write_text(json.dumps({"short": dict.fromkeys(short, 3)}))
    one = only(runs)
    assert (one.epochs, one.expected[-1], len(one.expected)) == (1, 66.0, 3)
    table = effort_table(task(runs))
    assert table is not None and grid(table)["VICReg"]["epochs"] == "1"
    search.write_text(json.dumps({"short": dict.fromkeys(short[:2], 3)}))
    (runs / "quickstart" / short[2] / "tuning.json").unlink()
    assert (only(runs).epochs, only(runs).expected) == (3, (72.5, 75.0)), (
        "of equally many the longer ones"
    )
    of_two = effort_table(task(runs))
    assert of_two is not None and [head for head in grid(of_two)["VICReg"] if "best" in head] == [
        "best of 1 (%)"
    ]


def test_rows_of_two_lengths_have_trials_of_their_own(runs: Path, record: Make) -> None:
    """A step of the longer search is as long as trainings of the shorter row, and none of its
    trials.
    """
    for epochs in (3, 6):
        trial(record, 10, 60.0 + epochs, cell={"epochs": epochs})
        trial(record, 20, 70.0 + epochs, final=True, cell={"epochs": epochs})
    short = trial(record, 30, 99.0, cell={"epochs": 3})
    (runs / "quickstart" / "sweep.json").write_text('{"cells": []}')
    (runs / "quickstart" / "search.json").write_text(json.dumps({"short": {short: 6}}))
    found = {(one.row.settings["epochs"], one.epochs): one.expected for one in efforts(task(runs))}
    assert found == {("3", 3): (68.0, 73.0), ("6", 6): (71.0, 76.0)}
    for weight in (40, 50, 60):
        trial(record, weight, 70.0, cell={"epochs": 6})
    table = effort_table(task(runs))
    assert table is not None
    # Of ten pairs four have the 76, of five sets of four all but one, and the best of the others is
    # 70.
    head, *lines = texts(table)
    assert head[1:4] == ["epochs", "epochs", "trials"]
    assert head[4:] == ["best of 1 (%)", "best of 2 (%)", "best of 4 (%)", "of all (%)"]
    assert sorted(lines) == [
        ["VICReg", "3", "3", "2", "68.00", "73.00", "–", "73.00"],
        ["VICReg", "6", "6", "5", "70.40", "72.40", "74.80", "76.00"],
    ]


def test_repeated_searches_are_taken_one_by_one(runs: Path, record: Make) -> None:
    """The second search tries a weight that the first one tried too, and has no more to do with
    it; it tries more.
    """
    choices = []
    for search, found in enumerate((((1, 60.0), (10, 70.0)), ((10, 64.0), (20, 60.0), (30, 80.0)))):
        for weight, accuracy in found[:-1]:
            trial(record, weight, accuracy, seed=1000 * search)
        how = {"hyperparameters": GIVEN | {"sha256": "0", "search": search}}
        for seed in (0, 1):
            (weight, accuracy), number = found[-1], 1000 * search + seed
            name = trial(record, weight, accuracy - 9 * seed, final=True, seed=number, choice=how)
            choices += [name] * (not seed)
    entries = []
    for number, name in enumerate(choices):
        setting = chosen("VICReg", ranked(name)).setting | {"search": number}
        entries.append(chosen("VICReg", ranked(name), setting=setting))
    tuning_choice(runs / "quickstart", *entries)
    # The best of two is one of three pairs' in the second search, and there is none of three in the
    # first.
    assert only(runs).expected == pytest.approx(((65 + 68) / 2, (70 + (80 + 80 + 64) / 3) / 2))


@pytest.mark.parametrize("epochs", [3, 1])
def test_one_half_of_the_images_chooses_and_the_other_scores(
    runs: Path, record: Make, epochs: int
) -> None:
    halves = ((60.0, 70.0), (80.0, 66.0), (70.0, 75.0))
    for weight, (even, odd) in enumerate(halves):
        of_trial = replace(score("knn_top1", (even + odd) / 2, "tuning"), even=even)
        status = "done" if not weight else "tuned"
        record(
            cell={"method": {"name": "vicreg", "alignment_weight": 1.0 + weight}},
            status=status,
            scores=(of_trial,),
        )
    record("untrained", tuning=10.0)  # without halves, which takes no part
    by_hand = []
    for k in (1, 2, 3):
        bests = []
        for tried in itertools.combinations(halves, k):
            bests += [max(tried)[1], max(tried, key=lambda trial: trial[1])[0]]
        by_hand.append(fmean(bests))
    assert only(runs).expected == pytest.approx(by_hand)
    table = effort_table(task(runs))
    assert table is not None
    assert (
        "Every second image of the split chooses the best and the others score it"
        in table.notes[-1]
    )
    # A record without halves, as they were, and be it of a step of the search: all are then taken
    # on all images.
    whole = trial(record, 9, 72.6, cell={"epochs": epochs})
    (runs / "quickstart" / "sweep.json").write_text('{"cells": []}')
    (runs / "quickstart" / "search.json").write_text(
        json.dumps({"short": {whole: 3} if epochs < 3 else {}})
    )
    assert only(runs).expected[-1] == 73.0


def test_one_trial_has_no_such_table(runs: Path, record: Make) -> None:
    trial(record, 100, 80.0, final=True)
    assert effort_table(task(runs)) is None


def test_files_and_page(runs: Path, record: Make, tmp_path: Path) -> None:
    for weight, accuracy in ((1, 60.0), (10, 70.0)):
        trial(record, weight, accuracy)
    trial(record, 100, 80.0, final=True)
    report = write_report(runs, tmp_path / "report")
    assert "best of 2" in (tmp_path / "report" / "effort.md").read_text()
    drawn = Drawn(report.page.read_text(), "Score against tuning budget")
    assert drawn.markers("VICReg") == [[1, 70], [2, 76.7], [3, 80]]
