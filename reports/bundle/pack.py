"""Packing finished cells into a bundle."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbench.benchmark.rundir.record import Record
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE
from regbench.errors import RegbenchError
from regbench.files import hold, is_stream
from regbench.reports.bundle.bundle import SUFFIX, read_bundle, write_bundle
from regbench.reports.bundle.claims import claim_misfits
from regbench.reports.find.check import check_records, first_of
from regbench.reports.find.records import check_command
from regbench.reports.find.runs import Found, find_missing, find_runs


@dataclass(frozen=True)
class Submitted:
    """A bundle that `submit` wrote.

    Attributes:
        sha256: SHA-256 of the bundle.
        cells: Number of cells in it.
        missing: Number of planned or begun cells that are not in it, because they are not finished.
        size_bytes: Size of the file.
    """

    sha256: str
    cells: int
    missing: int
    size_bytes: int


def submit(folders: Sequence[Path], out: Path, *, weights: bool = False) -> Submitted:
    """Pack the finished cells of some sweeps into a bundle.

    Args:
        folders: Folders of the sweeps.
        out: The bundle to write.
        weights: Whether to pack the final weights too.

    Raises:
        RegbenchError: If `check_records` or `claim_misfits` finds anything that does not fit, a
            cell is in two of the sweeps, weights are asked for and gone, or `out` has another
            suffix, is a stream (see `regbench.files.is_stream`) or is there already.
    """
    if not out.name.endswith(SUFFIX):
        raise RegbenchError(f"{out} is no name of a bundle; give an --out that ends in {SUFFIX}")
    if is_stream(out):
        raise RegbenchError(
            f"{out} is no regular file, which a bundle has to be; give another --out"
        )
    checked = check_records(folders)
    if checked.misfits:
        _refuse(checked.misfits, f"`{check_command(folders)}` tells all")
    found = find_runs(folders)
    files = _files(found, weights=weights)
    # The file stays in a folder of its own until it is checked, so that nobody takes an unchecked
    # one for a bundle. The folder's name is always the same, so that the next call replaces what a
    # killed one left.
    place, busy = out.with_name(f".{out.name}.unfinished"), out.with_name(f".{out.name}.lock")
    out.parent.mkdir(parents=True, exist_ok=True)
    with hold(busy, f"writes {out}"):
        shutil.rmtree(place, ignore_errors=True)
        try:
            written = place / out.name
            write_bundle(files, written)
            # Read back from the disk, so that what is checked is what a reader will get.
            bundle = read_bundle(written)
            misfits = claim_misfits(bundle)
            if misfits:
                _refuse(misfits, "docs/leaderboard.md says what is checked")
            size_bytes = written.stat().st_size
            written.replace(out)
        finally:
            shutil.rmtree(place, ignore_errors=True)
            busy.unlink(missing_ok=True)
    return Submitted(bundle.sha256, len(bundle.records), len(find_missing(found)), size_bytes)


def _files(found: Found, *, weights: bool) -> dict[str, Path]:
    """Find the files of a bundle, by their names in it."""
    records: dict[str, Record] = {}
    files: dict[str, Path] = {}
    sweeps: dict[Path, str] = {}
    for run in found.runs:
        if run.record is None:
            continue
        record = Record.read(run.record)
        first = records.setdefault(record.cell_id, record)
        if first is not record:
            raise RegbenchError(
                f"cell {record.cell_id} is in {first.path} and in {record.path}; leave one of the "
                "two sweeps out and submit it as a bundle of its own"
            )
        kept = [run.record, run.path / "config.yaml"]
        if record.metrics is not None:
            kept.append(record.place(record.metrics))
        if weights and record.checkpoint is not None:
            kept.append(record.place(record.checkpoint))
            if not kept[-1].exists():
                raise RegbenchError(
                    f"{kept[-1]} is gone, and cannot be packed; leave out --weights"
                )
        # A folder may have been renamed; its cells are still those of their sweep.
        sweeps[run.path.parent] = record.sweep
        for path in (*kept, *run.evaluations):
            files[f"{record.sweep}/{record.cell_id}/{path.relative_to(run.path)}"] = path
    for path in filter(Path.exists, (folder / TUNING_CHOICE for folder in found.sweeps)):
        name = f"{sweeps.get(path.parent, path.absolute().parent.name)}/{TUNING_CHOICE}"
        if name in files:
            raise RegbenchError(f"{path} and {files[name]} are of one sweep; leave one of them out")
        files[name] = path
    return files


def _refuse(misfits: Sequence[str], remedy: str) -> None:
    raise RegbenchError(
        f"what does not check out cannot be submitted: {first_of(misfits)}; {remedy}"
    )
