"""Run the jobs of a local sweep, one after another, each in a process of its own.

A job's process is forked from this one, which has imported what jobs need, so that no job spends seconds on it. Nothing
here starts a thread that a job uses or initialises CUDA, which a fork would break.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Self


class Worker:
    """The sweep's side of a worker's process, and of the job that it runs.

    Attributes:
        busy: Whether its job has not ended, as far as `wait` has heard.
    """

    def __init__(self) -> None:
        """Start a worker, which is ready for its first job a few seconds later."""
        self._start()
        self._job: int | None = None
        self.busy = False

    def _start(self) -> None:
        program = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        """Let it go at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the worker end, after the job that it runs."""
        self._orders.close()
        self._answers.close()
        if not self.busy:
            self._process.wait()

    def begin(self, folder: Path, job: Callable[..., None], *arguments: Any) -> None:
        """Call a function in a process of its own.

        Args:
            folder: Where its output goes, to the file `<process id>_log.out`.
            job: The function.
            arguments: Its arguments.

        Raises:
            OSError: If there can be no such folder.
        """
        folder.mkdir(parents=True, exist_ok=True)
        message = pickle.dumps((folder, job, arguments))
        try:
            self._orders.write(message)
        except BrokenPipeError:  # somebody has killed it
            self.__exit__()
            self._start()
            self._orders.write(message)
        self._job, self.busy = None, True

    def end_job(self) -> None:
        """Ask the job to write its checkpoint and end."""
        if self.busy and self._job is None:
            self._listen()
        if self.busy and self._job is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._job, signal.SIGTERM)

    @staticmethod
    def wait(workers: Collection[Worker], timeout_s: float) -> None:
        """Wait for news of workers that are busy, not longer than `timeout_s`."""
        of: dict[Any, Worker] = {worker._answers: worker for worker in workers if worker.busy}
        for stream in select.select(list(of), [], [], timeout_s)[0]:
            of[stream]._listen()

    def _listen(self) -> None:
        """Read a line: the job's process id; at its end an empty one, or nothing if the worker was killed before."""
        line = self._answers.readline().strip()
        if line:
            self._job = int(line)
        else:
            self.busy = False


def _serve() -> None:
    # A job keeps the answers' pipe open, so that the sweep hears of an end when both have ended, though the worker is
    # killed before its job. What an import prints is no answer.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # A terminal sends Ctrl-C to all processes: the sweep answers it, and ends the jobs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The warning is about OpenBLAS's threads. OpenBLAS ends them before a fork and starts them again by itself.
    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
    importlib.import_module("regbench.benchmark.run")
    importlib.import_module("regbench.sweeps.local")
    for module in ("torchvision.models", "regbench.datasets.loading.ffcv_crops"):
        with contextlib.suppress(ImportError, OSError, RuntimeError):  # the job will say it, if it needs this one
            importlib.import_module(module)
    while True:
        try:
            folder, job, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if not (pid := os.fork()):
            log = os.open(folder / f"{os.getpid()}_log.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(log, stream.fileno())
            os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
            job(*arguments)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(0)  # Python would take a second to take down what was imported
        _tell(answers, str(pid))
        os.waitpid(pid, 0)
        _tell(answers, "")


def _tell(answers: int, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the sweep was killed: the job goes on, and then there is no other
        os.write(answers, f"{line}\n".encode())


if __name__ == "__main__":
    _serve()
