"""What changed between two reports."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import ttest_ind, ttest_rel

from regbench.cli import main
from regbench.reports.rows.changes import Change, changes, differ
from regbench.reports.rows.significance import holm
from regbench.reports.tables.against import against
from tests.reports.conftest import METHODS, dataset, settings
from tests.reports.reading import Make, grid, task


def weighted(label: str, weight: float) -> dict[str, Any]:
    return {"method": {"name": METHODS[label], "alignment_weight": float(weight)}}


def by_label(found: list[Change] | None) -> dict[str, Change]:
    assert found is not None
    return {change.row.label: change for change in found}


def test_shared_seeds_are_compared_seed_by_seed() -> None:
    before = {0: 70.0, 1: 75.0, 2: 80.0, 3: 60.0, 7: 0.0}
    now = {0: 70.5, 1: 75.2, 2: 80.9, 3: 60.1, 8: 99.0}
    one, expected = differ(now, before), ttest_rel([70.5, 75.2, 80.9, 60.1], [70.0, 75.0, 80.0, 60.0])
    interval = expected.confidence_interval(0.95)
    assert (one.p, one.low, one.high) == pytest.approx((expected.pvalue, interval.low, interval.high))
    assert one.pairs == 4


def test_other_seeds_are_two_samples_of_unequal_variance() -> None:
    before, now = {0: 70.0, 1: 71.0, 2: 69.0}, {2: 75.0, 3: 80.0, 4: 77.0, 5: 74.0}
    one, expected = differ(now, before), ttest_ind(list(now.values()), list(before.values()), equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert (one.p, one.low, one.high) == pytest.approx((expected.pvalue, interval.low, interval.high))
    assert (one.pairs, one.value) == (0, 6.5)


def test_what_cannot_be_tested_and_what_is_the_same() -> None:
    assert np.isnan(differ({0: 71.0}, {0: 70.0}).p) and np.isnan(differ({0: 71.0, 1: 72.0}, {2: 70.0}).low)
    scores = {0: 71.0, 1: 72.0, 2: 70.0}
    assert differ(scores, scores).p == 1
    better = differ({seed: value + 1 for seed, value in scores.items()}, scores)
    assert (better.p, better.low, better.high) == (0, 1, 1), "by the same on every seed"


def test_rows_that_came_went_and_changed(runs: Path, record: Make) -> None:
    """A method in another setting is the same method where it has no other row."""
    for sweep, better, weight, q in (("old", 0.0, 10.0, 512), ("new", 1.0, 25.0, 1024)):
        for seed, noise in enumerate((0.0, 0.3, 0.1)):
            ours = {"sweep": sweep, "cost": {"train_s": 30.0 + 15 * better, "loss_extra_bytes": 2e6 - 1e6 * better}}
            record("VICReg", seed, linear=75 + better + noise * better, cell=weighted("VICReg", weight), **ours)
            record("AUH", seed, linear=70, cell={"embedding_dim": q}, **ours)
        record("SimCLR" if better else "RBF kernel", sweep=sweep)
    new, old = task(runs / "new"), task(runs / "old")
    found = by_label(changes(new, [old]))
    assert list(found) == ["VICReg", "SimCLR", "AUH", "RBF kernel"]
    assert found["SimCLR"].before is None and found["RBF kernel"].now is None
    assert found["VICReg"].settings == {"method.alignment_weight": ("10.0", "25.0")}
    assert found["AUH"].settings == {"embedding_dim": ("512", "1024")}
    assert found["VICReg"].ratios["train_s"] == 1.5 and found["VICReg"].ratios["loss_extra_bytes"] == 0.5
    p = [found[label].differences["linear_top1"].p for label in ("VICReg", "AUH")]
    assert [found[label].differences["linear_top1"].p_holm for label in ("VICReg", "AUH")] == holm(p)
    made = against(new, [old])
    assert made is not None
    rows = grid(made[0])
    assert made[0].title == "Against old"
    assert rows["VICReg"]["changed"] == "alignment_weight 10.0 → 25.0"
    assert rows["VICReg"]["linear top-1 (%)"] == "75.00 → 76.13"
    assert rows["VICReg"]["linear top-1: difference"] == "**+1.13 [+0.75, +1.51]**"
    assert (rows["VICReg"]["train time (×)"], rows["VICReg"]["loss memory (×)"]) == ("1.50", "0.50")
    assert rows["AUH"]["linear top-1: difference"] == "+0.00 [+0.00, +0.00]"
    assert [rows[label]["changed"] for label in ("SimCLR", "RBF kernel")] == ["new", "gone"]
    assert rows["SimCLR"]["seeds"] == "– → 1"


def test_what_changes_no_score_is_no_change(runs: Path, record: Make) -> None:
    """The settings of a method whose network was not trained, and other protocols than before."""
    evaluation = settings("VICReg")["evaluation"]
    for sweep, weight, protocols in (("old", 10.0, ["knn"]), ("new", 25.0, ["knn", "probe"])):
        record("untrained", sweep=sweep, cell=weighted("untrained", weight))
        record("VICReg", sweep=sweep, cell={"evaluation": evaluation | {"protocols": protocols}})
    found = by_label(changes(task(runs / "new"), [task(runs / "old")]))
    assert {label: change.settings for label, change in found.items()} == {"VICReg": {}, "untrained": {}}


def test_a_row_that_may_belong_to_any_of_several_is_new(runs: Path, record: Make) -> None:
    for q in (256, 512):
        record("VICReg", sweep="old", cell={"embedding_dim": q})
    record("VICReg", sweep="new", cell={"embedding_dim": 1024})
    found = changes(task(runs / "new"), [task(runs / "old")])
    assert found is not None
    assert [(change.now is None, change.before is None) for change in found] == [(False, True), *[(True, False)] * 2]


def test_what_the_test_split_chose_is_compared_with_its_like(runs: Path, record: Make) -> None:
    for split in ("tuning", "test"):
        record(sweep=split, choice={"hyperparameters": {"selected_on": split}})
    one, other = task(runs / "tuning"), task(runs / "test")
    assert changes(one, [other]) is None and changes(one, [other, one]) is not None


def test_the_command(runs: Path, record: Make) -> None:
    for sweep in ("old", "new"):
        for seed in range(3):
            git = {"git": f"{sweep}-code"}
            record("VICReg", seed, linear=75 + seed + (sweep == "new"), sweep=sweep, environment=git)
    record(sweep="other", cell={"dataset": dataset("digits")})
    command = ["report", "new", "--runs-dir", str(runs), "--against"]
    refused = CliRunner().invoke(main, [*command, "other"])
    assert refused.exit_code == 2
    assert "new and other have no task in common" in refused.output
    done = CliRunner().invoke(main, [*command, "old"], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    assert "Against old" in done.output and "The code is not the same: old-code → new-code." in done.output
    with (runs / "new" / "report" / "against.csv").open() as file:
        (line,) = (line for line in csv.DictReader(file) if line["score"] == "linear_top1")
    assert (line["label"], line["change"], float(line["difference"]), line["pairs"]) == ("VICReg", "both", 1, "3")
    page = (runs / "new" / "report" / "index.html").read_text()
    assert "What changed" in page and (runs / "new" / "report" / "against.md").exists()
