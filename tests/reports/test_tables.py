"""Rows and tables, from the files of runs to the text in a column."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from regbench.reports import write_report
from regbench.reports.rows.tasks import compare_over, over_tasks
from regbench.reports.tables import details
from regbench.reports.tables.details import significance_frame, significance_table
from regbench.reports.tables.leaderboard import leaderboard
from regbench.reports.tables.over_tasks import over_tasks_table
from regbench.reports.tables.units import Unit, energy_unit, memory_unit, time_unit
from tests.reports.conftest import dataset, score, settings
from tests.reports.reading import Make, grid, task, tasks, texts
from tests.there import there

KNN, LINEAR = "kNN top-1 (%)", "linear top-1 (%)"
DIVERGED: dict[str, Any] = {"status": "diverged", "knn": None, "linear": None}


def weight(value: float, name: str = "vicreg") -> dict[str, Any]:
    return {"method": {"name": name, "alignment_weight": value}}


def test_golden_significance(runs: Path, record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the means of rows −3 0 3, −2 0 2 and −1 0 1 remain; without those of seeds −1 0 1, 0
    and 1 0 −1.

    The variance of all is 4 / 4, those of rows 3 / 2, 0 and 3 / 2, and half of a pair's mean of
    these is added.
    """
    for seed in range(3):
        record("AUH", seed, linear=80.0 + 3 * seed, knn=None)
        record("SimCLR", seed, linear=76.0 + 2 * seed, knn=None)
        record("VICReg", seed, linear=70.0 + seed, knn=None)
    variances = [1 + 0.75 / 2, 1 + 1.5 / 2, 1 + 0.75 / 2]
    # four degrees of freedom, three seeds
    ranges = np.array([5, 12, 7]) / np.sqrt(np.array(variances) / 3)
    p = stats.studentized_range.sf(ranges, 3, 4)
    frame = significance_frame(task(runs))
    assert frame.drop(columns=["p"]).to_numpy().tolist() == [
        ["linear_top1", "AUH", "SimCLR", 3, 5.0],
        ["linear_top1", "AUH", "VICReg", 3, 12.0],
        ["linear_top1", "SimCLR", "VICReg", 3, 7.0],
    ]
    assert frame["p"].tolist() == pytest.approx(p, rel=1e-3)
    first, second, third = ("<0.001" if one < 0.001 else f"{one:.3f}" for one in p)
    assert texts(significance_table(task(runs))) == [
        ["", "1", "2", "3"],
        ["1. AUH", "–", first, second],
        ["2. SimCLR", first, "–", third],
        ["3. VICReg", second, third, "–"],
    ]
    monkeypatch.setattr(details, "SIGNIFICANCE_ROWS", 2)
    first_two = significance_table(task(runs))
    assert texts(first_two) == [["", "1", "2"], ["1. AUH", "–", first], ["2. SimCLR", first, "–"]]
    assert "The first 2 of 3 rows; all are in the CSV file." in first_two.notes


@pytest.mark.parametrize(("lost", "bold"), [(0.99, True), (1.01, False)])
def test_bold_is_by_the_difference_that_the_notes_state(
    runs: Path, record: Make, lost: float, bold: bool
) -> None:
    remainder = np.array([[1, -1, 0], [-1, 0, 1], [0, 1, -1]])  # sums of rows and columns are 0
    least = stats.studentized_range.ppf(0.95, 3, 4) * math.sqrt(1.5 * np.sum(remainder**2) / 4 / 3)
    means = [80.0, 80.0 - lost * least, 60.0]
    for label, mean, luck in zip(("AUH", "SimCLR", "VICReg"), means, remainder, strict=True):
        for seed in range(3):
            record(label, seed, linear=mean + luck[seed] + 3 * seed)
    table = leaderboard(task(runs))
    assert [line.entries[2].bold for line in table.lines] == [True, bold, False]
    stated = f", {least:.2g} (linear top-1) on, over three seeds."
    assert any(note.endswith(stated) for note in table.notes)


