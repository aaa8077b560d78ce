"""What label-free measures tell of accuracy, and methods over several tasks, in the tables and figures."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap, friedmanchisquare, spearmanr

from regbench.reports import write_report
from regbench.reports.rows.indicators import Indication, indications
from regbench.reports.rows.tasks import compare_over
from regbench.reports.tables.indicators import indicators
from tests.reports.conftest import METHODS, dataset, score
from tests.reports.reading import Drawn, Make, grid, task


def weighted(label: str, weight: float) -> dict[str, Any]:
    return {"method": {"name": METHODS[label], "alignment_weight": float(weight)}}


def last_epoch(**measures: float) -> list[dict[str, Any]]:
    return [{"epoch": 3, "epoch_s": 1.0, **measures}]


def tried(
    record: Make, label: str, weight: float, accuracy: float, *, rankme: float | None = None, **at_end: float
) -> None:
    """Write a point of a tuning's grid."""
    scores = [score("knn_top1", accuracy, "tuning")]
    scores += [] if rankme is None else [score("rankme", rankme, "tuning", "")]
    record(label, cell=weighted(label, weight), status="tuned", scores=tuple(scores), history=last_epoch(**at_end))


def by_title(found: list[Indication]) -> dict[str, Indication]:
    return {one.measure.title: one for one in found}


def test_what_orders_configurations_as_labels_do(runs: Path, record: Make) -> None:
    """The loss orders one method's configurations and turns the other's round; effective rank orders all."""
    for weight, accuracy in enumerate([50, 60, 62, 70], 1):
        tried(record, "VICReg", weight, accuracy, loss=-accuracy, effective_rank=accuracy, rankme=5)
        tried(record, "AUH", weight, accuracy - 30, loss=accuracy, effective_rank=accuracy - 30, rankme=5 + weight)
    found = by_title(indications(task(runs)))
    loss, rank, rankme = found["training loss"], found["effective rank, embedding"], found["RankMe"]
    assert loss.within is not None and rank.within is not None and rank.between is not None
    assert {name: one.rho for name, one in loss.by_method.items()} == pytest.approx({"VICReg": 1, "AUH": -1})
    assert loss.within.rho == pytest.approx(0) and (loss.within.methods, loss.within.configurations) == (2, 8)
    assert loss.between is None, "losses of two methods have no common scale"
    assert (rank.within.rho, rank.between.rho) == pytest.approx((1, 1))
    assert loss.lost_by_method == {"VICReg": 0, "AUH": 20} and loss.lost is not None and loss.lost.mean == 10
    assert rank.lost is not None and rank.lost.mean == 0
    assert rankme.lost_by_method == {"VICReg": 70 - (50 + 60 + 62 + 70) / 4, "AUH": 0}, "of equal values the mean"
    assert list(rankme.by_method) == ["AUH"], "a constant orders nothing"
    made = indicators(task(runs))
    assert made is not None
    row = grid(made[0])["training loss"]
    assert row["ρ between all"] == "–" and row["points lost"] == "10.00 ± 14.14" and row["most"] == "20.00"
    assert any("choosing by effective rank, embedding loses least: 0.00 points" in note for note in made[0].notes)


def test_interval_and_correlation_are_those_of_scipy(runs: Path, record: Make) -> None:
    """Also with equal values; α-ReQ is the better the nearer it is to 1."""
    rng = np.random.default_rng(1)
    accuracies = rng.integers(50, 60, size=40).astype(float)
    alphas = 1 + np.round(rng.normal(size=40) + (accuracies - 55) / 4, 1)
    for i, (accuracy, alpha) in enumerate(zip(accuracies, alphas, strict=True)):
        scores = (score("knn_top1", accuracy, "tuning"), score("alpha_req", alpha, "tuning", ""))
        record("VICReg", cell=weighted("VICReg", i + 1), status="tuned", scores=scores, history=last_epoch(loss=alpha))
    found = by_title(indications(task(runs)))

    def rho(x: Any, y: Any) -> float:
        return float(spearmanr(x, y).statistic)

    for title, better in (("training loss", -alphas), ("α-ReQ", -abs(alphas - 1))):
        within = found[title].within
        assert within is not None
        assert within.rho == pytest.approx(rho(better, accuracies), abs=1e-12)
        drawn = bootstrap(
            (better, accuracies), rho, paired=True, vectorized=False, n_resamples=1000, method="percentile", rng=2
        ).confidence_interval
        assert (within.low, within.high) == pytest.approx((drawn.low, drawn.high), abs=0.06)


def test_configurations_are_compared_over_the_seeds_that_all_have(runs: Path, record: Make) -> None:
    """The chosen one, with a weight of 4, has a final seed that is worse; the loss orders the seed that all have."""
    for weight, accuracy in enumerate([50, 60, 62, 70], 1):
        tried(record, "VICReg", weight, accuracy, loss=-accuracy)
    scores, history = (score("knn_top1", 30.0, "tuning"),), last_epoch(loss=-70.0)
    record("VICReg", 1, cell=weighted("VICReg", 4), scores=scores, history=history)
    loss = by_title(indications(task(runs)))["training loss"]
    assert loss.within is not None and loss.within.rho == pytest.approx(1)
    assert loss.lost_by_method == {"VICReg": 0}


def test_without_enough_configurations_nothing_is_said(runs: Path, record: Make) -> None:
    for label in ("VICReg", "AUH", "SimCLR"):
        record(label)
    assert indicators(task(runs)) is None


