"""Processes that work for this one: jobs of a sweep, ranks that share a batch, and calls of code
that is not trusted.

All are forked by the fork server of `multiprocessing`, which imports what they need once. Nothing
here starts a thread or initialises CUDA in it, which a fork would break.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import cloudpickle
import threadpoolctl

from regbench.errors import RegbenchError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

FORKED = multiprocessing.get_context("forkserver")
# A process that is idle ends at once; one that is still there by then hangs and is killed.
_END_TIMEOUT_S = 10.0
_MOST_BYTES = 2**24  # of an answer that are read


def hold_blas(threads: int) -> None:
    """Limit NumPy's and SciPy's linear algebra to this many threads, in this process and
    those that it starts.

    OpenBLAS has a thread for each core. Idle ones spin, which slows all other work of the machine.
    """
    # For a library that is loaded later, as SciPy's is.
    os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    threadpoolctl.threadpool_limits(threads, user_api="blas")


def _start(function: Callable[..., None], *arguments: Any) -> Any:
    """Call a function of this module in a process of its own."""
    given = dict(os.environ), os.sched_getaffinity(0), function, arguments
    process = FORKED.Process(target=_enter, args=given)
    # The caller's script is hidden: multiprocessing would import it again in each process. So a
    # script needs no guard.
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
    return process


def _enter(
    environment: dict[str, str],
    cores: set[int],
    function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    # A terminal sends Ctrl-C to all processes: the one that began these answers it, and ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The fork server has the environment and the cores of the time when it was started.
    os.environ.clear()
    os.environ.update(environment)
    os.sched_setaffinity(0, cores)
    # Processes that this one starts, such as a DataLoader's, begin as they would in the caller.
    multiprocessing.set_start_method(None, force=True)
    function(*arguments)


def _say_to(file: Path) -> None:
    """Append what this process prints to a file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())


# --------------------------------------------------------------------------------------------------
# jobs


class Worker:
    """Runs jobs one after another, each in a process of its own.

    Attributes:
        busy: Whether its job has not ended, as far as `wait` has heard.
    """

    busy = False

    def begin(self, folder: Path, job: Callable[..., None], *arguments: Any) -> None:
        """Call a function in a process of its own, whose output goes to
        `folder`/<process id>_log.out.

        Raises:
            OSError: If there can be no such folder.
        """
        folder.mkdir(parents=True, exist_ok=True)
        # The job holds the other end until it ends. The process's sentinel would also report the
        # end of the fork server.
        self._ended, theirs = FORKED.Pipe(duplex=False)
        self._process = _start(_run_job, theirs, folder, job, arguments)
        theirs.close()
        self.busy = True

    def end_job(self) -> None:
        """Ask the job to write its checkpoint and end."""
        if self.busy:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    @staticmethod
    def wait(workers: Collection[Worker], timeout_s: float) -> None:
        """Wait until the job of one of these workers ends, not longer than `timeout_s`."""
        worker_of: dict[Any, Worker] = {worker._ended: worker for worker in workers if worker.busy}
        for ended in wait(list(worker_of), timeout_s):
            worker_of[ended].busy = False