def test_seeds_that_only_some_rows_have_count_for_these(runs: Path, record: Make) -> None:
    """Kramer's form: the spread is of all rows with three seeds or more, and each pair has the
    seeds that both have.
    """
    for seed, luck in enumerate((0.0, 1.0, -1.0, 0.5, -0.5)):
        record("AUH", seed, linear=70.0 + luck)
        record("SimCLR", seed, linear=69.0 + luck * (-1) ** seed)
        if seed < 3:
            record("VICReg", seed, linear=68.0 + 2 * luck)
    for seed in range(2):
        record("DCL", seed, linear=71.5 - 4 * seed)
    whole = significance_frame(task(runs))
    assert list(dict.fromkeys(whole["score"])) == ["linear_top1", "knn_top1"]
    frame = whole.query("score == 'linear_top1'").set_index(["one", "other"])
    assert frame["pairs"].to_dict() == {
        ("AUH", "DCL"): 2,
        ("AUH", "SimCLR"): 5,
        ("AUH", "VICReg"): 3,
        ("DCL", "SimCLR"): 2,
        ("DCL", "VICReg"): 2,
        ("SimCLR", "VICReg"): 3,
    }
    rows = [0] * 5 + [1] * 5 + [2] * 3
    seeds = [*range(5), *range(5), *range(3)]
    lucks = np.array([0.0, 1.0, -1.0, 0.5, -0.5])
    values = np.concatenate([70 + lucks, 69 + lucks * (-1.0) ** np.arange(5), 68 + 2 * lucks[:3]])
    design = np.concatenate([np.eye(3)[rows], np.eye(5)[seeds][:, 1:]], axis=1)
    given, *_ = np.linalg.lstsq(design, values)
    freedom = len(values) - design.shape[1]
    squares = (values - design @ given) ** 2
    # Of n seeds (n - 1) / n of the variance remain, and of a seed of k rows (k - 1) / k.
    left = (4 / 5 * (3 * 2 / 3 + 2 / 2), 4 / 5 * (3 * 2 / 3 + 2 / 2), 2 / 3 * 3 * 2 / 3)
    own = dict(zip(("AUH", "SimCLR", "VICReg"), np.bincount(rows, squares) / left, strict=True))
    of_pair = np.array([(own.get(one, 0) + own.get(other, 0)) / 2 for one, other in frame.index])
    variance = np.sum(squares) / freedom + of_pair / 2
    apart = abs(frame["difference"]) * np.sqrt(frame["pairs"] / variance)
    p = np.where(frame["pairs"] < 3, np.nan, stats.studentized_range.sf(apart, 3, freedom))
    assert frame["p"].tolist() == pytest.approx(p, rel=1e-3, nan_ok=True)
    of_three_seeds = significance_table(task(runs))
    assert list(grid(of_three_seeds)) == ["1. AUH", "2. SimCLR", "3. VICReg"]
    assert of_three_seeds.notes[-1] == "Left out: 1 row with fewer than 3 seeds."
    assert [line.entries[2].why for line in leaderboard(task(runs)).lines] == [
        "the best mean of this column, supervised rows aside",
        "not tested against the best: fewer than 3 seeds in common",
        f"not significantly different from the best: p = {p[1]:.2g} (Tukey's test)",
        f"not significantly different from the best: p = {p[2]:.2g} (Tukey's test)",
    ]


@pytest.mark.parametrize(
    ("choose", "first", "unit", "other"),
    [
        (time_unit, 600, "min", "s"),
        (time_unit, 3 * 3600, "h", "min"),
        (memory_unit, 4 * 2**30, "GiB", "MiB"),
        (energy_unit, 10 * 3.6e6, "kWh", "Wh"),
    ],
)
def test_a_unit_is_taken_from_a_number_on(
    choose: Callable[[float], Unit], first: float, unit: str, other: str
) -> None:
    assert (choose(first).name, choose(0.999 * first).name) == (unit, other)


def test_of_equally_good_configurations_the_first_stands(runs: Path, record: Make) -> None:
    found = {}
    for number in range(3):
        linear = 61.0 + number
        found[record("AUH", tuning=65.0, linear=linear, cell=weight(1.0 + number))] = linear
    # Cells are read in the order of their folders.
    assert f"{found[min(found)]:.2f}" in grid(leaderboard(task(runs)))["AUH"][LINEAR]


def test_a_configuration_that_diverged_with_a_seed_is_not_chosen(runs: Path, record: Make) -> None:
    for seed in range(3):
        record("AUH", seed, tuning=60.0, linear=70.0, cell=weight(1.0))
    record("AUH", 0, tuning=65.0, linear=75.0, cell=weight(2.0))
    record("AUH", 1, status="diverged", knn=None, linear=None, cell=weight(2.0))
    row = grid(leaderboard(task(runs)))["AUH"]
    assert ("70.00" in row[LINEAR], row["n"]) == (True, "3")


