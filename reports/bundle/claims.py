"""Claims of the records of a bundle, compared with each other and with themselves.

Whoever changes a number can compute its digest anew. Then the number does not fit the rest: the id
of the settings, the history of the training, the tuning that chose. That is found here. A forgery
that fits throughout is found only by computing a cell again (`regbench verify --recompute`).
"""

from __future__ import annotations

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.record_parts import finite_numbers
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.identity import configuration_id
from regbench.errors import RegbenchError
from regbench.files import parse_json
from regbench.reports.bundle.bundle import Bundle
from regbench.reports.bundle.tunings import of_choice, of_final_run
from regbench.reports.find.check import image_misfits
from regbench.reports.find.judging import Misfit
from regbench.text import brief, printable

# Relative difference of a cost from what the history gives: numbers of a history have six digits.
_ROUNDED = 1e-5

_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def claim_misfits(bundle: Bundle) -> list[str]:
    """List what does not fit in a bundle, one line each; empty if all fits.

    This is the one rule by which bundles are submitted, verified and shown on a leaderboard.

    It checks that a record's settings are settings of this version, and that its label, seed,
    method and split of selection agree with them; that its times are in UTC and its command is one
    of regbench alone; that no scores of the test split came before a choice or without one; that
    each choice is the best of its candidates and of its ranking, that the ranking's values are
    those of records in the bundle, and that all methods of a tuning had the same budget; that a
    score has the same unit everywhere, no record has it twice, and none that diverged has one; that
    no top-1 is above its top-5; that no seed lacks a test score that others of its configuration
    have; that costs and steps are those of the histories; that no run stands for two cells; that
    all records of a data set saw the same images.
    """
    configurations: dict[str, list[Record]] = defaultdict(list)
    for record in bundle.records:
        configurations[configuration_id(record.cell)].append(record)
    tuned_sweeps: set[str] = set()
    for choice in bundle.choices.values():
        for entry in choice.choices:
            for ranked in entry.ranking:
                tuned_sweeps.update(each.sweep for each in configurations[ranked.configuration])
    rules: list[tuple[Path, Iterator[str]]] = []
    for record in bundle.records:
        for rule in (_of_settings, _of_attempts, _of_splits, _of_scores):
            rules.append((record.path, rule(record)))
        rules.append((record.path, _of_history(record, bundle.histories)))
    for choice in bundle.choices.values():
        rules.append((choice.path, of_choice(choice, configurations)))
    for record in bundle.records:
        if record.status == "done" and not record.is_reference and "external" not in record.cell:
            rules.append((record.path, of_final_run(record, bundle.choices, tuned_sweeps)))
    misfits = [*unit_misfits(bundle.records), *_of_shared_files(bundle.records)]
    for records in configurations.values():
        misfits += _of_seeds(records, bundle.later)
    for path, reasons in rules:
        try:
            misfits += [Misfit(path, reason) for reason in reasons]
        # A record fits its schema, but the cell and the choices in it are plain data of a stranger.
        except _MALFORMED as error:
            why = f"holds what no run writes ({type(error).__name__}: {error})"
            misfits.append(Misfit(path, why))
    return [*map(str, misfits), *image_misfits(bundle.records)]


def _of_attempts(record: Record) -> Iterator[str]:
    """Check the times of a record's attempts, and its command."""
    for attempt in record.attempts:
        for time in (attempt.started, attempt.finished):
            if time and not _is_time(time):
                yield f"{brief(time)} is not a time as runs write it"
    if not record.attempts or not record.attempts[-1].finished:
        yield "its last attempt ended at no time"
    if not _is_command(record.command):  # readers of the leaderboard copy it into a shell
        yield f"{brief(record.command)!r} is no command of regbench alone"


def _of_splits(record: Record) -> Iterator[str]:
    """Check which splits chose, and that what they chose is the best of its candidates."""
    select_on = record.cell.get("evaluation", {}).get("select_on")
    chosen = record.choice.get("hyperparameters")
    if record.status == "done" and chosen is None:
        yield "nothing says how its hyperparameters were chosen"
    if chosen is not None and (chosen.get("selected_on") == "test") != (select_on == "test"):
        yield (
            f"its settings choose on the {select_on} split, its choice says "
            f"{chosen.get('selected_on')!r}"
        )
    is_closed = record.status == "tuned" and select_on != "test"
    if is_closed and any(score.split == "test" for score in record.scores):
        yield "scores of the test split, before its tuning has chosen"
    for what, choice in record.choice.items():
        best = _better_candidate(choice)
        if best is not None:
            yield (
                f"its {what.replace('_', ' ')} is {choice['chosen']}, though {best} scored higher"
            )


def _of_scores(record: Record) -> Iterator[str]:
    """Compare the scores of a record with each other."""
    if record.status == "diverged" and record.scores:
        yield "it diverged, and has scores"
    values = {(score.name, score.split): score.value for score in record.scores}
    if len(values) < len(record.scores):
        yield "it has a score twice"
    for (name, split), value in values.items():
        stem = name.removesuffix("_top1")
        # A first guess that is right is right among five too, so a higher top-1 was made up.
        top5 = values.get((f"{stem}_top5", split))
        if stem != name and top5 is not None and value > top5:
            yield (
                f"{brief(name)} on {brief(split)} is {value:g} %, more than its top-5 of {top5:g} %"
            )


