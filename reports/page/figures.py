"""Figures of a task as SVG to put inside a page, and the main one as PNG for a README.

A method has one colour and one marker in all figures. Up to `LABELLED` points or lines are labelled directly, in a
column at the right where labels cannot overlap; of more than that only those that matter most, and the page tells the
others by its legend and by hovering. Axes and text of an SVG take the colour of the page's text, so that they read on a
light and on a dark page. No pyplot: it would keep global state and start slower.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from html import escape
from io import BytesIO, StringIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

from regbench.reports.rows.summary import Row, Stat, Summary, stat
from regbench.reports.tables.tables import Unit, energy_unit, memory_unit, time_unit

# Okabe and Ito's colours for colour-blind readers, without black and yellow, darkened or lightened a little
# where one of them had too little contrast on white or on a dark page.
PALETTE = ("#0079c1", "#d55e00", "#009e73", "#c05a97", "#b98300", "#7d6fd0", "#3299d0")
MARKERS = "osD^vPX"
DASHES = ("-", "--", "-.", ":")
UNTRAINED = "#868686"

INK = "#010203"  # stands for the page's text colour in an SVG until it is written
PAPER_INK = "#24292f"  # text colour of a PNG, on white

ACCURACY = {"linear_top1": "linear probing, top-1 (%)", "knn_top1": "weighted kNN, top-1 (%)"}
CURVES = {
    "loss": "training loss, scaled",
    "alignment": "alignment",
    "uniformity": "uniformity",
    "effective_rank": "effective rank",
    "rankme": "RankMe",
    "alpha_req": "α-ReQ",
    "lidar": "LiDAR",
    "feature_spread": "feature spread",
}

LABELLED = 14  # points or lines of a figure that are all labelled; of more than these, only LABELLED_OF_MANY
LABELLED_OF_MANY = 10
LABELLED_IN_PNG = 50  # a picture has no tooltips; beyond so many it names the Pareto front only
DRAWN_CURVES = 60  # rows, best first, whose training is drawn: beyond that nobody tells lines apart
_CURVE_POINTS = 150  # of a curve with more epochs, evenly chosen ones are drawn

_TEXT_PT = 9
_SMALLEST_TEXT_PX = 11  # of an SVG on the page

_LABEL_GAP_IN = 0.18  # from one label's baseline to the next
_PLOT_WIDTH_IN = 3.3
_MARGIN_IN = 0.62  # left of the plot, for the ticks


@dataclass(frozen=True)
class Style:
    """How a method is drawn: the same in all figures. The page finds what belongs to it by `key`."""

    colour: str
    marker: str
    dash: str
    key: str = ""


@dataclass(frozen=True)
class Drawing:
    """An inline SVG with what a reader who cannot see it is told.

    Attributes:
        crowded: Whether there is more in it than could be labelled.
    """

    title: str
    description: str
    svg: str
    crowded: bool = False


@dataclass
class Marks:
    """What of a figure belongs together: matplotlib's `gid`s, which become classes and tooltips in the SVG."""

    _entries: list[tuple[Style, tuple[int, ...], str]] = field(default_factory=list)

    def add(self, style: Style, rows: Iterable[int], tooltip: str) -> str:
        """A gid for the artists that show some rows of the leaderboard in the style of their method."""
        self._entries.append((style, tuple(rows), tooltip))
        return f"mark.{len(self._entries) - 1}"

    def group(self, gid: str) -> str:
        """The opening tag of an SVG's group with this gid."""
        number, _, part = gid.removeprefix("mark.").partition(".")
        style, rows, tooltip = self._entries[int(number)]
        of_rows = f' data-r="{" ".join(map(str, rows))}"' if rows else ""
        kind = f"mark {part}".strip()
        return f'<g class="{kind}" data-m="{style.key}"{of_rows}><title>{escape(tooltip)}</title>'


@dataclass
class Label:
    """A label at the right margin that belongs to the point (x, y) of the plot."""

    text: str
    x: float
    y: float
    style: Style
    gid: str | None = None


