"""The pytest plug-in that comes with regbench: the fixture `assert_sound`, which audits a loss.

pytest loads it in every run if regbench is installed, so it imports nothing until a test asks for
it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def assert_sound() -> Callable[..., None]:
    """Give `regbench.audit.assert_sound`: audit a loss, and fail if there is a defect."""
    from regbench.audit import assert_sound

    return assert_sound
