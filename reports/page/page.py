"""The report as one self-contained HTML page.

Tables and figures are in the HTML, so they read without JavaScript. What each cell was made from
(its settings, scores, environment, attempts) is in one block of compressed JSON, and becomes a
table and dialogs when the page asks: ten thousand cells as elements would take a browser minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from regbench.benchmark.rundir.record import Record
from regbench.reports.find.records import Records
from regbench.reports.page import figures, lines
from regbench.reports.page.drawing import Styles, unique_ids
from regbench.reports.page.template import packed, table_for_page, templates
from regbench.reports.rows.answer import answer
from regbench.reports.rows.comparable import SETTING_NAMES
from regbench.reports.rows.notes import curve_notes
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.table import Table
from regbench.text import few

# The tables of a task beside its leaderboard, in the order of the page.
_PARTS = ("accuracy", "cost", "significance")
# Hundreds of skipped runs have one cause; the page names the command that lists all.
_SKIPPED_SHOWN = 20
_PROTOCOLS_SHOWN = 3

# Fields of a record that the page shows under their own names.
_OF_RECORD = (
    *("label", "seed", "status", "sweep", "scores", "cost", "environment", "data", "attempts"),
    *("choice", "on_test", "sha256", "command"),
)


def render_page(
    summaries: Sequence[Summary],
    tables: Sequence[Mapping[str, Table]],
    found: Records,
    style: Styles,
    paper: Table | None,
    together: Table | None,
) -> str:
    """Make the page of some tasks.

    Args:
        summaries: One for each task, in the order of the page.
        tables: Tables of each task, as `tables_of` makes them.
        found: Records that were read; the page names what is left out, and how many runs are not
            finished.
        style: Style of each trained method, by label.
        paper: The table of our numbers beside the paper's.
        together: The table of all tasks together.

    Returns:
        HTML that needs no other file and no network.
    """
    sections, cells = [], []
    heads: dict[str, str] = {}
    probes = set[str]()  # they have a table of their own
    pairs = zip(summaries, tables, strict=True)
    for number, (summary, made) in enumerate(pairs, start=1):
        sections.append(section(summary, made, number, style))
        cells += cells_of(summary, number, style)
        heads |= {name: score.head for name, score in summary.scores.items()}
        probes |= {name for name, score in summary.scores.items() if score.probe is not None}
    names = ", ".join(summary.name for summary in summaries)
    if len(summaries) > 3:  # more names would fill the screen
        names = f"{len(summaries)} sweeps"
    page = templates().get_template("page.html")
    return page.render(
        data=packed({"cells": cells, "scores": heads, "probes": sorted(probes)}),
        title=f"regbench: {names}",
        sections=sections,
        paper=table_for_page(paper) if paper else None,
        methods=methods_of(summaries),
        style=style,
        together=table_for_page(together) if together else None,
        skipped=found.skipped[:_SKIPPED_SHOWN],
        skipped_in_all=len(found.skipped),
        remedy=found.remedy,
        unfinished=found.unfinished,
        # Failed cells come only when somebody tries them again, so the page does not wait for them.
        waiting=any(not cell.failure for cell in found.missing),
        protocols=protocols_of(found.records),
    )


def section(
    summary: Summary, tables: Mapping[str, Table], number: int, style: Styles
) -> dict[str, Any]:
    """Prepare a task for the templates; `number` is its place on the page, from 1."""
    prefix = f"s{number}"
    keys: dict[str, str] = {}
    places: dict[Row | None, int] = {}
    for place, row in enumerate(summary.rows):
        keys[row.label] = _key(row, style)
        places[row] = place
    methods, labels = len(summary.methods), {row.label for row in summary.methods}
    shown = {slug: table_for_page(table, prefix, keys, places) for slug, table in tables.items()}
    drawn = {
        "rows": figures.accuracy_rows(summary, style),
        "scatter": figures.scatter_drawings(summary, style, figures.COSTS),
        "rank": figures.scatter_drawings(summary, style, [figures.EFFECTIVE_RANK]),
        "sizes": lines.size_drawings(summary, style),
        "accuracy": lines.accuracy_drawings(summary, style),
        "curves": lines.training_drawings(summary, style),
        "spectra": lines.spectrum_drawings(summary, style),
    }
    # Several drawings on a page may have the same ids.
    for kind, drawings in drawn.items():
        for place, drawing in enumerate(drawings):
            svg = unique_ids(drawing.svg, f"{prefix}-{kind}{place}")
            drawings[place] = replace(drawing, svg=svg)
    return {
        **drawn,
        "name": summary.name,
        "answer": answer(summary),
        "alike": [cost.name for cost in figures.COSTS if cost.alike(summary)],
        "facts": facts(summary),
        "legend": {label: style[label] for label in sorted(labels)},
        "filters": _filters(summary, labels),
        "leaderboard": shown["leaderboard"],
        "on_test": summary.on_test,
        "factors": [table for slug, table in shown.items() if slug.startswith("factors")],
        "parts": [shown[slug] for slug in _PARTS if slug in shown],
        # A note says how many rows are drawn if not all are.
        "curves_of": lines.DRAWN_CURVES if methods > lines.DRAWN_CURVES else None,
        "rows_of": figures.DRAWN_ROWS if methods > figures.DRAWN_ROWS else None,
        "accuracy_notes": curve_notes(summary) if drawn["accuracy"] else [],
        "hyperparameters": shown["hyperparameters"],
        "shared": _shared(summary),
    }


def facts(summary: Summary) -> list[tuple[str, str]]:
    """List what was run as (name, text) pairs: the different values that the records have."""
    values: dict[str, set[Any]] = {}
    days, diverged = {""}, 0
    for record in summary.records:
        for name, value in _facts_of(record).items():
            values.setdefault(name, set()).add(value)
        days |= {record.started[:10], record.finished[:10]}
        diverged += record.status == "diverged"
    texts = {}
    for name, different in values.items():
        # Numbers do not compare with texts.
        known = sorted(different - {None, ""}, key=lambda value: (isinstance(value, str), value))
        texts[name] = ", ".join(map(str, known))
    texts["Cells"] = f"{len(summary.records)} finished"
    if diverged:
        texts["Cells"] += f" ({diverged} diverged)"
    days.remove("")
    if days:
        texts["Date (UTC)"] = " to ".join(sorted({min(days), max(days)}))
    return [(name, text) for name, text in texts.items() if text]


def _facts_of(record: Record) -> dict[str, Any]:
    """Return what a record says about how its task was run; a reference's sizes are left out."""
    cell = record.cell
    # An untrusted value may be of any kind.
    environment = {
        key: str(value) for key, value in record.environment.items() if value is not None
    }
    sizes = {} if record.is_reference else cell
    programs = ("regbench", "python", "torch")
    versions = [f"{name} {environment[name]}" for name in programs if name in environment]
    data, digest = [], record.data.content_sha256.get("train")
    if limit := cell["dataset"].get("train_per_class"):
        data.append(f"{limit} training images per class")
    if digest:
        data.append(f"train split's sha256 {digest[:12]}…")
    return {
        "Data set": cell["dataset"]["name"] + (f" ({', '.join(data)})" if data else ""),
        "Network": record.backbone,
        "Embedding dimension": sizes.get("embedding_dim"),
        "Batch size": sizes.get("batch_size"),
        "Epochs": sizes.get("epochs"),
        "Seeds": record.seed,
        "Hardware": environment.get("hardware"),
        "Loader": environment.get("loader"),
        "Versions": ", ".join(versions),
        "Code": environment.get("git"),
    }


