"""The figures of a task: as SVG to put inside a page, and the main ones as PNG for a README.

Up to `LABELLED` points or lines are labelled directly; of more than that only those that matter most, and the page
tells the others by its legend and by hovering.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from regbench.reports.page.drawing import (
    INK,
    PAPER_INK,
    UNTRAINED,
    Drawing,
    Label,
    Marks,
    Style,
    draw_line,
    figure_with_labels,
    matplotlib_in,
    place_labels,
    plain_ticks,
    to_png,
    to_svg,
)
from regbench.reports.rows.curves import curve, curve_scores
from regbench.reports.rows.summary import Row, Stat, Summary, stat
from regbench.reports.rows.tasks import Comparison
from regbench.reports.tables.units import Unit, energy_unit, memory_unit, time_unit

T = TypeVar("T")

# Of the training history, what is drawn.
CURVES = ("loss", "alignment", "uniformity", "effective_rank", "feature_spread")

LABELLED = 14  # points or lines of a figure that are all labelled; of more than these, only LABELLED_OF_MANY
LABELLED_OF_MANY = 10
LABELLED_IN_PNG = 50  # a picture has no tooltips; beyond so many it names the Pareto front only
DRAWN_CURVES = 60  # rows, best first, whose training is drawn: beyond that nobody tells lines apart
_CURVE_POINTS = 150  # of a curve with more epochs, evenly chosen ones are drawn


@dataclass(frozen=True)
class Against:
    """What accuracy is drawn against: a cost, of which less is better, or a measure of the embeddings.

    Attributes:
        key: Its name in a record's cost, or in the last line of the training history.
        unit: The unit for the largest value that is drawn.
        is_cost: Whether it is a cost: those have a Pareto front.
    """

    key: str
    name: str
    unit: Callable[[float], Unit]
    is_cost: bool = True

    def of(self, row: Row) -> Stat | None:
        """Return a row's statistics of it."""
        return row.cost(self.key) if self.is_cost else row.at_end(self.key)


TRAINING_TIME = Against("train_s", "training time", time_unit)
COSTS = (
    TRAINING_TIME,
    Against("peak_memory_bytes", "peak memory", memory_unit),
    Against("loss_extra_bytes", "memory of the loss", memory_unit),
    Against("energy_gpu_joules", "energy of the GPUs", energy_unit),
    Against("energy_cpu_joules", "energy of the CPUs", energy_unit),
)
EFFECTIVE_RANK = Against("effective_rank", "effective rank", lambda largest: Unit("", 1, 1), is_cost=False)


def scatter_drawings(summary: Summary, style: Mapping[str, Style], axes_of: Sequence[Against]) -> list[Drawing]:
    """Draw accuracy against each of some quantities, for those scores and quantities that were measured."""
    drawings = []
    for against in axes_of:
        for score in reversed(summary.leading):
            points = _points(summary, score, against)
            if not points:
                continue
            with matplotlib_in(INK):
                marks = Marks()
                named = _named(points, LABELLED, against)
                figure, (axes,) = figure_with_labels(1, [p.row.name for p in points if p.place in named])
                _scatter(axes, summary, points, score, against, style, named, marks)
                shown = summary.scores[score]
                text = f"{shown.head} of each method against {against.name}; the numbers are in the tables."
                name = f"{capital(shown.title)} against {against.name}"
                drawings.append(Drawing(name, text, to_svg(figure, marks), len(points) > LABELLED))
    return drawings


@dataclass(frozen=True)
class Curve:
    """One line of a figure.

    Attributes:
        name: Its label.
        style: Of its method.
        rows: The rows of the leaderboard that it shows.
        tooltip: What it says beside its name.
        points: Where it goes, with the spread there, 0 where there is none.
    """

    name: str
    style: Style
    rows: list[int]
    tooltip: str
    points: Sequence[tuple[float, float, float]]


