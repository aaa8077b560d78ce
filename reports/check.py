"""Whether records are what they claim to be: their schema, their hashes, and the files around them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from regbench import RegbenchError
from regbench.reports.records import Choices, Found, Record, find_runs, judge
from regbench.reports.verify import Misfit, file_misfits


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
        """For a terminal: the misfits, or that there are none."""
        counted = f"{self.records} {'record' if self.records == 1 else 'records'}"
        if not self.misfits:
            return f"{counted} {'check' if self.records > 1 else 'checks'} out"
        noun = "misfit" if len(self.misfits) == 1 else "misfits"
        return "\n".join([*self.misfits, f"{len(self.misfits)} {noun} in {counted}"])


def check_records(folders: Sequence[Path]) -> Check:
    """Checks every record under some folders, and says all that `judge` finds, not only what a report leaves out.

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
    found, choices = find_runs(folders), Choices()
    runs = [(run, run.record) for run in found.runs if run.record is not None]
    if not runs:
        raise RegbenchError(f"no record in {', '.join(map(str, folders))}; make some with `regbench sweep quickstart`")
    misfits: list[Misfit] = []
    records: list[Record] = []
    for run, path in tqdm(runs, desc="checked", unit="", leave=False, disable=not sys.stderr.isatty()):
        judged = judge(run, path, choices)
        misfits += [*judged.misfits, *judged.away, *judged.of_evaluations]
        if judged.record is not None:
            records.append(judged.record)
            weights = judged.record.checkpoint
            misfits += file_misfits(weights if weights and weights.path.exists() else None)
    misfits += _check_choices(found, choices)
    return Check(len(runs), (*map(str, misfits), *_check_contents(records)))


def _check_choices(found: Found, choices: Choices) -> Iterator[Misfit]:
    """A tuning's choice, and that the cells which it chose are here."""
    for path in (folder / "choice.json" for folder in found.sweeps):
        choice = choices.read(path)
        if isinstance(choice, Misfit):
            yield choice
        if not isinstance(choice, dict):
            continue
        here = {run.path.name for run in found.runs if run.path.parent == path.parent and run.record is not None}
        for entry in choice["choices"]:
            if entry["chosen"] not in {ranked["cell_id"] for ranked in entry["ranking"]}:
                yield Misfit(path, f"{entry['chosen']}, chosen for {entry['label']}, is not in its ranking")
            elif entry["chosen"] not in here:
                yield Misfit(path, f"{entry['chosen']}, chosen for {entry['label']}, has no record beside it")


def _check_contents(records: Sequence[Record]) -> Iterator[str]:
    """That all records of a data set saw the same images."""
    contents: dict[tuple[str, str], dict[str, list[Path]]] = {}
    for record in records:
        hashes = record.data.get("content_sha256")
        for split, sha256 in hashes.items() if isinstance(hashes, dict) else ():
            seen = contents.setdefault((record.cell["dataset"]["name"], str(split)), {})
            seen.setdefault(str(sha256), []).append(record.path)
    for (dataset, split), seen in contents.items():
        if len(seen) > 1:
            listed = "; ".join(f"{h:.12} in {len(p)} records, first {p[0]}" for h, p in sorted(seen.items()))
            yield f"data set {dataset}: the {split} split has {len(seen)} contents: {listed}"
