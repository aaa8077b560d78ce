"""The tasks of a leaderboard, and how far runs of a cell differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from regbench.benchmark.rundir.record import Record
from regbench.reports.board.gather import Gathered, Version
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.summary import Summary


def new_slug(title: str, taken: set[str]) -> str:
    """Name a file after a title, in small letters, digits and dashes, unlike those in `taken`.

    Add it there.
    """
    kept = "".join(c if c.isascii() and c.isalnum() else " " for c in title.lower())
    plain = "-".join(kept.split())[:80].strip("-") or "unnamed"  # file systems take 255 letters
    slug, number = plain, 1
    while slug in taken:
        number += 1
        slug = f"{plain}-{number}"
    taken.add(slug)
    return slug


def tasks_of(found: Gathered) -> dict[str, Summary]:
    """Divide the cells of all bundles into tasks, by the names of their files.

    Where several labs ran a cell, the run that was finished first stands for it. Images decide too:
    a data set whose test split has other content somewhere is another task there.
    """
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    brief: set[str] = set()
    for bundle in found.bundles:
        brief |= bundle.short
    for versions in found.cells.values():
        record = versions[0].record
        groups[record.cell["dataset"]["name"], record.data.content_sha256.get("test", "")].append(
            record
        )
    splits = Counter(name for name, _ in groups)
    titles: Counter[str] = Counter()
    taken: set[str] = set()
    tasks = {}
    for (name, sha256), records in sorted(groups.items(), key=lambda group: group[0]):
        # Their order decides that of rows with equal scores, so it must not hang on the names of
        # bundles.
        records.sort(key=lambda r: (r.is_reference, r.label, r.seed, r.cell_id))
        short = [record for record in records if record.sha256 in brief]
        whole = [record for record in records if record.sha256 not in brief]
        for summary in summarize(whole, short=short):
            title = f"{name}, {summary.records[0].backbone}"
            if splits[name] > 1:
                title += f", test split {sha256[:8]}"
            if summary.on_test:
                title += ", chosen on the test set"
            # Other settings that tell tasks apart, such as the k of kNN, are too long for a title.
            titles[title] += 1
            if titles[title] > 1:
                title += f" (evaluated in another way: {titles[title]})"
            summary.name = title
            tasks[new_slug(title, taken)] = summary
    return tasks


def difference(summary: Summary, versions: Sequence[Version]) -> float | None:
    """Return by how much leading scores of a cell's runs differ at most; None of a single run."""
    largest = None
    for name in summary.leading:
        values = [version.record.score(name, "test") for version in versions]
        known = [value for value in values if value is not None]
        if len(known) > 1:
            largest = max(largest or 0.0, max(known) - min(known))
    return largest
