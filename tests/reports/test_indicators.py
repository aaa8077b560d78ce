"""What label-free measures tell of accuracy, and methods over several tasks, in the tables and
figures.
"""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap, spearmanr, ttest_rel

from regbench.reports import write_report
from regbench.reports.rows.indications import Correlation, Indication, against_chance, indications
from regbench.reports.rows.significance import holm
from regbench.reports.tables.indicators import correlation_text, indicators
from tests.reports.conftest import METHODS, dataset, score
from tests.reports.reading import Make, grid, task


def weighted(label: str, weight: float) -> dict[str, Any]:
    return {"method": {"name": METHODS[label], "alignment_weight": float(weight)}}


def last_epoch(**measures: float) -> list[dict[str, Any]]:
    return [{"epoch": 3, "epoch_s": 1.0, **measures}]


def tried(
    record: Make,
    label: str,
    weight: float,
    accuracy: float,
    *,
    rankme: float | None = None,
    **at_end: float,
) -> None:
    """Write a point of a tuning's grid."""
    scores = [score("knn_top1", accuracy, "tuning")]
    scores += [] if rankme is None else [score("rankme", rankme, "tuning", "")]
    record(
        label,
        cell=weighted(label, weight),
        status="tuned",
        scores=tuple(scores),
        history=last_epoch(**at_end),
    )


def by_title(found: list[Indication]) -> dict[str, Indication]:
    return {one.measure.title: one for one in found}


def test_what_orders_configurations_as_labels_do(runs: Path, record: Make) -> None:
    """The loss orders one method's configurations and turns the other's round.

    Effective rank orders all.
    """
    for weight, accuracy in enumerate([50, 60, 62, 70], 1):
        tried(record, "VICReg", weight, accuracy, loss=-accuracy, effective_rank=accuracy, rankme=5)
        tried(
            record,
            "AUH",
            weight,
            accuracy - 30,
            loss=accuracy,
            effective_rank=accuracy - 30,
            rankme=5 + weight,
        )
    found = by_title(indications(task(runs)))
    loss, rank, rankme = found["training loss"], found["effective rank, embedding"], found["RankMe"]
    assert loss.within is not None and rank.within is not None and rank.between is not None
    assert {name: one.rho for name, one in loss.by_method.items()} == pytest.approx(
        {"VICReg": 1, "AUH": -1}
    )
    assert loss.within.rho == pytest.approx(0) and (
        loss.within.methods,
        loss.within.configurations,
    ) == (2, 8)
    assert loss.between is None, "losses of two methods have no common scale"
    assert (rank.within.rho, rank.between.rho) == pytest.approx((1, 1))
    # Where a sample has one configuration of a method only, the other method's correlation counts
    # alone.
    assert (rank.within.low, rank.within.high) == pytest.approx((1, 1))
    assert (
        loss.lost_by_method == {"VICReg": 0, "AUH": 20}
        and loss.lost is not None
        and loss.lost.mean == 10
    )
    assert rank.lost is not None and rank.lost.mean == 0
    assert rankme.lost_by_method == {"VICReg": 70 - (50 + 60 + 62 + 70) / 4, "AUH": 0}, (
        "of equal values the mean"
    )
    assert list(rankme.by_method) == ["AUH"], "a constant orders nothing"
    assert rankme.within is not None and (rankme.within.methods, rankme.within.configurations) == (
        1,
        4,
    )
    assert rankme.between is not None and (
        rankme.between.methods,
        rankme.between.configurations,
    ) == (2, 8)
    made = indicators(task(runs))
    assert made is not None
    row = grid(made[0])["training loss"]
    assert (
        row["ρ between all"] == "–"
        and row["points lost"] == "10.00 ± 14.14"
        and row["most"] == "20.00"
    )
    assert (row["better is"], grid(made[0])["RankMe"]["better is"]) == ("lower", "higher")
    assert correlation_text(Correlation(0.5, -0.25, 0.75, 1, 4)) == "0.50 [−0.25, 0.75]"
    assert "the mean over 2 methods of 8 configurations" in made[0].notes[1]
    lines = made[1].set_index(["measure", "method"]).loc["training loss"]
    assert lines["rho"].to_dict() == pytest.approx(
        {"within": 0, "between": np.nan, "VICReg": 1, "AUH": -1}, nan_ok=True
    )
    lost = {"within": 10, "between": np.nan, "VICReg": 0, "AUH": 20}
    assert lines["points_lost"].to_dict() == pytest.approx(lost, nan_ok=True)
    assert any(
        "choosing by effective rank, embedding loses least: 0.00 points" in note
        for note in made[0].notes
    )
    chance = grid(made[0])["random choice"]
    assert (chance["ρ within methods"], chance["points lost"], chance["most"]) == (
        "–",
        "9.50 ± 0.00",
        "9.50",
    )