def test_where_all_diverged_with_a_seed_the_best_of_others_stands(runs: Path, record: Make) -> None:
    for value, tuning in ((1.0, 60.0), (2.0, 65.0)):
        record("AUH", 0, tuning=tuning, linear=tuning, cell=weight(value))
        record("AUH", 1, status="diverged", knn=None, linear=None, cell=weight(value))
    assert "**65.00" in grid(leaderboard(task(runs)))["AUH †"][LINEAR]


def test_costs_of_diverged_runs_are_in_no_mean(runs: Path, record: Make) -> None:
    record("AUH", 0, cost={"train_s": 600.0})
    record("AUH", 1, status="diverged", knn=None, linear=None, cost={"train_s": 2.0})
    (row,) = task(runs).rows
    cost = there(row.cost("train_s"))
    assert (cost.mean, cost.n) == (600.0, 1)


def test_how_a_run_was_evaluated_beside_is_no_other_configuration(runs: Path, record: Make) -> None:
    """Curves while training, further protocols and the batch of the evaluation change no score."""
    evaluation = settings("AUH")["evaluation"]
    beside = [{"while_training": ["knn"]}, {"protocols": ["knn"]}, {"batch_size": 99}]
    for seed, change in enumerate(beside):
        record("AUH", seed, tuning=60.0 + seed, cell={"evaluation": evaluation | change})
    assert grid(leaderboard(task(runs)))["AUH"]["n"] == "3"
    record("AUH", 3, cell={"evaluation": evaluation | {"precision": "bf16"}})
    assert len(tasks(runs)) == 2


@pytest.mark.parametrize("best", [1.0, 2.0])
def test_linear_probing_alone_may_choose(runs: Path, record: Make, best: float) -> None:
    for value in (1.0, 2.0):
        probing = 60.0 + 5 * (value == best)
        found = [score("linear_top1", probing, "tuning"), score("linear_top1", probing)]
        record("AUH", scores=(*found, score("knn_top1", 70.0)), cell=weight(value))
    table = leaderboard(task(runs))
    assert grid(table)["AUH"][LINEAR] == "**65.00**"
    assert any("chosen by linear top-1 on the tuning split" in note for note in table.notes)


def test_supervised_rows_of_unlike_trainings_stand_apart(runs: Path, record: Make) -> None:
    """The share of the way is to the one that was trained as long as the methods."""
    record("AUH", linear=80.0)
    record("untrained", linear=50.0)
    for epochs, linear in ((1, 95.0), (3, 90.0)):
        cell = {"baseline": "supervised", "epochs": epochs}
        record("supervised", linear=linear, cell=cell)
    summary = task(runs)
    assert [row.name for row in summary.rows if row.label == "supervised"] == [
        "supervised, epochs=1",
        "supervised, epochs=3",
    ]
    assert summary.share(summary.methods[0], "linear_top1") == pytest.approx(75.0)


def test_a_task_that_shares_no_method_takes_no_comparison_from_the_others() -> None:
    scores = {label: {0: 70.0 + place} for place, label in enumerate("abc")}
    other = {label: {0: 70.0} for label in "pqr"}
    unlike = {label: {place: 70.0} for place, label in enumerate("abc")}  # no seed in common
    found = there(compare_over({"one": scores, "two": other, "three": scores, "four": unlike}))
    assert found.tasks == ["one", "three"]
    assert [one.label for one in found.standings] == ["c", "b", "a"]
    notes = over_tasks_table(found).notes
    assert "Tasks left out, for sharing too few methods or seeds with these: two; four." in notes


def test_a_task_of_few_methods_takes_none_from_the_others() -> None:
    """As one that was stopped: two tasks compare seven methods, and all three would three."""
    scores = {label: {0: 70.0 + place} for place, label in enumerate("abcdefg")}
    stopped = {label: scores[label] for label in "abc"}
    found = there(compare_over({"one": scores, "two": stopped, "three": scores}))
    assert [one.label for one in found.standings] == list("gfedcba")
    assert (found.tasks, found.tasks_left_out) == (["one", "three"], ["two"])


