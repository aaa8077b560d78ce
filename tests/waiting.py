"""Waiting for what a test needs, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 900.0
"""When a test gives up: long after what it waits for has come, so that only one that hangs gets
there.
"""


def wait_for(condition: Callable[[], object]) -> None:
    """Returns as soon as the condition holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)
