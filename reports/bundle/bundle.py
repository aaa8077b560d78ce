"""The file of a bundle: a zip whose manifest names all that is in it by SHA-256.

    manifest.json        the names and SHA-256 of the others; its own is the bundle's
    records.jsonl        the records, a line each, ordered by cell id
    evaluations.jsonl    evaluations that came later
    choices.jsonl        what tunings chose
    ends.jsonl           the last line of each history that the records name by SHA-256, in the order of the records
    histories.jsonl      the lines before it, as `histories.pack` writes both
    weights/<sha256>.pt  final weights that the records name, if any

Records of one sweep repeat each other, and so compress together to some hundred bytes each. The same cells give the
same file, byte for byte, and the manifest's SHA-256 does not depend on how the zip is compressed.
"""

from __future__ import annotations

import hashlib
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
from regbench.reports.bundle.histories import last_row, pack, unpack
from regbench.reports.find.judging import Misfit, with_evaluation

_MANIFEST = "manifest.json"
_LISTS = ("records.jsonl", "evaluations.jsonl", "choices.jsonl", "ends.jsonl", "histories.jsonl")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of all members: the same cells give the same file
_WEIGHTS = re.compile(r"weights/([0-9a-f]{64})\.pt")
_CHUNK_BYTES = 2**20
LIST_BYTES = 2**31
"""Of a list, at most: a record takes some 10 kB, and a small file that unpacks to more was made to fill a memory."""

_UNREADABLE = (
    *(OSError, ValueError, KeyError, NotImplementedError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)

F = TypeVar("F", Record, LaterEvaluation, TuningChoice)


@dataclass(frozen=True, kw_only=True, eq=False)
class Manifest(SignedFile):
    """What a bundle holds.

    Attributes:
        files: Name -> SHA-256 of each member of the zip but this one.
    """

    files: dict[str, str]


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read.

    Attributes:
        path: The file.
        sha256: Of its manifest: of all that is in it.
        records: With the scores of later evaluations; their paths are those that they would have under a runs folder.
        choices: What tunings chose, by its SHA-256.
        ends: The numbers of the last epoch of each training, by cell id.
        histories: The histories of trainings, by cell id.
        weights: The SHA-256 of the weights that are in it.
        later: The scores of later evaluations: cell id, name and split.
    """

    path: Path
    sha256: str
    records: tuple[Record, ...]
    choices: Mapping[str, TuningChoice]
    ends: Mapping[str, Mapping[str, Any]]
    histories: Mapping[str, bytes]
    weights: frozenset[str] = frozenset()
    later: frozenset[tuple[str, str, str]] = frozenset()


@dataclass(frozen=True)
class Contents:
    """What is to go into a bundle, as text in one line each.

    Attributes:
        histories: The texts of their files, in the order of the records that have one.
        weights: Files of weights, by their SHA-256.
    """

    records: list[str]
    evaluations: list[str]
    choices: list[str]
    histories: list[str]
    weights: dict[str, Path]


def one_line(content: bytes) -> str:
    """Write a signed file's JSON in one line; the digest that it states is of the data, and so still holds."""
    return signed_line(parse_json(content))


def write_bundle(contents: Contents, out: Path) -> str:
    """Write a bundle and return its SHA-256."""
    packed = [pack(text) for text in contents.histories]
    ends, before = [last for last, _ in packed], [before for _, before in packed]
    lists = (contents.records, contents.evaluations, contents.choices, ends, before)
    members = {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in zip(_LISTS, lists, strict=True)}
    files = {name: hashlib.sha256(content).hexdigest() for name, content in members.items()}
    files |= {f"weights/{sha256}.pt": sha256 for sha256 in sorted(contents.weights)}
    manifest = Manifest(files=files).text()
    members = {_MANIFEST: manifest.encode(), **members}

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                info = zipfile.ZipInfo(name, _EPOCH)
                digits = name == "histories.jsonl"  # of which bzip2 takes a twelfth less
                archive.writestr(info, content, zipfile.ZIP_BZIP2 if digits else zipfile.ZIP_LZMA)
            for sha256, path in sorted(contents.weights.items()):
                info = zipfile.ZipInfo(f"weights/{sha256}.pt", _EPOCH)
                info.file_size = path.stat().st_size
                with path.open("rb") as weights, archive.open(info, "w") as member:  # noise does not compress
                    shutil.copyfileobj(weights, member, _CHUNK_BYTES)

    write_atomically(out, write)
    return str(parse_json(manifest.encode())["sha256"])


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and hold its files against the SHA-256 that its manifest states.

    Args:
        path: The file.

    Raises:
        RegbenchError: If it is none, or holds something else than it states.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path)
    except _UNREADABLE as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise RegbenchError(f"{path} is no bundle as `regbench submit` writes it: {why}; ask for it again") from error