def styles(labels: Iterable[str], prefix: str = "m") -> dict[str, Style]:
    """One style for each label of trained methods, in the order of the alphabet; keys are the prefix and a number."""
    out = {}
    for i, label in enumerate(sorted(set(labels))):
        turn = i // len(PALETTE)
        marker, dash = MARKERS[(i + turn) % len(MARKERS)], DASHES[turn % len(DASHES)]
        out[label] = Style(PALETTE[i % len(PALETTE)], marker, dash, f"{prefix}{i}")
    return out


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
        """Its statistics of a row."""
        return row.cost(self.key) if self.is_cost else row.at_end(self.key)


TRAINING_TIME = Against("train_s", "training time", time_unit)
COSTS = (
    TRAINING_TIME,
    Against("peak_memory_bytes", "peak memory", memory_unit),
    Against("energy_gpu_joules", "energy of the GPUs", energy_unit),
    Against("energy_cpu_joules", "energy of the CPUs", energy_unit),
)
EFFECTIVE_RANK = Against("effective_rank", "effective rank", lambda largest: Unit("", 1, 1), is_cost=False)


def scatter_drawings(summary: Summary, style: Mapping[str, Style], axes_of: Sequence[Against]) -> list[Drawing]:
    """Accuracy against each of some quantities, for those scores and quantities that were measured."""
    drawings = []
    for against in axes_of:
        for score, title in ACCURACY.items():
            points = _points(summary, score, against)
            if not points:
                continue
            with settings(INK):
                marks = Marks()
                named = _named(points, LABELLED, against)
                figure, (axes,) = figure_with_labels(1, [p.row.name for p in points if p.place in named])
                _scatter(axes, summary, points, score, against, style, named, marks)
                text = f"{title} of each method against {against.name}; the numbers are in the tables."
                name = f"{_capital(title.split(',')[0])} against {against.name}"
                drawings.append(Drawing(name, text, to_svg(figure, marks), len(points) > LABELLED))
    return drawings


def dimension_drawings(summary: Summary, style: Mapping[str, Style]) -> list[Drawing]:
    """Accuracy and time of a step against the embedding dimension, for methods that ran with several."""
    drawings = []
    titles = {**ACCURACY, "step_ms": "time of a step (ms)"}
    for key, title in titles.items():
        groups: dict[tuple[str, ...], dict[int, tuple[int, Row, Stat]]] = {}
        for i, row in enumerate(summary.rows):
            value = row.score(key) if key in ACCURACY else row.cost(key)
            q = row.first.cell["embedding_dim"]
            if value is not None and q is not None and not row.untrained:
                others = (v for k, v in row.settings.items() if k != "q")
                groups.setdefault((row.label, *others), {}).setdefault(int(q), (i, row, value))
        lines = {name: points for name, points in groups.items() if len(points) > 1}
        if not lines:
            continue
        with settings(INK):
            marks, labels = Marks(), []
            names = {name: ", ".join([name[0], *_others(next(iter(p.values()))[1])]) for name, p in lines.items()}
            figure, (axes,) = figure_with_labels(1, list(names.values())[: _shown(len(lines))])
            for place, (name, points) in enumerate(lines.items()):
                s = style[name[0]]
                qs = sorted(points)
                gid = marks.add(s, [points[q][0] for q in qs], _along(names[name], qs, [points[q][2] for q in qs]))
                means = [points[q][2].mean for q in qs]
                spreads = [points[q][2].spread or 0.0 for q in qs]
                if any(spreads):
                    gap = math.nan
                    xs = [x for q in qs for x in (q, q, gap)]
                    ys = [y for m, d in zip(means, spreads, strict=True) for y in (m - d, m + d, gap)]
                    _line(axes, xs, ys, color=s.colour, lw=1.1, gid=gid)
                _line(axes, qs, means, color=s.colour, marker=s.marker, ls=s.dash, ms=5, lw=1.5, gid=gid)
                if place < _shown(len(lines)):
                    labels.append(Label(names[name], float(qs[-1]), means[-1], s, gid))
            sizes_axis(axes, {q for points in lines.values() for q in points})
            axes.set_xlabel("embedding dimension q")
            axes.set_ylabel(title)
            place_labels(axes, labels, marker=True)
            heading = f"{_capital(title.split(',')[0].split(' (')[0])} against the embedding dimension"
            text = f"{title} of each method against the embedding dimension."
            drawings.append(Drawing(heading, text, to_svg(figure, marks), len(lines) > LABELLED))
    return drawings


