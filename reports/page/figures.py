"""Figures of a task: the accuracy of each row with its seeds, and accuracy against costs and
measures, as SVG for a page and as PNG for a README.

In a scatter figure up to `LABELLED` points are all labelled; of more, only those that matter most.
The page names the others in its legend and when hovering.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from regbench.benchmark.rundir.record import Score
from regbench.reports.page.drawing import (
    GREY,
    Drawing,
    Label,
    Marks,
    Style,
    Styles,
    draw_line,
    labelled_drawing,
    labelled_png,
    rows_drawing,
)
from regbench.reports.rows.deviations import Stat
from regbench.reports.rows.significance import MIN_PAIRS
from regbench.reports.rows.summary import Row, Summary
from regbench.reports.tables.table import mean_pm
from regbench.reports.tables.units import unit_of

# points or lines of a figure that are all labelled; of more than these, only LABELLED_OF_MANY,
# or the Pareto front of a cost
LABELLED = 14
LABELLED_OF_MANY = 10
DRAWN_ROWS = 30  # rows of methods in the figure that has one for each
LABELLED_IN_PNG = 50  # the same as LABELLED for a picture, which has no tooltips


_Scored = tuple[int, Row, Stat]
"""A row with its place in the leaderboard and a score."""


@dataclass(frozen=True)
class Against:
    """A quantity that accuracy is drawn against: a cost, of which less is better, or a measure of
    the embeddings.

    Attributes:
        key: Name in a record's cost, or in the last line of the training history.
        name: Name on the axis.
        is_cost: Whether it is a cost: those have a Pareto front.
    """

    key: str
    name: str
    is_cost: bool = True

    def of(self, row: Row) -> Stat | None:
        """Return a row's statistics of it."""
        return row.cost(self.key) if self.is_cost else row.at_end(self.key)

    def alike(self, summary: Summary) -> bool:
        """Return True if methods hardly differ in it."""
        means = [found.mean for row in summary.methods if (found := self.of(row))]
        return len(means) > 1 and max(means) < ALIKE * min(means)


TRAINING_TIME = Against("train_s", "training time")
COSTS = (
    TRAINING_TIME,
    Against("loss_extra_bytes", "memory of the loss"),
    Against("peak_memory_bytes", "peak memory"),
    Against("energy_gpu_joules", "energy of the GPUs"),
    Against("energy_cpu_joules", "energy of the CPUs"),
)
COSTS_DRAWN = 2
"""Figures of costs on a page: the first of `COSTS` in which rows differ."""

ALIKE = 1.1
"""Factor below which the largest and the smallest cost of a task are alike and not drawn."""

EFFECTIVE_RANK = Against("effective_rank", "effective rank", is_cost=False)


@dataclass(frozen=True)
class _Point:
    """A row of the leaderboard, its place there, and the values that it is drawn at."""

    place: int
    row: Row
    x: Stat
    y: Stat


@dataclass(frozen=True)
class _Panel:
    """One score against one quantity.

    Attributes:
        front: The places in `points` of those on the Pareto front, the cheapest first.
        labelled: The points that are labelled.
        references: Scores of the rows that are no methods, by label.
    """

    score: Score
    against: Against
    points: list[_Point]
    front: list[int]
    labelled: list[_Point]
    references: dict[str, Stat]


def accuracy_rows(summary: Summary, style: Styles) -> list[Drawing]:
    """Draw each score of the leaderboard with a row for each method, best first. Rows that are no
    methods come below, and as lines across.
    """
    drawings = []
    for name in reversed(summary.leading):
        score = summary.scores[name]
        rows: list[_Scored] = []
        for place, row in enumerate(summary.rows):
            found = row.score(name)
            if found is not None and (row.is_reference or place < DRAWN_ROWS):
                rows.append((place, row, found))
        if any(not row.is_reference for _, row, _ in rows):
            title = f"{capital(score.title)} of each method"
            text = f"{title}; the numbers are in the tables."
            names = [(row.name, mean_pm(found, 2)) for _, row, found in rows]
            draw = partial(_draw_rows, rows=rows, score=score, style=style)
            drawings.append(rows_drawing(title, text, names, draw))
    return drawings


def _draw_rows(
    axes: Axes, marks: Marks, *, rows: Sequence[_Scored], score: Score, style: Styles
) -> None:
    """Draw the seeds of each row, its mean and the mean's interval, and a line for each row that is
    no method.
    """
    for at, (place, row, found) in enumerate(rows):
        if row.is_reference:
            s = Style(GREY, "D", "--" if row.untrained else "-", "reference")
            axes.axvline(found.mean, color=GREY, ls=s.dash, lw=1, alpha=0.45)
        else:
            s = style[row.label]
        tooltip = f"{row.name}: {mean_pm(found, 2)}, n = {found.n}"
        look = {"color": s.colour, "gid": marks.add(s, [place], tooltip)}
        if found.n >= MIN_PAIRS:
            low, high = found.interval()
            if score.unit == "%":
                low, high = max(low, 0.0), min(high, 100.0)
            draw_line(axes, (low, high), (at, at), lw=2, alpha=0.6, **look)
        seeds = list(row.by_unit(score.name).values())
        draw_line(axes, seeds, [at] * len(seeds), ls="", marker="|", ms=9, mew=1.3, **look)
        hollow = "none" if row.diverged else s.colour
        draw_line(axes, [found.mean], [at], marker=s.marker, ms=5.5, mfc=hollow, **look)
    axes.set_xlabel(score.head)
    axes.margins(x=0.05)
    axes.autoscale_view()