def _run_job(
    alive: Connection, folder: Path, job: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    _say_to(folder / f"{os.getpid()}_log.out")
    job(*arguments)


# --------------------------------------------------------------------------------------------------
# ranks


class WorkFailed(Exception):
    """A process could not do its work, or ended; the message is one line."""


@dataclass(frozen=True)
class Place:
    """The place of this process among the processes.

    Attributes:
        rank: Number of this process.
        world: Number of processes.
        store: File by which they find each other.
    """

    rank: int
    world: int
    store: str

    def join(self, backend: str) -> None:
        """Make a process group of all of them.

        Each waits for the others however slow the machine is.
        """
        import torch.distributed as dist  # slow, and callers that only start jobs do without

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name need not resolve
        dist.init_process_group(
            backend,
            init_method=f"file://{self.store}",
            rank=self.rank,
            world_size=self.world,
            timeout=datetime.timedelta(days=1),  # when one ends, the caller ends the others
        )


class Processes:
    """Processes that each make a state and then call functions on it; started by the first call."""

    def __init__(
        self,
        world: int,
        setup: Callable[Concatenate[Place, ...], Any],
        *arguments: Any,
        threads: int = 1,
    ):
        """Prepare to start processes.

        Args:
            world: Number of processes.
            setup: Makes a process's state from its place and `arguments`.
            *arguments: Arguments of `setup`.
            threads: Threads of each process.
        """
        self._world, self._threads = world, threads
        self._setup: tuple[Any, ...] = (setup, arguments, {})
        self._running: list[tuple[Any, Connection, Path]] = []
        self._resources = contextlib.ExitStack()

    def ask(
        self, function: Callable[Concatenate[S, P], T], *arguments: P.args, **named: P.kwargs
    ) -> list[T]:
        """Call a function on the state of every process, and return what each returned, in the
        order of ranks.

        Raises:
            WorkFailed: If a process fails or ends. If there are several, all are ended, as some may
                wait for others; the next call starts new ones.
        """
        if not self._running:
            self._start()
        try:
            return self._send((function, arguments, named))
        except BaseException as error:
            goes_on = isinstance(error, WorkFailed) and self._world == 1
            if not goes_on or not self._running[0][0].is_alive():
                self.close(at_once=True)
            raise

    def _start(self) -> None:
        module = self._setup[0].__module__
        if module.startswith("regbench."):
            # No effect once the server runs.
            FORKED.set_forkserver_preload(["torch.distributed", module])
        folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="regbench-"))
        for rank in range(self._world):
            ours, theirs = FORKED.Pipe()
            said = Path(folder, f"rank{rank}.txt")
            place = Place(rank, self._world, f"{folder}/store")
            self._running.append((_start(_serve, theirs, said, self._threads, place), ours, said))
            theirs.close()
        try:
            self._send(self._setup)  # however long a busy machine takes
        except BaseException:
            self.close(at_once=True)
            raise

    def _send(self, message: tuple[Any, ...]) -> list[Any]:
        """Send a message to all; return their answers in the order of ranks."""
        content = cloudpickle.dumps(message)
        rank_of: dict[Any, int] = {}
        for rank, (_, connection, _) in enumerate(self._running):
            rank_of[connection] = rank
            with contextlib.suppress(BrokenPipeError):  # the missing answer tells
                connection.send_bytes(content)
        answers: list[Any] = [None] * self._world
        while rank_of:
            ready: list[Any] = wait(list(rank_of))
            for connection in ready:
                rank = rank_of.pop(connection)
                try:
                    succeeded, answers[rank] = pickle.loads(connection.recv_bytes())
                except (EOFError, ConnectionResetError):
                    succeeded = False
                if not succeeded:
                    raise WorkFailed(self._failure(rank, answers[rank]))
        return answers

    def _failure(self, rank: int, line: str | None) -> str:
        """Describe what went wrong: first of all a process that ended, as the others miss it."""
        if self._world == 1 and line is not None:
            return line
        # The other processes may wait for the one that is gone.
        for process, _, _ in self._running:
            process.terminate()
        for number, (process, _, said) in enumerate(self._running):
            process.join()
            if (code := process.exitcode) != -signal.SIGTERM:
                return f"rank {number} {_ending(code, said.read_bytes())}"
        return f"rank {rank}: {line}"

    def close(self, *, at_once: bool = False) -> None:
        """Let the processes end, or end them at once."""
        for _, connection, _ in self._running:
            connection.close()
        for process, _, _ in self._running:
            process.join(0 if at_once else _END_TIMEOUT_S)
            process.kill()
            process.join()
        self._running = []
        self._resources.close()

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *error: object) -> None:
        """Let the processes end."""
        self.close()


