"""Small sweeps, each about a rule of the tables, against a file that somebody has read.

`golden/scenes.txt` has of each its leaderboard without costs, its p-values, its configurations, and
the notes. After a change that is meant: `pytest tests/reports/test_scenes.py --update-golden`, and
read the difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.settings.sweep import load_run
from regbench.reports.rows.summary import Summary
from regbench.reports.tables.details import significance_table
from regbench.reports.tables.hyperparameters import hyperparameters_table
from regbench.reports.tables.leaderboard import leaderboard
from regbench.reports.tables.table import Table
from tests.records import attempted, chosen, plan, ranked, search, tuning_choice
from tests.reports.conftest import METHODS, backbone, dataset, score, settings
from tests.reports.reading import Make, tasks, texts

RUNS = Path("runs")
QUICK = RUNS / "quickstart"
NONE: dict[str, Any] = {"knn": None, "linear": None}
DIVERGED = {**NONE, "status": "diverged"}
TUNED = {**NONE, "status": "tuned", "tuning": 60.0}
KNN_OF_5 = {"evaluation": settings("VICReg")["evaluation"] | {"knn": {"k": 5}}}


def weight(value: float, name: str = "vicreg") -> dict[str, Any]:
    return {"method": {"name": name, "alignment_weight": value}}


def among(budget: int) -> dict[str, Any]:
    return {"choice": {"hyperparameters": {"selected_on": "tuning", "budget": budget}}}


def two_shared_seeds(record: Make) -> None:
    """With two seeds in common nothing is tested, however near the means."""
    for seed in range(3):
        record("AUH", seed, linear=75.0)
        record("VICReg", seed + 1, linear=74.99)


def some_tested(record: Make) -> None:
    """Beside a row that is tested, the note names the one that is not."""
    two_shared_seeds(record)
    for seed in range(3):
        record("SimCLR", seed, linear=70.0 + 0.1 * seed)


def odd_titles(record: Make) -> None:
    """A score is called what most records call it, whichever of them is odd."""
    for odd, label in itertools.product(("AUH", "SimCLR", "VICReg"), repeat=2):
        called = score("knn_top1", 70.0)
        if label == odd:
            called = replace(called, title="mine")
        record(label, scores=(called,), cell={"dataset": dataset(odd)})


def knn_leads(record: Make) -> None:
    """Without linear probing kNN leads, though a configuration that was not chosen has it."""
    for label, knn in (("AUH", 70.0), ("VICReg", 71.0), ("untrained", 60.0)):
        record(label, knn=knn, linear=None, tuning=50.0)
    record("AUH", linear=90.0, tuning=40.0, cell=weight(1.0, "auh"))


def no_best(record: Make) -> None:
    """A measure without a best orders nothing, and has no column."""
    record("VICReg", scores=(score("rankme", 5.0, unit=""),))


def tuned_seed(record: Make) -> None:
    """A seed that is only tuned is not in the row."""
    record("VICReg", 0, tuning=65.0)
    record("VICReg", 1, **{**TUNED, "tuning": 66.0})


def tuning_chooses(record: Make) -> None:
    """The tuning split chooses, not the test split; AUH lacks a score to choose by."""
    for seed in (0, 1):
        record("VICReg", seed, cell=weight(1.0), tuning=60.0, linear=99.0)
        record("VICReg", seed, cell=weight(2.0), tuning=65.0 + seed, linear=75.0 + seed)
    record("AUH", cell=weight(1.0, "auh"), tuning=60.0)
    record("AUH", cell=weight(2.0, "auh"))


def mean_chooses(record: Make) -> None:
    """The mean over several evaluations chooses where there is one: 72 and not 71."""
    for value, knn, mean in ((1.0, 65.0, 60.0), (2.0, 60.0, 62.0)):
        tuning = (score("knn_top1", knn, "tuning"), score("selection_top1", mean, "tuning"))
        record("VICReg", cell=weight(value), scores=(*tuning, score("linear_top1", 70.0 + value)))


def choices_of_tasks(record: Make) -> None:
    """A choice is told of its sweep stl10, and of the records of `again`, which name it."""
    for sweep in ("fashion_mnist", "stl10"):
        record("VICReg", sweep=sweep, cell={"dataset": dataset(sweep)})
    digest = tuning_choice(RUNS / "stl10", chosen("VICReg", ranked("a" * 12, 61.23)))
    origin = {"selected_on": "tuning", "record": "stl10/tuning_choice.json", "sha256": digest}
    how = {"choice": {"hyperparameters": origin}}
    record("VICReg", sweep="again", cell={"dataset": dataset("cifar10")}, **how)


def sweeps_and_tasks(record: Make) -> None:
    """A task has the cells of all its sweeps, each once, and a name of its own."""
    record("VICReg", sweep="quickstart")
    record("VICReg", sweep="mine")  # the same cell
    record("quadratic", sweep="mine")
    record("AUH", sweep="mine", cell={"dataset": dataset("stl10")})
    for more in ({}, KNN_OF_5):
        record("VICReg", sweep="more", cell={"dataset": dataset("cifar10"), **more})


def shared_cells(record: Make) -> None:
    """Of a cell that two sweeps share the final scores stay; † is not taken as tuned."""
    for place, final in enumerate(("first", "second", "none")):
        for sweep in ("first", "second"):
            how = {"linear": 80.0} if sweep == final else TUNED
            if final == "none" and sweep == "first":
                how = DIVERGED
            record(sweep=sweep, cell={"dataset": dataset(f"images_{place}")}, **how)


def short_names(record: Make) -> None:
    """Two settings of one short name have columns of their own."""
    for values in itertools.product(("0.0", "0.5"), repeat=2):
        overrides = ["augmentation=small_color"]
        for number, value in enumerate(values, 1):
            overrides.append(f"augmentation.views.view{number}.blur_p={value}")
        cell = {"augmentation": load_run(overrides)[0].plain()["augmentation"]}
        record("VICReg", cell=cell)


def finished_elsewhere(record: Make) -> None:
    """A planned cell that another sweep has finished, or tuned, is not missing: n is 1."""
    record("VICReg", 0, tuning=72.0, cell=weight(10.0))
    elsewhere = record("VICReg", 1, tuning=60.0, cell=weight(20.0), sweep="other")
    tuned = record("AUH", **TUNED, sweep="other")
    first = {"id": elsewhere.parent.name, "label": "VICReg", "seed": 1}
    plan(QUICK, first, {"id": tuned.parent.name, "label": "AUH"})


def planned_sizes(record: Make) -> None:
    """A missing cell counts in the row that its plan fits alone; of {} several rows are."""
    sizes: list[dict[str, int]] = []
    for key in ("embedding_dim", "batch_size", "epochs"):
        for size in (2, 4):
            record("VICReg", cell={key: size, "dataset": dataset(key)}, sweep=key)
        sizes = [{key: 4}, {key: 8}]
        if key != "epochs":  # which each plan states
            sizes.append({})
        cells = [{"id": f"{i:012x}", "seed": 1, **size} for i, size in enumerate(sizes)]
        plan(RUNS / key, *({"label": "VICReg", **cell} for cell in cells))


def nothing_final(record: Make) -> None:
    """Where nothing has final scores, what is planned has rows."""
    for q in (512, 1024):
        record("VICReg", **TUNED, cell={"embedding_dim": q})
    plan(QUICK, {"id": "a" * 12, "label": "SimCLR", "embedding_dim": 512})


def fits_two_tasks(record: Make) -> None:
    """A cell whose plan fits two tasks is in neither, and its failure in both."""
    record("VICReg")
    record("VICReg", cell=KNN_OF_5)
    plan(QUICK, {"id": "a" * 12, "label": "SimCLR"})
    attempted(QUICK / ("a" * 12), "failed", "no space")


def task_of_its_sweep(record: Make) -> None:
    """A planned cell stands in the task of its sweep."""
    record("VICReg")
    record("VICReg", cell=KNN_OF_5, sweep="other")
    plan(QUICK, {"id": "a" * 12, "label": "VICReg", "seed": 1})


def planned_twice(record: Make) -> None:
    """A cell that two sweeps plan is missing once: VICReg 1 of 3, SimCLR 0 of 1."""
    cells = [("VICReg", 1), ("SimCLR", 0), ("VICReg", 7)]
    for sweep, count in (("first", 2), ("second", 3)):
        record("VICReg", sweep=sweep)
        planned = []
        for i, (label, seed) in enumerate(cells[:count]):
            planned.append({"id": f"{i:012x}", "label": label, "seed": seed})
        plan(RUNS / sweep, *planned)


def budgets(record: Make) -> None:
    """The choice tells budgets: equal without it; in proportion, unequal and unequal with it."""
    for task, searched in (("given", None), ("fair", (3, 1)), ("unfair", (2, 2)), ("odd", (3, 0))):
        place = {"dataset": dataset(task)}
        record("untrained", linear=40.0, cell=place, sweep=task)  # nobody tunes it
        second, third = ranked("a" * 12, 60.0), ranked("b" * 12, None)
        entries = []
        for k, (label, others) in enumerate((("VICReg", [second, third]), ("AUH", []))):
            path = record(label, tuning=70.0, cell=place, sweep=task, **among(3))
            entry = chosen(label, ranked(path.parent.name), *others)
            number = (searched or (0, 0))[k] or None
            setting = entry.setting | {"searched": number}
            entries.append(replace(entry, setting=setting, images=1000 * (k + 1)))
        if searched:
            tuning_choice(RUNS / task, *entries)


def diverged_first(record: Make) -> None:
    """How a row was chosen is asked of runs that did not diverge, some of which come later."""
    for label in METHODS.keys() - {"untrained"}:
        record(label, 0, **DIVERGED)
        record(label, 1, **among(3))


def choice_diverged(record: Make) -> None:
    """Where all final runs of what a tuning chose diverged, the row says so."""
    how = {"choice": {"hyperparameters": {"selected_on": "tuning", "sha256": "0"}}}
    for value in (1.0, 2.0, 3.0):
        record("VICReg", cell=weight(value), **TUNED)
    record("VICReg", 1, cell=weight(2.0), **DIVERGED, **how)
    record("VICReg", 1, cell=weight(3.0), **DIVERGED)


def stopped_early(record: Make) -> None:
    """What a search stopped early is no result, and neither diverged nor missing: n is 1."""
    record("VICReg", tuning=60.0)
    short = record("VICReg", **DIVERGED, cell={"epochs": 1}).parent.name
    # A step of a search in a task of which there is no result yet.
    begun = record("VICReg", **DIVERGED, cell={"epochs": 1, "dataset": dataset("stl10")})
    ids = (short, "c" * 12)
    plan(QUICK, *({"id": name, "label": "VICReg", "epochs": 1} for name in ids))
    search(QUICK, *ids, begun.parent.name)


def not_of_the_paper(record: Make) -> None:
    """The paper's number stands beside its own experiment alone, the first of these tasks."""
    own: dict[str, Any] = {"dataset": dataset("in20"), "network": backbone("resnet18")}
    own |= {"embedding_dim": 8192, "batch_size": 2048, "epochs": 100}
    others: list[dict[str, Any]] = [{}, {"dataset": dataset("imagefolder")}]
    others += [{"network": backbone("resnet50")}, {"epochs": 101}]
    others += [{"batch_size": 256}, {"embedding_dim": 512}]
    for number, other in enumerate(others):
        for label in ("VICReg", "Barlow Twins"):
            record(label, cell=own | other, sweep=f"paper_{number}")


