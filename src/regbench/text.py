"""Text of others, made fit to be shown."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    r"""Write control characters, marks of direction and the like as escapes, such as ``\x1b``."""
    # Names and texts of others can then neither break lines, nor move a terminal's cursor, nor
    # hide or reorder letters.
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(c: str) -> str:
    return c if c.isprintable() or unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()