def curve_drawings(summary: Summary, style: Mapping[str, Style]) -> list[Drawing]:
    """A figure for each quantity of the best rows' training history: mean over the seeds, a band of one deviation."""
    drawings = []
    for key, title in CURVES.items():
        rows = enumerate(summary.rows[:DRAWN_CURVES])
        curves = [(i, row, curve) for i, row in rows if (curve := _curve(row, key))]
        if not curves:
            continue
        shown = _shown(len(curves))
        with settings(INK):
            marks, labels = Marks(), []
            figure, (axes,) = figure_with_labels(1, [row.name for _, row, _ in curves[:shown]])
            for place, (i, row, (epochs, mean, spread, last)) in enumerate(curves):
                s = style[row.label]
                few, quiet = len(epochs) < 12, place >= shown
                gid = marks.add(s, [i], f"{row.name}: {_text(last)} in epoch {epochs[-1]}, n = {last.n}")
                line = {"lw": 0.9, "alpha": 0.5} if quiet else {"lw": 1.6}
                marker = s.marker if few else None
                _line(axes, epochs, list(mean), color=s.colour, ls=s.dash, marker=marker, ms=3.5, gid=gid, **line)
                if np.any(spread > 0) and not quiet:
                    band = axes.fill_between(epochs, mean - spread, mean + spread, color=s.colour, alpha=0.15, lw=0)
                    band.set_gid(f"{gid}.band")
                if not quiet:
                    labels.append(Label(row.name, float(epochs[-1]), float(mean[-1]), s, gid))
            axes.set_xlabel("epoch")
            axes.set_ylabel(title)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if key == "loss":
                axes.set_yticks([0, 0.5, 1])
            place_labels(axes, labels, marker=False)
            text = f"{title} of each method by epoch."
            drawings.append(Drawing(_capital(title), text, to_svg(figure, marks), len(curves) > LABELLED))
    return drawings


def spectrum_drawings(summary: Summary, style: Mapping[str, Style]) -> list[Drawing]:
    """The coefficients b_ℓ of each kernel from ℓ = 1, where they are positive; at most one figure."""
    kernels: dict[tuple[str, tuple[float, ...]], list[tuple[int, Row]]] = {}
    for i, row in enumerate(summary.rows):
        if row.first.spectrum and not row.untrained:
            kernels.setdefault((row.label, tuple(row.first.spectrum)), []).append((i, row))
    several = {label for label, _ in kernels if sum(label == other for other, _ in kernels) > 1}
    highest = max((max(b[1:], default=0.0) for _, b in kernels), default=0.0)
    lines = []
    for (label, b), rows in kernels.items():
        # A billionth of the highest is beyond what anybody sees on the axis.
        points = [(degree, value) for degree, value in enumerate(b) if degree and value > 1e-9 * highest]
        if points:
            lines.append((label if label not in several else rows[0][1].name, b, rows, points))
    if not lines:
        return []
    shown = _shown(len(lines))
    with settings(INK):
        marks, labels = Marks(), []
        figure, (axes,) = figure_with_labels(1, [name for name, *_ in lines[:shown]])
        for place, (name, b, rows, points) in enumerate(lines):
            s = style[rows[0][1].label]
            values = ", ".join(f"b{_subscript(degree)} = {value:.3g}" for degree, value in enumerate(b) if degree)
            gid = marks.add(s, [i for i, _ in rows], f"{name}: {values}")
            axes.plot(*zip(*points, strict=True), color=s.colour, marker=s.marker, ls=s.dash, ms=5, lw=1.3, gid=gid)
            if place < shown:
                labels.append(Label(name, float(points[-1][0]), points[-1][1], s, gid))
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlim(0.7, max(len(b) for _, b in kernels) - 0.7)
        axes.set_xlabel("degree ℓ of the spherical harmonics")
        axes.set_ylabel("coefficient b of the kernel")
        place_labels(axes, labels, marker=True)
        text = "Coefficients of each method's kernel in spherical harmonics, by degree, on a logarithmic axis."
        return [Drawing("Spectra of the kernels", text, to_svg(figure, marks), len(lines) > LABELLED)]


