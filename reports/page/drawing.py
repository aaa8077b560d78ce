"""Drawing: a figure with its labels in matplotlib, and the SVG that a page can hold.

A method has one colour and one marker in all figures. Labels stand in a column at the right, where
they cannot overlap. Axes and text of an SVG take the colour of the page's text, so that they read
on a light and on a dark page. No pyplot: it would keep global state and start slower.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from html import escape
from io import BytesIO, StringIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from regbench.text import printable

# Okabe and Ito's colours for colour-blind readers, without black and yellow, darkened or lightened
# a little where one of them had too little contrast on white or on a dark page.
PALETTE = ("#0079c1", "#d55e00", "#009e73", "#c05a97", "#b98300", "#7d6fd0", "#3299d0")
MARKERS = "osD^vPX"
DASHES = ("-", "--", "-.", ":")
GREY = "#868686"

INK = "#010203"  # stands for the page's text colour in an SVG until it is written
_PAPER_INK = "#24292f"  # text colour of a PNG, on white

_TEXT_PT = 9
_SMALLEST_TEXT_PX = 11  # of an SVG on the page
_HALF_PAGE_PX = 570

_LONGEST = 120  # letters of a text in a figure
_LABEL_GAP_IN = 0.18  # from one label's baseline to the next
_PLOT_WIDTH_IN = 3.3
_MARGIN_IN = 0.62  # left of the plot, for the ticks
_ABOVE_IN = 0.15  # above the plot
_BELOW_IN = 0.5  # below the plot, for the ticks and the axis's name
_ROW_IN = 0.36  # height of a row in a plot with one for each method
_PHONE_IN = 3.75  # width of such a plot: with the smallest text, that of a phone's card
_ROWS_MOST_PX = 480  # largest width of such a plot on the page, as its text grows with it


@dataclass(frozen=True)
class Style:
    """The drawing of a method, the same in all figures.

    The page finds what belongs to it by `key`.
    """

    colour: str
    marker: str
    dash: str
    key: str = ""


@dataclass(frozen=True)
class Drawing:
    """An inline SVG with a title and a description for readers who cannot see it.

    Attributes:
        crowded: Whether there is more in it than could be labelled.
    """

    title: str
    description: str
    svg: str
    crowded: bool = False

    @property
    def wide(self) -> bool:
        """Whether it needs more room than half a page has."""
        found = re.search(r"min-width: (\d+)px", self.svg)
        return found is not None and int(found[1]) > _HALF_PAGE_PX


@dataclass
class Marks:
    """Marks of a figure's parts that belong together: matplotlib's `gid`s, which become classes
    and tooltips.
    """

    _entries: list[tuple[Style, tuple[int, ...], str]] = field(default_factory=list)

    def add(self, style: Style, rows: Iterable[int], tooltip: str) -> str:
        """Make a gid for the artists that show some rows of the leaderboard in the style of
        their method.
        """
        self._entries.append((style, tuple(rows), tooltip))
        return f"mark.{len(self._entries) - 1}"

    def group(self, gid: str) -> str:
        """Make the opening tag of an SVG's group with this gid."""
        number, _, part = gid.removeprefix("mark.").partition(".")
        style, rows, tooltip = self._entries[int(number)]
        of_rows = f' data-r="{" ".join(map(str, rows))}"' if rows else ""
        kind = f"mark {part}".strip()
        title = f"<title>{escape(printable(tooltip))}</title>"
        return f'<g class="{kind}" data-m="{style.key}"{of_rows}>{title}'


@dataclass
class Label:
    """A label at the right margin that belongs to the point (x, y) of the plot."""

    text: str
    x: float
    y: float
    style: Style
    gid: str | None = None


Styles = Mapping[str, Style]
"""Style of each method, by label."""

