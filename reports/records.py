"""Reads what runs leave on disk: their records, and of unfinished ones what was planned and how it failed.

A run directory is `<sweep>/<cell id>/`. Its `record.json` exists only when the cell is finished, its `tuning.json`
when it was a point of a tuning grid; so whatever is read here is complete, at any moment of a sweep. A record that
cannot be trusted is set aside with the reason: `judge` says which.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson
import pandas as pd
from tqdm import tqdm

from regbench import RegbenchError
from regbench.files import parse_json
from regbench.reports.verify import (
    Misfit,
    NamedFile,
    config_misfits,
    content_misfits,
    file_misfits,
    id_misfits,
)

if TYPE_CHECKING:
    import pyarrow

SCHEMA_VERSION = 5
STATUSES = ("done", "diverged", "tuned")

_CELL_ID = re.compile(r"[0-9a-f]{12}")

T = TypeVar("T")


@dataclass(frozen=True)
class Score:
    """One evaluation of one cell: the value in `unit`, the split it was measured on and how."""

    name: str
    value: float
    unit: str
    split: str
    protocol: str


@dataclass(frozen=True, eq=False)
class Record:
    """One finished cell, as its `record.json` or `tuning.json` states it, with what was evaluated later.

    Attributes:
        path: The file that it was read from.
        status: "done", "diverged", or "tuned": a point of a tuning grid, which has not seen the test split.
        scores: Those of the record, then those of `evaluations/` whose name and split it has not.
        cost: Seconds, bytes and rates by name; a number that is missing or not finite is left out.
        choice: What was chosen on which split among how many, by what was chosen ("hyperparameters",
            "probe_learning_rate", ...).
        regularizer: What the method says of itself, by name: reference, url, formula and so on.
        spectrum: Coefficients b_0, b_1, ... of the kernel's expansion in spherical harmonics; None without a kernel.
        command: The command that runs the cell again; empty where the record does not state one.
        sha256: Digest of the record's content, as it states it.
        metrics: The file with the history of the training, beside the record; None where nothing was trained.
        checkpoint: The one with the final weights, if they were not removed since; None where nothing was trained.
    """

    path: Path
    cell_id: str
    sweep: str
    label: str
    method: str
    seed: int
    status: str
    cell: dict[str, Any]
    scores: tuple[Score, ...]
    cost: dict[str, Any]
    environment: dict[str, Any]
    data: dict[str, Any]
    attempts: tuple[dict[str, Any], ...]
    command: str
    choice: dict[str, Any] = field(default_factory=dict)
    regularizer: dict[str, str] = field(default_factory=dict)
    spectrum: tuple[float, ...] | None = None
    sha256: str = ""
    metrics: NamedFile | None = None
    checkpoint: NamedFile | None = None

    @property
    def untrained(self) -> bool:
        """Whether this is the network as initialized: no epoch of training."""
        return bool(self.cell["epochs"] == 0)

    @property
    def on_test(self) -> bool:
        """Whether something was chosen on the test split: the scores there are optimistic then."""
        evaluation = self.cell.get("evaluation")
        return _chosen_on_test(self.choice) or (isinstance(evaluation, dict) and evaluation.get("select_on") == "test")

    @functools.cached_property
    def curves(self) -> dict[str, np.ndarray]:
        """Numbers of the training history by name, each of shape (epochs,), NaN where an epoch has none.

        Taken apart when they are asked for: the histories of thousands of cells are many times as long as their
        records, and a report draws those of a few. Empty where there is none.
        """
        try:
            return _curves(self.metrics.path) if self.metrics else {}
        except (ValueError, OSError):
            return {}

    @functools.cached_property
    def at_end(self) -> dict[str, float]:
        """Numbers of the last line of the training history by name; empty without one, as in `curves`."""
        if self.metrics is None:
            return {}
        try:
            last = self.metrics.path.read_bytes().rstrip().rpartition(b"\n")[2]
            return {name: float(value) for name, value in _object(last, "a line").items() if _is_number(value)}
        except (ValueError, OSError):
            return {}

    @property
    def started(self) -> str:
        """When the first attempt began, ISO 8601; empty where unknown."""
        return min((str(a["started"]) for a in self.attempts if a.get("started")), default="")

    @property
    def finished(self) -> str:
        """When the last attempt ended, ISO 8601; empty where unknown."""
        return max((str(a["finished"]) for a in self.attempts if a.get("finished")), default="")

    def score(self, name: str, split: str) -> float | None:
        """The value of the first score of that name and split, None if it was not measured."""
        return self._values.get((name, split))

    @functools.cached_property
    def flat_cell(self) -> dict[str, str]:
        """The cell's settings by their full names, as text: see `flat`."""
        out: dict[str, str] = {}
        for key, value in self.cell.items():
            out.update(_flat_part(key, orjson.dumps(value)))
        return out

    @functools.cached_property
    def _values(self) -> dict[tuple[str, str], float]:
        return {(s.name, s.split): s.value for s in reversed(self.scores)}


