"""Damage to files, drawn from a seed: what a bad disk, an editor or another program leaves
behind.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

_DEEP, _SELF = "@deep@", "@self@"
_OTHERS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, -1e308, math.nan, math.inf),
    *(2**31, 2**63, 2**64, 10**30, 10**400),
    *("", "x", "0", "None", "../..", "a/b", "\0", "\ud800", "'", "{}", "%s", "x" * 300),
    *("${seed}", "${oc.env:HOME}", _DEEP, _SELF),
    *([], {}, [[]], [None], ["x"], {"x": 1}, {"": {}}),
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Other bytes than `data`, JSON or YAML text; one or several things are wrong with them."""
    changed = data
    while changed == data:
        changed = rng.choice((_bytes, _bytes, _content, _content, _content))(data, rng)
    return changed


def _bytes(data: bytes, rng: random.Random) -> bytes:
    """Damage that knows nothing of what the bytes mean."""
    at, length = rng.randrange(max(1, len(data))), rng.choice((1, 1, 4, 64, 4096))
    kind = rng.randrange(9)
    if kind < 3:
        flipped = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    before, after = data[:at], data[at + length :]
    as_utf16 = data.decode(errors="replace").encode("utf-16")
    another = rng.choice((as_utf16, b"\xef\xbb\xbf" + data, data * 2, b"\xff" + data))
    twice = before + data[at : at + length] + data[at:]
    return (before, b"", before + after, twice, before + bytes(length) + after, another)[kind - 3]


def _content(data: bytes, rng: random.Random) -> bytes:
    """Text of the same kind that says something else in one to three places."""
    try:
        content = [yaml.safe_load(data)]
    except (yaml.YAMLError, ValueError):
        return _bytes(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holder, key = rng.choice(list(_places(content)))
        other = rng.choice(_OTHERS)
        kind = rng.randrange(4)
        if kind == 0 and holder is not content:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice((f"{key}x", "", "x"))] = holder.pop(key)
        elif kind == 2 and isinstance(holder, list) and holder is not content:
            holder.insert(0, other)
        else:
            holder[key] = other
    deep = 10 ** rng.randrange(2, 6)
    if data.lstrip()[:1] in (b"{", b"["):
        text = json.dumps(content[0]).replace(f'"{_SELF}"', '{"x": 0, "x": []}')
    else:
        endless = rng.choice(("&a [*a]", "&a {a: *a}"))
        text = yaml.safe_dump(content[0], sort_keys=False).replace(f"'{_SELF}'", endless)
    for quoted in (f'"{_DEEP}"', f"'{_DEEP}'"):
        text = text.replace(quoted, "[" * deep + "]" * deep)
    return text.encode()


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Each container with each of its keys."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield content, key
        if isinstance(value, dict | list):
            yield from _places(value)


def no_file(path: Path, rng: random.Random) -> str:
    """Puts something else than a file to a path; says what."""
    ways: dict[str, Callable[[], None]] = {
        "a folder": path.mkdir,
        "a link that leads nowhere": lambda: path.symlink_to("nowhere"),
        "a link to itself": lambda: path.symlink_to(path.name),
    }
    name = rng.choice(list(ways))
    path.unlink(missing_ok=True)
    ways[name]()
    return name


def damaged_lines(answer: bytes, rng: random.Random) -> bytes:
    """Other bytes than `answer`, lines of fields between bars, as a command prints them."""
    at = rng.randrange(len(answer))
    kind = rng.randrange(6)
    if kind < 2:
        return _bytes(answer, rng)
    other_bars = answer.replace(b"|", rng.choice((b" ", b"||", b"")), rng.randrange(1, 4))
    after_an_error = b"slurm_load_jobs error: Unable to contact slurm controller\n" + answer
    put = rng.choice((b"\n", b"\xff\xfe", b"\0", b"|", b"\r\n", b"x" * 9999))
    put_within = answer[:at] + put + answer[at:]
    return (other_bars, after_an_error, put_within, answer.lower())[kind - 2]
