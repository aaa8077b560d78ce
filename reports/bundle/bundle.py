"""The file of a bundle: a `tar.xz` of run folders, as runs leave them.

    <sweep>/tuning_choice.json                      what the tuning of a sweep chose
    <sweep>/<cell id>/record.json                   the record; tuning.json of a cell that was tuned
    <sweep>/<cell id>/config.yaml                   its settings
    <sweep>/<cell id>/metrics-0001.jsonl            the history that the record names
    <sweep>/<cell id>/evaluations/<protocol>.json   an evaluation that came later
    <sweep>/<cell id>/checkpoint-0001-….pt          the final weights that the record names

The same cells give the same file, byte for byte. The bundle's SHA-256 is that of the names of these
files and of their SHA-256, so it does not depend on how the file is compressed.
"""

from __future__ import annotations

import errno
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import IO, cast

from regbench.benchmark.rundir.record import LaterEvaluation, Record
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE, TuningChoice
from regbench.errors import RegbenchError
from regbench.files import digest, file_sha256, write_atomically
from regbench.reports.find.check import first_of
from regbench.reports.find.judging import Misfit, TuningChoices, judge, weights_misfits
from regbench.reports.find.runs import find_runs
from regbench.text import brief, is_name

SUFFIX = ".tar.xz"

TEXT_BYTES = 2**24
"""Largest size of a file other than weights: a record takes some 10 kB."""

WHOLE_BYTES = 2**31
"""Largest size of all files together beyond twice the size of the bundle.

Texts compress to a twentieth of their size, and weights do not compress.
"""

MOST_FILES = 2**17

# The decoder takes the memory that a file asks for, up to 4 GiB. Our files ask for 65 MiB.
_DECODER_BYTES = 2**27

# Beside its content, a file has a header in the archive, which is read in blocks of 10 KiB.
_AROUND_A_FILE = 2**18

_CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read.

    Attributes:
        path: The file.
        sha256: SHA-256 of the bundle, and so of all that is in it.
        records: Records with the scores of later evaluations. Their paths are those in the bundle.
        choices: Choices of tunings, by their SHA-256.
        histories: Contents of the histories of trainings, by cell id.
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


def write_bundle(files: Mapping[str, Path], out: Path) -> None:
    """Write a bundle of files, given by their names in it."""

    def write(file: IO[bytes]) -> None:
        with tarfile.open(fileobj=file, mode="w:xz", preset=9) as archive:
            for name, path in sorted(files.items()):
                # Without a time and an owner, so that the same cells give the same file.
                member = tarfile.TarInfo(name)
                member.size = path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(member, content)

    write_atomically(out, write)


def read_bundle(path: Path, folder: Path | None = None) -> Bundle:
    """Read a bundle, and compare its files with the SHA-256 and the ids that they state.

    Args:
        path: The file.
        folder: An empty folder for the run folders; None: they are not kept.

    Raises:
        RegbenchError: If it is no bundle, or its content is not what it states.
    """
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        try:
            sha256 = _unpack(path, place)
            return _read(path, sha256, place)
        # Whatever tar, the decoder or the disk raises on a stranger's file.
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                where = place.parent.absolute()
                raise RegbenchError(
                    f"{path} cannot be unpacked into {where}: {error.strerror}; make room, or set "
                    "TMPDIR to a folder that has some"
                ) from error
            why = " ".join(str(error).replace(f"{place}/", "").split())
            if isinstance(error, OSError) and error.strerror:
                why = error.strerror
            raise RegbenchError(
                f"{path} is no bundle as `regbench submit` writes it: {why}; ask for it again"
            ) from error


class _Decoder:
    """A decoder of an xz file that refuses more than is allowed: a kilobyte may hold gigabytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_DECODER_BYTES)
        self.allowed = _AROUND_A_FILE

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes; nothing at the end."""
        content = b""
        while not content and not self.decoder.eof:
            packed = b""
            if self.decoder.needs_input:
                packed = self.file.read(_CHUNK_BYTES)
                if not packed:
                    raise EOFError("it ends in the middle")
            content = self.decoder.decompress(packed, size)
        self.allowed -= len(content)
        if self.allowed < 0:
            raise ValueError("it unpacks to more than its files")
        return content


