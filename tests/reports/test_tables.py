"""Rows and tables, from the files of runs to the text in a column."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from regbench.benchmark.settings.sweep import load_run
from regbench.reports import write_report
from regbench.reports.find.records import read_records
from regbench.reports.rows.significance import holm
from regbench.reports.rows.summary import Summary
from regbench.reports.rows.tasks import compare_over, over_tasks
from regbench.reports.tables import details
from regbench.reports.tables.details import (
    accuracy_table,
    cost_table,
    significance_frame,
    significance_table,
)
from regbench.reports.tables.hyperparameters import hyperparameters_table
from regbench.reports.tables.leaderboard import leaderboard, leaderboard_frame
from regbench.reports.tables.over_tasks import over_tasks_frame, over_tasks_table
from regbench.reports.tables.units import Unit, energy_unit, memory_unit, time_unit
from tests.records import chosen, ranked, tuning_choice
from tests.reports.conftest import METHODS, backbone, dataset, score, settings
from tests.reports.reading import Make, grid, task, tasks, texts

KNN, LINEAR = "kNN top-1 (%)", "linear top-1 (%)"
DIVERGED: dict[str, Any] = {"status": "diverged", "knn": None, "linear": None}


def planned(runs: Path, *cells: dict[str, Any]) -> None:
    (runs / "quickstart" / "sweep.json").write_text(
        json.dumps({"cells": [{"epochs": 3, **cell} for cell in cells]})
    )


def failed(runs: Path, name: str, error: str, number: int = 1, ended: str = "failed") -> None:
    """Write an attempt at a cell that has no record."""
    path = runs / "quickstart" / name / "attempts" / f"{number:04}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"ended": ended, "error": error}))
    (path.parents[1] / "config.yaml").touch()


def weight(value: float, name: str = "vicreg") -> dict[str, Any]:
    return {"method": {"name": name, "alignment_weight": value}}


@pytest.fixture(scope="module")
def golden(recorder: Any, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Three rows in which no two numbers are the same, so that none can stand in for another."""
    runs = tmp_path_factory.mktemp("golden") / "runs"
    record = recorder(runs)
    for i in range(3):
        for k, label in enumerate(("VICReg", "AUH")):
            number = i + 10 * k
            values = {
                ("knn_top1", "test"): 70.0 + i - 8 * k,
                ("linear_top1", "test"): 77.0 + 2 * i - 9 * k * (i + 1) / 2,
                ("linear_top5", "test"): 91.0 + i / 2 - k,
                ("alignment", "test"): 1.5 + i / 10 + k,
                ("voc07_map", "test"): 55.0 + i / 4 - k,
                ("knn_top1", "tuning"): 61.0 + i / 5 - 3 * k,
                ("linear_top1", "tuning"): 66.0 + i / 8 - 4 * k,
            }
            record(
                label,
                i,
                scores=tuple(
                    score(name, v, s, "" if name == "alignment" else "%")
                    for (name, s), v in values.items()
                ),
                cost={
                    "train_s": 3600.0 * (11 + number),
                    "evaluate_s": 60.0 * (21 + 2 * number),
                    "img_per_s": 1500.0 + 100 * number,
                    "step_ms": 150.0 + 10 * number,
                    "loss_ms": 4.0 + number / 4,
                    "peak_memory_bytes": (5 + number / 8) * 2**30,
                    "peak_memory_kind": "CUDA allocated",
                    "loss_extra_bytes": (2 + number / 8) * 2**20,
                    "energy_gpu_joules": 3.6e6 * (13 + 3 * number),
                    "energy_cpu_joules": 3600.0 * (31 + 4 * number),
                },
                history=[
                    {"epoch": 1, "effective_rank": 400.0, "alignment": 3.0},
                    {
                        "epoch": 2,
                        "effective_rank": 50.0 + 2 * number,
                        "alignment": 0.2 + number / 50,
                    },
                ],
                choice={
                    "hyperparameters": {
                        "selected_on": "tuning",
                        "budget": 16 + k,
                        "score": "knn_top1",
                    }
                },
                cell={"method": {"name": METHODS[label], "alignment_weight": 125.0 + k}},
            )
    record("untrained", 0, knn=49.0, linear=59.5)
    missing = [{"id": f"{i:012x}", "label": "VICReg", "seed": 3 + i} for i in range(2)]
    planned(runs, *missing, {"id": "f" * 12, "label": "VICReg", "seed": 1})  # its seed is finished
    return task(runs)


def test_golden_leaderboard(golden: Summary) -> None:
    head = [
        "method",
        KNN,
        LINEAR,
        "n",
        "linear − untrained",
        "effective rank",
        "alignment",
        "train time (h)",
    ]
    head += [
        "images/s",
        "loss (ms/step)",
        "peak memory (GiB)",
        "loss memory (MiB)",
        "GPU energy (kWh)",
        "CPU energy (Wh)",
    ]
    auh = [
        "AUH",
        "63.00 ± 1.00",
        "**70.00 ± 2.50**",
        "3",
        "+10.50",
        "72.0 ± 2.0",
        "0.42 ± 0.02",
        "22.00",
        "2,600",
    ]
    vicreg = [
        "VICReg",
        "**71.00 ± 1.00**",
        "**79.00 ± 2.00**",
        "3 of 5",
        "+19.50",
        "52.0 ± 2.0",
        "0.22 ± 0.02",
    ]
    assert texts(leaderboard(golden)) == [
        head,
        [*vicreg, "12.00", "1,600", "4.25", "5.12", "2.12", "16.00", "35.00"],
        [*auh, "6.75", "6.38", "3.38", "46.00", "75.00"],
        ["untrained", "49.00", "59.50", "1", *["–"] * 10],
    ]
    assert not any(note.startswith("The share of the way") for note in leaderboard(golden).notes)


def test_golden_leaderboard_in_numbers(golden: Summary) -> None:
    expected: dict[str, list[Any]] = {
        "sweep": ["quickstart"] * 3,
        "label": ["VICReg", "AUH", "untrained"],
        "chosen_on_test": [False] * 3,
        "n": [3, 3, 1],
        "n_missing": [2, 0, 0],
        "n_diverged": [0, 0, 0],
        "configurations_tried": [1, 1, 1],
        "tuning_budget": [16, 17, None],
        "tuning_edges": [None] * 3,
        "knn_top1_percent": [71.0, 63.0, 49.0],
        "knn_top1_percent_std": [1.0, 1.0, None],
        "knn_top1_n": [3, 3, 1],
        "knn_top1_best": [True, False, False],
        "knn_top1_minus_trivial": [22.0, 14.0, None],
        "linear_top1_percent": [79.0, 70.0, 59.5],
        "linear_top1_percent_std": [2.0, 2.5, None],
        "linear_top1_n": [3, 3, 1],
        "linear_top1_best": [True, True, False],
        "linear_top1_minus_trivial": [19.5, 10.5, None],
        "train_s": [43200.0, 79200.0, None],
        "img_per_s": [1600.0, 2600.0, None],
        "step_ms": [160.0, 260.0, None],
        "loss_ms": [4.25, 6.75, None],
        "peak_memory_bytes": [5.125 * 2**30, 6.375 * 2**30, None],
        "loss_extra_bytes": [2.125 * 2**20, 3.375 * 2**20, None],
        "energy_gpu_joules": [16 * 3.6e6, 46 * 3.6e6, None],
        "energy_cpu_joules": [35 * 3600.0, 75 * 3600.0, None],
        "effective_rank": [52.0, 72.0, None],
        "effective_rank_std": [2.0, 2.0, None],
        "alignment": [0.22, 0.42, None],
        "alignment_std": [0.02, 0.02, None],
        "paper_linear_top1_percent": [None] * 3,
    }
    frame = leaderboard_frame(golden)
    assert list(frame.columns) == list(expected)
    for name, values in expected.items():
        found = [None if pd.isna(value) else value for value in frame[name]]
        assert found == [pytest.approx(v) if isinstance(v, float) else v for v in values], name


