"""`regbench watch`: what it shows of a sweep, and that it keeps the report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import Result

from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.rundir.run_folder import RunFolder, read_plan
from tests.command import done
from tests.records import plan
from tests.reports.conftest import score
from tests.reports.reading import Make

RUNNING = "0123456789ab"


def watch(runs: Path, *arguments: str) -> Result:
    return done("watch", "quick", "--runs-dir", runs, *arguments)


@pytest.fixture
def sweep(runs: Path, record: Make, claimed: Callable[[Path], Attempt]) -> Path:
    """A folder with a cell that is done, one that has trained three epochs and goes on, and one
    that waits.
    """
    ended = record("VICReg", 0, sweep="quick").parent
    running = ended.with_name(RUNNING)
    running.mkdir()
    attempt = claimed(running)
    attempt.update(epoch=3, epochs=10, img_per_s=1234.0, remaining_s=600.0)
    attempt.beat()
    rows = []
    for e in (1, 2, 3):  # of two scores the first is drawn
        scores = score("knn_top1", 20.0 * e, "tuning"), score("linear_top1", 9.0, "tuning")
        rows.append({"epoch": e, "loss": 8.0 / e, "scores": list(map(asdict, scores))})
    (running / "metrics-0001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ids = {ended.name: "VICReg", RUNNING: "SFRIK [L=3]", "f" * 12: "SimCLR"}
    plan(ended.parent, *({"id": i, "label": label, "epochs": 10} for i, label in ids.items()))
    return ended.parent


def test_it_shows_states_and_curves_and_writes_the_report(sweep: Path, runs: Path) -> None:
    runs = runs.rename(runs.with_name("runs [old]"))  # which is no markup
    output = watch(runs, "--once").output
    running, *_ = (line for line in output.splitlines() if line.startswith(RUNNING))
    state, curves = ("running", "3/10", "1234", "10 min"), ("█▃▁", "2.667", "▁▅█")
    for part in ("SFRIK [L=3]", *state, *curves, "60.00 knn_top1"):
        assert part in running
    # what runs comes first
    assert output.index(RUNNING) < output.index("SimCLR") < output.index("VICReg")
    assert "3 cells: 1 done, 1 running, 1 pending" in output
    page = runs / "quick" / "report" / "index.html"
    assert f"report: {page}" in output
    assert "VICReg" in page.read_text()


def test_a_damaged_history_costs_its_curve_only(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).history() == []
    (tmp_path / "metrics-0001.jsonl").write_text('{"epoch": 1, "lo')
    assert RunFolder(tmp_path).history() == []


def test_it_ends_with_the_last_cell_and_reports_it(
    sweep: Path, runs: Path, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:  # the others end between two looks
            ended = record("AUH", 0, sweep="quick").parent.name
            cells = [{**cell} for cell in read_plan(sweep)[:1]]
            plan(sweep, *cells, {"id": ended, "label": "AUH", "epochs": 10})

    monkeypatch.setattr(time, "sleep", wait)
    output = watch(runs).output
    assert len(looks) == 2
    assert "2 cells: 2 done" in output
    assert "AUH" in (sweep / "report" / "index.html").read_text()


def test_a_curve_is_drawn_from_its_lowest_to_its_highest_value() -> None:
    from regbench.sweeps.watch import sparkline

    assert sparkline([0.0, 7.0]) == "▁█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([1.0, float("nan"), 2.0]) == "▁ █"
    assert sparkline([]) == sparkline([float("inf")]) == ""
    long = sparkline([float(i) for i in range(1000)])
    assert (len(long), long[0], long[-1]) == (16, "▁", "█")
    assert sparkline([0.0] * 999 + [1.0]) == 15 * "▁" + "█"  # the last value is always drawn
