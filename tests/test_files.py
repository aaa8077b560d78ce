"""A reader of a file sees the old content or the new, whatever happens to the writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from regbench.files import remove_leftovers, write_atomically, write_text


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.json"
    write_text(path, "first λ")
    write_text(path, "second")
    assert path.read_text() == "second"
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_a_reader_of_the_old_content_is_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with path.open() as reader:
        write_text(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "x")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_error_in_the_middle_leaves_the_old_content_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    write_text(path, "old")

    def write(file: IO[bytes]) -> None:
        file.write(b"ne")
        file.flush()
        assert path.read_text() == "old"
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_kill_in_the_middle_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_text(path, "old")
    program = f"""
import os, signal
from pathlib import Path
from regbench.files import write_atomically
def write(file):
    file.write(b"ne")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
write_atomically(Path({str(path)!r}), write)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    remove_leftovers(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
