"""Signals that ask a run to stop: Ctrl-C, a scheduler's time limit, preemption."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator
from types import FrameType

log = logging.getLogger("regbench")


class Interrupted(KeyboardInterrupt):
    """A run stopped at a signal, after it wrote its checkpoint where it was training.

    Attributes:
        signal: The signal's number.
    """

    def __init__(self, number: int) -> None:
        """Say which signal asked to stop."""
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.signal = number


class Interruption:
    """Whether a signal has asked to stop.

    Within `deferred` the first signal is only noted, for the training loop to finish its step and write a checkpoint;
    a second one, and any elsewhere, raises `Interrupted` at once, and so does any within `at_once`.
    """

    def __init__(self) -> None:
        """Begin without a request."""
        self.requested = 0
        self._deferring = False

    @contextlib.contextmanager
    def listening(self, *signals: int) -> Iterator[None]:
        """Answer the signals for as long as it is entered; for the main thread."""
        handlers = {number: signal.signal(number, self._answer) for number in signals}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Let what is inside ask `requested` for itself."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Within `deferred`, let a signal raise after all, for what can be left half-way.

        Raises:
            Interrupted: Also of a signal that was noted before.
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
        self.requested = self.requested or number