def test_golden_accuracies(golden: Summary) -> None:
    head = ["method", "kNN top-1 (%), test", "linear top-1 (%), test", "linear top-5 (%), test"]
    head += [
        "VOC07 mAP, 11-point (%), test",
        "alignment, test",
        "kNN top-1 (%), tuning",
        "linear top-1 (%), tuning",
    ]
    vicreg = [
        "**71.00 ± 1.00**",
        "**79.00 ± 2.00**",
        "**91.50 ± 0.50**",
        "**55.25 ± 0.25**",
        "1.60 ± 0.10",
    ]
    auh = ["63.00 ± 1.00", "**70.00 ± 2.50**", "90.50 ± 0.50", "54.25 ± 0.25", "2.60 ± 0.10"]
    assert texts(accuracy_table(golden)) == [
        head,
        ["VICReg", *vicreg, "61.20 ± 0.20", "66.12 ± 0.12"],
        ["AUH", *auh, "58.20 ± 0.20", "62.12 ± 0.12"],
        ["untrained", "49.00", "59.50", *["–"] * 5],
    ]
    assert "Measures without labels have no best." in accuracy_table(golden).notes


def test_golden_costs(golden: Summary) -> None:
    heads = [
        "training (h)",
        "evaluation (min)",
        "images/s",
        "step (ms)",
        "loss (ms/step)",
        "loss / step (%)",
    ]
    heads += ["peak memory (GiB)", "measured as", "loss memory (MiB)"]
    heads += ["GPU energy (kWh)", "GPU mean power (W)", "CPU energy (Wh)", "CPU mean power (W)"]
    vicreg = ["12.00 ± 1.00", "23.0 ± 2.0", "1,600 ± 100", "160.0 ± 10.0", "4.25 ± 0.25", "2.7"]
    vicreg += [
        "5.12 ± 0.12",
        "CUDA allocated",
        "2.12 ± 0.12",
        "16.00 ± 3.00",
        "1,333",
        "35.00 ± 4.00",
        "3",
    ]
    auh = ["22.00 ± 1.00", "43.0 ± 2.0", "2,600 ± 100", "260.0 ± 10.0", "6.75 ± 0.25", "2.6"]
    auh += [
        "6.38 ± 0.12",
        "CUDA allocated",
        "3.38 ± 0.12",
        "46.00 ± 3.00",
        "2,091",
        "75.00 ± 4.00",
        "3",
    ]
    assert texts(cost_table(golden)) == [["method", *heads], ["VICReg", *vicreg], ["AUH", *auh]]


def test_golden_hyperparameters(golden: Summary) -> None:
    head = [
        "method",
        "q",
        "batch",
        "epochs",
        "hyperparameters",
        "kNN top-1 (%), tuning",
        "n",
        "chosen on",
        "tried",
    ]
    assert texts(hyperparameters_table(golden)) == [
        head,
        ["AUH", "512", "256", "3", "alignment_weight=126.0", "58.20 ± 0.20", "3", "tuning", "17"],
        [
            "VICReg",
            "512",
            "256",
            "3",
            "alignment_weight=125.0",
            "61.20 ± 0.20",
            "3",
            "tuning",
            "16",
        ],
    ]


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


@pytest.mark.parametrize(
    ("p", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.02, 0.021], [0.04, 0.04]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([0.04, math.nan, 0.01], [0.04, math.nan, 0.02]),
        ([], []),
    ],
)
def test_holms_correction(p: list[float], corrected: list[float]) -> None:
    assert holm(p) == pytest.approx(corrected, nan_ok=True)


