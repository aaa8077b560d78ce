"""The sentences at the top of a page: which methods lead, by how much, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from regbench.benchmark.rundir.record import Score
from regbench.reports import write_report
from regbench.reports.rows.answer import answer
from regbench.reports.rows.notes import power_notes
from tests.reports.conftest import GIVEN, RATE
from tests.reports.reading import Make, task

# Of three seeds; sums over seeds and over rows are not 0, so that rows scatter.
LUCK = (0.5, -0.5, 0.1)

LEAD = (
    "2 of 2 methods (AUH; VICReg) lead all untrained rows by kNN top-1 and linear top-1; the first "
    "of these by linear top-1 is AUH, "
)
NONE_LEADS = (
    "No method is known to lead all untrained rows by kNN top-1 and linear top-1; the first by "
    "linear top-1 is AUH, "
)

Rows = Mapping[str, tuple[float, float]]
ROWS: Rows = {"AUH": (70.0, 80.0), "VICReg": (60.0, 70.0), "untrained": (40.0, 50.0)}


def sentences(runs: Path, record: Make, rows: Rows, seeds: int = 3) -> Sequence[str]:
    """The answer of a task with rows of kNN and linear probing."""
    for place, (label, (knn, linear)) in enumerate(rows.items()):
        for seed in range(seeds):
            luck = LUCK[(seed + place) % 3] if label != "untrained" else 0.0
            cell = {"baseline": "supervised"} if label == "supervised" else {}
            cost = {"train_s": None if label == "untrained" else 600.0 + 60 * place}
            record(label, seed, knn=knn + luck, linear=linear + luck, cost=cost, cell=cell)
    return answer(task(runs))


def test_one_method_leads(runs: Path, record: Make) -> None:
    supervised = {"supervised": (90.0, 91.0)}
    tried, lead, order, labels, step = sentences(runs, record, {**ROWS, **supervised})
    assert tried == "Tried: 2 methods, 3 seeds of each, beside 1 untrained row."
    assert lead.startswith(f"{LEAD}+30.0 points (95 % interval 2")
    assert "by kNN top-1 from untrained and +30.0 points" in lead
    assert order.startswith("All other methods are significantly below AUH by linear top-1: +10.0 ")
    assert labels == (
        "With the labels of the training images, the same network has 91.0 % by linear top-1: "
        "+11.0 points from AUH."
    )
    assert step == "Next: take AUH, or train it with 4 times the epochs (40.0 min of training)."


def test_methods_that_are_not_significantly_different(runs: Path, record: Make) -> None:
    rows = {"AUH": (70.0, 80.0), "VICReg": (69.0, 79.0), "untrained": (40.0, 50.0)}
    _, lead, order, step = sentences(runs, record, rows)
    assert lead.startswith(LEAD)
    assert order == "Not known to differ from AUH by linear top-1: VICReg."
    assert step.startswith("Next: take the one that trains fastest, AUH (10.0 min of training), or")
    assert "find 1.0 points by " in step


def test_a_method_that_does_not_lead_is_not_recommended(runs: Path, record: Make) -> None:
    """It trains fastest, and does not differ from the first by the headline score."""
    rows = {"VICReg": (30.0, 79.9), "AUH": (70.0, 80.0), "untrained": (40.0, 50.0)}
    _, lead, order, step = sentences(runs, record, rows)
    assert lead.startswith("1 of 2 methods (AUH) leads all untrained rows")
    assert order == "Not known to differ from AUH by linear top-1: VICReg."
    assert step == "Next: take AUH, or train it with 4 times the epochs (44.0 min of training)."


BELOW = r"; all other methods are significantly below it: \+10\.0 points \(95 % .* from VICReg"


@pytest.mark.parametrize(
    ("others", "rest"),
    [
        ({}, ""),
        ({"VICReg": (60.0, 70.0)}, BELOW),
        ({"VICReg": (69.9, 79.9)}, "; not known to differ from it: VICReg"),
    ],
)
def test_a_method_that_is_better_and_does_not_lead_is_said_to_be(
    runs: Path, record: Make, others: Rows, rest: str
) -> None:
    rows = {"AUH": (70.0, 80.0), "SimCLR": (30.0, 90.0), **others, "untrained": (40.0, 50.0)}
    lead, order = sentences(runs, record, rows)[1:3]
    assert "; the first of these by linear top-1 is AUH, " in lead
    said = "SimCLR is significantly above AUH by linear top-1, and does not lead all untrained rows"
    assert re.fullmatch(rf"{said}{rest}\.", order), order


def test_rows_of_unlike_numbers_of_seeds_are_said_to_have_these(runs: Path, record: Make) -> None:
    for seed in (3, 4):
        record("VICReg", seed, knn=60.0, linear=70.0)
    assert sentences(runs, record, ROWS)[0].startswith("Tried: 2 methods, 3 to 5 seeds of each, ")


def test_a_method_without_a_score_is_named(runs: Path, record: Make) -> None:
    for seed in range(3):
        record("SimCLR", seed, linear=None)
    tried, *_ = sentences(runs, record, ROWS)
    assert tried.startswith("Tried: 2 methods (not SimCLR, for want of a score), 3 seeds")


@pytest.mark.parametrize("knn", [50.1, 40.0])
def test_that_none_leads_comes_first(runs: Path, record: Make, knn: float) -> None:
    """Neither where one read-out does not lead, nor where it does by less than is significant."""
    rows = {"AUH": (knn, 80.0), "VICReg": (45.0, 70.0), "untrained": (50.0, 50.0)}
    lead, tried, _, step = sentences(runs, record, rows)
    assert lead.startswith(NONE_LEADS)
    assert tried.startswith("Tried: ")
    assert step == "Next: all of it with 4 times the epochs (4.20 h of training)."


def test_one_seed_tells_nothing(runs: Path, record: Make) -> None:
    lead, tried, order, step = sentences(runs, record, ROWS, seeds=1)
    assert lead == (
        f"{NONE_LEADS}+30.5 points (not tested) by kNN top-1 from untrained and +30.5 points "
        "(not tested) by linear top-1 from untrained."
    )
    assert tried == "Tried: 2 methods, 1 seed of each, beside 1 untrained row."
    assert order == "Not known to differ from AUH by linear top-1: VICReg."
    assert step == (
        "Next: 3 seeds of every row in common with untrained, as fewer are not tested (42.0 min of "
        "training)."
    )


def test_searches_are_counted_where_they_were_repeated(runs: Path, record: Make) -> None:
    record("untrained", knn=40.0, linear=50.0)
    for label, linear in (("AUH", 80.0), ("VICReg", 70.0)):
        for search in range(2):
            how = GIVEN | {"search": search, "sha256": "0" * 64}
            choice = {"hyperparameters": how, "probe_learning_rate": RATE}
            record(label, 1000 * search, knn=70.0, linear=linear + search, choice=choice)
    expected = "Next: 3 searches of every row in common with untrained, as fewer are not tested"
    assert answer(task(runs))[-1].startswith(expected)


@pytest.mark.parametrize(
    ("linear", "step"),
    [
        (90.0, "3 seeds or searches of every row in common with SimCLR (higher by linear top-1), "),
        (60.0, "take the one that trains fastest, AUH (30.0 s of training)."),
    ],
)
def test_seeds_are_neither_compared_with_searches_nor_planned(
    linear: float, step: str, runs: Path, record: Make
) -> None:
    """A challenger has the seeds of one search, beside rows of repeated ones."""
    rows = {"AUH": 80.0, "VICReg": 79.5, "untrained": 50.0}
    for place, (label, value) in enumerate(rows.items()):
        for search in range(3):
            score = value + LUCK[(search + place) % 3]
            choice = {"hyperparameters": GIVEN | {"search": search, "sha256": "0" * 64}}
            record(label, 1000 * search, knn=score, linear=score, choice=choice)
    assert len(power_notes(task(runs))) == 1
    for seed in range(3):
        record("SimCLR", seed, knn=linear, linear=linear + LUCK[seed])
    tried, lead, *_, told = answer(task(runs))
    assert told.startswith(f"Next: {step}") and power_notes(task(runs)) == []
    assert ", 3 seeds or searches of each" in tried and lead.startswith("2 of 3 methods")


def test_an_untrained_row_of_one_seed_is_asked_for_more(runs: Path, record: Make) -> None:
    sentences(runs, record, ROWS)
    record("raw pixels", knn=12.0, linear=13.0, cell={"epochs": 0, "baseline": "raw_pixels"})
    told = "3 seeds of every row in common with raw pixels, as fewer are not tested"
    assert answer(task(runs))[-1] == f"Next: {told}."


# Of each row its scores in blocks of twelve seeds: the best mean lacks the hard block, or each
# method is above the next.
HARD = {"AUH": {0: 70.0}, "VICReg": {0: 72.0, 1: 60.0}, "untrained": {0: 30.0, 1: 18.0}}
CIRCLE = {"AUH": {0: 72.0, 1: 70.0}, "VICReg": {0: 70.0, 2: 72.0}, "SimCLR": {1: 72.0, 2: 70.0}}
CIRCLE["untrained"] = dict.fromkeys(range(3), 30.0)


@pytest.mark.parametrize(
    ("rows", "first", "order"),
    [
        (HARD, "VICReg", "All other methods are significantly below VICReg by linear top-1: +2."),
        (CIRCLE, "AUH", "SimCLR is significantly above AUH by linear top-1; all other methods are"),
    ],
)
def test_no_leader_is_said_not_to_lead(
    rows: Mapping[str, Mapping[int, float]], first: str, order: str, runs: Path, record: Make
) -> None:
    for place, (label, blocks) in enumerate(rows.items()):
        for (block, value), number in product(blocks.items(), range(12)):
            score = value + LUCK[(number + place) % 3]
            record(label, 12 * block + number, knn=score, linear=score)
    _, lead, told, step = answer(task(runs))
    assert f"; the first of these by linear top-1 is {first}, " in lead and told.startswith(order)
    assert step.startswith(f"Next: take {first}, or train it with 4 times the epochs")


def test_what_shares_no_seed_is_not_compared(runs: Path, record: Make) -> None:
    rows = {"AUH": (70.0, 80.0), "VICReg": (60.0, 70.0)}
    sentences(runs, record, rows)
    record("untrained", 9, knn=40.0, linear=50.0)
    lead, *others = answer(task(runs))
    unknown = "a number of points that is not known (no seed in common)"
    assert lead == (
        f"{NONE_LEADS}{unknown} by kNN top-1 from untrained and {unknown} by linear top-1 from "
        "untrained."
    )
    assert "nan" not in " ".join(others)


def test_a_score_without_labels_recommends_none(runs: Path, record: Make) -> None:
    rows = {"AUH": 70.0, "VICReg": 60.0, "untrained": 1.0}
    for place, (label, recall) in enumerate(rows.items()):
        for seed in range(3):
            value = recall + LUCK[(seed + place) % 3]
            one = Score("retrieval_recall1", value, "test", "the other view", "recall@1", "%", True)
            record(label, seed, scores=(one,), cost={"train_s": 600.0 - 60 * place})
    _, lead, order, labels, step = answer(task(runs))
    assert lead.startswith("2 of 2 methods (AUH; VICReg) lead all untrained rows by recall@1; the ")
    assert order.startswith("All other methods are significantly below AUH by recall@1: +10.0 ")
    assert labels.startswith("No label was read: recall@1 is how often an image's other view")
    # The fastest leader, although another one is ahead by this score.
    assert step == (
        "Next: label some images of each class, which lets a comparison choose; until then take "
        "the one that trains fastest, VICReg (540.0 s of training)."
    )


def test_seeds_that_methods_have_are_not_asked_for_again(runs: Path, record: Make) -> None:
    for seed in range(6):
        for place, label in enumerate(("AUH", "VICReg")):
            value = 80.0 - 0.1 * place + 2 * LUCK[(seed + place) % 3]
            record(label, seed, knn=value, linear=value, cost={"train_s": 600.0})
    for seed in range(3):
        record("untrained", seed, knn=40.0, linear=40.0)
    found = re.search(r"by (\d+) seeds of each \((.*) h of training\)", answer(task(runs))[-1])
    assert found is not None
    assert float(found[2]) == pytest.approx((int(found[1]) - 6) * 2 * 600 / 3600, abs=0.01)


def test_labels_that_were_read_are_not_denied(runs: Path, record: Make) -> None:
    for place, label in enumerate(("AUH", "VICReg", "untrained", "supervised")):
        for seed in range(3):
            value = 70.0 - 20 * place + LUCK[(seed + place) % 3]
            one = Score("retrieval_recall1", value, "test", "the other view", "recall@1", "%", True)
            cell = {"baseline": "supervised"} if label == "supervised" else {}
            record(label, seed, scores=(one,), cell=cell)
    found = answer(task(runs))
    assert len(found) == 5 and "No label was read" not in " ".join(found)


@pytest.mark.parametrize("left_out", ["VICReg", "untrained"])
def test_without_two_methods_and_an_untrained_row_there_is_no_answer(
    runs: Path, record: Make, left_out: str
) -> None:
    rows = {label: ROWS[label] for label in ROWS.keys() - {left_out}}
    assert sentences(runs, record, rows) == []


def test_the_answer_stands_at_the_top_of_the_page_and_last_in_the_terminal(
    runs: Path, record: Make, tmp_path: Path
) -> None:
    *_, step = sentences(runs, record, ROWS)
    report = write_report(runs, tmp_path / "report")
    page = report.page.read_text()
    assert page.index(f"<li>{step}</li>") < page.index("<table")
    assert report.leaderboard.endswith(f"  {step}")
