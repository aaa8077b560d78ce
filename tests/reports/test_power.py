"""What a sweep takes to tell a difference: by simulation, and from the records that there are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

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
                how = (
                    {"hyperparameters": {"sha256": "0", "search": number // 1000}}
                    if cell.label != "TCR"
                    else {}
                )
                linear = 70 + sign * value if how else 70.0 + number % 7
                settings = cell.plain() | {"seed": number}
                fields = {
                    "label": cell.label,
                    "seed": number,
                    "method": settings["method"]["name"],
                    "choice": how,
                }
                record = made(
                    settings, scores=(score("linear_top1", linear),), sweep="other", **fields
                )
                write_text(
                    tmp_path / "runs" / "other" / record.cell_id / "record.json", record.text()
                )
                write_text(
                    tmp_path / "runs" / "other" / record.cell_id / "config.yaml",
                    yaml.safe_dump(settings),
                )

    write({0: 0.0})
    assert known_deviations(grid)[0] == ASSUMED, "one run of a row has no spread"
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
        fields = {"label": cell.label, "seed": cell.seed, "method": plain["method"]["name"]}
        # Neither another data set or backbone counts, nor a task that knows the spread from fewer
        # rows; of equals the first does.
        elsewhere = plain | {"dataset": plain["dataset"] | {"name": "elsewhere"}}
        deeper = plain | {"network": plain["network"] | {"backbone": {"name": "resnet50"}}}
        few, twin, unitless = (
            plain
            | {"evaluation": plain["evaluation"] | {"knn": plain["evaluation"]["knn"] | {"k": k}}}
            for k in (7, 9, 11)
        )
        of_sweeps = {
            "deeper": (deeper, value / 5),
            "elsewhere": (elsewhere, value / 2),
            "few": (few, value / 3),
        }
        of_sweeps |= {
            "other": (plain, value),
            "twin": (twin, value / 4),
            "unitless": (unitless, value),
        }
        for sweep, (settings, linear) in of_sweeps.items():
            measured = replace(
                score("linear_top1", linear), unit="" if sweep == "unitless" else "%"
            )
            record = made(settings, scores=(measured,), cost=COST, sweep=sweep, **fields)
            if sweep != "few" or cell.label != "TCR":
                write_text(
                    tmp_path / "runs" / sweep / record.cell_id / "record.json", record.text()
                )
                write_text(
                    tmp_path / "runs" / sweep / record.cell_id / "config.yaml",
                    yaml.safe_dump(settings),
                )
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