def _of_settings(record: Record) -> Iterator[str]:
    """Compare a record's settings with this version's, and its seed, method and label with them."""
    seed, method = record.cell.get("seed"), record.cell.get("method", {}).get("name")
    if record.seed != seed:
        yield f"its seed is {record.seed!r}, that of its settings is {seed!r}"
    if record.method != method:
        yield f"its method is {brief(record.method)!r}, that of its settings is {method!r}"
    if "external" in record.cell:
        is_trained = record.cell["epochs"] is not None or record.metrics is not None
        if record.status != "done" or is_trained or record.is_reference:
            yield "its weights are published ones, which are evaluated alone"
        return
    try:
        label = Cell.stored(record.cell).label
    except RegbenchError as error:
        yield f"its settings are none of a run of this version: {error}"
        return
    if label != record.label:
        yield f"it is called {brief(record.label)!r}, and is {label!r}"


def _is_time(text: str) -> bool:
    """Return True if a time is in UTC and spelled as runs spell it, so that such texts sort as
    their times do.
    """
    try:
        as_spelled = datetime.fromisoformat(text).isoformat(timespec="seconds")
    except ValueError:
        return False
    return text == as_spelled and text.endswith("+00:00")


def _is_command(text: str) -> bool:
    """Return True if a shell would read a command as plain words, the first of them regbench."""
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    # Spelled in another way, it might hold signs that a shell interprets or a reader cannot see.
    return words[:1] == ["regbench"] and shlex.join(words) == text == printable(text)


def _better_candidate(choice: Mapping[str, Any]) -> str | None:
    """Name the candidate that should have been chosen; None if the best was, or no single
    one was chosen.
    """
    candidates, chosen = choice.get("candidates"), choice.get("chosen")
    if not isinstance(candidates, dict) or not isinstance(chosen, int | float | str):
        return None
    scores = finite_numbers(candidates)
    if not scores:
        return None
    best = max(scores, key=lambda name: scores[name])
    # Candidates are keys of JSON, and so texts.
    if not isinstance(chosen, str):
        chosen = f"{chosen:g}"
    return best if scores.get(chosen, -math.inf) < scores[best] else None


def _of_history(record: Record, histories: Mapping[str, bytes]) -> Iterator[str]:
    """Compare a record's costs with the history of its training."""
    planned = record.cell["epochs"]
    if record.metrics is None:
        if record.status != "diverged" and planned:
            yield "it has trained and names no history"
        return
    rows = [parse_json(line) for line in histories[record.cell_id].splitlines()]
    epochs = [row["epoch"] for row in rows]
    train_s = math.fsum(row["epoch_s"] for row in rows)
    images = [row.get("images") for row in rows]
    if record.status == "diverged":  # it ended early
        return
    if epochs != list(range(1, planned + 1)):
        yield (
            f"its history has {len(epochs)} epochs, which are not 1 to {planned} as in its settings"
        )
    stated_s = record.cost.train_s
    if stated_s is None or not math.isclose(train_s, stated_s, rel_tol=_ROUNDED):
        yield f"its training took {stated_s} s, the epochs of its history {train_s:g} s"
    if record.checkpoint is not None and None not in images:
        steps, size = record.checkpoint.step, record.cell["batch_size"]
        if sum(images) != steps * size:
            yield f"its {steps} steps of {size} images are not the {sum(images)} of its history"


def _of_seeds(records: Sequence[Record], later: Collection[tuple[str, ...]]) -> Iterator[Misfit]:
    """Find final records that lack a test score which other seeds of their configuration have: low
    ones may have been left out.
    """
    measured: dict[Record, set[str]] = {}
    for record in records:
        if record.status == "done":
            names = {score.name for score in record.scores if score.split == "test"}
            measured[record] = {
                name for name in names if (record.cell_id, name, "test") not in later
            }
    everything = set[str]().union(*measured.values())
    for record, names in measured.items():
        lacking = sorted(everything - names)
        if lacking:
            name = brief(lacking[0])
            yield Misfit(record.path, f"has no {name} on test, as other seeds of its settings have")


def unit_misfits(records: Sequence[Record]) -> Iterator[Misfit]:
    """Find scores that have another unit or direction than elsewhere: without the right ones,
    nothing bounds their values, or their order turns round.
    """

    def unit(score: Score) -> str:
        return repr(brief(score.unit)) + ", less is better" * (not score.higher_is_better)

    units: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        for score in record.scores:
            units[score.name][unit(score)] += 1
    # No list of units, because a plug-in may bring scores of its own: the bundle's records vote.
    usual = {name: counted.most_common(1)[0][0] for name, counted in units.items()}
    for record in records:
        for score in record.scores:
            if unit(score) != usual[score.name]:
                found = f"{brief(score.name)} has the unit {unit(score)}"
                yield Misfit(record.path, f"{found}, in other records {usual[score.name]}")


def _of_shared_files(records: Sequence[Record]) -> Iterator[Misfit]:
    """Find cells that are one run under two names: the histories of two runs differ, if only in
    their times.
    """
    first: dict[str, Record] = {}
    for record in records:
        for what, named in (
            ("its history is that", record.metrics),
            ("its weights are those", record.checkpoint),
        ):
            if named is None:
                continue
            other = first.setdefault(named.sha256, record)
            if other is not record:
                text = f"{what} of cell {other.cell_id}: one run under two names"
                yield Misfit(record.path, text)