def _serve(connection: Connection, said: Path, threads: int, place: Place) -> None:
    """Make the state, then answer calls, until the process that started this one closes the
    connection.
    """
    import torch
    import torch.distributed as dist

    _say_to(said)
    # For processes that it starts.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    torch.set_num_threads(threads)
    hold_blas(threads)
    state: Any = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            message = connection.recv_bytes()
            try:
                function, arguments, named = pickle.loads(message)
                if state is None:
                    state, answer = function(place, *arguments), None
                else:
                    answer = function(state, *arguments, **named)
                reply = cloudpickle.dumps((True, answer))
            except Exception as error:
                reply = cloudpickle.dumps((False, one_line(error)))
            connection.send_bytes(reply)
    if dist.is_initialized():
        dist.destroy_process_group()


def _ending(code: int, said: bytes) -> str:
    """Describe how a process ended, and what it said last."""
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    lines = said.decode(errors="replace").strip().splitlines()
    return f"{how}: {lines[-1].strip()[:200]}" if lines else how


# --------------------------------------------------------------------------------------------------
# code of others


class CodeFailed(RegbenchError):
    """Code of others failed, ended its process, or took too long."""

    exit_code = 1


def apart(what: str, limit_s: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that runs code of others in a process of its own; return its answer, which is
    plain data.

    The process has to answer with a key that is made for this call. So an exit at any place and
    with any status, a crash, a signal, an endless loop, memory that runs out, what it prints, and
    bytes written to every open file are no answer. What it started ends with it. It hands over
    JSON, which runs nothing here.

    The code has the rights of this user, and the function runs beside it. So malicious code can
    find the key or replace the function, and hand over any answer: the caller judges the values.
    Nor does this prevent changes to files, or processes that leave the session.

    Args:
        what: Name of the code, for messages.
        limit_s: Time after which the process is ended.
        function: The function.
        *arguments: Its arguments.

    Returns:
        What the function returned, as JSON has it.

    Raises:
        RegbenchError: If the function raises one.
        CodeFailed: If it raises anything else, or there is no answer.
    """
    key = secrets.token_hex()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="regbench-")))
        # Opened before, so that what is put in their place later is not read.
        answer = stack.enter_context((folder / "answer").open("w+b"))
        said = stack.enter_context((folder / "said").open("w+b"))
        process = _start(_answer, folder, key, what, cloudpickle.dumps((function, arguments)))
        try:
            process.join(limit_s)
            code = process.exitcode
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join(_END_TIMEOUT_S)
        try:
            signature, how, value = json.loads(answer.read(_MOST_BYTES))
        except (ValueError, TypeError, RecursionError):
            signature = None
        if code is None:
            raise CodeFailed(f"{what} has not ended within {limit_s:g} s")
        if signature != key:
            how = _ending(code, said.read(_MOST_BYTES))
            raise CodeFailed(f"{what}: its process gave no answer, and {how}")
    if how == "refused":
        raise RegbenchError(str(value)[:1000])
    if how != "returned":
        raise CodeFailed(str(value)[:1000])
    return value


def _answer(folder: Path, key: str, what: str, content: bytes) -> None:
    os.setsid()  # what it starts can be ended with it
    with contextlib.suppress(OSError):  # no Linux
        # Where memory runs out, this process is to be ended, and not the one that waits for it.
        Path("/proc/self/oom_score_adj").write_text("1000")
    with (folder / "answer").open("w") as file:
        _say_to(folder / "said")
        try:
            function, arguments = pickle.loads(content)
            answer = json.dumps([key, "returned", function(*arguments)])
        except CodeFailed as error:
            answer = json.dumps([key, "failed", str(error)])
        except RegbenchError as error:
            answer = json.dumps([key, "refused", str(error)])
        except BaseException as error:  # an exit, too
            answer = json.dumps([key, "failed", f"{what}: {one_line(error)}"])
        file.write(answer)
    os._exit(0)  # threads that were left behind are not waited for


def one_line(error: BaseException, file: str = "") -> str:
    """Put an error into one line, with its type unless it is one of ours, and its last place in
    `file`, if any.
    """
    text = " ".join(str(error).split()) or "no message"
    if not isinstance(error, RegbenchError):
        text = f"{type(error).__name__}: {text}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == file:
            return f"{text} ({Path(file).name}, line {frame.lineno})"
    return text
