"""The figures of `regbench cost`: time and memory against batch or dimension, from its CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes

from regbench.errors import RegbenchError
from regbench.reports.page.drawing import Drawing, Styles, labelled_png, plain_ticks, sizes_axis, styles
from regbench.reports.page.lines import Curve, curves_drawing, draw_curves

FORM_DASHES = {"textbook": ":", "gram": "-", "covariance": "--"}
_QUANTITIES = {"median_ms": ("time (ms)", 1.0), "extra_bytes": ("extra memory (MiB)", 2.0**20)}
_NAMES = {"n": "batch n", "q": "embedding dimension q"}
_TEXTS = {"method", "form", "auto", "hardware", "threads", "torch", "dtype"}

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
    """Draw time and extra memory for the fewest ranks and views; None if nothing was measured.

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
    panels, names, labels = [], [], 0
    for key in _QUANTITIES:
        curves = _curves(lines, key, along, style)
        finish = partial(_logarithmic, sizes=_sizes(lines, along))
        if curves:
            heads = _NAMES[along], _QUANTITIES[key][0]
            panels.append(partial(draw_curves, curves=curves, labelled=len(curves), heads=heads, finish=finish))
            names += [curve.name for curve in curves]
            labels = max(labels, len(curves))
    if not panels:
        return None
    return labelled_png(panels, names, labels, f"Value and gradient, {fixed} = {level}: {cost_machine(lines)}")


def cost_drawings(lines: Sequence[Line], style: Styles) -> list[Drawing]:
    """Draw time and extra memory against n at the largest q, and against q at the largest n.

    Args:
        lines: What `read_cost` gave.
        style: How each of its methods is drawn.
    """
    drawings = []
    for key, (head, _) in _QUANTITIES.items():
        measured = [line for line in _measured(lines) if line[key]]
        for along, fixed in (("n", "q"), ("q", "n")):
            level = max(_sizes(measured, fixed), default=0)
            own = _at(measured, fixed, level)
            sizes = _sizes(own, along)
            if len(sizes) > 1:
                title = f"{head.split(' (')[0].capitalize()} against {_NAMES[along]}, {fixed} = {level:,}"
                about = f"of value and gradient of each loss against {_NAMES[along]}, on logarithmic axes."
                curves, finish = _curves(own, key, along, style), partial(_logarithmic, sizes=sizes)
                drawings.append(curves_drawing(title, (_NAMES[along], head), about, curves, finish))
    return drawings


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


def _curves(lines: Sequence[Line], key: str, along: str, style: Styles) -> list[Curve]:
    """Join what differs in one size alone: a line for each form of each method."""
    groups: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for line in sorted(lines, key=lambda line: int(line[along])):
        value = float(line[key] or 0) / _QUANTITIES[key][1]
        if value > 0:  # a logarithmic axis has no place for a form that takes nothing
            groups.setdefault((line["method"], line["form"]), []).append((int(line[along]), value, 0.0))
    curves = []
    for (method, form), points in groups.items():
        texts = [f"{along} = {size}: {value:.4g}" for size, value, _ in points]
        look = replace(style[method], dash=FORM_DASHES[form])
        curves.append(Curve(f"{method}, {form}", look, [], "; ".join(texts), points))
    return curves


def _logarithmic(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_yscale("log")
    sizes_axis(axes, sizes)
    plain_ticks(axes.yaxis)
