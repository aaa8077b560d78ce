"""Whether a record is whole and true: its digests, its ids, its configuration, its choice.

`judge` reads a run directory. The rules that a bundle's records have to keep too are functions of
their own; the rules about many records together are in `bundle.claims`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from regbench.benchmark.rundir.record import LaterEvaluation, Record, on_test
from regbench.benchmark.rundir.record_parts import NamedFile
from regbench.benchmark.rundir.run_folder import RunFolder
from regbench.benchmark.rundir.tuning_choice import TuningChoice
from regbench.benchmark.settings.identity import cell_id
from regbench.files import file_sha256, parse_yaml

_NOTHING = object()
# Beginning of a block: a key of the mapping with all that is indented below it.
_BLOCK = re.compile(rb"^(?=[a-z])", re.MULTILINE)

F = TypeVar("F", Record, LaterEvaluation, TuningChoice)


@dataclass(frozen=True)
class Misfit:
    """A file that does not fit, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        """Describe it in one line of limited length."""
        return f"{self.path}: {self.reason:.500}"


@dataclass(frozen=True)
class Judged:
    """A finished run directory: what it holds, and what of it does not fit.

    Attributes:
        record: Record with the scores of those later evaluations that fit; None if it cannot be
            read.
        misfits: Misfits of the record and the files around it. A report leaves a record out if
            there is any.
        of_evaluations: Later evaluations that do not fit. A report leaves out these alone.
        away: Misfits about files that are not here and so cannot be compared. A report shows the
            record.
    """

    record: Record | None
    misfits: tuple[Misfit, ...]
    of_evaluations: tuple[Misfit, ...] = ()
    away: tuple[Misfit, ...] = ()


class TuningChoices:
    """Choices of tunings (`tuning_choice.json` of their sweeps). Each file is read once.

    Attributes:
        good: Choices that were read and fit, by path.
    """

    def __init__(self) -> None:
        """Begin with no choice read."""
        self.good: dict[Path, TuningChoice] = {}
        self._read: dict[Path, TuningChoice | Misfit | None] = {}

    def read(self, path: Path) -> TuningChoice | Misfit | None:
        """Read a choice; return what does not fit if it is damaged, and None if it is not there."""
        # One file may be asked for by a relative path and by an absolute one.
        key = path.absolute()
        if key not in self._read:
            found = _read(TuningChoice, path) if path.exists() else None
            if isinstance(found, TuningChoice):
                self.good[path] = found
            self._read[key] = found
        return self._read[key]


def judge(run: RunFolder, choices: TuningChoices) -> Judged:
    """Read a finished run directory; compare it with the digests, ids and configurations it states.

    Args:
        run: The directory, which has a record.
        choices: Reader of the choices that records refer to.
    """
    assert run.record is not None
    record = _read(Record, run.record)
    if isinstance(record, Misfit):
        return Judged(None, (record,))
    misfits = [*_id_misfits(record), *_config_misfits(record)]
    misfits += _file_misfits(record, record.metrics)
    if run.record.name != record.file_name:
        misfits.append(
            Misfit(run.record, f"status is {record.status!r}, which belongs into another file")
        )
    away: list[Misfit] = []
    stated = record.choice.get("hyperparameters", {})
    if stated.get("record"):
        place = Path(str(stated["record"]))
        # A copied sweep has its choice with it, whatever it is called now. For a single cell, the
        # choice lies in the sweep that made it.
        folder = run.record.absolute().parents
        found = choices.read(folder[1] / place.name) or choices.read(folder[2] / place)
        if found is None:
            away.append(
                Misfit(run.record, f"its hyperparameters were chosen in {place}, which is not here")
            )
        elif isinstance(found, TuningChoice) and found.sha256 != stated.get("sha256"):
            misfits.append(
                Misfit(run.record, f"its hyperparameters were chosen in another version of {place}")
            )
    of_evaluations = []
    for path in run.evaluations:
        longer = _with_evaluation(record, path)
        if isinstance(longer, Misfit):
            of_evaluations.append(longer)
        else:
            record = longer
    return Judged(record, tuple(misfits), tuple(of_evaluations), tuple(away))