def test_no_row_is_tested_against_the_untrained_network(runs: Path, record: Make) -> None:
    for seed, label in itertools.product(range(3), ("VICReg", "AUH", "untrained")):
        record(label, seed, linear=70.0 + seed)
    frame = significance_frame(task(runs))
    assert {frozenset(pair) for pair in zip(frame["one"], frame["other"], strict=True)} == {
        frozenset(("AUH", "VICReg"))
    }


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
    assert [row[2].bold for row in table.rows] == [True, bold, False]
    assert any(
        f", {least:.2g} (linear top-1) on, over three seeds." in note for note in table.notes
    )


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
    assert [row[0].text for row in of_three_seeds.rows] == ["1. AUH", "2. SimCLR", "3. VICReg"]
    assert of_three_seeds.notes[-1] == "Left out: 1 rows with fewer than 3 seeds."
    assert [row[2].why for row in leaderboard(task(runs)).rows] == [
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
    assert [row[0].text for row in table.rows if row[2].bold] == ["AUH"]
    assert any("Differences were not tested" in note for note in table.notes)
    for seed in range(3):
        record("SimCLR", seed, linear=70.0 + 0.1 * seed)
    notes = leaderboard(task(runs)).notes
    assert any(note.startswith("Too few seeds to say") and "VICReg" in note for note in notes)
    assert grid(significance_table(task(runs)))["1. AUH"]["2"] == "–"


def test_a_score_says_its_title_its_unit_and_which_way_is_better(runs: Path, record: Make) -> None:
    """An evaluation that no line of the reports names."""
    for seed in range(3):
        for label, recall, loss in (("AUH", 60.0, 1.0), ("VICReg", 90.0, 9.0)):
            own = (
                score("recall_at1", recall + seed**2, unit="%"),
                score("error", loss + seed / 9, unit="nats"),
            )
            record(label, seed, scores=own)
    one = task(runs)
    one.scores["error"] = type(one.scores["error"])(
        **{**vars(one.scores["error"]), "higher_is_better": False}
    )
    heads, vicreg, auh = texts(accuracy_table(one))
    assert heads == ["method", "recall_at1 (%), test", "error (nats), test"]
    assert (vicreg[0], vicreg[1][:4], vicreg[2][0], auh[2][:2]) == ("VICReg", "**91", "9", "**")
    assert [column.name for column in leaderboard(one).columns[:2]] == ["method", "recall_at1 (%)"]


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


def test_mean_and_spread_over_seeds(runs: Path, record: Make) -> None:
    for seed, (knn, linear) in enumerate(((70.0, 75.0), (71.5, 74.0), (70.4, 76.6))):
        record("VICReg", seed, knn=knn, linear=linear, cost={"train_s": 30.0 + 3 * seed})
    record("AUH", 0, knn=60.0, linear=74.0)
    record("AUH", 1, knn=None, linear=None, cost={"peak_memory_kind": "CUDA allocated"})
    rows = grid(leaderboard(task(runs)))
    assert (rows["VICReg"][KNN], rows["VICReg"][LINEAR]) == ("**70.63 ± 0.78**", "**75.20 ± 1.31**")
    assert (rows["VICReg"]["n"], rows["VICReg"]["train time (s)"], rows["VICReg"]["images/s"]) == (
        "3",
        "33.0",
        "1,600",
    )
    assert rows["VICReg"]["peak memory (MiB)"] == "800"
    assert (rows["AUH"][KNN], rows["AUH"]["n"]) == ("60.00 (n=1)", "2")
    assert grid(cost_table(task(runs)))["AUH"]["measured as"] == "CUDA allocated, process RSS"
    time = grid(cost_table(task(runs)))["VICReg"]
    assert (time["training (s)"], time["loss / step (%)"]) == ("33.0 ± 3.0", "2.5")
    record("SimCLR", cost={"train_s": 7200.0, "peak_memory_bytes": 10 * 2**30})
    row = grid(leaderboard(task(runs)))["SimCLR"]
    assert (row["train time (min)"], row["peak memory (GiB)"]) == ("120.0", "10.00")


def test_the_untrained_row_is_last_and_the_base_of_the_gain(runs: Path, record: Make) -> None:
    for q in (512, 1024):  # several cells, one row
        record("untrained", knn=80.0, linear=73.5, cell={"embedding_dim": q})
        record("VICReg", linear=75.0 - (q == 1024), cell={"embedding_dim": q})
    record("untrained", 1, knn=80.0, linear=73.5)
    record("SFRIK (L=1)", linear=70.0)
    table = leaderboard(task(runs))
    assert [row[:2] for row in texts(table)[1:]] == [
        ["VICReg", "512"],
        ["VICReg", "1024"],
        ["SFRIK (L=1)", "512"],
        ["untrained", "–"],
    ]
    assert [row[:2] for row in texts(hyperparameters_table(task(runs)))[2:]] == [
        ["VICReg", "512"],
        ["VICReg", "1024"],
    ]
    assert leaderboard_frame(task(runs))["q"].isna().tolist() == [False, False, False, True]
    last = grid(table)["untrained"]
    assert [row["linear − untrained"] for row in grid(table).values()] == ["+0.50", "−3.50", "–"]
    assert [last[name] for name in ("n", "train time (s)", "peak memory (MiB)")] == ["2", "–", "–"]
    assert "untrained" not in grid(cost_table(task(runs)))
    assert (
        table.warning
        == "Not better than the untrained network by linear top-1: SFRIK (L=1), q=512."
    )


@pytest.mark.parametrize(("linear", "warned"), [(60.0, True), (59.0, True), (60.5, False)])
def test_a_line_above_the_leaderboard_says_when_nothing_was_learned(
    runs: Path, record: Make, linear: float, warned: bool
) -> None:
    record("untrained", linear=60.0)
    record("VICReg", linear=linear, knn=70.0)
    record("AUH", **DIVERGED)
    warning = "No row is better than the untrained network by linear top-1"
    written = write_report(runs, runs / "report")
    for text in (
        written.leaderboard,
        (runs / "report" / "leaderboard.md").read_text(),
        written.page.read_text(),
    ):
        before, _, _ = text.partition("VICReg" if "<html" not in text else "<tbody>")
        assert (warning in before) == (warning in text) == warned
    assert (f"% {warning}" in (runs / "report" / "leaderboard.tex").read_text()) == warned
    one = task(runs)
    one.scores["linear_top1"] = dataclasses.replace(
        one.scores["linear_top1"], higher_is_better=False
    )
    assert bool(leaderboard(one).warning) == (linear >= 60.0)


def test_without_linear_probing_knn_leads(runs: Path, record: Make) -> None:
    """Also where it was done for a configuration that was not chosen."""
    for label, knn in (("AUH", 70.0), ("VICReg", 71.0), ("untrained", 60.0)):
        record(label, knn=knn, linear=None, tuning=50.0)
    record("AUH", linear=90.0, tuning=40.0, cell=weight(1.0, "auh"))
    table = grid(leaderboard(task(runs)))
    assert list(table) == ["VICReg", "AUH", "untrained"]
    assert table["AUH"]["kNN − untrained"] == "+10.00"
    assert LINEAR not in table["AUH"]


def test_where_lower_is_better_the_lowest_leads(runs: Path, record: Make) -> None:
    """And where more seeds would tell more, it is not said in points, which a loss does not
    have.
    """
    for seed, (label, error) in itertools.product(
        range(3), (("AUH", 2.0), ("VICReg", 1.0), ("untrained", 3.0))
    ):
        measured = score("error", error + 0.01 * seed * len(label), unit="nats")
        record(label, seed, scores=(dataclasses.replace(measured, higher_is_better=False),))
    table = leaderboard(task(runs))
    assert [row[1][:5] for row in texts(table)[1:]] == ["**1.0", "2.03 ", "3.09 "]
    assert not table.warning and not any(
        "What this comparison can tell" in note for note in table.notes
    )
    assert "error" in leaderboard_frame(task(runs)).columns


def test_measures_without_a_best_order_nothing(runs: Path, record: Make) -> None:
    record("VICReg", scores=(score("rankme", 5.0, unit=""),))
    assert task(runs).headline is None
    assert "rankme" not in " ".join(texts(leaderboard(task(runs)))[0])


def test_diverged_cells_are_marked_and_counted_and_not_chosen(runs: Path, record: Make) -> None:
    record("VICReg", 0, knn=70.0)
    record("VICReg", 1, **DIVERGED)
    record("SimCLR", **DIVERGED)
    record("AUH", tuning=60.0, linear=61.0, cell=weight(1.0))
    record("AUH", tuning=65.0, linear=66.0, cell=weight(2.0))
    record("AUH", **DIVERGED, cell=weight(9.0))
    table = leaderboard(task(runs))
    rows = grid(table)
    assert ("70.00" in rows["VICReg †"][KNN], rows["VICReg †"]["n"], rows["SimCLR †"][KNN]) == (
        True,
        "2",
        "–",
    )
    assert "66.00" in rows["AUH"][LINEAR]
    assert any("VICReg (1 of 2 cells), SimCLR (1 of 1 cells)" in note for note in table.notes)
    frame = leaderboard_frame(task(runs)).set_index("label")
    assert frame["n_diverged"].to_dict() == {"AUH": 0, "VICReg": 1, "SimCLR": 1}
    assert frame["configurations_tried"].to_dict() == {"AUH": 3, "VICReg": 1, "SimCLR": 1}
    assert frame["knn_top1_n"].dropna().to_dict() == {"AUH": 1, "VICReg": 1}


def test_of_equally_good_configurations_the_first_stands_for_the_method(
    runs: Path, record: Make
) -> None:
    found = {}
    for number in range(3):
        linear = 61.0 + number
        found[record("AUH", tuning=65.0, linear=linear, cell=weight(1.0 + number))] = linear
    # Cells are read in the order of their folders.
    assert f"{found[min(found)]:.2f}" in grid(leaderboard(task(runs)))["AUH"][LINEAR]


def test_effective_rank_and_alignment_are_those_at_the_end(runs: Path, record: Make) -> None:
    def history(rank: float, alignment: float) -> list[dict[str, float]]:
        return [
            {"epoch": 1, "effective_rank": 400.0, "alignment": 3.0},
            {"epoch": 2, "effective_rank": rank, "alignment": alignment},
        ]

    record("AUH", 0, linear=74.0, history=[])
    assert not {"effective rank", "alignment"} & {
        column.name for column in leaderboard(task(runs)).columns
    }
    record("VICReg", 0, linear=75.0, history=history(60.0, 0.51))
    record("VICReg", 1, linear=75.0, history=history(63.0, 0.55))
    record("VICReg", 2, **DIVERGED, history=history(1.0, 0.0))
    table = leaderboard(task(runs))
    shown = [(row["effective rank"], row["alignment"]) for row in grid(table).values()]
    assert shown == [("61.5 ± 2.1", "0.53 ± 0.03"), ("–", "–")]
    assert any("last training batch" in note for note in table.notes)


def test_settings_that_vary_become_columns(runs: Path, record: Make) -> None:
    for q in (1024, 2048):
        network = backbone("r", projector={"depth": 3, "hidden_dim": q})
        record("VICReg", linear=70 + q / 1024, cell={"embedding_dim": q, "network": network})
    table = leaderboard(task(runs))
    assert [c.name for c in table.columns[:3]] == [
        "method",
        "q",
        KNN,
    ]  # hidden_dim says the same as q
    assert [[c.text for c in row[:2]] for row in table.rows] == [
        ["VICReg", "2048"],
        ["VICReg", "1024"],
    ]
    record(
        "VICReg",
        linear=74.0,
        cell={"embedding_dim": 2048, "network": network | {"projector": {"depth": 1}}},
    )
    table = leaderboard(task(runs))
    assert [c.name for c in table.columns[:3]] == ["method", "q", "projector depth"]
    assert [row[2].text for row in table.rows] == ["1", "3", "3"]


def test_how_statistics_were_taken_makes_a_row_and_no_task(runs: Path, record: Make) -> None:
    for taken in ("view", "size"):
        record("VICReg", cell={"network": backbone("resnet_tiny", statistics=taken)})
    head, *rows = texts(leaderboard(task(runs)))
    assert sorted(row[head.index("statistics")] for row in rows) == ["size", "view"]


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
    assert any("kNN top-1 on the tuning split; all are listed" in note for note in table.notes)
    assert any("Equal tuning budget: 2 configurations for each row" in note for note in table.notes)
    shown = {
        tuple(c.text for c in (row[0], row[4], row[-1]))
        for row in hyperparameters_table(task(runs)).rows
    }
    assert {
        ("VICReg", "alignment_weight=1.0", "no"),
        ("VICReg", "alignment_weight=2.0", "yes"),
    } <= shown


def test_settings_beside_the_method_are_listed_where_they_differ(runs: Path, record: Make) -> None:
    """But not which evaluations were made."""
    optimizer, evaluation = (settings("VICReg")[group] for group in ("optimizer", "evaluation"))
    for rate, protocols in ((0.3, ["knn"]), (0.7, ["knn", "probe"])):
        cell = {
            "optimizer": optimizer | {"base_lr": rate},
            "evaluation": evaluation | {"protocols": protocols},
        }
        record("VICReg", cell=cell, tuning=60 + rate)
    words = [row[4].text for row in hyperparameters_table(task(runs)).rows]
    assert words == [f"alignment_weight=10.0, optimizer.base_lr={rate}" for rate in (0.7, 0.3)]


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


def test_unequal_machines_are_told(runs: Path, record: Make) -> None:
    record("VICReg", environment={"hardware": "GPU A"})
    record(
        "untrained", environment={"hardware": "GPU B"}, cost={"peak_memory_kind": "CUDA allocated"}
    )
    record("SimCLR", **DIVERGED, environment={"hardware": "GPU B"})
    assert not any("unequal" in note for note in leaderboard(task(runs)).notes), (
        "these have no times and no memory"
    )
    environment = {"hardware": "GPU A", "git": None, "threads": 2}
    record("AUH", environment=environment, cost={"peak_memory_kind": "CUDA allocated"})
    notes = " ".join(leaderboard(task(runs)).notes)
    machines = "GPU A with 1 threads, ffcv loader; GPU A with 2 threads, ffcv loader"
    for told in (machines, "abc1234, unknown", "CUDA allocated, process RSS"):
        assert told in notes


def test_another_optimizer_is_another_row(runs: Path, record: Make) -> None:
    adamw = load_run(["optimizer=adamw"])[0].plain()["optimizer"]
    record("VICReg", linear=80.0)
    record("VICReg", linear=70.0, cell={"optimizer": adamw})
    head, *rows = texts(leaderboard(task(runs)))
    column, top1 = head.index("optimizer"), head.index("linear top-1 (%)")
    assert [(row[column], row[top1].strip("*")) for row in rows] == [
        ("lars", "80.00"),
        ("adamw", "70.00"),
    ]


def test_what_rows_of_unequal_views_have_in_common_is_told(
    recorder: Callable[[Path], Make], tmp_path: Path
) -> None:
    crops = load_run(["augmentation=small_grey_crops"])[0].plain()["augmentation"]
    told = {
        8: "each image equally often",
        2: "equally many forward passes",
        3: "unequal numbers of forward passes",
    }
    for epochs, text in told.items():
        record = recorder(tmp_path / str(epochs))
        record("VICReg", cell={"epochs": 8})
        record("AUH", cell={"epochs": epochs, "augmentation": crops})
        table = leaderboard(task(tmp_path / str(epochs)))
        (note,) = (note for note in table.notes if "2 and 8 views" in note)
        assert text in note
        assert "augmentation" in [column.name for column in table.columns]


@pytest.mark.parametrize(
    ("taught_crops", "epochs", "crops", "told"),
    [
        (False, 1, True, "took equally many forward passes"),  # 3 × (3 × 2 + 2) = 3 × 8
        (True, 13, False, "took equally many forward passes"),  # 3 × (3 × 8 + 2) = 13 × 3 × 2
        (False, 4, False, None),  # 3 × (3 × 2 + 2) = 4 × 3 × 2, and of equally many views
    ],
)
def test_a_teacher_passes_the_global_views_forward(
    runs: Path, record: Make, taught_crops: bool, epochs: int, crops: bool, told: str | None
) -> None:
    """A trained view takes three passes; of the eight crops two are global.

    What is no method does not count.
    """
    augmentation = load_run(["augmentation=small_grey_crops"])[0].plain()["augmentation"]
    network = load_run(["network.teacher=ema", "network.predictor.depth=2"])[0].plain()["network"]
    taught = {"network": network, "epochs": 3}
    record("VICReg", cell=taught | ({"augmentation": augmentation} if taught_crops else {}))
    record("AUH", cell={"epochs": epochs} | ({"augmentation": augmentation} if crops else {}))
    record("supervised", cell={"baseline": "supervised", "augmentation": augmentation})
    notes = [note for note in leaderboard(task(runs)).notes if note.startswith("Rows ")]
    assert [told in note for note in notes] == [True] if told else notes == []


def test_a_method_with_a_teacher_stands_in_the_same_table(runs: Path, record: Make) -> None:
    for linear, overrides in (
        (70.0, []),
        (75.0, ["network.teacher=ema", "network.predictor.depth=2"]),
    ):
        record("VICReg", linear=linear, cell={"network": load_run(overrides)[0].plain()["network"]})
    table = leaderboard(task(runs))
    assert [column.name for column in table.columns[:3]] == ["method", "teacher", KNN]
    assert [row[1].text for row in table.rows] == ["ema", "–"]
    assert any("an EMA teacher" in note for note in table.notes)


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


def test_failures_of_many_kinds_are_counted(runs: Path, record: Make) -> None:
    record("VICReg", 0)
    planned(runs, *({"id": f"{i:012x}", "label": "VICReg", "seed": i} for i in range(1, 8)))
    for i in range(1, 8):
        failed(runs, f"{i:012x}", f"reason {i}")
    (note,) = (
        note for note in leaderboard(task(runs)).notes if note.startswith("Failed, 7 in all")
    )
    assert note.count("reason") == 5
    assert note.endswith("; and 2 more kinds.")
    for i in (6, 7):
        failed(runs, f"{i:012x}", "reason 5")
    (note,) = (
        note for note in leaderboard(task(runs)).notes if note.startswith("Failed, 7 in all")
    )
    assert "VICReg, 3 cells (reason 5); " in note and "more kinds" not in note


@pytest.mark.parametrize("measured", [True, False])
def test_a_narrow_terminal_can_do_without_the_peak_memory_beside_that_of_the_loss(
    runs: Path, record: Make, measured: bool
) -> None:
    record("VICReg", cost={"loss_extra_bytes": 2**20} if measured else {})
    spare = {
        column.name.partition(" (")[0]: column.spare for column in leaderboard(task(runs)).columns
    }
    assert (spare["peak memory"] > 0, spare.get("loss memory")) == (
        (True, 0) if measured else (False, None)
    )
    assert (
        any(note.startswith("Loss memory is") for note in leaderboard(task(runs)).notes) == measured
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
    planned(runs, *({"id": name, "label": label, "seed": seed} for name, label, seed in cells))
    (row,) = grid(leaderboard(task(runs))).values()
    assert row["n"] == "1"


def test_missing_cells_show_as_missing(runs: Path, record: Make) -> None:
    finished = record("VICReg", 0).parent.name
    record("AUH", 0)
    waiting = [{"id": f"{i:012x}", "label": "VICReg", "seed": i} for i in (1, 2)]
    waiting += [{"id": f"{i:012x}", "label": "SimCLR", "seed": i} for i in (3, 4, 5)]
    elsewhere = [{"id": "f" * 12, "label": "AUH", "seed": 9, "dataset": "stl10"}]  # of another task
    elsewhere += [{"id": "e" * 12, "label": "AUH", "seed": 9, "backbone": "resnet50"}]
    planned(runs, {"id": finished, "label": "VICReg", "seed": 0}, *waiting, *elsewhere)
    for number, ended in enumerate(("interrupted", "failed"), 1):
        failed(runs, f"{3:012x}", "OSError: no\nspace", number, ended)
    table = leaderboard(task(runs))
    cells = grid(table)
    assert {label: row["n"] for label, row in cells.items()} == {
        "VICReg": "1 of 3",
        "AUH": "1",
        "SimCLR": "0 of 3",
    }
    assert cells["SimCLR"][LINEAR] == "–"
    assert any("Planned and not finished: 5 cells" in note for note in table.notes)
    assert any("SimCLR, 1 cell (OSError: no space)" in note for note in table.notes)
    assert read_records(runs).unfinished == {"quickstart": 7}
    frame = leaderboard_frame(task(runs)).set_index("label")
    assert frame["n_missing"].to_dict() == {"VICReg": 2, "AUH": 0, "SimCLR": 3}


@pytest.mark.parametrize(
    ("key", "head"), [("embedding_dim", "q"), ("batch_size", "batch"), ("epochs", "epochs")]
)
def test_a_missing_cell_counts_in_the_row_that_its_plan_fits_alone(
    runs: Path, record: Make, key: str, head: str
) -> None:
    for size in (2, 4):
        record("VICReg", cell={key: size})
    sizes: tuple[dict[str, int], ...] = ({key: 4}, {key: 8}, {})
    cells = [
        {"id": f"{i:012x}", "label": "VICReg", "seed": 1, **size} for i, size in enumerate(sizes)
    ]
    (runs / "quickstart" / "sweep.json").write_text(json.dumps({"cells": cells}))
    heads, *rows = texts(leaderboard(task(runs)))
    shown = {row[heads.index(head)]: row[heads.index("n")] for row in rows}
    assert shown == {"2": "1", "4": "1 of 2", "8": "0 of 1"}


def test_a_planned_seed_of_the_untrained_network_is_in_its_row(runs: Path, record: Make) -> None:
    """Whatever settings of a training its plan states."""
    record("untrained")
    planned(
        runs, {"id": "a" * 12, "label": "untrained", "seed": 1, "epochs": 0, "embedding_dim": 16}
    )
    table = leaderboard(task(runs))
    assert {label: row["n"] for label, row in grid(table).items()} == {"untrained": "1 of 2"}
    assert "Planned and not finished: 1 cell; n says of how many." in table.notes


def test_a_run_that_no_plan_names_is_in_no_row(runs: Path, record: Make) -> None:
    record("VICReg")
    failed(runs, "a" * 12, "no space")
    table = leaderboard(task(runs))
    assert list(grid(table)) == ["VICReg"]
    assert f"Failed, 1 in all, and to be tried again: {'a' * 12}, 1 cell (no space)." in table.notes


def test_where_nothing_has_final_scores_what_is_planned_has_rows(runs: Path, record: Make) -> None:
    for q in (512, 1024):
        record(
            "VICReg", status="tuned", knn=None, linear=None, tuning=60.0, cell={"embedding_dim": q}
        )
    planned(runs, {"id": "a" * 12, "label": "SimCLR", "seed": 0, "embedding_dim": 512})
    head, *rows = texts(leaderboard(task(runs)))
    assert (head[:2], [row[:2] for row in rows]) == (["method", "q"], [["SimCLR", "512"]])


def test_a_cell_whose_plan_fits_two_tasks_is_in_neither(runs: Path, record: Make) -> None:
    evaluation = settings("VICReg")["evaluation"]
    for k in (5, 200):
        record("VICReg", cell={"evaluation": evaluation | {"knn": {"k": k}}})
    planned(runs, {"id": "a" * 12, "label": "SimCLR", "seed": 0})
    failed(runs, "a" * 12, "no space")
    assert [list(grid(leaderboard(each))) for each in tasks(runs)] == [["VICReg"], ["VICReg"]]
    assert all(
        "SimCLR, 1 cell (no space)" in " ".join(leaderboard(each).notes) for each in tasks(runs)
    )


def test_a_planned_cell_stands_in_the_task_of_its_sweep(runs: Path, record: Make) -> None:
    evaluation = settings("VICReg")["evaluation"]
    record("VICReg")
    record("VICReg", cell={"evaluation": evaluation | {"knn": {"k": 5}}}, sweep="other")
    planned(runs, {"id": "a" * 12, "label": "VICReg", "seed": 1})
    shown = {each.name: grid(leaderboard(each))["VICReg"]["n"] for each in tasks(runs)}
    assert shown == {"quickstart": "1 of 2", "other": "1"}


def test_a_cell_that_two_sweeps_plan_is_missing_once(runs: Path, record: Make) -> None:
    """Another one of the same row adds to it, though its plan says more."""
    cells: list[dict[str, Any]] = [{"label": "VICReg", "seed": 1}, {"label": "SimCLR", "seed": 0}]
    cells.append({"label": "VICReg", "seed": 7, "epochs": 3})
    for sweep, count in (("first", 2), ("second", 3)):
        record("VICReg", sweep=sweep)
        plan = [{"id": f"{i:012x}", **cell} for i, cell in enumerate(cells[:count])]
        (runs / sweep / "sweep.json").write_text(json.dumps({"cells": plan}))
    table = leaderboard(task(runs))
    place = [column.name for column in table.columns].index("n")
    assert [(row[0].text, row[place].text) for row in table.rows] == [
        ("VICReg", "1 of 3"),
        ("SimCLR", "0 of 1"),
    ]
    assert "Planned and not finished: 3 cells; n says of how many." in table.notes


def test_tuned_cells_stand_in_the_hyperparameters_only(runs: Path, record: Make) -> None:
    """A tuning over three weights on seed 0, of which one has its final scores on seeds 0 to 2."""
    origin = {
        "selected_on": "tuning",
        "score": "knn_top1",
        "budget": 3,
        "record": "runs/x/tuning_choice.json",
        "sha256": "0",
    }
    for value, tuning in ((1.0, 60.0), (3.0, 62.0)):
        record("VICReg", status="tuned", knn=None, linear=None, tuning=tuning, cell=weight(value))
    for seed in range(3):
        record("VICReg", seed, tuning=65.0, choice={"hyperparameters": origin}, cell=weight(2.0))
    record("AUH", status="tuned", knn=None, linear=None, tuning=50.0)
    record("AUH", **DIVERGED, cell=weight(1.0, "auh"))
    table = leaderboard(task(runs))
    assert {label: row["n"] for label, row in grid(table).items()} == {"VICReg": "3"}
    assert any("no configuration has its final scores yet: AUH (2)" in note for note in table.notes)
    assert any("Equal tuning budget: 3 configurations" in note for note in table.notes)
    tried = hyperparameters_table(task(runs))
    assert [column.name for column in tried.columns][-1] == "in the leaderboard"
    assert [[row[i].text for i in (0, 4, 5, 8, 9)] for row in tried.rows] == [
        ["AUH", "alignment_weight=10.0", "50.00", "–", "no"],
        ["AUH †", "alignment_weight=1.0", "–", "–", "no"],
        ["VICReg", "alignment_weight=2.0", "65.00 ± 0.00", "3", "yes"],
        ["VICReg", "alignment_weight=3.0", "62.00", "–", "no"],
        ["VICReg", "alignment_weight=1.0", "60.00", "–", "no"],
    ]


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
    assert {tuple(entry.text for entry in row[-2:]) for row in hyperparameters_table(one).rows} == {
        ("tuning", "3")
    }


def test_of_many_rows_with_one_budget_some_are_named(runs: Path, record: Make) -> None:
    record("AUH", choice={"hyperparameters": {"selected_on": "tuning", "budget": 3}})
    for dim in range(1, 8):
        record("VICReg", linear=90.0 - dim, cell={"embedding_dim": dim})
    (note,) = (note for note in leaderboard(task(runs)).notes if "Unequal tuning budgets" in note)
    assert (
        "given, not tuned: VICReg, q=1, VICReg, q=2, VICReg, q=3 and 4 others; 3 tried: AUH, q=512"
        in note
    )


def test_what_a_search_stopped_early_is_no_result(runs: Path, record: Make) -> None:
    record("VICReg", tuning=60.0)
    short = record(
        "VICReg", status="diverged", knn=None, linear=None, cell={"epochs": 1}
    ).parent.name
    waiting = "c" * 12
    planned(
        runs,
        *({"id": name, "label": "VICReg", "seed": 0, "epochs": 1} for name in (short, waiting)),
    )
    assert any(row["epochs"] == "1" for row in grid(leaderboard(task(runs))).values())
    # A step of a search in a task of which there is no result yet.
    begun = record(
        "VICReg", **DIVERGED, cell={"epochs": 1, "dataset": dataset("stl10")}
    ).parent.name
    search = {"short": dict.fromkeys((short, waiting, begun), 3)}
    (runs / "quickstart" / "search.json").write_text(json.dumps(search))
    table = leaderboard(task(runs))
    assert [row["n"] for row in grid(table).values()] == ["1"]
    assert not any("diverged" in note or "not finished" in note for note in table.notes)


def test_an_optimum_at_the_edge_of_what_was_tried_is_marked(runs: Path, record: Make) -> None:
    for label, edges in (("VICReg", {"method.alignment_weight": "largest"}), ("AUH", {})):
        record(
            label,
            choice={"hyperparameters": {"selected_on": "tuning", "budget": 3, "edges": edges}},
        )
    table = leaderboard(task(runs))
    assert [label for label in grid(table) if "‡" in label] == ["VICReg ‡"]
    assert any(
        "so a better value may lie beyond: VICReg (largest alignment_weight)" in n
        for n in table.notes
    )
    marked = leaderboard_frame(task(runs)).set_index("label")["tuning_edges"]
    assert marked.dropna().to_dict() == {"VICReg": "largest method.alignment_weight"}


def test_the_papers_numbers_stand_beside_rows_that_were_chosen_alike(
    runs: Path, record: Make
) -> None:
    in20 = {"dataset": dataset("in20"), "network": backbone("resnet18")}
    sizes = {"embedding_dim": 8192, "batch_size": 2048, "epochs": 100}
    evaluation = settings("VICReg")["evaluation"]
    for split in ("tuning", "test"):
        cell = {**in20, **sizes, "evaluation": evaluation | {"select_on": split}}
        record(
            "SFRIK (L=3)", history=[], sweep=split, cell=cell
        )  # what the test split chose comes last all the same
    column = "paper: linear top-1 (%)"
    assert [grid(leaderboard(each))["SFRIK (L=3)"][column] for each in tasks(runs)] == [
        "47.5",
        "47.6",
    ]


@pytest.mark.parametrize("kind", ["GPU", "CPU"])
def test_energy_is_shown_where_it_was_measured(runs: Path, record: Make, kind: str) -> None:
    record("AUH")
    for table in (leaderboard(task(runs)), cost_table(task(runs))):
        assert not any(
            "energy" in text for text in (*table.notes, *(column.name for column in table.columns))
        )
    record("VICReg", cost={f"energy_{kind.lower()}_joules": 36_000.0, "train_s": 100.0})
    record("SimCLR", cost={f"energy_{kind.lower()}_joules": 36.0, "train_s": 0.0}, linear=60.0)
    table = leaderboard(task(runs))
    assert [row[f"{kind} energy (Wh)"] for row in grid(table).values()] == ["–", "10.00", "0.01"]
    assert [note[:13] for note in table.notes if "energy is" in note] == [f"{kind} energy is"]
    power = {
        label: row[f"{kind} mean power (W)"] for label, row in grid(cost_table(task(runs))).items()
    }
    assert power == {"AUH": "–", "VICReg": "360", "SimCLR": "–"}
    assert (
        cost_table(task(runs)).notes[-1]
        == "Energy is of training alone; power is over the training time."
    )


def test_external_backbones_stand_beside_the_others(runs: Path, record: Make) -> None:
    nothing: dict[str, object] = dict.fromkeys(("embedding_dim", "batch_size", "epochs"))
    external = {"external": {"source": "torchvision:resnet50", "sha256": "0" * 64}}
    record(
        "supervised",
        method="external",
        linear=79.0,
        cost={"train_s": None},
        cell=nothing | external,
    )
    record("VICReg", choice={"hyperparameters": {"selected_on": "tuning", "budget": 3}})
    found = leaderboard(task(runs))
    table = grid(found)
    assert [(label, row["q"]) for label, row in table.items()] == [
        ("supervised", "–"),
        ("VICReg", "512"),
    ]
    assert table["supervised"]["train time (s)"] == "–"
    assert any("Equal tuning budget: 3 configurations" in note for note in found.notes)


def test_methods_over_tasks() -> None:
    """Ranks of the means over seeds, Friedman's p and Nemenyi's distance (Demšar 2006: q =
    2.343 for three methods).
    """
    scores = np.array([80.0, 79.0, 70.0]) + np.random.default_rng(0).normal(
        size=(5, 3, 3)
    )  # task, seed, method
    tasks = {
        name: {label: dict(enumerate(scores[i, :, j])) for j, label in enumerate("abc")}
        for i, name in enumerate(("one", "two", "three", "four", "five"))
    }
    tasks["one"]["d"] = {0: 99.0}
    tasks["one"]["a"][3] = 99.0  # only seeds that all methods have count
    found = compare_over(tasks)
    assert found is not None
    assert (found.tasks, found.left_out) == (["one", "two", "three", "four", "five"], ["d"])
    means = scores.mean(axis=1)
    ranks = (means[:, :, None] < means[:, None, :]).sum(axis=2) + 1
    assert [one.label for one in found.standings] == ["a", "b", "c"]
    assert [one.mean_rank for one in found.standings] == pytest.approx(ranks.mean(axis=0))
    assert found.p == pytest.approx(stats.friedmanchisquare(*means.T).pvalue)
    assert found.critical_difference == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 5)), rel=1e-3)
    assert [one.alike for one in found.standings] == [True, True, False]
    assert found.standings[2].shortfalls == pytest.approx(np.sort(means.max(axis=1) - means[:, 2]))
    assert all(one.low <= one.mean_rank <= one.high for one in found.standings)
    assert found.standings[2].low == found.standings[2].high == 3, "the last in every task"
    table, told = over_tasks_table(found), "not told from the best mean rank"
    assert [row[1].bold for row in table.rows] == [True, True, False]
    assert [row[1].why for row in table.rows] == [
        told,
        told,
        "significantly worse than the best mean rank",
    ]
    assert "[3.0, 3.0]" in grid(table)["c"].values()
    assert f"more than {found.critical_difference:.2f} apart" in table.notes[1]
    assert table.notes[2] == "Left out, for not every task has them: d."
    frame = over_tasks_frame(found)
    assert frame["friedman_p"].tolist() == [found.p] * 3
    assert frame["critical_difference"].tolist() == [found.critical_difference] * 3


