"""The tuning protocol: what is chosen on which split, and that the test split stays closed
until then.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.directory import run_directory
from regbench.benchmark.rundir.lease import claim, last_attempt
from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.record_parts import Saved
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE, TuningChoice, read_search
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.settings.stored import load_cell
from regbench.benchmark.settings.sweep import Sweep, load_run, load_sweep, read_rows
from regbench.datasets.loading.loaders import EvalLoader
from regbench.files import verified, write_text
from regbench.methods.simclr import SimCLR
from regbench.methods.vicreg import VICReg
from regbench.sweeps import tune
from regbench.sweeps.choose import choice_table, choose, compared_ids
from regbench.sweeps.local import run_sweep
from regbench.sweeps.run import proposals
from regbench.sweeps.search import Proposed, mean_trials, propose
from tests.command import done, refusal
from tests.conftest import TINY
from tests.records import attempted, knn_top1, made
from tests.refusals import is_refused
from tests.sweep_file import write_sweep
from tests.there import there

GRID = [f"method={method} method.alignment_weight=10,20" for method in ("vicreg", "sfrik_l2")]
Surface = Callable[[Cell], float | None]


@dataclass
class Mine:
    """A sweep of one's own by the name of "mine"."""

    root: Path
    settings: list[str]
    data_dir: Path

    @property
    def folder(self) -> Path:
        return self.root / "runs" / "mine"

    def write(self, rows: Sequence[str], *own: str, **more: Any) -> Path:
        return write_sweep(self.root / "mine.yaml", [*self.settings, *own], rows, **more)

    def grid(self, rows: Sequence[str], *own: str, **more: Any) -> Sweep:
        return load_sweep(str(self.write(rows, *own, **more)))

    def begin(self, cells: Sequence[Cell], search: dict[str, Any] | None = None) -> None:
        tune.begin(cells, self.folder, self.data_dir, search)

    def leave(self, cells: Sequence[Cell], *values: float | None) -> None:
        """What runs of the cells leave that scored so."""
        for cell, value in zip(cells, values, strict=True):
            score(self.folder, cell, value)

    def search(
        self,
        path: Path,
        trials: int | None,
        surface: Surface,
        at_most: int = 10**9,
        repeats: int = 1,
    ) -> TuningChoice:
        """Search to the choice."""
        propose_next = functools.partial(propose, str(path), [], trials, repeats)
        run = bring(self.folder, surface, at_most)
        assert tune.tune(propose_next(), propose_next, run, final_seeds=None) is not None
        return choose(self.folder)

    def tried(self, label: str = "") -> list[Cell]:
        """The cells that a search has tried, of one method or all, in the order in which it
        proposed them.
        """
        names = [each["cell_id"] for each in self.entries() if label in ("", each["label"])]
        return [load_cell(self.folder / name / "config.yaml") for name in names]

    def entries(self) -> list[dict[str, Any]]:
        """What a search says of each cell that it has tried."""
        found: list[dict[str, Any]] = verified((self.folder / "search.json").read_bytes())["tried"]
        return found

    def values(self, name: str = "alignment_weight", *, epochs: int = 1) -> list[float]:
        """The values of a hyperparameter that a search has tried for so many epochs, in order."""
        return [getattr(cell.method, name) for cell in self.tried() if cell.epochs == epochs]


@pytest.fixture
def mine(tmp_path: Path, tiny: list[str], tiny_data_dir: Path) -> Mine:
    own = [*tiny, "epochs=1", "optimizer.warmup_epochs=0", "seed=0"]
    return Mine(tmp_path, own, tiny_data_dir)


@pytest.fixture
def cells(mine: Mine) -> tuple[Cell, ...]:
    return mine.grid(GRID).cells


def score(folder: Path, cell: Cell, value: float | None, *more: Score) -> None:
    """What a run of the cell leaves that scored so, after three steps an epoch; None: it
    diverged in its second.
    """
    if value is None:
        record = made(cell.plain(), status="diverged", diverged={"step": 2})
    else:
        saved = Saved("checkpoint.pt", "0" * 64, 3 * cell.epochs)
        scores = (*more, knn_top1(value))
        record = made(cell.plain(), status="tuned", scores=scores, checkpoint=saved)
    write_text(folder / cell.id / record.file_name, record.text())
    write_text(folder / cell.id / "config.yaml", yaml.safe_dump(cell.plain()))


def final_run(cell: Cell, runtime: Runtime) -> Record | None:
    """Score a cell of the tuning on the test split, as a job does."""
    chosen = tune.how_chosen(run_directory(runtime, "mine", cell), cell, final=True)
    return run_cell(cell, runtime, "mine", how_chosen=chosen)


