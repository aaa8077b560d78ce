"""Line figures of a task: curves while training, spectra of kernels, and what depends on a size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from regbench.benchmark.rundir.record import Score
from regbench.benchmark.rundir.record_parts import LARGEST
from regbench.reports.page.drawing import (
    Drawing,
    Label,
    Marks,
    Style,
    Styles,
    draw_line,
    labelled_drawing,
)
from regbench.reports.page.figures import LABELLED, LABELLED_OF_MANY, capital
from regbench.reports.rows.deviations import Stat, stat
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.table import mean_pm
from regbench.reports.tables.units import time_unit, unit_of

# Numbers of the training history that are drawn.
CURVES = ("loss", "alignment", "uniformity", "effective_rank", "feature_spread")

DRAWN_CURVES = 60  # rows, best first, whose training is drawn: more lines cannot be distinguished
_CURVE_POINTS = 150  # a curve with more epochs is drawn at this many, evenly chosen
_FEW_POINTS = 12  # lines with fewer points have a marker at each

_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")

_SIZES = (
    ("q", "embedding_dim", "the embedding dimension", "embedding dimension q"),
    ("batch", "batch_size", "the batch", "batch n"),
)


@dataclass(frozen=True)
class Curve:
    """One line of a figure.

    Attributes:
        name: Label of the line.
        style: Style of its method.
        rows: The rows of the leaderboard that it shows.
        tooltip: Text beside its name.
        points: Points of the line: each x with what was measured there.
    """

    name: str
    style: Style
    rows: list[int]
    tooltip: str
    points: Sequence[tuple[float, Stat]]


_Measured = list[tuple[int, float, Stat]]
"""Points of a row's training: epoch, mean seconds of training until then, what was measured."""


def curves_drawing(
    title: str,
    heads: tuple[str, str],
    about: str,
    curves: Sequence[Curve],
    finish: Callable[[Axes], object],
) -> Drawing:
    """Draw lines with a band of one deviation; if they are too many, only the first are labelled,
    and the others are thin.

    Args:
        title: Title of the figure.
        heads: Titles of the two axes.
        about: Description of the lines for readers who cannot see them.
        curves: The lines.
        finish: Function that sets what is particular to this figure's axes.
    """
    crowded = len(curves) > LABELLED
    labelled = LABELLED_OF_MANY if crowded else len(curves)
    # Whether there is room for a marker at each point.
    markers = max(len(line.points) for line in curves) < _FEW_POINTS

    def draw(axes: Axes, marks: Marks) -> list[Label]:
        labels = []
        for place, line in enumerate(curves):
            s, (xs, measured) = line.style, zip(*line.points, strict=True)
            means = np.array([value.mean for value in measured])
            stds = np.array([value.std or 0.0 for value in measured])
            gid = marks.add(s, line.rows, f"{line.name}: {line.tooltip}")
            look: dict[str, Any] = {"color": s.colour, "ls": s.dash, "gid": gid, "ms": 4.5}
            look |= {"lw": 1.6} if place < labelled else {"lw": 0.9, "alpha": 0.5}
            if markers:
                look["marker"] = s.marker
            draw_line(axes, xs, means.tolist(), **look)
            if place >= labelled:
                continue
            labels.append(Label(line.name, xs[-1], float(means[-1]), s, gid))
            if np.any(stds > 0):
                # The page finds the band by its gid, and makes it pale with its line.
                look = {"color": s.colour, "alpha": 0.15, "lw": 0, "gid": f"{gid}.band"}
                axes.fill_between(xs, means - stds, means + stds, **look)
        finish(axes)
        axes.set_xlabel(heads[0])
        axes.set_ylabel(heads[1])
        return labels

    names = [line.name for line in curves[:labelled]]
    text = f"{heads[1]} {about}"
    return labelled_drawing(title, text, names, draw, crowded=crowded, marker=markers)


