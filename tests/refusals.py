"""What a refusal is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from regbench import RegbenchError


@contextmanager
def is_refused(match: str) -> Iterator[pytest.ExceptionInfo[RegbenchError]]:
    """What is done within is refused, in one line that this pattern is found in."""
    with pytest.raises(RegbenchError, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)