def test_below_five_tasks_no_test_speaks_however_many_seeds_there_are() -> None:
    one = {label: {seed: 80.0 - place for seed in range(20)} for place, label in enumerate("abc")}
    found = compare_over(dict.fromkeys(("one", "two", "three", "four"), one))
    assert found is not None
    assert math.isnan(found.p) and math.isnan(found.critical_difference)
    assert all(math.isnan(each.low) and math.isnan(each.high) for each in found.standings)
    assert [(each.mean_rank, each.alike) for each in found.standings] == [
        (1, None),
        (2, None),
        (3, None),
    ]
    table = over_tasks_table(found)
    assert grid(table)["a"]["mean rank"] == "1.00" and not any(
        "95 %" in head for head in grid(table)["a"]
    )
    assert any("Fewer than five tasks" in note for note in table.notes)
    assert not any("Friedman" in note or "Nemenyi" in note for note in table.notes)
    assert over_tasks_frame(found)["critical_difference"].isna().all()


def test_equally_good_methods_are_not_told_apart() -> None:
    """Nor are the first and the last of seven, far apart as they are, where Friedman's test
    finds no difference.
    """
    scores = {"a": {0: 70.0, 1: 71.0}, "b": {0: 70.0, 1: 71.0}, "c": {0: 70.0, 1: 71.0}}
    found = compare_over(dict.fromkeys("vwxyz", scores))
    assert found is not None
    assert found.p == 1 and all(one.alike and one.mean_rank == 2 for one in found.standings)
    places = [
        (5, 6, 2, 1, 4, 3, 7),
        (1, 5, 4, 7, 6, 2, 3),
        (1, 4, 3, 5, 6, 2, 7),
        (1, 6, 2, 3, 4, 5, 7),
        (1, 2, 6, 3, 4, 5, 7),
    ]
    found = compare_over(
        {
            str(i): {f"method {j}": {0: -one} for j, one in enumerate(task)}
            for i, task in enumerate(places)
        }
    )
    assert found is not None and found.p > 0.05
    assert found.standings[-1].mean_rank - found.standings[0].mean_rank > found.critical_difference
    assert all(one.alike for one in found.standings)


