"""The leaderboard of many bundles: the report's page for each task, a page for each method, and one
that leads to all.

Each page stands alone, as a report does, so the site opens from a disk.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbench.errors import RegbenchError
from regbench.files import write_bytes
from regbench.reports.board.by_task import difference, new_slug, tasks_of
from regbench.reports.board.gather import Gathered, Key, gather, key_of
from regbench.reports.garbage import without_garbage_collection
from regbench.reports.page.drawing import Styles, styles
from regbench.reports.page.page import (
    about,
    all_records,
    cells_of,
    heads_of,
    methods_of,
    protocols_of,
    section,
)
from regbench.reports.page.template import Linked, render, simple_table
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.details import tables_of
from regbench.reports.tables.table import Entry, mean_pm

_SHOWN_REFUSED = 20
# Pages of reports have another one: a site has no tables as files beside it.
_FOOTER = (
    "Made by regbench leaderboard from bundles; regbench verify checks one, and computes its cells "
    "again."
)

# Columns of a method's page about its embeddings and costs: head, name, decimals, divisor.
_AT_END = (("effective rank", "effective_rank", 1), ("alignment", "alignment", 2))
_COSTS = (
    ("training (s)", "train_s", 1, 1),
    ("step (ms)", "step_ms", 1, 1),
    ("loss (ms/step)", "loss_ms", 2, 1),
    ("peak memory (MiB)", "peak_memory_bytes", 0, 2**20),
    ("loss memory (MiB)", "loss_extra_bytes", 2, 2**20),
)


@dataclass(frozen=True)
class Site:
    """The pages that `write_site` wrote.

    Attributes:
        page: Page to open first.
        cells: Number of different cells.
        tasks: Number of tasks.
        bundles: Number of bundles that were taken.
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
        folder: Folder with bundles, also in folders of its own.
        out: The folder to write to. Files of the same names are replaced.

    Raises:
        RegbenchError: If no bundle can be taken, or `out` cannot be written to.
    """
    with without_garbage_collection():
        found = gather(folder)
        tasks = tasks_of(found)
    # all of it stays to the end, so collections of the garbage of figures need not look at it
    gc.freeze()
    try:
        for name, text in _Pages(found, tasks).files():
            write_bytes(out / name, text.encode())
    except OSError as error:
        raise RegbenchError(
            f"cannot write to {out}: {error.strerror}; give another --out"
        ) from error
    finally:
        gc.unfreeze()
    return Site(out / "index.html", len(found.cells), len(tasks), len(found.bundles), found.refused)


class _Pages:
    """The pages of a site, which link to each other."""

    def __init__(self, found: Gathered, tasks: Mapping[str, Summary]) -> None:
        self.found, self.tasks = found, tasks
        self.rows: dict[str, list[tuple[str, int]]] = {}
        """The slug and the place of each row of a method, by label."""
        self.differences: dict[Key, float] = {}
        """Difference of a cell's runs, where several labs ran it."""
        for slug, summary in tasks.items():
            for place, row in enumerate(summary.methods):
                self.rows.setdefault(row.label, []).append((slug, place))
            for key in map(key_of, all_records(summary)):
                if (differs := difference(summary, found.cells[key])) is not None:
                    self.differences[key] = differs
        self.style: Styles = styles(self.rows)
        self.methods: dict[str, str] = {}
        """The page of each method, by label."""
        taken: set[str] = set()
        for label in sorted(self.rows, key=str.casefold):
            self.methods[label] = f"methods/{new_slug(label, taken)}.html"

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of every file.

        The start page comes after all that it leads to.
        """
        for slug, summary in self.tasks.items():
            yield f"tasks/{slug}.html", self._task(slug, summary)
        for label, page in self.methods.items():
            yield page, self._method(label)
        yield "index.html", self._index()

    def _task(self, slug: str, summary: Summary) -> str:
        tables = tables_of(summary)
        return render(
            "page.html",
            self._cells(summary),
            heads_of(summary),
            title=summary.name,
            lead="The leaderboard of one task: a data set, a backbone and a way to evaluate.",
            footer=_FOOTER,
            pages=[("All tasks", "../index.html")],
            sections=[section(summary, tables, 1, self.style)],
            methods=methods_of([summary]),
            method_pages=self.methods,
            style=self.style,
            protocols=protocols_of(summary.records),
        )

    def _cells(self, summary: Summary) -> list[dict[str, Any]]:
        """Collect what the page says of each run: that which tables show, then those of other
        labs.
        """
        runs = []
        for record, cell in zip(
            all_records(summary), cells_of(summary, 1, self.style), strict=True
        ):
            key = key_of(record)
            first, *others = self.found.cells[key]
            runs.append(cell | {"bundles": first.bundles, "differs": self.differences.get(key)})
            # The page shows them in the dialog of the cell, and counts the cell once.
            for other in others:
                runs.append(cell | about(other.record) | {"bundles": other.bundles, "again": True})
        return runs

    def _method(self, label: str) -> str:
        # The authors' words about a method are the same in all tasks.
        slug, _ = self.rows[label][0]
        return render(
            "method.html",
            title=label,
            lead="A method, and how it does in every task.",
            footer=_FOOTER,
            pages=[("All tasks", "../index.html"), ("All methods", "../index.html#methods")],
            record=methods_of([self.tasks[slug]]).get(label),
            style=self.style[label],
            results=self._results(label),
        )

    def _results(self, label: str) -> dict[str, object]:
        """Set every row of a method: scores, place, embeddings and cost."""
        heads: dict[str, bool] = {}
        lines = []
        for slug, place in self.rows[label]:
            summary, row = self.tasks[slug], self.tasks[slug].rows[place]
            task = Linked(summary.name, address=f"../tasks/{slug}.html#s1-row{place}")
            line: dict[str, Entry | str] = {"task": task, "setting": row.setting or DASH}
            for name in reversed(summary.leading):
                best = summary.best(name)
                shown = Entry(mean_pm(row.score(name), 2), place in best.rows, best.reason(place))
                line[summary.scores[name].head] = shown
            line["place"] = f"{place + 1} of {len(summary.methods)}"
            line["n"] = str(len(row.records))
            line["tuned among"] = str(summary.budget(row) or DASH)
            line |= _measured(row)
            # Tasks have different scores, and not all costs are measured everywhere.
            for head in line:
                heads.setdefault(head, head not in ("task", "setting"))
            lines.append(line)
        note = (
            "On the test split; mean ± standard deviation over n seeds. A task's name leads to the "
            "cells."
        )
        return simple_table("results", "Results", heads, lines, note)

    def _index(self) -> str:
        return render(
            "index.html",
            title="regbench: leaderboard",
            lead=f"{len(self.found.cells):,} cells of {len(self.found.bundles):,} bundles. Cells "
            "compare within a task: a data set, a backbone and a way to evaluate.",
            footer=_FOOTER,
            pages=[("Tasks", "#tasks"), ("Methods", "#methods"), ("Bundles", "#bundles")],
            tables=[self._task_table(), self._method_table(), self._bundle_table()],
            refused=self.found.refused[:_SHOWN_REFUSED],
            refused_in_all=len(self.found.refused),
            repeated=len(self.differences),
            largest=max(self.differences.values(), default=0.0),
        )

    def _task_table(self) -> dict[str, object]:
        heads = {
            "task": False,
            "cells": True,
            "methods": True,
            "best row": False,
            "its score": True,
            "score": False,
        }
        lines = []
        for slug, summary in self.tasks.items():
            records, head = all_records(summary), summary.headline
            labels = {row.label for row in summary.methods}
            days = [record.finished[:10] for record in records]
            line: dict[str, Entry | str] = {
                "task": Linked(summary.name, address=f"tasks/{slug}.html"),
                "cells": f"{len(records):,}",
                "methods": str(len(labels)),
                "newest": max(days),
            }
            # Rows are sorted by the score; those that are no methods come last.
            if labels and head:
                best = summary.rows[0]
                line |= {"best row": best.name, "its score": mean_pm(best.score(head), 2)}
                line["score"] = summary.scores[head].head
            lines.append(line)
        return simple_table("tasks", "Tasks", heads | {"newest": False}, lines)

    def _method_table(self) -> dict[str, object]:
        heads = {
            "method": False,
            "published": False,
            "tasks": True,
            "first in": True,
            "cells in rows": True,
        }
        lines = []
        for label, page in self.methods.items():
            first, cells, tasks, reference = 0, 0, set(), ""
            for slug, place in self.rows[label]:
                row = self.tasks[slug].rows[place]
                tasks.add(slug)
                first += place == 0  # rows are sorted, the best first
                cells += len(row.records)
                reference = row.first.regularizer.get("reference", reference)
            entries: list[Entry | str] = [Linked(label, address=page), reference]
            entries += [str(len(tasks)), str(first), f"{cells:,}"]
            lines.append(dict(zip(heads, entries, strict=True)))
        note = "First in: in how many tasks one of its rows has the highest mean."
        return simple_table("methods", "Methods", heads, lines, note)

    def _bundle_table(self) -> dict[str, object]:
        heads = {
            "bundle": False,
            "cells": True,
            "hardware": False,
            "finished": False,
            "sha256": False,
        }
        lines = []
        for bundle in self.found.bundles:
            hardware, days = set(), {""}
            for record in bundle.records:
                # A stranger's value may be of any kind.
                hardware.add(str(record.environment.get("hardware") or DASH))
                days.add(record.finished[:10])
            line: dict[str, Entry | str] = {
                "bundle": bundle.name,
                "cells": f"{len(bundle.records):,}",
            }
            line |= {
                "hardware": ", ".join(sorted(hardware)),
                "finished": max(days),
                "sha256": bundle.sha256,
            }
            lines.append(line)
        return simple_table("bundles", "Bundles", heads, lines)


def _measured(row: Row) -> dict[str, Entry | str]:
    """Return what was measured of a row's embeddings and costs, by the head of the column."""
    found: dict[str, Entry | str] = {}
    for head, name, decimals in _AT_END:
        if value := row.at_end(name):
            found[head] = mean_pm(value, decimals)
    for head, name, decimals, divisor in _COSTS:
        if value := row.cost(name):
            found[head] = mean_pm(value, decimals, divisor)
    return found
