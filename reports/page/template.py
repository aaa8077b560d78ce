"""Parts that the page is made with: templates, tables and figures for them, data for the script."""

from __future__ import annotations

import base64
import functools
import gzip
import re
from collections.abc import Mapping
from pathlib import Path

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from regbench.reports.rows.summary import Row
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
_SEARCHED_ROWS = 10  # a table with more has a box to filter it
_HERE = Path(__file__).parent


@functools.cache
def templates() -> Environment:
    """Set the templates up."""

    def shown(value: object) -> object:
        """Escape labels, commands and settings, which are untrusted text."""
        return printable(value) if type(value) is str else value

    # A value that is not given is an error rather than a hole in the page.
    loader = FileSystemLoader(_HERE)
    environment = Environment(
        loader=loader, autoescape=True, finalize=shown, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals["marker_paths"] = MARKER_PATHS
    for name in ("css", "js"):
        environment.globals[name] = _HERE.joinpath(f"page.{name}").read_text(encoding="utf-8")
    return environment


def table_for_page(
    table: Table,
    prefix: str = "",
    keys: Mapping[str, str] = {},
    places: Mapping[Row | None, int] = {},
) -> dict[str, object]:
    """Prepare a table for the templates, with its id on the page.

    Args:
        table: Table to show.
        prefix: Prefix of the id.
        keys: The keys of the methods' styles, by label.
        places: The places of rows in the leaderboard.
    """
    rows = []
    for line in table.lines:
        key, place = keys.get(line.label, ""), places.get(line.row)
        rows.append({"cells": line.entries, "label": line.label, "key": key, "place": place})
    return {
        "id": f"{prefix}-{table.slug}".strip("-"),
        "table": table,
        "rows": rows,
        "searched": len(rows) > _SEARCHED_ROWS,
    }


def packed(data: object) -> str:
    """Pack data as JSON, gzipped and in base64. Numbers that are not finite become null."""
    # The settings of an untrusted cell may have keys of other kinds, and paths are no JSON.
    text = orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    if not text.isprintable() or "\\u" in text:
        text = _ODD.sub(_shown, text)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


# Letters that nobody sees, as JSON writes them: some as escapes, some as they are. Escaped
# backslashes are passed over.
_ODD = re.compile(r"\\(?:u[0-9a-f]{4}|.)|[^ -~]")


def _shown(found: re.Match[str]) -> str:
    letter = orjson.loads(f'"{found[0]}"')
    text = printable(letter)
    return found[0] if text == letter else text.replace("\\", "\\\\")
