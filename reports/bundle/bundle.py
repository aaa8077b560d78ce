"""The file of a bundle: a zip whose manifest names all that is in it by SHA-256.

    manifest.json        the names and SHA-256 of the others; its own is the bundle's
    records.jsonl        the records, a line each, ordered by cell id
    evaluations.jsonl    evaluations that came later
    choices.jsonl        what tunings chose
    histories.jsonl      the text of each history that a record names, as a JSON string, in the
    order of the records weights/<sha256>.pt  final weights that the records name, if any

The same cells give the same file, byte for byte. The manifest's SHA-256 does not depend on how the
zip is compressed.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from regbench.benchmark.rundir.record import LaterEvaluation, Record
from regbench.benchmark.rundir.signed_file import SignedFile
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE, TuningChoice
from regbench.errors import RegbenchError
from regbench.files import file_sha256, parse_json, signed_line, write_atomically
from regbench.reports.find.judging import Misfit, with_evaluation
from regbench.text import brief, refuse_name

_MANIFEST = "manifest.json"

# One member holds all files of a kind: the records of a sweep repeat each other, and compress to a
# tenth of the size that they have in members of their own.
_LISTS = ("records.jsonl", "evaluations.jsonl", "choices.jsonl", "histories.jsonl")

# A zip states when its members were changed. The same cells are to give the same file, so all state
# the earliest time.
_EPOCH = (1980, 1, 1, 0, 0, 0)

_WEIGHTS = re.compile(r"weights/([0-9a-f]{64})\.pt")
# Weights may be larger than the memory, so they are copied in parts.
_CHUNK_BYTES = 2**20

LIST_BYTES = 2**31
"""Largest size of a list. A record takes some 10 kB.

What unpacks to more than this was made to fill a memory.
"""

# Errors that `zipfile` and the decompressors raise on a file that somebody made to break them.
_UNREADABLE = (
    *(OSError, ValueError, KeyError, NotImplementedError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)

F = TypeVar("F", Record, LaterEvaluation, TuningChoice)


@dataclass(frozen=True, kw_only=True, eq=False)
class BundleManifest(SignedFile):
    """The list of what a bundle holds.

    Attributes:
        files: Name -> SHA-256 of each member of the zip but this one.
    """

    files: dict[str, str]


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read.

    Attributes:
        path: The file.
        sha256: SHA-256 of the manifest, and so of all that is in the bundle.
        records: Records with the scores of later evaluations. Their paths are those under a runs
            folder.
        choices: Choices of tunings, by their SHA-256.
        histories: Texts of the histories of trainings, by cell id.
        weights: SHA-256 of the weights that are in the bundle.
        later: Scores of later evaluations: cell id, name and split.
    """

    path: Path
    sha256: str
    records: tuple[Record, ...]
    choices: Mapping[str, TuningChoice]
    histories: Mapping[str, bytes]
    weights: frozenset[str] = frozenset()
    later: frozenset[tuple[str, str, str]] = frozenset()

    def last_epoch(self, record: Record) -> dict[str, Any]:
        """Return the numbers of the last epoch of a record's training, by name.

        Empty without a history.
        """
        lines = self.histories.get(record.cell_id, b"").splitlines()
        row: dict[str, Any] = parse_json(lines[-1]) if lines else {}
        return row


@dataclass(frozen=True)
class BundleContents:
    """Parts of a bundle that is to be written.

    Records, evaluations and choices are text in one line each.

    Attributes:
        histories: Texts of the history files, in the order of the records that have one.
        weights: Files of weights, by their SHA-256.
    """

    records: list[str]
    evaluations: list[str]
    choices: list[str]
    histories: list[str]
    weights: dict[str, Path]


def one_line(content: bytes) -> str:
    """Write a signed file's JSON in one line.

    The digest that it states is of the data, and so still holds.
    """
    return signed_line(parse_json(content))


def write_bundle(contents: BundleContents, out: Path) -> None:
    """Write a bundle."""
    histories = list(map(json.dumps, contents.histories))
    lists = (contents.records, contents.evaluations, contents.choices, histories)
    members, files = {}, {}
    for name, lines in zip(_LISTS, lists, strict=True):
        members[name] = "".join(f"{line}\n" for line in lines).encode()
        files[name] = hashlib.sha256(members[name]).hexdigest()
    weights = {f"weights/{sha256}.pt": sha256 for sha256 in contents.weights}
    manifest = BundleManifest(files=files | weights).text().encode()

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in {_MANIFEST: manifest, **members}.items():
                # LZMA finds what records repeat over megabytes, beyond the 32 KiB in which deflate
                # looks.
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_LZMA)
            for name, sha256 in weights.items():
                info = zipfile.ZipInfo(name, _EPOCH)  # not compressed: weights look like noise
                path = contents.weights[sha256]
                info.file_size = path.stat().st_size
                with path.open("rb") as source, archive.open(info, "w") as member:
                    shutil.copyfileobj(source, member, _CHUNK_BYTES)

    write_atomically(out, write)


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and compare its files with the SHA-256 that its manifest states.

    Args:
        path: The file.

    Raises:
        RegbenchError: If it is none, or holds something else than it states.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path)
    except _UNREADABLE as error:
        why = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else " ".join(str(error).split())
        )
        raise RegbenchError(
            f"{path} is no bundle as `regbench submit` writes it: {why}; ask for it again"
        ) from error


