"""`regbench report --check`: whether records are what they claim to be."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from regbench.benchmark.rundir.record import Record
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE
from regbench.errors import RegbenchError
from regbench.reports.collecting import uncollected
from regbench.reports.find.judging import Misfit, TuningChoices, file_misfits, judge
from regbench.reports.find.runs import Found, find_runs
from regbench.text import printable


@dataclass(frozen=True)
class Check:
    """What `check_records` found.

    Attributes:
        records: How many records were looked at, the damaged ones included.
        misfits: One line for each thing that does not fit, "path: what".
    """

    records: int
    misfits: tuple[str, ...]

    def __str__(self) -> str:
        """List the misfits for a terminal, or say that there are none."""
        counted = f"{self.records} {'record' if self.records == 1 else 'records'}"
        if not self.misfits:
            return f"{counted} {'check' if self.records > 1 else 'checks'} out"
        noun = "misfit" if len(self.misfits) == 1 else "misfits"
        return "\n".join([*map(printable, self.misfits), f"{len(self.misfits)} {noun} in {counted}"])


def check_records(folders: Sequence[Path]) -> Check:
    """Check every record under some folders, and say all that `judge` finds, not only what a report leaves out.

    Looked at are: the schema; the SHA-256 that a record, a later evaluation and a tuning's choice state of their own
    content, and a record of its history and, where they are still there, of its final weights; `config.yaml` against
    the record's cell; the directory's name, the record's cell id and the id of the cell; that scores are finite and
    percentages within 0 and 100; that the configurations which a tuning chose are there, and that a record's choice is
    the one on disk; that all records of a data set saw the same images.

    Args:
        folders: Folders of sweeps, sweeps or run directories.

    Raises:
        RegbenchError: If a folder does not exist or holds no record.
    """
    with uncollected():
        return _checked(folders)


def _checked(folders: Sequence[Path]) -> Check:
    found, choices = find_runs(folders), TuningChoices()
    runs = [(run, run.record) for run in found.runs if run.record is not None]
    if not runs:
        raise RegbenchError(f"no record in {', '.join(map(str, folders))}; make some with `regbench sweep quickstart`")
    misfits: list[Misfit] = []
    records: list[Record] = []
    for run, path in tqdm(runs, desc="checked", unit="", leave=False, disable=not sys.stderr.isatty()):
        judged = judge(run, path, choices)
        misfits += [*judged.misfits, *judged.away, *judged.of_evaluations]
        if (record := judged.record) is not None:
            records.append(record)
            if record.checkpoint and record.place(record.checkpoint).exists():
                misfits += file_misfits(record, record.checkpoint)
    misfits += _choice_misfits(found, choices)
    return Check(len(runs), (*map(str, misfits), *image_misfits(records)))


def _choice_misfits(found: Found, choices: TuningChoices) -> Iterator[Misfit]:
    """Check a tuning's choice, and that the cells which it chose are here."""
    for path in (folder / TUNING_CHOICE for folder in found.sweeps):
        choice = choices.read(path)
        if isinstance(choice, Misfit):
            yield choice
            continue
        here = {run.path.name for run in found.runs if run.path.parent == path.parent and run.record is not None}
        for entry in choice.choices if choice else ():
            if entry.chosen not in {ranked.cell_id for ranked in entry.ranking}:
                yield Misfit(path, f"{entry.chosen}, chosen for {entry.label}, is not in its ranking")
            elif entry.chosen not in here:
                yield Misfit(path, f"{entry.chosen}, chosen for {entry.label}, has no record beside it")


def image_misfits(records: Sequence[Record]) -> Iterator[str]:
    """Check that all records of a data set saw the same images."""
    contents: dict[tuple[str, str], dict[str, list[Path]]] = {}
    for record in records:
        for split, sha256 in record.data.content_sha256.items():
            seen = contents.setdefault((record.cell["dataset"]["name"], split), {})
            seen.setdefault(sha256, []).append(record.path)
    for record in records:
        dataset = record.cell["dataset"]["name"]
        if missing := [
            split for name, split in contents if name == dataset and split not in record.data.content_sha256
        ]:
            yield f"{record.path}: does not say which images of {', '.join(missing)} it saw, as others of {dataset} do"
    for (dataset, split), seen in contents.items():
        if len(seen) > 1:
            listed = "; ".join(f"{h:.12} in {len(p)} records, first {p[0]}" for h, p in sorted(seen.items()))
            yield f"data set {dataset}: the {split} split has {len(seen)} contents: {listed}"
