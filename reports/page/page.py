"""The report as one self-contained HTML page.

Tables and figures are in the HTML, so they read without JavaScript. What each cell was made from (its settings, scores,
environment, attempts) is in one block of JSON, column by column with repeated values once, and becomes a table and
dialogs when the page asks: ten thousand cells as elements would take a browser minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, StrictUndefined

from regbench.benchmark.rundir.record import Record, plain
from regbench.reports.find.records import Records
from regbench.reports.page.cost_curves import Line, cost_drawings, cost_machine
from regbench.reports.page.figures import (
    COSTS,
    DRAWN_CURVES,
    EFFECTIVE_RANK,
    Drawing,
    Style,
    curve_drawings,
    dimension_drawings,
    scatter_drawings,
    spectrum_drawings,
    styles,
    unique_ids,
)
from regbench.reports.rows.summary import SETTING_NAMES, Configuration, Row, Summary
from regbench.reports.tables import tables
from regbench.reports.tables.tables import Cell, Table

# A marker of matplotlib as an SVG's path around (0, 0), about ten units wide.
_MARKER_PATHS = {
    "o": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "s": "M-4.5-4.5h9v9h-9z",
    "D": "M0-6L6 0L0 6L-6 0z",
    "^": "M0-5.5L5.5 5H-5.5z",
    "v": "M0 5.5L5.5-5H-5.5z",
    "P": "M-2-5.5h4v3.5h3.5v4H2v3.5h-4V2h-3.5v-4H-2z",
    "X": "M-5-2.5L-2.5-5L0-2.5L2.5-5L5-2.5L2.5 0L5 2.5L2.5 5L0 2.5L-2.5 5L-5 2.5L-2.5 0z",
}
_FILTERED = ("method", *SETTING_NAMES.values())  # columns that a table can be filtered by, where they vary
_SEARCHED_ROWS = 10  # a table with more has a box to filter it
_HYPERPARAMETERS_SHOWN = 4
_SKIPPED_SHOWN = 20
_FOOTNOTES = " †‡*"  # that may follow a label


@dataclass(frozen=True)
class _PageRow:
    """A table's row: the style's key of its method, and its place in the leaderboard, where it has them."""

    cells: list[Cell]
    key: str
    place: int | None


@dataclass(frozen=True)
class _PageTable:
    """A table with the id that it has on the page."""

    id: str
    table: Table
    rows: list[_PageRow]

    @property
    def searched(self) -> bool:
        """Whether there is a box to filter its rows."""
        return len(self.rows) > _SEARCHED_ROWS


@dataclass(frozen=True)
class _LegendEntry:
    """A method's marker and name."""

    style: Style
    label: str

    @property
    def path(self) -> str:
        """The marker as an SVG's path."""
        return _MARKER_PATHS[self.style.marker]


def render_page(
    summaries: Sequence[Summary],
    found: Records,
    style: Mapping[str, Style],
    paper: Sequence[Table] = (),
    costs: Sequence[Line] = (),
) -> str:
    """The page for some sweeps.

    Args:
        summaries: One for each task, in the order of the page.
        found: What was read; what is left out of it is named, and how many runs are not finished.
        style: How each trained method is drawn, by label.
        paper: The paper's tables with our numbers in them.
        costs: What `regbench cost` measured, as `read_cost` gives it.

    Returns:
        HTML that needs no other file and no network.
    """
    sections = [_section(s, f"s{i}", style) for i, s in enumerate(summaries, 1)]
    cells = _cells(summaries, style)
    # Autoescape: labels, commands and settings are other people's text.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(_text("page.html"))
    names = [s.name for s in summaries]
    return template.render(
        title="regbench: " + (", ".join(names) if len(names) <= 3 else f"{len(names)} sweeps"),
        lead="A comparison of regularizers for self-supervised learning.",
        css=_text("page.css"),
        js=_text("page.js"),
        sections=sections,
        paper=[_placed(table, "", {}, {}, 1) for table in paper],
        methods=_methods(summaries, style),
        costs=_costs(costs),
        skipped=found.skipped[:_SKIPPED_SHOWN],
        skipped_in_all=len(found.skipped),
        remedy=found.remedy,
        unfinished=found.unfinished,
        protocols=_protocols(found.records),
        data=_json({"count": len(cells), "cells": _columns(cells), "scores": _score_names(found.records)}),
    )


