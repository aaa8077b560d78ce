"""The tuning protocol: every method's hyperparameters are chosen on one split, and the test split is opened once.

The paper's appendix, "Hyperparameters for experiments on IN20 %": pretrain each point of a grid, score it by weighted
kNN on the tuning split (`evaluation.select_by` adds linear probing), keep the best point of each method and setting,
choose its probe's learning rate on the tuning split, score it on the test split. The state lies in files of the sweep's
folder, so that the same call goes on wherever an earlier one was stopped:

- `tune.json`: what is compared; it closes the test split for all cells of the folder.
- `search.json`: what a search in place of the grid has tried so far.
- `<cell>/tuning.json`: the record of a cell with its score on the tuning split.
- `tuning_choice.json`: what was chosen and the runners-up; it opens the test split for the chosen.
- `<cell>/record.json`: the final record of a chosen cell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from regbench.benchmark.evaluate.base import Task, selection_name
from regbench.benchmark.evaluate.subject import selection_splits
from regbench.benchmark.rundir.choice import GIVEN
from regbench.benchmark.rundir.record import Record, read_record, read_tuned
from regbench.benchmark.rundir.tuning_choice import (
    SEARCH,
    TUNING_CHOICE,
    ChosenConfiguration,
    RankedConfiguration,
    TuningChoice,
    read_choice,
)
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.stored import load_cell
from regbench.benchmark.settings.sweep import Sweep
from regbench.errors import RegbenchError
from regbench.files import Name, read_json, read_signed, signed, write_new, write_text
from regbench.spaces import Range
from regbench.sweeps.status import alone


class Proposed(NamedTuple):
    """What a tuning is to try.

    Attributes:
        sweep: The cells so far.
        complete: Whether they are all; those of a search have ended then.
        search: For `search.json`; None of a grid. Its entry "short" has the ids of the cells that are trained for fewer
            epochs than the chosen ones will be, with the epochs of these.
    """

    sweep: Sweep
    complete: bool
    search: Mapping[str, Any] | None = None


def tune(
    proposed: Proposed,
    propose: Callable[[], Proposed],
    bring: Callable[[Sweep, Sequence[str]], bool],
    *,
    final_seeds: Sequence[int] | None,
    leading: int | None,
    unequal: bool,
) -> Sweep | None:
    """Bring a tuning to its choice, from wherever an earlier call was stopped.

    Args:
        proposed: The grid to try first.
        propose: Gives the grid to try next: a search gives more of it each time.
        bring: Brings the cells of a grid through stages; False if somebody else goes on with that.
        final_seeds: Of the final runs; none: those of the grid; None: what the sweep's file says.
        leading: See `final_cells`.
        unequal: See `begin`.

    Returns:
        The cells that are left to score on the test split; None if there is no choice yet, as `bring` gave False.

    Raises:
        RegbenchError: If the tuning is refused.
    """
    sweep, complete, search = proposed
    seeds = sweep.final_seeds if final_seeds is None else final_seeds
    folder = Path(sweep.runtime.runs_dir) / sweep.name
    if search is None:  # what a search tries follows from its scores, some of which may be gone once it has chosen
        _refuse_more(sweep.cells, folder)
    while not (folder / TUNING_CHOICE).exists():
        # The plan of a search gives all methods equally much.
        begin(sweep.cells, folder, Path(sweep.runtime.data_dir), unequal=unequal or search is not None)
        if search is not None:
            write_text(folder / SEARCH, signed(search))
        if (search is None or not complete) and not bring(sweep, ("pretrain", "tune")):
            return None
        if complete:
            break
        sweep, complete, search = propose()
    cells = final_cells(choose(folder), folder, sweep.cells, seeds, leading)
    of_seed_0 = (replace(cell, seed=0) for cell in sweep.cells)  # final runs have other seeds
    clusters = {cell.id: cluster for cell, cluster in zip(of_seed_0, sweep.clusters, strict=True)}
    found = (clusters.get(replace(cell, seed=0).id, sweep.clusters[0]) for cell in cells)
    return replace(sweep, cells=tuple(cells), clusters=tuple(found))


def refuse_tuning(sweep: Sweep) -> None:
    """Refuse to run the folder of a tuning as a sweep, which would leave its cells without a score on the test split.

    Raises:
        RegbenchError: If the sweep's folder is of a tuning.
    """
    folder = Path(sweep.runtime.runs_dir) / sweep.name
    if (folder / "tune.json").exists():
        raise RegbenchError(f"{folder} is of a tuning; go on with: regbench tune, or give the sweep another name")


def refuse_seeds(seeds: Sequence[int], cell: Cell) -> None:
    """Refuse seeds of final runs before the tuning begins.

    Args:
        seeds: As they are given.
        cell: One that is to have them.

    Raises:
        RegbenchError: If one of them cannot be a seed, or is given twice.
    """
    for seed in seeds:
        replace(cell, seed=seed)
        if seeds.count(seed) > 1:
            raise RegbenchError(f"--seeds names {seed} twice; each seed is one run")


def begin(cells: Sequence[Cell], folder: Path, data_dir: Path, *, unequal: bool) -> None:
    """Write down what is compared, before anything runs.

    Args:
        cells: The grid.
        folder: `<runs_dir>/<sweep>`.
        data_dir: Of prepared data sets.
        unequal: Whether methods may have different numbers of configurations.

    Raises:
        RegbenchError: If budgets differ, there is no split to choose on, or the folder holds another sweep.
    """
    for cell in {(cell.dataset.name, cell.evaluation.select_on): cell for cell in cells}.values():
        if not selection_splits(cell.evaluation, Task(cell.dataset, cell.evaluation.select_on, data_dir)):
            raise RegbenchError(
                f"data set {cell.dataset.name!r} has no tuning split to choose on; the paper's second variant, whose "
                "scores are optimistic, chooses on the test split: evaluation.select_on=test"
            )
    budgets = {name: len(configurations) for name, configurations in grouped(cells, {}).items()}
    if len(set(budgets.values())) > 1 and not unequal:
        raise RegbenchError(
            "the methods have different numbers of configurations to choose from, which is not a fair comparison: "
            + ", ".join(f"{name} {number}" for name, number in budgets.items())
            + "; give all the same, or say --unequal-budgets, which the report will show"
        )
    if len({cell.evaluation.select_on for cell in cells}) > 1:
        raise RegbenchError("evaluation.select_on must be the same for all cells of a tuning")
    if len({cell.evaluation.select_by for cell in cells}) > 1:
        raise RegbenchError("evaluation.select_by must be the same for all cells of a tuning")
    path = folder / "tune.json"
    records = [] if path.exists() else [read_record(record.parent) for record in folder.glob("*/record.json")]
    if any(score.split == "test" for record in records if record for score in record.scores):
        raise RegbenchError(
            f"{folder} holds runs that were scored on the test split already; choose another name for the tuning"
        )
    _refuse_more(cells, folder)
    with alone(folder):
        known = _compared(folder) if path.exists() else []
        write_text(path, json.dumps(sorted({*known, *(cell.id for cell in cells)}), indent=1))


def _refuse_more(cells: Sequence[Cell], folder: Path) -> None:
    """Refuse cells that a choice which is on record was not made among."""
    chosen = all((folder / name).exists() for name in (TUNING_CHOICE, "tune.json"))
    if chosen and not {cell.id for cell in cells} <= set(_compared(folder)):
        raise RegbenchError(
            f"{folder} has made its choice among other cells; a tuning with more of them needs another name"
        )


def choose(folder: Path) -> TuningChoice:
    """Choose the best configuration of each method in each setting, once: a later call reads `tuning_choice.json`.

    Args:
        folder: Of a tuning whose cells have all ended.

    Returns:
        The content of `tuning_choice.json`.

    Raises:
        RegbenchError: If a cell has not ended.
    """
    choice = read_choice(folder)
    if choice is None:
        cells = _cells(folder)
        search = read_search(folder)
        short: dict[str, int] = search.get("short", {})
        settings = {entry["cell_id"]: " ".join(entry["settings"]) for entry in search.get("tried", ())}
        choices = [
            entry
            for configurations in grouped(cells, short).values()
            if (entry := _choice(folder, configurations, short, settings)) is not None
        ]
        if not choices:
            raise RegbenchError(f"every cell of {folder} diverged: there is nothing to choose from")
        made = TuningChoice(
            selected_on=cells[0].evaluation.select_on,
            score=selection_name(cells[0].evaluation.select_by),
            budget=max(len(entry.ranking) for entry in choices),
            seeds=tuple(sorted({cell.seed for cell in cells})),
            choices=tuple(choices),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        write_new(folder / TUNING_CHOICE, made.text())
        choice = read_choice(folder)
        if choice is None:
            raise RegbenchError(f"{folder / TUNING_CHOICE} is there and leads to no file; remove it")
    return choice


def how_chosen(directory: Path, cell: Cell, *, final: bool) -> dict[str, Any]:
    """Tell how a cell's hyperparameters were chosen, and keep the test split closed to a cell that was not.

    Args:
        directory: The cell's run directory.
        cell: The cell.
        final: Whether the test split is to be opened.

    Returns:
        What its record says: `benchmark.rundir.choice.GIVEN` outside a tuning.

    Raises:
        RegbenchError: If it belongs to a tuning that has not chosen it, and `final` scores are asked for.
    """
    folder = directory.absolute().parent
    entry = dict(GIVEN)
    if (folder / "tune.json").exists():
        choice = read_choice(folder)
        configuration = replace(cell, seed=0).id
        if choice and configuration in {chosen.configuration for chosen in choice.choices}:
            entry |= {name: getattr(choice, name) for name in ("selected_on", "score", "budget", "sha256")}
            entry["record"] = f"{folder.name}/{TUNING_CHOICE}"  # as the folder of runs may lie anywhere
            entry["edges"] = next(each.edges for each in choice.choices if each.configuration == configuration)
        elif final and cell.epochs:
            what = "has not chosen yet" if choice is None else "chose other hyperparameters"
            raise RegbenchError(
                f"{directory}: the tuning {folder.name} {what}, so this cell gets no score on the test split; "
                f"see: regbench tune {folder.name}"
            )
    return entry


def choice_table(choice: TuningChoice) -> str:
    """Lay out a choice as a table: what was chosen for each method, and the value of the runner-up."""
    split, budget = choice.selected_on, choice.budget
    rows = []
    every = [entry.setting for entry in choice.choices]
    differ = [key for key in every[0] if any(setting.get(key) != every[0][key] for setting in every)]
    settings = {"embedding_dim": "q", **{key: key.replace("_", " ") for key in differ if key != "embedding_dim"}}
    for entry in choice.choices:
        best, *others = entry.ranking
        varied = [
            f"{key.removeprefix('method.')}={value}"
            for key, value in best.hyperparameters.items()
            if any(other.hyperparameters.get(key) != value for other in others)
        ]
        values = (best.value, others[0].value if others and others[0].status == "tuned" else None)
        shown = [f"{value:.2f}" if value is not None else "–" for value in values]
        setting = [entry.setting.get(key, "") for key in settings]
        edges = ", ".join(f"{side} {key.removeprefix('method.')}" for key, side in entry.edges.items())
        rows.append([entry.label, *setting, *shown, len(entry.ranking), f"{entry.images:,}", ", ".join(varied), edges])
    score = f"{choice.score} (%), {split}"
    headers = [
        "method",
        *settings.values(),
        score,
        "runner-up",
        "tried",
        "images",
        "chosen",
        "at the edge of what was tried",
    ]
    table = tabulate(rows, headers, disable_numparse=True)
    return f"{table}\n\nchosen on the {split} split from at most {budget} configurations a method"


def final_cells(
    choice: TuningChoice, folder: Path, tried: Sequence[Cell], seeds: Sequence[int], leading: int | None
) -> list[Cell]:
    """List the cells that are scored on the test split: each choice with its seeds.

    Args:
        choice: Of `choose`.
        folder: Of the tuning.
        tried: What it chose among; the networks without training in it are scored, too.
        seeds: Of the final runs; none: those of the grid.
        leading: How many of the best choices get all seeds, by their score on the tuning split; the others get the
            grid's. None: all.

    Raises:
        RegbenchError: If the run directory of a choice is not there.
    """
    entries = sorted(choice.choices, key=lambda entry: -(entry.ranking[0].value or 0.0))
    cells = []
    for rank, entry in enumerate(entries):
        config = folder / entry.chosen / "config.yaml"
        if not config.exists():
            raise RegbenchError(
                f"{config.parent}, which {TUNING_CHOICE} chose for {entry.label}, is not there; put it back, or tune "
                "under another name"
            )
        chosen = load_cell(config)
        few = leading is not None and rank >= leading
        cells += [replace(chosen, seed=seed) for seed in (choice.seeds if few else seeds or choice.seeds)]
    untrained = {replace(cell, seed=seed) for cell in tried if not cell.epochs for seed in seeds or [cell.seed]}
    return cells + sorted(untrained, key=lambda cell: cell.seed)


def read_search(folder: Path) -> dict[str, Any]:
    """Read what a search has tried so far, see `Proposed`; empty where there is none.

    Raises:
        RegbenchError: If it is not what was written.
    """
    path = folder / SEARCH
    return read_signed(path, "remove it; the same command writes it again") if path.exists() else {}


def _cells(folder: Path) -> list[Cell]:
    return [load_cell(folder / name / "config.yaml") for name in _compared(folder)]


def _compared(folder: Path) -> list[str]:
    remedy = "remove it; the same `regbench tune` command writes it again"
    return read_json(folder / "tune.json", list[Name], remedy)


def grouped(cells: Iterable[Cell], short: Mapping[str, int]) -> dict[str, dict[str, list[Cell]]]:
    """Group cells: name of method and setting -> configuration's id -> its cells (seeds).

    A setting is all that is not tuned: not the numbers of the method and of the optimizer, nor the probe's rates. A
    cell of `short` (see `Proposed`) is in the setting of the cells that it stands for.
    """
    groups: dict[str, dict[str, dict[str, list[Cell]]]] = {}
    for cell in cells:
        if not cell.epochs:  # an untrained network has nothing to tune
            continue
        data = cell.plain()
        del data["method"], data["seed"]
        data["optimizer"] = data["optimizer"]["name"]
        data["evaluation"].get("probe", {}).pop("learning_rates", None)
        if cell.id in short:
            data["epochs"] = short[cell.id]
        for name in ("while_training", "every_epochs"):
            data["evaluation"].pop(name, None)
        setting = json.dumps(data, sort_keys=True)
        configurations = groups.setdefault(cell.label, {}).setdefault(setting, {})
        configurations.setdefault(replace(cell, seed=0).id, []).append(cell)
    named = {}
    for label, settings in groups.items():
        for number, group in enumerate(settings.values()):
            q = next(iter(group.values()))[0].embedding_dim
            named[label if len(settings) == 1 else f"{label} (q={q}, setting {number + 1})"] = group
    return named


def _choice(
    folder: Path, configurations: Mapping[str, Sequence[Cell]], short: Mapping[str, int], settings: Mapping[str, str]
) -> ChosenConfiguration | None:
    """Rank a method's configurations; None if all diverged.

    Args:
        folder: Of the tuning.
        configurations: Those of the method in one setting, by id.
        short: Of a search, see `Proposed`.
        settings: Of a search: what each cell stands for, by its id, whatever the length of its training.
    """
    tuned = {name: _tuned(cells[0]) for name, cells in configurations.items()}
    full = [tuned[name] for name, cells in configurations.items() if cells[0].id not in short]
    told = [key for key in tuned[next(iter(tuned))] if _is_told(key, [values.get(key) for values in full])]
    ranking: list[RankedConfiguration] = []
    images = 0
    for configuration, cells in configurations.items():
        records = [_record(folder, cell) for cell in cells]
        images += sum(map(_images, records))
        scores = [selection_score(record) for record in records]
        known = [score for score in scores if score is not None]
        # A configuration that diverges with any seed is not one to recommend.
        whole = len(known) == len(scores)
        ranking.append(
            RankedConfiguration(
                cell_id=cells[0].id,
                configuration=configuration,
                epochs=cells[0].epochs,
                value=sum(known) / len(known) if whole else None,
                status="diverged" if not whole else "stopped" if cells[0].id in short else "tuned",
                hyperparameters={key: tuned[configuration].get(key) for key in told},
            )
        )
    ranking.sort(key=lambda entry: (-entry.epochs, entry.value is None, -(entry.value or 0.0)))
    longest: dict[str, RankedConfiguration] = {}
    for entry in ranking:  # a search trains some for several lengths
        longest.setdefault(settings.get(entry.cell_id, entry.cell_id), entry)
    ranking = list(longest.values())
    if ranking[0].status != "tuned":
        return None
    cell = next(cells[0] for cells in configurations.values() if cells[0].id == ranking[0].cell_id)
    return ChosenConfiguration(
        label=cell.label,
        method=cell.plain()["method"]["name"],
        setting={
            "dataset": cell.dataset.name,
            "backbone": cell.network.architecture,
            "embedding_dim": cell.embedding_dim,
            "batch_size": cell.batch_size,
            "epochs": cell.epochs,
            "optimizer": cell.plain()["optimizer"]["name"],
        },
        chosen=ranking[0].cell_id,
        configuration=ranking[0].configuration,
        ranking=tuple(ranking),
        edges=_edges(cell, ranking),
        images=images,
    )


def _tuned(cell: Cell) -> dict[str, Any]:
    """Return the values of a cell that a tuning may vary, by their full names."""
    data = cell.plain()
    found = {f"{group}.{key}": value for group in ("method", "optimizer") for key, value in data[group].items()}
    del found["method.name"], found["optimizer.name"]
    if (probe := data["evaluation"].get("probe")) is not None:
        found["evaluation.probe.learning_rates"] = probe["learning_rates"]
    return found


def _is_told(key: str, values: Sequence[Any]) -> bool:
    """Tell whether a ranking names a value: the method's and the learning rate always, others where they vary."""
    named = key.startswith("method.") or key == "optimizer.base_lr"
    return named or any(value != values[0] for value in values)


