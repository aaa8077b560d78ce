"""The leaderboard's files: a page for all, for each task and each method, and scripts with the cells.

Pages hold their tables as JSON, which the script of the site shows a hundred rows at a time. What is known of single
cells lies in `data/`, in scripts that a page loads when it is asked for one: a page from a disk can load nothing else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from regbench import RegbenchError
from regbench.files import write_bytes
from regbench.reports.board.cells import cell_scripts
from regbench.reports.board.columns import Table, digests, links, means, numbers, table, texts
from regbench.reports.board.gather import Gathered, gather, key_of
from regbench.reports.board.tasks import Slugs, Task, Tried, repeated, tasks_of, tried
from regbench.reports.page.drawing import Style, styles, unique_ids
from regbench.reports.page.figures import COSTS, scatter_drawings, spectrum_drawings
from regbench.reports.page.page import MARKER_PATHS
from regbench.reports.rows.summary import DASH, Row, Stat, Summary

_HERE = Path(__file__).parent
_PAGE = _HERE.parent / "page"
_SCORES = 8  # columns of scores of a task's table
_SHOWN_REFUSED = 20


@dataclass(frozen=True)
class Site:
    """What `write_site` wrote.

    Attributes:
        page: To open first.
        cells: How many different ones.
        tasks: How many.
        bundles: How many were taken.
        refused: Names of bundles that were not, and the first reason for each.
    """

    page: Path
    cells: int
    tasks: int
    bundles: int
    refused: tuple[tuple[str, str], ...]


def write_site(folder: Path, out: Path) -> Site:
    """Make the leaderboard of all bundles in a folder.

    Args:
        folder: With bundles, also in folders of its own.
        out: The folder to write to. Files of the same names are replaced.

    Raises:
        RegbenchError: If no bundle can be taken, or `out` cannot be written to.
    """
    found = gather(folder)
    tasks = tasks_of(found)
    try:
        for name, content in _Pages(found, tasks).files():
            write_bytes(out / name, content)
    except OSError as error:
        raise RegbenchError(f"cannot write to {out}: {error.strerror}; give another --out") from error
    return Site(out / "index.html", len(found.cells), len(tasks), len(found.submissions), found.refused)


class _Pages:
    """The pages of a site, which link to each other."""

    def __init__(self, found: Gathered, tasks: Sequence[Task]) -> None:
        self.found, self.tasks = found, tasks
        self.repeated = list(repeated(found, tasks))
        labels = {row.label for task in tasks for row in task.summary.rows if not row.untrained}
        self.style = styles(labels)
        slugs = Slugs()
        self.methods = {label: f"methods/{slugs.of(label)}.html" for label in sorted(labels, key=str.casefold)}
        environment = Environment(
            loader=FileSystemLoader([_HERE, _PAGE]), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        environment.filters["table"] = _json
        environment.globals["marker_paths"] = MARKER_PATHS
        self._environment = environment

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the content of every file."""
        yield "board.css", ((_PAGE / "page.css").read_text() + (_HERE / "board.css").read_text()).encode()
        yield "board.js", ((_PAGE / "elements.js").read_text() + (_HERE / "board.js").read_text()).encode()
        of_methods: dict[str, list[tuple[Task, int, Row, Tried | None]]] = defaultdict(list)
        for task in self.tasks:
            chosen_from = tried(task.summary)
            for number, row in enumerate(task.summary.rows):
                of_methods[row.label].append((task, number, row, chosen_from.get(number)))
            yield f"tasks/{task.slug}.html", self._task(task, chosen_from)
            yield from cell_scripts(task, self.found.cells)
        for label, page in self.methods.items():
            yield page, self._method(label, of_methods[label])
        if self.repeated:
            yield (
                "repeated.html",
                self._page("repeated.html", "", "Cells that several labs ran", table_of=self._twice()),
            )
        # The start page comes last: it is there only when all that it leads to is.
        yield "index.html", self._index()

    def _page(self, template: str, up: str, title: str, **content: Any) -> bytes:
        text = self._environment.get_template(template).render(up=up, title=title, **content)
        return text.encode()

    def _index(self) -> bytes:
        tasks = []
        for task in self.tasks:
            summary, head = task.summary, task.summary.headline
            trained = [row for row in summary.rows if not row.untrained]
            best = trained[0] if trained else None
            value = best.score(head) if best and head else None
            tasks.append(
                [
                    [task.title, f"tasks/{task.slug}.html"],
                    len(summary.records),
                    len({row.label for row in trained}),
                    best.name if best else DASH,
                    _stat(value),
                    summary.scores[head].head if head else DASH,
                    max((record.finished[:10] for record in summary.records), default=""),
                ]
            )
        columns = [
            links("task"),
            numbers("cells"),
            numbers("methods"),
            texts("best row"),
            means("its score"),
            texts("score"),
            texts("newest"),
        ]
        return self._page(
            "board.html",
            "",
            "regbench: leaderboard",
            tasks=table(columns, tasks),
            methods=self._methods(),
            bundles=self._bundles(),
            refused=self.found.refused[:_SHOWN_REFUSED],
            refused_in_all=len(self.found.refused),
            repeated=len({one.first.cell_id for one in self.repeated}),
            largest=max((abs(one.values[0] - one.values[1]) for one in self.repeated), default=0.0),
            cells=len(self.found.cells),
        )

    def _methods(self) -> Table:
        rows = []
        for label, page in self.methods.items():
            own = [row for task in self.tasks for row in task.summary.rows if row.label == label]
            in_tasks = sum(any(row.label == label for row in task.summary.rows) for task in self.tasks)
            first = sum(any(row.label == label for row in task.summary.rows[:1]) for task in self.tasks)
            reference = own[0].first.regularizer.get("reference", "")
            rows.append([[label, page], reference, in_tasks, first, sum(len(row.records) for row in own)])
        columns = [links("method"), texts("published"), numbers("tasks")]
        columns += [numbers("first in"), numbers("cells in rows")]
        return table(columns, rows)

    def _bundles(self) -> Table:
        rows = []
        for submission in self.found.submissions:
            records = submission.records
            days = sorted(record.finished[:10] for record in records if record.finished)
            rows.append(
                [
                    submission.name,
                    len(records),
                    _distinct(record.sweep for record in records),
                    _distinct(str(record.environment.get("hardware", DASH)) for record in records),
                    _distinct(str(record.environment.get("git", DASH)) for record in records),
                    " to ".join(dict.fromkeys((days[0], days[-1]))) if days else DASH,
                    submission.sha256,
                ]
            )
        columns = [texts("bundle"), numbers("cells"), texts("sweeps"), texts("hardware"), texts("code")]
        return table([*columns, texts("finished"), digests("sha256")], rows)

    def _twice(self) -> Table:
        rows = [
            [
                [one.first.cell_id, f"tasks/{one.task.slug}.html#cell-{one.first.cell_id}"],
                one.first.label,
                one.task.title,
                one.first.seed,
                one.task.summary.scores[one.score].head,
                ", ".join(one.first_bundles),
                one.values[0],
                ", ".join(one.second_bundles),
                one.values[1],
                one.values[1] - one.values[0],
            ]
            for one in self.repeated
        ]
        columns = [
            links("cell"),
            texts("method", filtered=True),
            texts("task", filtered=True),
        ]
        columns += [numbers("seed"), texts("score", filtered=True), texts("first in")]
        columns += [
            numbers("score there", 2),
            texts("also in"),
            numbers("score in it", 2),
        ]
        return table([*columns, numbers("difference", 2)], rows)

    def _task(self, task: Task, chosen_from: Mapping[int, Tried]) -> bytes:
        summary = task.summary
        labels = sorted({row.label for row in summary.rows if not row.untrained}, key=str.casefold)
        drawings = scatter_drawings(summary, self.style, COSTS)
        return self._page(
            "task.html",
            "../",
            task.title,
            slug=task.slug,
            leaderboard=self._rows(task),
            sensitivity=self._sensitivity(summary, chosen_from) if chosen_from else None,
            split=summary.selection_split,
            selection=summary.selection_title,
            on_test=summary.on_test,
            drawings=[replace(d, svg=unique_ids(d.svg, f"d{i}")) for i, d in enumerate(drawings)],
            legend_of={label: self.style[label] for label in labels},
            protocols=sorted({f"{s.head}: {s.protocol}" for r in summary.records[:200] for s in r.scores})[:12],
            cells=len(summary.records),
        )

    def _rows(self, task: Task) -> Table:
        """Make the leaderboard of a task: its rows with all scores in per cent, cost, budget and bundles."""
        summary = task.summary
        settings = list(summary.rows[0].settings) if summary.rows else []
        names = [name for name, score in summary.scores.items() if score.higher_is_better is not None]
        names = [name for name in names if any(row.score(name) for row in summary.rows)]
        names = [*summary.leading, *(name for name in names if name not in summary.leading)][:_SCORES]
        best = {name: summary.best(name).rows for name in summary.leading}
        columns = [links("method", filtered=True)]
        columns += [texts(name, filtered=True) for name in settings]
        columns += [means(summary.scores[name].head, 2) for name in names]
        columns += [
            numbers("seeds"),
            means("training (s)", 1),
            means("peak memory (MiB)", 0),
        ]
        columns += [means("step (ms)", 1), numbers("tuned among"), numbers("bundles")]
        rows = []
        for number, row in enumerate(summary.rows):
            scores = [_stat(row.score(name), bold=number in best.get(name, ())) for name in names]
            bundles = {
                bundle for r in row.records for version in self.found.cells[key_of(r)] for bundle in version.bundles
            }
            memory = row.cost("peak_memory_bytes")
            mib = Stat(memory.mean / 2**20, memory.spread and memory.spread / 2**20, memory.n) if memory else None
            rows.append(
                [
                    [row.label + " ‡" * bool(row.edges) + " †" * bool(row.diverged), self._link(row)],
                    *row.settings.values(),
                    *scores,
                    len(row.records),
                    _stat(row.cost("train_s")),
                    _stat(mib),
                    _stat(row.cost("step_ms")),
                    summary.budget(row),
                    len(bundles),
                    [f"{len(row.records)} cells", f"#row-{number}"],
                ]
            )
        return table([*columns, links("cells")], rows)

    def _link(self, row: Row) -> str:
        return f"../{self.methods[row.label]}" if row.label in self.methods else ""

    def _sensitivity(self, summary: Summary, chosen_from: Mapping[int, Tried]) -> Table:
        rows = []
        for number, one in chosen_from.items():
            row = summary.rows[number]
            kept = [one.values[0], one.median, one.values[-1], one.values[0] - one.median, one.near]
            rows.append([[row.label, self._link(row)], *row.settings.values(), len(one.values), *kept])
        settings = list(summary.rows[0].settings)
        columns = [links("method", filtered=True), *(texts(n, filtered=True) for n in settings)]
        columns += [numbers("tried"), *(numbers(n, 2) for n in ("best", "median", "worst"))]
        return table([*columns, numbers("best − median", 2), numbers("within a point")], rows)

    def _method(self, label: str, rows: Sequence[tuple[Task, int, Row, Tried | None]]) -> bytes:
        results, tries = [], []
        for task, number, row, one in rows:
            head = task.summary.headline
            results.append(
                [
                    [task.title, f"../tasks/{task.slug}.html#row-{number}"],
                    _settings(row),
                    task.summary.scores[head].head if head else DASH,
                    _stat(row.score(head)) if head else None,
                    number + 1,
                    len(task.summary.rows),
                    len(row.records),
                    task.summary.budget(row),
                ]
            )
            if one is not None:
                tries += [[task.title, _settings(row), *each] for each in _tries(one)]
        columns = [links("task"), texts("setting"), texts("score")]
        columns += [means("mean", 2), numbers("place"), numbers("of")]
        columns += [numbers("seeds"), numbers("tuned among")]
        of_tries = [texts("task", filtered=True), texts("setting", filtered=True)]
        of_tries += [
            texts("hyperparameters"),
            numbers("score that chose (%)", 2),
            numbers("place"),
        ]
        first = rows[0][2].first
        url = first.regularizer.get("url", "")
        keys = ("published", "limitation", "time", "memory")
        return self._page(
            "method.html",
            "../",
            label,
            name=first.method,
            style=self.style[label],
            said=first.regularizer,
            url=url if url.startswith(("https://", "http://")) else "",
            facts={key.capitalize(): text for key in keys if (text := first.regularizer.get(key))},
            drawings=_spectrum(rows, self.style),
            results=table(columns, results),
            tries=table(of_tries, tries) if tries else None,
        )


