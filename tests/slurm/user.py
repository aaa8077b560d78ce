"""Somebody who works with a Slurm cluster from the command line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from regbench.slurm import manage
from tests.slurm.testbed import Testbed
from tests.sweep_file import write_sweep
from tests.waiting import PATIENCE_S

OPTIONS = ("cluster=slurm", "cluster.cpus=1", "cluster.gpus=0")


class User:
    """Somebody at the command line, with a sweep file."""

    def __init__(self, slurm: Testbed, program: str, tiny: list[str], folder: Path) -> None:
        self.program, self.tiny, self.folder = program, tiny, folder
        self.environment = {**os.environ, **slurm.env(), "REGBENCH_RUNS_DIR": str(folder / "runs")}
        self.sweep = folder / "runs" / "own"

    def write(self, *cells: str) -> None:
        """The sweep's file."""
        write_sweep(self.folder / "own.yaml", self.tiny, cells)

    def call(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command, with more environment variables."""
        how: Any = {"capture_output": True, "text": True, "timeout": PATIENCE_S, "check": False}
        how |= {"cwd": self.folder, "env": {**self.environment, **more}}
        return subprocess.run([self.program, *words], **how)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """A command that has begun."""
        where: Any = {"cwd": self.folder, "env": self.environment}
        return subprocess.Popen([self.program, *words], text=True, **where)

    def run(self, *words: str) -> str:
        """The output of a command that succeeds."""
        done = self.call(*words)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    def states(self) -> set[str]:
        """Those that cells are in."""
        return {status.state for status in manage.statuses(self.sweep)}
