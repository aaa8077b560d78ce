"""A reader of a file sees the old content or the new, whatever happens to the writer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NotRequired

import pytest
from typing_extensions import TypedDict

from regbench.benchmark.settings.identity import cell_id
from regbench.files import (
    Name,
    hold,
    parse_json,
    parse_yaml,
    read_json,
    signed,
    verified,
    write_atomically,
    write_digested,
    write_new,
    write_text,
    write_there,
)
from tests.refusals import is_refused
from tests.waiting import PATIENCE_S, wait_for


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.json"
    write_text(path, "first λ")
    write_text(path, "second")
    assert path.read_text() == "second"
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "x")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_error_in_the_middle_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, error: BaseException
) -> None:
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
    kept = tmp_path / ".file.json.part", tmp_path / ".other.cfg.bak", tmp_path / ".other.0.regbench"
    for other in kept[:2]:  # of other programs
        other.touch()
    with hold(kept[2]):  # of a process that lives
        write_text(path, "new")
    assert set(tmp_path.iterdir()) == {path, *kept}


def test_a_file_that_its_holder_removes_is_held_by_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, held = tmp_path / "lock", threading.Event()

    def second() -> None:
        with hold(path, "writes x"):
            assert path.exists()
            held.set()

    with caplog.at_level("INFO", "regbench"), ThreadPoolExecutor(1) as pool:
        with hold(path):
            other = pool.submit(second)
            wait_for(lambda: "waiting for another process that writes x" in caplog.text)
            assert not held.is_set()
            path.unlink()
        other.result(PATIENCE_S)


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "device", "socket", "unread pipe"])
def test_what_is_no_regular_file_is_written_to_or_refused_and_stays(
    tmp_path: Path, kind: str
) -> None:
    made, path = tmp_path / "made", tmp_path / "made"
    if kind == "device":
        made.symlink_to("/dev/null")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(made))
    else:
        os.mkfifo(made)
    if kind == "link to a pipe":
        path = tmp_path / "link"
        path.symlink_to(made)
    before = {each.name: each.lstat().st_ino for each in tmp_path.iterdir()}
    if kind in ("socket", "unread pipe"):
        with is_refused("is no regular file and cannot be written to"):
            write_text(path, "new")
    else:
        with os.fdopen(os.open(made, os.O_RDONLY | os.O_NONBLOCK)) as reader:
            write_text(path, "new")
            assert reader.read() == ("" if kind == "device" else "new")
    assert {each.name: each.lstat().st_ino for each in tmp_path.iterdir()} == before


def test_what_this_process_prints_to_is_written_to_where_it_is(tmp_path: Path) -> None:
    path, link = tmp_path / "printed", tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")  # as /dev/stdout
    program = "from pathlib import Path; from regbench.files import write_text;"
    program += "print('a', flush=True);"
    for name in (str(link), str(path)):
        program += f"write_text(Path({name!r}), 'b\\n'); print('c', flush=True);"
    with path.open("w") as file:
        subprocess.run([sys.executable, "-c", program], check=True, stdout=file)
    assert path.read_text().split() == ["a", "b", "c", "b", "c"]
    assert link.is_symlink()


def test_what_has_a_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file gets its name, in each of the ways, only when its content was synced."""
    synced: list[bytes] = []
    fsync = os.fsync

    def sync(handle: int) -> None:
        fsync(handle)
        synced.append(Path(f"/proc/self/fd/{handle}").read_bytes())

    def naming(operation: Callable[..., None]) -> Callable[..., None]:
        def named(source: Path, target: Path) -> None:
            assert Path(source).read_bytes() == synced[-1]
            operation(source, target)

        return named

    monkeypatch.setattr(os, "fsync", sync)
    for name in ("replace", "link"):
        monkeypatch.setattr(os, name, naming(getattr(os, name)))
    write_text(tmp_path / "a", "one")
    write_there(tmp_path / "b", b"two")
    assert write_new(tmp_path / "c", "three")
    path, sha256 = write_digested(
        tmp_path / "d.pt", lambda file: [file.write(part) for part in (b"fo", b"ur")]
    )
    assert synced == [b"one", b"two", b"three", b"four"]
    assert sha256 == hashlib.sha256(b"four").hexdigest()
    assert path == tmp_path / f"d-{sha256[:16]}.pt"
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == dict(
        zip(("a", "b", "c", path.name), synced, strict=True)
    )


def test_a_file_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    assert write_new(tmp_path / "a", "one")
    assert not write_new(tmp_path / "a", "two")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "one")]


@pytest.mark.usefixtures("lost_replies")
def test_a_link_whose_reply_was_lost_was_made(tmp_path: Path) -> None:
    assert write_new(tmp_path / "a", "one")
    assert not write_new(tmp_path / "a", "one")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "one")]