def test_with_three_configurations_of_each_method_the_loss_is_held_against_chance(
    runs: Path, record: Make
) -> None:
    """Too few for a correlation within a method; what is lost by choosing can be said."""
    for weight, accuracy in enumerate([50, 60, 70], 1):
        tried(record, "VICReg", weight, accuracy, loss=accuracy, effective_rank=accuracy)
        tried(record, "AUH", weight, accuracy, loss=-accuracy, effective_rank=accuracy)
    found = by_title(indications(task(runs)))
    assert found["training loss"].lost_by_method == {"VICReg": 20, "AUH": 0}
    assert found["random choice"].lost_by_method == {"VICReg": 10, "AUH": 10}


def test_a_measure_beats_chance_if_a_paired_test_over_methods_says_so(
    runs: Path, record: Make
) -> None:
    """p has Holm's correction over the measures; chance by itself beats nothing."""
    rng = np.random.default_rng(0)
    for label in ("RBF kernel", "generalized distance", "AUH", "SimCLR", "VICReg"):
        for weight, accuracy in enumerate(60 + rng.normal(size=4), 1):
            tried(
                record,
                label,
                weight,
                accuracy,
                loss=-accuracy,
                effective_rank=rng.normal(),
                uniformity=accuracy,
            )
    found = indications(task(runs))
    p = against_chance(found)
    assert list(p) == ["training loss", "uniformity, embedding", "effective rank, embedding"]
    chance, own = by_title(found)["random choice"].lost_by_method, []
    for title in p:
        lost = by_title(found)[title].lost_by_method
        own.append(ttest_rel(list(chance.values()), [lost[name] for name in chance]).pvalue)
    assert list(p.values()) == pytest.approx(holm(own))
    assert p["training loss"] < 0.05 < p["effective rank, embedding"]
    assert p["uniformity, embedding"] < 0.05, "it always chooses the worst"
    made = indicators(task(runs))
    assert made is not None
    told = (
        "What loses significantly less than random choice: training loss (p = "
        f"{p['training loss']:.2g}) (paired t"
    )
    assert made[0].notes[-1].startswith(told)


def test_random_choice_is_no_measure_that_could_lose_least(runs: Path, record: Make) -> None:
    """The loss chooses the worst of both methods, which lose alike: without a spread nothing is
    tested.
    """
    for label, weight in itertools.product(("VICReg", "AUH"), range(4)):
        tried(record, label, weight + 1, [50, 60, 62, 70][weight], loss=weight)
    made = indicators(task(runs))
    assert made is not None
    least, chance = made[0].notes[-2:]
    assert (
        least == "Of these, choosing by training loss loses least: 20.00 points on average over 2 "
        "methods."
    )
    assert chance.startswith("For comparison, random choice, which loses 9.50 points. ")


def test_each_setting_of_a_method_has_a_correlation_of_its_own(runs: Path, record: Make) -> None:
    """The dimensions lie so far apart that all eight together would be ordered otherwise."""
    for weight, q in itertools.product(range(4), (512, 1024)):
        cell = weighted("VICReg", weight + 1) | {"embedding_dim": q}
        scores = (score("knn_top1", 60.0 + weight - 20 * (q == 1024), "tuning"),)
        history = last_epoch(effective_rank=weight + q)
        record("VICReg", cell=cell, status="tuned", scores=scores, history=history)
    rank = by_title(indications(task(runs)))["effective rank, embedding"]
    rhos = {name: one.rho for name, one in rank.by_method.items()}
    assert rhos == pytest.approx({"VICReg, 512": 1, "VICReg, 1024": 1})
    assert rank.between is not None and rank.between.rho < 0


def test_each_measure_orders_in_its_own_direction(runs: Path, record: Make) -> None:
    """By scores of the representation the last two change places, so that none stands for one
    of the embeddings.
    """
    for weight, accuracy in enumerate([50, 60, 62, 70], 1):
        turned = {62: 70, 70: 62}.get(accuracy, accuracy)
        of_scores = {"alignment": -turned, "uniformity": -turned, "rankme": turned, "lidar": turned}
        scores = [score("knn_top1", accuracy, "tuning")]
        scores += [score(name, value, "tuning", "") for name, value in of_scores.items()]
        measures = {
            "loss": -accuracy,
            "alignment": -accuracy,
            "uniformity": -accuracy,
            "effective_rank": accuracy,
        }
        cell, history = weighted("VICReg", weight), last_epoch(**measures)
        record("VICReg", cell=cell, status="tuned", scores=tuple(scores), history=history)
    # What nobody trained takes no part.
    record(
        "untrained", scores=(score("knn_top1", 40.0, "tuning"), score("rankme", 99.0, "tuning", ""))
    )
    found = by_title(indications(task(runs)))
    of_embedding = (
        "training loss",
        "alignment, embedding",
        "uniformity, embedding",
        "effective rank, embedding",
    )
    of_representation = (
        "alignment, representation",
        "uniformity, representation",
        "RankMe",
        "LiDAR",
    )
    rhos = dict.fromkeys(of_embedding, 1.0) | dict.fromkeys(of_representation, 0.8)
    assert {title: one.within.rho for title, one in found.items() if one.within} == pytest.approx(
        rhos
    )
    assert {one.between.configurations for one in found.values() if one.between} == {4}