def facts(summary: Summary) -> list[tuple[str, str]]:
    """What was run, as (name, text) pairs."""
    records = summary.records
    trained = [r for r in records if not r.untrained] or list(records)
    started = min((r.started for r in records if r.started), default="")
    finished = max((r.finished for r in records if r.finished), default="")
    days = dict.fromkeys(day for day in (started[:10], finished[:10]) if day)
    diverged = sum(r.status == "diverged" for r in records)
    cells = f"{len(records)} finished"
    cells += f" ({diverged} diverged)" if diverged else ""

    def environment(key: str) -> str:
        return _distinct(str(r.environment[key]) for r in records if r.environment.get(key) is not None)

    versions = [f"{k} {environment(k)}" for k in ("regbench", "python", "torch") if environment(k)]
    return [
        (name, text)
        for name, text in (
            ("Data set", _distinct(_data_set(r) for r in records)),
            ("Network", _distinct(r.backbone for r in records)),
            ("Embedding dimension", _distinct(r.cell["embedding_dim"] for r in trained)),
            ("Batch size", _distinct(r.cell["batch_size"] for r in trained)),
            ("Epochs", _distinct(r.cell["epochs"] for r in trained)),
            ("Cells", cells),
            ("Seeds", _distinct(r.seed for r in records)),
            ("Hardware", environment("hardware")),
            ("Loader", environment("loader")),
            ("Date (UTC)", " to ".join(days)),
            ("Versions", ", ".join(versions)),
            ("Code", environment("git")),
        )
        if text
    ]


def _section(summary: Summary, prefix: str, style: Mapping[str, Style]) -> dict[str, object]:
    keys = {row.label: "untrained" if row.untrained else style[row.label].key for row in summary.rows}
    places = {(row.label, *row.settings.values()): i for i, row in enumerate(summary.rows)}
    width = 1 + len(summary.rows[0].settings) if summary.rows else 1

    def placed(table: Table) -> _PageTable:
        return _placed(table, prefix, keys, places, width)

    def drawn(drawings: list[Drawing], kind: str) -> list[Drawing]:
        return [replace(d, svg=unique_ids(d.svg, f"{prefix}-{kind}{i}")) for i, d in enumerate(drawings)]

    parts = [tables.accuracy_table(summary), tables.time_table(summary), tables.memory_table(summary)]
    if (energy := tables.energy_table(summary)) is not None:
        parts.append(energy)
    cells = [r.settings for r in summary.records if not r.untrained]
    shared = [(k, v) for k, v in (cells[0] if cells else {}).items() if all(c.get(k) == v for c in cells)]
    labels = sorted({row.label for row in summary.rows if not row.untrained})
    options = {name: _options(row.settings.get(name, "") for row in summary.rows) for name in _FILTERED[1:]}
    filters = {"method": labels, **options}
    return {
        "name": summary.name,
        "facts": facts(summary),
        "legend": [_LegendEntry(style[label], label) for label in labels],
        "filters": {name: values for name, values in filters.items() if len(values) > 1},
        "leaderboard": placed(tables.leaderboard(summary)),
        "on_test": summary.on_test,
        "scatter": drawn(scatter_drawings(summary, style, COSTS), "scatter"),
        "rank": drawn(scatter_drawings(summary, style, [EFFECTIVE_RANK]), "rank"),
        "dimension": drawn(dimension_drawings(summary, style), "dimension"),
        "parts": [placed(table) for table in (*parts, tables.significance_table(summary))],
        "curves_of": DRAWN_CURVES if len(summary.rows) > DRAWN_CURVES else None,
        "curves": drawn(curve_drawings(summary, style), "curve"),
        "spectra": drawn(spectrum_drawings(summary, style), "spectrum"),
        "hyperparameters": placed(tables.hyperparameters_table(summary)),
        "shared": shared,
    }


def _placed(
    table: Table, prefix: str, keys: Mapping[str, str], places: Mapping[tuple[str, ...], int], width: int
) -> _PageTable:
    """A table with the methods' keys and the leaderboard's rows found by the first `width` cells of its rows."""
    rows = []
    for cells in table.rows:
        label = cells[0].text.rstrip(_FOOTNOTES)
        place = places.get((label, *(cell.text for cell in cells[1:width])))
        rows.append(_PageRow(cells, keys.get(label, ""), place))
    return _PageTable(f"{prefix}-{table.slug}".strip("-"), table, rows)


