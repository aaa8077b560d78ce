"""The page of a method: its results in all tasks, what they cost, and what was tried for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regbench.reports.board.columns import Table, links, means, numbers, table, texts
from regbench.reports.board.measured import COSTS, MEASURES, measured, stat_entry
from regbench.reports.board.tasks import Task, Tried
from regbench.reports.page.drawing import Drawing, Style, styles
from regbench.reports.page.figures import spectrum_drawings
from regbench.reports.page.sensitivity import drawings_of
from regbench.reports.page.sizes import Named, training_cost_drawings
from regbench.reports.rows.sensitivity import Sensitivity
from regbench.reports.rows.summary import DASH, Row
from regbench.reports.tables.sensitivity import ends_text, width_text

_FACTS = ("published", "limitation", "time", "memory")


@dataclass(frozen=True)
class Place:
    """A row of a method.

    Attributes:
        task: The task that the row is of.
        number: Its place in the leaderboard of the task, from 0.
        row: The row.
        tried: What it was chosen from; None where nothing else was tried.
        sensitivities: How its accuracy moves with its hyperparameters.
        means: Of all rows of the task, by leading score.
    """

    task: Task
    number: int
    row: Row
    tried: Tried | None
    sensitivities: Sequence[Sensitivity]
    means: Mapping[str, Sequence[float]]

    @property
    def address(self) -> list[str]:
        """The title of the task, which leads to the row's cells."""
        return [self.task.title, f"../tasks/{self.task.slug}.html#row-{self.number}"]

    @property
    def setting(self) -> str:
        """What tells it from others of its label in the task."""
        return self.row.setting or DASH


def method_content(places: Sequence[Place], style: Mapping[str, Style]) -> dict[str, Any]:
    """Make what stands on the page of a method, by its name in the template."""
    first = places[0].row.first
    said, url = first.regularizer, first.regularizer.get("url", "")
    moved = [one for place in places for one in place.sensitivities]
    tries = [
        [place.task.title, place.setting, *each] for place in places if place.tried for each in _tries(place.tried)
    ]
    of_tries = [texts("task", filtered=True), texts("setting", filtered=True), texts("hyperparameters")]
    of_tries += [numbers("score that chose (%)", 2), numbers("place")]
    return {
        "name": first.method,
        "style": style[places[0].row.label],
        "said": said,
        "url": url if url.startswith(("https://", "http://")) else "",
        "facts": {key.capitalize(): said[key] for key in _FACTS if said.get(key)},
        "spectrum": _spectrum(places, style),
        "results": _results(places),
        "costs": _costs(places),
        "cost_curves": _cost_curves(places, style),
        "sensitivity": sensitivity_table(
            "task", [(place.address, one) for place in places for one in place.sensitivities]
        ),
        "sensitivity_drawings": drawings_of(moved, style),
        "tries": table(of_tries, tries) if tries else None,
    }


def sensitivity_table(head: str, found: Sequence[tuple[list[str], Sensitivity]]) -> Table | None:
    """Make the table of how far hyperparameters may be off; None without any.

    Args:
        head: Of the first column.
        found: What stands in it, a text with its address, and what the line is about.
    """
    if not found:
        return None
    rows = []
    for first, one in found:
        name = one.key.removeprefix("method.")
        low, high = ends_text(one)
        rows.append(
            [first, one.row.setting or DASH, name, one.chosen, low, high, width_text(one), len(one.envelope), one.best]
        )
    columns = [links(head, filtered=True), texts("setting"), texts("hyperparameter", filtered=True)]
    columns += [numbers("chosen"), texts("from"), texts("to"), texts("width (decades)"), numbers("values")]
    return table([*columns, numbers("best (%)", 2)], rows)


def _results(places: Sequence[Place]) -> Table:
    rows = []
    for place in places:
        summary, row = place.task.summary, place.row
        budget = summary.budget(row)
        for name in reversed(summary.leading):
            value, higher = row.score(name), summary.scores[name].higher_is_better
            if value is None:
                continue
            others = place.means[name]
            better = sum(other > value.mean if higher else other < value.mean for other in others)
            entry = [summary.scores[name].head, stat_entry(value), better + 1, len(others)]
            rows.append([place.address, place.setting, *entry, len(row.records), budget])
    columns = [links("task", filtered=True), texts("setting", filtered=True), texts("score", filtered=True)]
    columns += [means("mean", 2), numbers("place"), numbers("of"), numbers("seeds"), numbers("tuned among")]
    return table(columns, rows)


def _costs(places: Sequence[Place]) -> Table:
    columns, values = measured([*MEASURES, *COSTS], [place.row for place in places])
    heads = [links("task", filtered=True), texts("setting", filtered=True)]
    rows = [[place.address, place.setting, *own] for place, own in zip(places, values, strict=True)]
    return table([*heads, *columns], rows if columns else [])


def _cost_curves(places: Sequence[Place], style: Mapping[str, Style]) -> list[Drawing]:
    tasks = dict.fromkeys(place.task.title for place in places)
    if len(tasks) == 1:
        return training_cost_drawings([Named(p.row, p.row.label, style[p.row.label]) for p in places])
    of_task = styles(tasks, "t")
    return training_cost_drawings([Named(p.row, p.task.title, of_task[p.task.title]) for p in places])


def _spectrum(places: Sequence[Place], style: Mapping[str, Style]) -> list[Drawing]:
    """Draw the spectrum of a method's kernel as it ran in the first task that has one."""
    for slug in dict.fromkeys(place.task.slug for place in places):
        own = [place for place in places if place.task.slug == slug]
        if drawings := spectrum_drawings(replace(own[0].task.summary, rows=[place.row for place in own]), style):
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
