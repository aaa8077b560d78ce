"""The leaderboard's files: a page for all, for each task and each method, and scripts with the cells.

Pages hold their tables as JSON, which the script of the site shows a hundred rows at a time. What is known of single
cells lies in `data/`, in scripts that a page loads when it is asked for one: a page from a disk can load nothing else.
"""

from __future__ import annotations

import gc
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from regbench.errors import RegbenchError
from regbench.files import write_bytes
from regbench.reports.board.cells import cell_scripts
from regbench.reports.board.columns import Table, as_json, digests, links, means, numbers, table, texts
from regbench.reports.board.gather import Gathered, gather, key_of
from regbench.reports.board.measured import COSTS as TASK_COSTS
from regbench.reports.board.measured import MEASURES, measured, stat_entry
from regbench.reports.board.method import Place, method_content, sensitivity_table
from regbench.reports.board.tasks import Slugs, Task, repeated, tasks_of, tried
from regbench.reports.collecting import uncollected
from regbench.reports.page.drawing import Drawing, styles, unique_ids
from regbench.reports.page.figures import COSTS, DRAWN_CURVES, EFFECTIVE_RANK, scatter_drawings
from regbench.reports.page.page import MARKER_PATHS, templates
from regbench.reports.page.sensitivity import drawings_of
from regbench.reports.rows.sensitivity import sensitivities
from regbench.reports.rows.summary import DASH, Row

_HERE = Path(__file__).parent
_PAGE = _HERE.parent / "page"
_OTHER_SCORES = 6  # columns of a task's table beside those of the leading scores
_SHOWN_REFUSED = 20
_WAITING_FILES = 64  # made and not on the disk yet


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
    with uncollected():
        found = gather(folder)
        tasks = tasks_of(found)
    gc.freeze()  # all of it stays to the end, so collections of the garbage of figures need not look at it
    try:
        pages = _Pages(found, tasks)
        _write(out, pages.files())
        # The start page comes last: it is there only when all that it leads to is.
        write_bytes(out / "index.html", pages.index())
    except OSError as error:
        raise RegbenchError(f"cannot write to {out}: {error.strerror}; give another --out") from error
    finally:
        gc.unfreeze()
    return Site(out / "index.html", len(found.cells), len(tasks), len(found.submissions), found.refused)


def _write(out: Path, files: Iterator[tuple[str, bytes]]) -> None:
    """Write files beside making more of them: until one is on the disk takes milliseconds, and there are thousands."""
    with ThreadPoolExecutor() as threads:
        waiting: deque[Future[None]] = deque()
        for name, content in files:
            waiting.append(threads.submit(write_bytes, out / name, content))
            if len(waiting) > _WAITING_FILES:
                waiting.popleft().result()
        for future in waiting:
            future.result()