def unpack_weights(bundle: Bundle, record: Record, folder: Path) -> Path:
    """Write the final weights of a record into a folder, under the name that the record gives them."""
    assert record.checkpoint is not None
    place = folder / record.checkpoint.file
    name = f"weights/{record.checkpoint.sha256}.pt"
    with zipfile.ZipFile(bundle.path) as archive, archive.open(name) as member, place.open("wb") as file:
        shutil.copyfileobj(member, file, _CHUNK_BYTES)
    if file_sha256(place) != record.checkpoint.sha256:
        raise RegbenchError(f"{bundle.path} was changed while it was read; verify it again")
    return place


def _read(archive: zipfile.ZipFile, path: Path) -> Bundle:
    manifest = Manifest.parse(_content(archive, _MANIFEST), Path(_MANIFEST))
    names = archive.namelist()
    if sorted(names) != sorted([_MANIFEST, *manifest.files]):
        raise ValueError("it does not hold the files that its manifest names")
    if missing := set(_LISTS) - set(names):
        raise ValueError(f"{min(missing)} is missing")
    weights = {name: match[1] for name in names if (match := _WEIGHTS.fullmatch(name))}
    if packed := [name for name in weights if archive.getinfo(name).compress_type != zipfile.ZIP_STORED]:
        raise ValueError(f"{min(packed)} is compressed, and may unpack to any size")
    if odd := set(names) - {_MANIFEST, *_LISTS, *weights}:
        raise ValueError(f"{min(odd)} does not belong into a bundle")
    records: dict[str, Record] = {}
    for line in _lines(archive, manifest, "records.jsonl"):
        record = _record(line)
        if record.cell_id in records:
            first = records[record.cell_id]
            raise ValueError(f"cell {record.cell_id} is in it twice, as {first.sweep} and as {record.sweep}")
        records[record.cell_id] = record
    later_scores: set[tuple[str, str, str]] = set()
    for line in _lines(archive, manifest, "evaluations.jsonl"):
        later = _parsed(LaterEvaluation, line, Path("evaluations.jsonl"))
        added = (
            with_evaluation(records[later.cell_id], later)
            if later.cell_id in records
            else Misfit(later.path, f"{later.protocol} of cell {later.cell_id}, which has no record")
        )
        if isinstance(added, Misfit):
            raise ValueError(str(added))
        later_scores |= {(later.cell_id, score.name, score.split) for score in later.scores}
        records[later.cell_id] = added
    choices = [_parsed(TuningChoice, line, Path(TUNING_CHOICE)) for line in _lines(archive, manifest, "choices.jsonl")]
    trained = [record.cell_id for record in records.values() if record.metrics is not None]
    last = list(_lines(archive, manifest, "ends.jsonl"))
    if len(last) != len(trained):
        raise ValueError(f"it holds {len(last)} histories, and its records name {len(trained)}")
    ends = {identity: last_row(line) for identity, line in zip(trained, last, strict=True)}
    histories, left = {}, LIST_BYTES
    before = list(_lines(archive, manifest, "histories.jsonl"))
    if len(before) != len(last):
        raise ValueError(f"it holds {len(before)} histories and the ends of {len(last)}")
    for identity, line, others in zip(trained, last, before, strict=True):
        histories[identity] = unpack(line, others, left).encode()
        left -= len(histories[identity])
    for name, sha256 in weights.items():
        with archive.open(name) as member:
            if hashlib.file_digest(cast("BytesIO", member), "sha256").hexdigest() != sha256:
                raise ValueError(f"{name} is not what it is named after")
    by_sha256 = {choice.sha256: choice for choice in choices}
    return Bundle(
        path,
        manifest.sha256,
        tuple(records.values()),
        by_sha256,
        ends,
        histories,
        weights=frozenset(weights.values()),
        later=frozenset(later_scores),
    )


def _record(line: bytes) -> Record:
    """Parse a record, with the path that it would have under a runs folder."""
    try:
        return Record.parse(line, lambda record: Path(record.sweep, record.cell_id, "record.json"))
    except ValueError:
        raw = parse_json(line)
        place = Path(str(raw.get("sweep")), str(raw.get("cell_id"))) if isinstance(raw, dict) else Path("?")
        return _parsed(Record, line, place / "record.json")  # says where


def _parsed(kind: type[F], line: bytes, place: Path) -> F:
    try:
        return kind.parse(line, place)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _lines(archive: zipfile.ZipFile, manifest: Manifest, name: str) -> Iterator[bytes]:
    content = _content(archive, name)
    _refuse_other(name, hashlib.sha256(content).hexdigest(), manifest)
    return filter(None, iter(content.split(b"\n")))


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as member:
        content = member.read(LIST_BYTES + 1)  # the size that the zip states may be a lie
    if len(content) > LIST_BYTES:
        raise ValueError(f"{name} unpacks to more than {LIST_BYTES:,} bytes")
    return content


def _refuse_other(name: str, sha256: str, manifest: Manifest) -> None:
    if sha256 != manifest.files[name]:
        raise ValueError(f"{name} is not what the manifest's SHA-256 was taken of; it was changed or damaged")