def _spectrum(rows: Sequence[tuple[Task, int, Row, Tried | None]], style: Mapping[str, Style]) -> list[Any]:
    """Draw the spectrum of a method's kernel as it ran in the first task that has one."""
    for task in dict.fromkeys(task.slug for task, *_ in rows):
        own = [(each, row) for each, _, row, _ in rows if each.slug == task]
        summary = replace(own[0][0].summary, rows=[row for _, row in own])
        if drawings := spectrum_drawings(summary, style):
            return drawings
    return []


def _tries(one: Tried) -> Iterator[list[Any]]:
    for place, (value, configuration) in enumerate(zip(one.values, one.configurations, strict=True), 1):
        settings = configuration.first.settings
        own = [f"{key.removeprefix('method.')}={_short(settings.get(key, DASH))}" for key in one.varying]
        yield [", ".join(own), value, place]


def _short(number: str) -> str:
    """Show a number to four digits."""
    return re.sub(r"-?\d+\.\d{4,}(e-?\d+)?", lambda found: f"{float(found[0]):.4g}", number)


def _settings(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.settings.items() if value != DASH) or DASH


def _stat(value: Stat | None, *, bold: bool = False) -> list[Any] | None:
    return None if value is None else [value.mean, value.spread, bold]


def _distinct(texts: Iterator[str]) -> str:
    known = sorted(set(texts))
    return ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")


def _json(table: Table) -> Markup:
    """Write a table for a page's script; the texts in it are other people's."""
    return Markup(orjson.dumps(table).decode().replace("<", "\\u003c"))
