"""The records of all bundles in a folder, those of the same cell together."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from regbench.benchmark.rundir.record import Record
from regbench.benchmark.rundir.record_parts import finite_numbers
from regbench.errors import RegbenchError
from regbench.reports.bundle.bundle import SUFFIX, Bundle, read_bundle
from regbench.reports.bundle.claims import claim_misfits
from regbench.reports.bundle.rows_file import ROWS_SUFFIX, bundle_beside, read_entered
from regbench.reports.find.check import first_of
from regbench.text import printable

OF_EMBEDDINGS = ("effective_rank", "alignment")
"""Measures of the last epoch that the site shows."""

Key = tuple[str, str]


@dataclass(frozen=True)
class Version:
    """One run of a cell.

    Attributes:
        record: Record of the run. Its history is not known here.
        bundles: The names of the bundles that it is in.
    """

    record: Record
    bundles: tuple[str, ...]


@dataclass(frozen=True)
class CheckedBundle:
    """A bundle that was taken.

    Attributes:
        name: Name of its file, without the ending.
        sha256: Digest of the bundle.
        records: Records in it.
        short: The SHA-256 of those that a search trained for fewer epochs than what it chose.
    """

    name: str
    sha256: str
    records: tuple[Record, ...]
    short: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Gathered:
    """The content of a folder's bundles.

    Attributes:
        bundles: Bundles that were taken, by name.
        refused: The names of the others, and the first reason for each.
        cells: The runs of each cell by its `key_of`; the first finished one, which tables show,
            comes first.
    """

    bundles: tuple[CheckedBundle, ...]
    refused: tuple[tuple[str, str], ...]
    cells: dict[Key, tuple[Version, ...]]


def key_of(record: Record) -> Key:
    """Return what runs of the same cell share: its id, and the images of the test split."""
    return record.cell_id, record.data.content_sha256.get("test", "")


def gathered(bundle: Bundle) -> Gathered:
    """Return what a bundle that has checked out holds, as if it were alone in a folder."""
    only = CheckedBundle(bundle.path.stem, bundle.sha256, bundle.records, _short(bundle))
    return Gathered((only,), (), _by_cell([only]))


def gather(folder: Path) -> Gathered:
    """Read all bundles in a folder, fetch those of rows files alone, and check all by the rule of
    `claim_misfits`.

    Raises:
        RegbenchError: If there is none that can be taken.
    """
    alone = [path for path in folder.rglob(f"*{ROWS_SUFFIX}") if not bundle_beside(path).exists()]
    # In the order of names, so that the same folder makes the same site.
    paths = sorted(filter(Path.is_file, (*folder.rglob(f"*{SUFFIX}"), *alone)))
    bundles, refused = [], []
    for path in tqdm(paths, desc="bundles", unit="", leave=False, disable=None):
        one = _read(
            path, str(path.relative_to(folder)).removesuffix(SUFFIX).removesuffix(ROWS_SUFFIX)
        )
        if isinstance(one, CheckedBundle):
            bundles.append(one)
        else:
            refused.append(one)
    if not bundles:
        why = f"; the first of {len(refused)} was refused: {refused[0][1]}" if refused else ""
        raise RegbenchError(f"no bundle in {folder}{why}; make one with `regbench submit`")
    return Gathered(tuple(bundles), tuple(refused), _by_cell(bundles))


def _read(path: Path, name: str) -> CheckedBundle | tuple[str, str]:
    """Read and check a bundle, or that of a rows file.

    Return its name and the first reason if it is refused.
    """
    name = printable(name)  # a stranger's text, which goes to a terminal and into pages
    try:
        if path.name.endswith(SUFFIX):
            bundle = read_bundle(path)
        else:
            with tempfile.TemporaryDirectory() as temporary:
                _, bundle = read_entered(path, Path(temporary))
    except RegbenchError as error:
        return name, str(error)
    misfits = claim_misfits(bundle)
    if misfits:
        return name, first_of(misfits)
    return CheckedBundle(name, bundle.sha256, _slim(bundle), _short(bundle))


def _short(bundle: Bundle) -> frozenset[str]:
    """Find the steps of searches: trainings that are shorter than any of their method that was
    chosen.
    """
    lengths: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for choice in bundle.choices.values():
        for entry in choice.choices:
            settings = map(
                entry.setting.get, ("dataset", "backbone", "embedding_dim", "batch_size")
            )
            lengths[entry.label, *settings].add(entry.setting.get("epochs", 0))
    found = []
    for record in bundle.records:
        cell = record.cell
        place = (
            cell["dataset"]["name"],
            record.backbone,
            cell["embedding_dim"],
            cell["batch_size"],
        )
        chosen = lengths.get((record.label, *place), ())
        # A bundle does not hold the search's own list, so lengths have to tell.
        if (
            record.status != "done"
            and chosen
            and cell["epochs"] not in chosen
            and cell["epochs"] < max(chosen)
        ):
            found.append(record.sha256)
    return frozenset(found)


def _slim(bundle: Bundle) -> tuple[Record, ...]:
    """Let records share what is the same in all: each would keep some 40 kB of its own."""
    shared: dict[bytes, Any] = {}

    def share(value: Any) -> Any:
        return (
            shared.setdefault(orjson.dumps(value), value)
            if isinstance(value, dict | list)
            else value
        )

    def share_values(group: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(group, map(share, group.values()), strict=True))

    records = []
    for record in bundle.records:
        slim = dataclasses.replace(
            record,
            cell=share_values(record.cell),
            environment=share(record.environment),
            regularizer=share(record.regularizer),
            choice=share_values(record.choice),
            metrics=None,
        )
        ends = finite_numbers(bundle.last_epoch(record))
        # The history lies in no file beside the record, so what a record reads of it is put there.
        vars(slim)["at_end"] = {name: ends[name] for name in OF_EMBEDDINGS if name in ends}
        records.append(slim)
    return tuple(records)


def _by_cell(bundles: list[CheckedBundle]) -> dict[Key, tuple[Version, ...]]:
    runs: dict[Key, dict[str, Version]] = {}
    for bundle in bundles:
        for record in bundle.records:
            of_cell = runs.setdefault(key_of(record), {})
            most = record
            names: tuple[str, ...] = (bundle.name,)
            if (
                known := of_cell.get(record.sha256)
            ) is not None:  # the same run may be in several bundles
                names = (*known.bundles, bundle.name)
                # Later evaluations may be in one of them only.
                most = max(known.record, record, key=lambda each: len(each.scores))
            of_cell[record.sha256] = Version(most, names)
    cells = {}
    for key, versions in runs.items():
        cells[key] = tuple(sorted(versions.values(), key=_order))
    return cells


def _order(version: Version) -> tuple[bool, str, str]:
    """Sort runs of a cell: those with final scores first, then by when they were finished."""
    # The SHA-256 decides between runs of the same second, so that the order of bundles does not.
    return version.record.status == "tuned", version.record.finished, version.record.sha256
