"""The report as one self-contained HTML page.

Tables and figures are in the HTML, so they read without JavaScript. What each cell was made from (its settings, scores,
environment, attempts) is in one block of compressed JSON, and becomes a table and dialogs when the page asks: ten
thousand cells as elements would take a browser minutes.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from regbench.benchmark.rundir.record import Record
from regbench.reports.find.records import Records
from regbench.reports.page.cost_curves import Line, cost_drawings, cost_machine
from regbench.reports.page.drawing import Drawing, Style, styles, unique_ids
from regbench.reports.page.figures import (
    COSTS,
    DRAWN_CURVES,
    EFFECTIVE_RANK,
    accuracy_drawings,
    curve_drawings,
    mechanism_drawings,
    profile_drawing,
    scatter_drawings,
    spectrum_drawings,
)
from regbench.reports.page.sensitivity import sensitivity_drawings
from regbench.reports.page.sizes import dimension_drawings
from regbench.reports.rows.curves import curve_notes
from regbench.reports.rows.summary import DASH, SETTING_NAMES, Configuration, Row, Summary
from regbench.reports.rows.tasks import Comparison
from regbench.reports.tables.table import Table
from regbench.text import printable

# A marker of matplotlib as an SVG's path around (0, 0), about ten units wide.
MARKER_PATHS = {
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

# What the page tells of a cell under the names of its record.
_OF_RECORD = (
    *("label", "seed", "status", "sweep", "scores", "cost", "environment", "data", "attempts", "choice", "on_test"),
    *("sha256", "command"),
)


def render_page(
    summaries: Sequence[Summary],
    tables: Sequence[Mapping[str, Table]],
    found: Records,
    style: Mapping[str, Style],
    paper: Sequence[Table] = (),
    costs: Sequence[Line] = (),
    together: tuple[Comparison, Table] | None = None,
) -> str:
    """Make the page of some tasks.

    Args:
        summaries: One for each task, in the order of the page.
        tables: Those of each task, as `tables_of` makes them.
        found: What was read; what is left out of it is named, and how many runs are not finished.
        style: How each trained method is drawn, by label.
        paper: The paper's tables with our numbers in them.
        costs: What `regbench cost` measured, as `read_cost` gives it.
        together: A comparison of the methods over all tasks, and its table.

    Returns:
        HTML that needs no other file and no network.
    """
    sections = [_section(s, made, f"s{i}", style) for i, (s, made) in enumerate(zip(summaries, tables, strict=True), 1)]
    scores = {name: score.head for summary in summaries for name, score in summary.scores.items()}
    template = templates().get_template("page.html")
    names = [s.name for s in summaries]
    return template.render(
        title="regbench: " + (", ".join(names) if len(names) <= 3 else f"{len(names)} sweeps"),
        lead="A comparison of regularizers for self-supervised learning.",
        css=_text("page.css"),
        js=_text("elements.js") + _text("page.js"),
        marker_paths=MARKER_PATHS,
        sections=sections,
        paper=[_placed(table, "", {}, {}, 1) for table in paper],
        methods=_methods(summaries, style),
        costs=_costs(costs),
        together=None if together is None else _together(*together, style),
        skipped=found.skipped[:_SKIPPED_SHOWN],
        skipped_in_all=len(found.skipped),
        remedy=found.remedy,
        unfinished=found.unfinished,
        waiting=any(not cell.failure for cell in found.missing),
        protocols=_protocols(found.records),
        data=_packed({"cells": _cells(summaries, style), "scores": scores}),
    )


def facts(summary: Summary) -> list[tuple[str, str]]:
    """Say what was run, as (name, text) pairs."""
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

    versions = [f"{k} {text}" for k in ("regbench", "python", "torch") if (text := environment(k))]
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


def _section(
    summary: Summary, tables: Mapping[str, Table], prefix: str, style: Mapping[str, Style]
) -> dict[str, object]:
    keys = {row.label: "untrained" if row.untrained else style[row.label].key for row in summary.rows}
    places = {(row.label, *row.settings.values()): i for i, row in enumerate(summary.rows)}
    width = 1 + len(summary.rows[0].settings) if summary.rows else 1

    def placed(table: Table) -> dict[str, object]:
        return _placed(table, prefix, keys, places, width)

    def drawn(drawings: list[Drawing], kind: str) -> list[Drawing]:
        return [replace(d, svg=unique_ids(d.svg, f"{prefix}-{kind}{i}")) for i, d in enumerate(drawings)]

    accuracy = drawn(accuracy_drawings(summary, style), "accuracy")
    parts = [
        tables[slug]
        for slug in ("accuracy", "convergence", "time", "memory", "energy", "significance", "indicators", "sensitivity")
        if slug in tables
    ]
    trained = [r.settings for r in summary.records if not r.untrained]
    shared = dict(trained[0]) if trained else {}
    for settings in trained[1:]:
        if not shared.items() <= settings.items():
            shared = {key: value for key, value in shared.items() if settings.get(key) == value}
    labels = sorted({row.label for row in summary.rows if not row.untrained})
    options = {name: _options(row.settings.get(name, "") for row in summary.rows) for name in _FILTERED[1:]}
    filters = {"method": labels, **options}
    return {
        "name": summary.name,
        "facts": facts(summary),
        "legend": {label: style[label] for label in labels},
        "filters": {name: values for name, values in filters.items() if len(values) > 1},
        "leaderboard": placed(tables["leaderboard"]),
        "on_test": summary.on_test,
        "against": placed(tables["against"]) if "against" in tables else None,
        "scatter": drawn(scatter_drawings(summary, style, COSTS), "scatter"),
        "rank": drawn(scatter_drawings(summary, style, [EFFECTIVE_RANK]), "rank"),
        "dimension": drawn(dimension_drawings(summary, style), "dimension"),
        "parts": [placed(table) for table in parts],
        "curves_of": DRAWN_CURVES if len(summary.rows) > DRAWN_CURVES else None,
        "accuracy": accuracy,
        "accuracy_notes": curve_notes(summary) if accuracy else [],
        "curves": drawn(curve_drawings(summary, style), "curve"),
        "spectra": drawn([*spectrum_drawings(summary, style), *mechanism_drawings(summary, style)], "spectrum"),
        "sensitivity": drawn(sensitivity_drawings(summary, style), "sensitivity"),
        "hyperparameters": placed(tables["hyperparameters"]),
        "shared": list(shared.items()),
    }


def _placed(
    table: Table, prefix: str, keys: Mapping[str, str], places: Mapping[tuple[str, ...], int], width: int
) -> dict[str, object]:
    """Prepare a table for the template, with its id on the page.

    The first `width` cells of its rows tell the key of their method's style and their place in the leaderboard.
    """
    rows = []
    for cells in table.rows:
        label = cells[0].text.rstrip(_FOOTNOTES)
        place = places.get((label, *(cell.text for cell in cells[1:width])))
        rows.append({"cells": cells, "key": keys.get(label, ""), "place": place})
    searched = len(rows) > _SEARCHED_ROWS
    return {"id": f"{prefix}-{table.slug}".strip("-"), "table": table, "rows": rows, "searched": searched}


def _together(comparison: Comparison, table: Table, style: Mapping[str, Style]) -> dict[str, object]:
    """Prepare the section over all tasks."""
    keys = {one.label: style[one.label].key for one in comparison.standings}
    drawing = profile_drawing(comparison, style)
    return {
        "table": _placed(table, "", keys, {}, 1),
        "legend": {label: style[label] for label in sorted(keys)},
        "drawings": [replace(drawing, svg=unique_ids(drawing.svg, "together"))],
    }


def _options(values: Iterable[str]) -> list[str]:
    """List the different values of a setting, numbers in their order; leave out rows to which it does not apply."""
    known = set(values) - {"", DASH}
    return sorted(known, key=lambda v: (not v.isdigit(), int(v) if v.isdigit() else 0, v))


def _methods(summaries: Sequence[Summary], style: Mapping[str, Style]) -> list[dict[str, object]]:
    """Describe each method by label: what its authors say, and the hyperparameters that it ran with here."""
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
                "label": label,
                "style": style[label],
                "name": record.method,
                "reference": said.get("reference", ""),
                "url": url if url.startswith(("https://", "http://")) else "",
                "formula": said.get("formula", ""),
                "texts": {name: text for name, text in texts.items() if text},
            }
        )
    return entries


def _hyperparameters(row: Row) -> str:
    """List the method's own hyperparameters."""
    own = {k: v for k, v in row.first.settings.items() if k.startswith("method.") and k != "method.name"}
    return ", ".join(f"{k.removeprefix('method.')} = {v}" for k, v in own.items())


