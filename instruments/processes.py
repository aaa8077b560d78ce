"""Processes of their own that work for this one: started together, asked together, ended together.

They import regbench and nothing of the caller's script, so a script needs no guard. One that is killed, for want of
memory say, costs one answer. What they say on their standard error is kept for the message of their end.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import cloudpickle
import torch
import torch.distributed as dist

from regbench.errors import RegbenchError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_END_TIMEOUT_S = 10.0


class WorkFailed(Exception):
    """A process could not do its work, or ended; the message is one line."""


@dataclass(frozen=True)
class Place:
    """Which of the processes this is.

    Attributes:
        rank: Its number.
        world: How many there are.
        store: File by which they find each other.
    """

    rank: int
    world: int
    store: str

    def join(self, backend: str) -> None:
        """Make a process group of all of them; each waits for the others however slow the machine is."""
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name need not resolve
        patience = datetime.timedelta(days=1)  # when a process ends, the caller ends the others
        dist.init_process_group(
            backend, init_method=f"file://{self.store}", rank=self.rank, world_size=self.world, timeout=patience
        )


class Processes:
    """Processes that each make a state and then call functions on it; started by the first call."""

    def __init__(self, world: int, setup: Callable[Concatenate[Place, ...], Any], *arguments: Any, threads: int = 1):
        """Prepare to start processes.

        Args:
            world: How many.
            setup: Makes a process's state from its place and `arguments`.
            *arguments: For `setup`.
            threads: Of each process.
        """
        self._world, self._threads = world, threads
        self._setup, self._arguments = setup, arguments
        self._running: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, function: Callable[Concatenate[S, P], T], *arguments: P.args, **named: P.kwargs) -> list[T]:
        """Let every process call a function on its state.

        Args:
            function: Called with the state and the arguments.
            *arguments: For the function.
            **named: For the function.

        Returns:
            What each returned, in the order of ranks.

        Raises:
            WorkFailed: If one fails or ends. Several are all ended, as some may wait for others; the next call starts
                new ones.
        """
        if not self._running:
            self._start()
        try:
            return self._tell((function, arguments, named))
        except WorkFailed:
            if self._world > 1 or self._running[0][0].poll() is not None:
                self._end(at_once=True)
            raise
        except BaseException:
            self._end(at_once=True)
            raise

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="regbench-")
        variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self._threads))
        store = str(Path(self._folder.name) / "store")
        for rank in range(self._world):
            ours, theirs = Pipe()
            call = f"_work({theirs.fileno()}, {self._threads}, Place({rank}, {self._world}, {store!r}))"
            program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import Place, _work; {call}"
            with self._said(rank).open("wb") as said:
                process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **variables},
                )
            theirs.close()
            self._running.append((process, ours))
        try:
            self._tell((self._setup, self._arguments, {}))  # however long a busy machine takes
        except BaseException:
            self._end(at_once=True)
            raise

    def _said(self, rank: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"rank{rank}.txt"

    def _tell(self, message: tuple[Any, ...]) -> list[Any]:
        """Send a message to all; return their answers in the order of ranks."""
        content = cloudpickle.dumps(message)
        for _, connection in self._running:
            with contextlib.suppress(BrokenPipeError):  # the missing answer tells
                connection.send_bytes(content)
        missing = {connection: rank for rank, (_, connection) in enumerate(self._running)}
        answers: dict[int, Any] = {}
        while missing:
            ready = wait(list(missing))
            for connection in [each for each in missing if each in ready]:
                rank = missing.pop(connection)
                try:
                    succeeded, answer = pickle.loads(connection.recv_bytes())
                except EOFError:
                    succeeded, answer = False, None
                if not succeeded:
                    raise WorkFailed(self._failure(rank, answer))
                answers[rank] = answer
        return [answers[rank] for rank in range(self._world)]

    def _failure(self, rank: int, line: str | None) -> str:
        """Say what went wrong: if a process ended, that, because the others fail only when they miss it."""
        if self._world == 1 and line is not None:
            return line
        for process, _ in self._running:
            process.terminate()
        for number, (process, _) in enumerate(self._running):
            if (code := process.wait()) != -signal.SIGTERM:
                said = self._said(number).read_text(errors="replace").strip().splitlines()
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                return f"rank {number} {how}" + (f": {said[-1].strip()}" if said else "")
        return f"rank {rank}: {line}"

    def close(self) -> None:
        """Let the processes end."""
        self._end(at_once=False)

    def _end(self, *, at_once: bool) -> None:
        for _, connection in self._running:
            connection.close()
        for process, _ in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0 if at_once else _END_TIMEOUT_S)
            process.kill()
            process.wait()
        self._running = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Processes:
        """Start nothing yet."""
        return self

    def __exit__(self, *error: object) -> None:
        """Let the processes end."""
        self.close()


def _work(descriptor: int, threads: int, place: Place) -> None:
    """Make the state, then answer calls, until the process that started this one closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends this process
    torch.set_num_threads(threads)
    connection = Connection(descriptor)
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


def one_line(error: BaseException) -> str:
    """Put an error into one line, with its type unless it is one of ours."""
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, RegbenchError) else f"{type(error).__name__}: {text}"