def curves_drawing(
    title: str, heads: tuple[str, str], about: str, curves: Sequence[Curve], finish: Callable[[Axes], None]
) -> Drawing:
    """Draw lines with a band of one deviation; of too many only the first are labelled, and the others thin.

    Args:
        title: Of the figure.
        heads: Of the two axes.
        about: What the lines are, for who cannot see them.
        curves: The lines.
        finish: Sets what of the axes is this figure's own.
    """
    shown, few = _shown(len(curves)), all(len(curve.points) < 12 for curve in curves)
    with matplotlib_in(INK):
        marks, labels = Marks(), []
        figure, (axes,) = figure_with_labels(1, [curve.name for curve in curves[:shown]])
        for place, curve in enumerate(curves):
            s = curve.style
            xs, means, spreads = (np.array(values) for values in zip(*curve.points, strict=True))
            gid = marks.add(s, curve.rows, f"{curve.name}: {curve.tooltip}")
            line = {"lw": 0.9, "alpha": 0.5} if place >= shown else {"lw": 1.6}
            marker = s.marker if few else None
            draw_line(axes, list(xs), list(means), color=s.colour, ls=s.dash, marker=marker, ms=4.5, gid=gid, **line)
            if place < shown:
                labels.append(Label(curve.name, float(xs[-1]), float(means[-1]), s, gid))
                if np.any(spreads > 0):
                    band = axes.fill_between(xs, means - spreads, means + spreads, color=s.colour, alpha=0.15, lw=0)
                    band.set_gid(f"{gid}.band")
        finish(axes)
        axes.set_xlabel(heads[0])
        axes.set_ylabel(heads[1])
        place_labels(axes, labels, marker=few)
        return Drawing(title, f"{heads[1]} {about}", to_svg(figure, marks), len(curves) > LABELLED)


def curve_drawings(summary: Summary, style: Mapping[str, Style]) -> list[Drawing]:
    """Draw each quantity of the best rows' training history: mean over the seeds, a band of one deviation."""
    drawings = []
    for key in CURVES:
        title = "training loss, scaled" if key == "loss" else key.replace("_", " ")
        curves = []
        for i, row in enumerate(summary.rows[:DRAWN_CURVES]):
            if (found := _epochs(row, key)) is not None:
                points, last = found
                told = f"{stat_text(last)} in epoch {points[-1][0]:.0f}, n = {last.n}"
                curves.append(Curve(row.name, style[row.label], [i], told, points))

        def finish(axes: Axes, key: str = key) -> None:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if key == "loss":
                axes.set_yticks([0, 0.5, 1])

        if curves:
            drawings.append(
                curves_drawing(capital(title), ("epoch", title), "of each method by epoch.", curves, finish)
            )
    return drawings


def accuracy_drawings(summary: Summary, style: Mapping[str, Style]) -> list[Drawing]:
    """Draw the best rows' accuracy while training, by epoch and by time: mean over the seeds, band of a deviation."""
    drawings = []
    for name, score in curve_scores(summary).items():
        found = {i: points for i, row in enumerate(summary.rows[:DRAWN_CURVES]) if (points := curve(row, name))}
        if not found:
            continue
        unit = time_unit(max(points[-1].train_s for points in found.values()))
        title, head = f"{capital(score.title)} while training", f"{score.title}, {score.split} ({score.unit})"

        def by_epoch(axes: Axes) -> None:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))

        def by_time(axes: Axes) -> None:
            axes.set_xlim(left=0)

        for along, x_head, finish in (("epoch", "epoch", by_epoch), ("time", f"training time ({unit.name})", by_time)):
            curves = []
            for i, points in found.items():
                last, row = points[-1], summary.rows[i]
                told = f"{stat_text(last.value, 2)} {score.unit} after epoch {last.epoch}, n = {last.value.n}"
                places = [
                    (
                        float(p.epoch) if along == "epoch" else p.train_s / unit.divisor,
                        p.value.mean,
                        p.value.spread or 0.0,
                    )
                    for p in _some(points)
                ]
                curves.append(Curve(row.name, style[row.label], [i], told, places))
            about = f"of each method by {x_head}."
            drawings.append(curves_drawing(f"{title}, by {along}", (x_head, head), about, curves, finish))
    return drawings


