"""The figures of a task: as SVG to put inside a page, and the main ones as PNG for a README.

Up to `LABELLED` points or lines are labelled directly; of more than that only those that matter most, and the page
tells the others by its legend and by hovering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
    place_labels,
    plain_ticks,
    settings,
    sizes_axis,
    to_png,
    to_svg,
)
from regbench.reports.rows.summary import DASH, Row, Stat, Summary, stat
from regbench.reports.tables.units import Unit, energy_unit, memory_unit, time_unit

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
        for score in reversed(summary.leading):
            points = _points(summary, score, against)
            if not points:
                continue
            with settings(INK):
                marks = Marks()
                named = _named(points, LABELLED, against)
                figure, (axes,) = figure_with_labels(1, [p.row.name for p in points if p.place in named])
                _scatter(axes, summary, points, score, against, style, named, marks)
                shown = summary.scores[score]
                text = f"{shown.head} of each method against {against.name}; the numbers are in the tables."
                name = f"{_capital(shown.title)} against {against.name}"
                drawings.append(Drawing(name, text, to_svg(figure, marks), len(points) > LABELLED))
    return drawings


def dimension_drawings(summary: Summary, style: Mapping[str, Style]) -> list[Drawing]:
    """Accuracy and time of a step against the embedding dimension, for methods that ran with several."""
    drawings = []
    titles = {name: (summary.scores[name].title, summary.scores[name].head) for name in reversed(summary.leading)}
    for key, (title, head) in (titles | {"step_ms": ("time of a step", "time of a step (ms)")}).items():
        groups: dict[tuple[str, ...], dict[int, tuple[int, Row, Stat]]] = {}
        for i, row in enumerate(summary.rows):
            value = row.score(key) if key in titles else row.cost(key)
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
                    draw_line(axes, xs, ys, color=s.colour, lw=1.1, gid=gid)
                draw_line(axes, qs, means, color=s.colour, marker=s.marker, ls=s.dash, ms=5, lw=1.5, gid=gid)
                if place < _shown(len(lines)):
                    labels.append(Label(names[name], float(qs[-1]), means[-1], s, gid))
            sizes_axis(axes, {q for points in lines.values() for q in points})
            axes.set_xlabel("embedding dimension q")
            axes.set_ylabel(head)
            place_labels(axes, labels, marker=True)
            heading = f"{_capital(title)} against the embedding dimension"
            text = f"{head} of each method against the embedding dimension."
            drawings.append(Drawing(heading, text, to_svg(figure, marks), len(lines) > LABELLED))
    return drawings


def curve_drawings(summary: Summary, style: Mapping[str, Style]) -> list[Drawing]:
    """A figure for each quantity of the best rows' training history: mean over the seeds, a band of one deviation."""
    drawings = []
    for key in CURVES:
        title = "training loss, scaled" if key == "loss" else key.replace("_", " ")
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
                draw_line(axes, epochs, list(mean), color=s.colour, ls=s.dash, marker=marker, ms=3.5, gid=gid, **line)
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
    panels = {score: points for score in reversed(summary.leading) if (points := _points(summary, score, against))}
    if not panels:
        return None
    with settings(PAPER_INK):
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
            draw_line(axes, *bars, color=s.colour, lw=1.1, gid=gid)
        fill = "none" if row.diverged else s.colour
        draw_line(axes, [x], [y], color=s.colour, marker=s.marker, ms=6.5, mfc=fill, ls="", gid=gid)
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
        front = [places[j] for j in pareto(places)]
        steps = [*front, (high, front[-1][1])]
        axes.step(*zip(*steps, strict=True), where="post", color=UNTRAINED, lw=3, alpha=0.35, zorder=0.9, gid="front")
        axes.set_xlim(low, high)
    place_labels(axes, labels, marker=True)


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
    return [f"{k}={v}" for k, v in row.settings.items() if k != "q" and v != DASH]


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
    return text[0].upper() + text[1:] if text.split()[0].islower() else text  # kNN stays kNN
