"""The lock of a run directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from regbench.benchmark.directory import is_running, only_writer

HOLDER = """
import os, sys, time
from pathlib import Path
from regbench.benchmark.directory import only_writer
with only_writer(Path(sys.argv[1])):
    if (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60)
"""


def test_the_lock_is_held_inside_only(tmp_path: Path) -> None:
    assert not is_running(tmp_path)
    with only_writer(tmp_path):
        assert is_running(tmp_path)
    assert not is_running(tmp_path)
    with only_writer(tmp_path):
        assert is_running(tmp_path)


def test_a_killed_process_frees_the_lock_though_its_children_live_on(tmp_path: Path) -> None:
    """As the processes of a loader do for seconds, which inherit every open file."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            time.sleep(0.2)  # the child is past its fork
            assert is_running(tmp_path)
            process.kill()
            process.wait()
            assert Path(f"/proc/{child}").exists()
            assert not is_running(tmp_path)
        finally:
            os.kill(child, signal.SIGKILL)
