"""The progress of preparing a data set."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def tracked(items: Iterable[T], total: int, title: str, unit: str = "images") -> Iterator[T]:
    """Pass the items on, with a progress bar; a log shows it only now and then."""
    delay_s, interval_s = 0.0, 0.1
    if not sys.stderr.isatty():
        delay_s, interval_s = 2.0, 30.0
    yield from tqdm(items, title, total, unit=f" {unit}", delay=delay_s, mininterval=interval_s)