def one_run_a_machine(record: Make) -> None:
    """Machines are not compared where seeds explain as much: each of the two has one run."""
    record("VICReg", environment={"hardware": "1 cores of one CPU"})
    record("VICReg", 1, environment={"hardware": "2 cores of another CPU"})


SCENES: tuple[Callable[[Make], None], ...] = (
    *(two_shared_seeds, some_tested, odd_titles, knn_leads, no_best, tuned_seed, tuning_chooses),
    *(mean_chooses, choices_of_tasks, sweeps_and_tasks, shared_cells, short_names),
    *(finished_elsewhere, planned_sizes, nothing_final, fits_two_tasks, task_of_its_sweep),
    *(planned_twice, budgets, diverged_first, choice_diverged, stopped_early, not_of_the_paper),
    one_run_a_machine,
)


def told(summary: Summary) -> Iterator[str]:
    """What the tables say of a task, without times, memory and what all of them say."""
    yield f"-- {summary.name}, by {summary.headline}"
    board = leaderboard(summary)
    places = []
    for place, column in enumerate(board.columns):
        is_cost = ("(" in column.name and "top-1" not in column.name) or "/s" in column.name
        if not is_cost and column.name not in ("effective rank", "alignment", "peak memory"):
            places.append(place)
    for row in texts(board):
        yield " | ".join(row[place] for place in places)
    tables = [significance_table(summary), hyperparameters_table(summary)]
    for table in tables:
        yield from rows_of(table)
    notes = [*board.notes, *tables[1].notes]
    for note in notes:
        if not note.startswith(("Accuracies on", "Effective rank", "In the order of")):
            yield f"* {note}"


def rows_of(table: Table) -> Iterator[str]:
    if table.lines:
        yield f"{table.slug}:"
        for row in texts(table)[1:]:
            yield "  " + " | ".join(row)


def test_each_scene_is_shown_as_somebody_has_read(
    recorder: Callable[[Path], Make],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str, str], None],
) -> None:
    lines = []
    for scene in SCENES:
        folder = tmp_path / scene.__name__
        folder.mkdir()
        monkeypatch.chdir(folder)
        scene(recorder(RUNS))
        lines += [f"==== {scene.__name__}: {scene.__doc__}", ""]
        for summary in tasks(RUNS):
            lines += told(summary)
        lines.append("")
    golden("scenes.txt", "\n".join(lines))