def test_intervals_of_mean_ranks_are_over_the_tasks() -> None:
    """The seeds of a task add nothing: only how often each task is drawn counts."""
    one = {"a": {0: 3.0}, "b": {0: 2.0}, "c": {0: 1.0}}
    other = {"a": one["c"], "b": one["b"], "c": one["a"]}
    found = compare_over({"u": one, "v": other, "w": one, "x": other, "y": one, "z": other})
    assert found is not None
    intervals = {each.label: (each.low, each.mean_rank, each.high) for each in found.standings}
    low, high = (float(1 + 2 * stats.binom.ppf(q, 6, 0.5) / 6) for q in (0.025, 0.975))
    assert intervals == {
        "a": pytest.approx((low, 2, high)),
        "b": (2, 2, 2),
        "c": pytest.approx((low, 2, high)),
    }


def test_settings_of_a_task_are_no_tasks_of_their_own(runs: Path, record: Make) -> None:
    """All count alike: here others are two points further below VICReg in the larger dimension."""
    for q in (512, 1024):
        for label, below in (("VICReg", 0.0), ("AUH", 1.0), ("SimCLR", 3.0)):
            linear = 80.0 - below - 2.0 * (q == 1024 and label != "VICReg")
            record(label, linear=linear, cell={"embedding_dim": q})
            record(label, linear=linear, cell={"embedding_dim": q, "dataset": dataset("digits")})
    for name in ("fashion_mnist", "digits"):  # alone in its setting
        record("SFRIK (L=1)", linear=90.0, cell={"embedding_dim": 2048, "dataset": dataset(name)})
    found = over_tasks(tasks(runs))
    assert found is not None and len(found.tasks) == 2
    assert [(one.label, one.shortfalls) for one in found.standings] == [
        ("VICReg", (0, 0)),
        ("AUH", (2, 2)),
        ("SimCLR", (4, 4)),
    ]


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