def test_methods_over_tasks() -> None:
    """Ranks, their mean, Friedman's p and Nemenyi's distance (Demšar 2006: q = 2.343 for three methods)."""
    rng = np.random.default_rng(0)
    blocks = np.array([80.0, 79.0, 70.0]) + rng.normal(size=(10, 3))
    tasks = {
        name: {label: {seed: blocks[5 * i + seed, j] for seed in range(5)} for j, label in enumerate("abc")}
        for i, name in enumerate(("one", "two"))
    }
    tasks["one"]["d"] = {0: 99.0}
    found = compare_over(tasks)
    assert found is not None
    assert (found.blocks, found.tasks, found.left_out) == (10, ["one", "two"], ["d"])
    ranks = (blocks[:, :, None] < blocks[:, None, :]).sum(axis=2) + 1
    assert [one.label for one in found.standings] == ["a", "b", "c"]
    assert [one.mean_rank for one in found.standings] == pytest.approx(ranks.mean(axis=0))
    assert found.p == pytest.approx(friedmanchisquare(*blocks.T).pvalue)
    assert found.critical_difference == pytest.approx(2.343 * np.sqrt(3 * 4 / 60), rel=1e-3)
    assert [one.alike for one in found.standings] == [True, True, False]
    assert found.standings[2].shortfalls == pytest.approx(np.sort(blocks.max(axis=1) - blocks[:, 2]))
    assert all(one.low <= one.mean_rank <= one.high for one in found.standings)
    assert found.standings[2].low == found.standings[2].high == 3, "the last in every block"


def test_equally_good_methods_are_not_told_apart() -> None:
    scores = {"a": {0: 70.0, 1: 71.0}, "b": {0: 70.0, 1: 71.0}, "c": {0: 70.0, 1: 71.0}}
    found = compare_over({"one": scores, "two": scores})
    assert found is not None
    assert found.p == 1 and all(one.alike and one.mean_rank == 2 for one in found.standings)


def test_a_method_that_diverged_everywhere_in_a_task_is_left_out() -> None:
    scores = {"a": {0: 72.0, 1: 71.0}, "b": {0: 70.0, 1: 71.5}, "c": {0: 69.0, 1: 68.0}, "d": {0: 90.0, 1: 90.0}}
    found = compare_over({"one": scores, "two": scores, "three": {**scores, "d": {}}})
    assert found is not None
    assert (found.blocks, found.tasks, found.left_out) == (6, ["one", "two", "three"], ["d"])


def test_scores_that_differ_in_their_last_bits_rank_alike() -> None:
    scores = {"a": {0: 70.1}, "b": {0: 70.1 + 2e-14}, "c": {0: 60.0}}
    found = compare_over({"one": scores, "two": scores})
    assert found is not None
    assert [one.mean_rank for one in found.standings] == [1.5, 1.5, 3.0]


def test_one_task_or_two_methods_are_no_comparison() -> None:
    scores = {label: {0: 70.0} for label in "abc"}
    assert compare_over({"one": scores}) is None
    assert compare_over({"one": {"a": {0: 1.0}, "b": {0: 2.0}}, "two": {"a": {0: 1.0}, "b": {0: 2.0}}}) is None
    assert compare_over({"one": scores, "two": {label: {1: 70.0} for label in "ab"} | {"c": {2: 70.0}}}) is None


def test_report_over_tasks(runs: Path, record: Make, tmp_path: Path) -> None:
    """Files and page have both sections, and the profile's lines stand where the shortfalls are."""
    accuracies = {"VICReg": 80.0, "AUH": 78.0, "SimCLR": 70.0}
    for seed in range(3):
        for label, accuracy in accuracies.items():
            record(label, seed, linear=accuracy)
            record(label, seed, linear=accuracy - 20, cell={"dataset": dataset("digits")})
    for weight, accuracy in enumerate([50, 60, 62, 70], 20):
        tried(record, "VICReg", weight, accuracy, loss=-accuracy)
    report = write_report(runs, tmp_path / "report")
    names = {path.name for path in report.files}
    assert {"over_tasks.md", "over_tasks.tex", "over_tasks.csv"} <= names
    with (tmp_path / "report" / "over_tasks.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], float(row["mean_rank"]), row["shortfalls"]) for row in rows] == [
        ("VICReg", 1, "0 0 0 0 0 0"),
        ("AUH", 2, "2 2 2 2 2 2"),
        ("SimCLR", 3, "10 10 10 10 10 10"),
    ]
    (csv_of_measures,) = (path for path in report.files if path.name.startswith("indicators") and path.suffix == ".csv")
    with csv_of_measures.open() as file:
        assert {row["measure"] for row in csv.DictReader(file)} >= {"training loss"}
    page = report.page.read_text()
    assert "Does the loss tell?" in page
    profile = Drawn(page, "Performance profile")
    assert profile.heads == ["percentage points below the best", "share of the blocks (%)"]


def test_effective_rank_by_spectrum(runs: Path, record: Make, tmp_path: Path) -> None:
    """A kernel of degree 1 stands at 0 %, one with b = 9, 1, 3 at 75 %; a method without kernel is left out."""
    record("SFRIK (L=1)", spectrum=(0.0, 5.0), history=last_epoch(effective_rank=3.0))
    record("SFRIK (L=2)", 0, spectrum=(9.0, 1.0, 3.0), history=last_epoch(effective_rank=100.0))
    record("SFRIK (L=2)", 1, spectrum=(9.0, 1.0, 3.0), history=last_epoch(effective_rank=300.0))
    record("VICReg", history=last_epoch(effective_rank=50.0))
    page = write_report(runs, tmp_path / "report").page.read_text()
    drawn = Drawn(page, "Spectrum and effective rank", log="y")
    assert drawn.heads == ["weight of the degrees above 1 in the kernel (%)", "effective rank"]
    assert drawn.markers("SFRIK (L=1)") == [[pytest.approx(0, abs=0.05), 3]]
    assert drawn.markers("SFRIK (L=2)") == [[75, 200]]
    assert drawn.markers("VICReg") == []
