"""Tables as the script of the site takes them: plain data, with the kind of each column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
