"""What happens in the midst of a training."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from regbench.benchmark.training.step import Step


def before_steps(patch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call `act` before each step of this process, with the step's number from 0."""
    step, numbers = Step.__call__, itertools.count()

    def acting(self: Step, *views: Any) -> Any:
        act(next(numbers))
        return step(self, *views)

    patch.setattr(Step, "__call__", acting)
