"""Text from others, made safe to show, and their names that may become paths."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from regbench.errors import RegbenchError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

A_NAME = "a name of 1 to 100 letters (a to z), digits and signs of . _ -, the first no . or -"
"""What a file, a folder, a sweep or a data set may be called: so it is safe in every file
system, shell and page.
"""


def printable(text: str) -> str:
    r"""Write control characters, marks of direction and the like as escapes, such as ``\x1b``."""
    # Names and texts of others can then neither break lines, nor move a terminal's cursor, nor
    # hide or reorder letters.
    if text.isprintable():
        return text
    shown = ""
    for c in text:
        if c.isprintable() or unicodedata.category(c) == "Zs":
            shown += c
        else:
            shown += c.encode("unicode_escape").decode()
    return shown


def brief(name: str) -> str:
    """Return a name of others as refusals show it: printable, and at most 100 letters of it."""
    if len(name) > 100:
        name = f"{name[:100]}…"
    return printable(name)


def counted(number: int, noun: str) -> str:
    """Format a number of things: "1 cell", "1,200 cells"."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def few(names: Sequence[object], most: int = 6, between: str = ", ") -> str:
    """Join the first names, and say how many more there are.

    Args:
        names: What to list.
        most: The largest number of them that are shown.
        between: What stands between two: "; " where names may have commas.
    """
    listed = [str(name) for name in names[:most]]
    if len(names) > most:
        listed.append(f"and {len(names) - most:,} more")
    return between.join(listed)


def is_name(text: str) -> bool:
    """Return True if a text is `A_NAME`: it may become a path, as it cannot lead out of a
    folder.
    """
    return _NAME.fullmatch(text) is not None


def refuse_name(what: str, name: str) -> None:
    """Refuse a name, called `what`, that may not become the name of a file or a folder."""
    if not is_name(name):
        raise RegbenchError(f"{what}: '{brief(name)}' must be {A_NAME}")