Draw = Callable[[Axes, Marks], list[Label]]
"""Function that draws into the axes and returns the labels."""


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Choose a style for each label, in alphabetical order."""
    out = {}
    for i, label in enumerate(sorted(set(labels))):
        turn = i // len(PALETTE)  # the second method of a colour has another marker and dash
        marker, dash = MARKERS[(i + turn) % len(MARKERS)], DASHES[turn % len(DASHES)]
        out[label] = Style(PALETTE[i % len(PALETTE)], marker, dash, f"m{i}")
    return out


def _matplotlib_in(ink: str) -> AbstractContextManager[None]:
    """Set matplotlib up for a figure whose axes and text are of the colour `ink`."""
    return matplotlib.rc_context(
        {
            "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
            "font.size": _TEXT_PT,
            # Text stays text, which a browser can search and set in its own font.
            "svg.fonttype": "none",
            "svg.hashsalt": "regbench",  # the same figure gets the same ids each time
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.7,
            "xtick.major.width": 0.7,
            "ytick.major.width": 0.7,
            "axes.formatter.useoffset": False,
            "axes.facecolor": "none",
            "figure.facecolor": "none",
            # A quiet grid behind the rest.
            **{"axes.grid": True, "axes.axisbelow": True, "grid.color": GREY},
            **{"grid.alpha": 0.22, "grid.linewidth": 0.6},
            **dict.fromkeys(
                ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"),
                ink,
            ),
        }
    )


def labelled_drawing(
    title: str,
    description: str,
    names: Sequence[str],
    draw: Draw,
    *,
    crowded: bool = False,
    marker: bool = True,
) -> Drawing:
    """Make the SVG of a plot with labels at its right.

    Args:
        title: Title of the figure.
        description: Description for readers who cannot see it.
        names: The texts of the labels.
        draw: Draws into the axes, and returns the labels.
        crowded: Whether there is more in it than labels.
        marker: Whether a label shows its marker, or else its style of line.
    """
    with _matplotlib_in(INK):
        marks = Marks()
        figure, (axes,) = _figure_with_labels(1, names, len(names))
        _place_labels(axes, draw(axes, marks), marker=marker)
        return Drawing(title, description, _to_svg(figure, marks), crowded)


def rows_drawing(
    title: str,
    description: str,
    names: Sequence[tuple[str, str]],
    draw: Callable[[Axes, Marks], None],
) -> Drawing:
    """Make the SVG of a plot with rows, so narrow that a phone shows all of it.

    Args:
        title: Title of the figure.
        description: Description for readers who cannot see it.
        names: Texts above each row's line: its name, and at the right its value.
        draw: Draws into the axes; row i lies at y = i.
    """
    with _matplotlib_in(INK):
        marks = Marks()
        height_in = _ROW_IN * len(names) + _ABOVE_IN + _BELOW_IN
        figure = Figure(figsize=(_PHONE_IN, height_in))
        height = _ROW_IN * len(names) / height_in
        axes = figure.add_axes((0.02, _BELOW_IN / height_in, 0.96, height))
        draw(axes, marks)
        axes.set_ylim(len(names) - 0.55, -0.6)  # the first row is the highest
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)
        for row, (name, value) in enumerate(names):
            place: dict[str, Any] = {"va": "center", "transform": axes.get_yaxis_transform()}
            axes.text(0.0, row - 0.42, name, **place)
            axes.text(1.0, row - 0.42, value, ha="right", **place)
        svg = _to_svg(figure, marks)
        widest = f'<svg style="max-width: {_ROWS_MOST_PX}px; '
        return Drawing(title, description, svg.replace('<svg style="', widest, 1))


def labelled_png(panels: Sequence[Draw], names: Sequence[str], labels: int) -> bytes:
    """Make a picture of plots side by side on white, each with labels at its right.

    Args:
        panels: Each draws into its axes, and returns the labels.
        names: The texts of all labels; the longest decides how wide the picture is.
        labels: Largest number of labels in a plot.
    """
    with _matplotlib_in(_PAPER_INK):
        figure, axes = _figure_with_labels(len(panels), names, labels)
        for ax, draw in zip(axes, panels, strict=True):
            _place_labels(ax, draw(ax, Marks()), marker=True)
        figure.patch.set(facecolor="white")
        _fit_texts(figure)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
        return buffer.getvalue()


def _figure_with_labels(
    panels: int, names: Sequence[str], labels: int
) -> tuple[Figure, list[Axes]]:
    """Make panels side by side, each with a column for labels at the right, high enough for all
    of them.
    """
    # A letter of this size is about 0.078 inches wide.
    label_width_in = 0.35 + 0.078 * min(_LONGEST, max(20, *map(len, names)))
    width_in = _MARGIN_IN + _PLOT_WIDTH_IN + label_width_in
    height_in = max(2.95, _LABEL_GAP_IN * (labels + 1) + 0.55) + _ABOVE_IN
    figure = Figure(figsize=(panels * width_in, height_in))
    axes = []
    for i in range(panels):
        left = (i * width_in + _MARGIN_IN) / (panels * width_in)
        width = _PLOT_WIDTH_IN / (panels * width_in)
        height = 1 - (_BELOW_IN + _ABOVE_IN) / height_in
        axes.append(figure.add_axes((left, _BELOW_IN / height_in, width, height)))
    return figure, axes


def draw_line(axes: Axes, xs: Sequence[float], ys: Sequence[float], **style: Any) -> None:
    """Do what `Axes.plot` does, in a tenth of its time."""
    axes.add_line(Line2D(xs, ys, **style))


def _place_labels(axes: Axes, labels: list[Label], *, marker: bool) -> None:
    """Write the labels in a column right of the plot, ordered by y, and tie each to its point."""
    axes.autoscale_view()
    limits, right = axes.get_ylim(), axes.get_xlim()[1]
    labels.sort(key=lambda label: label.y)
    # In axes coordinates (0, 0) is the plot's lower left corner, (1, 1) its upper right one.
    to_axes = axes.transData - axes.transAxes
    points = []
    for label in labels:
        # A line across the plot has no point.
        x = right if math.isnan(label.x) else label.x
        points.append(to_axes.transform((x, label.y)))
    height_in = axes.bbox.height / axes.figure.dpi
    wanted = [float(y) * height_in for _, y in points]
    positions = separated(wanted, _LABEL_GAP_IN, height_in)
    for label, (x, point_y), position in zip(labels, points, positions, strict=True):
        y, style = position / height_in, label.style
        look: dict[str, Any] = {"color": style.colour, "gid": label.gid, "clip_on": False}
        look["transform"] = axes.transAxes
        if not math.isnan(label.x):
            draw_line(axes, [x, 1.0], [point_y, point_y], alpha=0.4, lw=0.7, **look)
        draw_line(axes, [1.0, 1.035], [point_y, y], alpha=0.7, lw=0.8, **look)
        if marker:
            draw_line(axes, [1.055], [y], marker=style.marker, ms=5, ls="", **look)
        else:
            draw_line(axes, [1.038, 1.072], [y, y], ls=style.dash, lw=2, **look)
        axes.text(1.085, y, label.text, va="center", transform=axes.transAxes, gid=label.gid)
    axes.set_ylim(limits)  # what was drawn beside the plot may have moved them


def separated(wanted: Sequence[float], gap: float, height: float) -> list[float]:
    """Find the positions nearest to those `wanted` (ascending), `gap` apart, in [0, height] if
    they fit.
    """
    from scipy.optimize import isotonic_regression

    # With the gaps below each subtracted, the positions only have to ascend.
    gaps = gap * np.arange(len(wanted))
    ascending = isotonic_regression(np.asarray(wanted) - gaps).x if len(wanted) else gaps
    return list(np.clip(ascending, 0, max(0.0, height - gap * (len(wanted) - 1))) + gaps)


def _to_svg(figure: Figure, marks: Marks) -> str:
    """Make an <svg> element of the figure, in the text colour of the page around it."""
    _fit_texts(figure)
    buffer = StringIO()
    # With a date, no two reports would be the same file.
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=metadata)
    text = buffer.getvalue()
    text = _in_tags(_quiet_tag, text[text.index("<svg") :])
    # The page scrolls where there is less room, as on a phone, rather than make text too small to
    # read.
    width_px = figure.get_figwidth() * 72 * _SMALLEST_TEXT_PX / _TEXT_PT
    text = text.replace("<svg", f'<svg style="min-width: {width_px:.0f}px"', 1)
    text = re.sub(
        r"<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*</defs>", "", text, flags=re.DOTALL
    )
    # matplotlib writes gids as ids. Several groups have the same one here, so it becomes a class.
    text = re.sub(r'<g id="(mark\.[^"]*)">', lambda found: marks.group(found[1]), text)
    text = text.replace('<g id="front">', '<g class="front"><title>Pareto front</title>')
    text = re.sub(r'<g id="(?!axes|figure)[^"]*">', "<g>", text)  # nothing refers to these
    return re.sub(r"\n\s*", "\n", text)


def _fit_texts(figure: Figure) -> None:
    """Keep others' texts from being read as formulas, from moving anything and from being endless.

    Ticks are left alone: they get their texts when the figure is drawn, and those are ours.
    """
    for text in figure.findobj(Text):
        words = text.get_text()
        text.set_parse_math(not words)
        text.set_text("\n".join(map(printable, words[:_LONGEST].split("\n"))))


def unique_ids(svg: str, prefix: str) -> str:
    """Put a prefix before every id of an SVG and every use of it, because several SVGs share
    one page.
    """
    return _in_tags(lambda tag: re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", tag), svg)


def _in_tags(change: Callable[[str], str], svg: str) -> str:
    """Change the tags of an SVG.

    The texts between them, which are other people's, stay as they are.
    """
    return re.sub(r"<[^>]*>", lambda found: change(found[0]), svg)


def _quiet_tag(tag: str) -> str:
    """Make a tag short and in the page's colour: without namespaces, with numbers to a
    hundredth of a point.
    """
    tag = tag.replace(INK, "currentColor").replace("xlink:href", "href")
    tag = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", tag)
    return re.sub(r"(\.\d\d)\d+", r"\1", tag)
