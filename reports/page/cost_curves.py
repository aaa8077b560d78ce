"""The figures of `regbench cost`: time and memory against batch or dimension, from its CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from regbench.errors import RegbenchError
from regbench.reports.page.drawing import (
    INK,
    PAPER_INK,
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
_TEXTS = {"method", "form", "auto", "hardware", "threads", "torch", "dtype"}
_LOOKS = "solid: Gram form; dashed: covariance; dotted: textbook's"

Line = Mapping[str, str]


def read_cost(path: Path) -> list[Line]:
    """Read the cost.csv of `regbench cost`.

    Raises:
        RegbenchError: If the file cannot be read or is something else.
    """
    try:
        lines: list[Line] = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        for line in lines:
            for name in ("n", "q", "views", "ranks"):
                int(line[name])
            for name in _QUANTITIES:
                float(line[name] or 0)  # empty where a form does not fit into memory
            if not line.keys() >= _TEXTS:
                raise KeyError(*_TEXTS - line.keys())
    except OSError as error:
        raise RegbenchError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise RegbenchError(f"{path} is not what `regbench cost` writes ({error!r}); give its cost.csv") from error
    return lines


def cost_png(text: str) -> bytes | None:
    """Draw time and extra memory on logarithmic axes, for the fewest ranks and views; None if nothing was measured.

    The axis is the batch where several were measured, else the embedding dimension; the other is the largest.

    Args:
        text: What `regbench cost` wrote as cost.csv.
    """
    lines = _measured(list(csv.DictReader(io.StringIO(text))))
    if not lines:
        return None
    # Batches are what most grids vary.
    along, fixed = ("n", "q") if len(_sizes(lines, "n")) > 1 else ("q", "n")
    level = _sizes(lines, fixed)[-1]
    lines = _at(lines, fixed, level)
    style = styles(line["method"] for line in lines)
    with matplotlib_in(PAPER_INK):
        figure, panels = figure_with_labels(len(_QUANTITIES), list(style), top_in=0.6)
        for axes, key in zip(panels, _QUANTITIES, strict=True):
            place_labels(axes, _panel(axes, lines, key, along, style, Marks()), marker=True)
            axes.set_title(f"{fixed} = {level}; {_LOOKS}", loc="left", fontsize=8)
        figure.suptitle(f"Value and gradient: {cost_machine(lines)}", fontsize=9, x=0.01, ha="left")
        return to_png(figure)


def cost_drawings(lines: Sequence[Line], style: Mapping[str, Style]) -> list[Drawing]:
    """Draw time and extra memory against n at the largest q, and against q at the largest n.

    Args:
        lines: What `read_cost` gave.
        style: How each of its methods is drawn.
    """
    drawings = []
    for key, (title, _) in _QUANTITIES.items():
        measured = [line for line in _measured(lines) if line[key]]
        for along, fixed in (("n", "q"), ("q", "n")):
            level = max(_sizes(measured, fixed), default=0)
            own = _at(measured, fixed, level)
            if len(_sizes(own, along)) > 1:
                title_of = f"{title.split(' (')[0].capitalize()} against {_NAMES[along]}, {fixed} = {level:,}"
                drawings.append(_drawing(title_of, own, key, along, style))
    return drawings


def _drawing(title: str, lines: Sequence[Line], key: str, along: str, style: Mapping[str, Style]) -> Drawing:
    methods = list(dict.fromkeys(line["method"] for line in lines))
    crowded = len(methods) > LABELLED
    shown = methods[:LABELLED_OF_MANY] if crowded else methods
    with matplotlib_in(INK):
        marks = Marks()
        figure, (axes,) = figure_with_labels(1, shown)
        labels = _panel(axes, lines, key, along, style, marks)
        place_labels(axes, [label for label in labels if label.text in shown], marker=True)
        text = f"{_QUANTITIES[key][0]} of value and gradient of each loss against {_NAMES[along]}, on logarithmic axes."
        return Drawing(title, text, to_svg(figure, marks), crowded)


def cost_machine(lines: Sequence[Line]) -> str:
    """Say where and how the costs were measured."""
    first = _measured(lines)[0]
    return "{hardware}; threads = {threads}, ranks = {ranks}; torch {torch}, {dtype}".format(**first)


def _measured(lines: Sequence[Line]) -> list[Line]:
    """Keep the lines with a number in them, of the fewest ranks and views."""
    # Losses of more ranks or views are other losses; a figure of both would compare what cannot be compared.
    kept: dict[tuple[int, int], list[Line]] = {}
    for line in lines:
        if line["median_ms"] or line["extra_bytes"]:
            kept.setdefault((int(line["ranks"]), int(line["views"])), []).append(line)
    return kept[min(kept)] if kept else []


def _sizes(lines: Sequence[Line], name: str) -> list[int]:
    """Return the sizes that were measured, ascending."""
    return sorted({int(line[name]) for line in lines})


def _at(lines: Sequence[Line], name: str, size: int) -> list[Line]:
    return [line for line in lines if int(line[name]) == size]


def _panel(
    axes: Axes, lines: Sequence[Line], key: str, along: str, style: Mapping[str, Style], marks: Marks
) -> list[Label]:
    """Draw one quantity at one level of the size that the axis does not show; label each method's last point.

    A label belongs to the form that `auto` stands for there. A form is a style of line.
    """
    title, unit = _QUANTITIES[key]
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in sorted(lines, key=lambda line: int(line[along])):
        if line[key]:
            groups.setdefault((line["method"], line["form"]), []).append(line)
    labels: dict[str, Label] = {}
    for (method, form), own in groups.items():
        s, sizes, values, texts = style[method], [], [], []
        for line in own:
            sizes.append(int(line[along]))
            values.append(float(line[key]) / unit)
            texts.append(f"{along} = {sizes[-1]}: {values[-1]:.4g}")
        gid = marks.add(s, [], f"{method}, {form}, {title}: {'; '.join(texts)}")
        axes.plot(sizes, values, color=s.colour, marker=s.marker, ls=FORM_DASHES[form], ms=4, lw=1.3, gid=gid)
        # A form that cannot hold a logarithm's zero has no place on the axis.
        if values[-1] > 0 and (own[-1]["auto"] == "True" or method not in labels):
            labels[method] = Label(method, float(sizes[-1]), values[-1], s, gid)
    axes.set_yscale("log")
    sizes_axis(axes, _sizes(lines, along))
    plain_ticks(axes.yaxis)
    axes.set_xlabel(_NAMES[along])
    axes.set_ylabel(title)
    grid(axes)
    return list(labels.values())
