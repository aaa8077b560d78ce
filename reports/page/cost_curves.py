"""The figure of `regbench cost`: time and memory against batch or dimension, from its CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from matplotlib.axes import Axes

from regbench.reports.page.drawing import Styles, labelled_png, plain_ticks, sizes_axis, styles
from regbench.reports.page.lines import Curve, draw_curves

_FORM_DASHES = {"textbook": ":", "gram": "-", "covariance": "--"}
_QUANTITIES = {"median_ms": ("time (ms)", 1.0), "extra_bytes": ("extra memory (MiB)", 2.0**20)}
_NAMES = {"n": "batch n", "q": "embedding dimension q"}

_Line = Mapping[str, str]


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
    lines = [line for line in lines if int(line[fixed]) == level]
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
    machine = "{hardware}; threads = {threads}, ranks = {ranks}; torch {torch}, {dtype}".format(**lines[0])
    return labelled_png(panels, names, labels, f"Value and gradient, {fixed} = {level}: {machine}")


def _measured(lines: Sequence[_Line]) -> list[_Line]:
    """Keep the lines with a number in them, of the fewest ranks and views."""
    # Losses of more ranks or views are other losses; a figure of both would compare what cannot be compared.
    kept: dict[tuple[int, int], list[_Line]] = {}
    for line in lines:
        if line["median_ms"] or line["extra_bytes"]:
            kept.setdefault((int(line["ranks"]), int(line["views"])), []).append(line)
    return kept[min(kept)] if kept else []


def _sizes(lines: Sequence[_Line], name: str) -> list[int]:
    """Return the sizes that were measured, ascending."""
    return sorted({int(line[name]) for line in lines})


def _curves(lines: Sequence[_Line], key: str, along: str, style: Styles) -> list[Curve]:
    """Join what differs in one size alone: a line for each form of each method."""
    groups: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for line in sorted(lines, key=lambda line: int(line[along])):
        value = float(line[key] or 0) / _QUANTITIES[key][1]
        if value > 0:  # a logarithmic axis has no place for a form that takes nothing
            groups.setdefault((line["method"], line["form"]), []).append((int(line[along]), value, 0.0))
    curves = []
    for (method, form), points in groups.items():
        look = replace(style[method], dash=_FORM_DASHES[form])
        curves.append(Curve(f"{method}, {form}", look, [], "", points))
    return curves


def _logarithmic(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_yscale("log")
    sizes_axis(axes, sizes)
    plain_ticks(axes.yaxis)