def spectrum_drawings(summary: Summary, style: Mapping[str, Style]) -> list[Drawing]:
    """Draw the coefficients b_ℓ of each kernel from ℓ = 1, where they are positive; at most one figure."""
    kernels: dict[tuple[str, tuple[float, ...]], list[int]] = {}
    for i, row in enumerate(summary.rows):
        if row.first.spectrum and not row.untrained:
            kernels.setdefault((row.label, row.first.spectrum), []).append(i)
    labels = Counter(label for label, _ in kernels)
    highest = max((max(b[1:], default=0.0) for _, b in kernels), default=0.0)
    curves = []
    for (label, b), rows in kernels.items():
        # A billionth of the highest is beyond what anybody sees on the axis.
        points = [(float(degree), value, 0.0) for degree, value in enumerate(b) if degree and value > 1e-9 * highest]
        values = ", ".join(f"b{_subscript(degree)} = {value:.3g}" for degree, value in enumerate(b) if degree)
        if points:
            name = label if labels[label] == 1 else summary.rows[rows[0]].name
            curves.append(Curve(name, style[label], rows, values, points))

    def finish(axes: Axes) -> None:
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlim(0.7, max(len(b) for _, b in kernels) - 0.7)

    heads = ("degree ℓ of the spherical harmonics", "coefficient b of the kernel")
    about = "of each method in spherical harmonics, by degree, on a logarithmic axis."
    return [curves_drawing("Spectra of the kernels", heads, about, curves, finish)] if curves else []


def profile_drawing(comparison: Comparison, style: Mapping[str, Style]) -> Drawing:
    """Draw in how many of the blocks each method is within so many percentage points of the best one there."""
    curves = []
    farthest = max(one.shortfalls[-1] for one in comparison.standings)
    for one in comparison.standings:
        reached = {points: (i + 1) / comparison.blocks for i, points in enumerate(one.shortfalls)}
        share = 100 * reached.get(0.0, 0.0)
        points = [(0.0, share, 0.0)]
        for shortfall, fraction in reached.items():
            points += [(shortfall, points[-1][1], 0.0), (shortfall, 100 * fraction, 0.0)]
        points.append((farthest, points[-1][1], 0.0))
        told = f"the best in {share:.0f} % of the blocks; at most {one.shortfalls[-1]:.2f} points below it"
        curves.append(Curve(one.label, style[one.label], [], told, points))

    def finish(axes: Axes) -> None:
        axes.set_xlim(0, farthest or 1)
        axes.set_ylim(-3, 103)

    heads = ("percentage points below the best", "share of the blocks (%)")
    about = "in which each method is within so many percentage points of the best."
    return curves_drawing("Performance profile", heads, about, curves, finish)


def scatter_png(summary: Summary, style: Mapping[str, Style], against: Against) -> bytes | None:
    """Draw accuracy against a quantity on white, one panel for each score; None if no row has both."""
    panels = {score: points for score in reversed(summary.leading) if (points := _points(summary, score, against))}
    if not panels:
        return None
    with matplotlib_in(PAPER_INK):
        named = {score: _named(points, LABELLED_IN_PNG, against) for score, points in panels.items()}
        names = [p.row.name for score, points in panels.items() for p in points if p.place in named[score]]
        figure, axes = figure_with_labels(len(panels), names, max(map(len, named.values())))
        for ax, (score, points) in zip(axes, panels.items(), strict=True):
            _scatter(ax, summary, points, score, against, style, named[score], Marks())
        return to_png(figure)


@dataclass(frozen=True)
class _Point:
    """A row at its place in the leaderboard, with what it is drawn at."""

    place: int
    row: Row
    x: Stat
    y: Stat
    better: float  # the mean of y, with the sign that makes more better


