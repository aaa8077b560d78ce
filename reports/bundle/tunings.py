"""Whether the tunings of a bundle chose as its records say: the best of equally many, before the
test split was opened.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from regbench.benchmark.rundir.record import Record
from regbench.benchmark.rundir.tuning_choice import (
    ChosenConfiguration,
    RankedConfiguration,
    TuningChoice,
)
from regbench.benchmark.settings.identity import configuration_id

# The clocks of two machines of a cluster may differ by this much.
_CLOCKS = timedelta(minutes=5)


def of_choice(
    choice: TuningChoice, configurations: Mapping[str, Sequence[Record]]
) -> Iterator[str]:
    """Compare what a tuning chose with the records of what it tried, by configuration.

    The choice has to be the best, by values that are those of the records.
    """
    for entry in choice.choices:
        label = entry.label
        tuned = [ranked for ranked in entry.ranking if ranked.status == "tuned"]
        # A configuration with a diverged seed has no value.
        whole = [ranked for ranked in tuned if ranked.value is not None]
        best = max(whole, key=lambda ranked: ranked.value or 0.0, default=None)
        if best is None:
            yield f"nothing was tried to the end for {label}"
            continue
        first = entry.ranking[0]
        is_first = (entry.chosen, entry.configuration) == (first.cell_id, first.configuration)
        if not is_first or first.value != best.value:
            yield f"{entry.chosen} was chosen for {label}, though {best.cell_id} scored higher"
        seen: set[str] = set()
        for ranked in entry.ranking:
            if ranked.configuration in seen:
                yield f"{ranked.cell_id} is ranked twice for {label}"
            seen.add(ranked.configuration)
            runs = configurations[ranked.configuration]
            # Final runs may have further seeds, which the ranking has not seen.
            own = [run for run in runs if run.seed in choice.seeds and entry.owns(run.seed)]
            yield from _of_place(choice, entry, ranked, own)
    yield from _of_budgets(choice)


def of_final_run(
    record: Record, choices: Mapping[str, TuningChoice], tuned_sweeps: set[str]
) -> Iterator[str]:
    """Check that a cell was chosen by its tuning before its test split was opened.

    Args:
        record: A final record.
        choices: The choices of the bundle, by their SHA-256.
        tuned_sweeps: Sweeps with cells that tunings have tried.
    """
    stated = record.choice.get("hyperparameters", {})
    if stated.get("sha256") is None:
        if stated.get("budget") is not None or stated.get("selected_on") == "tuning":
            yield "its hyperparameters were chosen, and it names no choice"
        elif record.sweep in tuned_sweeps:
            yield (
                f"it has scores of the test split, and the tuning {record.sweep} has not chosen it"
            )
        return
    chosen = choices.get(stated["sha256"])
    if chosen is None:
        yield (
            "its hyperparameters were chosen by a tuning that is not in the bundle; submit them "
            "together"
        )
        return
    if chosen.budget != stated.get("budget") or chosen.score != stated.get("score"):
        claimed = f"it claims a choice among {stated.get('budget')} by {stated.get('score')}"
        yield f"{claimed}, its tuning chose among {chosen.budget} by {chosen.score}"
    if chosen.find(configuration_id(record.cell), record.seed) is None:
        yield "its tuning has chosen other hyperparameters"
    starts = [attempt.started for attempt in record.attempts if attempt.started]
    began = max(starts, default="")
    # The last attempt is the one that opened the test split: earlier ones may have begun before the
    # choice.
    if not _before(chosen.created, began):
        yield (
            f"its last attempt began at {began or 'no time'}, before its tuning chose at "
            f"{chosen.created}"
        )


def _of_place(
    choice: TuningChoice,
    entry: ChosenConfiguration,
    ranked: RankedConfiguration,
    records: Sequence[Record],
) -> Iterator[str]:
    """Compare a place of a ranking with the records of its configuration."""
    name = f"{ranked.cell_id}, ranked for {entry.label}"
    if not records:
        yield f"{name}, has no record in the bundle"
        return
    label, epochs = records[0].label, records[0].cell["epochs"]
    if label != entry.label:
        yield f"{name}, is of {label}"
    if epochs != ranked.epochs:
        yield f"{name} after {ranked.epochs} epochs, trained for {epochs}"
    status = "stopped" if epochs < entry.setting["epochs"] else "tuned"
    if ranked.value is None:
        status = "diverged"
    if ranked.status != status:
        yield f"{name} as {ranked.status}, is {status} after {epochs} epochs"
    # A final record, which replaces that of the tuning, is younger than the choice.
    tuned = [record for record in records if record.status == "tuned"]
    if not all(_before(record.finished, choice.created) for record in tuned):
        yield f"{name}, was finished after the choice"
    scores = [record.score(choice.score, choice.selected_on) for record in records]
    known = [score for score in scores if score is not None]
    # A configuration with a diverged seed has no value.
    value = sum(known) / len(known) if len(known) == len(scores) else None
    # The last bits of a mean depend on the order of the sum.
    close = value is not None and ranked.value is not None and math.isclose(value, ranked.value)
    if not close and value != ranked.value:
        yield f"{name} with {ranked.value}, has {value} in its records"


def _of_budgets(choice: TuningChoice) -> Iterator[str]:
    """Check that the methods of each setting had equal budgets, and that the claimed budget is
    right.

    A grid gives all methods equally many configurations. A search, which stops some early, plans
    equally many epochs for all, whether a run diverged or not.
    """
    most = max((len(entry.ranking) for entry in choice.choices), default=0)
    if choice.budget != most:
        yield f"it claims a budget of {choice.budget}, and its longest ranking has {most}"
    settings: dict[str, list[ChosenConfiguration]] = defaultdict(list)
    for entry in choice.choices:
        settings[str(sorted(entry.setting.items()))].append(entry)
    for entries in settings.values():
        statuses: set[str] = set()
        for entry in entries:
            statuses.update(ranked.status for ranked in entry.ranking)
        what, counts = "configurations", {entry.label: len(entry.ranking) for entry in entries}
        if "stopped" in statuses:
            what = "epochs"
            for entry in entries:
                counts[entry.label] = sum(ranked.epochs for ranked in entry.ranking)
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{label} {count:,}" for label, count in counts.items())
            yield f"the methods had unequal budgets, in {what}: {listed}"


def _before(first: str, second: str) -> bool:
    """Return True if a time is not later than another, as far as clocks agree.

    False if either is no time.
    """
    try:
        return datetime.fromisoformat(first) <= datetime.fromisoformat(second) + _CLOCKS
    except (ArithmeticError, TypeError, ValueError):
        return False
