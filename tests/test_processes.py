"""Processes that work together: their answers, and what is said when one fails or ends."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regbench import RegbenchError
from regbench.processes import CodeFailed, Place, Processes, WorkFailed, apart
from tests.refusals import is_refused


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


def raise_(error: BaseException) -> None:
    raise error


def write_everywhere() -> None:
    """Write what looks like an answer to whatever file is open, and end as if all were well."""
    for file in Path("/proc/self/fd").iterdir():
        # What is written to a pipe of the fork server would end that one.
        if file.is_file():
            os.write(int(file.name), b'["key", "returned", 1]')
    os._exit(0)


def say_and_die() -> None:
    print("a line", "no memory\x1b left", sep="\n", flush=True)
    os.kill(os.getpid(), 9)


def leave_behind(file: Path) -> int:
    """Return at once, while a thread and a process go on."""
    threading.Thread(target=time.sleep, args=(600,)).start()
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    file.write_text(str(child))
    return child


def remove_files() -> None:
    """Remove the files by which the caller is told something."""
    folders = {file.readlink().parent for file in Path("/proc/self/fd").iterdir() if file.is_file()}
    for folder in folders:
        if folder.name.startswith("regbench-"):
            shutil.rmtree(folder)
    os._exit(0)


def test_memory_that_runs_out_ends_the_process_apart_first() -> None:
    assert apart("it", 60, Path("/proc/self/oom_score_adj").read_text) == "1000\n"


def test_what_a_function_returns_apart_is_plain_data() -> None:
    seen = apart("it", 60, lambda *given: {"given": given, "none": None}, 1, 2.5)
    assert seen == {"given": [1, 2.5], "none": None}


@pytest.mark.parametrize(
    ("function", "arguments", "line"),
    [
        (raise_, (ValueError("no\nluck"),), "it: ValueError: no luck"),
        (raise_, (SystemExit(0),), "it: SystemExit: 0"),
        (raise_, (KeyboardInterrupt(),), "it: KeyboardInterrupt: no message"),
        (object, (), "it: TypeError: Object of type object is not JSON serializable"),
        (os._exit, (0,), "it: its process gave no answer, and ended with exit code 0"),
        (
            say_and_die,
            (),
            "it: its process gave no answer, and was ended by signal 9: no memory\x1b left",
        ),
        (remove_files, (), "it: its process gave no answer, and ended with exit code 0"),
        (str.ljust, ("", 2**25), "it: its process gave no answer, and ended with exit code 0"),
        (time.sleep, (600,), "it has not ended within 1 s"),
    ],
)
def test_nothing_but_an_answer_is_a_success_apart(
    function: Callable[..., Any], arguments: tuple[Any, ...], line: str
) -> None:
    with pytest.raises(CodeFailed) as failed:
        apart("it", 1 if function is time.sleep else 60, function, *arguments)
    assert str(failed.value) == line


def test_an_answer_without_the_key_is_none() -> None:
    with pytest.raises(CodeFailed, match="gave no answer"):
        apart("it", 60, write_everywhere)


def test_a_refusal_apart_is_one() -> None:
    with is_refused(r"^no luck$") as refused:
        apart("it", 60, raise_, RegbenchError("no luck"))
    assert type(refused.value) is RegbenchError
    with pytest.raises(CodeFailed, match=r"^no luck$"):
        apart("it", 60, raise_, CodeFailed("no luck"))


def test_what_was_started_apart_ends_with_it(tmp_path: Path) -> None:
    child = apart("it", 60, leave_behind, tmp_path / "child")
    assert child == int((tmp_path / "child").read_text())
    for _ in range(600):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        # Killed, and not reaped yet.
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("it is still there")