def test_interval_and_correlation_are_those_of_scipy(runs: Path, record: Make) -> None:
    """Also with equal values; α-ReQ is the better the nearer it is to 1."""
    rng = np.random.default_rng(1)
    accuracies = rng.integers(50, 60, size=40).astype(float)
    alphas = 1 + np.round(rng.normal(size=40) + (accuracies - 55) / 4, 1)
    for i, (accuracy, alpha) in enumerate(zip(accuracies, alphas, strict=True)):
        scores = (score("knn_top1", accuracy, "tuning"), score("alpha_req", alpha, "tuning", ""))
        record(
            "VICReg",
            cell=weighted("VICReg", i + 1),
            status="tuned",
            scores=scores,
            history=last_epoch(loss=alpha),
        )
    found = by_title(indications(task(runs)))

    def rho(x: Any, y: Any) -> float:
        return float(spearmanr(x, y).statistic)

    for title, better in (("training loss", -alphas), ("α-ReQ", -abs(alphas - 1))):
        within = found[title].within
        assert within is not None
        assert within.rho == pytest.approx(rho(better, accuracies), abs=1e-12)
        drawn = bootstrap(
            (better, accuracies),
            rho,
            paired=True,
            vectorized=False,
            n_resamples=1000,
            method="percentile",
            rng=2,
        ).confidence_interval
        assert (within.low, within.high) == pytest.approx((drawn.low, drawn.high), abs=0.06)


def test_configurations_are_compared_over_the_seeds_that_all_have(runs: Path, record: Make) -> None:
    """The chosen one, with a weight of 4, has a final seed that is worse.

    The loss orders the seed that all have.
    """
    for weight, accuracy in enumerate([50, 60, 62, 70], 1):
        tried(record, "VICReg", weight, accuracy, loss=-accuracy)
    scores, history = (score("knn_top1", 30.0, "tuning"),), last_epoch(loss=-70.0)
    record("VICReg", 1, cell=weighted("VICReg", 4), scores=scores, history=history)
    loss = by_title(indications(task(runs)))["training loss"]
    assert loss.within is not None and loss.within.rho == pytest.approx(1)
    assert loss.lost_by_method == {"VICReg": 0}


def test_measures_of_the_tuning_split_count_where_there_are_both(runs: Path, record: Make) -> None:
    for weight, accuracy in enumerate([50, 60, 62, 70], 1):
        both = [
            score("rankme", sign * accuracy, split, "")
            for split, sign in (("test", -1), ("tuning", 1))
        ]
        record(
            "VICReg",
            cell=weighted("VICReg", weight),
            scores=(score("knn_top1", accuracy, "tuning"), *both),
        )
    rankme = by_title(indications(task(runs)))["RankMe"]
    assert rankme.within is not None and rankme.within.rho == pytest.approx(1)


def test_where_too_few_were_chosen_from_the_leaderboards_score_counts(
    runs: Path, record: Make
) -> None:
    """Four configurations, of which three have the score that chooses."""
    for i, label in enumerate(("VICReg", "AUH", "SimCLR", "RBF kernel")):
        scores = [score("linear_top1", 70.0 + i), score("rankme", -i, unit="")]
        scores += [score("knn_top1", 60.0 - i, "tuning")] if i else []
        record(label, scores=tuple(scores), history=last_epoch(effective_rank=float(i)))
    record("untrained", tuning=50.0)
    found = by_title(indications(task(runs)))
    rank, rankme = found["effective rank, embedding"].between, found["RankMe"].between
    assert rank is not None and rankme is not None
    assert (rank.rho, rankme.rho) == pytest.approx((1, -1))
    made = indicators(task(runs))
    assert made is not None and "with linear top-1 on the test split" in made[0].notes[0]


def test_without_enough_configurations_nothing_is_said(runs: Path, record: Make) -> None:
    for label in ("VICReg", "AUH", "SimCLR"):
        record(label)
    assert indicators(task(runs)) is None


def test_report_over_tasks(runs: Path, record: Make, tmp_path: Path) -> None:
    """Files and page have both sections."""
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
        ("VICReg", 1, "0 0"),
        ("AUH", 2, "2 2"),
        ("SimCLR", 3, "10 10"),
    ]
    (csv_of_measures,) = (
        path
        for path in report.files
        if path.name.startswith("indicators") and path.suffix == ".csv"
    )
    with csv_of_measures.open() as file:
        assert {row["measure"] for row in csv.DictReader(file)} >= {"training loss"}
    page = report.page.read_text()
    assert "Does the loss tell?" in page
    assert "All tasks together" in page