def test_what_the_test_split_chose_or_has_another_unit_is_no_task(runs: Path, record: Make) -> None:
    chosen_on_test = {"evaluation": settings("VICReg")["evaluation"] | {"select_on": "test"}}
    for label, accuracy in (("VICReg", 80.0), ("AUH", 79.0), ("SimCLR", 77.0)):
        record(label, linear=accuracy)
        record(label, linear=accuracy, cell={"dataset": dataset("digits")})
        record(label, cell={"dataset": dataset("cifar10"), **chosen_on_test})
        record(
            label, cell={"dataset": dataset("stl10")}, scores=(score("error", 1.0, unit="nats"),)
        )
    found = over_tasks(tasks(runs))
    assert found is not None and len(found.tasks) == 2
    assert [row[2:] for row in texts(over_tasks_table(found))[1:]] == [
        ["100", "100", "0.00"],
        ["100", "100", "1.00"],  # a point below is within a point
        ["0", "100", "3.00"],
    ]


@pytest.fixture
def beside(runs: Path, record: Make) -> Summary:
    """Two methods beside all kinds of rows that are no methods.

    Labels come half of the way up from pixels.
    """
    for seed in range(3):
        record("untrained", seed, knn=40.0, linear=50.0 + seed, cell={"epochs": 0})
        record("supervised", seed, knn=90.0, linear=90.0 + seed, cell={"baseline": "supervised"})
        record("VICReg", seed, knn=62.0, linear=75.0 + seed)
        record("SFRIK (L=1)", seed, knn=41.0, linear=57.0 + seed)
    record("raw pixels", knn=41.0, linear=61.0, cell={"epochs": 0, "baseline": "raw_pixels"})
    record("PCA of pixels", knn=61.0, linear=55.0, cell={"epochs": 0, "baseline": "pca"})
    return task(runs)


