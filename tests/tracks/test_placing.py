"""The outcome of a challenge: its words, and how it comes about where the trainings are made up."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy.stats import t

from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.record_parts import Cost, NamedFile
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import Sweep, load_grid, load_sweep
from regbench.files import write_text
from regbench.reports.rows.deviations import Stat
from regbench.sweeps.run import Unfinished
from regbench.sweeps.status import CellStatus
from regbench.tracks.challenge import Challenge
from regbench.tracks.placing import Placing, side_by_side
from regbench.tracks.verdicts import Verdict
from tests.conftest import TINY
from tests.records import knn_top1, made
from tests.refusals import is_refused
from tests.there import there

VERDICTS = (
    Verdict("A", -5.0, 2.0),
    Verdict("B", -1.0, 3.0),
    Verdict("C", 1.5, 1.5),
    Verdict("D", 4.25, 1.5),
    Verdict("untrained", 20.0, 1.0),
    Verdict("pixels", -1.0, 2.0),
)
PLACING = Placing(
    label="Mine",
    score="linear top-1",
    values=(70.0, 72.0, 74.5),
    verdicts=VERDICTS,
    rivals=("A", "B", "C", "D"),
    shifts=(0.5, -0.25),
    share=61.4,
    measured={
        "alignment": (Stat(0.1234, 0.01, 3), ""),
        "energy": (None, " J"),
        "step": (Stat(56.78, 1.0, 3), " ms"),
    },
    page=Path("report/index.html"),
    bundle=Path("mine.tar.xz"),
)


def test_the_places_in_several_tasks_stand_side_by_side() -> None:
    other = replace(PLACING, verdicts=(*VERDICTS[:1], Verdict("E", 0.1, 1.0)), rivals=("A",))
    table, note = side_by_side({"one": PLACING, "two": other}).rsplit("\n", 1)
    rows = {row[0]: row[1:] for row in (re.split("  +", line) for line in table.splitlines()[2:])}
    assert rows["A"] == ["-5.00*", "-5.00*"]
    assert rows["B"] == ["-1.00", "–"]
    assert rows["E"] == ["–", "+0.10"]
    assert list(rows)[-1] == "place"
    assert rows["place"] == [f"{PLACING.place} of 5", f"{other.place} of 2"]
    assert note.startswith("* significantly different")


def test_a_place_is_among_the_methods_alone_and_told_with_all_that_was_measured() -> None:
    table, lines = str(PLACING).split("\n\n")
    assert [re.split("  +", line) for line in table.splitlines()[2:]] == [
        ["worse than", "A", "-5.00", "-7.00 to -3.00"],
        ["not significantly different from", "B", "-1.00", "-4.00 to +2.00"],
        ["not significantly different from", "C", "+1.50", "+0.00 to +3.00"],
        ["better than", "D", "+4.25", "+2.75 to +5.75"],
        ["better than", "untrained", "+20.00", "+19.00 to +21.00"],
        ["not significantly different from", "pixels", "-1.00", "-3.00 to +1.00"],
    ]
    assert lines.splitlines() == [
        "place 3 of 5, by its verdicts 2 to 4",
        "linear top-1: 72.17 % over 3 seeds",
        "claim: Mine is better than D, untrained (all verdicts together hold in 95 of 100 "
        "challenges)",
        "share of the way to labels: 61 %",
        "alignment: 0.123",
        "step: 56.8 ms",
        "repeated cells scored +0.50, -0.25 points more here than where the rows are from; it is "
        "in the intervals",
        "report: report/index.html",
        "bundle: mine.tar.xz",
    ]


def test_a_row_of_the_same_mean_is_not_ahead() -> None:
    tied = [replace(verdict, difference=0.0) for verdict in VERDICTS]
    assert (PLACING.place, replace(PLACING, verdicts=tied).place) == (3, 1)


def test_what_is_not_known_is_not_printed() -> None:
    bare = replace(PLACING, share=None, measured={})
    with_one_open = replace(bare, verdicts=VERDICTS[:1] + VERDICTS[5:])
    lines = str(with_one_open).split("\n\n")[1].splitlines()
    words = [line.split()[0] for line in lines[1:]]
    assert words == ["linear", "claim:", "repeated", "report:", "bundle:"]
    assert lines[2].startswith("claim: better than no row (")


# ------------------------------------------------------------------ a challenge

HISTORY = json.dumps({"epoch": 1, "effective_rank": 12.0, "alignment": 0.25}) + "\n"
ROWS = {
    "method=simclr": (70.0, 70.3, 70.6),
    "method=vicreg": (60.0, 60.3, 60.6),
    "method=auh": (50.0, 50.3, 50.6),
    "method=tcr": (55.0, 55.3),  # too few seeds for a verdict
    "epochs=0": (20.0, 20.1, 20.2),
    "baseline=supervised": (90.0, 90.3, 90.6),
}
OWN = (61.3, 61.6, 61.9)


def leave(
    folder: Path, cell: Cell, linear: float | None, *, final: bool = True, search: int | None = None
) -> None:
    """Write what a training of the cell leaves: its final record, or that of a tuning."""
    metrics = NamedFile("metrics.jsonl", hashlib.sha256(HISTORY.encode()).hexdigest())
    train_s = 60.0 if cell.label == "SimCLR" else 132.0
    cost = Cost(train_s=train_s, evaluate_s=0.0, step_ms=7.0, loss_ms=3.0)
    fields: dict[str, Any] = {"label": cell.label, "seed": cell.seed, "cost": cost}
    fields |= {"metrics": metrics, "method": cell.plain()["method"]["name"]}
    fields["environment"] = {"hardware": "2 x Example CPU"}
    if search is not None:
        fields["choice"] = {"hyperparameters": {"search": search, "sha256": "0" * 64}}
    weight = cell.plain()["method"].get("alignment_weight", 0.0)
    if not final:
        record = made(cell.plain(), status="tuned", scores=(knn_top1(weight),), **fields)
    elif linear is None:
        record = made(cell.plain(), status="diverged", diverged={"step": 2}, **fields)
    else:
        scores = (Score("linear_top1", linear, "test", "", "linear top-1"),)
        record = made(cell.plain(), scores=scores, **fields)
    write_text(folder / cell.id / "metrics.jsonl", HISTORY)
    write_text(folder / cell.id / "config.yaml", yaml.safe_dump(cell.plain()))
    write_text(folder / cell.id / record.file_name, record.text())


@pytest.fixture
def challenge(tmp_path: Path, tiny_data_dir: Path) -> Challenge:
    """KoLeo's, of five weights, beside rows of which SimCLR and VICReg are trained again."""
    folder = tmp_path / "runs" / "mine"
    common = [*TINY, "epochs=1", "optimizer.warmup_epochs=0", "seed=0"]
    overrides = [f"runtime.data_dir={tiny_data_dir}", f"runtime.runs_dir={tmp_path / 'runs'}"]
    overrides.append("runtime.parallel=2")
    theirs = folder / "track" / "shipped" / "theirs"
    shipped: list[Cell] = []
    for row, values in ROWS.items():
        first = load_grid([*common, row, *overrides]).cells[0]
        for seed, value in enumerate(values):
            cell = replace(first, seed=seed)
            leave(theirs, cell, value)
            shipped += [cell] * (not seed)
    content = {"description": "KoLeo's", "common": common, "final_seeds": [0, 1, 2]}
    cells = ["method=koleo method.alignment_weight=1,2,3,4,5"]
    write_text(folder / "mine.yaml", json.dumps({**content, "cells": cells}))
    tuning = load_sweep(str(folder / "mine.yaml"), overrides)
    machine = replace(tuning.runtime, runs_dir=str(folder / "track" / "machine"))
    again, clusters = tuple(shipped[:2]), tuning.clusters[:2]
    repeated = replace(tuning, name="repeated", cells=again, runtime=machine, clusters=clusters)
    records = [Record.read(theirs / cell.id / "record.json") for cell in again]
    searched = "method.weight", "optimizer.base_lr"
    return Challenge(folder, "KoLeo", overrides, 5, searched, tuning, records, repeated)


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Where reports and bundles would be written."""
    places: list[tuple[Any, ...]] = []
    for name in ("write_report", "submit"):
        monkeypatch.setattr(f"regbench.tracks.challenge.{name}", lambda *call: places.append(call))
    return places


class Trainings:
    """Trainings that are made up: of cells without a record each leaves one with its score.

    Args:
        own: Scores of the challenger's seeds; None: it diverged.
        again: Scores of the repeated cells.
    """

    def __init__(
        self, own: Sequence[float | None] = OWN, again: Sequence[float | None] = (70.1, 59.95)
    ) -> None:
        self.own, self.again = own, dict(zip(("SimCLR", "VICReg"), again, strict=True))
        self.asked: list[tuple[str, list[int]]] = []

    def run(self, sweep: Sweep, stages: Sequence[str]) -> list[CellStatus]:
        assert len(sweep.clusters) == len(sweep.cells)
        folder = Path(sweep.runtime.runs_dir) / sweep.name
        self.asked.append((sweep.name, sorted(cell.seed for cell in sweep.cells)))
        for cell in sweep.cells:
            if not (folder / cell.id / "record.json").exists():
                score = self.again[cell.label] if sweep.name == "repeated" else self.own[cell.seed]
                leave(folder, cell, score, final="final" in stages)
        return []


def test_a_plan_says_what_it_takes(challenge: Challenge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time, as the settings say, or ten on as many processors."""
    monkeypatch.setattr("regbench.tracks.challenge.usable_cpus", lambda: 10)
    runtime = replace(challenge.tuning.runtime, parallel=0)
    at_once = replace(challenge, tuning=replace(challenge.tuning, runtime=runtime))
    assert "At that speed, 10 at a time, it is 3 minutes." in at_once.plan()
    assert challenge.plan() == (
        "2 shipped cells again, a search of method.weight and optimizer.base_lr with the images of 5 "
        "trainings for KoLeo, 2 further seeds of the best: 9 trainings.\nA shipped row took 1.0 minutes "
        "a training (2 x Example CPU). At that speed, 2 at a time, it is 5 minutes."
    )


