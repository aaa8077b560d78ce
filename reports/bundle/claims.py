"""What the records of a bundle claim, held against each other and against themselves.

Whoever changes a number can compute its digest anew. What is found here is what does not fit the rest then: the id of
the settings, the history of the training, the tuning that chose. A forgery that fits throughout is found only by
computing a cell again (`regbench verify --recompute`).
"""

from __future__ import annotations

import hashlib
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from regbench.benchmark.rundir.record import Record
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE, ChosenConfiguration, TuningChoice
from regbench.benchmark.settings.cell import Cell
from regbench.errors import RegbenchError
from regbench.files import cell_id, parse_json
from regbench.reports.bundle.bundle import Bundle
from regbench.reports.find.check import image_misfits
from regbench.reports.find.judging import Misfit, id_misfits
from regbench.text import printable

_CLOCKS = timedelta(minutes=5)  # that the clocks of two machines may differ by
_CLOSE = 1e-9  # relative, of numbers that are computed from each other
_ROUNDED = 1e-5  # relative, of numbers that are computed from those of a history, which has six digits


def claim_misfits(bundle: Bundle) -> list[str]:
    """List what does not fit of a bundle, a line each; nothing where all fits.

    This is the one rule by which bundles are submitted, verified and shown on a leaderboard.

    Looked at are: that a record's settings are settings of this version; that its cell id, label, seed, method and
    split of selection are theirs; that its times are in UTC and its command is one of regbench alone; that no scores of
    the test split came before a choice or without one; that each choice is the best of its candidates and of its
    ranking, that the ranking's values are those of records in the bundle, and that all methods of a tuning had the same
    budget; that a score has the same unit everywhere, and no record has it twice; that costs and steps are those of the
    histories; that no run stands for two cells; that all records of a data set saw the same images.
    """
    misfits: list[Misfit] = []
    for record in bundle.records:
        misfits += _caught(_own_misfits(record), record.path)
        misfits += _caught(_history_misfits(record, bundle.histories), record.path)
    misfits += _unit_misfits(bundle.records)
    misfits += _shared_files(bundle.records)
    misfits += _caught(_choice_misfits(bundle), Path(TUNING_CHOICE))
    return [*map(str, misfits), *image_misfits(bundle.records)]


def _caught(misfits: Iterator[Misfit], path: Path) -> Iterator[Misfit]:
    """Yield misfits, and as the last one that something was so unlike a record that it could not be looked at."""
    try:
        yield from misfits
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        yield Misfit(path, f"holds what no run writes ({type(error).__name__}: {error})")


def _own_misfits(record: Record) -> Iterator[Misfit]:
    """Yield what a record alone tells."""
    say = partial(Misfit, record.path)
    yield from id_misfits(record)
    yield from _settings_misfits(record)
    for time in (time for attempt in record.attempts for time in (attempt.started, attempt.finished) if time):
        if not _is_time(time):
            yield say(f"{time} is not a time as runs write it")
    if not record.attempts or not record.attempts[-1].finished:  # of several runs of a cell, tables show the first
        yield say("its last attempt ended at no time")
    if not _is_command(record.command):  # which readers of the leaderboard copy
        yield say(f"{record.command!r} is no command of regbench alone")
    cell = record.cell
    for name, stated, of_cell in (
        ("seed", record.seed, cell.get("seed")),
        ("method", record.method, cell.get("method", {}).get("name")),
    ):
        if stated != of_cell:
            yield say(f"its {name} is {stated!r}, that of its settings is {of_cell!r}")
    evaluation = cell.get("evaluation", {})
    select_on = evaluation.get("select_on")
    chosen = record.choice.get("hyperparameters")
    if record.status == "done" and chosen is None:
        yield say("nothing says how its hyperparameters were chosen")
    if chosen is not None and (chosen.get("selected_on") == "test") != (select_on == "test"):
        yield say(f"its settings choose on the {select_on} split, its choice says {chosen.get('selected_on')!r}")
    if record.status == "tuned" and select_on != "test" and any(score.split == "test" for score in record.scores):
        yield say("scores of the test split, before its tuning has chosen")
    if record.status == "diverged" and record.scores:
        yield say("it diverged, and has scores")
    for what, choice in record.choice.items():
        if (best := _better_candidate(choice)) is not None:
            yield say(f"its {what.replace('_', ' ')} is {choice['chosen']}, though {best} scored higher")
    values = {(score.name, score.split): score.value for score in record.scores}
    if len(values) < len(record.scores):
        yield say("it has a score twice")
    for (name, split), value in values.items():
        top5 = values.get((f"{name.removesuffix('_top1')}_top5", split)) if name.endswith("_top1") else None
        if top5 is not None and value > top5:
            yield say(f"{name} on {split} is {value:g} %, more than its top-5 of {top5:g} %")