def test_a_row_has_come_a_share_of_the_way_from_the_best_trivial_row_to_labels(
    beside: Summary,
) -> None:
    table = leaderboard(beside)
    assert list(grid(table)) == [
        "VICReg",
        "SFRIK (L=1)",
        "supervised",
        "raw pixels",
        "PCA of pixels",
        "untrained",
    ]
    assert "supervised" not in grid(cost_table(beside))
    shares = [row["share of the way (%)"] for row in grid(table).values()]
    assert shares == [
        "50",
        "−10",
        "–",
        "–",
        "–",
        "–",
    ]  # (76 − 61) / (91 − 61), (58 − 61) / (91 − 61)
    frame = leaderboard_frame(beside)
    assert frame["linear_top1_minus_trivial"].dropna().tolist() == [15.0, -3.0]
    assert frame["knn_top1_share_percent"].tolist()[0] == pytest.approx(
        100 / 29
    )  # by kNN, PCA is the best trivial row
    assert any("0 is raw pixels" in note for note in table.notes)
    assert table.warning == "Not better than raw pixels by linear top-1: SFRIK (L=1)."
    beside.scores["linear_top1"] = dataclasses.replace(
        beside.scores["linear_top1"], higher_is_better=False
    )
    lowest = beside.best_trivial("linear_top1")
    assert lowest is not None and lowest.label == "untrained"
    assert beside.share(beside.rows[0], "linear_top1") is None  # labels do no better than it