@dataclass(frozen=True)
class Missing:
    """A cell that a sweep plans or that has begun, and that has no record yet.

    Attributes:
        label: Display name of its method; empty where only its folder is known.
        seed: None where only its folder is known.
        plan: What the sweep's plan says of it beside that, such as "epochs" and "embedding_dim".
        attempts: How many have begun.
        failure: Why the last attempt failed; empty if it did not.
    """

    sweep: str
    cell_id: str
    label: str
    seed: int | None
    plan: dict[str, Any]
    attempts: int
    failure: str


@dataclass(frozen=True)
class Records:
    """What was found under a folder.

    Attributes:
        records: Those that can be trusted, ordered by sweep, label, seed and id.
        skipped: Records, later evaluations and choices that are left out, and the first reason for each.
        missing: Cells without a record, in the order of the plans.
        choices: What tunings chose (`choice.json` of their sweeps), by path.
        folders: Where was looked.
    """

    records: tuple[Record, ...]
    skipped: tuple[Misfit, ...]
    missing: tuple[Missing, ...] = ()
    choices: dict[Path, dict[str, Any]] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()

    @property
    def warning(self) -> str:
        """One line on what is left out and what tells more; empty if nothing is."""
        if not self.skipped:
            return ""
        one = len(self.skipped) == 1
        return (
            f"{len(self.skipped)} {'file is' if one else 'files are'} not what was written, and left out of the "
            f"report: {self.skipped[0]}{'' if one else ' and others'}; `{self.remedy}` tells all"
        )

    @property
    def remedy(self) -> str:
        """The command that tells all that does not fit."""
        return f"regbench report {' '.join(folder.name for folder in self.folders)} --check"

    @property
    def unfinished(self) -> dict[str, int]:
        """Sweep name -> number of its cells that have no record yet."""
        counts: dict[str, int] = {}
        for cell in self.missing:
            counts[cell.sweep] = counts.get(cell.sweep, 0) + 1
        return counts


def read_records(folder: Path | Sequence[Path]) -> Records:
    """Reads every record of one or more folders: a folder of sweeps, a sweep, or a single run directory.

    What does not fit is left out, see `judge`.

    Raises:
        RegbenchError: If a folder does not exist, or no good record is found.
    """
    folders = [folder] if isinstance(folder, Path) else list(folder)
    good: dict[tuple[str, str], Record] = {}
    skipped: list[Misfit] = []
    found, choices = find_runs(folders), Choices()
    of_sweeps = [choices.read(folder / "choice.json") for folder in found.sweeps]
    skipped += [choice for choice in of_sweeps if isinstance(choice, Misfit)]
    for run in tqdm(found.runs, desc="records", unit="", leave=False, disable=not sys.stderr.isatty()):
        if run.record is None:
            continue
        judged = judge(run, run.record, choices)
        record, misfits = judged.record, judged.misfits
        if record is not None and not misfits and (first := good.get((record.sweep, record.cell_id))) is not None:
            misfits = (Misfit(run.record, f"the same cell as {first.path}"),)
        skipped += [*misfits[:1], *judged.of_evaluations]
        if record is not None and not misfits:
            good[record.sweep, record.cell_id] = record
    missing = _missing(found)
    if not good:
        places = ", ".join(str(f) for f in folders)
        if skipped:
            raise RegbenchError(
                f"no record that fits in {places}: {len(skipped)} damaged or changed, the first is {skipped[0]}; "
                "delete the folder of such a run and run the cell again"
            )
        waiting = f", {len(missing)} cells have none yet" if missing else ""
        raise RegbenchError(f"no finished run in {places}{waiting}; make some with `regbench sweep quickstart`")
    records = sorted(good.values(), key=lambda r: (r.sweep, r.untrained, r.label, r.seed, r.cell_id))
    return Records(tuple(records), tuple(skipped), tuple(missing), choices.good, tuple(folders))


