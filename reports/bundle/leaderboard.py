"""The leaderboard of many bundles: the report of all their cells."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from regbench.benchmark.rundir.record import Record
from regbench.errors import RegbenchError
from regbench.reports import write_records
from regbench.reports.bundle.bundle import SUFFIX, Bundle, read_bundle
from regbench.reports.bundle.claims import claim_misfits, unit_misfits
from regbench.reports.find.check import first_of, image_misfits
from regbench.reports.find.judging import Misfit
from regbench.reports.find.records import read_records
from regbench.text import counted, printable


@dataclass(frozen=True)
class Leaderboard:
    """A leaderboard that was written.

    Attributes:
        page: Its HTML page.
        bundles: Number of bundles that are in it.
        left_out: Bundles and cells that are not, each "name: reason".
    """

    page: Path
    bundles: int
    left_out: tuple[str, ...]


def write_leaderboard(folder: Path, out: Path) -> Leaderboard:
    """Write the report of all bundles in a folder.

    A bundle is left out if `verify` refuses it, or if it has other images of a data set or other
    units of a score than those before it.

    Args:
        folder: Folder with bundles, its subfolders included.
        out: The folder to write to. Files of the same names are replaced.

    Raises:
        RegbenchError: If no bundle can be taken, or `out` cannot be written to.
    """
    folder, out = folder.absolute(), out.absolute()
    taken: list[Path] = []
    left_out: list[Misfit] = []
    # Cell id -> the record that counts, and the bundle that it is of.
    of_cell: dict[str, tuple[Record, Path]] = {}
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        # In the order of names, so that the same folder gives the same page.
        paths = sorted(filter(Path.is_file, folder.rglob(f"*{SUFFIX}")))
        for path in tqdm(paths, desc="bundles", unit="", leave=False, disable=None):
            # The paths on the page begin with this name.
            name = Path(printable(str(path.relative_to(folder))))
            try:
                bundle = read_bundle(path, name)
                together = [*(record for record, _ in of_cell.values()), *bundle.records]
                misfits = claim_misfits(bundle) or [*image_misfits(together)]
                misfits = misfits or [*map(str, unit_misfits(together))]
                if misfits:
                    raise RegbenchError(first_of(misfits))
            except RegbenchError as error:
                left_out.append(Misfit(name, str(error)))
                shutil.rmtree(name, ignore_errors=True)
                continue
            taken.append(name)
            left_out += _leave_out_known(bundle, name, of_cell)
            for weights in name.rglob("*.pt"):
                weights.unlink()
        if not taken:
            why = f"; the first of {len(left_out)} was refused: {left_out[0]}" if left_out else ""
            raise RegbenchError(f"no bundle in {folder}{why}; make one with `regbench submit`")
        found = read_records(taken)
        found = dataclasses.replace(
            found, skipped=(*left_out, *found.skipped), remedy="regbench verify BUNDLE"
        )
        written = write_records(found, out)
    return Leaderboard(written.page, len(taken), written.skipped)


def _leave_out_known(
    bundle: Bundle, folder: Path, known: dict[str, tuple[Record, Path]]
) -> Iterator[Misfit]:
    """Remove the cells that an earlier bundle has from the folder of a later one.

    Yields:
        A line for each earlier bundle that has other scores of some of them.
    """
    others: Counter[Path] = Counter()
    for record in bundle.records:
        first, place = known.setdefault(record.cell_id, (record, folder))
        if first is record:
            continue
        # A final run has all that the tuning of the same cell has, and more.
        if first.status == "tuned" and record.status != "tuned":
            known[record.cell_id] = (record, folder)
            continue
        one, other = first.values, record.values
        if any(one[key] != other[key] for key in one.keys() & other.keys()):
            others[place] += 1
        shutil.rmtree(folder / record.path.parent)
    for place, number in others.items():
        verb = "is" if number == 1 else "are"
        cells = f"{counted(number, 'cell')} {verb}"
        yield Misfit(folder, f"{cells} in {place} already, with other scores, which count")
