"""What the tests of tables and figures read from them."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from regbench.reports.find.records import read_records
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.summary import Summary
from regbench.reports.tables.table import Table

Make = Callable[..., Path]


def tasks(runs: Path) -> list[Summary]:
    """The tasks of all records under a folder."""
    found = read_records(runs)
    return summarize(found.records, found.missing, found.choices, found.short)


def task(runs: Path) -> Summary:
    """The only task."""
    (one,) = tasks(runs)
    return one


def texts(table: Table) -> list[list[str]]:
    """The head and the rows, with ** around what is bold."""
    head = [column.name for column in table.columns]
    rows = []
    for line in table.lines:
        rows.append([f"**{one.text}**" if one.bold else one.text for one in line.entries])
    return [head, *rows]


def grid(table: Table) -> dict[str, dict[str, str]]:
    """Row name -> column -> text."""
    head, *rows = texts(table)
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def cells_in(page: Path) -> list[dict[str, Any]]:
    """What a page tells of each cell."""
    packed = re.search(r'id="data">([^<]*)<', page.read_text())
    assert packed is not None
    cells: list[dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(packed[1])))["cells"]
    return cells


def tables_in(page: Path) -> dict[str, list[dict[str, str]]]:
    """The tables of a page by their titles: a row is column -> text, with ** around what is
    bold.
    """
    found: dict[str, list[dict[str, str]]] = {}
    figures = r'<figure class="table[^>]*>\s*<figcaption>(.*?)</figcaption>(.*?)</figure>'
    for title, text in re.findall(figures, page.read_text(), re.S):
        heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', text)
        rows = found[html.unescape(title)] = []
        body = re.sub("</?b>", "**", text.partition("<tbody>")[2])
        for row in re.findall("<tr[^>]*>(.*?)</tr>", body, re.S):
            cells = re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)
            shown = [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in cells]
            rows.append(dict(zip(heads, shown, strict=True)))
    return found


class Drawn:
    """A figure of a page, read back in the units of its axes.

    Args:
        page: The page's HTML.
        title: The figure's.
        log: Which axes are logarithmic.
    """

    def __init__(self, page: str, title: str, log: str = "") -> None:
        start = page.index("<svg", page.index(f"<figcaption>{title}</figcaption>"))
        self.svg = page[start : page.index("</svg>", start) + len("</svg>")]
        svg = ElementTree.fromstring(self.svg)
        (axes,) = (g for g in svg.iter("g") if g.get("id", "").endswith("axes_1"))
        self.heads = [axis.findall(".//text")[-1].text for axis in (axes[1], axes[2])]
        self._scales = [self._scale(axes[1 + i], name, name in log) for i, name in enumerate("xy")]
        self._groups = list(axes.iter("g"))

    def _scale(self, axis: ElementTree.Element, along: str, log: bool) -> Callable[[float], float]:
        """From a place in the picture to the value there, by the axis's outermost ticks."""
        ticks = []
        for tick in axis:
            text, place = tick.findtext(".//text"), tick.find(".//use")
            if text and place is not None:
                ticks.append((float(place.get(along, "")), float(text.replace("−", "-"))))
        (a, low), (b, high) = ticks[0], ticks[-1]
        if log:
            return lambda place: float(low * (high / low) ** ((place - a) / (b - a)))
        return lambda place: low + (high - low) * (place - a) / (b - a)

    def markers(self, name: str) -> list[list[float]]:
        """The values at which the markers of a row are, to three digits, in the order of x."""
        uses = [use for g in self._of(name, "mark") for use in g.iter("use")]
        places = [[float(use.get(axis, "")) for axis in "xy"] for use in uses]
        # those right of the plot are of labels
        inside = sorted(place for place in places if place[0] < 283)
        along_x, along_y = self._scales
        return [[float(f"{along_x(x):.3g}"), float(f"{along_y(y):.3g}")] for x, y in inside]

    def spreads(self, name: str) -> list[float]:
        """The lengths of a row's error bars along x and y, or of its band, to two digits."""
        paths = [path for g in self._of(name, "mark") for path in g.findall("path")]
        bars = [path for path in paths if path.get("d", "").count("M") == 2]
        band = self._of(name, "mark band")
        (path,) = bars or [path for g in band for path in g.iter("path")]
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]
        ends = zip(self._scales, (numbers[::2], numbers[1::2]), strict=True)
        # A band is drawn from the picture's lower edge up.
        edges = [use.get("y", "") for g in band for use in g.iter("use")]
        below = 0.0 if bars else float(edges[0])
        lengths = [abs(scale(max(at) + below) - scale(min(at) + below)) for scale, at in ends]
        return [float(f"{length:.2g}") for length in lengths]

    def _of(self, name: str, kind: str) -> list[ElementTree.Element]:
        own = [g for g in self._groups if g.get("class") == kind]
        return [g for g in own if (g.findtext("title") or "").startswith(f"{name}: ")]