def test_a_method_alone_in_its_setting_is_said_to_be_left_out(runs: Path, record: Make) -> None:
    for name in ("one", "two"):
        for place, label in enumerate(("AUH", "VICReg", "RBF kernel")):
            record(label, linear=70.0 + place, cell={"dataset": dataset(name)})
        record("SimCLR", cell={"dataset": dataset(name), "embedding_dim": 64})
    found = there(over_tasks(tasks(runs)))
    assert (len(found.standings), found.left_out) == (3, ["SimCLR"])


def test_style_that_a_row_keeps_is_nothing_good(runs: Path, record: Make) -> None:
    """Records of the past say that it is."""
    for label, kept in (("AUH", 10.0), ("VICReg", 60.0)):
        for seed in range(3):
            value = kept + seed + (label == "AUH") * (seed == 1)
            record(label, seed, scores=(score("style_r2_embedding", value),))
    summary = task(runs)
    first = summary.rows[0]
    assert (first.label, summary.best("style_r2_embedding").top) == ("AUH", 0)


def test_the_lowest_error_has_the_first_rank(runs: Path, record: Make) -> None:
    for name in ("one", "two"):
        for place, label in enumerate(("AUH", "VICReg", "RBF kernel")):
            error = dataclasses.replace(score("error", 10.0 + place), higher_is_better=False)
            record(label, scores=(error,), cell={"dataset": dataset(name)})
    found = there(over_tasks(tasks(runs)))
    assert [(one.label, one.mean_rank) for one in found.standings] == [
        *(("AUH", 1.0), ("VICReg", 2.0), ("RBF kernel", 3.0)),
    ]


def test_methods_are_ranked_by_their_means_over_what_all_have() -> None:
    scores = np.array([80.0, 79.0, 70.0]) + np.random.default_rng(0).normal(size=(5, 3, 3))
    names = ("one", "two", "three", "four", "five")
    made: dict[str, dict[str, dict[int, float]]] = {}
    for i, name in enumerate(names):  # scores are of (task, seed, method)
        made[name] = {label: dict(enumerate(scores[i, :, j])) for j, label in enumerate("abc")}
    made["one"]["d"] = {0: 99.0}
    made["one"]["a"][3] = 99.0  # only seeds that all methods have count
    found = there(compare_over(made))
    assert (found.tasks, found.left_out) == (list(names), ["d"])
    means = scores.mean(axis=1)
    ranks = (means[:, :, None] < means[:, None, :]).sum(axis=2) + 1
    assert [one.label for one in found.standings] == ["a", "b", "c"]
    assert [one.mean_rank for one in found.standings] == pytest.approx(ranks.mean(axis=0))
    assert found.standings[2].shortfalls == pytest.approx(np.sort(means.max(axis=1) - means[:, 2]))
    table = over_tasks_table(found)
    assert table.notes[0].startswith("N = 5 tasks: one; two; three; four; five.")
    assert table.notes[-1] == "Left out, for not every task has them: d."


def test_a_method_that_diverged_everywhere_in_a_task_is_left_out() -> None:
    scores = {label: {0: 70.0 + place, 1: 71.0} for place, label in enumerate("abcd")}
    of_two = {"a": {0: 72.0}, "d": {0: 90.0}}  # such a task compares nothing
    three = {**scores, "d": {}}
    made = {"one": scores, "two": scores, "three": three, "four": of_two}
    found = there(compare_over(made))
    assert (found.tasks, found.left_out) == (["one", "two", "three"], ["d"])


def test_scores_that_differ_in_their_last_bits_rank_alike() -> None:
    scores = {"a": {0: 32.74}, "b": {0: 32.74 + 1e-14}, "c": {0: 31.74}}
    found = there(compare_over({"one": scores, "two": scores}))
    assert [one.mean_rank for one in found.standings] == [1.5, 1.5, 3.0]
    within_1_point = [line.entries[2].text for line in over_tasks_table(found).lines]
    assert within_1_point == ["100", "100", "100"]


def test_one_task_or_two_methods_are_no_comparison() -> None:
    scores = {label: {0: 70.0} for label in "abc"}
    of_two = {"a": {0: 1.0}, "b": {0: 2.0}}
    other_seeds = {"a": {1: 70.0}, "b": {1: 70.0}, "c": {2: 70.0}}
    assert compare_over({"one": scores}) is None
    assert compare_over({"one": of_two, "two": of_two}) is None
    assert compare_over({"one": scores, "two": other_seeds}) is None