def methods_of(summaries: Iterable[Summary]) -> dict[str, Record]:
    """Find a record of each method by label, for what its authors say about it."""
    found: dict[str, Record] = {}
    for summary in summaries:
        for row in summary.methods:
            if row.first.regularizer:  # weights from elsewhere have none
                found.setdefault(row.label, row.first)
    return dict(sorted(found.items(), key=lambda item: item[0].casefold()))


def cells_of(summary: Summary, number: int, style: Styles) -> list[dict[str, Any]]:
    """Collect what the page says about a task's cells; short trainings of searches come last."""
    cells = []
    places: dict[Record, int] = {}
    groups: dict[Record, int] = {}
    for place, row in enumerate(summary.rows):
        places |= dict.fromkeys(row.records, place)
    for group, configuration in enumerate([*summary.configurations, *summary.short]):
        groups |= dict.fromkeys(configuration.records, group)
    for record in summary.all_records:
        cell = {name: getattr(record, name) for name in _OF_RECORD}
        cell |= {"id": record.cell_id, "config": record.cell, "path": str(record.path)}
        cell |= {"section": number, "key": _key(record, style)}
        cells.append(cell | {"row": places.get(record, -1), "group": groups.get(record, -1)})
    return cells


def protocols_of(records: Iterable[Record]) -> list[str]:
    """List each score's protocols.

    Only some of many are listed, because their texts may differ in a chosen learning rate.
    """
    by_title: dict[str, dict[str, None]] = {}
    for r in records:
        for s in r.scores:
            if s.probe is None:  # a probe's protocol is below its table
                by_title.setdefault(s.head, {})[s.protocol] = None
    out = []
    for title, protocols in by_title.items():
        out.append(f"{title}: {few(list(protocols), _PROTOCOLS_SHOWN, between='; ')}")
    return out


def _key(one: Row | Record, style: Styles) -> str:
    return "reference" if one.is_reference else style[one.label].key


def _filters(summary: Summary, labels: Iterable[str]) -> dict[str, list[str]]:
    """List what the tables of a task can be narrowed to: methods, and values of the settings
    that vary.
    """
    filters = {"method": sorted(labels)}
    for name in SETTING_NAMES.values():
        values = {row.settings.get(name, DASH) for row in summary.rows} - {DASH}
        # Numbers in their order, before other values.
        filters[name] = sorted(values, key=lambda value: (not value.isdigit(), len(value), value))
    return {name: values for name, values in filters.items() if len(values) > 1}


def _shared(summary: Summary) -> list[tuple[str, str]]:
    """List the settings that all trained cells share."""
    trained = [record.settings.items() for record in summary.records if not record.is_reference]
    if not trained:
        return []
    return sorted(set(trained[0]).intersection(*trained))
