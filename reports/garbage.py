"""Reading many records without pauses for Python's collector of cyclic garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Look for no cyclic garbage meanwhile: among ten thousand records there is none, and to
    look takes a quarter.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
