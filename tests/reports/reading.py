"""What the tests of tables read from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regbench.reports.find.records import read_records
from regbench.reports.rows.summary import Summary, summarize
from regbench.reports.tables.table import Table

Make = Callable[..., Path]


def tasks(runs: Path) -> list[Summary]:
    """The tasks of all records under a folder."""
    found = read_records(runs)
    return summarize(found.records, found.missing, found.choices)


def task(runs: Path) -> Summary:
    """The only task."""
    (one,) = tasks(runs)
    return one


def texts(table: Table) -> list[list[str]]:
    """The head and the rows, with ** around what is bold."""
    head = [column.name for column in table.columns]
    return [head, *([f"**{c.text}**" if c.bold else c.text for c in row] for row in table.rows)]


def grid(table: Table) -> dict[str, dict[str, str]]:
    """Row name -> column -> text."""
    head, *rows = texts(table)
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}
