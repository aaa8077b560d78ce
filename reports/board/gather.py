"""The records of all bundles in a folder, those of the same cell together."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from regbench.benchmark.rundir.record import Record, finite_numbers
from regbench.errors import RegbenchError
from regbench.reports.bundle.bundle import Bundle, read_bundle
from regbench.reports.bundle.claims import claim_misfits
from regbench.reports.collecting import uncollected
from regbench.text import printable

_LARGE_BYTES = 5 * 2**20
"""Of all bundles together, for which it is worth to start processes, which takes them a second or two."""

OF_EMBEDDINGS = ("effective_rank", "alignment")
"""Of the last epoch, what the site shows."""

Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class BundledRecord(Record):
    """A record whose history is not beside it.

    Attributes:
        ends: The numbers `OF_EMBEDDINGS` of the last epoch.
    """

    ends: dict[str, float] = field(default_factory=dict)

    @functools.cached_property
    def at_end(self) -> dict[str, float]:
        """The numbers `OF_EMBEDDINGS` of the last epoch."""
        return self.ends


@dataclass(frozen=True)
class Version:
    """One run of a cell.

    Attributes:
        record: What it left. Its history is not known here.
        bundles: The names of the bundles that it is in.
    """

    record: Record
    bundles: tuple[str, ...]


@dataclass(frozen=True)
class Submission:
    """A bundle that was taken.

    Attributes:
        name: Of its file, without the ending.
        sha256: Of the bundle.
        records: What is in it.
        short: The SHA-256 of those that a search trained for fewer epochs than what it chose.
    """

    name: str
    sha256: str
    records: tuple[Record, ...]
    short: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Gathered:
    """What the bundles of a folder hold.

    Attributes:
        submissions: Those that were taken, by name.
        refused: The names of the others, and the first reason for each.
        cells: The runs of each cell by its `key_of`; the first finished one, which tables show, comes first.
    """

    submissions: tuple[Submission, ...]
    refused: tuple[tuple[str, str], ...]
    cells: dict[Key, tuple[Version, ...]]


def key_of(record: Record) -> Key:
    """Return what runs of the same cell share: its id, and the images of the test split."""
    return record.cell_id, record.data.content_sha256.get("test", "")


def gather(folder: Path) -> Gathered:
    """Read all bundles in a folder, and check them by the rule of `claim_misfits`.

    Raises:
        RegbenchError: If there is none that can be taken.
    """
    paths = sorted(path for path in folder.rglob("*.zip") if path.is_file())
    large = sum(path.stat().st_size for path in paths) > _LARGE_BYTES and len(paths) > 1
    with contextlib.ExitStack() as stack:
        run: Callable[..., Iterable[Submission | tuple[str, str]]] = map
        if large:
            spawn = multiprocessing.get_context("spawn")  # this process may have threads
            run = stack.enter_context(ProcessPoolExecutor(mp_context=spawn)).map
        read = run(_read, paths, [str(path.relative_to(folder).with_suffix("")) for path in paths])
        shown = tqdm(read, total=len(paths), desc="bundles", unit="", leave=False, disable=not sys.stderr.isatty())
        taken = list(shown)
    submissions = [one for one in taken if isinstance(one, Submission)]
    refused = [one for one in taken if not isinstance(one, Submission)]
    if not submissions:
        why = f"; the first of {len(refused)} was refused: {refused[0][1]}" if refused else ""
        raise RegbenchError(f"no bundle in {folder}{why}; make one with `regbench submit`")
    return Gathered(tuple(submissions), tuple(refused), _by_cell(submissions))


def _read(path: Path, name: str) -> Submission | tuple[str, str]:
    """Read and check a bundle; return its name and the first reason if it is refused."""
    name = printable(name)
    with uncollected():
        try:
            bundle = read_bundle(path)
            if not (misfits := claim_misfits(bundle)):
                return Submission(name, bundle.sha256, _slim(bundle), _short(bundle))
        except RegbenchError as error:
            return name, str(error)
        more = f" (and {len(misfits) - 1} more)" if len(misfits) > 1 else ""
        return name, f"{misfits[0]}{more}"


def _short(bundle: Bundle) -> frozenset[str]:
    """Find the records of trainings that were steps of a search: shorter than any of their method that was chosen."""
    lengths: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for choice in bundle.choices.values():
        for entry in choice.choices:
            settings = (entry.setting.get(key) for key in ("dataset", "backbone", "embedding_dim", "batch_size"))
            lengths[entry.label, *settings].add(entry.setting.get("epochs", 0))
    found = []
    for record in bundle.records:
        cell = record.cell
        place = (cell["dataset"]["name"], record.backbone, cell["embedding_dim"], cell["batch_size"])
        chosen = lengths.get((record.label, *place), ())
        if record.status != "done" and chosen and cell["epochs"] not in chosen and cell["epochs"] < max(chosen):
            found.append(record.sha256)
    return frozenset(found)


def _slim(bundle: Bundle) -> tuple[BundledRecord, ...]:
    """Let records share what is the same in all: of a hundred thousand, each would keep some 40 kB of its own."""
    shared: dict[bytes, Any] = {}

    def share(value: Any) -> Any:
        return shared.setdefault(orjson.dumps(value), value) if isinstance(value, dict | list) else value

    def slim(record: Record) -> BundledRecord:
        ends = finite_numbers(bundle.last_epoch(record))
        fields = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
        fields |= {
            "cell": {key: share(value) for key, value in record.cell.items()},
            "environment": share(record.environment),
            "regularizer": share(record.regularizer),
            "choice": {what: share(entry) for what, entry in record.choice.items()},
            "metrics": None,  # the history is not here
            "ends": {name: ends[name] for name in OF_EMBEDDINGS if name in ends},
        }
        return BundledRecord(**fields)

    return tuple(map(slim, bundle.records))


def _by_cell(submissions: list[Submission]) -> dict[Key, tuple[Version, ...]]:
    runs: dict[Key, dict[str, Version]] = {}
    for submission in submissions:
        for record in submission.records:
            of_cell = runs.setdefault(key_of(record), {})
            known = of_cell.get(record.sha256)  # the same run may be in several bundles
            names = (*known.bundles, submission.name) if known else (submission.name,)
            most = record if known is None else max(known.record, record, key=lambda each: len(each.scores))
            of_cell[record.sha256] = Version(most, names)  # later evaluations may be in one of them only

    def order(version: Version) -> tuple[bool, str, str]:
        return version.record.status == "tuned", version.record.finished, version.record.sha256

    return {key: tuple(sorted(versions.values(), key=order)) for key, versions in runs.items()}
