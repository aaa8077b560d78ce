"""What a sweep takes to tell a difference: by simulation, and from the records that there are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from regbench import RegbenchError
from regbench.benchmark.rundir.record_parts import Cost
from regbench.benchmark.settings.sweep import Sweep, load_grid
from regbench.files import write_text
from regbench.reports.rows.deviations import Components
from regbench.reports.rows.power import ASSUMED, known_deviations, power_text
from regbench.reports.rows.significance import LEVEL, POWER, Power, Tukey
from regbench.sweeps.forecast import Planned, plan, rows
from tests.records import made
from tests.reports.conftest import score

ROWS = ("method=vicreg,simclr,tcr", "seed=0,1,2")
COST = Cost(train_s=360.0, evaluate_s=0.0)


def unplanned(grid: Sweep) -> list[Planned]:
    """The cells of a sweep, without knowing what they will take."""
    return [Planned(cell, False, 1, None, None, None, False) for cell in grid.cells]


def test_so_many_searches_find_the_difference_in_four_of_five_simulated_tables(
    tiny: list[str],
) -> None:
    grid = load_grid([*tiny, *ROWS, "method.alignment_weight=1,2", "method=vicreg,tcr"])
    spread = Components(seed=2.0, search=1.0)
    text = power_text(unplanned(grid), 3.0, spread, "as given", 9)
    found = re.search(
        r"(\d+) searches of each row and (\d+) final seeds of each search, ([\d,]+) trainings", text
    )
    assert found is not None
    searches, finals, trainings = (int(each.replace(",", "")) for each in found.groups())
    assert trainings == 2 * searches * (9 + finals)
    # The variance of a row's mean, times what a search takes with its final runs.
    assert finals == min(range(1, 50), key=lambda number: (0.5**2 + 1 / number) * (9 + number))
    rng, hits = np.random.default_rng(0), []
    for _ in range(400):
        means = 0.5 * rng.normal(size=(2, searches)) + rng.normal(size=(2, searches, finals)).mean(
            axis=2
        )
        means[0] += 1.5  # all in units of a seed's deviation
        (pair,) = Tukey([dict(enumerate(row)) for row in means]).compare(0, [1])
        hits.append(pair.p <= LEVEL)
    assert np.mean(hits) == pytest.approx(
        POWER, abs=0.08
    )  # the approximation, and two standard errors
    assert "searches of each row" not in power_text(
        unplanned(grid), 3.0, Components(seed=2.0, search=0.0), "", 9
    )
    assert "and 1 final seeds of each search" in power_text(
        unplanned(grid), 3.0, Components(seed=0.01, search=1.0), "", 9
    )


def test_hours_are_said_to_be_estimated_where_any_is_and_unknown_where_one_is_not(
    tiny: list[str],
) -> None:
    one, two = unplanned(load_grid([*tiny, "method=vicreg,simclr"]))
    one, two = replace(one, gpu_hours=1.0), replace(two, gpu_hours=2.0, from_flop=True)
    seeds = Power(2, 1.0).seeds_for(1.0)
    spread = Components(seed=1.0, search=0.0)
    assert f"{2 * seeds} trainings, ≈ {3.0 * seeds:.3g} GPU hours" in power_text(
        [one, two], 1.0, spread, "", None
    )
    assert "trainings, GPU hours unknown" in power_text(
        [one, replace(two, gpu_hours=None)], 1.0, spread, "", None
    )


def leave(runs: Path, label: str, settings: dict[str, Any], linear: float, **fields: Any) -> None:
    """Write the record of a cell and its configuration."""
    fields = {"scores": (score("linear_top1", linear),), "label": label, **fields}
    record = made(settings, method=settings["method"]["name"], seed=settings["seed"], **fields)
    folder = runs / record.sweep / record.cell_id
    write_text(folder / "record.json", record.text())
    write_text(folder / "config.yaml", yaml.safe_dump(settings))


def test_where_searches_were_repeated_the_records_split_the_variance(
    tiny: list[str], tmp_path: Path
) -> None:
    """Mean squares of 1 / 2 within searches of two runs and of 2 between them: √(1 / 2), and
    √((2 − 1 / 2) / 2).
    """
    grid = load_grid([*tiny, ROWS[0]])

    def write(scores: dict[int, float]) -> None:
        for cell, sign in zip(grid.cells, (1, -1, 1), strict=True):
            for number, value in scores.items():
                linear, choice = 70.0 + number % 7, {}
                if cell.label != "TCR":
                    linear = 70 + sign * value
                    choice = {"hyperparameters": {"sha256": "0", "search": number // 1000}}
                settings = cell.plain() | {"seed": number}
                more = {"sweep": "other", "choice": choice}
                leave(tmp_path / "runs", cell.label, settings, linear, **more)

    write({0: 0.0})
    assert known_deviations(grid)[0] == ASSUMED, "one run of a row has no variance"
    write({1: 1.0, 1000: 1.0, 1001: 2.0, 2000: 2.0, 2001: 3.0})
    spread, origin = known_deviations(grid)
    assert (spread.seed, spread.search) == pytest.approx((0.5**0.5, 0.75**0.5))
    assert origin == "by linear top-1 in other"


def test_the_spread_and_the_hours_are_those_of_the_records_at_hand(
    tiny: list[str], tmp_path: Path
) -> None:
    grid = load_grid([*tiny, *ROWS])
    assert known_deviations(grid) == (ASSUMED, "as in the study of all methods on Fashion-MNIST")
    assert "GPU hours unknown" in power_text(unplanned(grid), 1.0, ASSUMED, "", None)
    rng = np.random.default_rng(0)
    scores: dict[str, dict[int, float]] = {}
    for cell in grid.cells:
        value, plain = 50 + float(rng.normal()), cell.plain()
        scores.setdefault(cell.label, {})[cell.seed] = value
        dataset, network, evaluation = (plain[key] for key in ("dataset", "network", "evaluation"))

        def other_k(k: int, plain: Any = plain, evaluation: Any = evaluation) -> Any:
            return plain | {"evaluation": evaluation | {"knn": evaluation["knn"] | {"k": k}}}

        # Neither another data set or backbone counts, nor a task of fewer rows; of equals the
        # first does.
        of_sweeps = {
            "deeper": (plain | {"network": network | {"backbone": {"name": "resnet50"}}}, 5),
            "elsewhere": (plain | {"dataset": dataset | {"name": "elsewhere"}}, 2),
            "few": (other_k(7), 3),
            "other": (plain, 1),
            "twin": (other_k(9), 4),
        }
        for sweep, (settings, part) in of_sweeps.items():
            if sweep != "few" or cell.label != "TCR":
                more = {"sweep": sweep, "cost": COST}
                leave(tmp_path / "runs", cell.label, settings, value / part, **more)
        unitless = (replace(score("linear_top1", value), unit=""),)
        more = {"sweep": "unitless", "scores": unitless}
        leave(tmp_path / "runs", cell.label, other_k(11), value, **more)
    spread, origin = known_deviations(grid)
    assert (spread.seed, spread.search) == pytest.approx(
        (Tukey(list(scores.values())).deviation, ASSUMED.search)
    )
    assert origin == "the former by linear top-1 in other, the latter assumed"
    assert known_deviations(replace(grid, name="unitless"))[1] == origin  # points are per cents
    assert known_deviations(replace(grid, name="few"))[1].startswith(
        "the former by linear top-1 in few"
    )
    planned = plan(replace(grid, name="other"))
    assert {row["GPU hours"] for row in rows(planned)} == {"–"}  # nothing is left to run
    text = power_text(planned, 1.0, spread, origin, None)
    seeds = int(re.findall(r"(\d+) seeds of each row", text)[0])
    assert "between any two of 3 rows" in text
    assert f"{3 * seeds} trainings, {0.1 * 3 * seeds:.3g} GPU hours" in text
    assert "searches" not in text.partition("\n- ")[2].partition("\n")[0]


def test_one_row_has_nothing_to_be_told_from(tiny: list[str]) -> None:
    grid: Sweep = load_grid([*tiny, "method=vicreg", "seed=0,1"])
    with pytest.raises(RegbenchError, match="there is one; give a sweep of several methods"):
        power_text(unplanned(grid), 1.0, ASSUMED, "", None)
    untrained = load_grid([*tiny, "epochs=0", "optimizer.warmup_epochs=0"])
    assert "between any two of 2 rows" in power_text(
        unplanned(grid) + unplanned(untrained), 1.0, ASSUMED, "", None
    )


def test_a_search_is_as_long_as_that_of_the_row_with_most_configurations(tiny: list[str]) -> None:
    of_two, of_one = (
        load_grid([*tiny, *each]) for each in (["method.alignment_weight=1,2"], ["method=tcr"])
    )
    assert "- tuned by 2 trainings a search" in power_text(
        unplanned(of_two) + unplanned(of_one), 1.0, ASSUMED, "", None
    )