def scatter_png(summary: Summary, style: Mapping[str, Style], against: Against) -> bytes | None:
    """Accuracy against a quantity on white, one panel a score; None if no row has both."""
    panels = {score: points for score in ACCURACY if (points := _points(summary, score, against))}
    if not panels:
        return None
    with settings(PAPER_INK):
        named = {score: _named(points, LABELLED_IN_PNG, against) for score, points in panels.items()}
        names = [p.row.name for score, points in panels.items() for p in points if p.place in named[score]]
        figure, axes = figure_with_labels(len(panels), names, max(map(len, named.values())))
        for ax, (score, points) in zip(axes, panels.items(), strict=True):
            _scatter(ax, summary, points, score, against, style, named[score], Marks())
        figure.set_facecolor("white")
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    return buffer.getvalue()


def settings(ink: str) -> AbstractContextManager[None]:
    """Matplotlib's settings for a figure whose axes and text are of the colour `ink`."""
    return matplotlib.rc_context(
        {
            "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
            "font.size": _TEXT_PT,
            "svg.fonttype": "none",
            "svg.hashsalt": "regbench",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.7,
            "xtick.major.width": 0.7,
            "ytick.major.width": 0.7,
            "axes.formatter.useoffset": False,
            **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), ink),
        }
    )


def figure_with_labels(panels: int, names: Sequence[str], labels: int | None = None) -> tuple[Figure, list[Axes]]:
    """Panels side by side, each with a column for labels at the right, high enough for all of them.

    Args:
        panels: How many.
        names: The labels' texts; the longest decides the column's width.
        labels: How many labels a panel has, where it is not the number of names.
    """
    label_width_in = 0.35 + 0.078 * max(20, *map(len, names))
    width_in = _MARGIN_IN + _PLOT_WIDTH_IN + label_width_in
    height_in = max(3.1, _LABEL_GAP_IN * ((len(names) if labels is None else labels) + 1) + 0.7)
    figure = Figure(figsize=(panels * width_in, height_in))
    figure.patch.set_alpha(0)
    axes = []
    for i in range(panels):
        left = (i * width_in + _MARGIN_IN) / (panels * width_in)
        box = (left, 0.5 / height_in, _PLOT_WIDTH_IN / (panels * width_in), 1 - 0.65 / height_in)
        ax = figure.add_axes(box)
        ax.patch.set_alpha(0)
        grid(ax)
        axes.append(ax)
    return figure, axes


def grid(axes: Axes) -> None:
    """A quiet grid behind what is drawn."""
    axes.grid(color=UNTRAINED, alpha=0.22, lw=0.6)
    axes.set_axisbelow(True)


def sizes_axis(axes: Axes, sizes: Iterable[int]) -> None:
    """A logarithmic x-axis with a tick at each of the sizes that were measured, or at some if they are many."""
    ticks = sorted(sizes)
    axes.set_xscale("log")
    axes.set_xticks(ticks[:: math.ceil(len(ticks) / 8)])
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())


def plain_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _line(axes: Axes, xs: Sequence[float], ys: Sequence[float], **style: Any) -> None:
    """What `Axes.plot` does, in a tenth of its time."""
    axes.add_line(Line2D(xs, ys, **style))


@dataclass(frozen=True)
class _Point:
    """A row at its place in the leaderboard, with what it is drawn at."""

    place: int
    row: Row
    x: Stat
    y: Stat