def training_drawings(summary: Summary, style: Styles) -> list[Drawing]:
    """Draw each quantity of the best rows' training history: mean over the seeds, a band of one
    deviation.
    """
    drawings = []
    for key in CURVES:
        is_loss = key == "loss"
        title = "training loss, scaled" if is_loss else key.replace("_", " ")
        curves = []
        # The loss of a row that is no method cannot be compared with any other.
        for place, row in enumerate(summary.methods[:DRAWN_CURVES]):
            logged = []
            for record in row.records:
                for line in record.history:
                    epoch, value = line.get("epoch"), line.get(key)
                    if not isinstance(epoch, int) or not isinstance(value, int | float):
                        continue
                    if abs(value) <= LARGEST:
                        logged.append((epoch, 0.0, float(value)))
            curve = _curve(logged)
            if not curve:
                continue
            low, span = 0.0, 1.0
            if is_loss:
                # Losses of different methods have no common scale: each is drawn from its lowest
                # (0) to its highest (1), and one that never moves stays at 0.
                means = [value.mean for _, _, value in curve]
                low, span = min(means), float(np.ptp(means)) or 1.0
            points = []
            for epoch, _, value in curve:
                points.append((epoch, Stat(value.mean - low, value.std, value.n).over(span)))
            epoch, _, last = curve[-1]
            tooltip = f"{mean_pm(last)} in epoch {epoch}, n = {last.n}"
            curves.append(Curve(row.name, style[row.label], [place], tooltip, points))
        if curves:
            finish = partial(_epochs_axis, scaled=is_loss)
            about = "of each method by epoch."
            drawings.append(curves_drawing(capital(title), ("epoch", title), about, curves, finish))
    return drawings


def _curve(logged: Iterable[tuple[int, float, float]]) -> _Measured:
    """Return the points to draw for what the seeds logged, given as (epoch, seconds of training
    until then, value).
    """
    by_epoch: dict[int, list[tuple[float, float]]] = {}
    for epoch, seconds, value in logged:
        by_epoch.setdefault(epoch, []).append((seconds, value))
    epochs = sorted(by_epoch)
    if len(epochs) > _CURVE_POINTS:
        epochs = [epochs[round(i)] for i in np.linspace(0, len(epochs) - 1, _CURVE_POINTS)]
    points = []
    for epoch in epochs:
        seconds_of, values = zip(*by_epoch[epoch], strict=True)
        found = stat(values)
        if found is not None:
            points.append((epoch, math.fsum(seconds_of) / len(values), found))
    return points


def _epochs_axis(axes: Axes, *, scaled: bool = False) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if scaled:
        axes.set_yticks([0, 0.5, 1])


def accuracy_drawings(summary: Summary, style: Styles) -> list[Drawing]:
    """Draw the best rows' accuracy while training, by epoch and by time.

    A band is one deviation.
    """
    scores: dict[str, Score] = {}
    logged: dict[str, dict[int, list[tuple[int, float, float]]]] = {}
    for place, row in enumerate(summary.methods[:DRAWN_CURVES]):
        for record in row.records:
            for each in record.measured:
                scores[each.score.name] = each.score
                line = (each.epoch, each.train_s, each.score.value)
                logged.setdefault(each.score.name, {}).setdefault(place, []).append(line)
    drawings = []
    for name, score in scores.items():
        found = {place: _curve(lines) for place, lines in logged[name].items()}
        unit = time_unit(max(points[-1][1] for points in found.values()))
        head = f"{score.title}, {score.split} ({score.unit})"
        for along, x_head, finish in (
            ("epoch", "epoch", _epochs_axis),
            ("time", f"training time ({unit.name})", partial(Axes.set_xlim, left=0)),
        ):
            curves = []
            for place, points in found.items():
                row, drawn = summary.rows[place], []
                for epoch, train_s, value in points:
                    x = epoch if along == "epoch" else train_s / unit.divisor
                    drawn.append((x, value))
                epoch, _, last = points[-1]
                tooltip = f"{mean_pm(last, 2)} {score.unit} after epoch {epoch}, n = {last.n}"
                curves.append(Curve(row.name, style[row.label], [place], tooltip, drawn))
            title = f"{capital(score.title)} while training, by {along}"
            about = f"of each method by {x_head}."
            drawings.append(curves_drawing(title, (x_head, head), about, curves, finish))
    return drawings


