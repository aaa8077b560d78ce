"""Choose hyperparameters: rank what was tried by its score on the tuning split, and write the best
down, once.

A configuration is a cell without its seed. Configurations of one method are compared in one
setting, which is all that a tuning does not vary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from tabulate import tabulate

from regbench import wording
from regbench.benchmark.evaluate.base import selection_name
from regbench.benchmark.rundir.record import Record, read_tuned
from regbench.benchmark.rundir.tuning_choice import (
    APART,
    TUNING_CHOICE,
    ChosenConfiguration,
    RankedConfiguration,
    TuningChoice,
    read_choice,
    read_search,
)
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.identity import configuration_id
from regbench.benchmark.settings.stored import load_cell
from regbench.errors import RegbenchError
from regbench.files import Name, read_json, write_new
from regbench.spaces import Range

COMPARED = "tune.json"
"""The file that lists the cells of a tuning.

It closes the test split for all cells of the folder.
"""


def compared_ids(folder: Path) -> list[str]:
    """Read the ids of the cells that the tuning in a sweep's folder compares."""
    remedy = "remove it; the same `regbench tune` command writes it again"
    return read_json(folder / COMPARED, list[Name], remedy)


def grouped(
    cells: Iterable[Cell], full_epochs: Mapping[str, int]
) -> dict[str, dict[str, list[Cell]]]:
    """Group cells: name of method and setting -> configuration's id -> its cells (seeds).

    Args:
        cells: All that are compared. Baselines have nothing to tune and are left out.
        full_epochs: Cells that a search trains for fewer epochs: id -> epochs of the setting that
            they stand for.
    """
    groups: dict[str, dict[str, dict[str, list[Cell]]]] = {}
    for cell in cells:
        if cell.is_method:
            setting = _setting(cell, full_epochs.get(cell.id, cell.epochs))
            configurations = groups.setdefault(cell.label, {}).setdefault(setting, {})
            configurations.setdefault(configuration_id(cell.plain()), []).append(cell)
    named = {}
    for label, settings in groups.items():
        for number, configurations in enumerate(settings.values(), 1):
            name = label
            if len(settings) > 1:
                q = next(iter(configurations.values()))[0].embedding_dim
                name = f"{label} (q={q}, setting {number})"
            named[name] = configurations
    return named


def _setting(cell: Cell, epochs: int) -> str:
    """Return all that a tuning does not vary: all but the numbers of method and optimizer, and the
    probe's rates.
    """
    data = cell.plain()
    del data["method"], data["seed"]
    data["optimizer"] = data["optimizer"]["name"]
    data["epochs"] = epochs
    evaluation = data["evaluation"]
    # The probe's rate is chosen on the tuning split within each run.
    evaluation.get("probe", {}).pop("learning_rates", None)
    # Short trainings of a search are not evaluated while they train.
    for name in ("while_training", "every_epochs"):
        evaluation.pop(name, None)
    return json.dumps(data, sort_keys=True)


def selection_score(record: Record) -> float | None:
    """Return the score that hyperparameters are chosen by, in per cent; None if the run
    diverged.
    """
    evaluation = record.cell["evaluation"]
    return record.score(selection_name(evaluation["select_by"]), evaluation["select_on"])


