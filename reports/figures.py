"""Figures of a task as SVG to put inside a page, and the main one as PNG for a README.

Every point and line is labelled directly, in a column at the right where labels cannot overlap. A method has
one colour and one marker in all figures. Axes and text of an SVG take the colour of the page's text, so that
they read on a light and on a dark page. No pyplot: it would keep global state and start slower.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from io import BytesIO, StringIO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from regbench.reports.summary import Row, Summary
from regbench.reports.tables import largest, memory_unit, time_unit

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
}

_LABEL_GAP_IN = 0.18  # from one label's baseline to the next
_PLOT_WIDTH_IN = 3.9
_MARGIN_IN = 0.62  # left of the plot, for the ticks


@dataclass(frozen=True)
class Style:
    """How a method is drawn: the same in all figures."""

    colour: str
    marker: str
    dash: str


@dataclass(frozen=True)
class Drawing:
    """An inline SVG with what a reader who cannot see it is told."""

    title: str
    description: str
    svg: str


@dataclass
class _Label:
    """A label at the right margin that belongs to the point (x, y) of the plot."""

    text: str
    x: float
    y: float
    style: Style


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """One style for each label of trained methods, in the order of the alphabet."""
    out = {}
    for i, label in enumerate(sorted(set(labels))):
        turn = i // len(PALETTE)
        out[label] = Style(PALETTE[i % len(PALETTE)], MARKERS[(i + turn) % len(MARKERS)], DASHES[turn % len(DASHES)])
    return out


def scatter_drawings(summary: Summary, style: dict[str, Style]) -> list[Drawing]:
    """Accuracy against training time and against peak memory, for those scores that were measured."""
    drawings = []
    for cost in ("train_s", "peak_memory_bytes"):
        for score, title in ACCURACY.items():
            rows = _points(summary, score, cost)
            if not rows:
                continue
            with settings(INK):
                figure, (axes,) = _figure(1, summary.rows)
                _scatter(axes, summary, rows, score, cost, style)
                against = "training time" if cost == "train_s" else "peak memory"
                text = f"{title} of each method against {against}; the numbers are in the tables."
                name = f"{_capital(title.split(',')[0])} against {against}"
                drawings.append(Drawing(name, text, _svg(figure)))
    return drawings


def curve_drawings(summary: Summary, style: dict[str, Style]) -> list[Drawing]:
    """A figure for each quantity of the training history: mean over the seeds, a band of one deviation."""
    drawings = []
    for key, title in CURVES.items():
        curves = {row.name: (row, *curve) for row in summary.rows if (curve := _curve(row, key))}
        if not curves:
            continue
        with settings(INK):
            figure, (axes,) = _figure(1, [row for row, *_ in curves.values()])
            labels = []
            for name, (row, epochs, mean, spread) in curves.items():
                s = style[row.label]
                few = len(epochs) < 12
                axes.plot(epochs, mean, color=s.colour, ls=s.dash, lw=1.6, marker=s.marker if few else None, ms=3.5)
                if np.any(spread > 0):
                    axes.fill_between(epochs, mean - spread, mean + spread, color=s.colour, alpha=0.15, lw=0)
                labels.append(_Label(name, float(epochs[-1]), float(mean[-1]), s))
            axes.set_xlabel("epoch")
            axes.set_ylabel(title)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if key == "loss":
                axes.set_yticks([0, 0.5, 1])
            _place_labels(axes, labels, marker=False)
            text = f"{title} of each method by epoch."
            drawings.append(Drawing(_capital(title), text, _svg(figure)))
    return drawings


def main_png(summary: Summary, style: dict[str, Style]) -> bytes | None:
    """Accuracy against training time on white, one panel a score; None if nothing was trained and scored."""
    panels = {score: rows for score in ACCURACY if (rows := _points(summary, score, "train_s"))}
    if not panels:
        return None
    with settings(PAPER_INK):
        figure, axes = _figure(len(panels), summary.rows)
        for ax, (score, rows) in zip(axes, panels.items(), strict=True):
            _scatter(ax, summary, rows, score, "train_s", style)
        figure.set_facecolor("white")
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    return buffer.getvalue()


def settings(ink: str) -> AbstractContextManager[None]:
    """Matplotlib's settings for a figure whose axes and text are of the colour `ink`."""
    return matplotlib.rc_context(
        {
            "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
            "font.size": 9,
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


def _figure(panels: int, rows: Sequence[Row]) -> tuple[Figure, list[Axes]]:
    """Panels side by side, each with a column for its labels at the right, high enough for all of them."""
    label_width_in = 0.35 + 0.078 * max(len(row.name) for row in rows)
    width_in = _MARGIN_IN + _PLOT_WIDTH_IN + label_width_in
    height_in = max(3.1, _LABEL_GAP_IN * (len(rows) + 1) + 0.7)
    figure = Figure(figsize=(panels * width_in, height_in))
    figure.patch.set_alpha(0)
    axes = []
    for i in range(panels):
        left = (i * width_in + _MARGIN_IN) / (panels * width_in)
        box = (left, 0.5 / height_in, _PLOT_WIDTH_IN / (panels * width_in), 1 - 0.65 / height_in)
        ax = figure.add_axes(box)
        ax.patch.set_alpha(0)
        ax.grid(color=UNTRAINED, alpha=0.22, lw=0.6)
        ax.set_axisbelow(True)
        axes.append(ax)
    return figure, axes


def _points(summary: Summary, score: str, cost: str) -> list[Row]:
    return [row for row in summary.rows if row.score(score) and row.cost(cost)]


def _scatter(axes: Axes, summary: Summary, rows: Sequence[Row], score: str, cost: str, style: dict[str, Style]) -> None:
    unit = (time_unit if cost == "train_s" else memory_unit)(largest(rows, cost))
    labels = []
    xs = []
    for row in rows:
        accuracy, price, s = row.score(score), row.cost(cost), style[row.label]
        assert accuracy is not None and price is not None
        x, y = price.mean / unit.divisor, accuracy.mean
        xs.append(x)
        axes.errorbar(
            x,
            y,
            xerr=price.spread / unit.divisor if price.spread else None,
            yerr=accuracy.spread or None,
            fmt=s.marker,
            color=s.colour,
            ms=6.5,
            mfc="none" if row.diverged else s.colour,
            elinewidth=1.1,
            capsize=2.5,
        )
        labels.append(_Label(row.name, x, y, s))
    base = next((b for row in summary.rows if row.untrained and (b := row.score(score))), None)
    if base is not None:
        axes.axhline(base.mean, color=UNTRAINED, ls="--", lw=1)
        labels.append(_Label("untrained", float("nan"), base.mean, Style(UNTRAINED, "_", "--")))
    if max(xs) > 8 * min(xs) > 0:
        axes.set_xscale("log")
    elif len(set(xs)) == 1:
        axes.set_xlim(0.8 * xs[0], 1.2 * xs[0])
    axes.set_xlabel(f"training time ({unit.name})" if cost == "train_s" else f"peak memory ({unit.name})")
    axes.set_ylabel(ACCURACY[score])
    axes.margins(0.08)
    _place_labels(axes, labels, marker=True)


def _place_labels(axes: Axes, labels: list[_Label], *, marker: bool) -> None:
    """Writes the labels in a column right of the plot, ordered by y, and ties each to its point."""
    low, high = axes.get_ylim()
    height_in = axes.bbox.height / axes.figure.dpi
    labels.sort(key=lambda label: label.y)
    points = [((label.x, (label.y - low) / (high - low)), label.style) for label in labels]
    positions = spread_out([y * height_in for (_, y), _ in points], _LABEL_GAP_IN, height_in)
    # All in axes coordinates: (0, 0) is the plot's lower left corner, (1, 1) its upper right one.
    draw = partial(axes.plot, transform=axes.transAxes, clip_on=False)
    for label, ((x, point_y), style), position in zip(labels, points, positions, strict=True):
        y = position / height_in
        if not math.isnan(x):
            start = axes.transAxes.inverted().transform(axes.transData.transform((x, label.y)))[0]
            draw([start, 1.0], [point_y, point_y], color=style.colour, alpha=0.4, lw=0.7)
        draw([1.0, 1.035], [point_y, y], color=style.colour, alpha=0.7, lw=0.8)
        if marker:
            draw([1.055], [y], color=style.colour, marker=style.marker, ms=5, ls="")
        else:
            draw([1.038, 1.072], [y, y], color=style.colour, ls=style.dash, lw=2)
        axes.text(1.085, y, label.text, va="center", transform=axes.transAxes)
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


def _curve(row: Row, key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Epochs, mean and sample standard deviation over the seeds that logged the epoch; None without data."""
    by_epoch: dict[int, list[float]] = {}
    for record in row.records:
        for entry in record.history:
            value = entry.get(key)
            if isinstance(value, int | float) and np.isfinite(value):
                by_epoch.setdefault(entry["epoch"], []).append(float(value))
    if not by_epoch:
        return None
    epochs = np.array(sorted(by_epoch))
    mean = np.array([np.mean(by_epoch[e]) for e in epochs])
    spread = np.array([np.std(by_epoch[e], ddof=1) if len(by_epoch[e]) > 1 else 0.0 for e in epochs])
    if key == "loss":  # losses of different methods have no common scale: each from its lowest (0) to its highest (1)
        span = np.ptp(mean) or 1.0
        mean, spread = (mean - mean.min()) / span, spread / span
    return epochs, mean, spread


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]  # str.capitalize would make kNN knn


def _svg(figure: Figure) -> str:
    """The figure as an <svg> element without outside references, in the text colour of the page around it."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor").replace("xlink:href", "href")
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)


def unique_ids(svg: str, prefix: str) -> str:
    """Puts a prefix before every id of an SVG and every use of it: several SVGs share one page."""
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
