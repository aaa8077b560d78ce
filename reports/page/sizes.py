"""Figures of what depends on the embedding dimension and the batch, of rows that ran with several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from regbench.reports.page.drawing import Drawing, Style, sizes_axis
from regbench.reports.page.figures import Curve, capital, curves_drawing, stat_text
from regbench.reports.rows.summary import DASH, Row, Stat, Summary
from regbench.reports.tables.units import Unit, largest, memory_unit, time_unit

_SIZES = {
    "q": ("embedding_dim", "the embedding dimension", "embedding dimension q"),
    "batch": ("batch_size", "the batch", "batch n"),
}


@dataclass(frozen=True)
class Quantity:
    """What is drawn against a size.

    Attributes:
        title: As in the figure's title.
        head: Of the axis.
        of: A row's statistics of it; None where it was not measured.
    """

    title: str
    head: str
    of: Callable[[Row], Stat | None]


@dataclass(frozen=True)
class Named:
    """A row with the name of its line in a figure, the style of that, and its place in a leaderboard on the page."""

    row: Row
    name: str
    style: Style
    place: int | None = None


def dimension_drawings(summary: Summary, style: Mapping[str, Style]) -> list[Drawing]:
    """Draw accuracy and time of a step against the embedding dimension, for methods that ran with several."""
    rows = [Named(r, r.label, style[r.label], i) for i, r in enumerate(summary.rows) if not r.untrained]
    scores = [summary.scores[name] for name in reversed(summary.leading)]
    quantities = [Quantity(s.title, s.head, partial(Row.score, name=s.name)) for s in scores]
    quantities.append(Quantity("time of a step", "time of a step (ms)", partial(Row.cost, name="step_ms")))
    return _drawings(rows, quantities, "q")


def training_cost_drawings(rows: Sequence[Named]) -> list[Drawing]:
    """Draw time of training, time of the loss and memory of the loss against the embedding dimension and the batch."""
    plain = [named.row for named in rows]
    kinds = (
        ("training time", "train_s", time_unit(largest(plain, "train_s"))),
        ("time of the loss", "loss_ms", Unit("ms/step", 1, 2)),
        ("memory of the loss", "loss_extra_bytes", memory_unit(largest(plain, "loss_extra_bytes"))),
    )
    quantities = [Quantity(title, f"{title} ({unit.name})", partial(_cost, key, unit)) for title, key, unit in kinds]
    return [drawing for along in _SIZES for drawing in _drawings(rows, quantities, along)]


def _cost(key: str, unit: Unit, row: Row) -> Stat | None:
    return found.over(unit.divisor) if (found := row.cost(key)) else None


def _drawings(rows: Sequence[Named], quantities: Sequence[Quantity], along: str) -> list[Drawing]:
    """Draw each quantity against one size; a line joins what differs in that size alone."""
    setting, of_title, of_axis = _SIZES[along]
    drawings = []
    for quantity in quantities:
        groups: dict[tuple[str, ...], dict[int, tuple[Named, Stat]]] = {}
        for named in rows:
            value, size = quantity.of(named.row), named.row.first.cell[setting]
            if value is not None and size is not None:
                others = [f"{k}={v}" for k, v in named.row.settings.items() if k != along and v != DASH]
                groups.setdefault((named.name, *others), {}).setdefault(int(size), (named, value))
        curves = []
        for name, points in groups.items():
            found = [(size, *points[size]) for size in sorted(points)]
            told = "; ".join(f"{along} = {size}: {stat_text(s)} (n = {s.n})" for size, _, s in found)
            places = [(float(size), s.mean, s.spread or 0.0) for size, _, s in found]
            shown = [named.place for _, named, _ in found if named.place is not None]
            if len(points) > 1:
                curves.append(Curve(", ".join(name), found[0][1].style, shown, told, places))
        if curves:
            sizes = {int(size) for curve in curves for size, _, _ in curve.points}
            heading, heads = f"{capital(quantity.title)} against {of_title}", (of_axis, quantity.head)
            about = f"of each line against {of_title}."
            drawings.append(curves_drawing(heading, heads, about, curves, partial(sizes_axis, sizes=sizes)))
    return drawings