def spectrum_drawings(summary: Summary, style: Styles) -> list[Drawing]:
    """Draw the coefficients b_ℓ of each kernel from ℓ = 1, where they are positive.

    At most one figure.
    """
    kernels: dict[tuple[str, tuple[float, ...]], list[int]] = {}
    for place, row in enumerate(summary.methods):
        if row.first.spectrum:
            kernels.setdefault((row.label, row.first.spectrum), []).append(place)
    curves, degrees, highest, labels = [], 0, 0.0, []
    for label, b in kernels:
        labels.append(label)
        degrees, highest = max(degrees, len(b)), max(highest, *b[1:], 0.0)
    for (label, b), places in kernels.items():
        points, values = [], []
        for degree, value in enumerate(b[1:], start=1):
            values.append(f"b{str(degree).translate(_SUBSCRIPTS)} = {value:.3g}")
            # The axis is logarithmic. A billionth of the highest is beyond what anybody sees on the
            # axis.
            if value > 1e-9 * highest:
                points.append((degree, Stat(value, None, 1)))
        if points:
            name = label if labels.count(label) == 1 else summary.rows[places[0]].name
            curves.append(Curve(name, style[label], places, ", ".join(values), points))
    if not curves:
        return []

    def finish(axes: Axes) -> None:
        axes.set_yscale("log")
        _epochs_axis(axes)  # degrees are whole numbers, too
        axes.set_xlim(0.7, degrees - 0.7)

    heads = ("degree ℓ of the spherical harmonics", "coefficient b of the kernel")
    about = "of each method in spherical harmonics, by degree, on a logarithmic axis."
    return [curves_drawing("Spectra of the kernels", heads, about, curves, finish)]


def size_drawings(summary: Summary, style: Styles) -> list[Drawing]:
    """Draw accuracy and costs against embedding dimension and batch, for methods that ran with
    several of them.
    """
    quantities: list[tuple[str, str, Callable[[Row], Stat | None], float]] = []
    for name in reversed(summary.leading):
        score = summary.scores[name]
        quantities.append((score.title, score.head, partial(Row.score, name=name), 1))
    for title, cost in (
        ("time of a step", "step_ms"),
        ("time of the loss", "loss_ms"),
        ("memory of the loss", "loss_extra_bytes"),
    ):
        unit = unit_of(summary.rows, cost)
        head = f"{title} ({unit.name})"
        quantities.append((title, head, partial(Row.cost, name=cost), unit.divisor))
    drawings = []
    for along, setting, of_title, of_axis in _SIZES:
        for title, head, of, divisor in quantities:
            curves = _size_curves(summary, style, along, setting, of, divisor)
            if curves:
                sizes: set[int] = set()
                for line in curves:
                    sizes.update(int(size) for size, _ in line.points)
                name = f"{capital(title)} against {of_title}"
                about = f"of each line against {of_title}."
                finish = partial(_sizes_axis, sizes=sizes)
                drawings.append(curves_drawing(name, (of_axis, head), about, curves, finish))
    return drawings


def _size_curves(
    summary: Summary,
    style: Styles,
    along: str,
    setting: str,
    of: Callable[[Row], Stat | None],
    divisor: float,
) -> list[Curve]:
    """Join the rows that differ in one size alone."""
    groups: dict[str, dict[int, tuple[int, Stat]]] = {}
    for place, row in enumerate(summary.methods):
        value, size = of(row), row.first.cell[setting]
        if value is None or size is None:  # weights from elsewhere have no batch
            continue
        name = row.label
        for key, text in row.settings.items():
            if key != along and text != DASH:
                name += f", {key}={text}"
        # Rows are sorted, so of two in one place the better one is drawn.
        groups.setdefault(name, {}).setdefault(int(size), (place, value.over(divisor)))
    curves = []
    for name, by_size in groups.items():
        places, texts, points = [], [], []
        for size, (place, value) in sorted(by_size.items()):
            places.append(place)
            texts.append(f"{along} = {size}: {mean_pm(value)} (n = {value.n})")
            points.append((size, value))
        if len(points) > 1:  # one point makes no line
            label = summary.rows[places[0]].label
            curves.append(Curve(name, style[label], places, "; ".join(texts), points))
    return curves


def _sizes_axis(axes: Axes, sizes: Iterable[int]) -> None:
    """Make the x-axis logarithmic, with ticks at the sizes that were measured, or at some of
    many.
    """
    ticks = sorted(sizes)
    shown = ticks[:: math.ceil(len(ticks) / 8)]
    axes.set_xscale("log")
    axes.set_xticks(shown, list(map(str, shown)))
    axes.minorticks_off()
