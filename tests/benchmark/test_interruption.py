"""Signals that ask a run to stop: which one counts, and when they raise."""

from __future__ import annotations

import signal

import pytest

from regbench.benchmark.rundir.interruption import Interrupted, Interruption


def test_the_first_signal_counts_when_the_step_is_done_and_ctrl_c_again_ends_it_at_once() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    interruption, patient = Interruption(), Interruption()
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
    with interruption.listening(*numbers), interruption.deferred():
        for number in (signal.SIGUSR2, signal.SIGUSR1):
            signal.raise_signal(number)
        assert interruption.requested == signal.SIGUSR2
        with pytest.raises(Interrupted, match="SIGINT"):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted, match="SIGUSR2"), interruption.at_once():
            pytest.fail("what can be left half-way is not begun")
    assert signal.getsignal(signal.SIGUSR1) is before
    with patient.listening(signal.SIGINT), patient.deferred():
        signal.raise_signal(signal.SIGINT)
    assert patient.requested == signal.SIGINT
