"""The tasks of a leaderboard, and the cells that several labs ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from regbench.benchmark.rundir.record import Record
from regbench.reports.board.gather import Gathered, Key, Version, key_of
from regbench.reports.page.page import all_records
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.summary import Summary


@dataclass(frozen=True)
class Repeated:
    """A leading score of a cell that two labs ran.

    Attributes:
        first: The run that tables show.
        second: The other one.
        head: The score's title and unit.
        values: The score of both.
    """

    first: Version
    second: Version
    head: str
    values: tuple[float, float]

    @property
    def difference(self) -> float:
        """The second value minus the first."""
        return self.values[1] - self.values[0]


class Slugs:
    """Names for files, each given once."""

    def __init__(self) -> None:
        """Begin with none taken."""
        self._taken: set[str] = set()

    def of(self, title: str) -> str:
        """Return a new name like a title, in small letters, digits and dashes."""
        kept = "".join(c if c.isascii() and c.isalnum() else " " for c in title.lower())
        plain = "-".join(kept.split())[:80].strip("-") or "unnamed"  # file systems take 255 letters
        slug, number = plain, 1
        while slug in self._taken:
            number += 1
            slug = f"{plain}-{number}"
        self._taken.add(slug)
        return slug


def tasks_of(found: Gathered) -> dict[str, Summary]:
    """Divide the cells of all bundles into tasks, by the names of their files.

    Where several labs ran a cell, the run that was finished first stands for it. Images decide too: a data set whose
    test split has other content somewhere is another task there.
    """
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    brief = frozenset().union(*(submission.short for submission in found.submissions))
    for versions in found.cells.values():
        record = versions[0].record
        groups[record.cell["dataset"]["name"], record.data.content_sha256.get("test", "")].append(record)
    splits = Counter(name for name, _ in groups)
    titles: Counter[str] = Counter()
    slugs, tasks = Slugs(), {}
    for (name, sha256), records in sorted(groups.items(), key=lambda group: group[0]):
        records.sort(key=lambda r: (r.untrained, r.label, r.seed, r.cell_id))
        short = [r for r in records if r.sha256 in brief]
        for summary in summarize([r for r in records if r.sha256 not in brief], short=short):
            title = f"{name}, {summary.records[0].backbone}"
            if splits[name] > 1:
                title += f", test split {sha256[:8]}"
            if summary.on_test:
                title += ", chosen on the test set"
            titles[title] += 1
            if titles[title] > 1:
                title += f" (evaluated in another way: {titles[title]})"
            summary.name = title
            tasks[slugs.of(title)] = summary
    return tasks


def repeated(summary: Summary, cells: Mapping[Key, tuple[Version, ...]]) -> list[Repeated]:
    """Find the leading scores of a task's cells that several labs ran."""
    found = []
    for record in all_records(summary):
        first, *others = cells[key_of(record)]
        for second in others:
            for name in summary.leading:
                one, other = first.record.score(name, "test"), second.record.score(name, "test")
                if one is not None and other is not None:
                    found.append(Repeated(first, second, summary.scores[name].head, (one, other)))
    return found
