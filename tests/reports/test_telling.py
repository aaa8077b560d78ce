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
from regbench.reports.rows.significance import LEVEL, POWER, Tukey
from regbench.reports.rows.telling import ASSUMED, known_spread, tell
from regbench.sweeps.forecast import Planned, plan, rows
from tests.records import made
from tests.reports.conftest import score

ROWS = ("method=vicreg,simclr,tcr", "seed=0,1,2")
COST = Cost(train_s=360.0, evaluate_s=0.0)


def unplanned(grid: Sweep) -> list[Planned]:
    """The cells of a sweep, without knowing what they will take."""
    return [Planned(cell, False, 1, None, None, None, False) for cell in grid.cells]


def test_so_many_searches_find_the_difference_in_four_of_five_simulated_tables(tiny: list[str]) -> None:
    grid = load_grid([*tiny, *ROWS, "method.alignment_weight=1,2", "method=vicreg,tcr"])
    spread = Components(seed=2.0, search=1.0)
    text = tell(unplanned(grid), 3.0, spread, "as given", 9)
    found = re.search(r"(\d+) searches of each row and (\d+) final seeds of each search, ([\d,]+) trainings", text)
    assert found is not None
    searches, finals, trainings = (int(each.replace(",", "")) for each in found.groups())
    assert trainings == 2 * searches * (9 + finals)
    # The variance of a row's mean, times what a search takes with its final runs.
    assert finals == min(range(1, 50), key=lambda number: (0.5**2 + 1 / number) * (9 + number))
    rng, hits = np.random.default_rng(0), []
    for _ in range(400):
        means = 0.5 * rng.normal(size=(2, searches)) + rng.normal(size=(2, searches, finals)).mean(axis=2)
        means[0] += 1.5  # all in units of a seed's deviation
        (pair,) = Tukey([dict(enumerate(row)) for row in means]).compare(0, [1])
        hits.append(pair.p <= LEVEL)
    assert np.mean(hits) == pytest.approx(POWER, abs=0.08)  # the approximation, and two standard errors


def test_the_spread_and_the_hours_are_those_of_the_records_at_hand(tiny: list[str], tmp_path: Path) -> None:
    grid = load_grid([*tiny, *ROWS])
    assert known_spread(grid) == (ASSUMED, "as in the study of all methods on Fashion-MNIST")
    assert "GPU hours unknown" in tell(unplanned(grid), 1.0, ASSUMED, "", None)
    rng = np.random.default_rng(0)
    scores: dict[str, dict[int, float]] = {}
    for cell in grid.cells:
        value, plain = 50 + float(rng.normal()), cell.plain()
        scores.setdefault(cell.label, {})[cell.seed] = value
        fields = {"label": cell.label, "seed": cell.seed, "method": plain["method"]["name"]}
        # Neither another data set counts, nor a task that knows the spread from fewer rows; of equals the first does.
        elsewhere = plain | {"dataset": plain["dataset"] | {"name": "elsewhere"}}
        few, twin, unitless = (
            plain | {"evaluation": plain["evaluation"] | {"knn": plain["evaluation"]["knn"] | {"k": k}}}
            for k in (7, 9, 11)
        )
        of_sweeps = {"elsewhere": (elsewhere, value / 2), "few": (few, value / 3)}
        of_sweeps |= {"other": (plain, value), "twin": (twin, value / 4), "unitless": (unitless, value)}
        for sweep, (settings, linear) in of_sweeps.items():
            measured = replace(score("linear_top1", linear), unit="" if sweep == "unitless" else "%")
            record = made(settings, scores=(measured,), cost=COST, sweep=sweep, **fields)
            if sweep != "few" or cell.label != "TCR":
                write_text(tmp_path / "runs" / sweep / record.cell_id / "record.json", record.text())
                write_text(tmp_path / "runs" / sweep / record.cell_id / "config.yaml", yaml.safe_dump(settings))
    spread, origin = known_spread(grid)
    assert (spread.seed, spread.search) == pytest.approx((Tukey(list(scores.values())).deviation, ASSUMED.search))
    assert origin == "the former by linear top-1 in other, the latter assumed"
    assert known_spread(replace(grid, name="unitless"))[1] == origin  # points are per cents
    assert known_spread(replace(grid, name="few"))[1].startswith("the former by linear top-1 in few")
    planned = plan(replace(grid, name="other"))
    assert {row["GPU hours"] for row in rows(planned)} == {"–"}  # nothing is left to run
    text = tell(planned, 1.0, spread, origin, None)
    seeds = int(re.findall(r"(\d+) seeds of each row", text)[0])
    assert "between any two of 3 rows" in text
    assert f"{3 * seeds} trainings, {0.1 * 3 * seeds:.3g} GPU hours" in text
    assert "searches" not in text.partition("\n- ")[2].partition("\n")[0]


def test_one_row_has_nothing_to_be_told_from(tiny: list[str]) -> None:
    grid: Sweep = load_grid([*tiny, "method=vicreg", "seed=0,1"])
    with pytest.raises(RegbenchError, match="there is one; give a sweep of several methods"):
        tell(unplanned(grid), 1.0, ASSUMED, "", None)
    untrained = load_grid([*tiny, "epochs=0", "optimizer.warmup_epochs=0"])
    assert "between any two of 2 rows" in tell(unplanned(grid) + unplanned(untrained), 1.0, ASSUMED, "", None)