def _points(summary: Summary, score: str, against: Against) -> list[_Point]:
    """Find the rows that have both the score and the quantity."""
    sign = -1 if summary.scores[score].higher_is_better is False else 1
    return [
        _Point(i, row, x, y, sign * y.mean)
        for i, row in enumerate(summary.rows)
        if (x := against.of(row)) and (y := row.score(score)) and (against.is_cost or x.mean > 0)  # of a logarithm
    ]


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Find the points (cost, accuracy) that no other one beats in both; return their indices, the cheapest first."""
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def _named(points: Sequence[_Point], limit: int, against: Against) -> set[int]:
    """Choose the rows that are labelled: all up to a limit, of more the Pareto front or the most accurate."""
    if len(points) <= limit:
        named = points
    elif against.is_cost:
        named = [points[j] for j in pareto([(p.x.mean, p.better) for p in points])]
    else:
        named = sorted(points, key=lambda p: -p.better)[:LABELLED_OF_MANY]
    return {p.place for p in named}


def _scatter(
    axes: Axes,
    summary: Summary,
    points: Sequence[_Point],
    score: str,
    against: Against,
    style: Mapping[str, Style],
    named: set[int],
    marks: Marks,
) -> None:
    """Draw accuracy against a quantity, with the Pareto front of a cost; label the rows whose places are in `named`."""
    unit = against.unit(max(p.x.mean for p in points))
    percent = " %" if summary.scores[score].unit == "%" else ""
    labels = []
    places = []
    for p in points:
        row, price, accuracy, s = p.row, p.x, p.y, style[p.row.label]
        x, y = price.mean / unit.divisor, accuracy.mean
        places.append((x, y))
        value = f"{stat_text(price, unit.decimals, unit.divisor)} {unit.name or against.name}"
        gid = marks.add(s, [p.place], f"{row.name}: {stat_text(accuracy, 2)}{percent}, {value}, n = {accuracy.n}")
        _draw_point(axes, row, s, (x, (price.spread or 0.0) / unit.divisor), (y, accuracy.spread or 0.0), gid)
        if p.place in named:
            labels.append(Label(row.name, x, y, s, gid))
    base = next((b for row in summary.rows if row.untrained and (b := row.score(score))), None)
    if base is not None:
        axes.axhline(base.mean, color=UNTRAINED, ls="--", lw=1)
        labels.append(Label("untrained", float("nan"), base.mean, Style(UNTRAINED, "_", "--")))
    xs = [x for x, _ in places]
    if not against.is_cost or max(xs) > 8 * min(xs) > 0:
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
    if len(set(xs)) == 1:
        axes.set_xlim(0.8 * xs[0], 1.2 * xs[0])
    axes.set_xlabel(f"{against.name} ({unit.name})" if unit.name else against.name)
    axes.set_ylabel(summary.scores[score].head)
    axes.margins(0.08)
    axes.autoscale_view()
    if against.is_cost:
        low, high = axes.get_xlim()
        front = [places[j] for j in pareto([(p.x.mean, p.better) for p in points])]
        steps = [*front, (high, front[-1][1])]
        axes.step(*zip(*steps, strict=True), where="post", color=UNTRAINED, lw=3, alpha=0.35, zorder=0.9, gid="front")
        axes.set_xlim(low, high)
    place_labels(axes, labels, marker=True)


def _draw_point(axes: Axes, row: Row, style: Style, x: tuple[float, float], y: tuple[float, float], gid: str) -> None:
    """Draw a row's marker, open if a run diverged, with bars of one deviation; `x` and `y` are value and deviation."""
    (at_x, dx), (at_y, dy) = x, y
    # Horizontal bar, gap, vertical bar; the marker stands where they cross. One line takes half the time of two.
    xs = [at_x - dx, at_x, at_x + dx, math.nan, at_x, at_x]
    ys = [at_y, at_y, at_y, math.nan, at_y - dy, at_y + dy]
    look = {"color": style.colour, "marker": style.marker, "mfc": "none" if row.diverged else style.colour}
    draw_line(axes, xs, ys, lw=1.1 if dx or dy else 0, ms=6.5, markevery=[1], gid=gid, **look)


