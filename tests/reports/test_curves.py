"""Accuracy while training, in the tables and figures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from regbench.reports import write_report
from regbench.reports.tables.details import convergence_table, cost_table
from tests.reports.conftest import score, settings
from tests.reports.reading import Drawn, Make, grid, task

EVALUATION = settings("VICReg")["evaluation"]
EPOCHS_TO, TIME_TO = "epochs to 60 % kNN top-1", "time to 60 % kNN top-1 (min)"


def history(*knn: float, epoch_s: float = 600.0, every: int = 1, split: str = "tuning") -> list[dict[str, Any]]:
    """Epochs of equal length, of which some have a score of kNN and one of linear probing, 20 % below it."""
    rows: list[dict[str, Any]] = []
    for value in knn:
        rows += [{"epoch": len(rows) + 1 + i, "epoch_s": epoch_s} for i in range(every)]
        scores = (score("knn_top1", value, split), score("linear_top1", max(0.0, value - 20.0), split))
        rows[-1]["scores"] = [asdict(each) for each in scores]
    return rows


def watched(**more: Any) -> dict[str, Any]:
    """The settings of a cell with curves."""
    return {"evaluation": {**EVALUATION, "while_training": ["knn", "probe"], "every_epochs": 1, **more}}


@pytest.fixture
def curves(record: Make) -> None:
    """Three methods of two seeds: one is soon at 60 % and later at 66 %, one late, one has a seed that stays below."""
    record("VICReg", 0, cell=watched(), linear=80.0, history=history(30, 50, 67, 63))
    record("VICReg", 1, cell=watched(), linear=80.0, history=history(30, 60, 59, 66, epoch_s=900))
    record("AUH", 0, cell=watched(), linear=79.0, history=history(10, 20, 40, 61))
    record("AUH", 1, cell=watched(), linear=79.0, history=history(10, 30, 50, 66))
    record("SimCLR", 0, cell=watched(), linear=70.0, history=history(10, 12, 14, 16))
    record("SimCLR", 1, cell=watched(), linear=70.0, history=history(10, 12, 14, 60))
    record("untrained", 0, linear=50.0)


def test_how_soon_an_accuracy_is_reached(curves: None, runs: Path) -> None:
    """60 % is what two of three rows reach with all seeds; of linear probing it is 40 %, at the same epochs."""
    table = convergence_table(task(runs))
    assert table is not None
    rows = grid(table)
    assert [[row[EPOCHS_TO], row[TIME_TO]] for row in rows.values()] == [
        ["2.5 ± 0.7", "30.0 ± 0.0"],
        ["4.0 ± 0.0", "40.0 ± 0.0"],
        ["4.0 (n=1 of 2)", "40.0 (n=1 of 2)"],
    ]
    assert [row["n"] for row in rows.values()] == ["2", "2", "2"]
    assert [row["epochs to 40 % linear top-1"] for row in rows.values()] == [row[EPOCHS_TO] for row in rows.values()]
    notes = " ".join(table.notes)
    assert "of the tuning split, after each epoch." in notes
    assert "without checkpoints and evaluations, on 1 x Example CPU with 1 threads, ffcv loader." in notes


def test_who_never_reaches_it_has_a_dash(runs: Path, record: Make) -> None:
    """The highest that half of the rows reach; of four rows that are two."""
    tops = {"VICReg": 71, "AUH": 61, "SimCLR": 59.9, "RBF kernel": 20}
    for label, top in tops.items():
        record(label, cell=watched(every_epochs=2), linear=top, history=history(top / 2, top, top - 1, every=2))
    table = convergence_table(task(runs))
    assert table is not None
    assert {label: row[EPOCHS_TO] for label, row in grid(table).items()} == {
        **dict.fromkeys(("VICReg", "AUH"), "4.0"),
        **dict.fromkeys(("SimCLR", "RBF kernel"), "–"),
    }
    assert any("after every 2 epochs and after the last" in note for note in table.notes)


def test_what_diverged_or_has_no_curve_does_not_count(runs: Path, record: Make) -> None:
    record("VICReg", 0, cell=watched(), history=history(30, 64))
    record("VICReg", 1, cell=watched(), history=history(62), status="diverged", knn=None, linear=None)
    table = convergence_table(task(runs))
    assert table is not None
    assert [grid(table)["VICReg †"][column] for column in ("n", EPOCHS_TO)] == ["1", "2.0"]


def test_unequal_machines_are_told(runs: Path, record: Make) -> None:
    record("VICReg", 0, cell=watched(), history=history(30, 64))
    record("AUH", 0, cell=watched(), history=history(30, 64), environment={"hardware": "1 x GPU"})
    table = convergence_table(task(runs))
    assert table is not None
    assert any("on unequal machines, so compare within one: 1 x Example CPU" in note for note in table.notes)


def test_nothing_shows_where_nothing_was_measured(runs: Path, record: Make, tmp_path: Path) -> None:
    """Or where nobody gets to 5 %, or what is in the history is no score."""
    record("VICReg")
    report = write_report(runs, tmp_path / "report")
    assert not any("convergence" in file.name for file in report.files)
    assert "while training" not in report.page.read_text()
    assert "evaluation while training (s)" not in grid(cost_table(task(runs)))["VICReg"]
    record("AUH", cell=watched(), history=history(4.9, 4.9))
    record("SimCLR", cell=watched(), history=[{"epoch": 1, "epoch_s": 1.0, "scores": [{"name": "knn_top1"}]}])
    assert convergence_table(task(runs)) is None


def test_the_report_shows_curves_by_epoch_and_by_time(curves: None, runs: Path, record: Make, tmp_path: Path) -> None:
    for seed in (2, 3):
        cost = {"monitor_s": 40.0 + seed}
        record("VICReg", seed, cell=watched(), linear=80.0, history=history(30, 50, 64, 64), cost=cost)
    report = write_report(runs, tmp_path / "report")
    assert EPOCHS_TO in (tmp_path / "report" / "convergence.md").read_text()
    assert EPOCHS_TO in report.page.read_text().split('id="s1-convergence"')[1].split("</table>")[0]
    assert grid(cost_table(task(runs)))["VICReg"]["evaluation while training (s)"] == "42.5 ± 0.7"
    page = report.page.read_text()
    by_epoch = Drawn(page, "kNN top-1 while training, by epoch")
    assert by_epoch.heads == ["epoch", "kNN top-1, tuning (%)"]
    assert by_epoch.markers("AUH") == [[1.0, 10.0], [2.0, 25.0], [3.0, 45.0], [4.0, 63.5]]
    assert by_epoch.spreads("AUH") == [3.0, 57.0]  # from 10 to 63.5 + 3.5
    by_time = Drawn(page, "kNN top-1 while training, by time")
    assert by_time.heads == ["training time (min)", "kNN top-1, tuning (%)"]
    assert by_time.markers("AUH") == [[10.0, 10.0], [20.0, 25.0], [30.0, 45.0], [40.0, 63.5]]
    assert by_time.markers("VICReg")[1] == [22.5, 52.5]  # the mean time of four seeds
    assert "<figcaption>Linear top-1 while training, by time</figcaption>" in page
    assert "Accuracy while training is of the tuning split, after each epoch." in page


def test_curves_on_the_test_split_stand_with_what_it_chose(runs: Path, record: Make) -> None:
    record("VICReg", cell=watched(select_on="test"), history=history(30, 64, split="test"))
    summary = task(runs)
    assert summary.on_test
    table = convergence_table(summary)
    assert table is not None
    assert any("of the test split" in note for note in table.notes)
