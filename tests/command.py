"""The command line, in this process, and programs in others."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result

from regbench.cli import main


def run(*words: object) -> Result:
    """Give a command, whose words may be paths and numbers."""
    return CliRunner().invoke(main, list(map(str, words)), prog_name="regbench")


def done(*words: object) -> Result:
    """Give a command, which succeeds."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result


def refusal(*words: object, code: int = 2) -> str:
    """The one line in which the command refuses."""
    result = run(*words)
    assert result.exit_code == code, result.output
    (line,) = result.stderr.splitlines()
    return line


def python(program: str, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python of its own; keywords are `subprocess.run`'s."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, **how)