def _score_names(records: Iterable[Record]) -> dict[str, str]:
    """How the scores that were measured are called, those of the leaderboard first."""
    measured = {s.name for r in records for s in r.scores}
    names = [*tables.SCORE_NAMES, *sorted(measured - set(tables.SCORE_NAMES))]
    return {name: tables.score_name(name) for name in names if name in measured}


def _options(values: Iterable[str]) -> list[str]:
    """The different values of a setting, numbers in their order; without those where it does not apply."""
    known = set(values) - {"", tables.DASH}
    return sorted(known, key=lambda v: (not v.isdigit(), int(v) if v.isdigit() else 0, v))


def _methods(summaries: Sequence[Summary], style: Mapping[str, Style]) -> list[dict[str, object]]:
    """What is compared, one entry for each label: what its authors say, and the numbers that it ran with here."""
    rows: dict[str, list[Row]] = {}
    for summary in summaries:
        for row in summary.rows:
            if not row.untrained:
                rows.setdefault(row.label, []).append(row)
    entries = []
    for label in sorted(rows, key=str.casefold):
        record = rows[label][0].first
        said = record.regularizer
        if not said:  # weights from elsewhere
            continue
        used = list(dict.fromkeys(_hyperparameters(row) for row in rows[label]))
        more = len(used) - _HYPERPARAMETERS_SHOWN
        environments = [r.environment for row in rows[label] for r in row.records]
        texts = {
            "Published with": said.get("published"),
            "Limitation": said.get("limitation"),
            "Time": said.get("time"),
            "Extra memory": said.get("memory"),
            "Form": _distinct(str(e["loss_form"]) for e in environments if "loss_form" in e),
            "Used here": "; ".join(used[:_HYPERPARAMETERS_SHOWN]) + (f"; and {more} more" if more > 0 else ""),
        }
        url = said.get("url", "")
        entries.append(
            {
                "legend": _LegendEntry(style[label], label),
                "name": record.method,
                "reference": said.get("reference", ""),
                "url": url if url.startswith(("https://", "http://")) else "",
                "formula": said.get("formula", ""),
                "texts": {name: text for name, text in texts.items() if text},
            }
        )
    return entries


def _hyperparameters(row: Row) -> str:
    """The method's own numbers."""
    names = ("method.name", "method.label")
    own = {k: v for k, v in row.first.settings.items() if k.startswith("method.") and k not in names}
    return ", ".join(f"{k.removeprefix('method.')} = {v}" for k, v in own.items())


def _costs(lines: Sequence[Line]) -> dict[str, object] | None:
    """The cost curves with their legend, None where there are none."""
    style = styles((line["method"] for line in lines), "c")
    drawings = cost_drawings(lines, style)
    if not drawings:
        return None
    drawings = [replace(d, svg=unique_ids(d.svg, f"cost{i}")) for i, d in enumerate(drawings)]
    legend = [_LegendEntry(s, label) for label, s in style.items()]
    return {"drawings": drawings, "legend": legend, "machine": cost_machine(lines)}


def _cells(summaries: Sequence[Summary], style: Mapping[str, Style]) -> list[dict[str, Any]]:
    """What the page tells of each cell."""
    out = []
    for number, summary in enumerate(summaries, 1):
        places = {record.path: i for i, row in enumerate(summary.rows) for record in row.records}
        configurations: list[Configuration] = [*summary.rows, *summary.configurations]
        groups = {r.path: i for i, c in reversed(list(enumerate(configurations))) for r in c.records}
        for r in summary.records:
            out.append(
                {
                    "id": r.cell_id,
                    "section": number,
                    "row": places.get(r.path, -1),
                    "group": groups.get(r.path, -1),
                    "key": "untrained" if r.untrained else style[r.label].key,
                    "label": r.label,
                    "seed": r.seed,
                    "status": r.status,
                    "sweep": r.sweep,
                    "config": r.cell,
                    "scores": plain(r.scores),
                    "cost": {k: v for k, v in vars(r.cost).items() if v is not None},
                    "environment": r.environment,
                    "data": plain(r.data),
                    "attempts": plain(r.attempts),
                    "choice": r.choice,
                    "on_test": r.on_test,
                    "sha256": r.sha256,
                    "command": r.command,
                    "path": str(r.path),
                }
            )
    return out