def load_records(folder: Path | list[Path]) -> pd.DataFrame:
    """Tidy data of all good records: one row per (record, score).

    Args:
        folder: A folder of sweeps, a sweep or a run directory, or several of them.

    Returns:
        Columns sweep, cell_id, label, method, seed, status, dataset, backbone, embedding_dim, batch_size,
        epochs, score, value, unit, split, protocol, then what leads back to the run (record, config, record_sha256,
        command, selected_on, tuning_budget, choice_record, finished), the cost (units in the names) and the
        environment. What does not fit is not in it; its paths and reasons are in `attrs["skipped"]`.

    Raises:
        RegbenchError: If a folder does not exist, or no good record is found.
    """
    found = read_records(folder)
    frame: pd.DataFrame = tidy(found.records).to_pandas()
    frame.attrs["skipped"] = [str(misfit) for misfit in found.skipped]
    return frame


def flat(cell: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as one level of text: {"network": {"backbone": "x"}} -> {"network.backbone": "x"}."""
    out: dict[str, str] = {}
    for key, value in cell.items():
        if isinstance(value, dict):
            out.update(flat(value, f"{prefix}{key}."))
        else:
            out[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return out


@functools.lru_cache(maxsize=4096)
def _flat_part(key: str, value: bytes) -> dict[str, str]:
    """What thousands of cells share, such as the augmentation, is made flat once."""
    return flat({key: orjson.loads(value)})


def tidy(records: Sequence[Record]) -> pyarrow.Table:
    """The table of `load_records` for records already read."""
    import pyarrow as pa  # takes 0.1 s

    by_record = [_columns(r) for r in records]
    names = dict.fromkeys(name for columns in by_record for name in columns)
    rows = np.repeat(np.arange(len(records)), [len(r.scores) for r in records])
    scores = [s for r in records for s in r.scores]
    columns = {name: _array([c.get(name) for c in by_record]).take(pa.array(rows)) for name in names}
    own = {
        name: pa.array([getattr(s, name) for s in scores]) for name in ("name", "value", "unit", "split", "protocol")
    }
    own = {"score": own.pop("name"), **own}
    first = list(columns)[: list(columns).index("record")]
    return pa.table({name: columns[name] for name in first} | own | columns)


def _array(values: list[Any]) -> pyarrow.Array:
    """A column; one that holds numbers of some records and text of others, or too large a number, becomes text."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if v is None else str(v) for v in values])


def _columns(r: Record) -> dict[str, Any]:
    """What the tidy data say of a record beside its scores."""
    chosen = r.choice.get("hyperparameters") or {}
    return {
        "sweep": r.sweep,
        "cell_id": r.cell_id,
        "label": r.label,
        "method": r.method,
        "seed": r.seed,
        "status": r.status,
        "dataset": r.cell["dataset"]["name"],
        "backbone": r.cell["network"]["backbone"],
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
        **r.cost,
        **{k: v for k, v in r.environment.items() if isinstance(v, str | int | float)},
    }


@dataclass(frozen=True)
class Run:
    """A run directory: its record, if it has one, and its later evaluations."""

    path: Path
    record: Path | None
    evaluations: tuple[Path, ...]
    attempts: tuple[Path, ...]


@dataclass(frozen=True)
class Found:
    """Run directories, and the folders of sweeps (those with a plan or a choice) around them."""

    runs: list[Run]
    sweeps: list[Path]


def find_runs(folders: Sequence[Path]) -> Found:
    """Run directories at most two levels down: deeper ones would be somebody's copies or checkpoints.

    Raises:
        RegbenchError: If a folder does not exist.
    """
    runs: dict[Path, Run] = {}
    sweeps: dict[Path, None] = {}

    def walk(folder: Path, names: set[str], depth: int) -> None:
        started = "config.yaml" in names and _CELL_ID.fullmatch(folder.absolute().name)  # others hold one too
        if started or not names.isdisjoint(("record.json", "tuning.json")):
            file = next((name for name in ("record.json", "tuning.json") if name in names), None)
            evaluations = _listed(folder / "evaluations", ".json") if "evaluations" in names else ()
            attempts = _listed(folder / "attempts", ".json") if "attempts" in names and file is None else ()
            runs[folder] = Run(folder, folder / file if file else None, evaluations, attempts)
            return
        if not names.isdisjoint(("sweep.json", "choice.json")):
            sweeps[folder] = None
        if depth < 2:
            for name in sorted(names):
                inner = folder / name
                if inner.is_dir():
                    walk(inner, set(os.listdir(inner)), depth + 1)  # noqa: PTH208  # ten times as quick as iterdir

    for folder in folders:
        if not folder.is_dir():
            raise RegbenchError(f"{folder} is not a folder; give a folder of runs, such as the one of `regbench sweep`")
        walk(folder, set(os.listdir(folder)), 0)  # noqa: PTH208
        if (parent := folder.absolute().parent) not in sweeps and folder in runs and (parent / "choice.json").exists():
            sweeps[parent] = None
    return Found([runs[path] for path in sorted(runs)], list(sweeps))


def _listed(folder: Path, suffix: str) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.iterdir() if path.suffix == suffix and path.name[0] != "."))


