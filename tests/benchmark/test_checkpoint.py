"""Checkpoints: whole or not at all, and the one before when the last is damaged."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any

import pytest
import torch

from regbench.benchmark.rundir.checkpoint import (
    Damaged,
    load_checkpoint,
    read_saved,
    save_checkpoint,
)
from regbench.benchmark.rundir.directory import checkpoint_files
from regbench.benchmark.rundir.record_parts import Saved
from tests.refusals import is_refused


def save(directory: Path, step: int, attempt: int = 1) -> Saved:
    state = {"weights": torch.full((1000,), float(step)), "step": step}
    return save_checkpoint(directory, attempt, step, state)


def names(directory: Path) -> list[str]:
    """Of its checkpoints, without the digests."""
    return [path.name.rpartition("-")[0] for path in checkpoint_files(directory)]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def step_of(directory: Path) -> int | None:
    loaded = load_checkpoint(directory)
    return None if loaded is None else int(loaded[0]["step"])


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    for step in (3, 7, 12):
        saved = save(tmp_path, step)
        loaded = load_checkpoint(tmp_path)
        assert loaded is not None
        state, found = loaded
        assert found == saved == Saved(saved.file, sha256(tmp_path / saved.file), step)
        assert state["step"] == step
        assert torch.equal(state["weights"], torch.full((1000,), float(step)))
    assert names(tmp_path) == ["checkpoint-0001-000000012", "checkpoint-0001-000000007"]


def test_a_later_attempt_wins_whatever_the_step(tmp_path: Path) -> None:
    """A process that has lost the run may have come farther before it notices.

    Its successor's counts.
    """
    save(tmp_path, 10, attempt=1)
    save(tmp_path, 12, attempt=2)
    save(tmp_path, 30, attempt=1)
    assert step_of(tmp_path) == 12


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    """One bit, within the weights."""
    where = data.index(torch.full((4,), 7.0).numpy().tobytes())
    return data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]


def empty(data: bytes) -> bytes:
    return b""


def zeros(data: bytes) -> bytes:
    """What some file systems leave of a file that was not yet on disk at a power failure."""
    return bytes(len(data))


@pytest.mark.parametrize("damage", [truncate, flip, empty, zeros])
def test_a_damaged_one_falls_back_to_the_one_before(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 3)
    save(tmp_path, 7)
    path = checkpoint_files(tmp_path)[0]
    path.write_bytes(damage(path.read_bytes()))
    assert step_of(tmp_path) == 3
    assert f"{path} is damaged" in caplog.text
    assert "going back to the one before it" in caplog.text
    assert path.with_name(f"{path.name}.damaged").exists()
    save(tmp_path, 7)  # the resumed run gets there again
    assert step_of(tmp_path) == 7


def test_damage_anywhere_is_recognised(tmp_path: Path) -> None:
    """One bit of each byte, headers and lists of contents included, and every way to cut the
    file short.
    """
    save_checkpoint(tmp_path, 1, 3, {"weights": torch.ones(2), "step": 3})
    (path,) = checkpoint_files(tmp_path)
    content = path.read_bytes()
    aside = path.with_name(f"{path.name}.damaged")

    def is_recognised(damaged: bytes) -> bool:
        path.write_bytes(damaged)
        found = load_checkpoint(tmp_path)
        aside.unlink(missing_ok=True)
        return found is None

    for i in range(len(content)):
        assert is_recognised(content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :])
    assert all(is_recognised(content[:length]) for length in range(0, len(content), 37))
    path.write_bytes(content)
    assert step_of(tmp_path) == 3


def test_another_file_by_the_name_that_a_record_gives_counts_as_damaged(tmp_path: Path) -> None:
    """The name has the first digits of the SHA-256 only, the record has all of them."""
    saved = save(tmp_path, 3)
    assert read_saved(tmp_path, saved)["step"] == 3
    with pytest.raises(Damaged, match="not what its SHA-256 was taken of"):
        read_saved(tmp_path, replace(saved, sha256=saved.sha256[:-1] + "x"))


def test_what_cannot_be_read_falls_back_to_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is set aside: a disk or a network may come back."""
    files = [tmp_path / save(tmp_path, step).file for step in (3, 7)]
    read, bad = hashlib.file_digest, files[1:]

    def failing(file: BufferedReader, name: str) -> Any:
        if Path(file.name) in bad:
            raise OSError(5, "Input/output error")
        return read(file, name)

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", failing)
        assert step_of(tmp_path) == 3
        assert f"{files[1]}: it cannot be read: Input/output error; going back" in caplog.text
        bad = files
        with is_refused("cannot be read: Input/output error; mend that"):
            load_checkpoint(tmp_path)
    assert step_of(tmp_path) == 7


def test_a_process_that_goes_on_removes_nothing_of_its_successor(tmp_path: Path) -> None:
    for step in (3, 6, 9):
        save(tmp_path, step, attempt=1)
    for step in (9, 12):
        save(tmp_path, step, attempt=2)
    assert names(tmp_path) == ["checkpoint-0002-000000012", "checkpoint-0002-000000009"]
    for step in (12, 15, 18):
        save(tmp_path, step, attempt=1)
    assert names(tmp_path)[:2] == ["checkpoint-0002-000000012", "checkpoint-0002-000000009"]
    assert names(tmp_path)[2:] == ["checkpoint-0001-000000018", "checkpoint-0001-000000015"]


def test_one_that_is_gone_when_it_is_read_is_passed_over(tmp_path: Path) -> None:
    """Whoever writes a newer one has removed it since the look at the folder."""
    save(tmp_path, 3)
    (tmp_path / f"checkpoint-0001-000000007-{7:016x}.pt").symlink_to("nowhere")
    assert step_of(tmp_path) == 3


def test_with_both_damaged_there_is_none(tmp_path: Path) -> None:
    for step in (3, 7):
        save(tmp_path, step)
    for path in checkpoint_files(tmp_path):
        path.write_bytes(b"")
    assert load_checkpoint(tmp_path) is None


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    save(tmp_path, 3)
    with pytest.raises(Exception, match="cannot"):
        save_checkpoint(tmp_path, 1, 7, {"not a tensor": Unpicklable()})
    assert step_of(tmp_path) == 3
    assert names(tmp_path) == ["checkpoint-0001-000000003"]
    assert len(list(tmp_path.iterdir())) == 1


class Unpicklable:
    def __reduce__(self) -> str:
        raise TypeError("cannot be pickled")


def test_a_full_disk_is_called_so(tmp_path: Path) -> None:
    """By a limit on the size of files, which the kernel enforces on any disk."""
    save(tmp_path, 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(tmp_path, 7)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert step_of(tmp_path) == 3
    assert len(list(tmp_path.iterdir())) == 1