@pytest.mark.parametrize("text", [b'{"a": [%d]}' % 10**30, b"-%d" % 2**64])
def test_an_integer_that_not_every_reader_takes_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="64-bit"):
        parse_json(text)
    assert parse_json(b"[1e30, 18446744073709551615]") == [1e30, 2**64 - 1]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1, "b": 2, "a": 1}',
        b'[{"b": "\\u003a", "a": 1, "\\u0061": 2}]',
        b'{"a":{"a":0,"a":0}}',
    ],
)
def test_a_key_that_is_given_twice_is_refused(text: bytes) -> None:
    """Readers differ in which of the two values they take."""
    with pytest.raises(ValueError, match="the key 'a' is given twice"):
        parse_json(text)
    with pytest.raises(ValueError, match="the key 'a' is given twice"):
        parse_yaml(b"b: [{a: 1, c: 2, a: 1}]")
    seen = parse_json(b'[{"a": "\\u003a"}, {"a": ":::"}, "a:a"]')
    assert seen == [{"a": ":"}, {"a": ":::"}, "a:a"]


LAUGHS = "a0: &a0 [x, x]\n" + "\n".join(f"a{i}: &a{i} [{8 * f'*a{i - 1},'}]" for i in range(1, 40))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS, "10,000,000 letters with its aliases"),
        (
            LAUGHS.replace("[x, x]", "{k: v}").replace("[*", "{<<: [*").replace(",]", "]}"),
            "10,000,000 letters with its",
        ),
        (f"a: &a {9_000 * 'x'}\nb: [{2_000 * '*a,'}]", "10,000,000 letters with its aliases"),
        (10_000_001 * " ", "10,000,000 letters"),
        ("a: &a [*a]", r"the alias \*a stands for nothing that ends before it"),
        ("a: &a 1\nb: &a {c: *a}", r"the alias \*a stands for nothing that ends before it"),
        (100_000 * "[", "nested too deeply"),
        (100_000 * "- " + "x", "nested too deeply"),
        (50_000 * "{a: ", "nested too deeply"),
        (f"a: 1{1_000_000 * ':1'}", "a number has more than 1,000 digits"),
        (f"a: 1{300 * ':1'}.5", "too large"),
    ],
    ids=lambda text: text[:20],
)
def test_yaml_that_would_be_endless_is_refused_before_it_is_made(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_yaml(text.encode())


def test_yaml_may_repeat_itself() -> None:
    text = (
        f"a: &a [x, {{y: &b 1}}]\nb: [*a, *a, *b]\nc: {{<<: {{d: {999 * '9'}}}, d: 2}}\ne: "
        f"{'[' * 90}{']' * 90}"
    )
    found = parse_yaml(text.encode())
    parse_yaml(f"a: {1_000_000 * 'x'}\nb: &b [x]\nc: [{100 * '*b,'}]".encode())
    assert found["b"] == [["x", {"y": 1}], ["x", {"y": 1}], 1] and found["c"] == {"d": 2}


def test_a_folder_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "a"
    with pytest.raises(FileNotFoundError):
        write_there(path, b"one")
    with pytest.raises(FileNotFoundError):
        write_new(path, "one")
    with pytest.raises(FileNotFoundError):
        write_digested(path, lambda file: file.write(b"one"))
    assert not path.parent.exists()


@pytest.mark.parametrize(
    "change", ['{"a": 2}', '{"a": 1}', "[1]", '{"a": ', "", '{"a": 2, "sha256": "00"}']
)
def test_what_was_signed_is_told_from_what_was_changed(change: str) -> None:
    assert verified(signed({"a": 1, "b": [2]}).encode()) == {"a": 1, "b": [2]}
    with pytest.raises(ValueError, match=r"sha256 was taken of|not a JSON object|not valid JSON"):
        verified(change.encode())


PARTS = {
    "name": "café \x7f",
    "rates": [1e-5, 1e16, 0.1, -0.0],
    "none": None,
    "inner": {"b": True, "a": float("nan")},
}


@pytest.mark.parametrize("change", [("NaN", "null"), ("1e-05", "1e-06"), ("true", "1")])
def test_parts_of_cells_are_told_apart(change: tuple[str, str]) -> None:
    cell = {"method": PARTS, "optimizer": {"x": PARTS}, "seed": 1, "epochs": 3}
    text = json.dumps(cell, sort_keys=True, separators=(",", ":"))
    assert cell_id(cell) == hashlib.sha256(text.encode()).hexdigest()[:12]
    other = json.loads(text.replace(*change))
    assert cell_id(other) == hashlib.sha256(text.replace(*change).encode()).hexdigest()[:12]


class Plan(TypedDict):
    """What `read_json` reads here."""

    cells: list[Name]
    share: NotRequired[float]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"share": 1}', r"cells is missing"),
        ('{"cells": ["../a"]}', r"cells\.0: '\.\./a' must be a name of 1 to 100 letters"),
        ('{"cells": [], "share": "1"}', r"share is '1': input should be a valid number"),
        ('{"cells": [], "share": true}', r"share is True: input should be a valid number"),
        ('{"cells": [], "share": NaN}', r"share is nan: input should be a finite number"),
        ('["a"]', r"is \['a'\]: input should be an object"),
    ],
)
def test_json_that_holds_something_else_is_refused(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"cells": ["a"], "share": 1, "more": 0}')
    assert read_json(path, Plan, "mend it") == {"cells": ["a"], "share": 1, "more": 0}
    path.write_text(content)
    with is_refused(rf"plan\.json cannot be read \({why}.*; mend it"):
        read_json(path, Plan, "mend it")
