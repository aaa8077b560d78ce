"""What tests of sweeps share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbench.processes import Worker


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a sweep call its jobs in this process, one after another."""

    class Here(Worker):
        def begin(self, folder: Path, job: Callable[..., None], *arguments: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setenv("CUDA_VISIBLE_DEVICES", "")
                job(*arguments)

    # the job's, which is this process here
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr("regbench.sweeps.local.Worker", Here)
    monkeypatch.setattr("regbench.sweeps.local.POLL_S", 0.0)
