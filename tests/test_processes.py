"""Processes that work together: their answers, and what is said when one fails or ends."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from regbench import RegbenchError
from regbench.processes import Place, Processes, WorkFailed


def state(here: Place, text: str) -> tuple[str, Place]:
    print("a line that is no answer")
    return text, here


def answer(state: tuple[str, Place], number: int) -> tuple[str, int, str]:
    return f"{state[0]} {number}", state[1].rank, os.environ["OMP_NUM_THREADS"]


def own_id(state: tuple[str, Place]) -> int:
    return os.getpid()


def fail(state: tuple[str, Place]) -> None:
    raise RegbenchError("no luck")


def fail_in_the_second(state: tuple[str, Place], error: Exception) -> None:
    if state[1].rank:
        raise error


def end_the_second(state: tuple[str, Place]) -> None:
    """Let the first wait for the second as in a collective."""
    if state[1].rank:
        os.write(2, b"one line\nno memory left\n")
        os.kill(os.getpid(), 9)
    while True:
        pass


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with Processes(2, state, "number", threads=3) as processes:
        yield processes


def test_answers_come_in_the_order_of_ranks(two: Processes) -> None:
    assert two.ask(answer, 7) == [("number 7", 0, "3"), ("number 7", 1, "3")]
    assert two.ask(lambda state: state[0]) == ["number", "number"]


def test_a_failure_is_one_line_with_the_rank_and_ends_all(two: Processes) -> None:
    with pytest.raises(WorkFailed, match=r"^rank 1: ValueError: no luck$"):
        two.ask(fail_in_the_second, ValueError("no\nluck"))
    assert two.ask(answer, 8)[1] == ("number 8", 1, "3")


def test_an_end_is_told_with_what_was_said_last(two: Processes) -> None:
    with pytest.raises(WorkFailed, match=r"^rank 1 was ended by signal 9: no memory left$"):
        two.ask(end_the_second)


def test_one_alone_lives_on_after_a_failure() -> None:
    with Processes(1, state, "number") as one:
        (first,) = one.ask(own_id)
        with pytest.raises(WorkFailed, match=r"^no luck$"):
            one.ask(fail)
        assert one.ask(own_id) == [first]
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_processes_have_the_cores_and_the_environment_of_their_start(
    two: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that forks them has been running since before."""
    two.ask(answer, 1)
    cores = os.sched_getaffinity(0)
    monkeypatch.setenv("OF_THE_CALLER", "now")
    os.sched_setaffinity(0, {min(cores)})
    try:
        with Processes(1, state, "number") as one:
            found = one.ask(lambda state: (os.sched_getaffinity(0), os.environ["OF_THE_CALLER"]))
    finally:
        os.sched_setaffinity(0, cores)
    assert found == [({min(cores)}, "now")]