def unpack_weights(bundle: Bundle, record: Record, folder: Path) -> Path:
    """Write the final weights of a record into a folder, under the name that the record gives
    them.
    """
    assert record.checkpoint is not None
    refuse_name("the weights' file", record.checkpoint.file)
    place = folder / record.checkpoint.file
    name = f"weights/{record.checkpoint.sha256}.pt"
    with (
        zipfile.ZipFile(bundle.path) as archive,
        archive.open(name) as member,
        place.open("wb") as file,
    ):
        shutil.copyfileobj(member, file, _CHUNK_BYTES)
    # The members were checked when the bundle was read, and the file may have been replaced since
    # then.
    if file_sha256(place) != record.checkpoint.sha256:
        raise RegbenchError(f"{bundle.path} was changed while it was read; verify it again")
    return place


def _read(archive: zipfile.ZipFile, path: Path) -> Bundle:
    manifest = BundleManifest.parse(_content(archive, _MANIFEST), Path(_MANIFEST))
    weights = _checked_weights(archive, manifest)
    lists = [_lines(archive, manifest, name) for name in _LISTS]
    records, evaluations, choices, histories = lists
    of_cell = _records(records)
    later = _add_evaluations(of_cell, evaluations)
    parsed = _parsed(TuningChoice, choices, "choices.jsonl")
    return Bundle(
        path,
        manifest.sha256,
        tuple(of_cell.values()),
        {choice.sha256: choice for choice in parsed},
        _histories(of_cell, histories),
        weights,
        later,
    )


def _checked_weights(archive: zipfile.ZipFile, manifest: BundleManifest) -> frozenset[str]:
    """Refuse members that are not those of a bundle; return the SHA-256 of the weights."""
    names = archive.namelist()
    # Lists are compared, because a zip may hold two members of one name, of which readers take
    # different ones.
    if sorted(names) != sorted([_MANIFEST, *manifest.files]):
        raise ValueError("it does not hold the files that its manifest names")
    for name in _LISTS:
        if name not in names:
            raise ValueError(f"{name} is missing")
    found = set()
    # Sorted, so that a bundle with several faults is refused for the same one each time.
    for name in sorted(set(names) - {_MANIFEST, *_LISTS}):
        match = _WEIGHTS.fullmatch(name)
        if match is None:
            raise ValueError(f"{brief(name)} does not belong into a bundle")
        if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed, and may unpack to any size")
        with archive.open(name) as member:
            if hashlib.file_digest(cast("BytesIO", member), "sha256").hexdigest() != match[1]:
                raise ValueError(f"{name} is not what it is named after")
        found.add(match[1])
    return frozenset(found)


def _records(lines: list[bytes]) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for record in _parsed(Record, lines, "records.jsonl"):
        first = records.setdefault(record.cell_id, record)
        if first is not record:
            raise ValueError(
                f"cell {record.cell_id} is in it twice, as {first.sweep} and as {record.sweep}"
            )
    return records


def _add_evaluations(
    records: dict[str, Record], lines: list[bytes]
) -> frozenset[tuple[str, str, str]]:
    """Add the scores of later evaluations to their records; return which these are."""
    added = set()
    for later in _parsed(LaterEvaluation, lines, "evaluations.jsonl"):
        record = records.get(later.cell_id)
        if record is None:
            raise ValueError(f"{later.protocol} of cell {later.cell_id}, which has no record")
        longer = with_evaluation(record, later)
        if isinstance(longer, Misfit):
            raise ValueError(str(longer))
        records[later.cell_id] = longer
        for score in later.scores:
            added.add((later.cell_id, score.name, score.split))
    return frozenset(added)


def _histories(records: Mapping[str, Record], lines: list[bytes]) -> dict[str, bytes]:
    trained = [record.cell_id for record in records.values() if record.metrics is not None]
    if len(lines) != len(trained):
        raise ValueError(f"it holds {len(lines)} histories, and its records name {len(trained)}")
    histories = {}
    for identity, line in zip(trained, lines, strict=True):
        text = parse_json(line)
        if not isinstance(text, str):
            raise ValueError(f"the history of cell {identity} is {text!r:.60}, not a text")
        histories[identity] = text.encode()
    return histories


def _parsed(kind: type[F], lines: list[bytes], name: str) -> Iterator[F]:
    for number, line in enumerate(lines, 1):
        try:
            yield kind.parse(line, _place)
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from error


def _place(file: SignedFile) -> Path:
    """Return the path that a file of a bundle would have under a runs folder, for messages."""
    match file:
        case Record():
            return Path(file.sweep, file.cell_id, file.file_name)
        case LaterEvaluation():
            return Path("evaluations.jsonl")
    return Path(TUNING_CHOICE)


def _lines(archive: zipfile.ZipFile, manifest: BundleManifest, name: str) -> list[bytes]:
    content = _content(archive, name)
    if hashlib.sha256(content).hexdigest() != manifest.files[name]:
        raise ValueError(
            f"{name} is not what the manifest's SHA-256 was taken of; it was changed or damaged"
        )
    return list(filter(None, content.split(b"\n")))


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as member:
        content = member.read(LIST_BYTES + 1)  # the size that the zip states may be a lie
    if len(content) > LIST_BYTES:
        raise ValueError(f"{name} unpacks to more than {LIST_BYTES:,} bytes")
    return content
