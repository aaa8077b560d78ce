from __future__ import annotations

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

from regbench.reports.find.records import read_records
from regbench.reports.rows.significance import holm
from regbench.reports.rows.summary import Summary, summarize
from regbench.reports.tables import tables
from regbench.reports.tables.paper_tables import paper_tables
from tests.records import chosen, ranked, tuning_choice
from tests.reports.conftest import METHODS, backbone, dataset, score, settings

Make = Callable[..., Path]


@pytest.fixture
def summary(runs: Path) -> Callable[[], Summary]:
    def read() -> Summary:
        found = read_records(runs)
        (one,) = summarize(found.records, found.missing, found.choices)
        return one

    return read


def grid(table: tables.Table) -> dict[str, dict[str, str]]:
    """Row name -> column -> text, with ** around what is bold."""
    heads = [column.name for column in table.columns]
    texts = [[f"**{c.text}**" if c.bold else c.text for c in row] for row in table.rows]
    return {row[0]: dict(zip(heads, row, strict=True)) for row in texts}


KNN, LINEAR = "kNN top-1 (%)", "linear top-1 (%)"


@pytest.fixture
def golden(runs: Path, record: Make, summary: Callable[[], Summary]) -> Summary:
    """Three rows in which no two numbers are the same, so that none can stand in for another."""
    for i in range(3):
        for k, label in enumerate(("VICReg", "AUH")):
            number = i + 10 * k
            values = {
                ("knn_top1", "test"): 70.0 + i - 8 * k,
                ("linear_top1", "test"): 77.0 + 2 * i - 9 * k * (i + 1) / 2,
                ("linear_top5", "test"): 91.0 + i / 2 - k,
                ("voc07_map", "test"): 55.0 + i / 4 - k,
                ("alignment", "test"): 1.5 + i / 10 + k,
                ("knn_top1", "tuning"): 61.0 + i / 5 - 3 * k,
                ("linear_top1", "tuning"): 66.0 + i / 8 - 4 * k,
            }
            record(
                label,
                i,
                scores=tuple(score(name, v, s, "" if name == "alignment" else "%") for (name, s), v in values.items()),
                cost={
                    "train_s": 3600.0 * (11 + number),
                    "evaluate_s": 60.0 * (21 + 2 * number),
                    "img_per_s": 1500.0 + 100 * number,
                    "step_ms": 150.0 + 10 * number,
                    "loss_ms": 4.0 + number / 4,
                    "peak_memory_bytes": (5 + number / 8) * 2**30,
                    "peak_memory_kind": "CUDA allocated",
                    "energy_gpu_joules": 3.6e6 * (13 + 3 * number),
                    "energy_cpu_joules": 3600.0 * (31 + 4 * number),
                },
                history=[
                    {"epoch": 1, "effective_rank": 400.0, "alignment": 3.0},
                    {"epoch": 2, "effective_rank": 50.0 + 2 * number, "alignment": 0.2 + number / 50},
                ],
                choice={"hyperparameters": {"selected_on": "tuning", "budget": 16 + k, "score": "knn_top1"}},
                cell={"method": {"name": METHODS[label], "alignment_weight": 125.0 + k}},
            )
    record("untrained", 0, knn=49.0, linear=59.5)
    plan = [{"id": f"{i:012x}", "label": "VICReg", "seed": 3 + i, "epochs": 3} for i in range(2)]
    plan += [{"id": "f" * 12, "label": "VICReg", "seed": 1, "epochs": 3}]  # its seed is finished
    (runs / "quickstart" / "sweep.json").write_text(json.dumps({"cells": plan}))
    return summary()


def texts(table: tables.Table) -> list[list[str]]:
    """The head and the rows, with ** around what is bold."""
    head = [column.name for column in table.columns]
    return [head, *([f"**{c.text}**" if c.bold else c.text for c in row] for row in table.rows)]


def test_golden_leaderboard(golden: Summary) -> None:
    head = ["method", KNN, LINEAR, "n", "linear − untrained", "effective rank", "alignment", "train time (h)"]
    head += ["images/s", "loss (ms/step)", "peak memory (GiB)", "GPU energy (kWh)", "CPU energy (Wh)"]
    auh = ["AUH", "63.00 ± 1.00", "**70.00 ± 2.50**", "3", "+10.50", "72.0 ± 2.0", "0.42 ± 0.02", "22.00", "2,600"]
    vicreg = [
        "VICReg",
        "**71.00 ± 1.00**",
        "**79.00 ± 2.00**",
        "3 of 5",
        "+19.50",
        "52.0 ± 2.0",
        "0.22 ± 0.02",
        "12.00",
    ]
    assert texts(tables.leaderboard(golden)) == [
        head,
        [*vicreg, "1,600", "4.25", "5.12", "16.00", "35.00"],
        [*auh, "6.75", "6.38", "46.00", "75.00"],
        ["untrained", "49.00", "59.50", "1", *["–"] * 9],
    ]


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
        "knn_top1_percent": [71.0, 63.0, 49.0],
        "knn_top1_percent_std": [1.0, 1.0, None],
        "knn_top1_n": [3, 3, 1],
        "knn_top1_best": [True, False, False],
        "knn_top1_minus_untrained": [22.0, 14.0, None],
        "linear_top1_percent": [79.0, 70.0, 59.5],
        "linear_top1_percent_std": [2.0, 2.5, None],
        "linear_top1_n": [3, 3, 1],
        "linear_top1_best": [True, True, False],
        "linear_top1_minus_untrained": [19.5, 10.5, None],
        "train_s": [43200.0, 79200.0, None],
        "img_per_s": [1600.0, 2600.0, None],
        "step_ms": [160.0, 260.0, None],
        "loss_ms": [4.25, 6.75, None],
        "peak_memory_bytes": [5.125 * 2**30, 6.375 * 2**30, None],
        "energy_gpu_joules": [16 * 3.6e6, 46 * 3.6e6, None],
        "energy_cpu_joules": [35 * 3600.0, 75 * 3600.0, None],
        "effective_rank": [52.0, 72.0, None],
        "effective_rank_std": [2.0, 2.0, None],
        "alignment": [0.22, 0.42, None],
        "alignment_std": [0.02, 0.02, None],
        "paper_linear_top1_percent": [None] * 3,
    }
    frame = tables.leaderboard_frame(golden)
    assert list(frame.columns) == list(expected)
    for name, values in expected.items():
        found = [None if pd.isna(value) else value for value in frame[name]]
        assert found == [pytest.approx(v) if isinstance(v, float) else v for v in values], name


