"""Tables as the script of the site takes them: plain data, with the kind of each column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from regbench.text import printable

Column = dict[str, Any]
Table = dict[str, Any]


def texts(name: str, *, filtered: bool = False) -> Column:
    """Describe a column of texts; a filtered one gets a select with its values."""
    return {"name": name, "kind": "text", "filtered": filtered}


def links(name: str, *, filtered: bool = False) -> Column:
    """Describe a column of texts with addresses: [text, address]."""
    return {"name": name, "kind": "link", "filtered": filtered}


def numbers(name: str, digits: int | None = None) -> Column:
    """Describe a column of numbers with that many decimals; None: as they are."""
    return {"name": name, "kind": "number", "digits": digits}


def means(name: str, digits: int = 2) -> Column:
    """Describe a column of means: [mean, standard deviation or null, whether it is bold]."""
    return {"name": name, "kind": "mean", "digits": digits}


def digests(name: str) -> Column:
    """Describe a column of SHA-256, which are shown in short."""
    return {"name": name, "kind": "digest"}


def hidden(name: str) -> Column:
    """Describe a column that is not shown."""
    return {"name": name, "kind": "hidden"}


def table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> Table:
    """Put columns and rows together."""
    return {"columns": columns, "rows": rows}


def as_json(data: object) -> str:
    """Write data for a script of the site, in which texts of others are shown as `printable` writes them."""
    text = orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS).decode()
    return text if text.isprintable() and "\\" not in text else _ODD.sub(_shown, text)


_ODD = re.compile(r"\\(?:u[0-9a-f]{4}|.)|[^ -~]")


def _shown(found: re.Match[str]) -> str:
    letter = orjson.loads(f'"{found[0]}"')
    return found[0] if (text := printable(letter)) == letter else text.replace("\\", "\\\\")
