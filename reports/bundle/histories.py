"""Histories in few bytes: the text that their lines share once, and each column of numbers as differences.

The text of a history comes back to the last byte: its SHA-256 is in the record. The last line stands by itself, for
tables show its numbers and nothing of the others.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from regbench.files import parse_json

_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_MOST_DECIMALS = 400
_LARGEST = 2**63  # that every reader of JSON takes
_ODD = (AttributeError, IndexError, KeyError, OverflowError, StopIteration, TypeError, ValueError)
_REFUSED = "a history is not as `regbench submit` packs it"

# A column is one of: the number that all lines have, as text; the count of decimals, the first number and the
# differences of each to the one before, in units of the last decimal; all numbers as texts.
_Column = str | list[int] | list[str]


def pack(text: str) -> tuple[str, str]:
    """Write a history in two lines of JSON: its last line, and all before it."""
    cut = text.rfind("\n", 0, -1) + 1
    return json.dumps(text[cut:]), _packed(text[:cut])


def unpack(last: bytes, before: bytes, most: int) -> str:
    """Return the text of a history.

    Args:
        last: What `pack` gave first.
        before: What it gave second.
        most: Characters that it may have: of what `pack` did not give it could be any number.

    Raises:
        ValueError: If it is nothing that `pack` gives, or more than that.
    """
    lines: list[str] = []
    left = most
    for line in _unpacked(before):
        left -= len(line) + bool(lines)
        if left < 0:
            raise ValueError(f"the histories unpack to more than {most:,} bytes")
        lines.append(line)
    return "\n".join(lines) + _text(last)


def last_row(last: bytes) -> dict[str, Any]:
    """Return the numbers of the last epoch.

    Args:
        last: What `pack` gave first.

    Raises:
        ValueError: If it is nothing that `pack` gives.
    """
    row = parse_json(_text(last).encode())
    if not isinstance(row, dict):
        raise ValueError(f"{_REFUSED} ({row!r:.60})")
    return row


def _text(last: bytes) -> str:
    text = parse_json(last)
    if not isinstance(text, str):
        raise ValueError(f"{_REFUSED} ({text!r:.60})")
    return text


def _packed(text: str) -> str:
    kinds: dict[tuple[str, ...], list[list[str]]] = {}
    shapes = []
    for line in text.split("\n"):
        parts = _NUMBER.split(line)
        shape = tuple(parts[::2])
        kinds.setdefault(shape, []).append(parts[1::2])
        shapes.append(shape)
    places = {shape: place for place, shape in enumerate(kinds)}
    packed = {
        "lines": [places[shape] for shape in shapes],
        "kinds": [{"text": s, "numbers": [_column(c) for c in zip(*rows, strict=True)]} for s, rows in kinds.items()],
    }
    return json.dumps(packed, separators=(",", ":"))


def _unpacked(line: bytes) -> Iterator[str]:
    try:
        packed = parse_json(line)
        counts = Counter(packed["lines"])
        if any(len(kind["text"]) != len(kind["numbers"]) + 1 for kind in packed["kinds"]):
            raise ValueError("a line has other texts than numbers")
        rows = [
            zip(*(_numbers(column, counts[place]) for column in kind["numbers"]), strict=True)
            for place, kind in enumerate(packed["kinds"])
        ]
        for place in packed["lines"]:
            kind = packed["kinds"][place]
            yield _line(kind["text"], next(rows[place]) if kind["numbers"] else ())
    except _ODD as error:
        raise ValueError(f"{_REFUSED} ({error!r:.60})") from error


def _column(numbers: Sequence[str]) -> _Column:
    if len(set(numbers)) == 1:
        return numbers[0]
    exponents = [int(Decimal(number).as_tuple().exponent) for number in numbers]
    decimals = max(0, -min(exponents))
    if max(decimals, *exponents) <= _MOST_DECIMALS:
        units = [int(Decimal(number).scaleb(decimals)) for number in numbers]
        column = [decimals, units[0], *(after - before for before, after in itertools.pairwise(units))]
        if max(map(abs, column)) < _LARGEST and list(_numbers(column, len(numbers))) == list(numbers):
            return column
    return list(numbers)


def _numbers(column: _Column, count: int) -> Iterable[str]:
    """Return the numbers of a column, each of a letter at least, so that what lines hold grows with their number."""
    if isinstance(column, str):
        return itertools.repeat(_spelled(column), count)
    if isinstance(column[0], str):
        return [_spelled(number) for number in column]
    decimals, *steps = column
    return [_number(units, decimals) for units in itertools.accumulate(map(int, steps))]


def _spelled(number: object) -> str:
    if not isinstance(number, str) or not _NUMBER.fullmatch(number):
        raise ValueError(f"{number!r:.20} is no number")
    return number


def _number(units: int, decimals: int) -> str:
    """Write a number as `json` does: the division rounds correctly, and so gives the float that was written."""
    if not 0 <= decimals <= _MOST_DECIMALS:
        raise ValueError(f"{decimals} decimals")
    return repr(units / 10**decimals) if decimals else str(units)


def _line(text: Sequence[str], numbers: Sequence[str]) -> str:
    return "".join(part for pair in zip(text, [*numbers, ""], strict=True) for part in pair)
