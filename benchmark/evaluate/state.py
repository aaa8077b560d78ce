"""How far a long evaluation has come: a file in the run directory, so that a kill costs an epoch at most."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import time
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regbench.benchmark.checkpoint import read_checkpoint, write_checkpoint

log = logging.getLogger("regbench")

SAVE_EVERY_S = 10.0
"""Seconds between two writings: what takes longer than an epoch to be done again is kept after every epoch."""


class State:
    """What one evaluation has done so far, kept in a file of its own.

    Attributes:
        data: What was kept; empty at the beginning.
    """

    def __init__(self, path: Path, key: str, device: torch.device) -> None:
        """Goes on from the file, if it is there, is whole, and is of the same evaluation.

        Args:
            path: The file.
            key: Of the evaluation: all that decides its outcome, see `fingerprint`.
            device: Where the tensors are wanted.
        """
        self._path, self._key = path, key
        self._name = path.stem.removeprefix("evaluation-")
        self._written_s = time.monotonic()
        self.data: dict[str, Any] = {}
        if not path.exists():
            return
        try:
            found = read_checkpoint(path, device)
        except (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            log.warning("%s is damaged (%s); the evaluation begins anew", path, " ".join(str(error).split()))
            return
        if found.pop("key", None) == key:
            self.data = found
            log.info("%s: goes on after %s", self._name, found["done"])

    def save(self, done: str, *, last: bool = False, **changes: Any) -> None:
        """Keeps `changes` beside what was kept; writes them if it is time to.

        Args:
            done: What is done, in words.
            last: Write in any case.
            changes: Tensors and plain data; whatever is written must still have its value of now.
        """
        self.data |= {"done": done, **changes}
        now_s = time.monotonic()
        if last or now_s - self._written_s >= SAVE_EVERY_S:
            write_checkpoint(self._path, {"key": self._key, **self.data})
            self._written_s = now_s
            log.info("%s: %s", self._name, done)

    def remove(self) -> None:
        """Removes the file: the evaluation is over."""
        self._path.unlink(missing_ok=True)


def fingerprint(module: nn.Module, settings: Any) -> str:
    """SHA-256 of a network's weights and of settings (plain data)."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