def test_a_report_of_rows_that_are_no_methods_is_written(
    beside: Summary, runs: Path, record: Make
) -> None:
    measured = {"name": "knn_top1", "split": "tuning", "protocol": "", "title": "kNN top-1"}
    for label, baseline in (("supervised", {"baseline": "supervised"}), ("VICReg", {})):
        history = [
            {"epoch": e, "loss": 1.0, "epoch_s": 1.0, "scores": [{**measured, "value": 50.0}]}
            for e in (1, 2)
        ]
        record(label, 3, cell=baseline, history=history)
    written = write_report(runs, runs / "report")
    assert "supervised" in written.leaderboard
    drawn = re.findall(r'<g class="[^>]*><title>([^<:]*)', written.page.read_text())
    assert "VICReg" in drawn
    assert "supervised" not in drawn


def test_contrast_by_labels_is_neither_a_competitor_nor_the_end_of_the_way(
    runs: Path, record: Make
) -> None:
    for seed in range(3):
        record("SupCon", seed, linear=95.0 + seed, cell={"baseline": "supcon"})
        record("supervised", seed, linear=90.0 + seed, cell={"baseline": "supervised"})
        record("untrained", seed, linear=60.0 + seed, cell={"epochs": 0})
        record("VICReg", seed, linear=75.0 + seed)
    rows = grid(leaderboard(task(runs)))
    assert {
        label: row["share of the way (%)"]
        for label, row in rows.items()
        if row["share of the way (%)"] != "–"
    } == {"VICReg": "50"}
    assert [label for label, row in rows.items() if row[LINEAR].startswith("**")] == ["VICReg"]


def test_a_task_on_which_pixels_win_measures_no_representation_learning(
    runs: Path, record: Make
) -> None:
    record("VICReg", linear=60.0)
    record("untrained", linear=50.0, cell={"epochs": 0})
    record("raw pixels", linear=61.0, cell={"epochs": 0, "baseline": "raw_pixels"})
    table = leaderboard(task(runs))
    assert table.warning is not None
    assert table.warning.startswith(
        "No row is better than raw pixels by linear top-1: this task measures no represen"
    )
    assert grid(table)["VICReg"]["linear − raw pixels"] == "−1.00"
