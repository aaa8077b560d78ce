"""Sinks: programs that draw curves of the rows of `metrics.jsonl` while a run trains.

A sink is a convenience: if it fails, one warning says so and training goes on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regbench.benchmark.settings.cell import Cell
from regbench.errors import RegbenchError
from regbench.files import write_new

log = logging.getLogger("regbench")

CLOSE_TIMEOUT_S = 30.0
"""Seconds in which all sinks of a run must send what they still hold."""


class TensorBoard:
    """Event files in the folder `tensorboard` of the run directory: `tensorboard --logdir
    RUNS_DIR` shows them.
    """

    def __init__(self, cell: Cell, directory: Path, first: int) -> None:
        """Open an event file.

        What an earlier attempt wrote of the epoch `first` and later ones is hidden.
        """
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory / "tensorboard"), purge_step=first)

    def write(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a finished epoch, by name."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def close(self) -> None:
        """Send what is left; nothing more comes."""
        self._writer.close()


class WeightsAndBiases:
    """A run of the project $WANDB_PROJECT (by default regbench), grouped by sweep; a resumed cell
    goes on with it.
    """

    def __init__(self, cell: Cell, directory: Path, first: int) -> None:
        """Begin the run, or go on with it."""
        import wandb

        # W&B ignores epochs that it has: those after the checkpoint of a resumed run, which come
        # out the same.
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "regbench",
            group=directory.parent.name,
            id=run_id(directory),
            name=f"{cell.label} seed {cell.seed}",
            config=cell.plain(),
            dir=str(directory),
            resume="allow",
            # The console option keeps W&B from taking over what the process prints.
            settings=wandb.Settings(console="off"),
        )

    def write(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a finished epoch, by name."""
        self._run.log({"epoch": epoch, **numbers}, step=epoch)

    def close(self) -> None:
        """Send what is left; nothing more comes."""
        self._run.finish()


Sink = TensorBoard | WeightsAndBiases

SINKS: dict[str, type[Sink]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""The sinks by the names of `runtime.sinks`, which are also those of their packages and of our
extras.
"""


def require_sinks(names: Sequence[str]) -> None:
    """Refuse sinks whose packages are not installed."""
    for name in names:
        # Asked without importing them, which takes seconds.
        if importlib.util.find_spec(name) is None:
            raise RegbenchError(
                f"runtime.sinks: {name} is not installed here; pip install 'regbench[{name}]'"
            )


def run_id(directory: Path) -> str:
    """Return a name for a run: its sweep, its cell's id and a number drawn once for its
    directory.
    """
    # The same cell in another directory needs another name: a service drops epochs that it already
    # has.
    drawn = directory / "sinks_id"
    write_new(drawn, secrets.token_hex(4))
    sweep = re.sub(r"[^A-Za-z0-9_.-]", "_", directory.parent.name)
    return f"{sweep}-{directory.name}-{drawn.read_text()}"


class Sinks:
    """The sinks of one run."""

    def __init__(self, names: Sequence[str], cell: Cell, directory: Path, first: int) -> None:
        """Open the sinks of these names.

        The first row that they get is that of the epoch `first`.
        """
        self._open: dict[str, Sink] = {}
        for name in dict.fromkeys(names):
            with self._warning(name):
                self._open[name] = SINKS[name](cell, directory, first)

    def write(self, row: Mapping[str, Any]) -> None:
        """Give a row of the history to all of them."""
        numbers = flat(row)
        for name, sink in list(self._open.items()):
            with self._warning(name):
                sink.write(row["epoch"], numbers)

    def __exit__(self, *error: object) -> None:
        """Close all of them."""
        # In threads, because one that hangs must be left behind: a run that is to stop has little
        # time.
        threads = {}
        for name in self._open:
            threads[name] = threading.Thread(target=self._close, args=(name,), daemon=True)
        for thread in threads.values():
            thread.start()
        end_s = time.monotonic() + CLOSE_TIMEOUT_S
        for name, thread in threads.items():
            thread.join(max(0.0, end_s - time.monotonic()))
            if thread.is_alive():
                log.warning("%s has not ended after %g s and is left behind", name, CLOSE_TIMEOUT_S)

    def _close(self, name: str) -> None:
        sink = self._open[name]
        with self._warning(name):
            sink.close()

    @contextlib.contextmanager
    def _warning(self, name: str) -> Iterator[None]:
        """Turn an error of a sink into a warning, and give it nothing more."""
        try:
            yield
        except Exception as error:
            self._open.pop(name, None)
            what = f"{type(error).__name__}: {error}"
            log.warning("%s failed and gets nothing more of this run: %s", name, what)

    def __enter__(self) -> Sinks:
        """Return itself."""
        return self


def flat(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row: its addends as `terms/NAME`, its scores as
    `scores/NAME_SPLIT`.
    """
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    numbers.pop("epoch", None)
    numbers |= {f"terms/{name}": value for name, value in row.get("terms", {}).items()}
    for score in row.get("scores", ()):
        numbers[f"scores/{score['name']}_{score['split']}"] = score["value"]
    return numbers