def _missing(found: Found) -> list[Missing]:
    """The cells without a record: those of the plans, then those that have begun without one."""
    done = {(run.path.absolute().parent, run.path.absolute().name) for run in found.runs if run.record is not None}
    begun = {(run.path.absolute().parent, run.path.absolute().name): run for run in found.runs if run.record is None}
    missing = []
    for folder in found.sweeps:
        for plan in _planned(folder / "sweep.json"):
            cell_id, label, seed = (plan.pop(name, None) for name in ("id", "label", "seed"))
            key = (folder.absolute(), str(cell_id))
            if key not in done:
                attempts, failure = _attempts(begun.pop(key, None))
                missing.append(Missing(key[0].name, key[1], str(label), seed, plan, attempts, failure))
    for (folder, cell_id), run in begun.items():
        if _CELL_ID.fullmatch(cell_id):
            attempts, failure = _attempts(run)
            missing.append(Missing(folder.name, cell_id, "", None, {}, attempts, failure))
    return missing


def _planned(path: Path) -> list[dict[str, Any]]:
    plan = _read_object(path)
    cells = plan.get("cells", [])
    if not isinstance(cells, list):
        return []
    # A plan holds plain settings; what is something else was not written by a sweep.
    plain = (str, int, float)
    return [{k: v for k, v in cell.items() if isinstance(v, plain)} for cell in cells if isinstance(cell, dict)]


def _attempts(run: Run | None) -> tuple[int, str]:
    """How many attempts there were, and why the last one failed if it did."""
    if run is None or not run.attempts:
        return 0, ""
    last = _read_object(run.attempts[-1])
    failed = last.get("ended") == "failed"
    reason = " ".join(str(last.get("error") or "no reason noted").split())
    return len(run.attempts), reason if failed else ""


class Choices:
    """What tunings chose (`choice.json` of their sweeps); each file is read once."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._read: dict[Path, tuple[Path, dict[str, Any] | Misfit | None]] = {}

    @property
    def good(self) -> dict[Path, dict[str, Any]]:
        """Those that were read and fit, by path."""
        return {path: choice for path, choice in self._read.values() if isinstance(choice, dict)}

    def read(self, path: Path) -> dict[str, Any] | Misfit | None:
        """A choice, what does not fit in it, or None where it is not there."""
        key = path.absolute()
        if key not in self._read:
            self._read[key] = path, _read_choice(path)
        return self._read[key][1]


def _read_choice(path: Path) -> dict[str, Any] | Misfit | None:
    try:
        choice = load_object(path)
        misfits = list(content_misfits(path, choice))
        _expect(choice, seeds=list)
        for entry in _get(choice, "choices", list):
            _get(_mapping(entry, "choices"), "chosen", str, "choices.")
            _get(entry, "label", str, "choices.")
            _expect(entry, setting=dict)
            for ranked in _get(entry, "ranking", list, "choices."):
                _get(_mapping(ranked, "ranking"), "cell_id", str, "ranking.")
                _expect(ranked, hyperparameters=dict, value=(int, float))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        return Misfit(path, f"not a choice ({error})")
    return misfits[0] if misfits else choice


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object of a file beside the records; an empty one where it is not there or damaged."""
    try:
        data = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


@dataclass(frozen=True)
class Judged:
    """A finished run directory: what it holds, and what of it does not fit.

    Attributes:
        record: With the scores of those later evaluations that fit; None if it cannot be read.
        misfits: What does not fit of the record and the files around it. A report leaves a record out if there is any.
        of_evaluations: Later evaluations that do not fit. A report leaves out these alone.
        away: What cannot be compared because it is not here. A report shows the record.
    """

    record: Record | None
    misfits: tuple[Misfit, ...]
    of_evaluations: tuple[Misfit, ...] = ()
    away: tuple[Misfit, ...] = ()


