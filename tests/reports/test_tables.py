"""Rows and tables, from the files of runs to the text in a column."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from regbench.benchmark.settings.sweep import load_run
from regbench.reports import write_report
from regbench.reports.rows.tasks import compare_over
from regbench.reports.tables import details
from regbench.reports.tables.details import (
    significance_frame,
    significance_table,
)
from regbench.reports.tables.hyperparameters import hyperparameters_table
from regbench.reports.tables.leaderboard import leaderboard
from regbench.reports.tables.over_tasks import over_tasks_table
from regbench.reports.tables.units import Unit, energy_unit, memory_unit, time_unit
from tests.records import attempted, chosen, plan, ranked, search, tuning_choice
from tests.reports.conftest import METHODS, dataset, score, settings
from tests.reports.reading import Make, grid, task, tasks, texts

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
    ranges = np.array([5, 12, 7]) / np.sqrt(
        np.array(variances) / 3
    )  # four degrees of freedom, three seeds
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
    own = dict(
        zip(
            ("AUH", "SimCLR", "VICReg"), np.bincount(rows, squares) / (4, 4, 2) * 3 / 2, strict=True
        )
    )
    of_pair = np.array([(own.get(one, 0) + own.get(other, 0)) / 2 for one, other in frame.index])
    apart = abs(frame["difference"]) * np.sqrt(
        frame["pairs"] / (np.sum(squares) / freedom + of_pair / 2)
    )
    p = np.where(frame["pairs"] < 3, np.nan, stats.studentized_range.sf(apart, 3, freedom))
    assert frame["p"].tolist() == pytest.approx(p, rel=1e-3, nan_ok=True)
    of_three_seeds = significance_table(task(runs))
    assert list(grid(of_three_seeds)) == ["1. AUH", "2. SimCLR", "3. VICReg"]
    assert of_three_seeds.notes[-1] == "Left out: 1 rows with fewer than 3 seeds."
    assert [line.entries[2].why for line in leaderboard(task(runs)).lines] == [
        "the best mean of this column",
        "not tested against the best: fewer than 3 seeds in common",
        f"not significantly different from the best: p = {p[1]:.2g} (Tukey's test)",
        f"not significantly different from the best: p = {p[2]:.2g} (Tukey's test)",
    ]


def test_with_two_shared_seeds_nothing_is_said(runs: Path, record: Make) -> None:
    for seed in range(3):
        record("AUH", seed, linear=75.0)
        record("VICReg", seed + 1, linear=74.99)
    table = leaderboard(task(runs))
    assert [line.label for line in table.lines if line.entries[2].bold] == ["AUH"]
    assert any("Differences were not tested" in note for note in table.notes)
    for seed in range(3):
        record("SimCLR", seed, linear=70.0 + 0.1 * seed)
    notes = leaderboard(task(runs)).notes
    assert "Not tested, with fewer than three seeds shared with the best: VICReg." in notes
    assert grid(significance_table(task(runs)))["1. AUH"]["2"] == "–"


@pytest.mark.parametrize("odd", ["AUH", "SimCLR", "VICReg"])
def test_a_score_is_called_what_most_records_call_it(runs: Path, record: Make, odd: str) -> None:
    for label in ("AUH", "SimCLR", "VICReg"):
        called = dataclasses.replace(
            score("knn_top1", 70.0), title="mine" if label == odd else "kNN top-1"
        )
        record(label, scores=(called,))
    assert texts(leaderboard(task(runs)))[0][1] == KNN


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


def test_without_linear_probing_knn_leads(runs: Path, record: Make) -> None:
    """Also where it was done for a configuration that was not chosen."""
    for label, knn in (("AUH", 70.0), ("VICReg", 71.0), ("untrained", 60.0)):
        record(label, knn=knn, linear=None, tuning=50.0)
    record("AUH", linear=90.0, tuning=40.0, cell=weight(1.0, "auh"))
    table = grid(leaderboard(task(runs)))
    assert list(table) == ["VICReg", "AUH", "untrained"]
    assert table["AUH"]["kNN − untrained"] == "+10.00"
    assert LINEAR not in table["AUH"]


def test_measures_without_a_best_order_nothing(runs: Path, record: Make) -> None:
    record("VICReg", scores=(score("rankme", 5.0, unit=""),))
    assert task(runs).headline is None
    assert "rankme" not in " ".join(texts(leaderboard(task(runs)))[0])


def test_of_equally_good_configurations_the_first_stands_for_the_method(
    runs: Path, record: Make
) -> None:
    found = {}
    for number in range(3):
        linear = 61.0 + number
        found[record("AUH", tuning=65.0, linear=linear, cell=weight(1.0 + number))] = linear
    # Cells are read in the order of their folders.
    assert f"{found[min(found)]:.2f}" in grid(leaderboard(task(runs)))["AUH"][LINEAR]


def test_a_seed_that_is_only_tuned_is_not_in_the_row(runs: Path, record: Make) -> None:
    record("VICReg", 0, tuning=65.0)
    record("VICReg", 1, tuning=66.0, status="tuned", knn=None, linear=None)
    assert grid(leaderboard(task(runs)))["VICReg"]["n"] == "1"


def test_the_tuning_split_chooses_not_the_test_split(runs: Path, record: Make) -> None:
    for seed in (0, 1):
        record("VICReg", seed, cell=weight(1.0), tuning=60.0, linear=99.0)
        record("VICReg", seed, cell=weight(2.0), tuning=65.0 + seed, linear=75.0 + seed)
    record("AUH", cell=weight(1.0, "auh"), tuning=60.0)
    record("AUH", cell=weight(2.0, "auh"))  # without a score to choose by
    table = leaderboard(task(runs))
    assert [(row[0], row[2][:9]) for row in texts(table)[1:]] == [("VICReg", "**75.50 ±")]
    assert any("AUH (2)" in note for note in table.notes)
    assert (
        "Equal tuning budget: 2 configurations for each row, chosen by kNN top-1 on the tuning "
        "split." in table.notes
    )
    shown = {(row[0], row[4], row[-1]) for row in texts(hyperparameters_table(task(runs)))[1:]}
    assert {
        ("VICReg", "alignment_weight=1.0", "no"),
        ("VICReg", "alignment_weight=2.0", "yes"),
    } <= shown


def test_the_mean_over_several_evaluations_chooses_where_there_is_one(
    runs: Path, record: Make
) -> None:
    for value, knn, mean in ((1.0, 65.0, 60.0), (2.0, 60.0, 62.0)):
        tuning = (score("knn_top1", knn, "tuning"), score("selection_top1", mean, "tuning"))
        record("VICReg", cell=weight(value), scores=(*tuning, score("linear_top1", 70.0 + value)))
    assert grid(leaderboard(task(runs)))["VICReg"][LINEAR] == "**72.00**"


def test_a_choice_is_of_the_tasks_of_its_sweep_and_of_records_that_name_it(
    runs: Path, record: Make
) -> None:
    for sweep in ("fashion_mnist", "stl10"):
        record("VICReg", sweep=sweep, cell={"dataset": dataset(sweep)})
    digest = tuning_choice(runs / "stl10", chosen("VICReg", ranked("a" * 12, 61.23)))
    origin = {"selected_on": "tuning", "record": "stl10/tuning_choice.json", "sha256": digest}
    record(
        "VICReg",
        sweep="again",
        cell={"dataset": dataset("cifar10")},
        choice={"hyperparameters": origin},
    )
    shown = {
        each.name: any("chosen by" in note for note in hyperparameters_table(each).notes)
        for each in tasks(runs)
    }
    assert shown == {"fashion_mnist": False, "stl10": True, "again": True}


def test_sweeps_and_tasks(runs: Path, record: Make) -> None:
    record("VICReg", sweep="quickstart")
    record("VICReg", sweep="mine")  # the same cell
    record("quadratic", sweep="mine")
    record("AUH", sweep="mine", cell={"dataset": dataset("stl10")})
    first, second = tasks(runs)
    names = {s.name: [row.label for row in s.rows] for s in (first, second)}
    assert names == {"mine": ["AUH"], "mine + quickstart": ["VICReg", "quadratic"]}
    assert len(second.records) == 2
    other = settings("VICReg")["evaluation"] | {"knn": {"k": 200}}
    for more in ({}, {"evaluation": other}):
        record("VICReg", sweep="more", cell={"dataset": dataset("cifar10"), **more})
    assert {s.name for s in tasks(runs)} > {
        "more: cifar10, resnet_tiny",
        "more: cifar10, resnet_tiny (another evaluation or image size)",
    }


@pytest.mark.parametrize("final", ["first", "second"])
def test_of_a_cell_that_two_sweeps_share_the_final_scores_stay(
    runs: Path, record: Make, final: str
) -> None:
    for sweep in ("first", "second"):
        record(
            sweep=sweep,
            **(
                {"linear": 80.0}
                if sweep == final
                else {**DIVERGED, "status": "tuned", "tuning": 60.0}
            ),
        )
    assert [row[:3] for row in texts(leaderboard(task(runs)))[1:]] == [
        ["VICReg", "**70.00**", "**80.00**"]
    ]


def test_a_cell_that_diverged_in_one_sweep_is_not_taken_as_tuned_in_another(
    runs: Path, record: Make
) -> None:
    record(sweep="first", **DIVERGED)
    record(sweep="second", **{**DIVERGED, "status": "tuned", "tuning": 60.0})
    assert list(grid(leaderboard(task(runs)))) == ["VICReg †"]


def test_two_settings_of_one_short_name_have_columns_of_their_own(runs: Path, record: Make) -> None:
    for first, second in itertools.product(("0.0", "0.5"), repeat=2):
        overrides = [
            f"augmentation.views.view{number}.blur_p={p}" for number, p in ((1, first), (2, second))
        ]
        augmentation = load_run(["augmentation=small_color", *overrides])[0].plain()["augmentation"]
        record("VICReg", cell={"augmentation": augmentation})
    head, *rows = texts(leaderboard(task(runs)))
    columns = [head.index(f"augmentation.views.view{number}.blur_p") for number in (1, 2)]
    assert {tuple(row[column] for column in columns) for row in rows} == set(
        itertools.product(("0.0", "0.5"), repeat=2)
    )


def test_a_planned_cell_that_another_sweep_has_finished_is_not_missing(
    runs: Path, record: Make
) -> None:
    """It is not in the row either: other hyperparameters were chosen."""
    record("VICReg", 0, tuning=72.0, cell=weight(10.0))
    elsewhere = record("VICReg", 1, tuning=60.0, cell=weight(20.0), sweep="other").parent.name
    tuned = record(
        "AUH", status="tuned", knn=None, linear=None, tuning=60.0, sweep="other"
    ).parent.name
    cells = ((elsewhere, "VICReg", 1), (tuned, "AUH", 0))
    plan(
        runs / "quickstart",
        *({"id": name, "label": label, "seed": seed} for name, label, seed in cells),
    )
    (row,) = grid(leaderboard(task(runs))).values()
    assert row["n"] == "1"


@pytest.mark.parametrize(
    ("key", "head"), [("embedding_dim", "q"), ("batch_size", "batch"), ("epochs", "epochs")]
)
def test_a_missing_cell_counts_in_the_row_that_its_plan_fits_alone(
    runs: Path, record: Make, key: str, head: str
) -> None:
    for size in (2, 4):
        record("VICReg", cell={key: size})
    # Each plan states the epochs; one that does not state the size may be of any row.
    sizes: tuple[dict[str, int], ...] = (
        {key: 4},
        {key: 8},
        {"epochs": 4} if key == "epochs" else {},
    )
    cells = [
        {"id": f"{i:012x}", "label": "VICReg", "seed": 1, **size} for i, size in enumerate(sizes)
    ]
    plan(runs / "quickstart", *cells)
    heads, *rows = texts(leaderboard(task(runs)))
    shown = {row[heads.index(head)]: row[heads.index("n")] for row in rows}
    assert shown == {"2": "1", "4": "1 of 2", "8": "0 of 1"}


def test_where_nothing_has_final_scores_what_is_planned_has_rows(runs: Path, record: Make) -> None:
    for q in (512, 1024):
        record(
            "VICReg", status="tuned", knn=None, linear=None, tuning=60.0, cell={"embedding_dim": q}
        )
    plan(runs / "quickstart", {"id": "a" * 12, "label": "SimCLR", "seed": 0, "embedding_dim": 512})
    head, *rows = texts(leaderboard(task(runs)))
    assert (head[:2], [row[:2] for row in rows]) == (["method", "q"], [["SimCLR", "512"]])


def test_a_cell_whose_plan_fits_two_tasks_is_in_neither(runs: Path, record: Make) -> None:
    evaluation = settings("VICReg")["evaluation"]
    for k in (5, 200):
        record("VICReg", cell={"evaluation": evaluation | {"knn": {"k": k}}})
    plan(runs / "quickstart", {"id": "a" * 12, "label": "SimCLR", "seed": 0})
    attempted(runs / "quickstart" / ("a" * 12), "failed", "no space")
    assert [list(grid(leaderboard(each))) for each in tasks(runs)] == [["VICReg"], ["VICReg"]]
    assert all(
        "SimCLR, 1 cell (no space)" in " ".join(leaderboard(each).notes) for each in tasks(runs)
    )


def test_a_planned_cell_stands_in_the_task_of_its_sweep(runs: Path, record: Make) -> None:
    evaluation = settings("VICReg")["evaluation"]
    record("VICReg")
    record("VICReg", cell={"evaluation": evaluation | {"knn": {"k": 5}}}, sweep="other")
    plan(runs / "quickstart", {"id": "a" * 12, "label": "VICReg", "seed": 1})
    shown = {each.name: grid(leaderboard(each))["VICReg"]["n"] for each in tasks(runs)}
    assert shown == {"quickstart": "1 of 2", "other": "1"}


def test_a_cell_that_two_sweeps_plan_is_missing_once(runs: Path, record: Make) -> None:
    """Another one of the same row adds to it, though its plan says more."""
    cells: list[dict[str, Any]] = [{"label": "VICReg", "seed": 1}, {"label": "SimCLR", "seed": 0}]
    cells.append({"label": "VICReg", "seed": 7, "epochs": 3})
    for sweep, count in (("first", 2), ("second", 3)):
        record("VICReg", sweep=sweep)
        plan(runs / sweep, *({"id": f"{i:012x}", **cell} for i, cell in enumerate(cells[:count])))
    table = leaderboard(task(runs))
    place = [column.name for column in table.columns].index("n")
    assert [(line.label, line.entries[place].text) for line in table.lines] == [
        ("VICReg", "1 of 3"),
        ("SimCLR", "0 of 1"),
    ]
    assert "Planned and not finished: 3 cells; n says of how many." in table.notes


def test_the_choice_tells_budgets(runs: Path, record: Make) -> None:
    entries = []
    record("untrained", linear=40.0)  # nobody tunes it
    second, third = ranked("a" * 12, 60.0), ranked("b" * 12, None)
    for label, others in (("VICReg", [second, third]), ("AUH", [])):
        path = record(
            label, tuning=70.0, choice={"hyperparameters": {"selected_on": "tuning", "budget": 3}}
        )
        entries.append(chosen(label, ranked(path.parent.name), *others))
    table = leaderboard(task(runs))
    assert any("Equal tuning budget: 3 configurations" in note for note in table.notes)
    tuning_choice(runs / "quickstart", *entries)
    assert any("1 tried: AUH; 3 tried: VICReg" in note for note in leaderboard(task(runs)).notes)
    unequal = "Unequal tuning"
    for numbers, begins in (
        ((3, 1), "Tuning budgets in proportion to"),
        ((2, 2), unequal),
        ((3, None), unequal),
    ):
        counted = []
        for i, (entry, number) in enumerate(zip(entries, numbers, strict=True), 1):
            counted.append(
                dataclasses.replace(
                    entry, setting=entry.setting | {"searched": number}, images=1000 * i
                )
            )
        tuning_choice(runs / "quickstart", *counted)
        (note,) = (
            note
            for note in leaderboard(task(runs)).notes
            if "1 tried: AUH; 3 tried: VICReg" in note
        )
        assert note.startswith(begins)
    tried = hyperparameters_table(task(runs))
    told = (
        "3 configurations for each method, chosen by knn_top1 on the tuning split, seeds 0; at "
        "most 2,000 training"
    )
    assert any(told in note for note in tried.notes)


def test_how_a_row_was_chosen_is_asked_of_runs_that_did_not_diverge(
    runs: Path, record: Make
) -> None:
    for label in METHODS.keys() - {"untrained"}:
        record(label, 0, **DIVERGED)
        record(label, 1, choice={"hyperparameters": {"selected_on": "tuning", "budget": 3}})
    one = task(runs)
    assert any(row.first.status == "diverged" for row in one.rows), "some of them are read first"
    assert any("Equal tuning budget: 3 configurations" in note for note in leaderboard(one).notes)
    rows = texts(hyperparameters_table(one))[1:]
    assert {tuple(row[-2:]) for row in rows} == {("tuning", "3")}


def test_what_a_search_stopped_early_is_no_result(runs: Path, record: Make) -> None:
    record("VICReg", tuning=60.0)
    short = record(
        "VICReg", status="diverged", knn=None, linear=None, cell={"epochs": 1}
    ).parent.name
    waiting = "c" * 12
    plan(
        runs / "quickstart",
        *({"id": name, "label": "VICReg", "seed": 0, "epochs": 1} for name in (short, waiting)),
    )
    assert any(row["epochs"] == "1" for row in grid(leaderboard(task(runs))).values())
    # A step of a search in a task of which there is no result yet.
    begun = record(
        "VICReg", **DIVERGED, cell={"epochs": 1, "dataset": dataset("stl10")}
    ).parent.name
    search(runs / "quickstart", short, waiting, begun)
    table = leaderboard(task(runs))
    assert [row["n"] for row in grid(table).values()] == ["1"]
    assert not any("diverged" in note or "not finished" in note for note in table.notes)


def test_methods_are_ranked_by_their_means_over_what_all_have() -> None:
    scores = np.array([80.0, 79.0, 70.0]) + np.random.default_rng(0).normal(size=(5, 3, 3))
    names = ("one", "two", "three", "four", "five")
    made: dict[str, dict[str, dict[int, float]]] = {}
    for i, name in enumerate(names):  # scores are of (task, seed, method)
        made[name] = {label: dict(enumerate(scores[i, :, j])) for j, label in enumerate("abc")}
    made["one"]["d"] = {0: 99.0}
    made["one"]["a"][3] = 99.0  # only seeds that all methods have count
    found = compare_over(made)
    assert found is not None
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
    scores = {
        "a": {0: 72.0, 1: 71.0},
        "b": {0: 70.0, 1: 71.5},
        "c": {0: 69.0, 1: 68.0},
        "d": {0: 90.0, 1: 90.0},
    }
    of_two = {"a": {0: 72.0}, "d": {0: 90.0}}  # such a task compares nothing
    found = compare_over(
        {"one": scores, "two": scores, "three": {**scores, "d": {}}, "four": of_two}
    )
    assert found is not None
    assert (found.tasks, found.left_out) == (["one", "two", "three"], ["d"])


def test_scores_that_differ_in_their_last_bits_rank_alike() -> None:
    scores = {"a": {0: 70.1}, "b": {0: 70.1 + 2e-14}, "c": {0: 60.0}}
    found = compare_over({"one": scores, "two": scores})
    assert found is not None
    assert [one.mean_rank for one in found.standings] == [1.5, 1.5, 3.0]


def test_one_task_or_two_methods_are_no_comparison() -> None:
    scores = {label: {0: 70.0} for label in "abc"}
    assert compare_over({"one": scores}) is None
    assert (
        compare_over({"one": {"a": {0: 1.0}, "b": {0: 2.0}}, "two": {"a": {0: 1.0}, "b": {0: 2.0}}})
        is None
    )
    assert (
        compare_over(
            {"one": scores, "two": {label: {1: 70.0} for label in "ab"} | {"c": {2: 70.0}}}
        )
        is None
    )


def test_where_labels_do_no_better_than_a_trivial_row_there_is_no_way_to_go(
    runs: Path, record: Make
) -> None:
    record("untrained", linear=50.0)
    record("raw pixels", linear=61.0, cell={"epochs": 0, "baseline": "raw_pixels"})
    record("supervised", linear=61.0, cell={"baseline": "supervised"})
    record("VICReg", linear=76.0)
    one = task(runs)
    assert one.share(one.rows[0], "linear_top1") is None
    one.scores["linear_top1"] = dataclasses.replace(
        one.scores["linear_top1"], higher_is_better=False
    )
    lowest = one.best_trivial("linear_top1")
    assert lowest is not None and lowest.label == "untrained"
    assert one.share(one.rows[0], "linear_top1") is None  # 61 is no better than 50


def test_rows_that_are_no_methods_are_in_no_figure_of_training(runs: Path, record: Make) -> None:
    measured = {"name": "knn_top1", "split": "tuning", "protocol": "", "title": "kNN top-1"}
    record("untrained", linear=50.0)
    for label, baseline in (("supervised", {"baseline": "supervised"}), ("VICReg", {})):
        history = [
            {"epoch": e, "loss": 1.0, "epoch_s": 1.0, "scores": [{**measured, "value": 50.0}]}
            for e in (1, 2)
        ]
        record(label, cell=baseline, history=history)
    written = write_report(runs, runs / "report")
    assert "supervised" in written.leaderboard
    drawn = re.findall(r'<g class="[^>]*><title>([^<:]*)', written.page.read_text())
    assert "VICReg" in drawn
    assert "supervised" not in drawn