def scatter_drawings(summary: Summary, style: Styles, axes_of: Sequence[Against]) -> list[Drawing]:
    """Draw the headline score against the first `COSTS_DRAWN` of some quantities that were measured
    and in which rows differ.
    """
    drawings = []
    for against in axes_of:
        for panel in _panels(summary, against, LABELLED)[:1]:
            title = f"{capital(panel.score.title)} against {against.name}"
            text = f"{title}; the numbers are in the tables."
            draw = partial(_draw, panel=panel, style=style)
            crowded = len(panel.points) > LABELLED
            names = [point.row.name for point in panel.labelled]
            drawings.append(labelled_drawing(title, text, names, draw, crowded=crowded))
    return drawings[:COSTS_DRAWN]


def scatter_png(summary: Summary, style: Styles, against: Against) -> bytes | None:
    """Draw accuracy against a quantity on white, one panel for each score; None if no row has
    both.
    """
    panels, names, labels = [], [], 0
    for panel in _panels(summary, against, LABELLED_IN_PNG):
        panels.append(partial(_draw, panel=panel, style=style))
        names += [point.row.name for point in panel.labelled]
        labels = max(labels, len(panel.labelled))
    return labelled_png(panels, names, labels) if panels else None


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points (cost, accuracy) that none beats in both, the cheapest
    first.
    """
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def _panels(summary: Summary, against: Against, limit: int) -> list[_Panel]:
    """Find the rows that have both a score and the quantity, for each score.

    Up to `limit` rows are all labelled; of more, the Pareto front or the most accurate.
    """
    panels: list[_Panel] = []
    if against.is_cost and against.alike(summary):
        return panels
    for name in reversed(summary.leading):
        score, points = summary.scores[name], []
        references: dict[str, Stat] = {}
        for place, row in enumerate(summary.rows):
            x, y = against.of(row), row.score(name)
            if row.is_reference:
                if y is not None:
                    references[row.label] = y
            # A measure has a logarithmic axis, on which 0 has no place.
            elif x is not None and y is not None and (against.is_cost or x.mean > 0):
                points.append(_Point(place, row, x, y))
        if points:
            front = pareto([(point.x.mean, score.sign * point.y.mean) for point in points])
            labelled = points
            if len(points) > limit and against.is_cost:
                labelled = [points[i] for i in front]
            elif len(points) > limit:
                best_first = sorted(points, key=lambda point: -score.sign * point.y.mean)
                labelled = best_first[:LABELLED_OF_MANY]
            panels.append(_Panel(score, against, points, front, labelled, references))
    return panels


def _draw(axes: Axes, marks: Marks, *, panel: _Panel, style: Styles) -> list[Label]:
    """Draw points, lines of the rows that are no methods, and the Pareto front of a cost.

    Return the labels.
    """
    against, points = panel.against, panel.points
    unit = unit_of([point.row for point in points], against.key)
    percent = " %" if panel.score.unit == "%" else ""
    labels, xs, ys = [], [], []
    for point in points:
        row, s, cost = point.row, style[point.row.label], point.x.over(unit.divisor)
        xs.append(cost.mean)
        ys.append(point.y.mean)
        value = f"{mean_pm(cost, unit.decimals)} {unit.name or against.name}"
        tooltip = f"{row.name}: {mean_pm(point.y, 2)}{percent}, {value}, n = {point.y.n}"
        gid = marks.add(s, [point.place], tooltip)
        _draw_point(axes, row, s, cost, point.y, gid)
        if point in panel.labelled:
            labels.append(Label(row.name, cost.mean, point.y.mean, s, gid))
    # Lines across: a row that is no method has no cost to compare, so it has no place along x.
    for label, score in panel.references.items():
        axes.axhline(score.mean, color=GREY, ls="--", lw=1)
        labels.append(Label(label, math.nan, score.mean, Style(GREY, "_", "--")))
    # Costs of one order of magnitude are easier to compare on a linear axis.
    if not against.is_cost or max(xs) > 8 * min(xs) > 0:
        axes.set_xscale("log")
        # Ticks at 1, 2 and 5 times powers of ten, as plain numbers.
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if len(set(xs)) == 1:  # matplotlib would make a range of a few millionths of it
        axes.set_xlim(0.8 * xs[0], 1.2 * xs[0])
    axes.set_xlabel(f"{against.name} ({unit.name})" if unit.name else against.name)
    axes.set_ylabel(panel.score.head)
    axes.margins(0.08)
    axes.autoscale_view()
    if against.is_cost:
        low, high = axes.get_xlim()
        # The last step goes on to the edge: what costs more than it is beaten by it.
        steps = np.array([*zip(xs, ys, strict=True)])[[*panel.front, panel.front[-1]]]
        steps[-1, 0] = high
        axes.step(*steps.T, where="post", color=GREY, lw=3, alpha=0.35, zorder=0.9, gid="front")
        axes.set_xlim(low, high)
    return labels


def _draw_point(axes: Axes, row: Row, style: Style, x: Stat, y: Stat, gid: str) -> None:
    """Draw a row's marker, open if a run diverged, with bars of one deviation."""
    dx, dy = x.std or 0.0, y.std or 0.0
    # Horizontal bar, gap, vertical bar; the marker stands where they cross. One line takes half the
    # time of two.
    xs = [x.mean - dx, x.mean, x.mean + dx, math.nan, x.mean, x.mean]
    ys = [y.mean, y.mean, y.mean, math.nan, y.mean - dy, y.mean + dy]
    hollow = "none" if row.diverged else style.colour
    look = {"color": style.colour, "marker": style.marker, "mfc": hollow}
    draw_line(axes, xs, ys, lw=1.1 if dx or dy else 0, ms=6.5, markevery=[1], gid=gid, **look)


def capital(text: str) -> str:
    """Begin with a capital, unless the first word has capitals of its own."""
    return text[0].upper() + text[1:] if text.split(" ")[0].islower() else text  # kNN stays kNN