def test_golden_accuracies(golden: Summary) -> None:
    head = ["method", "kNN top-1 (%), test", "linear top-1 (%), test", "linear top-5 (%), test"]
    head += ["VOC07 mAP, 11-point (%), test", "alignment, test", "kNN top-1 (%), tuning", "linear top-1 (%), tuning"]
    vicreg = ["**71.00 ± 1.00**", "**79.00 ± 2.00**", "**91.50 ± 0.50**", "**55.25 ± 0.25**", "1.60 ± 0.10"]
    auh = ["63.00 ± 1.00", "**70.00 ± 2.50**", "90.50 ± 0.50", "54.25 ± 0.25", "2.60 ± 0.10"]
    assert texts(tables.accuracy_table(golden)) == [
        head,
        ["VICReg", *vicreg, "61.20 ± 0.20", "66.12 ± 0.12"],
        ["AUH", *auh, "58.20 ± 0.20", "62.12 ± 0.12"],
        ["untrained", "49.00", "59.50", *["–"] * 5],
    ]


def test_golden_costs(golden: Summary) -> None:
    head = ["method", "training (h)", "evaluation (min)", "images/s", "step (ms)", "loss (ms/step)", "loss / step (%)"]
    assert texts(tables.time_table(golden)) == [
        head,
        ["VICReg", "12.00 ± 1.00", "23.0 ± 2.0", "1,600 ± 100", "160.0 ± 10.0", "4.25 ± 0.25", "2.7"],
        ["AUH", "22.00 ± 1.00", "43.0 ± 2.0", "2,600 ± 100", "260.0 ± 10.0", "6.75 ± 0.25", "2.6"],
    ]
    assert texts(tables.memory_table(golden)) == [
        ["method", "peak memory (GiB)", "measured as"],
        ["VICReg", "5.12 ± 0.12", "CUDA allocated"],
        ["AUH", "6.38 ± 0.12", "CUDA allocated"],
    ]
    energy = tables.energy_table(golden)
    assert energy is not None
    assert texts(energy) == [
        ["method", "GPU energy (kWh)", "GPU mean power (W)", "CPU energy (Wh)", "CPU mean power (W)"],
        ["VICReg", "16.00 ± 3.00", "1,333", "35.00 ± 4.00", "3"],
        ["AUH", "46.00 ± 3.00", "2,091", "75.00 ± 4.00", "3"],
    ]


def test_golden_hyperparameters(golden: Summary) -> None:
    head = ["method", "q", "batch", "epochs", "hyperparameters", "kNN top-1 (%), tuning", "n", "chosen on", "tried"]
    assert texts(tables.hyperparameters_table(golden)) == [
        head,
        ["AUH", "512", "256", "3", "alignment_weight=126.0", "58.20 ± 0.20", "3", "tuning", "17"],
        ["VICReg", "512", "256", "3", "alignment_weight=125.0", "61.20 ± 0.20", "3", "tuning", "16"],
    ]


def test_golden_significance(record: Make, summary: Callable[[], Summary]) -> None:
    """Differences of 5 ± 1, 12 ± 2 and 7 ± 1 over three seeds. With two degrees of freedom p = 1 − t/√(t² + 2)."""
    for seed in range(3):
        record("AUH", seed, linear=80.0 + 3 * seed, knn=None)
        record("SimCLR", seed, linear=76.0 + 2 * seed, knn=None)
        record("VICReg", seed, linear=70.0 + seed, knn=None)
    p = {t2: 1 - math.sqrt(t2 / (t2 + 2)) for t2 in (75, 108, 147)}  # t² = 3 (mean / deviation)²
    largest = 3 * p[147]  # of three; twice the next p and the last p alone are smaller, and never fall below
    assert largest > 2 * p[108] > p[75] > 0.01
    frame = tables.significance_frame(summary())
    assert frame.drop(columns=["p", "p_holm"]).to_numpy().tolist() == [
        ["linear_top1", "AUH", "SimCLR", 3, 5.0],
        ["linear_top1", "AUH", "VICReg", 3, 12.0],
        ["linear_top1", "SimCLR", "VICReg", 3, 7.0],
    ]
    assert frame["p"].tolist() == pytest.approx([p[75], p[108], p[147]])
    assert frame["p_holm"].tolist() == pytest.approx([largest] * 3)
    assert texts(tables.significance_table(summary())) == [
        ["", "1", "2", "3"],
        ["1. AUH", "–", "0.013", "0.009"],
        ["2. SimCLR", "0.013", "–", "0.007"],
        ["3. VICReg", "0.009", "0.007", "–"],
    ]


@pytest.mark.parametrize(
    ("p", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.02, 0.021], [0.04, 0.04]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([0.03], [0.03]),
        ([0.04, math.nan, 0.01], [0.04, math.nan, 0.02]),
        ([], []),
    ],
)
def test_holms_correction(p: list[float], corrected: list[float]) -> None:
    assert holm(p) == pytest.approx(corrected, nan_ok=True)


@pytest.mark.parametrize(("lost", "bold"), [(3.257, True), (4.7, False)])
def test_bold_is_by_the_corrected_p(record: Make, summary: Callable[[], Summary], lost: float, bold: bool) -> None:
    """Two rows that lose by 3.257 ± 1 on three seeds have p = 0.03 each, 0.06 corrected; by 4.7 ± 1, 0.015 and 0.03."""
    for seed in range(3):
        record("AUH", seed, linear=80.0)
        record("SimCLR", seed, linear=80.0 - lost + seed - 1)
        record("VICReg", seed, linear=80.0 - lost + (2 * seed) % 3 - 1)
    assert [row[2].bold for row in tables.leaderboard(summary()).rows] == [True, bold, bold]


