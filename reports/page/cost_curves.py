"""The figures of `regbench cost`: time and memory against batch or dimension, from its CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from regbench.errors import RegbenchError
from regbench.reports.page.drawing import (
    INK,
    PAPER_INK,
    UNTRAINED,
    Drawing,
    Label,
    Marks,
    Style,
    figure_with_labels,
    grid,
    matplotlib_in,
    place_labels,
    plain_ticks,
    sizes_axis,
    styles,
    to_png,
    to_svg,
)
from regbench.reports.page.figures import LABELLED, LABELLED_OF_MANY

FORM_DASHES = {"textbook": ":", "gram": "-", "covariance": "--"}
_QUANTITIES = {"median_ms": ("time (ms)", 1.0), "extra_bytes": ("extra memory (MiB)", 2.0**20)}
_NAMES = {"n": "batch n", "q": "embedding dimension q"}
_LEGEND_LINE_IN = 0.19

Line = Mapping[str, str]


def read_cost(path: Path) -> list[Line]:
    """Read the cost.csv of `regbench cost`.

    Raises:
        RegbenchError: If the file cannot be read or is something else.
    """
    try:
        lines: list[Line] = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        for line in lines:
            [int(line[name]) for name in ("n", "q", "views", "ranks")]
            [float(line[name]) for name in _QUANTITIES if line[name]]
            [line[name] for name in ("method", "form", "auto", "hardware", "threads", "torch", "dtype")]
    except OSError as error:
        raise RegbenchError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise RegbenchError(f"{path} is not what `regbench cost` writes ({error!r}); give its cost.csv") from error
    return lines


def cost_png(text: str) -> bytes | None:
    """Draw time and extra memory on logarithmic axes, for the fewest ranks and views; None if nothing was measured.

    The axis is the batch where several were measured, else the embedding dimension; if both vary, there is a row of
    panels for each dimension. A method has one colour and one marker, a form one style of line.

    Args:
        text: What `regbench cost` wrote as cost.csv.
    """
    lines = _measured(list(csv.DictReader(io.StringIO(text))))
    if not lines:
        return None
    along, fixed = ("n", "q") if len({line["n"] for line in lines}) > 1 else ("q", "n")
    levels = sorted({int(line[fixed]) for line in lines})
    style = styles(line["method"] for line in lines)
    forms = [form for form in FORM_DASHES if any(line["form"] == form for line in lines)]
    with matplotlib_in(PAPER_INK):
        height_in = max(2.7 * len(levels), _LEGEND_LINE_IN * (len(style) + len(forms) + 1)) + 0.7
        figure = Figure(figsize=(9.6, height_in), layout="constrained")
        panels = figure.subplots(len(levels), len(_QUANTITIES), squeeze=False)
        for row, level in zip(panels, levels, strict=True):
            own = [line for line in lines if int(line[fixed]) == level]
            for axes, key in zip(row, _QUANTITIES, strict=True):
                _panel(axes, own, key, along, style, Marks())
                axes.set_title(f"{fixed} = {level}", loc="left", fontsize=9)
        handles = [Line2D([], [], color=s.colour, marker=s.marker, ms=5, label=name) for name, s in style.items()]
        handles += [Line2D([], [], color=UNTRAINED, ls=FORM_DASHES[form], label=form) for form in forms]
        figure.legend(handles=handles, loc="outside right upper", frameon=False, handlelength=2.6)
        figure.suptitle(f"Value and gradient: {cost_machine(lines)}", fontsize=9, x=0.01, ha="left")
        return to_png(figure)


def cost_drawings(lines: Sequence[Line], style: Mapping[str, Style]) -> list[Drawing]:
    """Draw time and extra memory against n at the largest q, and against q at the largest n.

    Args:
        lines: What `read_cost` gave.
        style: How each of its methods is drawn.
    """
    lines = _measured(lines)
    drawings = []
    for key, (title, _) in _QUANTITIES.items():
        for along, fixed in (("n", "q"), ("q", "n")):
            level = max((int(line[fixed]) for line in lines if line[key]), default=0)
            own = [line for line in lines if line[key] and int(line[fixed]) == level]
            if len({line[along] for line in own}) < 2:
                continue
            methods = list(dict.fromkeys(line["method"] for line in own))
            with matplotlib_in(INK):
                marks = Marks()
                crowded = len(methods) > LABELLED
                shown = methods[:LABELLED_OF_MANY] if crowded else methods
                figure, (axes,) = figure_with_labels(1, shown)
                labels = _panel(axes, own, key, along, style, marks)
                place_labels(axes, [label for label in labels if label.text in shown], marker=True)
                what = title.split(" (")[0]
                name = f"{what.capitalize()} against {_NAMES[along]}, {fixed} = {level:,}"
                text = f"{title} of value and gradient of each loss against {_NAMES[along]}, on logarithmic axes."
                drawings.append(Drawing(name, text, to_svg(figure, marks), crowded))
    return drawings


def cost_machine(lines: Sequence[Line]) -> str:
    """Say where and how the costs were measured."""
    first = _measured(lines)[0]
    return "{hardware}; threads = {threads}, ranks = {ranks}; torch {torch}, {dtype}".format(**first)


def _measured(lines: Sequence[Line]) -> list[Line]:
    """Keep the lines with a number in them, of the fewest ranks and views."""
    measured = [line for line in lines if line["median_ms"] or line["extra_bytes"]]
    fewest = min(((int(line["ranks"]), int(line["views"])) for line in measured), default=None)
    return [line for line in measured if (int(line["ranks"]), int(line["views"])) == fewest]


def _panel(
    axes: Axes, lines: Sequence[Line], key: str, along: str, style: Mapping[str, Style], marks: Marks
) -> list[Label]:
    """Draw one quantity at one level of the size that the axis does not show; label each method's last point.

    A label belongs to the form that `auto` stands for there. A form is a style of line.
    """
    title, unit = _QUANTITIES[key]
    labels: dict[str, Label] = {}
    for method, form in dict.fromkeys((line["method"], line["form"]) for line in lines):
        own = [line for line in lines if (line["method"], line["form"]) == (method, form) and line[key]]
        if not own:
            continue
        own.sort(key=lambda line: int(line[along]))
        points = [(int(line[along]), float(line[key]) / unit) for line in own]
        s = style[method]
        values = "; ".join(f"{along} = {size}: {value:.4g}" for size, value in points)
        gid = marks.add(s, [], f"{method}, {form}, {title}: {values}")
        dash = FORM_DASHES[form]
        axes.plot(*zip(*points, strict=True), color=s.colour, marker=s.marker, ls=dash, ms=4, lw=1.3, gid=gid)
        # A form that cannot hold a logarithm's zero has no place on the axis.
        if points[-1][1] > 0 and (own[-1]["auto"] == "True" or method not in labels):
            labels[method] = Label(method, float(points[-1][0]), points[-1][1], s, gid)
    axes.set_yscale("log")
    sizes_axis(axes, {int(line[along]) for line in lines})
    plain_ticks(axes.yaxis)
    axes.set_xlabel(_NAMES[along])
    axes.set_ylabel(title)
    grid(axes)
    return list(labels.values())