def weights_misfits(record: Record) -> Iterator[Misfit]:
    """Check the final weights, if they were not removed to free disk space."""
    if record.checkpoint is not None and record.place(record.checkpoint).exists():
        yield from _file_misfits(record, record.checkpoint)


def _file_misfits(record: Record, named: NamedFile | None) -> Iterator[Misfit]:
    """Yield what does not fit in a file that a record names; nothing if it names none."""
    if named is None:
        return
    path = record.place(named)
    try:
        found = file_sha256(path)
    except OSError as error:
        yield Misfit(path, f"cannot be read ({error.strerror})")
        return
    if found != named.sha256:
        yield Misfit(
            path,
            "its content is not what the record's SHA-256 of it was taken of; it was changed or "
            "damaged",
        )


def _read(kind: type[F], path: Path) -> F | Misfit:
    try:
        return kind.read(path)
    except OSError as error:
        return Misfit(path, f"cannot be read ({error.strerror})")
    except ValueError as error:
        return Misfit(path, str(error))


def _with_evaluation(record: Record, path: Path) -> Record | Misfit:
    """Add to a record those scores of a later evaluation that it does not have itself."""
    later = _read(LaterEvaluation, path)
    if isinstance(later, Misfit):
        return later
    if later.cell_id != record.cell_id:
        return Misfit(later.path, f"of cell {later.cell_id}, in the folder of {record.cell_id}")
    # Such a score is optimistic, and would stand in one row with those that are not.
    if on_test(later.choice) and not record.on_test:
        return Misfit(
            later.path,
            "chosen on the test split, which the record was not: such scores do not go together",
        )
    new = tuple(score for score in later.scores if record.score(score.name, score.split) is None)
    return dataclasses.replace(record, scores=record.scores + new)


def _id_misfits(record: Record) -> Iterator[Misfit]:
    """Compare a record's cell id with its folder's name and the id of its cell."""
    # Absolute, because a run given from within its own folder has a path without the folder's name.
    if record.path.absolute().parent.name != record.cell_id:
        yield Misfit(record.path, f"its cell id is {record.cell_id}, the folder's name is another")
    try:
        computed = cell_id(record.cell)
    except (KeyError, TypeError, AttributeError) as error:
        yield Misfit(record.path, f"its cell is none ({type(error).__name__}: {error})")
        return
    if computed != record.cell_id:
        yield Misfit(
            record.path, f"its cell id is {record.cell_id}, that of its cell is {computed}"
        )


def _config_misfits(record: Record) -> Iterator[Misfit]:
    """Compare a run's `config.yaml` with the cell of its record."""
    path, cell = record.path.with_name("config.yaml"), record.cell
    try:
        content = path.read_bytes()
        # Blocks can only show that the two are equal. If they differ, the file is read as a whole,
        # because an alias may refer to another block.
        config = _by_blocks(content)
        if config != cell:
            config = parse_yaml(content)
    except FileNotFoundError:
        yield Misfit(path, "is missing, so the run cannot be repeated")
        return
    except (OSError, ValueError) as error:
        yield Misfit(path, f"cannot be read ({error})")
        return
    if config != cell:
        found = config if isinstance(config, dict) else {}
        keys = dict.fromkeys((*cell, *found))
        # A key that is missing differs from one that is null.
        differing = [key for key in keys if found.get(key, _NOTHING) != cell.get(key, _NOTHING)]
        yield Misfit(path, f"differs from the record's cell in {', '.join(map(str, differing))}")


def _by_blocks(content: bytes) -> object:
    """Read a mapping a key at a time; None if it is not made of such blocks.

    Thousands of runs share most of their blocks. To parse each block once takes a tenth of the
    time: 4 s in place of 40 s for ten thousand configurations.
    """
    config: dict[Any, Any] = {}
    try:
        for block in filter(None, _BLOCK.split(content)):
            config |= _load_block(block)
    except (TypeError, ValueError):
        return None
    return config


_load_block = functools.lru_cache(maxsize=4096)(parse_yaml)