def _unpack(path: Path, folder: Path) -> str:
    """Write the files of a bundle into a folder, and return the SHA-256 of the bundle."""
    left = WHOLE_BYTES + 2 * path.stat().st_size
    found: dict[str, str] = {}
    with path.open("rb") as packed:
        decoder = _Decoder(packed)
        with tarfile.open(fileobj=cast("BytesIO", decoder), mode="r|") as archive:
            while (member := archive.next()) is not None:
                left -= member.size
                _refuse_member(member, found, left)
                decoder.allowed = member.size + _AROUND_A_FILE
                place = folder / member.name
                place.parent.mkdir(parents=True, exist_ok=True)
                content = cast("IO[bytes]", archive.extractfile(member))
                # Never over another one: on some disks, names that differ by case are one file.
                with place.open("xb") as file:
                    shutil.copyfileobj(content, file)
                found[member.name] = file_sha256(place)
                decoder.allowed = _AROUND_A_FILE
                # Otherwise the archive keeps the headers of all its members in memory.
                archive.members = []  # type: ignore[attr-defined]
            # More than the decoder allows: it has read all, and compared it with its checksum.
            behind = cast("IO[bytes]", archive.fileobj).read(2 * _AROUND_A_FILE)
        # Other programs may go on there, and unpack other files than those that were checked.
        if behind.strip(bytes(1)) or decoder.decoder.unused_data or packed.read(1):
            raise ValueError("it goes on behind its end")
    return digest(found)


def _refuse_member(member: tarfile.TarInfo, known: Mapping[str, str], left: int) -> None:
    """Refuse a member that is no file of a run, or would fill the memory or the disk."""
    name, parts = brief(member.name), member.name.split("/")
    is_weights = member.name.endswith(".pt")
    # A sparse file takes no room in the archive, however large it is.
    if member.type != tarfile.REGTYPE or member.issparse():
        raise ValueError(f"{name} is no regular file")
    if set(member.pax_headers) - {"path", "size"}:
        raise ValueError(f"{name} has headers that no bundle has")
    if len(parts) > 4 or not all(map(is_name, parts)):
        raise ValueError(f"{name} does not belong into a bundle")
    if member.name in known:
        raise ValueError(f"{name} is in it twice")
    if len(known) >= MOST_FILES:
        raise ValueError(f"it holds more than {MOST_FILES:,} files")
    if left < 0 or member.size < 0 or (member.size > TEXT_BYTES and not is_weights):
        raise ValueError(f"{name} unpacks to {member.size:,} bytes, which are too many")


def _read(path: Path, sha256: str, folder: Path) -> Bundle:
    """Read the run folders of a bundle."""
    found, choices = find_runs([folder]), TuningChoices()
    records: dict[str, Record] = {}
    histories: dict[str, bytes] = {}
    misfits: list[Misfit] = []
    weights: set[str] = set()
    later: set[tuple[str, str, str]] = set()
    belong: set[Path] = set()
    for sweep in found.sweeps:
        choice = choices.read(sweep / TUNING_CHOICE)
        if isinstance(choice, Misfit):
            misfits.append(choice)
        # The choice of a sweep elsewhere would say nothing about the cells beside it.
        elif choice and any((sweep / entry.chosen).is_dir() for entry in choice.choices):
            belong.add(sweep / TUNING_CHOICE)
    for run in found.runs:
        if run.record is None:
            continue
        judged = judge(run, choices)
        misfits += [*judged.misfits, *judged.of_evaluations]
        record = judged.record
        if record is None or misfits:
            continue
        belong |= {run.record, run.path / "config.yaml", *run.evaluations}
        if record.metrics is not None:
            history = record.place(record.metrics)
            belong.add(history)
            if history.stat().st_size > TEXT_BYTES:
                raise ValueError(f"{history} is too large for a history")
            histories[record.cell_id] = history.read_bytes()
        if record.checkpoint is not None and record.place(record.checkpoint).exists():
            belong.add(record.place(record.checkpoint))
            weights.add(record.checkpoint.sha256)
            misfits += weights_misfits(record)
        for place in run.evaluations:
            scores = LaterEvaluation.read(place).scores
            later |= {(record.cell_id, score.name, score.split) for score in scores}
        inside = replace(record, path=record.path.relative_to(folder))
        if inside.path.parts[0] != record.sweep:
            misfits.append(Misfit(record.path, f"is of the sweep {record.sweep}"))
        first = records.setdefault(record.cell_id, inside)
        if first is not inside:
            raise ValueError(
                f"cell {record.cell_id} is in it twice, as {first.sweep} and as {record.sweep}"
            )
    if misfits:
        raise ValueError(first_of(list(map(str, misfits))))
    for place in sorted(folder.rglob("*")):
        if place.is_file() and place not in belong:
            raise ValueError(f"{place} does not belong into a bundle")
    if not records:
        raise ValueError("it holds no record")
    ordered = tuple(records[identity] for identity in sorted(records))
    good = choices.good.values()
    inside_it = [replace(choice, path=choice.path.relative_to(folder)) for choice in good]
    of_sha256 = {choice.sha256: choice for choice in inside_it}
    return Bundle(path, sha256, ordered, of_sha256, histories, frozenset(weights), frozenset(later))