def _costs(lines: Sequence[Line]) -> dict[str, object] | None:
    """Draw the cost curves and their legend; None where there are none."""
    style = styles((line["method"] for line in lines), "c")
    drawings = cost_drawings(lines, style)
    if not drawings:
        return None
    drawings = [replace(d, svg=unique_ids(d.svg, f"cost{i}")) for i, d in enumerate(drawings)]
    return {"drawings": drawings, "legend": style, "machine": cost_machine(lines)}


def _cells(summaries: Sequence[Summary], style: Mapping[str, Style]) -> list[dict[str, Any]]:
    """Collect what the page tells of each cell."""
    out = []
    for number, summary in enumerate(summaries, 1):
        places = {record.path: i for i, row in enumerate(summary.rows) for record in row.records}
        configurations: list[Configuration] = [*summary.rows, *summary.configurations]
        groups = {r.path: i for i, c in reversed(list(enumerate(configurations))) for r in c.records}
        for r in summary.records:
            cell = {name: getattr(r, name) for name in _OF_RECORD}
            cell |= {"id": r.cell_id, "section": number, "config": r.cell, "path": str(r.path)}
            cell |= {"row": places.get(r.path, -1), "group": groups.get(r.path, -1)}
            out.append(cell | {"key": "untrained" if r.untrained else style[r.label].key})
    return out


