"""Figures of how easily methods are tuned: a small panel for each method and hyperparameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regbench.reports.page.drawing import GREY, Drawing, Marks, Style, Styles, draw_line, grid, panels_drawing
from regbench.reports.page.lines import DRAWN_CURVES
from regbench.reports.rows.summary import Summary
from regbench.reports.rows.tolerance import POINTS, Sensitivity, forward, sensitivities
from regbench.reports.tables.sensitivity import width_text

_COLUMNS = 3
_PANEL_IN = (1.9, 1.55)
_FLOOR = -10.0  # points below the best; what is worse stands there
_TITLE = 27  # letters that a line above a panel has room for
_TICK_APART = 0.2  # of a panel's width

_KINDS = {"weight": "the balancing weight", "base_lr": "the learning rate", "other": "other hyperparameters"}


def sensitivity_drawings(summary: Summary, style: Styles) -> list[Drawing]:
    """Draw the best rows' accuracy against each hyperparameter of which several values were tried."""
    # A row holds a dictionary and so has no hash: it is found by its identity.
    places = {id(row): place for place, row in enumerate(summary.rows[:DRAWN_CURVES])}
    found = [one for one in sensitivities(summary) if id(one.row) in places]
    drawings = []
    for role, kind in _KINDS.items():
        shown = [one for one in found if one.role == role]
        if shown:
            title = f"Accuracy against {kind}"
            text = f"{title} of each method, in points below its best; the ranges are in the table."
            draw = partial(_panels, shown=shown, style=style, places=places)
            drawings.append(panels_drawing(title, text, draw))
    return drawings


def _panels(marks: Marks, *, shown: Sequence[Sensitivity], style: Styles, places: Mapping[int, int]) -> Figure:
    lines = math.ceil(len(shown) / _COLUMNS)
    width_in, height_in = _COLUMNS * _PANEL_IN[0], lines * _PANEL_IN[1]
    figure = Figure(figsize=(width_in, height_in))
    figure.patch.set_alpha(0)
    for i, one in enumerate(shown):
        row, column = divmod(i, _COLUMNS)
        left, bottom = column * _PANEL_IN[0] + 0.42, height_in - (row + 1) * _PANEL_IN[1] + 0.28
        box = (left / width_in, bottom / height_in, (_PANEL_IN[0] - 0.55) / width_in, (_PANEL_IN[1] - 0.6) / height_in)
        axes = figure.add_axes(box)
        axes.patch.set_alpha(0)
        grid(axes)
        tooltip = f"{one.row.name}: {one.key} = {one.chosen:.3g} chosen, width {width_text(one)}"
        s = style[one.row.label]
        _panel(axes, one, s, marks.add(s, [places[id(one.row)]], tooltip))
    return figure


def _panel(axes: Axes, one: Sensitivity, style: Style, gid: str) -> None:
    """Draw the configurations and what lies between them, the band of a point, and the chosen value."""

    def place(value: float) -> float:
        return forward(one.searched.scale, value)

    def below(accuracy: float) -> float:
        return max(accuracy - one.best, _FLOOR)

    look = {"color": style.colour, "gid": gid}
    axes.axhspan(-POINTS, 0, color=GREY, alpha=0.3, lw=0)
    axes.axvline(place(one.chosen), color=GREY, ls="--", lw=1)
    along, accuracies = [], []
    for value, accuracy in one.envelope:
        along.append(place(value))
        accuracies.append(below(accuracy))
    draw_line(axes, along, accuracies, lw=1.1, **look)
    xs, ys, diverged = [], [], []
    for value, reached in one.points:
        if reached is None:
            diverged.append(place(value))
        else:
            xs.append(place(value))
            ys.append(below(reached))
    draw_line(axes, xs, ys, marker=style.marker, ms=3.5, ls="", **look)
    draw_line(axes, diverged, [_FLOOR] * len(diverged), marker="x", ms=3.5, ls="", **look)
    low, high = along[0], along[-1]
    margin = 0.06 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(_FLOOR - 0.6, 0.8)
    axes.set_yticks([0, -POINTS, _FLOOR / 2, _FLOOR])
    ticks = {low: one.envelope[0][0], high: one.envelope[-1][0]}
    chosen = place(one.chosen)
    if _TICK_APART < (chosen - low) / (high - low) < 1 - _TICK_APART:  # it has room between the ends
        ticks[chosen] = one.chosen
    axes.set_xticks(list(ticks), [f"{value:.3g}" for value in ticks.values()])
    label, setting = one.row.label, one.row.setting
    if one.role == "other":
        label += f", {one.key.removeprefix('method.')}"
    lines = [_short(label), _short(setting)] if setting else [_short(label)]
    axes.set_title("\n".join(lines), fontsize=7.5, loc="left")
    axes.tick_params(labelsize=7)


def _short(text: str) -> str:
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"
