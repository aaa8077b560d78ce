"""Several processes with the environment that torchrun gives them."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import torch

from regbench.processes import FORKED
from tests.waiting import PATIENCE_S

FORKED.set_forkserver_preload(["tests.ranks", "regbench.benchmark.run"])


def _free_port() -> int:
    """Find a port where ranks can meet; some tests meet at the ports after it too."""
    while True:
        # From 32768 on Linux gives ports to connections, as the ranks make among themselves: one of
        # them could have the next port.
        port = 15000 + secrets.randbelow(15000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def as_one_process(patch: pytest.MonkeyPatch) -> None:
    """Set the environment that torchrun gives a single process."""
    alone = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    for name, value in alone.items():
        patch.setenv(name, str(value))


def launch(size: int, code: str, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Run code in `size` processes with the environment that torchrun gives them."""
    environment = {**os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(size):
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            said = Path(folder) / str(rank)
            process = FORKED.Process(target=_run, args=(code, arguments, own, said))
            process.start()
            processes.append((process, said))
        try:
            ended = []
            for process, said in processes:
                process.join(PATIENCE_S)
                assert process.exitcode is not None, f"{said.name} has not ended"
                told = [said.with_suffix(stream).read_text() for stream in (".out", ".err")]
                ended.append(subprocess.CompletedProcess(code, process.exitcode, *told))
            return ended
        finally:
            for process, _ in processes:
                process.kill()


def _run(code: str, arguments: tuple[str, ...], environment: dict[str, str], said: Path) -> None:
    """Run code in this process, forked from one that has imported torch."""
    os.environ.clear()
    os.environ.update(environment)
    for stream, end in ((sys.stdout, ".out"), (sys.stderr, ".err")):
        with said.with_suffix(end).open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["-c", *arguments]
    torch.set_num_threads(1)
    warnings.filterwarnings("error", category=FutureWarning, module="regbench")
    exec(compile(code, "<rank>", "exec"), {"__name__": "__main__"})