class _Pages:
    """The pages of a site, which link to each other."""

    def __init__(self, found: Gathered, tasks: Sequence[Task]) -> None:
        self.found, self.tasks = found, tasks
        self.repeated = list(repeated(found, tasks))
        labels = {row.label for task in tasks for row in task.summary.rows if not row.untrained}
        self.style = styles(labels)
        slugs = Slugs()
        self.methods = {label: f"methods/{slugs.of(label)}.html" for label in sorted(labels, key=str.casefold)}
        environment = templates(_HERE)
        environment.filters["table"] = _json
        environment.globals["marker_paths"] = MARKER_PATHS
        self._environment = environment

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the content of every file but the start page."""
        yield "board.css", ((_PAGE / "page.css").read_text() + (_HERE / "board.css").read_text()).encode()
        yield "board.js", ((_PAGE / "elements.js").read_text() + (_HERE / "board.js").read_text()).encode()
        of_methods: dict[str, list[Place]] = defaultdict(list)
        for task in self.tasks:
            chosen_from, moved = tried(task.summary), defaultdict(list)
            for one in sensitivities(task.summary):
                moved[id(one.row)].append(one)
            of_rows = {n: [v.mean for r in task.summary.rows if (v := r.score(n))] for n in task.summary.leading}
            places = [
                Place(task, number, row, chosen_from.get(number), moved[id(row)], of_rows)
                for number, row in enumerate(task.summary.rows)
            ]
            for place in places:
                of_methods[place.row.label].append(place)
            yield f"tasks/{task.slug}.html", self._task(task, places)
            yield from cell_scripts(task, self.found.cells)
        for label, page in self.methods.items():
            yield page, self._method(label, of_methods[label])
        if self.repeated:
            yield (
                "repeated.html",
                self._page("repeated.html", "", "Cells that several labs ran", table_of=self._twice()),
            )

    def _page(self, template: str, up: str, title: str, **content: Any) -> bytes:
        text = self._environment.get_template(template).render(up=up, title=title, **content)
        return text.encode()

    def index(self) -> bytes:
        """Make the start page."""
        tasks = []
        for task in self.tasks:
            summary, head = task.summary, task.summary.headline
            trained = [row for row in summary.rows if not row.untrained]
            best = trained[0] if trained else None
            value = best.score(head) if best and head else None
            tasks.append(
                [
                    [task.title, f"tasks/{task.slug}.html"],
                    len(task.records),
                    len({row.label for row in trained}),
                    best.name if best else DASH,
                    stat_entry(value),
                    summary.scores[head].head if head else DASH,
                    max((record.finished[:10] for record in task.records), default=""),
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
                    _distinct(str(record.environment.get("hardware") or DASH) for record in records),
                    _distinct(str(record.environment.get("git") or DASH) for record in records),
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

    def _task(self, task: Task, places: Sequence[Place]) -> bytes:
        summary = task.summary
        moved = [one for place in places for one in place.sensitivities]
        shown = {id(place.row): place.number for place in places[:DRAWN_CURVES]}
        labels = sorted({row.label for row in summary.rows if not row.untrained}, key=str.casefold)
        drawings = scatter_drawings(summary, self.style, COSTS)
        return self._page(
            "task.html",
            "../",
            task.title,
            slug=task.slug,
            leaderboard=self._rows(task),
            tried=self._tried(places),
            sensitivity=sensitivity_table("method", [([one.row.label, self._link(one.row)], one) for one in moved]),
            sensitivity_drawings=_numbered(
                drawings_of([one for one in moved if id(one.row) in shown], self.style, shown), "s"
            ),
            split=summary.selection_split,
            selection=summary.selection_title,
            on_test=summary.on_test,
            drawings=_numbered(drawings, "d"),
            ranks=_numbered(scatter_drawings(summary, self.style, (EFFECTIVE_RANK,)), "r"),
            legend_of={label: self.style[label] for label in labels},
            protocols=sorted({f"{s.head}: {s.protocol}" for r in summary.records[:200] for s in r.scores})[:12],
            cells=len(task.records),
        )

    def _rows(self, task: Task) -> Table:
        """Make the leaderboard of a task: its rows with all scores in per cent, cost, budget and bundles."""
        summary = task.summary
        settings = list(summary.rows[0].settings) if summary.rows else []
        names = [name for name, score in summary.scores.items() if score.higher_is_better is not None]
        names = [name for name in names if any(row.score(name) for row in summary.rows)]
        leading = summary.leading
        others = [name for name in names if name not in leading][:_OTHER_SCORES]
        best = {name: summary.best(name).rows for name in leading}
        columns = [links("method", filtered=True)]
        columns += [texts(name, filtered=True) for name in settings]
        columns += [means(summary.scores[name].head, 2) for name in leading]
        of_rows, values = measured([*MEASURES, *TASK_COSTS], summary.rows)
        columns += [numbers("seeds"), *of_rows, *(means(summary.scores[name].head, 2) for name in others)]
        columns += [numbers("tuned among"), numbers("bundles")]
        rows = []
        for number, row in enumerate(summary.rows):
            scores = [stat_entry(row.score(name), bold=number in best[name]) for name in leading]
            bundles = {
                bundle for r in row.records for version in self.found.cells[key_of(r)] for bundle in version.bundles
            }
            rows.append(
                [
                    [row.label + " ‡" * bool(row.edges) + " †" * bool(row.diverged), self._link(row)],
                    *row.settings.values(),
                    *scores,
                    len(row.records) - row.diverged,
                    *values[number],
                    *(stat_entry(row.score(name)) for name in others),
                    summary.budget(row),
                    len(bundles),
                    [f"{len(row.records)} cells", f"#row-{number}"],
                ]
            )
        return table([*columns, links("cells")], rows)

    def _link(self, row: Row) -> str:
        return f"../{self.methods[row.label]}" if row.label in self.methods else ""

    def _tried(self, places: Sequence[Place]) -> Table | None:
        rows = []
        for place in places:
            if (one := place.tried) is not None:
                kept = [one.values[0], one.median, one.values[-1], one.values[0] - one.median, one.near]
                head = [place.row.label, self._link(place.row)]
                rows.append([head, *place.row.settings.values(), len(one.values), *kept])
        if not rows:
            return None
        columns = [links("method", filtered=True), *(texts(n, filtered=True) for n in places[0].row.settings)]
        columns += [numbers("trained to the end"), *(numbers(n, 2) for n in ("best", "median", "worst"))]
        return table([*columns, numbers("best − median", 2), numbers("within a point")], rows)

    def _method(self, label: str, places: Sequence[Place]) -> bytes:
        content = method_content(places, self.style)
        drawn = {name: _numbered(content[name], name) for name in ("spectrum", "cost_curves", "sensitivity_drawings")}
        return self._page("method.html", "../", label, **{**content, **drawn})


def _numbered(drawings: Sequence[Drawing], prefix: str) -> list[Drawing]:
    """Keep the ids of several drawings on a page apart."""
    return [replace(d, svg=unique_ids(d.svg, f"{prefix}{i}")) for i, d in enumerate(drawings)]


def _distinct(texts: Iterator[str]) -> str:
    known = sorted(set(texts))
    return ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")


def _json(table: Table) -> Markup:
    """Write a table for a page's script; the texts in it are other people's."""
    return Markup(as_json(table).replace("<", "\\u003c"))