def judge(run: Run, path: Path, choices: Choices) -> Judged:
    """Reads a run directory and holds it against the digests, ids and configurations that it states of itself.

    Args:
        run: The directory.
        path: Its record.
        choices: Where those that records refer to are read.
    """
    try:
        raw = load_object(path)
        record = parse(path, raw)
    except OSError as error:
        return Judged(None, (Misfit(path, f"cannot be read ({error.strerror})"),))
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        return Judged(None, (Misfit(path, str(error)),))
    misfits = [
        *content_misfits(path, raw),
        *id_misfits(path, record.cell_id, raw["cell"]),
        *_score_misfits(path, record.scores),
        *config_misfits(path.with_name("config.yaml"), raw["cell"]),
        *file_misfits(record.metrics),
    ]
    if (path.name == "tuning.json") != (record.status == "tuned"):
        misfits.append(Misfit(path, f"status is {record.status!r}, which belongs into another file"))
    away: list[Misfit] = []
    if (stated := (record.choice.get("hyperparameters") or {})).get("record"):
        choice = Path(str(stated["record"]))
        # It may lie on another machine; what was copied as a whole is found beside the record.
        places = (choice, path.parents[1] / choice.name, path.parents[2] / choice.parent.name / choice.name)
        found = next((read for place in places if (read := choices.read(place)) is not None), None)
        if found is None:
            away.append(Misfit(path, f"its hyperparameters were chosen in {choice}, which is not here"))
        elif isinstance(found, dict) and found["sha256"] != stated.get("sha256"):
            misfits.append(Misfit(path, f"its hyperparameters were chosen in another version of {choice}"))
    of_evaluations: list[Misfit] = []
    for later in run.evaluations:
        try:
            evaluation = load_object(later)
            wrong = list(content_misfits(later, evaluation))
            added = _evaluated(record, parse_evaluation(evaluation))
            wrong += _score_misfits(later, added.scores[len(record.scores) :])
            record = record if wrong else added
        except OSError as error:
            wrong = [Misfit(later, f"cannot be read ({error.strerror})")]
        except ValueError as error:
            wrong = [Misfit(later, str(error))]
        of_evaluations += wrong
    return Judged(record, tuple(misfits), tuple(of_evaluations), tuple(away))


def _score_misfits(path: Path, scores: Sequence[Score]) -> list[Misfit]:
    return [
        Misfit(path, f"{s.name} on {s.split} is {s.value:g} {s.unit}, outside 0 to 100 %")
        for s in scores
        if s.unit == "%" and not 0 <= s.value <= 100
    ]


def parse(path: Path, raw: dict[str, Any]) -> Record:
    """One record, without its later evaluations.

    Args:
        path: Where it lies.
        raw: What is there.

    Raises:
        ValueError: Saying what is wrong with it.
    """
    version = raw.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema version {version!r}, this regbench reads {SCHEMA_VERSION}")
    status = _get(raw, "status", str)
    if status not in STATUSES:
        raise ValueError(f"status is {status!r}, not 'done', 'diverged' or 'tuned'")
    cell = _get(raw, "cell", dict)
    if "external" not in cell:
        for key in ("embedding_dim", "batch_size", "epochs"):
            _get(cell, key, int, "cell.")
    _get(_get(cell, "dataset", dict, "cell."), "name", str, "cell.dataset.")
    _get(_get(cell, "network", dict, "cell."), "backbone", str, "cell.network.")
    command = raw.get("command", "")
    choice = _mapping(raw.get("choice") or {}, "choice")
    _expect(_mapping(choice.get("hyperparameters") or {}, "choice.hyperparameters"), budget=int)
    return Record(
        path=path,
        cell_id=_get(raw, "cell_id", str),
        sweep=_get(raw, "sweep", str),
        label=_get(raw, "label", str),
        method=_get(raw, "method", str),
        seed=_get(raw, "seed", int),
        status=status,
        cell={"embedding_dim": None, "batch_size": None, "epochs": None, **cell},
        scores=tuple(_score(_mapping(entry, "scores")) for entry in _get(raw, "scores", list)),
        cost={k: v for k, v in _get(raw, "cost", dict).items() if isinstance(v, str) or _is_number(v)},
        environment=_get(raw, "environment", dict),
        data=_get(raw, "data", dict),
        attempts=tuple(_mapping(entry, "attempts") for entry in _get(raw, "attempts", list)),
        command=" ".join(command) if isinstance(command, list) else str(command),
        choice=choice,
        regularizer={k: str(v) for k, v in _mapping(raw.get("regularizer") or {}, "regularizer").items()},
        spectrum=None if raw.get("spectrum") is None else tuple(map(float, _get(raw, "spectrum", list))),
        sha256=_get(raw, "sha256", str),
        metrics=_named(raw, "metrics", path),
        checkpoint=_named(raw, "checkpoint", path),
    )


