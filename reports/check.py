"""Whether records are what they claim to be: their schema, their hashes, and the files around them."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from regbench import RegbenchError
from regbench.files import digest
from regbench.reports.records import Found, Run, Score, find_runs, load_object, parse, parse_evaluation


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


def check_records(folders: Sequence[Path], cell_id: Callable[[dict[str, Any]], str]) -> Check:
    """Checks every record under some folders.

    Looked at are: the schema; the SHA-256 that a record, a later evaluation and a tuning's choice state of their own
    content, and a record of `metrics.jsonl`; `config.yaml` against the record's cell; the directory's name, the
    record's cell id and the id of the cell; that scores are finite and percentages within 0 and 100; that the
    configurations which a tuning chose are there, and that a record's choice is the one on disk; that all records of a
    data set saw the same images.

    Args:
        folders: Folders of sweeps, sweeps or run directories.
        cell_id: Computes a cell's id from its plain data; raises `RegbenchError` if it is no cell.

    Raises:
        RegbenchError: If a folder does not exist or holds no record.
    """
    found = find_runs(folders)
    runs = [run for run in found.runs if run.record is not None]
    if not runs:
        raise RegbenchError(f"no record in {', '.join(map(str, folders))}; make some with `regbench sweep quickstart`")
    misfits: list[str] = []
    contents: dict[tuple[str, str], dict[str, list[Path]]] = {}
    for run in tqdm(runs, desc="checked", unit="", leave=False, disable=not sys.stderr.isatty()):
        misfits += _check_run(run, cell_id, contents)
    misfits += _check_choices(found)
    for (dataset, split), hashes in contents.items():
        if len(hashes) > 1:
            listed = "; ".join(f"{h:.12} in {len(p)} records, first {p[0]}" for h, p in sorted(hashes.items()))
            misfits.append(f"data set {dataset}: the {split} split has {len(hashes)} contents: {listed}")
    return Check(len(runs), tuple(misfits))


def _check_run(
    run: Run, cell_id: Callable[[dict[str, Any]], str], contents: dict[tuple[str, str], dict[str, list[Path]]]
) -> Iterator[str]:
    path = run.record
    assert path is not None
    try:
        record, raw = parse(path), load_object(path)
    except (ValueError, OSError) as error:
        yield f"{path}: {error}"
        return
    yield from _check_digest(path, raw)
    yield from _check_metrics(run.path / "metrics.jsonl", raw.get("metrics_sha256"))
    yield from _check_scores(path, record.scores)
    if run.path.absolute().name != record.cell_id:
        yield f"{path}: its cell id is {record.cell_id}, the folder's name is another"
    if (path.name == "tuning.json") != (record.status == "tuned"):
        yield f"{path}: status is {record.status!r}, which belongs into another file"
    try:
        if (computed := cell_id(raw["cell"])) != record.cell_id:
            yield f"{path}: its cell id is {record.cell_id}, that of its cell is {computed}"
    except RegbenchError as error:
        yield f"{path}: its cell is none that this regbench knows: {error}"
    yield from _check_config(run, raw["cell"])
    hashes = record.data.get("content_sha256")
    for split, sha256 in hashes.items() if isinstance(hashes, dict) else ():
        seen = contents.setdefault((record.cell["dataset"]["name"], str(split)), {})
        seen.setdefault(str(sha256), []).append(path)
    chosen = record.choice.get("hyperparameters") or {}
    if chosen.get("record"):
        yield from _check_origin(path, Path(str(chosen["record"])), chosen.get("sha256"))
    for later in run.evaluations:
        try:
            evaluation = parse_evaluation(later)
            yield from _check_digest(later, load_object(later))
            yield from _check_scores(later, evaluation.scores)
            if evaluation.cell_id != record.cell_id:
                yield f"{later}: is of cell {evaluation.cell_id}, the folder's record of {record.cell_id}"
        except (ValueError, OSError) as error:
            yield f"{later}: {error}"


def _check_digest(path: Path, raw: dict[str, Any]) -> Iterator[str]:
    """The rule of the record's writer: canonical JSON of everything but the digest."""
    if raw.get("sha256") != digest({k: v for k, v in raw.items() if k != "sha256"}):
        yield f"{path}: its content is not what its sha256 was taken of; it was changed or damaged"


def _check_metrics(path: Path, stated: object) -> Iterator[str]:
    """The training's history; none is stated where nothing was trained."""
    if stated is None:
        return
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        yield f"{path}: cannot be read ({error.strerror}), so a report shows no curves of this run"
        return
    if found != stated:
        yield f"{path}: its content is not what the record's metrics_sha256 was taken of; it was changed or damaged"


def _check_scores(path: Path, scores: Iterable[Score]) -> Iterator[str]:
    for s in scores:
        if not math.isfinite(s.value) or (s.unit == "%" and not 0 <= s.value <= 100):
            yield f"{path}: {s.name} on {s.split} is {s.value:g} {s.unit}, outside 0 to 100 %"


def _check_config(run: Run, cell: dict[str, Any]) -> Iterator[str]:
    path = run.path / "config.yaml"
    try:
        config = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except FileNotFoundError:
        yield f"{path}: is missing, so the run cannot be repeated"
        return
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        yield f"{path}: cannot be read ({' '.join(str(error).split())})"
        return
    if config != cell:
        keys = [k for k in dict.fromkeys((*cell, *(config or ()))) if not _same(config, cell, k)]
        yield f"{path}: differs from the record's cell in {', '.join(map(str, keys))}"


def _same(one: Any, other: dict[str, Any], key: str) -> bool:
    return isinstance(one, dict) and key in one and key in other and one[key] == other[key]


def _check_origin(path: Path, choice: Path, stated: object) -> Iterator[str]:
    """Whether the choice that a record refers to is the one on disk; it may lie on another machine."""
    places = [choice, path.parents[1] / choice.name, path.parents[2] / choice.parent.name / choice.name]
    here = next((place for place in places if place.exists()), None)
    if here is None:
        yield f"{path}: its hyperparameters were chosen in {choice}, which is not here"
        return
    try:
        found = load_object(here).get("sha256")
    except (ValueError, OSError) as error:
        yield f"{here}: {error}"
        return
    if found != stated:
        yield f"{path}: its hyperparameters were chosen in another version of {here}"


def _check_choices(found: Found) -> Iterator[str]:
    """A tuning's choice: its digest, and that the cells which it chose are here."""
    for path in (folder / "choice.json" for folder in found.sweeps):
        if not path.exists():
            continue
        try:
            choice = load_object(path)
            yield from _check_digest(path, choice)
            here = {run.path.name for run in found.runs if run.path.parent == path.parent and run.record is not None}
            for entry in choice["choices"]:
                ranked = {ranked["cell_id"] for ranked in entry["ranking"]}
                if entry["chosen"] not in ranked:
                    yield f"{path}: {entry['chosen']}, chosen for {entry['label']}, is not in its ranking"
                elif entry["chosen"] not in here:
                    yield f"{path}: {entry['chosen']}, chosen for {entry['label']}, has no record beside it"
        except (KeyError, TypeError, ValueError, OSError) as error:
            yield f"{path}: not a choice ({type(error).__name__}: {error})"
