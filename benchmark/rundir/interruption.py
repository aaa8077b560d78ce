"""Signals that ask a run to stop: Ctrl-C, a scheduler's time limit, preemption."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator
from types import FrameType

log = logging.getLogger("regbench")


class Interrupted(KeyboardInterrupt):
    """A run stopped at a signal, after it wrote its checkpoint if it was training.

    Attributes:
        signal: The signal's number.
    """

    def __init__(self, number: int) -> None:
        """Name the signal that asked to stop."""
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.signal = number


class Interruption:
    """Answers signals: outside `deferred`, and within `at_once`, a signal raises `Interrupted`.

    Within `deferred` a signal is only noted, so that the training loop can finish its step and
    write a checkpoint; a second Ctrl-C raises `Interrupted` there too.

    Attributes:
        requested: The number of the first signal that asked to stop; 0 without one.
    """

    def __init__(self) -> None:
        """Begin without a signal."""
        self.requested = 0
        self._deferring = False

    @contextlib.contextmanager
    def listening(self, *signals: int) -> Iterator[None]:
        """Answer the signals inside the context, which only the main thread may enter."""
        handlers = {number: signal.signal(number, self._answer) for number in signals}
        try:
            yield
        finally:
            # A notebook or a test has handlers of its own.
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Note signals instead of raising; the code inside looks at `requested`."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise at a signal even within `deferred`, for work that can be left half-way.

        Raises:
            Interrupted: For a signal inside, and for one that was noted before.
        """
        deferring, self._deferring = self._deferring, False
        try:
            if self.requested:
                raise Interrupted(self.requested)
            yield
        finally:
            self._deferring = deferring

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring or (self.requested and number == signal.SIGINT):
            raise Interrupted(number)
        if not self.requested:
            log.info("%s: writing a checkpoint and stopping", signal.Signals(number).name)
        # The first one counts: by it a Slurm job decides whether to begin again.
        self.requested = self.requested or number