def _settings_misfits(record: Record) -> Iterator[Misfit]:
    """Hold a record's settings against this version's, and its label against theirs."""
    if "external" in record.cell:
        return
    try:
        label = Cell.stored(record.cell).label
    except RegbenchError as error:
        yield Misfit(record.path, f"its settings are none of a run of this version: {error}")
        return
    if label != record.label:
        yield Misfit(record.path, f"it is called {record.label!r}, and is {label!r}")


def _is_time(text: str) -> bool:
    """Tell whether a time is in UTC and spelled as runs spell it, so that texts are in the order of times."""
    try:
        return text.endswith("+00:00") and datetime.fromisoformat(text).isoformat(timespec="seconds") == text
    except ValueError:
        return False


def _is_command(text: str) -> bool:
    """Tell whether a shell would read a command as its words, of which the first is regbench."""
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    return words[:1] == ["regbench"] and shlex.join(words) == text == printable(text)


def _better_candidate(choice: Mapping[str, Any]) -> str | None:
    """Name the candidate that should have been chosen; None if the best was, or no single number was chosen."""
    candidates, chosen = choice.get("candidates"), choice.get("chosen")
    if not isinstance(candidates, dict) or not isinstance(chosen, int | float | str):
        return None
    scores = {name: value for name, value in candidates.items() if isinstance(value, int | float)}
    if not scores:
        return None
    best = max(scores, key=lambda name: scores[name])
    name = chosen if isinstance(chosen, str) else f"{chosen:g}"
    return best if scores.get(name, -math.inf) < scores[best] else None


def _history_misfits(record: Record, histories: Mapping[str, bytes]) -> Iterator[Misfit]:
    """Hold a record's costs against the history of its training."""
    say = partial(Misfit, record.path)
    if record.metrics is None:
        if record.status != "diverged" and record.cell["epochs"]:
            yield say("it has trained and names no history")
        return
    text = histories[record.cell_id]
    if hashlib.sha256(text).hexdigest() != record.metrics.sha256:
        yield say("its history is not what its SHA-256 was taken of")
        return
    rows = [parse_json(line) for line in text.splitlines()]
    epochs, train_s = [row["epoch"] for row in rows], math.fsum(row["epoch_s"] for row in rows)
    images = [row.get("images") for row in rows]
    if record.status == "diverged":
        return
    if epochs != list(range(1, record.cell["epochs"] + 1)):
        yield say(
            f"its history has {len(epochs)} epochs, which are not 1 to {record.cell['epochs']} as in its settings"
        )
    if record.cost.train_s is None or not math.isclose(train_s, record.cost.train_s, rel_tol=_ROUNDED):
        yield say(f"its training took {record.cost.train_s} s, the epochs of its history {train_s:g} s")
    saved = record.checkpoint
    if saved is not None and None not in images and sum(images) != saved.step * record.cell["batch_size"]:
        yield say(
            f"its {saved.step} steps of {record.cell['batch_size']} images are not the {sum(images)} of its history"
        )


def _unit_misfits(records: Sequence[Record]) -> Iterator[Misfit]:
    """Find scores that have another unit than elsewhere: without one nothing says within what they lie."""
    units: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        for score in record.scores:
            units[score.name][score.unit] += 1
    usual = {name: counted.most_common(1)[0][0] for name, counted in units.items()}
    for record in records:
        for score in record.scores:
            if score.unit != usual[score.name]:
                other = f"in other records {usual[score.name]!r}"
                yield Misfit(record.path, f"{score.name} has the unit {score.unit!r}, {other}")


def _shared_files(records: Sequence[Record]) -> Iterator[Misfit]:
    """Find cells that are one run under two names: times alone make the histories of two runs differ."""
    first: dict[str, Record] = {}
    for record in records:
        for what, named in (("its history is that", record.metrics), ("its weights are those", record.checkpoint)):
            if named is not None and (other := first.setdefault(named.sha256, record)) is not record:
                yield Misfit(record.path, f"{what} of cell {other.cell_id}: one run under two names")


def _choice_misfits(bundle: Bundle) -> Iterator[Misfit]:
    """Hold what tunings chose against the records of what they tried, and final records against what was chosen."""
    configurations: dict[str, list[Record]] = defaultdict(list)
    configuration_of: dict[Record, str] = {}
    for record in bundle.records if bundle.choices else ():
        configuration_of[record] = cell_id({**record.cell, "seed": 0})
        configurations[configuration_of[record]].append(record)
    tuned_sweeps: set[str] = set()
    for choice in bundle.choices.values():
        for entry in choice.choices:
            yield from _ranking_misfits(choice, entry, configurations)
            tuned_sweeps |= {r.sweep for ranked in entry.ranking for r in configurations.get(ranked.configuration, ())}
        yield from _budget_misfits(choice)
    winners = {choice.sha256: {entry.configuration for entry in choice.choices} for choice in bundle.choices.values()}
    for record in bundle.records:
        if record.status != "done" or record.untrained or "external" in record.cell:
            continue
        stated = record.choice.get("hyperparameters", {})
        say = partial(Misfit, record.path)
        if stated.get("sha256") is None:
            if stated.get("budget") is not None or stated.get("selected_on") == "tuning":
                yield say("its hyperparameters were chosen, and it names no choice")
            elif record.sweep in tuned_sweeps:
                yield say(f"it has scores of the test split, and the tuning {record.sweep} has not chosen it")
            continue
        if (chosen := bundle.choices.get(stated["sha256"])) is None:
            yield say("its hyperparameters were chosen by a tuning that is not in the bundle; submit them together")
            continue
        if chosen.budget != stated.get("budget") or chosen.score != stated.get("score"):
            claimed = f"it claims a choice among {stated.get('budget')} by {stated.get('score')}"
            yield say(f"{claimed}, its tuning chose among {chosen.budget} by {chosen.score}")
        if configuration_of[record] not in winners[chosen.sha256]:
            yield say("its tuning has chosen other hyperparameters")
        began = max((attempt.started for attempt in record.attempts if attempt.started), default="")
        if not _before(chosen.created, began):
            yield say(f"its last attempt began at {began or 'no time'}, before its tuning chose at {chosen.created}")