def test_mean_and_spread_over_seeds(record: Make, summary: Callable[[], Summary]) -> None:
    knn, linear = [70.0, 71.5, 70.2], [75.0, 74.0, 76.6]
    for seed in range(3):
        record("VICReg", seed, knn=knn[seed], linear=linear[seed], cost={"train_s": 30.0 + 3 * seed})
    row = grid(tables.leaderboard(summary()))["VICReg"]
    assert row[KNN] == f"**{np.mean(knn):.2f} ± {np.std(knn, ddof=1):.2f}**"
    assert row[LINEAR] == f"**{np.mean(linear):.2f} ± {np.std(linear, ddof=1):.2f}**"
    assert row["n"] == "3"
    assert row["train time (s)"] == "33.0"
    assert row["loss (ms/step)"] == "4.00"
    assert row["images/s"] == "1,600"
    assert row["peak memory (MiB)"] == "800"
    time = grid(tables.time_table(summary()))["VICReg"]
    assert time["training (s)"] == f"33.0 ± {np.std([30, 33, 36], ddof=1):.1f}"
    assert time["loss / step (%)"] == "2.5"


def test_one_seed_has_no_spread(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", knn=70.0)
    assert grid(tables.leaderboard(summary()))["VICReg"][KNN] == "**70.00**"


def test_best_is_bold_in_its_column_only(record: Make, summary: Callable[[], Summary]) -> None:
    record("AUH", knn=72.0, linear=74.0)
    record("VICReg", knn=70.0, linear=76.0)
    record("SimCLR", knn=72.001, linear=75.0)
    table = grid(tables.leaderboard(summary()))
    assert list(table) == ["VICReg", "SimCLR", "AUH"]  # by linear probing
    bold = {(row, column) for row, cells in table.items() for column, text in cells.items() if "**" in text}
    assert bold == {("VICReg", LINEAR), ("AUH", KNN), ("SimCLR", KNN)}  # 72.00 is printed twice


def test_the_untrained_row_is_last_and_the_base_of_the_gain(record: Make, summary: Callable[[], Summary]) -> None:
    record("untrained", knn=80.0, linear=73.5)
    record("VICReg", linear=75.0)
    record("SFRIK (L=1)", linear=70.0)
    table = grid(tables.leaderboard(summary()))
    assert list(table) == ["VICReg", "SFRIK (L=1)", "untrained"]
    assert [row["linear − untrained"] for row in table.values()] == ["+1.50", "−3.50", "–"]
    assert table["untrained"]["train time (s)"] == "–"
    assert table["untrained"]["peak memory (MiB)"] == "–"
    assert "untrained" not in grid(tables.time_table(summary()))


def test_untrained_cells_of_several_methods_are_one_row(record: Make, summary: Callable[[], Summary]) -> None:
    for q in (512, 1024):
        record("VICReg", cell={"embedding_dim": q})
        record("untrained", cell={"embedding_dim": q})
    record("untrained", seed=1)
    table = tables.leaderboard(summary())
    assert [row[0].text for row in table.rows].count("untrained") == 1
    assert [c.text for c in table.rows[-1][:2]] == ["untrained", "–"]
    assert grid(table)["untrained"]["n"] == "2"


def test_without_linear_probing_knn_leads(record: Make, summary: Callable[[], Summary]) -> None:
    record("AUH", knn=70.0, linear=None)
    record("VICReg", knn=71.0, linear=None)
    record("untrained", knn=60.0, linear=None)
    table = grid(tables.leaderboard(summary()))
    assert list(table) == ["VICReg", "AUH", "untrained"]
    assert table["AUH"][LINEAR] == "–"
    assert table["AUH"]["knn − untrained"] == "+10.00"


def test_a_seed_without_the_score_shows_in_its_n(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", 0, linear=75.0)
    record("VICReg", 1, linear=None)
    row = grid(tables.leaderboard(summary()))["VICReg"]
    assert row["n"] == "2"
    assert row[LINEAR] == "**75.00 (n=1)**"


def test_diverged_cells_are_marked_and_counted(record: Make, summary: Callable[[], Summary]) -> None:
    gone = {"status": "diverged", "knn": None, "linear": None, "tuning": None}
    record("VICReg", 0, knn=70.0)
    record("VICReg", 1, **gone)
    record("AUH")
    record("SimCLR", **gone)
    table = tables.leaderboard(summary())
    assert "70.00" in grid(table)["VICReg †"][KNN]
    assert grid(table)["VICReg †"]["n"] == "2"
    assert grid(table)["SimCLR †"][KNN] == "–"
    assert any("VICReg (1 of 2 cells), SimCLR (1 of 1 cells)" in note for note in table.notes)


def test_a_configuration_that_diverged_is_not_chosen(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", tuning=60.0, linear=61.0, cell={"method": {"name": "vicreg", "alignment_weight": 1.0}})
    record("VICReg", tuning=65.0, linear=66.0, cell={"method": {"name": "vicreg", "alignment_weight": 2.0}})
    gone = {"status": "diverged", "knn": None, "linear": None, "tuning": None}
    record("VICReg", **gone, cell={"method": {"name": "vicreg", "alignment_weight": 9.0}})
    assert "66.00" in grid(tables.leaderboard(summary()))["VICReg"][LINEAR]


def test_columns_without_a_number_are_left_out(record: Make, summary: Callable[[], Summary]) -> None:
    record("quadratic")
    heads = {column.name for column in tables.leaderboard(summary()).columns}
    assert not any("untrained" in head for head in heads)
    record("untrained")
    record("VICReg")
    table = grid(tables.leaderboard(summary()))
    assert table["quadratic"]["linear − untrained"] == "+0.00"


@pytest.mark.parametrize("name", ["fashion_mnist", "imagefolder"])
def test_the_papers_number_stands_beside_nothing_else(record: Make, summary: Callable[[], Summary], name: str) -> None:
    record("VICReg", cell=_in20(8192, dataset=dataset(name)))
    assert not any("paper" in column.name for column in tables.leaderboard(summary()).columns)
    assert tables.leaderboard_frame(summary())["paper_linear_top1_percent"].isna().all()


def test_the_papers_number_stands_beside_the_same_experiment(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", cell=_in20(8192), linear=45.0)
    record("AUH", cell=_in20(2048), linear=44.0)
    record("AUH", cell=_in20(512), linear=43.0)  # the paper has no such q
    table = tables.leaderboard(summary())
    place = [column.name for column in table.columns].index("paper: linear top-1 (%)")
    assert [row[place].text for row in table.rows] == ["46.0", "45.9", "–"]
    assert tables.leaderboard_frame(summary())["paper_linear_top1_percent"].tolist()[:2] == [46.0, 45.9]


def test_effective_rank_and_alignment_are_those_at_the_end(record: Make, summary: Callable[[], Summary]) -> None:
    def history(rank: float, alignment: float) -> list[dict[str, float]]:
        return [
            {"epoch": 1, "effective_rank": 400.0, "alignment": 3.0},
            {"epoch": 2, "effective_rank": rank, "alignment": alignment},
        ]

    record("VICReg", 0, linear=75.0, history=history(60.0, 0.51))
    record("VICReg", 1, linear=75.0, history=history(63.0, 0.55))
    record("VICReg", 2, linear=None, knn=None, status="diverged", history=history(1.0, 0.0))
    record("AUH", 0, linear=74.0, history=[])
    record("untrained", 0, linear=60.0)
    table = tables.leaderboard(summary())
    shown = [(row["effective rank"], row["alignment"]) for row in grid(table).values()]
    assert shown == [("61.5 ± 2.1", "0.53 ± 0.03"), ("–", "–"), ("–", "–")]
    assert any("last training batch" in note for note in table.notes)
    first = tables.leaderboard_frame(summary()).to_dict("records")[0]
    numbers = [first[name] for name in ("effective_rank", "effective_rank_std", "alignment", "alignment_std")]
    assert numbers == pytest.approx([61.5, 4.5**0.5, 0.53, 0.0008**0.5])


def test_without_a_history_there_is_no_effective_rank(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", history=[])
    assert not {"effective rank", "alignment"} & {column.name for column in tables.leaderboard(summary()).columns}


def test_settings_that_vary_become_columns(record: Make, summary: Callable[[], Summary]) -> None:
    for q in (1024, 2048):
        record(
            "VICReg",
            linear=70 + q / 1024,
            cell={"embedding_dim": q, "network": backbone("r", hidden_dim=q)},
        )
    table = tables.leaderboard(summary())
    assert [c.name for c in table.columns[:3]] == ["method", "q", KNN]  # hidden_dim says the same as q
    assert [[c.text for c in row[:2]] for row in table.rows] == [["VICReg", "2048"], ["VICReg", "1024"]]


def test_the_tuning_split_chooses_not_the_test_split(record: Make, summary: Callable[[], Summary]) -> None:
    def weight(value: float) -> dict[str, object]:
        return {"method": {"name": "vicreg", "alignment_weight": value}}

    for seed in (0, 1):
        record("VICReg", seed, cell=weight(1.0), tuning=60.0, linear=99.0)
        record("VICReg", seed, cell=weight(2.0), tuning=65.0 + seed, linear=75.0 + seed)
    table = tables.leaderboard(summary())
    assert len(table.rows) == 1
    row = grid(table)["VICReg"]
    assert row[LINEAR].startswith("**75.50 ±")
    assert row["n"] == "2"
    assert any("tuning split" in note for note in table.notes)
    tried = tables.hyperparameters_table(summary())
    shown = {row[4].text: row[-1].text for row in tried.rows}
    assert shown == {"alignment_weight=1.0": "no", "alignment_weight=2.0": "yes"}


def test_without_a_tuning_score_nothing_is_chosen(record: Make, summary: Callable[[], Summary]) -> None:
    record("AUH")
    record("VICReg", cell={"optimizer": {"base_lr": 1.0}}, tuning=60.0)
    record("VICReg", cell={"optimizer": {"base_lr": 2.0}})
    table = tables.leaderboard(summary())
    assert list(grid(table)) == ["AUH"]
    assert any("VICReg (2)" in note for note in table.notes)


def test_sweeps_of_one_task_share_a_leaderboard(runs: Path, record: Make) -> None:
    record("VICReg", sweep="quickstart")
    record("VICReg", sweep="mine")  # the same cell
    record("quadratic", sweep="mine")
    record("AUH", sweep="mine", cell={"dataset": dataset("stl10")})
    first, second = summarize(read_records(runs).records)
    names = {s.name: [row.label for row in s.rows] for s in (first, second)}
    assert names == {"mine": ["AUH"], "mine + quickstart": ["VICReg", "quadratic"]}
    assert len(second.records) == 2


def test_tasks_of_one_sweep_are_told_apart(runs: Path, record: Make) -> None:
    record("VICReg")
    record("VICReg", cell={"dataset": dataset("stl10")})
    other = settings("VICReg")["evaluation"] | {"knn": {"k": 200}}
    record("VICReg", cell={"dataset": dataset("stl10"), "evaluation": other})
    names = {s.name for s in summarize(read_records(runs).records)}
    assert names == {
        "quickstart: fashion_mnist, resnet_tiny",
        "quickstart: stl10, resnet_tiny",
        "quickstart: stl10, resnet_tiny (another evaluation or image size)",
    }


def test_unequal_machines_are_told(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", environment={"hardware": "GPU A"})
    record("AUH", environment={"hardware": "GPU B", "git": None}, cost={"peak_memory_kind": "CUDA allocated"})
    notes = " ".join(tables.leaderboard(summary()).notes)
    assert "GPU A" in notes
    assert "GPU B" in notes
    assert "abc1234, unknown" in notes
    assert "CUDA allocated, process RSS" in notes


def test_units_grow_with_the_values(record: Make, summary: Callable[[], Summary]) -> None:
    record(cost={"train_s": 7200.0, "peak_memory_bytes": 10 * 2**30})
    row = grid(tables.leaderboard(summary()))["VICReg"]
    assert row["train time (min)"] == "120.0"
    assert row["peak memory (GiB)"] == "10.00"


def test_leaderboard_frame_holds_the_numbers(record: Make, summary: Callable[[], Summary]) -> None:
    for seed, value in enumerate((74.0, 77.0)):
        record("SFRIK (L=3)", seed, linear=value)
    record("untrained", linear=70.0)
    frame = tables.leaderboard_frame(summary()).set_index("label")
    row = frame.loc["SFRIK (L=3)"]
    assert row["linear_top1_percent"] == 75.5
    assert row["linear_top1_percent_std"] == pytest.approx(np.std([74, 77], ddof=1))
    assert row["linear_top1_minus_untrained"] == 5.5
    assert row["linear_top1_best"]
    assert frame["train_s"].isna().to_dict() == {"SFRIK (L=3)": False, "untrained": True}


def _in20(q: int, **more: object) -> dict[str, object]:
    """A cell of the paper's experiments on IN20 %."""
    place = {"dataset": dataset("in20"), "network": backbone("resnet18")}
    return {"embedding_dim": q, "batch_size": 2048, "epochs": 100, **place, **more}


def test_table_2_of_the_paper(record: Make, summary: Callable[[], Summary]) -> None:
    for seed, value in enumerate((46.0, 47.0)):
        record("SFRIK (L=3)", seed, sweep="in20_table2", linear=value, cell=_in20(8192))
    record("VICReg", sweep="in20_table2", linear=41.0, cell=_in20(1024))
    record("AUH", sweep="in20_table2", linear=41.0, cell=_in20(1024, epochs=2))  # not the paper's epochs
    (table, frame) = paper_tables([summary()])[0]
    assert table.slug == "paper_table2"
    methods = ["SimCLR", "AUH", "VICReg", "SFRIK (L=1)", "SFRIK (L=2)", "SFRIK (L=3)"]
    assert [c.name for c in table.columns] == ["", *methods]
    cells = grid(table)
    assert list(cells) == ["q = 1024", "q = 2048", "q = 4096", "q = 8192"]
    assert cells["q = 8192"]["SFRIK (L=3)"] == "46.50 ± 0.71 / 47.5 / −1.00"
    assert cells["q = 1024"]["VICReg"] == "41.00 / 40.6 / +0.40"
    assert cells["q = 1024"]["AUH"] == "– / 45.3 / –"
    assert cells["q = 1024"]["SFRIK (L=3)"] == "–"
    assert any("1 of our rows" in note for note in table.notes)
    assert frame["difference"].notna().sum() == 2


def test_tables_3_and_4_of_the_paper(runs: Path, record: Make) -> None:
    record("RBF kernel", sweep="mine", linear=40.3, cell=_in20(8192))
    record("SFRIK (L=2)", sweep="mine", linear=71.0, cell=_in100(8192, epochs=400))
    found = {table.slug: table for table, _ in paper_tables(summarize(read_records(runs).records))}
    assert set(found) == {"paper_table3", "paper_table4", "paper_table10", "paper_table11"}
    table3, table4 = found["paper_table3"], found["paper_table4"]
    assert [row[1].text for row in table3.rows] == ["40.30 / 41.3 / −1.00", "– / 27.8 / –", "– / 47.5 / –"]
    cells = grid(table4)
    assert len(cells) == 10
    assert cells["SFRIK (L=2), q = 8192, 400 epochs"][LINEAR] == "71.00 / 70.8 / +0.20"
    assert cells["SFRIK (L=2), q = 8192, 200 epochs"][LINEAR] == "– / 70.1 / –"
    assert cells["SwAV, 200 epochs"][LINEAR] == "– / 69.1 / –"
    assert cells["SwAV, 200 epochs"]["VOC07 mAP (%)"] == "–"


def _in100(q: int, **more: object) -> dict[str, object]:
    """A cell of the paper's experiments on IN100 %."""
    place = {"dataset": dataset("in100"), "network": backbone("resnet50")}
    return {"embedding_dim": q, "batch_size": 2048, "epochs": 200, **place, **more}


def test_table_5_of_the_paper(runs: Path, record: Make) -> None:
    eight = {"world_size": 8}
    for label, gigabytes in (("VICReg", 22.0), ("SFRIK (L=2)", 10.0), ("SFRIK (L=3)", 9.9)):
        cost = {"peak_memory_bytes": int(gigabytes * 1e9), "peak_memory_kind": "CUDA allocated"}
        cell = _in100(32768, batch_size=256, epochs=3)
        record(label, cell=cell, cost=cost, environment=eight)
        record(label, cell=cell | {"batch_size": 512}, cost=cost, environment={"world_size": 1})
    found = {table.slug: table for table, _ in paper_tables(summarize(read_records(runs).records))}
    assert set(found) == {"paper_table5"}
    cells = grid(found["paper_table5"])
    assert cells["batch 256"]["VICReg (GB)"] == "22.00 / 22.5 / −0.50"
    assert cells["batch 256"]["SFRIK (GB)"] == "10.00 / 10.3 / −0.30"
    assert cells["batch 256"]["VICReg / SFRIK"] == "2.20 / 2.2 / +0.00"
    assert cells["batch 512"]["VICReg (GB)"] == "– / 25.4 / –"


def test_hyperparameter_tables_of_the_paper(runs: Path, record: Make) -> None:
    method = {"name": "sfrik", "alignment_weight": 4000.0, "weights": [1.0, 20.0]}
    record("SFRIK (L=2)", cell=_in20(8192, method=method, optimizer={"base_lr": 1.2}))
    ninth = {table.slug: table for table, _ in paper_tables(summarize(read_records(runs).records))}["paper_table9"]
    assert grid(ninth)["SFRIK (L=2), q = 8192"] == {
        "": "SFRIK (L=2), q = 8192",
        "alignment weight λ": "4000 / 2000 / +2000",
        "b1": "1 / 1 / 0",
        "b2": "20 / 20 / 0",
        "b3": "0 / 0 / 0",
        "base_lr": "1.2 / 1 / +0.2",
        "lr_head": "0.5 / 10 / −9.5",
    }


def test_rows_chosen_on_the_test_set_stand_apart(runs: Path, record: Make) -> None:
    on_test = {"hyperparameters": {"selected_on": "test", "budget": 4}}
    record("SFRIK (L=3)", linear=47.0, cell=_in20(8192))
    record("SFRIK (L=3)", linear=48.0, cell=_in20(8192, optimizer={"base_lr": 2.0}), choice=on_test)
    first, second = summarize(read_records(runs).records)
    assert [s.on_test for s in (first, second)] == [False, True]
    assert [len(s.rows) for s in (first, second)] == [1, 1]
    assert "chosen on the test set" in second.name
    table = tables.leaderboard(second)
    assert "chosen on the test set" in table.title
    assert any("optimistic" in note for note in table.notes)
    found = {table.slug: grid(table) for table, _ in paper_tables([first, second])}
    assert found["paper_table2"]["q = 8192"]["SFRIK (L=3)"] == "47.00 / 47.5 / −0.50"
    assert found["paper_table13"]["q = 8192"]["SFRIK (L=3)"] == "48.00 / 47.6 / +0.40"


def test_bold_within_significance(record: Make, summary: Callable[[], Summary]) -> None:
    """Three methods: the best; one that loses on every seed by much the same; one within the best's spread."""
    for seed, luck in enumerate((0.0, 1.0, 2.0, 3.0)):
        record("AUH", seed, linear=75.0 + luck + 0.02 * (-1) ** seed)
        record("VICReg", seed, linear=74.5 + luck)
        record("SimCLR", seed, linear=75.0 + (0.5, 1.5, 1.0, 2.5)[seed])
    table = tables.leaderboard(summary())
    bold = {row[0].text for row in table.rows if row[2].bold}
    assert bold == {"AUH", "SimCLR"}
    assert any("up to 2 comparisons" in note for note in table.notes)
    p = grid(tables.significance_table(summary()))
    expected = stats.ttest_rel([75.5, 76.5, 76.0, 77.5], [74.5, 75.5, 76.5, 77.5]).pvalue
    assert p["2. SimCLR"]["3"] == f"{expected:.3f}"
    assert p["1. AUH"]["3"] == "<0.001"
    frame = tables.significance_frame(summary())
    linear = frame[frame["score"] == "linear_top1"]
    assert len(linear) == 3
    assert linear["p_holm"].max() >= linear["p"].max()


def test_a_lower_mean_in_bold_is_explained(record: Make, summary: Callable[[], Summary]) -> None:
    for seed, (varied, lost) in enumerate(((3.0, 0.5), (-0.5, 0.5), (1.5, 0.52))):
        record("AUH", seed, linear=70.0 + seed)
        record("SimCLR", seed, linear=70.0 + seed - lost)
        record("VICReg", seed, linear=70.0 + seed - varied)
    (note,) = (note for note in tables.leaderboard(summary()).notes if note.startswith("No mistake"))
    assert "VICReg (69.67) is bold and SimCLR (70.49) is not" in note
    assert "much the same on every seed" in note
    record("DCL", 0, linear=70.9)
    table = tables.leaderboard(summary())
    assert [(row[0].text, row[2].text, row[2].bold) for row in table.rows] == [
        ("AUH", "71.00 ± 1.00", True),
        ("DCL", "70.90", False),
        ("SimCLR", "70.49 ± 0.99", False),
        ("VICReg", "69.67 ± 2.36", True),
    ]
    assert [row[2].why for row in table.rows] == [
        "the best mean of this column",
        "not tested against the best: fewer than 3 seeds in common",
        "significantly different from the best: p = 0.00035 (paired t-test, Holm's correction)",
        "not significantly different from the best: p = 0.32 (paired t-test, Holm's correction)",
    ]
    (note,) = (note for note in table.notes if note.startswith("No mistake"))
    assert "in linear top-1, VICReg (69.67) is bold and DCL (70.90) is not" in note
    assert "shares too few seeds" in note
    assert note in tables.accuracy_table(summary()).notes


def test_what_is_printed_alike_is_bold_alike(record: Make, summary: Callable[[], Summary]) -> None:
    for seed in range(3):
        record("AUH", seed, linear=70.001)
        record("SimCLR", seed, linear=70.002)
    table = tables.leaderboard(summary())
    assert [row[2].bold for row in table.rows] == [True, True]
    assert table.rows[1][2].why.startswith("the same as the best, as printed; significantly different from the best")
    assert not any(note.startswith("No mistake") for note in table.notes)


def test_with_two_shared_seeds_nothing_is_said(record: Make, summary: Callable[[], Summary]) -> None:
    for seed in range(3):
        record("AUH", seed, linear=75.0)
        record("VICReg", seed + 1, linear=74.99)
    table = tables.leaderboard(summary())
    assert [row[0].text for row in table.rows if row[2].bold] == ["AUH"]
    assert any("Differences were not tested" in note for note in table.notes)
    record("SimCLR", 0, linear=70.0)
    record("SimCLR", 1, linear=70.1)
    record("SimCLR", 2, linear=70.2)
    notes = tables.leaderboard(summary()).notes
    assert any(note.startswith("Too few seeds to say") and "VICReg" in note for note in notes)
    assert grid(tables.significance_table(summary()))["1. AUH"]["2"] == "–"


def test_missing_cells_show_as_missing(runs: Path, record: Make, summary: Callable[[], Summary]) -> None:
    one = json.loads(record("VICReg", 0).read_text())
    record("AUH", 0)
    plan = [{"id": one["cell_id"], "label": "VICReg", "seed": 0, "epochs": 3}]
    plan += [{"id": f"{i:012x}", "label": "VICReg", "seed": i, "epochs": 3} for i in (1, 2)]
    plan += [{"id": f"{i:012x}", "label": "SimCLR", "seed": i, "epochs": 3} for i in (3, 4, 5)]
    plan += [{"id": "f" * 12, "label": "AUH", "seed": 9, "epochs": 3, "dataset": "stl10"}]  # of another task
    (runs / "quickstart" / "sweep.json").write_text(json.dumps({"description": "", "cells": plan}))
    for number, ended in (("0001", "interrupted"), ("0002", "failed")):
        path = runs / "quickstart" / f"{3:012x}" / "attempts" / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"ended": ended, "error": "OSError: no\nspace"}))
        (path.parents[1] / "config.yaml").touch()
    table = tables.leaderboard(summary())
    cells = grid(table)
    assert {label: row["n"] for label, row in cells.items()} == {"VICReg": "1 of 3", "AUH": "1", "SimCLR": "0 of 3"}
    assert cells["SimCLR"][LINEAR] == "–"
    assert any("Planned and not finished: 5 cells" in note for note in table.notes)
    assert any("SimCLR, 1 cell (OSError: no space)" in note for note in table.notes)
    assert read_records(runs).unfinished == {"quickstart": 6}
    frame = tables.leaderboard_frame(summary()).set_index("label")
    assert frame["n_missing"].to_dict() == {"VICReg": 2, "AUH": 0, "SimCLR": 3}


def _tuning(runs: Path, record: Make) -> None:
    """A tuning over three weights on seed 0, of which one has its final scores on seeds 0 to 2."""
    origin = {"selected_on": "tuning", "score": "knn_top1", "budget": 3, "record": "runs/x/choice.json", "sha256": "0"}
    for weight, value in ((1.0, 60.0), (3.0, 62.0)):
        cell = {"method": {"name": "vicreg", "alignment_weight": weight}}
        record("VICReg", status="tuned", knn=None, linear=None, tuning=value, cell=cell)
    for seed in range(3):
        cell = {"method": {"name": "vicreg", "alignment_weight": 2.0}}
        record("VICReg", seed, tuning=65.0, choice={"hyperparameters": origin}, cell=cell)


def test_tuned_cells_stand_in_the_hyperparameters_only(
    runs: Path, record: Make, summary: Callable[[], Summary]
) -> None:
    _tuning(runs, record)
    record("AUH", status="tuned", knn=None, linear=None, tuning=50.0)
    table = tables.leaderboard(summary())
    assert {label: row["n"] for label, row in grid(table).items()} == {"VICReg": "3"}
    assert any("no configuration has its final scores yet: AUH (1)" in note for note in table.notes)
    assert any("Equal tuning budget: 3 configurations" in note for note in table.notes)
    heads = [column.name for column in tables.hyperparameters_table(summary()).columns]
    rows = [
        dict(zip(heads, (c.text for c in row), strict=True)) for row in tables.hyperparameters_table(summary()).rows
    ]
    shown = [(r["method"], r["hyperparameters"], r["kNN top-1 (%), tuning"], r["in the leaderboard"]) for r in rows]
    assert shown == [
        ("AUH", "alignment_weight=10.0", "50.00", "no"),
        ("VICReg", "alignment_weight=2.0", "65.00 ± 0.00", "yes"),
        ("VICReg", "alignment_weight=3.0", "62.00", "no"),
        ("VICReg", "alignment_weight=1.0", "60.00", "no"),
    ]
    assert [r["tried"] for r in rows] == ["–", "3", "–", "–"]


def test_runners_up_come_from_the_choice_where_their_records_are_away(
    runs: Path, record: Make, summary: Callable[[], Summary]
) -> None:
    record("VICReg")
    first = ranked("a" * 12, 71.0, **{"method.alignment_weight": 5.0})
    second = ranked("b" * 12, None, **{"optimizer.base_lr": 9.0})
    tuning_choice(runs / "quickstart", chosen("VICReg", first, second))
    table = tables.hyperparameters_table(summary())
    assert [[c.text for c in row[:6]] for row in table.rows[1:]] == [
        ["VICReg", "512", "256", "3", "alignment_weight=5.0", "71.00"],
        ["VICReg †", "512", "256", "3", "optimizer.base_lr=9.0", "–"],
    ]
    assert any("2 configurations for each method" in note for note in table.notes)


def test_unequal_budgets_are_told(record: Make, summary: Callable[[], Summary]) -> None:
    for label, budget in (("VICReg", 4), ("AUH", 8)):
        record(label, choice={"hyperparameters": {"selected_on": "tuning", "budget": budget}})
    notes = tables.leaderboard(summary()).notes
    assert any("4 tried: VICReg; 8 tried: AUH" in note for note in notes)


def test_the_choice_tells_each_methods_budget(runs: Path, record: Make, summary: Callable[[], Summary]) -> None:
    entries = []
    for label, tried in (("VICReg", 2), ("AUH", 1)):
        path = record(label, choice={"hyperparameters": {"selected_on": "tuning", "budget": 2}})
        entries.append(chosen(label, *[ranked(path.parent.name), ranked("0" * 12, 60.0)][:tried]))
    tuning_choice(runs / "quickstart", *entries)
    notes = tables.leaderboard(summary()).notes
    assert any("1 tried: AUH; 2 tried: VICReg" in note for note in notes)


def test_energy_is_shown_where_it_was_measured(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", cost={"energy_gpu_joules": 36_000.0, "train_s": 100.0})
    assert tables.energy_table(summary()) is not None
    record("AUH", cost={"energy_gpu_joules": None})
    table = grid(tables.leaderboard(summary()))
    assert [row["GPU energy (Wh)"] for row in table.values()] == ["–", "10.00"]
    energy = tables.energy_table(summary())
    assert energy is not None
    assert grid(energy)["VICReg"]["GPU mean power (W)"] == "360"


def test_no_energy_no_table(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg")
    assert tables.energy_table(summary()) is None
    assert not any("energy" in column.name for column in tables.leaderboard(summary()).columns)


def test_external_backbones_stand_beside_the_others(record: Make, summary: Callable[[], Summary]) -> None:
    nothing: dict[str, object] = dict.fromkeys(("embedding_dim", "batch_size", "epochs"))
    external = {"external": {"source": "torchvision:resnet50", "sha256": "0" * 64}}
    record("supervised", method="external", linear=79.0, cost={"train_s": None}, cell=nothing | external)
    record("VICReg")
    table = grid(tables.leaderboard(summary()))
    assert [(label, row["q"]) for label, row in table.items()] == [("supervised", "–"), ("VICReg", "512")]
    assert table["supervised"]["train time (s)"] == "–"


def test_other_sweeps_have_no_table_of_the_paper(record: Make, runs: Path) -> None:
    record("VICReg")
    record("AUH", cell=_in20(8192, network=backbone("resnet50")))
    assert paper_tables(summarize(read_records(runs).records)) == []


def test_latex_is_balanced_booktabs(record: Make, summary: Callable[[], Summary]) -> None:
    record("50 % & $x_1$ #{~^\\}", 0, knn=70.0)
    record("AUH", 0, knn=60.0, status="diverged")
    text = tables.to_latex(tables.leaderboard(summary()))
    rules = [text.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")]
    assert rules == sorted(rules)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    body = re.sub(r"(?m)^%.*$", "", text)
    assert r"50 \% \& \$x\_1\$ \#\{\textasciitilde{}\textasciicircum{}\textbackslash{}\}" in body
    assert r"\textbf{70.00}" in body
    plain = re.sub(r"\\[{}$&%#_]", "", body)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    columns = re.search(r"\\begin\{tabular\}\{([lr]+)\}", plain)
    assert columns is not None
    lines = [line for line in plain.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 3
    assert {line.count("&") + 1 for line in lines} == {len(columns[1])}
    assert body.isascii()


def test_markdown(record: Make, summary: Callable[[], Summary]) -> None:
    record("a|b", knn=70.0)
    table = tables.leaderboard(summary())
    lines = tables.to_markdown(table).splitlines()
    assert lines[0] == "### Leaderboard"
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 3
    assert "a\\|b" in rows[2]
    assert "**70.00**" in rows[2]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {len(table.columns) + 1}


FOREIGN = {
    "<script>alert(1)</script>": "&lt;script&gt;alert(1)&lt;/script&gt;",
    "a|b\nc": "a\\|b c",
    "`x` **y** _z_ [u](v) ~~w~~ $m$": "\\`x\\` \\*\\*y\\*\\* \\_z\\_ [u\\](v) \\~\\~w\\~\\~ \\$m\\$",
    "back\\|slash &lt; snake_case": "back\\\\\\|slash &amp;lt; snake_case",
    "\x1b[31mred\x00": "[31mred",
}


@pytest.mark.parametrize(("foreign", "shown"), FOREIGN.items())
def test_markdown_shows_the_text_of_others_as_text(
    runs: Path, record: Make, summary: Callable[[], Summary], foreign: str, shown: str
) -> None:
    record(foreign, knn=70.0, cell={"method": {"name": foreign, "detail": foreign}}, cost={"peak_memory_kind": foreign})
    record("AUH", status="diverged", environment={"git": foreign})
    record("VICReg", 1, status="diverged", knn=None)
    plan = [{"id": "f" * 12, "label": "DCL", "seed": 0}]
    (runs / "quickstart" / "sweep.json").write_text(json.dumps({"cells": plan}))
    attempt = runs / "quickstart" / ("f" * 12) / "attempts" / "0001.json"
    attempt.parent.mkdir(parents=True)
    attempt.write_text(json.dumps({"ended": "failed", "error": foreign}))
    (attempt.parents[1] / "config.yaml").touch()
    one = summary()
    made = [tables.leaderboard(one), tables.memory_table(one), tables.hyperparameters_table(one)]
    for table in made:
        text = tables.to_markdown(table)
        assert f"| {shown}" in text or f"| **{shown}" in text
        assert text.replace(shown, "").count(foreign) == 0
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert len(lines) == 2 + len(table.rows)
        assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines} == {len(table.columns) + 1}
    notes = [line for line in tables.to_markdown(made[0]).splitlines() if line.startswith("- ")]
    assert any(f"DCL, 1 cell ({shown})" in note for note in notes)
    assert any(f"more than one state of the code: {shown}" in note or f", {shown}." in note for note in notes)
    title = tables.to_markdown(tables.Table("x", foreign, [], [], []))
    assert title.startswith(f"### {shown}\n")


def test_a_note_is_no_heading() -> None:
    text = tables.to_markdown(tables.Table("x", "# title", [tables.Column("a")], [], ["# note", "no # 1"]))
    assert [line for line in text.splitlines() if "#" in line] == ["### \\# title", "- \\# note", "- no # 1"]


def test_latex_takes_no_text_for_an_argument() -> None:
    """After a row's end or a rule, LaTeX takes [ and * for its own, wherever the next line begins."""
    columns = [tables.Column("[2pt]", numeric=False)]
    text = tables.to_latex(
        tables.Table("x", "a\nb", columns, [[tables.Cell("[x]")], [tables.Cell("*y `z`\x1b")]], ["n\nm"])
    )
    assert text.splitlines() == [
        "% a b",
        "% n m",
        "\\begin{tabular}{l}",
        "\\toprule",
        "{[}2pt] \\\\",
        "\\midrule",
        "{[}x] \\\\",
        "{*}y \\textasciigrave{}z\\textasciigrave{} \\\\",
        "\\bottomrule",
        "\\end{tabular}",
    ]


def test_a_terminal_gets_no_control_characters(record: Make, summary: Callable[[], Summary]) -> None:
    record("a\x1b[31mb\nc\td")
    assert "| a[31mb c d |" in tables.to_terminal(tables.leaderboard(summary()))


def test_terminal_text_fits(record: Make, summary: Callable[[], Summary]) -> None:
    for label in ("SFRIK (L=3)", "generalized distance", "a method with quite a long name"):
        for seed in (0, 1):
            record(label, seed, knn=70.0 + seed)
    text = tables.to_terminal(tables.leaderboard(summary()))
    assert max(map(len, text.splitlines())) <= 120
    for word in ("70.50 ± 0.71*", "30.0", "800", "generalized distance"):
        assert word in text
