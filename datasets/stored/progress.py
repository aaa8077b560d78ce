"""The progress of preparing a data set."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

_FIRST_LINE_S, _LOG_EVERY_S = 2.0, 30.0
T = TypeVar("T")


def tracked(
    items: Iterable[T], total: int, title: str, progress: bool = True, unit: str = "images"
) -> Iterator[T]:
    """Pass the items on, with a bar on a terminal and a line now and then in a log."""
    # A bar would fill a log with lines that are meant to be written over.
    if not progress or sys.stderr.isatty():
        yield from tqdm(items, title, total, unit=f" {unit}", disable=not progress)
        return
    start_s = time.monotonic()
    next_s = start_s + _FIRST_LINE_S
    for number, item in enumerate(items, start=1):
        yield item
        now_s = time.monotonic()
        if now_s >= next_s:
            next_s = now_s + _LOG_EVERY_S
            rate = number / (now_s - start_s)
            left = tqdm.format_interval((total - number) / rate)
            line = f"{title}: {number} of {total} {unit}, {rate:.0f} {unit}/s, {left} left"
            print(line, file=sys.stderr, flush=True)