def _ranking_misfits(
    choice: TuningChoice, entry: ChosenConfiguration, configurations: Mapping[str, Sequence[Record]]
) -> Iterator[Misfit]:
    """Check that a tuning has chosen the best, by values that are those of its records."""
    say = partial(Misfit, Path(TUNING_CHOICE))
    whole = [ranked for ranked in entry.ranking if ranked.status == "tuned" and ranked.value is not None]
    best = max(whole, key=lambda ranked: ranked.value or 0.0, default=None)
    if best is None:
        yield say(f"nothing was tried to the end for {entry.label}")
        return
    first = entry.ranking[0]
    if (entry.chosen, entry.configuration) != (first.cell_id, first.configuration) or first.value != best.value:
        yield say(f"{entry.chosen} was chosen for {entry.label}, though {best.cell_id} scored higher")
    seen: set[str] = set()
    for ranked in entry.ranking:
        if ranked.configuration in seen:
            yield say(f"{ranked.cell_id} is ranked twice for {entry.label}")
        seen.add(ranked.configuration)
        records = [record for record in configurations.get(ranked.configuration, ()) if record.seed in choice.seeds]
        if not records:
            yield say(f"{ranked.cell_id}, ranked for {entry.label}, has no record in the bundle")
            continue
        if (label := records[0].label) != entry.label:
            yield say(f"{ranked.cell_id}, ranked for {entry.label}, is of {label}")
        if (epochs := records[0].cell["epochs"]) != ranked.epochs:
            yield say(f"{ranked.cell_id}, ranked for {entry.label} after {ranked.epochs} epochs, trained for {epochs}")
        if ranked.status != "diverged" and (ranked.status == "stopped") != (epochs < entry.setting["epochs"]):
            yield say(f"{ranked.cell_id}, ranked for {entry.label} as {ranked.status}, trained for {epochs} epochs")
        if not all(_before(record.finished, choice.created) for record in records if record.status == "tuned"):
            yield say(f"{ranked.cell_id}, ranked for {entry.label}, was finished after the choice")
        scores = [record.score(choice.score, choice.selected_on) for record in records]
        known = [score for score in scores if score is not None]
        value = sum(known) / len(known) if len(known) == len(scores) else None
        if not _same(value, ranked.value):
            yield say(f"{ranked.cell_id}, ranked for {entry.label} with {ranked.value}, has {value} in its records")


def _budget_misfits(choice: TuningChoice) -> Iterator[Misfit]:
    """Check that the methods of each setting were chosen from equally much, and from as much as is claimed.

    A grid gives all methods equally many configurations. A search, which stops some early, trains all on equally many
    images; where a run diverged it saw fewer.
    """
    settings: dict[str, list[ChosenConfiguration]] = defaultdict(list)
    for entry in choice.choices:
        settings[str(sorted(entry.setting.items()))].append(entry)
    if choice.budget != (most := max((len(entry.ranking) for entry in choice.choices), default=0)):
        yield Misfit(Path(TUNING_CHOICE), f"it claims a budget of {choice.budget}, and its longest ranking has {most}")
    for entries in settings.values():
        statuses = {ranked.status for entry in entries for ranked in entry.ranking}
        if "stopped" in statuses:
            counts = {entry.label: entry.images for entry in entries} if "diverged" not in statuses else {}
        else:
            counts = {entry.label: len(entry.ranking) for entry in entries}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{label} {count:,}" for label, count in counts.items())
            what = "images" if "stopped" in statuses else "configurations"
            yield Misfit(Path(TUNING_CHOICE), f"the methods had unequal budgets, in {what}: {listed}")


def _same(one: float | None, other: float | None) -> bool:
    return one == other if one is None or other is None else math.isclose(one, other, rel_tol=_CLOSE)


def _before(first: str, second: str) -> bool:
    """Tell whether a time is not later than another, as far as clocks agree; not where one is none."""
    try:
        return datetime.fromisoformat(first) <= datetime.fromisoformat(second) + _CLOCKS
    except (ArithmeticError, TypeError, ValueError):
        return False
