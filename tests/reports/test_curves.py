"""Accuracy while training, in the tables and figures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from regbench.reports import write_report
from regbench.reports.tables.details import cost_table
from tests.reports.conftest import score, settings
from tests.reports.reading import Drawn, Make, grid, task

EVALUATION = settings("VICReg")["evaluation"]


def history(
    *knn: float, epoch_s: float = 600.0, every: int = 1, split: str = "tuning"
) -> list[dict[str, Any]]:
    """Epochs of equal length, of which some have a score of kNN and one of linear probing, 20 %
    below it.
    """
    rows: list[dict[str, Any]] = []
    for value in knn:
        rows += [{"epoch": len(rows) + 1 + i, "epoch_s": epoch_s} for i in range(every)]
        scores = (
            score("knn_top1", value, split),
            score("linear_top1", max(0.0, value - 20.0), split),
        )
        rows[-1]["scores"] = [asdict(each) for each in scores]
    return rows


def watched(**more: Any) -> dict[str, Any]:
    """The settings of a cell with curves."""
    return {
        "evaluation": {**EVALUATION, "while_training": ["knn", "probe"], "every_epochs": 1, **more}
    }


@pytest.fixture
def curves(record: Make) -> None:
    """Three methods of two seeds, and a network that nobody trained."""
    record("VICReg", 0, cell=watched(), linear=80.0, history=history(30, 50, 67, 63))
    record("VICReg", 1, cell=watched(), linear=80.0, history=history(30, 60, 59, 66, epoch_s=900))
    record("AUH", 0, cell=watched(), linear=79.0, history=history(10, 20, 40, 61))
    record("AUH", 1, cell=watched(), linear=79.0, history=history(10, 30, 50, 66))
    record("SimCLR", 0, cell=watched(), linear=70.0, history=history(10, 12, 14, 16))
    record("SimCLR", 1, cell=watched(), linear=70.0, history=history(10, 12, 14, 60))
    record("untrained", 0, linear=50.0)


def test_nothing_shows_where_nothing_was_measured(runs: Path, record: Make, tmp_path: Path) -> None:
    """Or where what is in the history is no score."""
    record("VICReg")
    record(
        "SimCLR",
        cell=watched(),
        history=[{"epoch": 1, "epoch_s": 1.0, "scores": [{"name": "knn_top1"}]}],
    )
    report = write_report(runs, tmp_path / "report")
    assert "while training" not in report.page.read_text()
    assert "evaluation while training (s)" not in grid(cost_table(task(runs)))["VICReg"]


def test_the_report_shows_curves_by_epoch_and_by_time(
    curves: None, runs: Path, record: Make, tmp_path: Path
) -> None:
    for seed in (2, 3):
        cost = {"monitor_s": 40.0 + seed}
        record(
            "VICReg", seed, cell=watched(), linear=80.0, history=history(30, 50, 64, 64), cost=cost
        )
    report = write_report(runs, tmp_path / "report")
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