def test_where_labels_do_no_better_than_a_trivial_row_is_no_way_to_go(
    runs: Path, record: Make
) -> None:
    record("untrained", linear=50.0)
    record("raw pixels", linear=61.0, cell={"epochs": 0, "baseline": "raw_pixels"})
    record("supervised", linear=61.04, cell={"baseline": "supervised"})  # as printed: 0.0 away
    record("VICReg", linear=76.0)
    one = task(runs)
    assert one.share(one.rows[0], "linear_top1") is None
    found = one.scores["linear_top1"]
    one.scores["linear_top1"] = dataclasses.replace(found, higher_is_better=False)
    lowest = one.best_trivial("linear_top1")
    assert lowest is not None and lowest.label == "untrained"
    assert one.share(one.rows[0], "linear_top1") is None  # 61 is no better than 50


@pytest.mark.parametrize(
    ("knn", "linear", "narrow"),
    [
        (61.0, 45.9, []),
        (60.9, 45.9, ["29.9 points of kNN top-1 (HOG)"]),
        (
            50.0,
            30.0,
            ["19.0 points of kNN top-1 (HOG)", "14.1 points of linear top-1 (random patches)"],
        ),
    ],
)
def test_a_task_on_which_labels_lead_the_best_untrained_row_by_little_says_so_first(
    knn: float, linear: float, narrow: list[str], runs: Path, record: Make
) -> None:
    record("HOG", knn=31.0, linear=10.0, cell={"epochs": 0, "baseline": "hog"})
    patches = {"epochs": 0, "baseline": "random_patches"}
    record("random patches", knn=20.0, linear=15.9, cell=patches)
    record("supervised", knn=knn, linear=linear, cell={"baseline": "supervised"})
    record("VICReg", knn=40.0, linear=40.0)
    table = leaderboard(task(runs))
    expected = ""
    if narrow:
        expected = (
            f"This task measures little: labels lead the best untrained row by "
            f"{' and '.join(narrow)}; a comparison of methods needs 30 by each."
        )
    assert table.warning == expected
    assert not any("may be too low" in note for note in table.notes)


def test_labels_worse_than_an_untrained_row_are_the_end_of_no_way(runs: Path, record: Make) -> None:
    record("untrained", knn=50.0, linear=50.0)
    # A stranger's cell holds anything.
    record("raw pixels", knn=61.0, linear=40.0, cell={"epochs": 0, "baseline": ["raw_pixels"]})
    record("supervised", knn=51.0, linear=90.0, cell={"baseline": "supervised"})
    record("VICReg", knn=76.0, linear=76.0)
    table = leaderboard(task(runs))
    way = next(note for note in table.notes if note.startswith("The share of the way"))
    assert way.endswith("by linear top-1 untrained (40.0 away).")
    assert "by -10.0 points of kNN top-1" in table.warning


def test_of_a_score_of_which_less_is_better_labels_lead_by_less(runs: Path, record: Make) -> None:
    record("HOG", knn=80.0, linear=80.0, cell={"epochs": 0, "baseline": "hog"})
    record("supervised", knn=10.0, linear=10.0, cell={"baseline": "supervised"})
    one = task(runs)
    for name, found in one.scores.items():
        one.scores[name] = dataclasses.replace(found, higher_is_better=False)
    assert leaderboard(one).warning == ""


def test_rows_that_are_no_methods_are_in_no_figure_of_training(runs: Path, record: Make) -> None:
    measured = dataclasses.asdict(score("knn_top1", 50.0, "tuning"))
    epochs = [{"epoch": e, "loss": 1.0, "epoch_s": 1.0, "scores": [measured]} for e in (1, 2)]
    record("untrained", linear=50.0)
    for label, baseline in (("supervised", {"baseline": "supervised"}), ("VICReg", {})):
        record(label, cell=baseline, history=epochs)
    written = write_report(runs, runs / "report")
    assert "supervised" in written.leaderboard
    _, _, figures = written.page.read_text().partition("<h3>Accuracy and its cost</h3>")
    drawn = re.findall(r'<g class="[^>]*><title>([^<:]*)', figures)
    assert "VICReg" in drawn
    assert "supervised" not in drawn
