"""The good records under some folders, and the same as one table of numbers."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from regbench.benchmark.rundir.record import Record
from regbench.benchmark.rundir.run_folder import PLAN
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE, TuningChoice
from regbench.errors import RegbenchError
from regbench.reports.find.judging import Misfit, TuningChoices, judge
from regbench.reports.find.runs import Missing, find_missing, find_runs
from regbench.text import counted

_SIZES = ("dataset", "backbone", "embedding_dim", "batch_size")

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow


@dataclass(frozen=True)
class Records:
    """The records under some folders.

    Attributes:
        records: Records that can be trusted, ordered by sweep, label, seed and id.
        skipped: Records, later evaluations and choices that are left out, and the first reason for
            each.
        missing: Cells without a record, in the order of the plans.
        choices: Choices of tunings (`tuning_choice.json` of their sweeps), by path.
        remedy: The command that lists all that does not fit.
        short: Records that a search trained for fewer epochs than its choice; `records` has none of
            them.
    """

    records: tuple[Record, ...]
    skipped: tuple[Misfit, ...]
    missing: tuple[Missing, ...] = ()
    choices: dict[Path, TuningChoice] = field(default_factory=dict)
    remedy: str = ""
    short: tuple[Record, ...] = ()

    @property
    def warning(self) -> str:
        """One line on what is left out and what tells more; empty if nothing is."""
        if not self.skipped:
            return ""
        counted, first = "1 file is", str(self.skipped[0])
        if len(self.skipped) > 1:
            counted, first = f"{len(self.skipped)} files are", f"{first} and others"
        return f"{counted} left out of the report: {first}; `{self.remedy}` tells all"

    @property
    def unfinished(self) -> dict[str, int]:
        """Sweep name -> number of its cells that have no record yet."""
        return Counter(cell.sweep for cell in self.missing)


def read_records(folder: Path | Sequence[Path]) -> Records:
    """Read every record of one or more folders: a folder of sweeps, a sweep, or a single run
    directory.

    What does not fit is left out, see `judge`.

    Raises:
        RegbenchError: If a folder does not exist, or no good record is found.
    """
    folders = [folder] if isinstance(folder, Path) else list(folder)
    good: dict[tuple[str, str], Record] = {}
    short: list[Record] = []
    found, choices = find_runs(folders), TuningChoices()
    # Choices are read before the records, so that a damaged one is named even if no record refers
    # to it.
    of_sweeps = [choices.read(sweep / TUNING_CHOICE) for sweep in found.sweeps]
    skipped = [choice for choice in of_sweeps if isinstance(choice, Misfit)]
    runs = [run for run in found.runs if run.record is not None]
    for run in tqdm(runs, desc="records", unit="", leave=False, disable=None):
        judged = judge(run, choices)
        record = judged.record
        if record is None or judged.misfits:
            skipped.append(judged.misfits[0])
        elif (record.sweep, record.cell_id) in good:
            first = good[record.sweep, record.cell_id]
            if first.status == "tuned" and record.status != "tuned":
                good[record.sweep, record.cell_id] = record
            # A copy is not another run of the cell.
            elif first.sha256 != record.sha256:
                skipped.append(Misfit(record.path, f"the same cell as {first.path}"))
        elif run.path.absolute() in found.short:  # a step on the way to a choice, and no result
            short.append(record)
        else:
            good[record.sweep, record.cell_id] = record
        skipped += judged.of_evaluations
    for record in steps_of_searches(list(good.values()), choices.good.values()):
        short.append(good.pop((record.sweep, record.cell_id)))
    missing = find_missing(found)
    if not good:
        places = ", ".join(map(str, folders))
        if skipped:
            raise RegbenchError(
                f"no record that fits in {places}: {len(skipped)} damaged or changed, the first is "
                f"{skipped[0]}; delete the folder of such a run and run the cell again"
            )
        waiting = f", {counted(len(missing), 'cell')} without one yet" * bool(missing)
        raise RegbenchError(
            f"no finished run in {places}{waiting}; make some with `regbench sweep quickstart`"
        )
    records = sorted(
        good.values(), key=lambda r: (r.sweep, r.is_reference, r.label, r.seed, r.cell_id)
    )
    remedy = check_command(folders)
    return Records(
        tuple(records), tuple(skipped), tuple(missing), choices.good, remedy, tuple(short)
    )


def check_command(folders: Sequence[Path]) -> str:
    """Return the command that lists all that does not fit in some folders."""
    # With a slash it is taken for a path, not for the name of a sweep in another folder.
    return f"regbench report {shlex.join(f'{folder}/' for folder in folders)} --check"


def steps_of_searches(
    records: Sequence[Record], choices: Iterable[TuningChoice]
) -> Iterator[Record]:
    """Yield the steps of searches in bundles: trainings shorter than the longest that their tuning
    chose of their method, of a length that it did not choose.
    """
    lengths: dict[tuple[Any, ...], set[int]] = {}
    for choice in choices:
        folder = choice.path.absolute().parent
        # A bundle has neither the plan nor the search's own list, so only lengths show the steps.
        if (folder / PLAN).exists():
            continue
        for entry in choice.choices:
            place = (folder, entry.label, *map(entry.setting.get, _SIZES))
            lengths.setdefault(place, set()).add(entry.setting.get("epochs", 0))
    for record in records:
        if record.status == "done":
            continue
        cell, epochs = record.cell, record.cell["epochs"]
        sizes = (record.backbone, cell["embedding_dim"], cell["batch_size"])
        place = (record.path.absolute().parents[1], record.label, cell["dataset"]["name"], *sizes)
        chosen = lengths.get(place, set())
        if epochs not in chosen and epochs < max(chosen, default=0):
            yield record


def load_records(folder: Path | list[Path]) -> pd.DataFrame:
    """Read the tidy data of all good records: one row per (record, score).

    Args:
        folder: A folder of sweeps, a sweep or a run directory, or several of them.

    Returns:
        Columns sweep, cell_id, label, method, seed, status, dataset, backbone, embedding_dim,
        batch_size, epochs, score, value, unit, split, protocol, then what leads back to the run
        (record, config, record_sha256, command, selected_on, tuning_budget, choice_record,
        finished), the cost (units in the names) and the environment. What does not fit is not in
        it; its paths and reasons are in `attrs["skipped"]`.

    Raises:
        RegbenchError: If a folder does not exist, or no good record is found.
    """
    found = read_records(folder)
    frame: pd.DataFrame = tidy(found.records).to_pandas()
    frame.attrs["skipped"] = [str(misfit) for misfit in found.skipped]
    return frame


def tidy(records: Sequence[Record]) -> pyarrow.Table:
    """Make the table of `load_records` from records that were read already."""
    import pyarrow as pa  # takes 0.1 s

    by_record = [_columns(record) for record in records]
    names = dict.fromkeys(itertools.chain(*by_record))
    scores = list(itertools.chain.from_iterable(record.scores for record in records))
    # A record's columns are made once, and repeated for each of its scores.
    times = [len(record.scores) for record in records]
    rows = pa.array(np.repeat(np.arange(len(records)), times))
    columns = {}
    for name in names:
        values = [of_record.get(name) for of_record in by_record]
        columns[name] = _array(values).take(rows)
    of_scores = {}
    for name in ("name", "value", "unit", "split", "protocol"):
        values = [getattr(score, name) for score in scores]
        of_scores["score" if name == "name" else name] = pa.array(values)
    # A reader of the CSV file wants the score beside the settings, and what leads back to the run
    # behind it. No name in a record's environment takes the place of a score.
    before = list(columns)[: list(columns).index("record")]
    return pa.table({name: columns[name] for name in before} | of_scores | columns | of_scores)


def _array(values: list[Any]) -> pyarrow.Array:
    """Make a column.

    Numbers become text where other records have text there, or where a number is too large.
    """
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if value is None else str(value) for value in values])


def _columns(r: Record) -> dict[str, Any]:
    """Return the columns of the tidy data for a record, except its scores."""
    chosen = r.choice.get("hyperparameters", {})
    columns = {
        "sweep": r.sweep,
        "cell_id": r.cell_id,
        "label": r.label,
        "method": r.method,
        "seed": r.seed,
        "status": r.status,
        "dataset": r.cell["dataset"]["name"],
        "backbone": r.backbone,
        "embedding_dim": r.cell["embedding_dim"],
        "batch_size": r.cell["batch_size"],
        "epochs": r.cell["epochs"],
        "record": str(r.path),
        "config": str(r.path.with_name("config.yaml")),
        "record_sha256": r.sha256,
        "command": r.command,
        "selected_on": "test" if r.on_test else chosen.get("selected_on"),
        "tuning_budget": chosen.get("budget"),
        "choice_record": chosen.get("record"),
        "finished": r.finished,
    }
    for described in (vars(r.cost), r.environment):
        for name, value in described.items():
            # Values with parts, such as a list of GPUs, are no column.
            if isinstance(value, str | int | float):
                columns.setdefault(name, value)
    return columns