def _named(raw: dict[str, Any], what: str, path: Path) -> NamedFile | None:
    """A file that the record at `path` names."""
    if raw.get(what) is None:
        return None
    named = _get(raw, what, dict)
    file, sha256 = (_get(named, key, str, f"{what}.") for key in ("file", "sha256"))
    if Path(file).name != file:
        raise ValueError(f"{what}.file is {file!r:.80}, not the name of a file beside the record")
    return NamedFile(path.with_name(file), sha256)


@dataclass(frozen=True)
class Evaluation:
    """What `evaluations/<protocol>.json` adds to a record."""

    cell_id: str
    scores: tuple[Score, ...]
    on_test: bool


def parse_evaluation(raw: dict[str, Any]) -> Evaluation:
    """A later evaluation of a finished run.

    Raises:
        ValueError: Saying what is wrong with it.
    """
    if (version := raw.get("schema_version")) != SCHEMA_VERSION:
        raise ValueError(f"schema version {version!r}, this regbench reads {SCHEMA_VERSION}")
    scores = tuple(_score(_mapping(entry, "scores")) for entry in _get(raw, "scores", list))
    choice = _mapping(raw.get("choice") or {}, "choice")
    return Evaluation(_get(raw, "cell_id", str), scores, _chosen_on_test(choice))


def _evaluated(record: Record, later: Evaluation) -> Record:
    """The record with the scores of a later evaluation that it has not itself."""
    if later.cell_id != record.cell_id:
        raise ValueError(f"of cell {later.cell_id}, in the folder of {record.cell_id}")
    if later.on_test and not record.on_test:
        raise ValueError("chosen on the test split, which the record was not: such scores do not go together")
    known = {(s.name, s.split) for s in record.scores}
    new = tuple(s for s in later.scores if (s.name, s.split) not in known)
    return dataclasses.replace(record, scores=record.scores + new)


def _chosen_on_test(choice: Mapping[str, Any]) -> bool:
    return any(isinstance(entry, dict) and entry.get("selected_on") == "test" for entry in choice.values())


def load_object(path: Path) -> dict[str, Any]:
    """A JSON object; a ValueError says what is wrong with it."""
    return _object(path.read_bytes(), "the file")


def _object(content: bytes, where: str) -> dict[str, Any]:
    try:
        raw = parse_json(content)
    except ValueError as error:
        raise ValueError(f"not valid JSON, truncated? ({error})") from error
    return _mapping(raw, where)


def _curves(path: Path) -> dict[str, np.ndarray]:
    """The columns of a history that hold numbers."""
    history = [_object(line, "a line") for line in path.read_bytes().splitlines()]
    for row in history:
        _get(row, "epoch", int)
    columns = {}
    for name in sorted(set().union(*history)):
        values = [float(row[name]) if _is_number(row.get(name)) else math.nan for row in history]
        if not all(map(math.isnan, values)):
            columns[name] = np.array(values)
    return columns


def _get(data: dict[str, Any], key: str, kind: type[T], where: str = "") -> T:
    if key not in data:
        raise ValueError(f"{where}{key} is missing")
    value = data[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where}{key} is {value!r:.40}, not {kind.__name__}")
    return value


def _expect(data: dict[str, Any], **kinds: type | tuple[type, ...]) -> None:
    """Refuses what is there, is not null and is not of its kind."""
    for key, kind in kinds.items():
        value = data.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ValueError(f"{key} is {value!r:.40}")


def _mapping(entry: Any, where: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} holds {entry!r:.40}, not a JSON object")
    return entry


def _score(entry: dict[str, Any]) -> Score:
    name, unit, split, protocol = (_get(entry, k, str, "scores.") for k in ("name", "unit", "split", "protocol"))
    if not _is_number(entry.get("value")):
        raise ValueError(f"score {name} ({split}) is {entry.get('value')!r:.40}, not a finite number")
    return Score(name, float(entry["value"]), unit, split, protocol)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
