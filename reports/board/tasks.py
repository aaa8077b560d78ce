"""The tasks of a leaderboard: their rows, what each was chosen from, and which runs of a cell agree."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regbench.benchmark.rundir.record import Record
from regbench.reports.board.gather import Gathered, key_of
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.summary import Configuration, Summary


@dataclass(frozen=True)
class Task:
    """A data set with a backbone and a way to evaluate.

    Attributes:
        title: Shown.
        slug: Names its files.
        summary: Its rows. Where several labs ran a cell, the run that was finished first stands for it.
    """

    title: str
    slug: str
    summary: Summary

    @property
    def records(self) -> list[Record]:
        """All of its cells: those of the rows, and the short trainings of searches, which are in no row."""
        return [*self.summary.records, *(r for short in self.summary.short for r in short.records)]


@dataclass(frozen=True)
class Tried:
    """What a row was chosen from, but for what a search stopped early.

    Attributes:
        values: The score that chose, of each configuration that has one, the best first.
        configurations: These configurations, in the same order.
        varying: The hyperparameters that tell them apart, by full name.
    """

    values: list[float]
    configurations: list[Configuration]
    varying: list[str]

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def near(self) -> int:
        """How many are within a point of the best."""
        return sum(value >= self.values[0] - 1 for value in self.values)


@dataclass(frozen=True)
class Repeated:
    """A score of a cell that two labs ran: that of the run which tables show, and that of another."""

    task: Task
    first: Record
    first_bundles: tuple[str, ...]
    second: Record
    second_bundles: tuple[str, ...]
    score: str

    @property
    def values(self) -> tuple[float, float]:
        """The score of both."""
        one, other = (record.score(self.score, "test") for record in (self.first, self.second))
        assert one is not None and other is not None
        return one, other


def tasks_of(found: Gathered) -> list[Task]:
    """Divide the cells of all bundles into tasks.

    Images decide too: a data set whose test split has other content somewhere is another task there.
    """
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    brief = frozenset().union(*(submission.short for submission in found.submissions))
    for versions in found.cells.values():
        record = versions[0].record
        groups[record.cell["dataset"]["name"], record.data.content_sha256.get("test", "")].append(record)
    names = [name for name, _ in groups]
    tasks: list[Task] = []
    titles: Counter[str] = Counter()
    slugs = Slugs()
    for (name, sha256), records in sorted(groups.items(), key=lambda group: group[0]):
        records.sort(key=lambda r: (r.untrained, r.label, r.seed, r.cell_id))
        short = [r for r in records if r.sha256 in brief]
        for summary in summarize([r for r in records if r.sha256 not in brief], short=short):
            parts = [name, summary.records[0].backbone]
            parts += [f"test split {sha256[:8]}"] if names.count(name) > 1 else []
            parts += ["chosen on the test set"] if summary.on_test else []
            title = ", ".join(parts)
            titles[title] += 1
            title += f" (evaluated in another way: {titles[title]})" if titles[title] > 1 else ""
            tasks.append(Task(title, slugs.of(title), summary))
    return tasks


class Slugs:
    """Names for files, each given once."""

    def __init__(self) -> None:
        """Begin with none taken."""
        self._taken: dict[str, str] = {}

    def of(self, title: str) -> str:
        """Return the name of a title, in small letters, digits and dashes."""
        if title not in self._taken:
            kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in title.lower())
            plain = "-".join(filter(None, kept.split("-")))[:80].strip("-") or "unnamed"  # file systems take 255
            slug, number = plain, 1
            while slug in self._taken.values():
                number += 1
                slug = f"{plain}-{number}"
            self._taken[title] = slug
        return self._taken[title]


def tried(summary: Summary) -> dict[int, Tried]:
    """Find what each row, by its place, was chosen from, where several configurations have the score that chose."""
    groups = summary.scored(summary.selection, summary.selection_split)
    found = {}
    for number, row in enumerate(summary.rows):
        group = sorted(groups.get(row.place(summary.varying), ()), key=lambda entry: -entry[1])
        if len(group) > 1:
            configurations = [configuration for configuration, _ in group]
            found[number] = Tried([value for _, value in group], configurations, _varying(configurations))
    return found


def _varying(configurations: list[Configuration]) -> list[str]:
    settings = [configuration.first.settings for configuration in configurations]
    keys = [key for key in settings[0] if key.startswith(("method.", "optimizer."))]
    return [key for key in keys if len({each.get(key) for each in settings}) > 1]


def repeated(found: Gathered, tasks: Sequence[Task]) -> Iterator[Repeated]:
    """Yield the leading scores of all cells that several labs ran."""
    places = {key_of(record): task for task in tasks for record in task.records}
    for key, (first, *others) in found.cells.items():
        task = places[key]
        for other in others:
            for score in task.summary.leading:
                if first.record.score(score, "test") is None or other.record.score(score, "test") is None:
                    continue
                yield Repeated(task, first.record, first.bundles, other.record, other.bundles, score)