def test_a_tuning_opens_the_test_split_for_the_chosen_alone(
    cells: tuple[Cell, ...], mine: Mine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    loader = EvalLoader

    def spy(dataset: Any, split: str, **options: Any) -> Any:
        opened.append(split)
        return loader(dataset, split, **options)

    monkeypatch.setattr("regbench.benchmark.evaluate.features.EvalLoader", spy)
    runtime = load_run(mine.settings)[1]
    two = cells[:2]
    mine.begin(two)
    values = {}
    for cell in two:
        assert run_cell(cell, runtime, "mine", ("pretrain", "tune")) is None
        record = Record.read(mine.folder / cell.id / "tuning.json")
        values[cell.id] = record.scores[0].value
        assert record.status == "tuned"
        assert {s.split for s in record.scores} == {"tuning"}
        with is_refused("the tuning mine has not chosen yet, so this cell gets no score on the"):
            final_run(cell, runtime)
    assert set(opened) == {"train", "tuning"}
    choice = choose(mine.folder)
    (entry,) = choice.choices
    assert entry.chosen == max(values, key=lambda name: values[name])
    chosen, other = (cell for cell in sorted(two, key=lambda cell: cell.id != entry.chosen))
    with is_refused("the tuning mine chose other hyperparameters"):
        final_run(other, runtime)
    assert "test" not in opened
    assert tune.final_cells(choice, mine.folder, two, []) == [chosen]
    final = there(final_run(chosen, runtime))
    assert final.choice["hyperparameters"] == {
        **{"selected_on": "tuning", "score": "knn_top1", "budget": 2},
        **{"record": "mine/tuning_choice.json", "edges": entry.edges, "sha256": choice.sha256},
    }
    assert final.choice["probe_learning_rate"]["selected_on"] == "tuning"
    assert [s.split for s in final.scores if s.name == "knn_top1"] == ["tuning", "test"]
    mine.begin(two)  # as whoever comes a moment after the choice
    # Other seeds of what was chosen may be tested, too.
    (again,) = tune.final_cells(choice, mine.folder, two, [5])
    assert (again.seed, final_run(again, runtime).status) == (5, "done")  # type: ignore[union-attr]
    # Whoever removes the choice gets no second one.
    (mine.folder / TUNING_CHOICE).unlink()
    with is_refused("holds runs that were scored on the test split already"):
        mine.begin(two)


def test_a_search_that_has_got_further_elsewhere_is_not_set_back(
    cells: tuple[Cell, ...], mine: Mine
) -> None:
    """Two commands work on one search.

    The slower one writes what it knew before the faster one's last round.
    """
    tried = [{"cell_id": str(place), "score": 1.0} for place in range(2)]
    begun = [{"cell_id": name, "score": None} for name in ("0", "1", "2", "other")]
    first, early, late = ({"tried": [*tried[:place], begun[place]]} for place in range(3))
    # One that has other cells is another search, as after a change of the sweep's file.
    other: dict[str, Any] = {"tried": begun[3:]}
    written = (first, early, late, early, late, other)
    for search, expected in zip(written, (first, early, late, late, late, other), strict=True):
        mine.begin(cells[:2], search)
        assert read_search(mine.folder)["tried"] == expected["tried"]


def test_the_choice_may_be_by_knn_and_linear_probing(mine: Mine) -> None:
    by = ["evaluation.select_by=[knn,probe]", "evaluation.protocols=[knn]"]
    cells = mine.grid(GRID, *by).cells[:2]
    runtime = load_run(mine.settings)[1]
    mine.begin(cells)
    names = ["knn_top1", "knn_top5", "linear_top1", "linear_top5", "selection_top1"]
    for number, cell in enumerate(cells):
        if not number:
            # with the settings of a probe that no protocol asks for
            assert Cell.stored(cell.plain()) == cell
            run_cell(cell, runtime, "mine", ("pretrain", "tune"))
            record = Record.read(mine.folder / cell.id / "tuning.json")
        else:  # kNN prefers this one, the mean the other
            change = {"knn_top1": 1.0, "selection_top1": -1.0}
            scores = (replace(s, value=s.value + change.get(s.name, 0.0)) for s in record.scores)
            changed = replace(record, scores=tuple(scores), cell=cell.plain())
            write_text(mine.folder / cell.id / "tuning.json", changed.text())
            write_text(mine.folder / cell.id / "config.yaml", yaml.safe_dump(cell.plain()))
        assert [s.name for s in record.scores] == names
    choice = choose(mine.folder)
    (entry,) = choice.choices
    assert (choice.score, entry.chosen) == ("selection_top1", cells[0].id)
    other = load_run([*mine.settings, "seed=7"])[0]
    with is_refused(r"evaluation\.select_by must be the same for all cells"):
        tune.begin([cells[0], other], mine.root / "other", mine.data_dir)


def test_the_choice_is_the_best_mean_over_seeds_and_is_not_made_twice(mine: Mine) -> None:
    cells = load_sweep(str(mine.write(GRID)), ["seed=0,1", "optimizer.base_lr=1,2"]).cells
    mine.begin(cells)
    with is_refused("has no score to choose by yet"):
        choose(mine.folder)
    best = 0
    for cell in cells:
        weight, rate = cell.plain()["method"]["alignment_weight"], cell.optimizer.base_lr
        value: float | None = 50 + weight / 10 + rate + (3 if cell.seed else -3)
        if (weight, rate) == (20, 2):
            value = None if cell.seed else 99.0  # the best, but for the seed that diverges
        elif (weight, rate) == (10, 2):
            best += 1
            value = 60.0 if cell.seed else 50.0  # the best mean, though not the best single score
        score(mine.folder, cell, value)
    assert best == 4
    choice = choose(mine.folder)
    assert (choice.budget, choice.seeds, choice.selected_on) == (4, (0, 1), "tuning")
    assert {entry.label for entry in choice.choices} == {"VICReg", "SFRIK (L=2)"}
    for entry in choice.choices:
        assert [ranked.value for ranked in entry.ranking] == [55.0, 53.0, 52.0, None]
        assert [ranked.status for ranked in entry.ranking] == ["tuned"] * 3 + ["diverged"]
        first = entry.ranking[0].hyperparameters
        assert (first["method.alignment_weight"], first["optimizer.base_lr"]) == (10, 2)
    finals = tune.final_cells(choice, mine.folder, cells, [7, 8, 9])
    expected = itertools.product(("SFRIK (L=2)", "VICReg"), (7, 8, 9))
    assert sorted((cell.label, cell.seed) for cell in finals) == [*expected]
    assert {cell.optimizer.base_lr for cell in finals} == {2}
    few = tune.final_cells(choice, mine.folder, cells, [])
    assert [cell.seed for cell in few] == [0, 1, 0, 1]  # without any, those of the grid
    score(mine.folder, cells[0], 100.0)
    assert choose(mine.folder).sha256 == choice.sha256
    (mine.folder / TUNING_CHOICE).unlink()
    (mine.folder / TUNING_CHOICE).symlink_to("nowhere")
    with is_refused(f"{TUNING_CHOICE} is there and leads to no file; remove it"):
        choose(mine.folder)


def test_the_choice_is_by_the_score_of_its_own_split(cells: tuple[Cell, ...], mine: Mine) -> None:
    two = cells[:2]
    mine.begin(two)
    for cell, tuning, test in zip(two, (50.0, 60.0), (99.0, 1.0), strict=True):
        score(mine.folder, cell, tuning, knn_top1(test, "test"))
    (entry,) = choose(mine.folder).choices
    assert (entry.chosen, entry.ranking[0].value) == (two[1].id, 60.0)


@pytest.mark.parametrize("best", [0, 2])
def test_the_chosen_and_the_baselines_get_all_seeds_the_best_first(
    cells: tuple[Cell, ...], mine: Mine, best: int
) -> None:
    """The first method leads, or the second."""
    untrained = load_run([*TINY, "epochs=0", "optimizer.warmup_epochs=0"])[0]
    supervised = load_run([*TINY, "baseline=supervised"])[0]
    tried = [*cells, untrained, supervised]
    # Baselines have one configuration, and that makes no budgets unequal.
    mine.begin(tried)
    leader, other = cells[best], cells[3 - best]
    high = {leader: 60.0, other: 57.0, untrained: 99.0, supervised: 99.0}
    mine.leave(tried, *(high.get(cell, 50.0) for cell in tried))
    finals = tune.final_cells(choose(mine.folder), mine.folder, tried, [0, 1])
    methods = [leader, replace(leader, seed=1), other, replace(other, seed=1)]
    references = [untrained, supervised, replace(untrained, seed=1), replace(supervised, seed=1)]
    assert finals == [*methods, *references]
    # There was nothing to choose for baselines, whose test split is open as that of the chosen.
    for cell, selected_on in ((untrained, "given"), (supervised, "given"), (leader, "tuning")):
        how = tune.how_chosen(mine.folder / cell.id, cell, final=True)
        assert how["selected_on"] == selected_on


def test_what_is_tuned_on_the_test_split_says_so(mine: Mine) -> None:
    """The paper's second variant, its Table 13."""
    on_test = ["evaluation.select_on=test", "evaluation.probe.learning_rates=[0.1,1]"]
    cell, runtime = load_run([*mine.settings, *on_test])
    mine.begin([cell])
    run_cell(cell, runtime, "mine", ("pretrain", "tune"))
    assert choose(mine.folder).selected_on == "test"
    record = there(final_run(cell, runtime))
    assert record.choice["hyperparameters"]["selected_on"] == "test"
    assert record.choice["probe_learning_rate"]["selected_on"] == "test"
    assert {s.split for s in record.scores} == {"test"}
    assert len({s.name for s in record.scores}) == len(record.scores)
    (linear,) = (s for s in record.scores if s.name == "linear_top1")
    assert "chosen on test from 0.1, 1" in linear.protocol
    assert linear.value == max(record.choice["probe_learning_rate"]["candidates"].values())


def test_refusals(cells: tuple[Cell, ...], mine: Mine) -> None:
    def refused(match: str, cells: Sequence[Cell]) -> None:
        with is_refused(match):
            mine.begin(cells)

    refused(r"not a fair comparison: VICReg 2, SFRIK \(L=2\) 1", cells[:3])
    larger = replace(cells[0], embedding_dim=2 * cells[0].embedding_dim)
    budgets = r"VICReg \(q=16, setting 1\) 2, VICReg \(q=32, setting 2\) 1"
    refused(f"not a fair comparison: {budgets}", [*cells[:2], larger])
    mine.begin(cells[:3], search={"trials": 3})
    mixed = [cells[0], load_run([*mine.settings, "method=auh", "evaluation.select_on=test"])[0]]
    refused("evaluation.select_on must be the same", mixed)
    mine.leave(cells[:2], 50.0, 50.0)
    with is_refused(f"{cells[2].id} has no score to choose by yet"):
        choose(mine.folder)
    score(mine.folder, cells[2], 50.0)
    choose(mine.folder)
    refused("has made its choice among other cells", cells)
    ended, tested = mine.root / "runs" / "ended", mine.root / "runs" / "tested"
    write_text(ended / "0123456789ab" / "record.json", made(status="diverged").text())
    tune.begin(cells, ended, mine.data_dir)
    scores = (knn_top1(50.0), knn_top1(50.0, "test"))
    write_text(tested / "0123456789ab" / "record.json", made(scores=scores).text())
    with is_refused("holds runs that were scored on the test split already"):
        tune.begin(cells, tested, mine.data_dir)
    for cell in cells:
        score(ended, cell, None)
    with is_refused(r"every cell of .* trained to the end diverged"):
        choose(ended)


GRIDS: dict[str, tuple[Sequence[str], Sequence[str], Surface]] = {
    "two methods in two sizes with two seeds, of which one run diverged": (
        ("method=vicreg method.alignment_weight=10,20", "method=tcr optimizer.base_lr=1,2"),
        ("seed=3,4", "embedding_dim=16,32"),
        lambda cell: None if is_the_one_that_diverges(cell) else 50 + tuned(cell) / 10 + cell.seed,
    ),
    "a grid over the optimizer counts every configuration": (
        (
            "method=vicreg optimizer.weight_decay=0,0.001,0.1",
            "method=simclr method.temperature=0.1,0.2,0.5",
        ),
        (),
        lambda cell: (
            60.0
            - abs(cell.plain()["optimizer"]["weight_decay"] - 0.001)
            + cell.plain()["method"].get("temperature", 0.0)
        ),
    ),
    "each optimizer is a setting of its own": (
        ["method=vicreg optimizer=lars,sgd optimizer.base_lr=0.1,1"],
        (),
        lambda cell: 50.0 + cell.optimizer.base_lr,
    ),
    "learning rates of the probe make no setting": (
        ["method=vicreg evaluation.probe.learning_rates=[0.1],[1]"],
        (),
        lambda cell: 50.0 + 10 * cell.plain()["evaluation"]["probe"]["learning_rates"][0],
    ),
}


def tuned(cell: Cell) -> float:
    weight: float = cell.plain()["method"].get("alignment_weight", 0.0)
    return weight if cell.label == "VICReg" else cell.optimizer.base_lr


def is_the_one_that_diverges(cell: Cell) -> bool:
    return (cell.label, tuned(cell), cell.embedding_dim, cell.seed) == ("TCR", 2, 32, 4)


def test_a_choice_holds_all_that_it_was_made_of(
    mine: Mine, golden: Callable[[str, str], None]
) -> None:
    """A configuration stands for its seeds under another id. Images are those of three steps an
    epoch, but for the run that diverged in its second.
    """
    parts = []
    for number, (what, (rows, overrides, value)) in enumerate(GRIDS.items()):
        folder = mine.root / f"grid_{number}"
        cells = load_sweep(str(mine.write(rows)), overrides).cells
        tune.begin(cells, folder, mine.data_dir)
        for cell in cells:
            score(folder, cell, value(cell))
        choice = choose(folder)
        parts += [f"==== {what}", choice_table(choice)]
        parts.append(f"by {choice.score} on {choice.selected_on}, seeds {choice.seeds}")
        names = {}
        for cell in cells:
            names[cell.id] = f"seed {cell.seed}"
            names[replace(cell, seed=0).id] = f"{cell.label} of {tuned(cell):g}"
        for entry in choice.choices:
            parts.append(f"{entry.method} in {entry.setting}: {entry.edges}")
            best = entry.ranking[0]
            assert (entry.chosen, entry.configuration) == (best.cell_id, best.configuration)
            for each in entry.ranking:
                end = f"{each.status} {each.value} after {each.epochs}"
                name = f"{names[each.configuration]}, {names[each.cell_id]}"
                parts.append(f"  {name}: {end}, {each.hyperparameters}")
    golden("choices.txt", "\n".join(parts) + "\n")


def test_the_runner_up_and_the_chosen_values_are_of_the_own_method(
    cells: tuple[Cell, ...], mine: Mine
) -> None:
    """The budget of the tuning is the largest."""
    mine.begin(cells[:3], search={"trials": 3})
    mine.leave(cells[:3], 50.0, 60.0, 55.0)
    choice = choose(mine.folder)
    assert choice.budget == 2
    lines = [re.split("  +", line) for line in choice_table(choice).splitlines()[2:4]]
    assert [line[2:5] for line in lines] == [["60.00", "50.00", "2"], ["55.00", "–", "1"]]
    assert ["alignment_weight=20.0" in line for line in lines] == [True, False]


def tune_grid(path: Path, folder: Path, *overrides: str) -> Sweep | None:
    grid = load_sweep(str(path), overrides)
    run = bring(folder, lambda cell: 50.0 + cell.optimizer.base_lr)
    proposed = Proposed(grid, True)
    return tune.tune(proposed, lambda: proposed, run, final_seeds=[0, 1])


def test_no_seeds_at_all_are_those_of_the_grid_and_not_those_of_the_file(mine: Mine) -> None:
    proposed = Proposed(mine.grid(["method=vicreg,auh"], final_seeds=[7]), True)
    run = bring(mine.folder, lambda cell: 50.0)
    for given, seeds in ((None, {7}), ([], {0})):
        final = tune.tune(proposed, lambda: proposed, run, final_seeds=given)
        assert final is not None and {cell.seed for cell in final.cells} == seeds


@pytest.mark.parametrize("complete", [True, False])
def test_what_slurm_goes_on_with_has_no_choice_yet(mine: Mine, complete: bool) -> None:
    """Of a grid, or of a search that has more to try."""
    asked = []

    def run(sweep: Sweep, stages: Sequence[str]) -> bool:
        asked.append(stages)
        return False

    grid = mine.grid(GRID)
    proposed = Proposed(grid, complete, None if complete else {"tried": []})

    def propose_next() -> Proposed:
        pytest.fail("nothing follows from scores that are not there yet")

    assert tune.tune(proposed, propose_next, run, final_seeds=[0]) is None
    assert asked == [("pretrain", "tune")]
    assert compared_ids(mine.folder) == sorted(cell.id for cell in grid.cells)
    assert (mine.folder / "search.json").exists() == (not complete)


def test_final_runs_get_the_machines_of_their_row(mine: Mine) -> None:
    """The seeds of the final runs are others than that of the grid, which may be any where a
    tuning is not repeated.
    """
    rows = ["method=vicreg seed=1003", "method=simclr seed=1003 cluster.gpus=8 cluster.mem_gib=400"]
    final = there(tune_grid(mine.write(rows), mine.folder))
    pairs = zip(final.cells, final.clusters, strict=True)
    found = {(cell.label, cell.seed, at.gpus) for cell, at in pairs}
    assert found == {("VICReg", 0, 1), ("VICReg", 1, 1), ("SimCLR", 0, 8), ("SimCLR", 1, 8)}


def test_the_trials_of_a_search_run_on_the_machines_of_their_row(mine: Mine) -> None:
    rows = ["method=tcr", "method=vicreg cluster.gpus=8 cluster.mem_gib=400"]
    path = mine.write(rows, "epochs=4", trials=6)
    found = propose(str(path), [], 6).sweep
    machines = {(cell.label, at.gpus) for cell, at in zip(found.cells, found.clusters, strict=True)}
    assert machines == {("TCR", 1), ("VICReg", 8)}
    assert mean_trials(read_rows(str(path), [])) == 6


def test_a_search_knows_what_is_still_to_come(mine: Mine) -> None:
    """Of its later rounds and of its final runs, for the time that is left."""
    rows = ["method=tcr", "method=vicreg", "baseline=supervised"]
    path = mine.write(rows, "epochs=4", trials=3, final_seeds=[0, 1, 2])
    found = propose(str(path), [], 3).sweep
    assert sum(cell.epochs for cell in found.cells) == 2 * 4 + 4
    # Of each method two trainings of two epochs and one of four, then two final ones of four.
    assert found.later_epochs == 2 * (4 + 4 + 8) + 8
    # Two of five trainings pay no bracket, and a seed that is given twice is one.
    path = mine.write(["method=tcr seed=0,0"], "epochs=4", final_seeds=[0, 1, 2])
    assert propose(str(path), [], 5, repeats=2).sweep.later_epochs == 2 * (4 + 4 + 8)


def test_another_grid_than_the_choice_was_made_among_is_refused(mine: Mine) -> None:
    path = mine.write(["method=vicreg optimizer.base_lr=0.1,1"])
    assert tune_grid(path, mine.folder) is not None
    assert tune_grid(path, mine.folder, "optimizer.base_lr=1") is not None
    with is_refused("has made its choice among other cells"):
        tune_grid(path, mine.folder, "embedding_dim=32")
    (mine.folder / "tune.json").unlink()  # which names the others
    assert tune_grid(path, mine.folder) is not None


@pytest.mark.parametrize("begun", [True, False])
def test_a_tuning_that_waits_for_a_cell_of_another_grid_says_how_to_go_on(
    mine: Mine, begun: bool
) -> None:
    path = mine.write(["method=vicreg"])
    wrong = load_sweep(str(path), ["epochs=500"]).cells
    mine.begin(wrong)
    if begun:
        write_text(mine.folder / wrong[0].id / "config.yaml", yaml.safe_dump(wrong[0].plain()))
    with is_refused(r"has no score to choose by yet; .* remove .*tune\.json and tune again"):
        tune_grid(path, mine.folder)
    (mine.folder / "tune.json").unlink()
    assert tune_grid(path, mine.folder) is not None


def test_values_of_an_earlier_grid_are_no_larger_budget(
    cells: tuple[Cell, ...], mine: Mine
) -> None:
    mine.begin(cells)
    mine.leave(cells, *[50.0] * 4)
    changed = mine.grid([GRID[0].replace("10,20", "30,40"), GRID[1]]).cells
    mine.begin(changed)
    mine.leave(changed, *[60.0] * 4)
    with is_refused(r"2; .* remove .*tune\.json to forget earlier ones"):
        choose(mine.folder)
    assert not (mine.folder / "tuning_choice.json").exists()


def test_a_method_is_not_added_to_a_search_that_has_chosen(mine: Mine) -> None:
    rows = ["method=tcr", ROWS[0]]
    chosen = mine.search(mine.write(rows[:1], "epochs=4"), 3, peak(2e4))
    with is_refused("has made its choice among other cells"):
        mine.search(mine.write(rows, "epochs=4"), 3, peak(2e4))
    again = mine.search(mine.write(rows[:1], "epochs=4"), 3, peak(2e4))
    assert again.choices == chosen.choices


def test_a_search_without_a_method_that_it_began_with_chooses_as_if_it_had_not(mine: Mine) -> None:
    rows = ["method=tcr", "method=koleo"]
    expected = mine.search(mine.write(rows[:1], "epochs=4"), 9, peak(2e4))
    shutil.rmtree(mine.folder)
    with pytest.raises(KeyboardInterrupt):
        mine.search(mine.write(rows, "epochs=4"), 9, peak(2e4), 30)
    found = mine.search(mine.write(rows[:1], "epochs=4"), 9, peak(2e4))
    rankings = [[entry.ranking for entry in each.choices] for each in (found, expected)]
    assert rankings[0] == rankings[1]


@pytest.mark.usefixtures("in_this_process")
def test_a_tuned_cell_without_attempts_is_not_trained_again(mine: Mine) -> None:
    """It comes out of a bundle, which holds no attempts."""
    grid = mine.grid(["method=vicreg"])
    (found,) = run_sweep(grid, ("pretrain", "tune"))
    attempts = mine.folder / found.cell_id / "attempts"
    shutil.rmtree(attempts)
    (found,) = run_sweep(grid, ("pretrain", "tune"))
    assert found.state == "tuned"
    assert not attempts.exists()


@pytest.mark.usefixtures("in_this_process")
def test_a_tuned_cell_whose_end_nobody_noted_is_taken_up_again(mine: Mine) -> None:
    """It was killed when its score was written."""
    grid = mine.grid(["method=vicreg"])
    (found,) = run_sweep(grid, ("pretrain", "tune"))
    directory = mine.folder / found.cell_id
    owner = {**there(last_attempt(directory))["owner"], "pid": 2**22 + 1}  # no process has it
    attempted(directory, None, number=1, owner=owner)
    (found,) = run_sweep(grid, ("pretrain", "tune"))
    assert found.state == "tuned"
    assert there(last_attempt(directory))["number"] == 2


def test_a_data_set_without_a_tuning_split_is_refused(tiny_source: Path, mine: Mine) -> None:
    dividing = ("train_per_class", "tuning_per_class", "held_out")
    undivided = [f"dataset.source.{key}=null" for key in dividing]
    undivided += ["dataset.name=untuned", f"runtime.data_dir={mine.root / 'data'}"]
    path = mine.write(GRID, *undivided, "evaluation.probe.learning_rates=[0.1]")
    sizes = ["dataset.num_classes=3", "dataset.image_size=24", "dataset.eval_resize=24"]
    done("prepare", "imagefolder", "--source-dir", tiny_source, *sizes, *undivided)
    told = refusal("tune", path)
    assert "has no tuning split to choose on; the paper's second variant" in told


ROWS = (
    "method=sfrik epochs=0",
    "method=sfrik_l2,tcr",
    "method=vicreg method.alignment_weight=tag(log,interval(5,500)) optimizer.base_lr=1",
    "method=simclr method.temperature=0.1,0.2 optimizer.base_lr=1,2,3",
)


def peak(weight: float, rate: float = 2.0) -> Surface:
    """A score that is highest at a weight of the alignment and a learning rate, and tells the
    same at every length.
    """

    def value(cell: Cell) -> float:
        own = cell.plain()["method"].get("alignment_weight", weight)
        away = abs(math.log10(own / weight)) + abs(math.log10(cell.optimizer.base_lr / rate))
        return 90 - 5 * away

    return value


def bring(
    folder: Path, surface: Surface, at_most: int = 10**9
) -> Callable[[Sweep, Sequence[str]], bool]:
    """What runs cells: each one that has not ended leaves its score; KeyboardInterrupt after so
    many of them.
    """
    left = iter(range(at_most))

    def run(sweep: Sweep, stages: Sequence[str]) -> bool:
        for cell in sweep.cells:
            if not (folder / cell.id / "tuning.json").exists():
                if next(left, None) is None:
                    raise KeyboardInterrupt
                score(folder, cell, surface(cell))
        return True

    return run


def test_a_search_gives_every_method_equally_many_images_and_distinct_configurations(
    mine: Mine,
) -> None:
    path = mine.write(ROWS[:3], "epochs=8")
    choice, rates = mine.search(path, 6, peak(100.0)), {}
    for label in ("SFRIK (L=2)", "TCR", "VICReg"):
        cells = mine.tried(label)
        rates[label] = {cell.optimizer.base_lr for cell in cells}
        # A bracket costs as much as three trainings: one pays for four configurations, of which one
        # is trained whole.
        assert Counter(cell.epochs for cell in cells) == {2: 8, 4: 4, 8: 2}
        assert len({(cell.method, cell.optimizer.base_lr) for cell in cells}) == 8
        (entry,) = (each for each in choice.choices if each.label == label)
        assert Counter(each.status for each in entry.ranking) == {"tuned": 2, "stopped": 6}
        assert {each.epochs for each in entry.ranking[:2]} == {8}
    # what the file states is not searched
    assert (len(rates["TCR"]), rates["VICReg"]) == (8, {1.0})
    assert choice.budget == 8


@pytest.mark.parametrize(
    "given", ["+method.alignment_weight=7", "method={name:tcr,alignment_weight:7}"]
)
def test_what_is_stated_in_another_form_is_not_searched(given: str, mine: Mine) -> None:
    cells = propose(str(mine.write([f"method=tcr {given}"], "epochs=4")), [], 3).sweep.cells
    assert {cell.plain()["method"]["alignment_weight"] for cell in cells} == {7.0}
    assert len({cell.optimizer.base_lr for cell in cells}) == 4


def test_a_search_ends_when_those_of_all_methods_have_ended(mine: Mine) -> None:
    """The last of them has nothing to search, and one seed: it is the network without training."""
    mine.search(mine.write(["method=tcr seed=0,1", ROWS[0]], "epochs=4"), 6, peak(100.0))
    assert Counter(cell.epochs for cell in mine.tried("TCR")) == {1: 8, 2: 4, 4: 2}


def test_what_is_stopped_early_was_not_among_the_better_half(mine: Mine) -> None:
    surface = peak(100.0)
    mine.search(mine.write(["method=tcr"], "epochs=8", "seed=3"), 3, surface)
    cells = mine.tried("TCR")
    for epochs, kept in ((2, 2), (4, 1)):
        scores = {cell.method: surface(cell) or 0.0 for cell in cells if cell.epochs == epochs}
        best = sorted(scores, key=lambda method: -scores[method])[:kept]
        assert {cell.method for cell in cells if cell.epochs == 2 * epochs} == set(best)
    # No score of a shorter training stands beside the chosen.
    assert " –  " in choice_table(choose(mine.folder)).splitlines()[2]
    told = [(each["round"], each["epochs"], each["seed"], each["score"]) for each in mine.entries()]
    rounds = {2: 0, 4: 1, 8: 2}
    assert told == [(rounds[cell.epochs], cell.epochs, cell.seed, surface(cell)) for cell in cells]


def test_jobs_find_the_short_trainings_of_a_search_by_their_ids(mine: Mine) -> None:
    """They leave out what is evaluated while training, with its settings."""
    own = ("evaluation.protocols=[knn]", "evaluation.while_training=[probe]", "epochs=4")
    path = mine.write(["method=tcr"], *own)
    for cell in propose(str(path), [], 3).sweep.cells:
        assert Cell.stored(cell.plain()).id == cell.id


def test_a_short_training_warms_up_as_much_shorter(mine: Mine) -> None:
    """And is evaluated at its end alone."""
    whole = ["epochs=8", "optimizer.warmup_epochs=2", "optimizer.warmup_steps=10"]
    whole += ["evaluation.while_training=[knn]", "evaluation.every_epochs=8"]
    (entry,) = mine.search(mine.write(["method=tcr"], *whole), 3, peak(100.0)).choices
    assert len(entry.ranking) == 4  # all in one setting
    # which nobody chose
    assert not any("warmup" in name for name in entry.ranking[0].hyperparameters)
    found = {}
    for cell in mine.tried("TCR"):
        warm_up = (cell.optimizer.warmup_epochs, cell.optimizer.warmup_steps)
        found[cell.epochs] = (*warm_up, cell.evaluation.while_training)
    assert found == {2: (0.5, 2, ()), 4: (1, 5, ()), 8: (2, 10, ("knn",))}


BRACKETS = yaml.safe_load(Path(__file__).with_name("brackets.yaml").read_text())


@pytest.mark.parametrize("case", BRACKETS.values(), ids=list(BRACKETS))
def test_a_search_closes_in_on_the_best_and_goes_beyond_an_end_of_the_space(
    mine: Mine, case: dict[str, Any]
) -> None:
    """Those of the method are spread most evenly."""
    path, name = mine.write([case["row"]]), case["name"]
    mine.search(path, 16, lambda cell: 90 - abs(getattr(cell.method, name) - case["best"]) / 10)
    assert mine.values(name) == [float(value) for value in case["tried"]]


def test_a_search_closes_in_on_the_best_of_full_length(mine: Mine) -> None:
    """Short trainings have higher scores, and another best.

    Around 4, the smaller of two, half of the range follows.
    """

    def surface(cell: Cell) -> float:
        weight: float = cell.plain()["method"]["alignment_weight"]
        return 50 - abs(weight - 4) if cell.epochs == 2 else 90 - abs(weight - 7)

    row = "method=tcr method.alignment_weight=interval(0,16) optimizer.base_lr=1 epochs=2"
    mine.search(mine.write([row]), 8, surface)
    assert mine.values() == [8, 4, 12, 2, *(5, 3, 7, 0.5)]
    assert mine.values(epochs=2) == [8, 4, *(7, 5)]


@pytest.mark.parametrize(
    ("searched", "name", "best", "ends"),
    [
        ("method=vicreg method.alignment_weight=interval(4,100)", "alignment_weight", 0, (0, 3.9)),
        ("method=simclr method.temperature=interval(0.05,1)", "temperature", 0, (0.05, 0.2)),
        ("method=vicreg optimizer.momentum=interval(0.5,0.95)", "momentum", 1, (0.8, 0.95)),
    ],
)
def test_a_search_goes_on_up_to_what_its_setting_takes(
    searched: str, name: str, best: float, ends: tuple[float, float], mine: Mine
) -> None:
    def value(cell: Cell) -> float:
        plain = cell.plain()
        found: float = (plain["method"] | plain["optimizer"])[name]
        return found

    path = mine.write([f"{searched} optimizer.base_lr=1"])
    mine.search(path, 8, lambda cell: 90 - abs(value(cell) - best))
    nearest = min(map(value, mine.tried()), key=lambda found: abs(found - best))
    assert ends[0] <= nearest <= ends[1]


def test_an_optimum_that_the_budget_does_not_reach_is_marked(mine: Mine) -> None:
    path = mine.write(["method=tcr optimizer.base_lr=1"], "epochs=4")
    (entry,) = mine.search(path, 6, peak(1e9)).choices
    # The space of TCR at n = 32 and q = 16 ends at 1600, and half of it beyond the best of a
    # bracket comes next.
    assert mine.values(epochs=4) == [285, 5850]
    assert entry.edges == {"method.alignment_weight": "largest"}
    assert "largest alignment_weight" in choice_table(choose(mine.folder))
    cell = load_cell(mine.folder / entry.chosen / "config.yaml")
    assert tune.how_chosen(mine.folder / cell.id, cell, final=True)["edges"] == entry.edges


def test_a_search_that_is_killed_chooses_what_an_undisturbed_one_chooses(mine: Mine) -> None:
    path = mine.write(["method=tcr", ROWS[3], ROWS[0]], "epochs=4")
    undisturbed = mine.search(path, 6, peak(2e4))
    cells = sorted(each.name for each in mine.folder.iterdir() if each.is_dir())
    shutil.rmtree(mine.folder)
    for at_most in (3, 9, 1):
        with pytest.raises(KeyboardInterrupt):
            mine.search(path, 6, peak(2e4), at_most)
    again = mine.search(path, 6, peak(2e4))
    assert again.choices == undisturbed.choices
    assert sorted(each.name for each in mine.folder.iterdir() if each.is_dir()) == cells


def test_a_search_that_has_chosen_needs_the_folders_of_its_choices_alone(mine: Mine) -> None:
    path = mine.write(["method=sfrik_l2 epochs=0 optimizer.warmup_epochs=0", ROWS[2]])
    (entry,) = mine.search(path, 5, peak(30.0)).choices
    for run in [file.parent for file in mine.folder.glob("*/config.yaml")]:
        if run.name != entry.chosen:
            shutil.rmtree(run)

    def final() -> Sweep | None:
        propose_next = functools.partial(propose, str(path), [], 5)
        run = bring(mine.folder, peak(30.0))
        return tune.tune(propose_next(), propose_next, run, final_seeds=[0, 1])

    cells = there(final())
    assert [(cell.epochs, cell.seed) for cell in cells.cells] == [(1, 0), (1, 1), (0, 0), (0, 1)]
    shutil.rmtree(mine.folder / entry.chosen)
    with is_refused(r"which tuning_choice\.json chose for VICReg, is not there; put it back"):
        final()


def test_a_search_with_several_seeds_judges_by_their_mean(mine: Mine) -> None:
    """Seed 0 alone would choose a weight of 10 and seed 1 one of 1000.

    All of their trainings are paid.
    """

    def surface(cell: Cell) -> float:
        away = math.log10(cell.plain()["method"]["alignment_weight"] / 100.0)
        return 50 - 5 * away**2 + (10 * away if cell.seed else -10 * away)

    own = ["epochs=4", "batch_size=8", "embedding_dim=16"]
    path = mine.write(["method=tcr optimizer.base_lr=1 seed=0,1"], *own)
    (entry,) = mine.search(path, 18, surface).choices
    assert 50 < entry.ranking[0].hyperparameters["method.alignment_weight"] < 200
    assert entry.ranking[0].value == pytest.approx(50, abs=1)
    cells = mine.tried("TCR")
    assert Counter(cell.seed for cell in cells) == {0: 21, 1: 21}
    assert sum(cell.epochs for cell in cells) == 18 * 4


@pytest.mark.parametrize("poor", [40.0, 0.0])
def test_one_seed_that_diverges_rules_a_configuration_out(poor: float, mine: Mine) -> None:
    """Though the mean with a 0 for it would be the best: of 3.79, 9, 50.6 and 285 the smaller
    ones go on.
    """

    def surface(cell: Cell) -> float | None:
        large = cell.plain()["method"]["alignment_weight"] > 50
        return (None if cell.seed else 99.0) if large else poor

    path = mine.write(["method=tcr optimizer.base_lr=1 seed=0,1"], "epochs=4")
    (entry,) = mine.search(path, 6, surface).choices
    assert sorted(mine.values(epochs=2)) == [3.79, 3.79, 9, 9]
    assert entry.ranking[0].hyperparameters["method.alignment_weight"] < 50


def test_one_that_diverges_counts_as_tried(mine: Mine) -> None:
    def surface(cell: Cell) -> float | None:
        return None if cell.plain()["method"]["alignment_weight"] > 50 else peak(1e6)(cell)

    path = mine.write(["method=tcr optimizer.base_lr=1"], "epochs=4")
    (entry,) = mine.search(path, 9, surface).choices
    assert 10 < entry.ranking[0].hyperparameters["method.alignment_weight"] <= 50
    assert not entry.edges
    steps = (2 if surface(cell) is None else 3 * cell.epochs for cell in mine.tried("TCR"))
    assert entry.images == 32 * sum(steps)


def test_a_search_looks_no_closer_at_what_diverged_late(mine: Mine) -> None:
    """Of 3.79, 9, 50.6 and 285 the largest is ahead, until it diverges."""

    def surface(cell: Cell) -> float | None:
        weight = float(cell.plain()["method"]["alignment_weight"])
        return None if cell.epochs == 8 and weight > 200 else 50 + math.log(weight)

    path = mine.write(["method=tcr optimizer.base_lr=1"], "epochs=8")
    (entry,) = mine.search(path, 6, surface).choices
    assert 100 < entry.ranking[0].hyperparameters["method.alignment_weight"] < 200


def test_a_grid_whose_best_lies_at_its_end_says_so(
    cells: tuple[Cell, ...], mine: Mine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And records say it of their own method; the second was added by a later call."""
    mine.begin(cells[:2])
    mine.begin(cells[2:])
    mine.leave(cells, 60.0, 50.0, 50.0, 60.0)
    edges = {entry.label: entry.edges for entry in choose(mine.folder).choices}
    assert edges == {
        "VICReg": {"method.alignment_weight": "smallest"},
        "SFRIK (L=2)": {"method.alignment_weight": "largest"},
    }
    for cell in (cells[0], cells[3]):
        how = tune.how_chosen(mine.folder / cell.id, cell, final=True)
        assert how["edges"] == edges[cell.label]
    monkeypatch.chdir(mine.folder / cells[0].id)
    assert tune.how_chosen(Path(), cells[0], final=True)["record"] == "mine/tuning_choice.json"


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("method=mmcr method.local_weight=0,0.01,0.1", (52.0, 51.0, 50.0)),
        ("method=vicreg method.covariance_weight=0,1,2", (52.0, 51.0, 50.0)),
        ("method=vicreg optimizer.weight_decay=0,1e-5,1e-4", (52.0, 51.0, 50.0)),
        ("method=auh method.scale=10,15,20", (50.0, 51.0, 52.0)),
        ("method=sfrik_l2 method.regularize_local=false,true", (50.0, 51.0)),
    ],
)
def test_a_value_that_none_lies_beyond_is_no_edge(
    mine: Mine, row: str, values: tuple[float, ...]
) -> None:
    """The smallest of its method, or the largest; or one that is no number."""
    cells = mine.grid([row]).cells
    mine.begin(cells)
    mine.leave(cells, *values)
    (entry,) = choose(mine.folder).choices
    assert (entry.chosen, entry.edges) == (cells[values.index(max(values))].id, {})


WEIGHT, ORDER = "method.alignment_weight", "range from .* from a smaller to a larger one"
INTERVALS = ("interval(5,1)", "tag(log,interval(0,1))", "interval(1,inf)")
SEARCHED = [WEIGHT, "method.variance_weight", "method.covariance_weight", "method.epsilon"]
SEARCHED += ["optimizer.weight_decay", "optimizer.momentum"]
SIX = " ".join(f"{name}=0.1,0.2" for name in SEARCHED)
FEW = "{} trainings are too few for a search, which takes {} or more"
SEVEN = "7 settings are searched at once; give at most 6"
TWICE = "2 searches for TCR that differ in nothing but epochs or tuned values"


@pytest.mark.parametrize(
    ("rows", "trials", "refusal"),
    [
        (["method=tcr method.alignment_weight=1 optimizer.base_lr=1"], 6, "nothing to search"),
        (["method=tcr epochs=5"], 2, FEW.format(2, 3)),
        (["method=tcr seed=0,1 epochs=4"], 3, FEW.format(3, 6)),
        (["method=tcr embedding_dim=interval(16,64)"], 6, r"interval\(16,64\): only settings"),
        (["method=tcr optimizer.warmup_epochs=0,1,2 epochs=16"], 6, "a warm-up cannot be searched"),
        ([f"method=vicreg {SIX} optimizer.base_lr=1,2"], 6, SEVEN),
        (["method=tcr epochs=4,8"], 6, TWICE),
        ([f"method=tcr method.alignment_weight={weight}" for weight in (1, 2)], 6, TWICE),
        (["method=tcr seed=0,1", "method=vicreg seed=0"], 6, "different seeds; give all the same"),
        (["method=tcr runtime.loss_form=gram,auto"], 8, "loss_form must be the same for"),
        (["method=tcr", "method=vicreg cluster=slurm"], 8, "some cells are for this machine and"),
        (["method=tcr,vicreg method.scale=interval(1,2)"], 8, "unknown setting 'method.scale'"),
        (["method=sigreg method.directions=interval(8,64)"], 8, r"8,64\): .* whole number"),
        *(([f"method=vicreg {WEIGHT}={given}"], 2, f"{WEIGHT}=.*: {ORDER}") for given in INTERVALS),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(
    rows: list[str], trials: int, refusal: str, mine: Mine
) -> None:
    with is_refused(refusal):
        propose(str(mine.write(rows)), [], trials)


def test_a_search_needs_a_space_that_somebody_states(
    mine: Mine, monkeypatch: pytest.MonkeyPatch
) -> None:
    six = mine.write([f"method=vicreg {SIX} optimizer.base_lr=1"])
    assert propose(str(six), [], 6).sweep
    monkeypatch.setattr(VICReg, "space", None)
    path = mine.write(["method=vicreg"])
    with is_refused(r"VICReg states no search space; .*method\.NAME=tag"):
        propose(str(path), [], 6)
    row = "method=vicreg method.alignment_weight=interval(1,2)"
    assert propose(str(mine.write([row])), [], 6).sweep.cells


def test_a_search_keeps_the_budget_that_it_began_with(mine: Mine) -> None:
    path = mine.write(["method=tcr"], "epochs=4", trials=6)
    # The command's budget comes before the file's.
    assert "2 trainings are too few" in refusal("tune", path, "--trials", "2", "--plan")
    mine.search(path, 6, peak(100.0))
    for trials in (3, 9):
        with is_refused("this search began with --trials 6"):
            propose(str(path), [], trials)
    # A grid would end the search before its time.
    with is_refused("this search began with --trials 6"):
        proposals(str(mine.write(["method=tcr"], "epochs=4")), [], None, None)


def test_each_search_of_a_repeated_tuning_has_seeds_and_configurations_of_its_own(
    mine: Mine,
) -> None:
    path = mine.write(["method=tcr,vicreg", ROWS[0]], "epochs=4", final_seeds=[0, 1])
    mine.search(path, 3, peak(100.0))
    once = {cell.id for cell in mine.tried()}
    assert "repeats" not in verified((mine.folder / "search.json").read_bytes())
    shutil.rmtree(mine.folder)
    for at_most in (3, 9):
        with pytest.raises(KeyboardInterrupt):
            mine.search(path, 3, peak(100.0), at_most, repeats=3)
    choice = mine.search(path, 3, peak(100.0), repeats=3)
    by_search = [[cell for cell in mine.tried() if cell.seed == seed] for seed in (0, 1000, 2000)]
    # the first is the search as it is without repeats
    assert {cell.id for cell in by_search[0]} == once
    for label in ("TCR", "VICReg"):
        weights = [
            {cell.plain()["method"]["alignment_weight"] for cell in own if cell.label == label}
            for own in by_search
        ]
        assert [len(own) for own in weights] == [4, 4, 4]
        assert len(set.union(*weights)) == 12
        assert [entry.search for entry in choice.choices if entry.label == label] == [0, 1, 2]
    final = tune.final_cells(choice, mine.folder, mine.tried(), [0, 1])
    expected = itertools.product(("TCR", "VICReg", "untrained"), (0, 1, 1000, 1001, 2000, 2001))
    assert Counter((cell.label, cell.seed) for cell in final) == dict.fromkeys(expected, 1)
    for cell in final:
        how = tune.how_chosen(mine.folder / cell.id, cell, final=True)
        assert how["search"] == cell.seed // 1000
        assert how["sha256"] == (choice.sha256 if cell.epochs else None)
    other = replace(final[0], seed=(final[0].seed + 1000) % 3000)
    with is_refused("chose other hyperparameters"):  # another search did
        tune.how_chosen(mine.folder / other.id, other, final=True)
    with is_refused("this search began with --repeats 3"):
        propose(str(path), [], 3, 2)
    for name in ("search.json", "tune.json"):  # they are in no bundle that is unpacked
        (mine.folder / name).unlink()
    with is_refused("has made its choice with --repeats 3"):
        mine.search(path, 3, peak(100.0), repeats=2)
    assert mine.search(path, 3, peak(100.0), repeats=3).sha256 == choice.sha256


def test_a_repeated_grid_chooses_in_each_repeat(mine: Mine) -> None:
    """Each search has a seed that prefers another weight."""
    row = "method=vicreg method.alignment_weight=10,20,30"
    path = mine.write([row], repeats=2, final_seeds=[0, 1000])
    assert "seed 1000 is too large" in refusal("tune", path)
    assert not mine.folder.exists()  # before any training
    path = mine.write([row], repeats=2, final_seeds=[0])
    propose_next = proposals(str(path), [], None, None)

    def prefers(cell: Cell) -> float:
        weight: float = cell.plain()["method"]["alignment_weight"]
        return 90.0 - abs(weight - 10 * (1 + cell.seed // 1000))

    run = bring(mine.folder, prefers)
    begun = proposals(str(path), [], None, 3)().sweep.cells  # with one repeat more
    mine.begin(begun)
    mine.leave(begun, *map(prefers, begun))
    for _ in range(2):  # the second time by the choice on record
        final = there(tune.tune(propose_next(), propose_next, run, final_seeds=None))
    chosen = {(cell.seed, cell.plain()["method"]["alignment_weight"]) for cell in final.cells}
    assert chosen == {(0, 10.0), (1000, 20.0)}
    assert "9 cells" in done("tune", path, "--repeats", "3", "--plan").output
    for option, more in (("--seeds", "0,1000"), ("seed=1000", "--plan")):
        assert "seed 1000 is too large" in refusal("tune", path, option, more)


@pytest.mark.parametrize(
    ("row", "more", "refused"),
    [
        ("seed=0,1", {"repeats": 10**9}, "1000000000 repeats"),
        ("seed=0,1", {"repeats": 10**9, "trials": 4}, "sweep mine"),
        ("seed=0,1", {"trials": 10**9}, "1,000,000,000 trainings"),
        ("seed=0,1", {"trials_per_hyperparameter": 10**9}, "2,000,000,000 trainings"),
        ("seed=0,1", {"trials": 4_000, "repeats": 3}, "12,000 trainings"),
        ("seed=range(0,900) method.alignment_weight=range(1,900)", {"trials": 4}, "sweep mine"),
        ("seed=0 optimizer.base_lr=1,2", {"final_seeds": [*range(10_001)]}, "seeds"),
    ],
)
def test_more_trainings_than_anybody_can_mean_are_counted_and_refused(
    row: str, more: dict[str, Any], refused: str, mine: Mine
) -> None:
    reason = "more cells than runtime.max_cells=10000; ask for fewer, or raise it"
    path = mine.write([f"method=vicreg {row}"], **more)
    assert refusal("tune", path) == f"regbench: {refused}: {reason}" and not mine.folder.exists()


def test_a_repeat_in_which_all_diverge_chooses_nothing(mine: Mine) -> None:
    rows = ["method=vicreg,simclr cluster.gpus=1", "method=auh cluster.gpus=8"]
    grid = tune.repeated(mine.grid(rows), 2)
    machines = [("VICReg", 0, 1), ("SimCLR", 0, 1), ("AUH", 0, 8)]
    machines += [(label, 1000, gpus) for label, _, gpus in machines]
    cells = zip(grid.cells, grid.clusters, strict=True)
    assert [(cell.label, cell.seed, cluster.gpus) for cell, cluster in cells] == machines
    proposed = Proposed(grid, True, repeats=2)
    run = bring(mine.folder, lambda cell: None if cell.seed else 50.0)
    assert tune.tune(proposed, lambda: proposed, run, final_seeds=[0]) is not None
    assert [entry.search for entry in choose(mine.folder).choices] == [0, 0, 0]
    with is_refused("--seeds names 7 twice"):
        tune.refuse_seeds([7, 8, 7], grid.cells[0])


def test_a_budget_may_be_in_proportion_to_the_searched_hyperparameters(mine: Mine) -> None:
    """TCR searches two and the RBF kernel three, of which one is stated in the second row."""
    rows = ["method=tcr,rbf", "method=auh method.scale=2", ROWS[0]]
    path = mine.write(rows, "epochs=4", trials_per_hyperparameter=3)
    # the command comes first
    assert "trials_per_hyperparameter" not in (propose(str(path), [], 6).search or {})
    choice = mine.search(path, None, peak(100.0))
    searched = {}
    for entry in choice.choices:
        searched[entry.label] = (entry.setting["searched"], len(entry.ranking))
    assert searched == {"TCR": (2, 8), "RBF kernel": (3, 12), "AUH": (2, 8)}
    epochs = {label: sum(cell.epochs for cell in mine.tried(label)) for label in searched}
    assert epochs == {"TCR": 6 * 4, "RBF kernel": 9 * 4, "AUH": 6 * 4}
    with is_refused("this search began without --trials; go on with that"):
        propose(str(path), [], 6)
    planned = done("tune", path, "--plan").output
    assert "the images of 3 trainings for each hyperparameter that it searches" in planned
    # 3 times 7/3, the mean over the three methods
    assert "tuned by 7 trainings a search" in done("plan", path, "--tell", "1").output


def test_two_methods_of_one_title_are_refused(mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a plug-in that inherits it: one row would hold both, and one choice be made of them."""
    monkeypatch.setattr(SimCLR, "metadata", VICReg.metadata)
    path = mine.write(["method=vicreg", "method=simclr"], "epochs=4")
    for load in (load_sweep, lambda name: propose(name, [], 3)):
        with is_refused("vicreg and simclr are both 'VICReg' in tables; give one another title"):
            load(str(path))


def test_an_interval_is_no_grid(mine: Mine) -> None:
    with is_refused("is a range, not a grid; search it: regbench tune"):
        mine.grid(ROWS[2:])


def test_the_command_tunes_and_tests(mine: Mine) -> None:
    """Of two configurations one has been tried before."""
    path = mine.write(["method=vicreg method.alignment_weight=10,20"], final_seeds=[1])
    done("tune", path, "--plan")
    small = refusal("tune", path, "cluster.gpu_memory_gib=0.0001")
    assert "run them all the same with --oversized" in small
    assert not mine.folder.exists()
    score(mine.folder, load_sweep(str(path)).cells[0], 0.0)
    (attempt,) = (claim(path.parent, 60.0) for path in mine.folder.glob("*/tuning.json"))
    there(attempt).end("done")
    told = done("tune", path).output
    assert "chosen on the tuning split from at most 2 configurations a method" in told
    (record,) = map(Record.read, mine.folder.glob("*/record.json"))
    assert (record.seed, record.status) == (1, "done")
    assert len(list(mine.folder.glob("*/tuning.json"))) == 2
    shown = done("status", "mine", "--runs-dir", mine.root / "runs").output
    assert "3 cells: 2 tuned, 1 done" in shown
