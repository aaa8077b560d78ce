"""The state of a long evaluation: files in the run directory, so that a kill costs an epoch at
most.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from typing import Any

import torch
from torch import nn

from regbench.benchmark.rundir.checkpoint import load_tensors, save_tensors
from regbench.benchmark.rundir.lease import Attempt

log = logging.getLogger("regbench")

SAVE_EVERY_S = 10.0
"""Least seconds between two writings; an epoch that takes longer is kept at once."""


class State:
    """The progress of one evaluation, kept in files of its own.

    Attributes:
        data: Tensors and plain data that were kept; empty at the beginning.
    """

    def __init__(self, attempt: Attempt, protocol: str, key: str, device: torch.device) -> None:
        """Go on from the last whole file of the same evaluation, if there is one.

        `key` is the fingerprint of all that decides its outcome, see `fingerprint`.
        """
        self._attempt, self._protocol, self._key = attempt, protocol, key
        # An evaluation of seconds is not worth a file.
        self._written_s = time.monotonic()
        self._number = 0
        self.data: dict[str, Any] = {}
        found = load_tensors(attempt.directory, state_kind(protocol), device)
        if found is None:
            return
        state, file = found
        self._number = file.step
        # With other settings, images or weights it is another evaluation, which begins anew.
        if state.pop("key", None) == key:
            self.data = state
            attempt.began(**{protocol: state["done"]})
            log.info("%s: goes on after %s", protocol, state["done"])

    def save(self, done: str, *, last: bool = False, **changes: Any) -> None:
        """Keep `changes`, tensors and plain data, beside what was kept; write them if it is time
        to, or at the `last`.

        Later calls write again what was kept, so its values must not change in between. `done` says
        in words what is done.

        Raises:
            LeaseLost: If another process has taken over the run.
        """
        self.data |= {"done": done, **changes}
        now_s = time.monotonic()
        if last or now_s - self._written_s >= SAVE_EVERY_S:
            attempt, kind = self._attempt, state_kind(self._protocol)
            attempt.check()
            self._number += 1
            content = {"key": self._key, **self.data}
            save_tensors(attempt.directory, kind, attempt.number, self._number, content)
            self._written_s = now_s
            log.info("%s: %s", self._protocol, done)


def state_kind(protocol: str) -> str:
    """Return the prefix of the names of the files that keep an evaluation's state."""
    return f"evaluation-{protocol}"


def fingerprint(module: nn.Module, settings: Any) -> str:
    """Return the SHA-256 of a network's weights and of settings (plain data)."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