_ABSENT = object()
_REPEATS = 4  # objects that repeat this often on average are kept whole
_LOOKED_AT = 500  # if so many show already that they do not, the others need no look


def _columns(values: Sequence[Any]) -> dict[str, Any]:
    """Values by column: {"d": {key: column}} for dictionaries, {"l": [column, ...]} for lists of them.

    A leaf, of plain values or of objects that repeat, is {"c": value} where all have the same, {"v": values} where all
    differ, else {"v": distinct values, "i": index of each, −1 for none}.
    """
    there = [v for v in values if v is not _ABSENT]
    if not any(isinstance(v, dict | list) for v in there):
        # 1, 1.0 and True are equal and not the same.
        return _leaf(values, [(v.__class__, v) for v in values])
    first = values[:_LOOKED_AT]
    differ = len({_ABSENT if v is _ABSENT else _dumps(v) for v in first}) > len(first) / _REPEATS
    texts = [] if differ else [_ABSENT if v is _ABSENT else _dumps(v) for v in values]
    if differ or len(set(texts)) > len(values) / _REPEATS:
        if all(isinstance(v, dict) for v in there) and any(there):
            keys = dict.fromkeys(key for v in there for key in v)
            empty: dict[str, Any] = {}
            whole = [empty if v is _ABSENT else v for v in values]
            return {"d": {key: _columns([v.get(key, _ABSENT) for v in whole]) for key in keys}}
        if any(there) and all(isinstance(v, list) and all(isinstance(item, dict) for item in v) for v in there):
            lists: list[list[Any]] = [[] if v is _ABSENT else v for v in values]
            length = max(map(len, lists))
            return {"l": [_columns([v[i] if i < len(v) else _ABSENT for v in lists]) for i in range(length)]}
    return _leaf(values, texts or [_ABSENT if v is _ABSENT else _dumps(v) for v in values])


def _leaf(values: Sequence[Any], keys: Sequence[Any]) -> dict[str, Any]:
    """A column that is not split further; values with the same key are the same."""
    first = dict(zip(reversed(keys), reversed(values), strict=True))
    distinct = [first[key] for key in dict.fromkeys(keys) if first[key] is not _ABSENT]
    whole = not any(v is _ABSENT for v in values)
    if whole and len(distinct) == 1:
        return {"c": distinct[0]}
    if whole and len(distinct) == len(values):
        return {"v": distinct}
    index = {key: i for i, key in enumerate(key for key in dict.fromkeys(keys) if first[key] is not _ABSENT)}
    return {"v": distinct, "i": [index.get(key, -1) for key in keys]}


def _dumps(data: object) -> bytes:
    """JSON; numbers that are not finite become null, and what JSON has not its text."""
    return orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS)


def _json(data: object) -> str:
    """JSON that can stand in a <script>: no text in it ends the element."""
    return _dumps(data).decode().replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _distinct(values: Iterable[object]) -> str:
    """The values without repeats, in order; what is not known is left out."""
    known = set(values) - {None}
    return ", ".join(str(v) for v in sorted(known, key=lambda v: (isinstance(v, str), v)))


def _data_set(record: Record) -> str:
    """Name, images of a class if limited, and the first digits of the content's digest."""
    dataset, digest = record.cell["dataset"], record.data.content_sha256.get("train")
    limit = dataset.get("train_per_class")
    parts = [f"{limit} training images per class"] if limit else []
    parts += [f"train split's sha256 {digest[:12]}…"] if digest else []
    return f"{dataset['name']} ({', '.join(parts)})" if parts else str(dataset["name"])


def _protocols(records: Sequence[Record]) -> list[str]:
    """Each score's protocols; at most three, because a chosen learning rate may stand in the text."""
    by_name: dict[str, dict[str, None]] = {}
    for r in records:
        for s in r.scores:
            by_name.setdefault(tables.SCORE_NAMES.get(s.name, s.name), {})[s.protocol] = None
    out = []
    for name, protocols in by_name.items():
        first = list(protocols)[:3]
        more = f"; and {len(protocols) - 3} more" if len(protocols) > 3 else ""
        out.append(f"{name}: {'; '.join(first)}{more}")
    return out