def test_a_challenge_places_its_loss_among_the_rows(
    challenge: Challenge, written: list[tuple[Any, ...]]
) -> None:
    trainings = Trainings()
    placing = there(challenge.run(trainings.run))
    assert trainings.asked == [("repeated", [0, 0]), ("mine", [0] * 5), ("mine", [0, 1, 2])]
    assert [(verdict.label, verdict.words) for verdict in placing.verdicts] == [
        ("SimCLR", "worse than"),
        ("VICReg", "better than"),
        ("AUH", "better than"),
        ("untrained", "better than"),
    ]
    assert (placing.values, placing.rivals) == (OWN, ("SimCLR", "VICReg", "AUH"))
    # A further seed, which somebody may have chosen by the verdicts, does not count.
    final = Record.read(next(challenge.folder.glob("*/record.json")))
    leave(challenge.folder, replace(Cell.stored(final.cell), seed=3), 99.0)
    again = there(challenge.run(trainings.run))
    assert (again.values, again.share) == (OWN, placing.share)
    written[2:] = []
    assert placing.shifts == pytest.approx((0.1, -0.05))
    assert placing.share == pytest.approx(100 * (61.6 - 20.1) / (90.3 - 20.1))
    measured = {name: (stat.mean, unit) for name, (stat, unit) in placing.measured.items() if stat}
    ends = {"effective rank": (12.0, ""), "alignment": (0.25, "")}
    assert measured == {**ends, "step": (7.0, " ms"), "of it the loss": (3.0, " ms")}
    folder, report = challenge.folder, challenge.folder / "report"
    bundle = folder / "mine.tar.xz"
    assert (placing.page, placing.bundle) == (report / "index.html", bundle)
    assert written == [([folder, folder / "track" / "shipped"], report), ([folder], bundle)]