def _points(summary: Summary, score: str, against: Against) -> list[_Point]:
    """The rows that have both."""
    rows = enumerate(summary.rows)
    return [_Point(i, row, x, y) for i, row in rows if (x := against.of(row)) and (y := row.score(score))]


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points (cost, accuracy) that no other one beats in both, from the cheapest on."""
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def _named(points: Sequence[_Point], limit: int, against: Against) -> set[int]:
    """Places of the rows that are labelled: all up to a limit, of more the Pareto front or the most accurate."""
    if len(points) <= limit:
        named = points
    elif against.is_cost:
        named = [points[j] for j in pareto([(p.x.mean, p.y.mean) for p in points])]
    else:
        named = sorted(points, key=lambda p: -p.y.mean)[:LABELLED_OF_MANY]
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
    """Accuracy against a quantity, a cost with the Pareto front; labels for the rows whose places are in `named`."""
    unit = against.unit(max(p.x.mean for p in points))
    labels = []
    places = []
    for p in points:
        row, price, accuracy, s = p.row, p.x, p.y, style[p.row.label]
        x, y = price.mean / unit.divisor, accuracy.mean
        places.append((x, y))
        value = f"{_text(price, unit.decimals, unit.divisor)} {unit.name or against.name}"
        gid = marks.add(s, [p.place], f"{row.name}: {_text(accuracy, 2)} %, {value}, n = {accuracy.n}")
        dx, dy = (price.spread or 0.0) / unit.divisor, accuracy.spread or 0.0
        if dx or dy:  # horizontal bar, gap, vertical bar
            gap = math.nan
            bars = [x - dx, x + dx, gap, x, x], [y, y, gap, y - dy, y + dy]
            _line(axes, *bars, color=s.colour, lw=1.1, gid=gid)
        fill = "none" if row.diverged else s.colour
        _line(axes, [x], [y], color=s.colour, marker=s.marker, ms=6.5, mfc=fill, ls="", gid=gid)
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
    axes.set_ylabel(ACCURACY[score])
    axes.margins(0.08)
    axes.autoscale_view()
    if against.is_cost:
        low, high = axes.get_xlim()
        front = [places[j] for j in pareto(places)]
        steps = [*front, (high, front[-1][1])]
        axes.step(*zip(*steps, strict=True), where="post", color=UNTRAINED, lw=3, alpha=0.35, zorder=0.9, gid="front")
        axes.set_xlim(low, high)
    place_labels(axes, labels, marker=True)


def place_labels(axes: Axes, labels: list[Label], *, marker: bool) -> None:
    """Writes the labels in a column right of the plot, ordered by y, and ties each to its point."""
    axes.autoscale_view()
    low, high = axes.get_ylim()
    height_in = axes.bbox.height / axes.figure.dpi
    scale = axes.transScale.transform  # logarithmic axes
    bottom, top = (float(scale((1.0, y))[1]) for y in (low, high))
    labels.sort(key=lambda label: label.y)
    heights = [(float(scale((1.0, label.y))[1]) - bottom) / (top - bottom) for label in labels]
    positions = spread_out([y * height_in for y in heights], _LABEL_GAP_IN, height_in)
    # All in axes coordinates: (0, 0) is the plot's lower left corner, (1, 1) its upper right one.
    for label, point_y, position in zip(labels, heights, positions, strict=True):
        style = label.style
        draw = partial(_line, axes, transform=axes.transAxes, clip_on=False, color=style.colour, gid=label.gid)
        y = position / height_in
        if not math.isnan(label.x):
            start = axes.transAxes.inverted().transform(axes.transData.transform((label.x, label.y)))[0]
            draw([start, 1.0], [point_y, point_y], alpha=0.4, lw=0.7)
        draw([1.0, 1.035], [point_y, y], alpha=0.7, lw=0.8)
        if marker:
            draw([1.055], [y], marker=style.marker, ms=5, ls="")
        else:
            draw([1.038, 1.072], [y, y], ls=style.dash, lw=2)
        axes.text(1.085, y, label.text, va="center", transform=axes.transAxes, gid=label.gid, parse_math=False)
    axes.set_ylim(low, high)


def spread_out(wanted: Sequence[float], gap: float, height: float) -> list[float]:
    """Positions near those `wanted` (ascending), at least `gap` apart, inside [0, height] if they fit.

    Neighbours that are too close become one block, centred on the mean of what its members want.
    """
    blocks: list[list[float]] = []  # [first position, number of labels]

    def shifted(start: float, count: float) -> float:
        return max(0.0, min(start, height - gap * (count - 1)))

    for want in wanted:
        blocks.append([shifted(want, 1), 1])
        while len(blocks) > 1 and blocks[-2][0] + gap * blocks[-2][1] > blocks[-1][0]:
            start, count = blocks.pop()
            before, many = blocks[-1]
            centre = (many * (before + gap * (many - 1) / 2) + count * (start + gap * (count - 1) / 2)) / (many + count)
            total = many + count
            blocks[-1] = [shifted(centre - gap * (total - 1) / 2, total), total]
    return [start + gap * i for start, count in blocks for i in range(int(count))]


def _curve(row: Row, key: str) -> tuple[list[int], np.ndarray, np.ndarray, Stat] | None:
    """Epochs, mean and sample standard deviation over the seeds that logged the epoch, and the last epoch's statistics.

    None without data.
    """
    by_epoch: dict[int, list[float]] = {}
    for record in row.records:
        for line in record.history:
            epoch, value = line.get("epoch"), line.get(key)
            if isinstance(epoch, int) and isinstance(value, int | float) and math.isfinite(value):
                by_epoch.setdefault(epoch, []).append(float(value))
    if not by_epoch:
        return None
    epochs = sorted(by_epoch)
    if len(epochs) > _CURVE_POINTS:
        epochs = [epochs[round(i)] for i in np.linspace(0, len(epochs) - 1, _CURVE_POINTS)]
    stats = [s for e in epochs if (s := stat(by_epoch[e]))]
    mean = np.array([s.mean for s in stats])
    spread = np.array([s.spread or 0.0 for s in stats])
    if key == "loss":  # losses of different methods have no common scale: each from its lowest (0) to its highest (1)
        span = np.ptp(mean) or 1.0
        mean, spread = (mean - mean.min()) / span, spread / span
    return epochs, mean, spread, stats[-1]


def _shown(count: int) -> int:
    """How many of so many points or lines are labelled."""
    return count if count <= LABELLED else LABELLED_OF_MANY


def _others(row: Row) -> list[str]:
    return [f"{k}={v}" for k, v in row.settings.items() if k != "q" and v != "–"]


def _text(s: Stat, decimals: int | None = None, divisor: float = 1) -> str:
    """Mean ± spread for a tooltip; four significant digits where no decimals are given."""
    form = ",.4g" if decimals is None else f",.{decimals}f"
    values = [s.mean] if s.spread is None else [s.mean, s.spread]
    return " ± ".join(f"{value / divisor:{form}}" for value in values)


def _along(name: str, qs: Sequence[int], stats: Sequence[Stat]) -> str:
    return f"{name}: " + "; ".join(f"q = {q}: {_text(s)} (n = {s.n})" for q, s in zip(qs, stats, strict=True))


def _subscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]  # str.capitalize would make kNN knn


def to_svg(figure: Figure, marks: Marks) -> str:
    """The figure as an <svg> element without outside references, in the text colour of the page around it."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = _in_tags(_quiet_tag, text[text.index("<svg") :])
    # Where there is less room, as on a phone, the page scrolls rather than make the text smaller than can be read.
    width_px = figure.get_figwidth() * 72 * _SMALLEST_TEXT_PX / _TEXT_PT
    text = text.replace("<svg", f'<svg style="min-width: {width_px:.0f}px"', 1)
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="(mark\.[^"]*)">', lambda found: marks.group(found[1]), text)
    text = text.replace('<g id="front">', '<g class="front"><title>Pareto front</title>')
    text = re.sub(r'<g id="(?!axes|figure)[^"]*">', "<g>", text)  # numbered for nobody
    return re.sub(r"\n\s*", "\n", text)


def unique_ids(svg: str, prefix: str) -> str:
    """Puts a prefix before every id of an SVG and every use of it: several SVGs share one page."""
    return _in_tags(lambda tag: re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", tag), svg)


def _in_tags(change: Callable[[str], str], svg: str) -> str:
    """The SVG with its tags changed, and the texts between them, which are other people's, as they were."""
    return re.sub(r"<[^>]*>", lambda found: change(found[0]), svg)


def _quiet_tag(tag: str) -> str:
    """A tag in the page's colour, without namespaces; a hundredth of a point is enough, and half the size."""
    tag = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", tag.replace(INK, "currentColor").replace("xlink:href", "href"))
    return re.sub(r"(\.\d\d)\d+", r"\1", tag)