def _edges(chosen: Cell, ranking: Sequence[RankedConfiguration]) -> dict[str, str]:
    """Find the hyperparameters whose chosen value is the smallest or largest that was tried, see `ChosenConfiguration`.

    A value beyond which there is none, such as a weight of 0, is no edge.
    """
    found = {}
    for key, best in ranking[0].hyperparameters.items():
        values = {entry.hyperparameters[key] for entry in ranking if type(entry.hyperparameters[key]) in (int, float)}
        space = (chosen.method.space or {}).get(key.removeprefix("method."))
        least, most = (space.least, space.most) if isinstance(space, Range) else (-math.inf, math.inf)
        if len(values) > 1 and best in (min(values), max(values)) and least < best < most:
            found[key] = "smallest" if best == min(values) else "largest"
    return found


def _images(record: Record) -> int:
    """Count the images that a training saw."""
    steps = record.checkpoint.step if record.checkpoint else (record.diverged or {}).get("step", 0)
    return int(steps) * int(record.cell["batch_size"])


def _record(folder: Path, cell: Cell) -> Record:
    if (record := read_tuned(folder / cell.id)) is None:
        raise RegbenchError(
            f"{folder / cell.id} ({cell.label}) has no score to choose by yet; bring it to one by the command that "
            f"began it, or, if this tuning is to do without it, remove {folder / 'tune.json'} and tune again"
        )
    return record


def selection_score(record: Record) -> float | None:
    """Return the score that hyperparameters are chosen by, in per cent; None if the run diverged."""
    evaluation = record.cell["evaluation"]
    return record.score(selection_name(evaluation["select_by"]), evaluation["select_on"])