def choose(folder: Path, repeats: int = 1) -> TuningChoice:
    """Choose the best configuration of each method in each setting, once: a later call reads
    `tuning_choice.json`.

    A tuning with several `repeats` chooses in each of them.

    Raises:
        RegbenchError: If a cell has not ended, or all diverged.
    """
    choice = read_choice(folder)
    if choice is not None:
        return choice
    search = read_search(folder)
    names = compared_ids(folder)
    if "tried" in search:
        # Cells of a row that the file no longer has are not part of the search.
        tried = {entry["cell_id"] for entry in search["tried"]}
        names = [name for name in names if name in tried]
    cells = []
    for name in names:
        path = folder / name / "config.yaml"
        if not path.exists():  # it never began
            _refuse_missing(folder, folder / name)
        cell = load_cell(path)
        # It may have begun with more repeats; without repeats seeds are any.
        if repeats == 1 or cell.seed < repeats * APART:
            cells.append(cell)
    if not search:
        # If the grid was changed, its earlier cells count too.
        remedy = f"give all the same, or remove {folder / COMPARED} to forget earlier ones"
        refuse_unequal(cells, remedy)
    choices = []
    for number in range(repeats):
        # A repeat adds a multiple of `APART` to the seeds of its search, see `seed_in`.
        own = [cell for cell in cells if repeats == 1 or cell.seed // APART == number]
        for configurations in grouped(own, search.get("short", {})).values():
            chosen = _choose_one(folder, configurations, search)
            if chosen is not None and repeats > 1:
                chosen = replace(chosen, setting=chosen.setting | {"search": number})
            if chosen is not None:
                choices.append(chosen)
    if not choices:
        raise RegbenchError(
            f"every cell of {folder} that was trained to the end diverged: there is nothing to "
            "choose from"
        )
    made = TuningChoice(
        selected_on=cells[0].evaluation.select_on,
        score=selection_name(cells[0].evaluation.select_by),
        budget=max(len(entry.ranking) for entry in choices),
        seeds=tuple(sorted({cell.seed for cell in cells})),
        choices=tuple(choices),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    # The choice opens the test split, so whoever comes second must not replace it.
    write_new(folder / TUNING_CHOICE, made.text())
    # Another process may have been quicker: the choice is the one that is on record.
    choice = read_choice(folder)
    if choice is None:
        raise RegbenchError(f"{folder / TUNING_CHOICE} is there and leads to no file; remove it")
    return choice


def _choose_one(
    folder: Path, configurations: Mapping[str, Sequence[Cell]], search: Mapping[str, Any]
) -> ChosenConfiguration | None:
    """Choose a method's configuration in one setting; None if all diverged."""
    records = {}
    images = 0
    for configuration, cells in configurations.items():
        records[configuration] = [_record(folder, cell) for cell in cells]
        for record in records[configuration]:
            steps = (record.diverged or {}).get("step", 0)  # it stopped early
            if record.checkpoint:
                steps = record.checkpoint.step
            images += int(steps) * int(record.cell["batch_size"])
    settings = {entry["cell_id"]: entry["settings"] for entry in search.get("tried", ())}
    # A search trains some configurations for several lengths. The score after all epochs decides;
    # earlier scores are not comparable with it.
    longest: dict[str, RankedConfiguration] = {}
    for entry in _ranked(configurations, records, search.get("short", {})):  # the longest first
        name = " ".join(settings.get(entry.cell_id, [entry.cell_id]))
        longest.setdefault(name, entry)
    ranking = list(longest.values())
    best = ranking[0]
    # A ranking has the longest trained first, and among these the diverged ones last.
    if best.status != "tuned":
        return None
    cell = configurations[best.configuration][0]
    plain = cell.plain()
    searched = {}
    if "trials_per_hyperparameter" in search:
        searched = {"searched": len(settings[best.cell_id])}
    return ChosenConfiguration(
        label=cell.label,
        method=plain["method"]["name"],
        setting={
            "dataset": cell.dataset.name,
            "backbone": cell.network.architecture,
            "embedding_dim": cell.embedding_dim,
            "batch_size": cell.batch_size,
            "epochs": cell.epochs,
            "optimizer": plain["optimizer"]["name"],
            **searched,
        },
        chosen=best.cell_id,
        configuration=best.configuration,
        ranking=tuple(ranking),
        edges=_edges(cell, ranking),
        images=images,
    )


def _record(folder: Path, cell: Cell) -> Record:
    record = read_tuned(folder / cell.id)
    if record is None:
        _refuse_missing(folder, f"{folder / cell.id} ({cell.label})")
    return record


def _refuse_missing(folder: Path, cell: Path | str) -> NoReturn:
    raise RegbenchError(
        f"{cell} has no score to choose by yet; bring it to one by the command that began it, or, "
        f"if this tuning is to do without it, remove {folder / COMPARED} and tune again"
    )


def refuse_unequal(cells: Sequence[Cell], remedy: str) -> None:
    """Refuse a grid that gives one method more configurations to choose from than another."""
    budgets = {name: len(configurations) for name, configurations in grouped(cells, {}).items()}
    if len(set(budgets.values())) > 1:
        listed = ", ".join(f"{name} {number}" for name, number in budgets.items())
        raise RegbenchError(
            "the methods have different numbers of configurations to choose from, which is not a "
            f"fair comparison: {listed}; {remedy}"
        )


def _ranked(
    configurations: Mapping[str, Sequence[Cell]],
    records: Mapping[str, Sequence[Record]],
    short: Mapping[str, int],
) -> list[RankedConfiguration]:
    """Rank configurations: the longest trained first, then by their mean score over the seeds."""
    tunable = {}
    full_length = []
    for configuration, cells in configurations.items():
        tunable[configuration] = _tunable(cells[0])
        # A short training also has a shorter warm-up, which nobody chose.
        if cells[0].id not in short:
            full_length.append(tunable[configuration])
    shown = []
    for key in next(iter(tunable.values())):
        varies = any(each.get(key) != full_length[0].get(key) for each in full_length)
        if varies or key.startswith("method.") or key == "optimizer.base_lr":
            shown.append(key)
    ranking = []
    for configuration, cells in configurations.items():
        first = cells[0]
        scores = map(selection_score, records[configuration])
        known = [score for score in scores if score is not None]
        value, status = None, "diverged"
        # A configuration that diverges with any seed is not recommended.
        if len(known) == len(cells):
            value = sum(known) / len(known)
            status = "stopped" if first.id in short else "tuned"
        ranking.append(
            RankedConfiguration(
                cell_id=first.id,
                configuration=configuration,
                epochs=first.epochs,
                value=value,
                status=status,
                hyperparameters={key: tunable[configuration].get(key) for key in shown},
            )
        )
    # The longest trained come first; among these, the best come first and the diverged last.
    return sorted(ranking, key=lambda each: (-each.epochs, each.value is None, -(each.value or 0)))


def _tunable(cell: Cell) -> dict[str, Any]:
    """Return the values of a cell that a tuning may vary, by their full names."""
    data = cell.plain()
    found: dict[str, Any] = {}
    for group in ("method", "optimizer"):
        found |= {f"{group}.{key}": value for key, value in data[group].items() if key != "name"}
    probe = data["evaluation"].get("probe")
    if probe is not None:
        found["evaluation.probe.learning_rates"] = probe["learning_rates"]
    return found


def _edges(chosen: Cell, ranking: Sequence[RankedConfiguration]) -> dict[str, str]:
    """Find the hyperparameters whose chosen value is the smallest or largest that was tried.

    A value at a limit of the hyperparameter, such as a weight of 0, is no edge.
    """
    found = {}
    for key, best in ranking[0].hyperparameters.items():
        tried = [entry.hyperparameters[key] for entry in ranking]
        # isinstance takes a switch (bool) for a number
        numbers = {value for value in tried if type(value) in (int, float)}
        if len(numbers) < 2 or best not in (min(numbers), max(numbers)):
            continue
        group, _, name = key.partition(".")
        plugin = getattr(chosen, group)
        kind: Any = type(plugin)
        bounds = wording.bounds(wording.hints(kind)[name])
        least, most = bounds.get("ge", -math.inf), bounds.get("le", math.inf)
        stated = (plugin.space or {}).get(name)
        if isinstance(stated, Range):
            least, most = max(least, stated.least), min(most, stated.most)
        if least < best < most:
            found[key] = "smallest" if best == min(numbers) else "largest"
    return found


def choice_table(choice: TuningChoice) -> str:
    """Lay out a choice as a table: what was chosen for each method, and the value of the
    runner-up.
    """
    first, *settings = (entry.setting for entry in choice.choices)
    varying = []
    for key, value in first.items():
        differs = any(setting.get(key) != value for setting in settings)
        # q is always shown, and other settings where the methods differ in them.
        if differs and key != "embedding_dim":
            varying.append(key)
    score = f"{choice.score} (%), {choice.selected_on}"
    headers = ["method", "q", *(key.replace("_", " ") for key in varying)]
    headers += [score, "runner-up", "tried", "images", "chosen", "at the edge of what was tried"]
    rows = []
    for entry in choice.choices:
        best, *others = entry.ranking
        # A trial that a search stopped early, or that diverged, is no runner-up.
        runner_up = others[0].value if others and others[0].status == "tuned" else None
        chosen = []
        for key, value in best.hyperparameters.items():
            if any(other.hyperparameters.get(key) != value for other in others):
                chosen.append(f"{key.removeprefix('method.')}={value}")
        row = [entry.label]
        row += [entry.setting.get(key, "") for key in ("embedding_dim", *varying)]
        row += ["–" if value is None else f"{value:.2f}" for value in (best.value, runner_up)]
        edges = ", ".join(
            f"{side} {key.removeprefix('method.')}" for key, side in entry.edges.items()
        )
        rows.append([*row, len(entry.ranking), f"{entry.images:,}", ", ".join(chosen), edges])
    table = tabulate(rows, headers, disable_numparse=True)
    budget = f"from at most {choice.budget} configurations a method"
    return f"{table}\n\nchosen on the {choice.selected_on} split {budget}"
