"""Several processes started as torchrun starts them."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import PATIENCE_S


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
    for name, value in {
        "RANK": 0,
        "WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _free_port(),
    }.items():
        patch.setenv(name, str(value))


def launch(size: int, code: str, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Run code in `size` processes with the environment that torchrun gives them."""
    port = _free_port()
    processes = []
    for rank in range(size):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        environment = {**os.environ, **{name: str(value) for name, value in ranks.items()}}
        environment |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-W", "error::FutureWarning:regbench", "-c", code, *arguments]
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        with ThreadPoolExecutor(size) as pool:  # what all of them say is read all the time
            said = list(
                pool.map(lambda process: process.communicate(timeout=PATIENCE_S), processes)
            )
        ended = zip(processes, said, strict=True)
        return [
            subprocess.CompletedProcess(process.args, process.returncode, *text)
            for process, text in ended
        ]
    finally:
        for process in processes:
            process.kill()
