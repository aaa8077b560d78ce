"""Accuracy while training, in the tables and figures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from regbench.reports import write_report
from regbench.reports.tables.details import cost_table
from tests.reports.conftest import score, settings
from tests.reports.reading import Drawn, Make, grid, task

WATCHED = {
    "evaluation": settings("VICReg")["evaluation"]
    | {"while_training": ["knn", "probe"], "every_epochs": 1}
}


def history(*knn: float, epoch_s: float = 600.0) -> list[dict[str, Any]]:
    """Epochs of equal length, each with a score of kNN and one of linear probing."""
    lines: list[dict[str, Any]] = []
    for epoch, value in enumerate(knn, 1):
        scores = [score("knn_top1", value, "tuning"), score("linear_top1", 9.0, "tuning")]
        lines.append({"epoch": epoch, "epoch_s": epoch_s, "scores": list(map(asdict, scores))})
    return lines


def test_nothing_shows_where_nothing_was_measured(runs: Path, record: Make, tmp_path: Path) -> None:
    """Or where what is in the history is no score."""
    record("VICReg")
    odd = [{"epoch": 1, "epoch_s": 1.0, "scores": [{"name": "knn_top1"}]}]
    record("SimCLR", cell=WATCHED, history=odd)
    report = write_report(runs, tmp_path / "report")
    assert "while training" not in report.page.read_text()
    assert "evaluation while training (s)" not in grid(cost_table(task(runs)))["VICReg"]


def test_a_report_shows_curves_by_epoch_and_time(runs: Path, record: Make, tmp_path: Path) -> None:
    for seed, values in enumerate(((10, 20, 40, 61), (10, 30, 50, 66))):
        record("AUH", seed, cell=WATCHED, history=history(*values))
        times = history(*values, epoch_s=600.0 + 300 * seed)
        record("VICReg", seed, cell=WATCHED, history=times, cost={"monitor_s": 42.0 + seed})
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
    assert by_time.markers("VICReg")[1] == [25.0, 25.0]  # the mean time of two seeds
    assert "<figcaption>Linear top-1 while training, by time</figcaption>" in page
    assert "Accuracy while training is of the tuning split, after each epoch." in page
