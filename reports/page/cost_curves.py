"""The figure of `regbench cost`: time and memory against batch or dimension, from its CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from regbench.csv_files import read_csv
from regbench.reports.page.drawing import labelled_png, plain_ticks, sizes_axis, styles
from regbench.reports.page.lines import Curve, draw_curves

_FORM_DASHES = {"textbook": ":", "gram": "-", "covariance": "--", "powers": "-."}
_QUANTITIES = {"median_ms": ("time (ms)", 1.0), "extra_bytes": ("extra memory (MiB)", 2.0**20)}
_NAMES = {"n": "batch n", "q": "embedding dimension q"}


def cost_png(text: str) -> bytes | None:
    """Draw time and extra memory for the fewest ranks and views; None if nothing was measured.

    The axis is the batch where several were measured, else the embedding dimension; the other is
    the largest.

    Args:
        text: Content of the cost.csv that `regbench cost` wrote.
    """
    lines = pd.DataFrame(read_csv(text))
    # All else is text: a version such as 2.10 is no number.
    numbers = ["ranks", "views", *_NAMES, *_QUANTITIES]
    lines[numbers] = lines[numbers].apply(pd.to_numeric)
    lines = lines.dropna(subset=list(_QUANTITIES), how="all")
    if lines.empty:
        return None
    # Losses of more ranks or views are other losses; a figure of both would compare what cannot be
    # compared.
    _, lines = next(iter(lines.groupby(["ranks", "views"])))  # in the order of the keys
    # Batches are what most grids vary.
    along, fixed = ("n", "q") if lines["n"].nunique() > 1 else ("q", "n")
    level = lines[fixed].max()
    lines = lines[lines[fixed] == level].sort_values(along, kind="stable")
    style = styles(lines["method"])
    finish = partial(_logarithmic, sizes=lines[along].unique().tolist())
    panels, names, labels = [], [], 0
    for key, (head, divisor) in _QUANTITIES.items():
        curves = []
        # A logarithmic axis has no place for a form that takes nothing.
        for (method, form), found in lines[lines[key] > 0].groupby(["method", "form"], sort=False):
            look = replace(style[method], dash=_FORM_DASHES[form])
            values = found[key] / divisor
            points = list(zip(found[along], values, 0 * values, strict=True))
            curves.append(Curve(f"{method}, {form}", look, [], "", points))
        if curves:
            heads = _NAMES[along], head
            panels.append(
                partial(
                    draw_curves, curves=curves, labelled=len(curves), heads=heads, finish=finish
                )
            )
            names += [curve.name for curve in curves]
            labels = max(labels, len(curves))
    if not panels:
        return None
    machine = "{hardware}; threads = {threads}, ranks = {ranks}; torch {torch}, {dtype}".format(
        **lines.iloc[0]
    )
    return labelled_png(panels, names, labels, f"Value and gradient, {fixed} = {level}: {machine}")


def _logarithmic(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_yscale("log")
    sizes_axis(axes, sizes)
    plain_ticks(axes.yaxis)