def templates(*folders: Path) -> Environment:
    """Return the templates of this folder and others; labels, commands and settings are shown as text of others."""

    def shown(value: object) -> object:
        return printable(value) if type(value) is str else value

    loader = FileSystemLoader([*folders, Path(__file__).parent])
    return Environment(loader=loader, autoescape=True, finalize=shown, undefined=StrictUndefined, trim_blocks=True)


def _packed(data: object) -> str:
    """Pack data as JSON, gzipped and in base64, for the browser to unpack. Numbers that are not finite become null."""
    content = orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS)
    return base64.b64encode(gzip.compress(content, 3, mtime=0)).decode()


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _distinct(values: Iterable[object]) -> str:
    """List the known values in order, without repeats."""
    known = set(values) - {None}
    return ", ".join(str(v) for v in sorted(known, key=lambda v: (isinstance(v, str), v)))


def _data_set(record: Record) -> str:
    """Describe a record's data set: name, images of a class if limited, the first digits of the content's digest."""
    dataset, digest = record.cell["dataset"], record.data.content_sha256.get("train")
    limit = dataset.get("train_per_class")
    parts = [f"{limit} training images per class"] if limit else []
    parts += [f"train split's sha256 {digest[:12]}…"] if digest else []
    return f"{dataset['name']} ({', '.join(parts)})" if parts else str(dataset["name"])


def _protocols(records: Sequence[Record]) -> list[str]:
    """List each score's protocols; at most three, because a chosen learning rate may stand in the text."""
    by_title: dict[str, dict[str, None]] = {}
    for r in records:
        for s in r.scores:
            by_title.setdefault(s.head, {})[s.protocol] = None
    out = []
    for title, protocols in by_title.items():
        more = f"; and {len(protocols) - 3} more" if len(protocols) > 3 else ""
        out.append(f"{title}: {'; '.join(list(protocols)[:3])}{more}")
    return out