def mechanism_drawings(summary: Summary, style: Mapping[str, Style]) -> list[Drawing]:
    """Draw the effective rank that kernels lead to against their weight above the first degree; at most one figure.

    The weight is that of the degrees ℓ ≥ 2 in Σ b_ℓ over ℓ ≥ 1: 0 % of a kernel that asks for a mean of zero only, and
    not for more directions.
    """
    found = []
    for i, row in enumerate(summary.rows):
        above = sum((row.first.spectrum or ())[1:])
        rank = row.at_end("effective_rank")
        if row.first.spectrum and above > 0 and rank is not None:
            found.append((i, row, 100 * (1 - row.first.spectrum[1] / above), rank))
    if len(found) < 2:
        return []
    shown = {i for i, *_ in found[: _shown(len(found))]}
    with matplotlib_in(INK):
        marks, labels = Marks(), []
        figure, (axes,) = figure_with_labels(1, [row.name for i, row, *_ in found if i in shown])
        for i, row, percent, rank in found:
            s = style[row.label]
            told = f"{row.name}: effective rank {stat_text(rank, 1)}, {percent:.1f} % above degree 1, n = {rank.n}"
            gid = marks.add(s, [i], told)
            _draw_point(axes, row, s, (percent, 0.0), (rank.mean, rank.spread or 0.0), gid)
            if i in shown:
                labels.append(Label(row.name, percent, rank.mean, s, gid))
        axes.set_xlim(-4, 104)
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
        heads = ("weight of the degrees above 1 in the kernel (%)", "effective rank")
        axes.set_xlabel(heads[0])
        axes.set_ylabel(heads[1])
        axes.margins(y=0.08)
        place_labels(axes, labels, marker=True)
        text = "Effective rank of the embeddings of each method against its kernel's weight above the first degree."
        return [Drawing("Spectrum and effective rank", text, to_svg(figure, marks), len(found) > LABELLED)]


def _epochs(row: Row, key: str) -> tuple[list[tuple[float, float, float]], Stat] | None:
    """Return epoch, mean and standard deviation over the seeds that logged it, and the last epoch's statistics."""
    by_epoch: dict[int, list[float]] = {}
    for record in row.records:
        for logged in record.history:
            epoch, value = logged.get("epoch"), logged.get(key)
            if isinstance(epoch, int) and isinstance(value, int | float) and math.isfinite(value):
                by_epoch.setdefault(epoch, []).append(float(value))
    points = [(epoch, s) for epoch in _some(sorted(by_epoch)) if (s := stat(by_epoch[epoch]))]
    if not points:
        return None
    low, span = 0.0, 1.0
    if key == "loss":  # losses of different methods have no common scale: each from its lowest (0) to its highest (1)
        means = [s.mean for _, s in points]
        low, span = min(means), np.ptp(means) or 1.0
    return [(float(epoch), (s.mean - low) / span, (s.spread or 0.0) / span) for epoch, s in points], points[-1][1]


def _some(points: list[T]) -> list[T]:
    """Choose those of a curve's points that are drawn."""
    if len(points) <= _CURVE_POINTS:
        return points
    return [points[round(i)] for i in np.linspace(0, len(points) - 1, _CURVE_POINTS)]


def _shown(count: int) -> int:
    """Say how many of so many points or lines are labelled."""
    return count if count <= LABELLED else LABELLED_OF_MANY


def stat_text(s: Stat, decimals: int | None = None, divisor: float = 1) -> str:
    """Write mean ± spread for a tooltip, with four significant digits where no decimals are given."""
    form = ",.4g" if decimals is None else f",.{decimals}f"
    values = [s.mean] if s.spread is None else [s.mean, s.spread]
    return " ± ".join(f"{value / divisor:{form}}" for value in values)


def _subscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def capital(text: str) -> str:
    """Begin with a capital, unless the first word has capitals of its own."""
    return text[0].upper() + text[1:] if text.split()[0].islower() else text  # kNN stays kNN
