"""The report as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from regbench.reports import tables
from regbench.reports.figures import Drawing, Style, curve_drawings, scatter_drawings, unique_ids
from regbench.reports.records import Record, Records
from regbench.reports.summary import Summary, flat
from regbench.reports.tables import Cell, Column, Table


@dataclass(frozen=True)
class _PageTable:
    """A table with the id that it has on the page."""

    id: str
    table: Table


def render_page(
    summaries: Sequence[Summary], found: Records, style: dict[str, Style], paper: Sequence[Table] = ()
) -> str:
    """The page for some sweeps.

    Args:
        summaries: One for each sweep, in the order of the page.
        found: What was read; its damaged and unfinished runs are listed.
        style: How each trained method is drawn, by label.
        paper: The paper's tables with our numbers in them.

    Returns:
        HTML that needs no other file and no network.
    """
    sections = [_section(s, f"s{i}", style) for i, s in enumerate(summaries, 1)]
    # Autoescape: labels, commands and settings are other people's text.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    names = [s.name for s in summaries]
    return template.render(
        title="regbench: " + (", ".join(names) if len(names) <= 3 else f"{len(names)} sweeps"),
        lead="A comparison of regularizers for self-supervised learning.",
        sections=sections,
        paper=[_PageTable(table.slug, table) for table in paper],
        skipped=found.skipped,
        unfinished=found.unfinished,
        protocols=_protocols(found.records),
    )


def cells_table(summary: Summary) -> Table:
    """Every finished cell: where and when it ran, from which state of the code, how to run it again."""
    columns = [Column(name, numeric=name in ("seed", "attempts")) for name in ("cell", "method", "seed", "status")]
    columns += [Column("attempts"), *(Column(name, numeric=False) for name in ("finished", "host", "git"))]
    commands = any(r.command for r in summary.records)
    if commands:
        columns.append(Column("run it again", numeric=False))
    body = []
    for r in summary.records:
        texts = [
            r.cell_id,
            r.label,
            str(r.seed),
            r.status,
            str(len(r.attempts)),
            r.finished[:16].replace("T", " "),
        ]
        texts += [str(r.environment.get("hostname", "")), str(r.environment.get("git") or "unknown")]
        if commands:
            texts.append(r.command)
        body.append([Cell(text or tables.DASH) for text in texts])
    return Table("cells", "Cells", columns, body)


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
            ("Network", _distinct(r.cell["network"]["backbone"] for r in records)),
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


def _section(summary: Summary, prefix: str, style: dict[str, Style]) -> dict[str, object]:
    def placed(table: Table) -> _PageTable:
        return _PageTable(f"{prefix}-{table.slug}", table)

    def drawn(drawings: list[Drawing], kind: str) -> list[Drawing]:
        return [replace(d, svg=unique_ids(d.svg, f"{prefix}-{kind}{i}")) for i, d in enumerate(drawings)]

    cells = [flat(r.cell) for r in summary.records if not r.untrained]
    shared = [(k, v) for k, v in (cells[0] if cells else {}).items() if all(c.get(k) == v for c in cells)]
    return {
        "name": summary.name,
        "facts": facts(summary),
        "leaderboard": placed(tables.leaderboard(summary)),
        "scatter": drawn(scatter_drawings(summary, style), "scatter"),
        "parts": [placed(make(summary)) for make in (tables.accuracy_table, tables.time_table, tables.memory_table)],
        "curves": drawn(curve_drawings(summary, style), "curve"),
        "hyperparameters": placed(tables.hyperparameters_table(summary)),
        "cells": placed(cells_table(summary)),
        "shared": shared,
    }


def _distinct(values: Iterable[object]) -> str:
    """The values without repeats, in order."""
    known = set(values)
    return ", ".join(str(v) for v in sorted(known, key=lambda v: (isinstance(v, str), v)))


def _data_set(record: Record) -> str:
    """Name, images of a class if limited, and the first digits of the content's digest."""
    dataset, digest = record.cell["dataset"], record.data.get("content_sha256")
    if isinstance(digest, dict):  # one for each split
        digest = digest.get("train")
    limit = dataset.get("train_per_class")
    parts = [f"{limit} training images per class"] if limit else []
    parts += [f"train split's sha256 {digest[:12]}…"] if isinstance(digest, str) else []
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
