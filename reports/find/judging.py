"""Whether a finished run directory holds what the run wrote: its digests, its ids, its configuration, its choice."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from regbench.benchmark.rundir.record import LaterEvaluation, Record, on_test
from regbench.benchmark.rundir.record_parts import NamedFile
from regbench.benchmark.rundir.tuning_choice import TuningChoice
from regbench.files import cell_id, file_sha256, parse_yaml
from regbench.reports.find.runs import Run

_NOTHING = object()
_BLOCK = re.compile(rb"^(?=[a-z])", re.MULTILINE)

F = TypeVar("F", Record, LaterEvaluation, TuningChoice)


@dataclass(frozen=True)
class Misfit:
    """A file that does not fit, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.path}: {self.reason}"


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


class TuningChoices:
    """What tunings chose (`tuning_choice.json` of their sweeps); each file is read once."""

    def __init__(self) -> None:
        """Begin with no choice read."""
        self._read: dict[Path, TuningChoice | Misfit | None] = {}

    @property
    def good(self) -> dict[Path, TuningChoice]:
        """Those that were read and fit, by path."""
        return {choice.path: choice for choice in self._read.values() if isinstance(choice, TuningChoice)}

    def read(self, path: Path) -> TuningChoice | Misfit | None:
        """Read a choice: it, what does not fit in it, or None where it is not there."""
        key = path.absolute()
        if key not in self._read:
            self._read[key] = _read(TuningChoice, path) if path.exists() else None
        return self._read[key]


def judge(run: Run, path: Path, choices: TuningChoices) -> Judged:
    """Read a run directory and hold it against the digests, ids and configurations that it states of itself.

    Args:
        run: The directory.
        path: Its record.
        choices: Where those that records refer to are read.
    """
    record = _read(Record, path)
    if isinstance(record, Misfit):
        return Judged(None, (record,))
    misfits = [
        *id_misfits(record),
        *_config_misfits(path.with_name("config.yaml"), record.cell),
        *file_misfits(record, record.metrics),
    ]
    if path.name != record.file_name:
        misfits.append(Misfit(path, f"status is {record.status!r}, which belongs into another file"))
    away: list[Misfit] = []
    if (stated := record.choice.get("hyperparameters", {})).get("record"):
        place = Path(str(stated["record"]))
        # A sweep that was copied has it too, under whatever name; of a single cell it lies in the sweep it came from.
        places = (path.parents[1] / place.name, path.parents[2] / place)
        found = next((read for place in places if (read := choices.read(place)) is not None), None)
        if found is None:
            away.append(Misfit(path, f"its hyperparameters were chosen in {place}, which is not here"))
        elif isinstance(found, TuningChoice) and found.sha256 != stated.get("sha256"):
            misfits.append(Misfit(path, f"its hyperparameters were chosen in another version of {place}"))
    of_evaluations = []
    for later in run.evaluations:
        evaluation = _read(LaterEvaluation, later)
        added = evaluation if isinstance(evaluation, Misfit) else with_evaluation(record, evaluation)
        if isinstance(added, Misfit):
            of_evaluations.append(added)
        else:
            record = added
    return Judged(record, tuple(misfits), tuple(of_evaluations), tuple(away))


def file_misfits(record: Record, named: NamedFile | None) -> Iterator[Misfit]:
    """Yield what does not fit of a file that a record names; nothing where it names none."""
    if named is None:
        return
    path = record.place(named)
    try:
        found = file_sha256(path)
    except (OSError, ValueError) as error:  # a name may hold what no file's name can
        yield Misfit(path, f"cannot be read ({getattr(error, 'strerror', error)})")
        return
    if found != named.sha256:
        yield Misfit(path, "its content is not what the record's SHA-256 of it was taken of; it was changed or damaged")


def _read(kind: type[F], path: Path) -> F | Misfit:
    try:
        return kind.read(path)
    except OSError as error:
        return Misfit(path, f"cannot be read ({error.strerror})")
    except ValueError as error:
        return Misfit(path, str(error))


def with_evaluation(record: Record, later: LaterEvaluation) -> Record | Misfit:
    """Add to a record those scores of a later evaluation that it does not have itself."""
    if later.cell_id != record.cell_id:
        return Misfit(later.path, f"of cell {later.cell_id}, in the folder of {record.cell_id}")
    if on_test(later.choice) and not record.on_test:
        return Misfit(later.path, "chosen on the test split, which the record was not: such scores do not go together")
    known = {(s.name, s.split) for s in record.scores}
    new = tuple(s for s in later.scores if (s.name, s.split) not in known)
    return dataclasses.replace(record, scores=record.scores + new)


def id_misfits(record: Record) -> Iterator[Misfit]:
    """Hold a record's cell id against its folder's name and the id of its cell."""
    if (record.path.parent.name or record.path.absolute().parent.name) != record.cell_id:
        yield Misfit(record.path, f"its cell id is {record.cell_id}, the folder's name is another")
    try:
        computed = cell_id(record.cell)
    except (KeyError, TypeError, AttributeError) as error:
        yield Misfit(record.path, f"its cell is none ({type(error).__name__}: {error})")
        return
    if computed != record.cell_id:
        yield Misfit(record.path, f"its cell id is {record.cell_id}, that of its cell is {computed}")


def _config_misfits(path: Path, cell: Mapping[str, Any]) -> Iterator[Misfit]:
    """Hold a run's `config.yaml` against the cell of its record."""
    try:
        content = path.read_bytes()
        config = _by_blocks(content)
        if config != cell:
            config = parse_yaml(content)
    except FileNotFoundError:
        yield Misfit(path, "is missing, so the run cannot be repeated")
        return
    except (OSError, ValueError) as error:
        yield Misfit(path, f"cannot be read ({' '.join(str(error).split())})")
        return
    if config != cell:
        found = config if isinstance(config, dict) else {}
        keys = [key for key in dict.fromkeys((*cell, *found)) if found.get(key, _NOTHING) != cell.get(key, _NOTHING)]
        yield Misfit(path, f"differs from the record's cell in {', '.join(map(str, keys))}")


def _by_blocks(content: bytes) -> dict[Any, Any] | None:
    """Read a mapping a key at a time, which takes a tenth of the time where thousands of runs share most of it.

    None where it is not made of such blocks.
    """
    config: dict[Any, Any] = {}
    for block in filter(None, _BLOCK.split(content)):
        try:
            read = _load_block(block)
        except ValueError:
            return None
        if not isinstance(read, dict):
            return None
        config |= read
    return config


_load_block = functools.lru_cache(maxsize=4096)(parse_yaml)
