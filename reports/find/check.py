"""`regbench report --check`: whether records are what they claim to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from regbench.benchmark.rundir.record import Record
from regbench.benchmark.rundir.run_folder import RunFolder
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE
from regbench.errors import RegbenchError
from regbench.reports.find.judging import Misfit, TuningChoices, judge, weights_misfits
from regbench.reports.find.runs import Found, find_runs
from regbench.text import counted, printable


@dataclass(frozen=True)
class Check:
    """The outcome of a check.

    Attributes:
        count: Number of things that were looked at, the damaged ones included.
        misfits: One line for each thing that does not fit, "path: what".
        noun: The thing that is counted.
    """

    count: int
    misfits: tuple[str, ...]
    noun: str = "record"

    def __str__(self) -> str:
        """List the misfits for a terminal, or say that there are none."""
        looked_at = counted(self.count, self.noun)
        if not self.misfits:
            return f"{looked_at} check{'s' * (self.count == 1)} out"
        number = counted(len(self.misfits), "misfit")
        return "\n".join([*map(printable, self.misfits), f"{number} in {looked_at}"])


def first_of(misfits: Sequence[str]) -> str:
    """Name the first misfit, and how many more there are."""
    more = len(misfits) - 1
    return misfits[0] + f" (and {more} more)" * (more > 0)


def check_records(folders: Sequence[Path]) -> Check:
    """Check every record under some folders, and list all that `judge` finds, not only what a
    report leaves out.

    Final weights are read too if they are still there; the cells that tunings chose must be there;
    all records of a data set must have seen the same images. docs/reports.md lists what is checked.

    Args:
        folders: Folders of sweeps, sweeps or run directories.

    Raises:
        RegbenchError: If a folder does not exist or holds no record.
    """
    misfits: list[Misfit] = []
    records: list[Record] = []
    found, choices = find_runs(folders), TuningChoices()
    runs = [run for run in found.runs if run.record is not None]
    for run in tqdm(runs, desc="checked", unit="", leave=False, disable=None):
        judged = judge(run, choices)
        misfits += [*judged.misfits, *judged.away, *judged.of_evaluations]
        if judged.record is not None:
            records.append(judged.record)
            misfits += weights_misfits(judged.record)
    if not runs:
        raise RegbenchError(
            f"no record in {', '.join(map(str, folders))}; make some with `regbench sweep "
            "quickstart`"
        )
    misfits += _choice_misfits(found, choices)
    return Check(len(runs), (*map(str, misfits), *image_misfits(records)))


def _choice_misfits(found: Found, choices: TuningChoices) -> Iterator[Misfit]:
    """Check the choices of tunings, and that the cells they chose are beside them."""
    for folder in found.sweeps:
        path = folder / TUNING_CHOICE
        choice = choices.read(path)
        if isinstance(choice, Misfit):
            yield choice
        elif choice is not None:
            for entry in choice.choices:
                name = f"{entry.chosen}, chosen for {entry.label},"
                # A digest shows that nobody changed the file, not that its choice makes sense.
                if all(ranked.cell_id != entry.chosen for ranked in entry.ranking):
                    yield Misfit(path, f"{name} is not in its ranking")
                elif RunFolder(folder / entry.chosen).record is None:
                    yield Misfit(path, f"{name} has no record beside it")


def image_misfits(records: Sequence[Record]) -> Iterator[str]:
    """Check that all records of a data set saw the same images, and say which."""
    seen: dict[str, set[str]] = {}
    for record in records:
        seen.setdefault(record.cell["dataset"]["name"], set()).update(record.data.content_sha256)
    for record in records:
        dataset = record.cell["dataset"]["name"]
        missing = ", ".join(sorted(seen[dataset] - record.data.content_sha256.keys()))
        if missing:
            yield (
                f"{record.path}: does not say which images of {missing} it saw, as others of "
                f"{dataset} do"
            )
    yield from several_contents(records)


def several_contents(records: Sequence[Record]) -> Iterator[str]:
    """Name the splits of which records of a data set saw several contents."""
    # Data set -> split -> SHA-256 of its images -> the records that saw them.
    seen: dict[str, dict[str, dict[str, list[Path]]]] = {}
    for record in records:
        splits = seen.setdefault(record.cell["dataset"]["name"], {})
        for split, sha256 in record.data.content_sha256.items():
            splits.setdefault(split, {}).setdefault(sha256, []).append(record.path)
    for dataset, splits in seen.items():
        for split, contents in splits.items():
            listed = []
            for sha256, paths in sorted(contents.items()):
                # Twelve digits are enough to tell a few contents apart.
                listed.append(f"{sha256:.12} in {counted(len(paths), 'record')}, first {paths[0]}")
            if len(listed) > 1:
                yield (
                    f"data set {dataset}: the {split} split has {len(listed)} contents: "
                    f"{'; '.join(listed)}"
                )