def test_beside_repeated_searches_seeds_of_one_search_tell_little(challenge: Challenge) -> None:
    shipped = challenge.folder / "track" / "shipped" / "theirs"
    for record in map(Record.read, [*shipped.glob("*/record.json")]):
        shutil.rmtree(record.path.parent)
        (score,) = record.scores
        searched = replace(Cell.stored(record.cell), seed=1000 * record.seed)
        leave(shipped, searched, score.value, search=record.seed)
    trainings = Trainings()
    placing = there(challenge.run(trainings.run))
    # As a row of seeds VICReg's was below.
    found = {verdict.label: verdict for verdict in placing.verdicts}
    assert found["VICReg"].words == "not significantly different from"
    assert found["AUH"].words == "better than"
    # Searches of each of three rows have the variance 0.09, of which a row adds two thirds.
    variance = 0.09 * 5 / 3 * (1 + 1 / 3) + (0.1**2 + 0.05**2) / 2
    half_width = t.ppf(1 - 0.05 / 2 / 4, 6) * math.sqrt(variance)
    assert found["AUH"].half_width == pytest.approx(half_width)


@pytest.mark.parametrize("queued", [1, 2, 3])
def test_a_challenge_is_left_to_slurm_with_both_of_its_parts_begun(
    queued: int, challenge: Challenge, written: list[tuple[Any, ...]]
) -> None:
    trainings = Trainings()

    def submitted(sweep: Sweep, stages: Sequence[str]) -> list[CellStatus] | None:
        ended = trainings.run(sweep, stages)
        return None if len(trainings.asked) == queued else ended

    assert challenge.run(submitted) is None
    assert [name for name, _ in trainings.asked] == ["repeated", "mine", "mine"][: max(queued, 2)]
    assert written == []


@pytest.mark.parametrize("failing", ["repeated", "mine"])
def test_a_challenge_ends_at_a_cell_without_a_record(failing: str, challenge: Challenge) -> None:
    trainings = Trainings()

    def failed(sweep: Sweep, stages: Sequence[str]) -> list[CellStatus]:
        trainings.run(sweep, stages)
        if (sweep.name, "final" in stages) != (failing, True):
            return []
        first = sweep.cells[0].id
        return [CellStatus(first, "KoLeo", 0, "failed", 0, 1, None, None, "", "", Path())]

    with pytest.raises(Unfinished):
        challenge.run(failed)
    assert trainings.asked[-1][0] == failing


@pytest.mark.parametrize(
    ("own", "again", "refusal"),
    [
        ((61.2, None, 61.5), (70.1, 59.95), "KoLeo diverged with 1 of its seeds, and has no place"),
        (OWN, (70.1, None), "VICReg diverged here, and not where the rows are from"),
    ],
)
def test_what_diverged_has_no_place(
    own: Sequence[float | None], again: Sequence[float | None], refusal: str, challenge: Challenge
) -> None:
    with is_refused(refusal):
        challenge.run(Trainings(own, again).run)


def test_rows_of_another_task_are_refused(challenge: Challenge) -> None:
    other = replace(challenge, overrides=[*challenge.overrides, "evaluation.knn.k=7"])
    with is_refused("the shipped rows are not those of this version's track"):
        other.run(Trainings().run)
