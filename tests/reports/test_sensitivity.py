"""How far a hyperparameter may be off before it costs a point of accuracy, in tables and figures."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.rundir.record_parts import Searched
from regbench.reports import write_report
from regbench.reports.rows.tolerance import Sensitivity, Tolerance, sensitivities
from regbench.reports.tables.leaderboard import leaderboard_frame
from regbench.reports.tables.sensitivity import sensitivity
from tests.reports.conftest import METHODS, score, settings
from tests.reports.reading import Drawn, Make, task, tasks, texts

SEARCHED = {"method.alignment_weight": Searched("log", True), "optimizer.base_lr": Searched("log", False)}


def tried(
    record: Make,
    weight: float,
    accuracy: float | None,
    *,
    label: str = "VICReg",
    rate: float = 1.0,
    epochs: int = 3,
    searched: dict[str, Searched] | None = None,
    final: bool = False,
    **more: Any,
) -> Path:
    """Write a point of a tuning; it diverged where there is no accuracy, and `final` is in the leaderboard."""
    optimizer = settings(label)["optimizer"] | {"base_lr": rate}
    method = {"name": METHODS[label], "alignment_weight": float(weight)}
    cell = {"method": method, "optimizer": optimizer, "epochs": epochs}
    fields: dict[str, Any] = {"cell": cell, "searched": SEARCHED if searched is None else searched, **more}
    if accuracy is None:
        return record(label, status="diverged", knn=None, linear=None, **fields)
    if final:
        return record(label, tuning=accuracy, **fields)
    return record(label, status="tuned", scores=(score("knn_top1", accuracy, "tuning"),), **fields)


def by_key(runs: Path) -> dict[str, Sensitivity]:
    return {one.key: one for one in sensitivities(task(runs))}


def tolerance_of(runs: Path, key: str = "method.alignment_weight") -> Tolerance | None:
    return by_key(runs)[key].tolerance


def test_the_range_ends_where_the_line_between_two_values_has_lost_a_point(runs: Path, record: Make) -> None:
    for weight, accuracy in ((1, 70.0), (10, 79.5), (1000, 78.0), (10_000, 60.0)):
        tried(record, weight, accuracy)
    tried(record, 100, 80.0, final=True)
    one = by_key(runs)["method.alignment_weight"]
    found = one.tolerance
    assert found is not None and not found.lower_bound
    assert (math.log10(found.low), math.log10(found.high)) == pytest.approx((9 / 9.5, 2.5))
    assert found.width == pytest.approx(2.5 - 9 / 9.5)
    assert (one.chosen, one.best, one.epochs, len(one.points)) == (100, 80, 3, 5)
    assert list(by_key(runs)) == ["method.alignment_weight"], "the learning rate was not varied"
    made = sensitivity(task(runs))
    assert made is not None
    assert texts(made[0])[1] == ["VICReg", "alignment_weight", "100", "8.86", "316", "1.55", "5", "3", "80.00"]
    row = leaderboard_frame(task(runs)).iloc[0]
    assert row["weight_width_decades"] == pytest.approx(found.width) and not row["weight_width_is_lower_bound"]
    assert row["base_lr_width_decades"] is None


def test_a_range_that_reaches_what_was_tried_is_a_lower_bound(runs: Path, record: Make) -> None:
    tried(record, 1, 70.0)
    tried(record, 10, 79.5)
    tried(record, 100, 80.0, final=True)
    found = tolerance_of(runs)
    assert found is not None and (found.low_open, found.high_open) == (False, True)
    made = sensitivity(task(runs))
    assert made is not None and texts(made[0])[1][3:6] == ["8.86", "≥ 100", "≥ 1.05"]
    tried(record, 1000, None)
    found = tolerance_of(runs)
    assert found is not None and not found.lower_bound, "what diverged was tried"
    assert found.high == pytest.approx(10 ** (2 + 1 / 80))


def test_two_values_say_nothing(runs: Path, record: Make) -> None:
    tried(record, 10, 79.5)
    tried(record, 100, 80.0, final=True)
    assert tolerance_of(runs) is None
    made = sensitivity(task(runs))
    assert made is not None and texts(made[0])[1][3:6] == ["–", "–", "–"]


def test_what_another_hyperparameter_spoils_does_not_narrow_the_range(runs: Path, record: Make) -> None:
    """The best over the other hyperparameter counts, also where a value was tried with a bad one of it only."""
    tried(record, 0.1, 78.5, rate=0.3)
    tried(record, 1, 60.0, rate=0.1)
    tried(record, 10, 79.5)
    tried(record, 30, 50.0, rate=0.1)
    tried(record, 100, 80.0, final=True)
    tried(record, 100, 40.0, rate=10.0)
    tried(record, 300, 50.0, rate=0.1)
    tried(record, 1000, 61.0, rate=0.3)
    found = by_key(runs)
    weight, rate = (found[key].tolerance for key in SEARCHED)
    assert weight is not None and rate is not None
    assert weight.lower_bound and not weight.low_open and not weight.high_open, "not all weights had the best rate"
    assert weight.low == pytest.approx(10**0.5), "at 1 it is at least as good as at 0.1"
    assert weight.high == pytest.approx(10 ** (2 + math.log10(3) / 19)), "at 300 it is at least as good as at 1000"
    assert rate.low == pytest.approx(0.3 ** (2 / 3)) and rate.high == pytest.approx(10 ** (1 / 40))


def test_a_grid_of_two_hyperparameters_is_no_lower_bound(runs: Path, record: Make) -> None:
    for value, lost in ((1, 5), (10, 0), (100, 5)):
        for rate_value, more in ((0.1, 5), (1.0, 0), (10.0, 2)):
            tried(record, value, 80.0 - lost - more, rate=rate_value, final=not lost + more)
    found = by_key(runs)
    weight, rate = (found[key].tolerance for key in SEARCHED)
    assert weight is not None and rate is not None
    assert (weight.width, rate.width) == pytest.approx((0.4, 0.7))
    assert not weight.lower_bound and not rate.lower_bound


def test_scales(runs: Path, record: Make) -> None:
    """Of a weight beside its complement the odds count, and a linear range has its own unit."""
    points = ((0.05, 70.0), (0.1, 80.0), (0.5, 80.0), (0.9, 80.0), (0.95, 70.0))
    for scale in ("logit", "linear"):
        for weight, accuracy in points:
            how = {"method.alignment_weight": Searched(scale, True)}
            tried(record, weight, accuracy, sweep=scale, final=accuracy == 80.0, searched=how)
        found = tolerance_of(runs / scale)
        assert found is not None
        wide = 2 * math.log10(9) if scale == "logit" else 0.8
        beyond = 2 * (math.log10(19) - math.log10(9)) if scale == "logit" else 0.1
        assert found.width == pytest.approx(wide + beyond / 10)
        assert found.low + found.high == pytest.approx(1)


def test_short_trainings_of_a_search_are_compared_among_themselves(runs: Path, record: Make) -> None:
    """Where there are more of them than of full length, and never with these."""
    for weight, accuracy in ((10, 70.0), (100, 71.0), (1000, 60.0)):
        tried(record, weight, accuracy, final=weight == 100)
    short = [tried(record, w, a, epochs=1).parent.name for w, a in ((1, 50.0), (10, 59.5), (100, 60), (1000, 50))]
    (runs / "quickstart" / "sweep.json").write_text('{"cells": []}')
    search = runs / "quickstart" / "search.json"
    search.write_text(json.dumps({"short": dict.fromkeys(short, 3)}))
    one = by_key(runs)["method.alignment_weight"]
    assert (one.epochs, one.best, len(one.points)) == (1, 60, 4)
    search.write_text(json.dumps({"short": dict.fromkeys(short[1:], 3)}))
    for name in short[:1]:
        (runs / "quickstart" / name / "tuning.json").unlink()
    one = by_key(runs)["method.alignment_weight"]
    assert (one.epochs, one.best, len(one.points)) == (3, 71, 3), "of equally many the longer ones"


def test_short_trainings_are_left_out_where_rows_differ_in_their_length(runs: Path, record: Make) -> None:
    """They might be of either."""
    for epochs in (1, 3):
        for weight, accuracy in ((10, 79.0), (100, 80.0), (1000, 70.0)):
            tried(record, weight, accuracy, epochs=epochs, final=weight == 100)
    short = tried(record, 1, 90.0, epochs=1).parent.name
    (runs / "quickstart" / "sweep.json").write_text('{"cells": []}')
    (runs / "quickstart" / "search.json").write_text(json.dumps({"short": {short: 3}}))
    found = {one.epochs: (one.best, len(one.points)) for one in sensitivities(task(runs))}
    assert found == {1: (80, 3), 3: (80, 3)}


def test_the_seeds_that_all_have_are_compared(runs: Path, record: Make) -> None:
    """The chosen one alone has been trained with others too."""
    for weight, accuracy in ((10, 79.0), (100, 80.0), (1000, 70.0)):
        tried(record, weight, accuracy, final=weight == 100)
    tried(record, 100, 60.0, final=True, seed=1)
    assert by_key(runs)["method.alignment_weight"].best == 80


def test_a_configuration_of_which_a_seed_diverged_has_no_accuracy(runs: Path, record: Make) -> None:
    for weight, accuracies in ((10, (79.0, 79.0)), (100, (80.0, 80.0)), (1000, (90.0, None))):
        for seed, accuracy in enumerate(accuracies):
            tried(record, weight, accuracy, final=weight == 100, seed=seed)
    one = by_key(runs)["method.alignment_weight"]
    assert (one.points, one.best) == (((10, 79), (100, 80), (1000, None)), 80)


def test_a_sweep_without_a_choice_has_no_such_table(runs: Path, record: Make) -> None:
    tried(record, 100, 80.0, final=True)
    assert sensitivity(task(runs)) is None


def test_files_and_page(runs: Path, record: Make, tmp_path: Path) -> None:
    for weight, accuracy in ((1, 65.0), (10, 79.5), (1000, None)):
        tried(record, weight, accuracy)
    tried(record, 100, 80.0, final=True)
    report = write_report(runs, tmp_path / "report")
    with (tmp_path / "report" / "sensitivity.csv").open() as file:
        (line,) = csv.DictReader(file)
    assert (line["hyperparameter"], line["balances"], line["values"]) == ("method.alignment_weight", "True", "4")
    page = report.page.read_text()
    assert "How easy to tune?" in page
    drawn = Drawn(page, "Accuracy against the balancing weight", log="x")
    assert drawn.markers("VICReg") == [[1, -10], [10, -0.5], [100, 0], [1000, -10]]
    assert len(tasks(runs)) == 1
