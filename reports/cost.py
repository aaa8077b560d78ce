"""The figure of `regbench cost`: time and memory against batch or dimension, from its CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

from regbench.reports.figures import PAPER_INK, UNTRAINED, Style, settings, styles

FORM_DASHES = {"textbook": ":", "gram": "-", "covariance": "--"}
_QUANTITIES = {"median_ms": ("time (ms)", 1.0), "extra_bytes": ("extra memory (MiB)", 2.0**20)}
_NAMES = {"n": "batch n", "q": "embedding dimension q"}
_LEGEND_LINE_IN = 0.19

Line = Mapping[str, str]


def cost_png(text: str) -> bytes | None:
    """Time and extra memory on logarithmic axes, for the smallest number of ranks; None if nothing was measured.

    The axis is the batch where several were measured, else the embedding dimension; if both vary, there is a row of
    panels for each dimension. A method has one colour and one marker, a form one style of line.

    Args:
        text: What `regbench cost` wrote as cost.csv.
    """
    lines = [line for line in csv.DictReader(io.StringIO(text)) if line["median_ms"] or line["extra_bytes"]]
    if not lines:
        return None
    ranks = min(int(line["ranks"]) for line in lines)
    lines = [line for line in lines if int(line["ranks"]) == ranks]
    along, fixed = ("n", "q") if len({line["n"] for line in lines}) > 1 else ("q", "n")
    levels = sorted({int(line[fixed]) for line in lines})
    style = styles(line["method"] for line in lines)
    forms = [form for form in FORM_DASHES if any(line["form"] == form for line in lines)]
    with settings(PAPER_INK):
        height_in = max(2.7 * len(levels), _LEGEND_LINE_IN * (len(style) + len(forms) + 1)) + 0.7
        figure = Figure(figsize=(9.6, height_in), layout="constrained")
        panels = figure.subplots(len(levels), len(_QUANTITIES), squeeze=False)
        for row, level in zip(panels, levels, strict=True):
            own = [line for line in lines if int(line[fixed]) == level]
            for axes, key in zip(row, _QUANTITIES, strict=True):
                _panel(axes, own, key, along, style)
                axes.set_title(f"{fixed} = {level}", loc="left", fontsize=9)
        handles = [Line2D([], [], color=s.colour, marker=s.marker, ms=5, label=name) for name, s in style.items()]
        handles += [Line2D([], [], color=UNTRAINED, ls=FORM_DASHES[form], label=form) for form in forms]
        figure.legend(handles=handles, loc="outside right upper", frameon=False, handlelength=2.6)
        what = "{hardware}; threads = {threads}, ranks = {ranks}; torch {torch}, {dtype}".format(**lines[0])
        figure.suptitle(f"Value and gradient: {what}", fontsize=9, x=0.01, ha="left")
        figure.set_facecolor("white")
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    return buffer.getvalue()


def _panel(axes: Axes, lines: Sequence[Line], key: str, along: str, style: Mapping[str, Style]) -> None:
    """One quantity at one level of the size that the axis does not show."""
    title, unit = _QUANTITIES[key]
    for method, form in dict.fromkeys((line["method"], line["form"]) for line in lines):
        points = sorted(
            (int(line[along]), float(line[key]) / unit)
            for line in lines
            if (line["method"], line["form"]) == (method, form) and line[key]
        )
        s = style[method]
        if not points:
            continue
        axes.plot(*zip(*points, strict=True), color=s.colour, marker=s.marker, ls=FORM_DASHES[form], ms=4, lw=1.3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = sorted({int(line[along]) for line in lines})
    axes.set_xticks(sizes)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(_NAMES[along])
    axes.set_ylabel(title)
    axes.grid(color=UNTRAINED, alpha=0.22, lw=0.6)
    axes.set_axisbelow(True)
