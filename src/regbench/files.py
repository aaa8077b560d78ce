"""Files that other processes read: written whole or not at all, digests of them, readers that
refuse damaged ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar, cast

import orjson
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json
from typing_extensions import is_typeddict

from regbench.errors import RegbenchError
from regbench.text import A_NAME, brief, is_name

log = logging.getLogger("regbench")

T = TypeVar("T")


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"must be {A_NAME}")
    return text


Name = Annotated[str, AfterValidator(_name)]
"""Name of a file or a folder, as a field of what is read and of settings: see
`regbench.text.is_name`.
"""

DIGITS = 16
"""Number of digits of the SHA-256 in a file's name; 64 bits do not collide by chance in a run."""


def cache_dir() -> Path:
    """Return the user's folder for what is quicker to read than to make; it may not exist yet.

    Beside the package's own files, `pip uninstall` would leave it behind.

    Raises:
        RuntimeError: If the user has no home directory.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "regbench"


_HELD = ".regbench"
"""What the temporary files of `write_atomically` end in: no other program's do, so leftovers
can be recognised.
"""

MOST_LETTERS = 10_000_000
"""Largest length of YAML with its aliases written out: a sweep of 100,000 lines has half of it."""

_DEEPEST = 100
_MOST_DIGITS = 1_000  # reading a number of base 60 takes the square of its digits


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write `path`, whose folder is made if missing, through a temporary file beside it, which is
    synced and renamed.

    A reader sees the old content or the new, never a part. `write` is called with the open
    temporary file. Such files of killed processes are removed from the folder. A stream (see
    `is_stream`) is written to directly.

    Raises:
        RegbenchError: If `path` is a stream that cannot be written to, such as a pipe that nobody
            reads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_stream(path):
        with os.fdopen(_open_stream(path), "wb") as file:
            write(file)
        return
    for left in path.parent.glob(f".*{_HELD}"):
        with contextlib.suppress(OSError), left.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises as long as its writer lives
            left.unlink()
    with _written(path, write, held=True) as temporary:
        temporary.replace(path)


def is_stream(path: Path) -> bool:
    """Return True for what no file may replace: a device, a pipe, a socket, the file that this
    process prints to.
    """
    try:
        found = path.stat()
    except OSError:
        return False
    if stat.S_ISDIR(found.st_mode):
        return False
    return not stat.S_ISREG(found.st_mode) or _printed_to(found) is not None


def regular(path: Path) -> Path:
    """Return `path`; raise OSError if it is a stream, which may never end."""
    if is_stream(path):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path


def _printed_to(found: os.stat_result) -> int | None:
    """Return the number of the standard stream that goes to a file, under whatever name."""
    for number in (1, 2):
        with contextlib.suppress(OSError):  # it is closed
            if os.path.samestat(os.fstat(number), found):
                return number
    return None


def _open_stream(path: Path) -> int:
    number = _printed_to(path.stat())
    if number is not None:
        return os.dup(number)  # a file that is opened anew would be written from its beginning
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        what = f"{path} is no regular file and cannot be written to"
        raise RegbenchError(f"{what} ({error.strerror}); give another file") from error
    # Opening a pipe must not wait for a reader, but writing may wait for a slow one.
    os.set_blocking(handle, True)
    return handle


def hold(path: Path, doing: str = "") -> IO[bytes]:
    """Open a file to write, and hold it until it is closed, or the process ends in any way: one
    process at a time can.

    See `lock`. Whoever holds the file may remove it.
    """
    while True:
        file = path.open("wb")
        lock(file, doing)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # whoever held it has removed it


def lock(file: IO[Any], doing: str = "", kind: int = fcntl.LOCK_EX) -> None:
    """Lock an open file; if another process has to be waited for, say what it is `doing`."""
    # A file system without locks is used without: every file appears whole or not at all.
    with contextlib.suppress(OSError):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if doing:
                log.info("waiting for another process that %s", doing)
            fcntl.flock(file, kind)


def write_there(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically, into a folder that is there."""
    # A folder that was removed is not made again: whoever removed it while a process was at work
    # wants it gone.
    with _written(path, lambda file: file.write(data)) as temporary:
        temporary.replace(path)


def write_new(path: Path, text: str) -> bool:
    """Write `path` atomically, into a folder that is there, unless the file is there already: then
    nothing happens.

    Returns:
        Whether it was written: of several processes that try, only one gets True.
    """
    with _written(path, lambda file: file.write(text.encode())) as temporary:
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            # NFS refuses a link that it has made itself, if its first reply was lost and it was
            # asked again. `samefile` raises for a link to nowhere, which is there and does not
            # exist.
            return path.exists() and path.samefile(temporary)
        return True


def write_digested(path: Path, write: Callable[[IO[bytes]], Any]) -> tuple[Path, str]:
    """Write a file whose name tells its content, atomically, into a folder that is there.

    Args:
        path: Path of the file, without the digest in its name.
        write: Function that writes to an open file, from beginning to end, and may flush it.

    Returns:
        The file, such as `a-0123456789abcdef.pt` for `a.pt` with the first digits of its SHA-256,
        and all digits.
    """
    sha256 = hashlib.sha256()

    # Checkpoints have gigabytes: to read them again for their digest would take as long as to write
    # them.
    def digested(file: IO[bytes]) -> None:
        watched = _Watched(file, sha256.update)
        try:
            write(cast("IO[bytes]", watched))
        except RuntimeError:
            if watched.error is not None:
                raise watched.error from None
            raise

    with _written(path, digested) as temporary:
        named = path.with_name(f"{path.stem}-{sha256.hexdigest()[:DIGITS]}{path.suffix}")
        temporary.replace(named)
    return named, sha256.hexdigest()


class _Watched:
    """A file that shows what is written, and remembers why it could not be: torch's own error
    does not say.
    """

    def __init__(self, file: IO[bytes], show: Callable[[Any], None]) -> None:
        self._file, self._show = file, show
        self.flush = file.flush
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self._show(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise


@contextlib.contextmanager
def _written(
    path: Path, write: Callable[[IO[bytes]], Any], *, held: bool = False
) -> Iterator[Path]:
    """Write a temporary file beside `path` and sync it.

    Remove it at the end if it is still there.
    """
    handle, temporary_name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=_HELD * held
    )
    os.close(handle)
    temporary = Path(temporary_name)
    try:
        with hold(temporary) if held else temporary.open("wb") as file:
            write(file)
            file.flush()
            # Else a crash of the machine could leave the name with no content.
            os.fsync(file.fileno())
            temporary.chmod(0o644)  # mkstemp makes it private, and others are to read it
            yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    write_atomically(path, lambda file: file.write(data))


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    write_bytes(path, text.encode())


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Equal data have equal text, whoever wrote them.
_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def digest(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain data in hexadecimal; the order of keys does not matter."""
    return hashlib.sha256(_compact(data).encode()).hexdigest()


def signed(data: Mapping[str, Any]) -> str:
    """Write plain data as JSON with the digest of its content, by which a reader can tell that
    nobody changed it.
    """
    # The digest is of the data as a reader gets them: tuples have become lists.
    plain = json.loads(json.dumps(data))
    return json.dumps({**plain, "sha256": digest(plain)}, indent=1, sort_keys=True)


def verified(content: bytes) -> dict[str, Any]:
    """Return the data in the content of a file that `signed` made.

    Raises:
        ValueError: If the content was changed since.
    """
    return without_digest(json_object(content))


def json_object(content: bytes) -> dict[str, Any]:
    """Read the JSON object in a file; raise ValueError if it holds something else."""
    try:
        data = parse_json(content)
    except ValueError as error:
        raise ValueError(f"not valid JSON, truncated? ({error})") from error
    if not isinstance(data, dict):
        raise ValueError(f"holds {data!r:.40}, not a JSON object")
    return data


def without_digest(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a signed file; raise ValueError if they were changed since."""
    rest = dict(data)
    if rest.pop("sha256", None) != digest(rest):
        why = "its content is not what its sha256 was taken of; it was changed or damaged"
        raise ValueError(why)
    return rest


def read_json(path: Path, kind: type[T], remedy: str) -> T:
    """Read a JSON file, and refuse it if it does not hold what it should.

    Args:
        path: The file.
        kind: Type that it should hold: a `TypedDict`; a dataclass of plain data, without other
            keys; a class of plain data; lists, mappings and unions of these.
        remedy: Advice about a file that holds something else.

    Raises:
        FileNotFoundError: If there is no such file.
        RegbenchError: If it cannot be read or holds something else.
    """

    def parse(content: bytes) -> T:
        value: T = parse_json(content)
        try:
            found: T = adapter(cast("Any", kind)).validate_json(content)
        except ValidationError as error:
            raise ValueError(reason(error)) from error
        # pydantic drops keys that a TypedDict does not name, and newer writers may have added some.
        return found if dataclasses.is_dataclass(kind) else value

    return read_file(path, parse, remedy)


def read_file(path: Path, parse: Callable[[bytes], T], remedy: str) -> T:
    """Return what `parse` makes of a file's content.

    Refuse the file as `read_json` does if it raises ValueError.
    """
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise RegbenchError(f"{path} cannot be read ({why}); {remedy}") from error


def parse_json(content: bytes) -> Any:
    """Read the plain data of JSON text.

    Raises:
        ValueError: If the text is not JSON, or holds what no writer of ours writes: integers beyond
            64 bits, half a character, endless nesting, a key twice.
    """
    # Unlike orjson it reads NaN, which a diverged run writes, and integers of any size; json takes
    # ten times as long.
    value, plain = _plain(from_json(content))
    # A key that is given twice loses a colon here. Only an escape can make up for it.
    if content.count(b":") != plain.count(b":") or b"\\u003" in content:
        json.loads(content, object_pairs_hook=_once)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON.

    Refuse a key that is given twice, because readers would take different values for it.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key '{brief(key)}' is given twice")
        found[key] = value
    return found


def parse_yaml(content: bytes) -> Any:
    """Read the plain data of YAML text.

    Raises:
        ValueError: If the text is not YAML, holds what JSON could not, is nested without end, or is
            endless once its aliases are written out.
    """
    import yaml  # takes longer than the other imports together, and most readers do without

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if len(content) > MOST_LETTERS:
            raise ValueError(f"it has more than {MOST_LETTERS:,} letters")
        # Before anything is made of the text: the loader in C would overflow the stack of the
        # process.
        _refuse_endless(yaml.parse(content, loader))
        return _plain(yaml.load(content, _once_loader(loader)))[0]
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        if where is None:
            raise ValueError(" ".join(str(error).split())) from error
        raise ValueError(f"look at line {where.line + 1}, column {where.column + 1}") from error
    except OverflowError as error:  # of a time or a number of base 60
        raise ValueError(str(error)) from error


@functools.cache
def _once_loader(loader: Any) -> Any:
    """Make a loader that refuses a key that is given twice, as `_once` does."""

    def construct_mapping(self: Any, node: Any, deep: bool = False) -> Any:
        _once([(str(key.value), None) for key, _ in node.value])
        return loader.construct_mapping(self, node, deep)

    return type("OnceLoader", (loader,), {"construct_mapping": construct_mapping})


def _refuse_endless(events: Iterable[Any]) -> None:
    """Count what YAML holds with its aliases written out, and refuse too much of it."""
    import yaml

    letters = 0
    sizes: dict[str | None, int] = {}
    begun: list[tuple[str | None, int]] = []
    for event in events:
        anchor, before = getattr(event, "anchor", None), letters
        letters += 1
        text = getattr(event, "value", "")
        if len(text) > _MOST_DIGITS and not text.strip("0123456789_:.+-"):
            raise ValueError(f"a number has more than {_MOST_DIGITS:,} digits")
        if isinstance(event, yaml.CollectionStartEvent):
            begun.append((anchor, before))
            sizes.pop(anchor, None)
        elif isinstance(event, yaml.AliasEvent):
            if anchor not in sizes:
                name = brief(anchor or "")
                raise ValueError(f"the alias *{name} stands for nothing that ends before it")
            letters += sizes[anchor]
        else:
            if isinstance(event, yaml.CollectionEndEvent):
                anchor, before = begun.pop()
            letters += len(text)
            sizes[anchor] = letters - before
        if len(begun) > _DEEPEST:
            raise ValueError("nested too deeply")
        if letters > MOST_LETTERS:
            most = f"{MOST_LETTERS:,} letters with its aliases written out"
            raise ValueError(f"it has more than {most}")


def _plain(value: Any) -> tuple[Any, bytes]:
    """Return plain data as it is and as JSON, and refuse what orjson could not write."""
    try:
        return value, orjson.dumps(value)
    except TypeError as error:  # orjson's own error is one
        raise ValueError(str(error)) from error


STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
"""What pydantic reads: no value of another type, no NaN or infinity, no other keys."""


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Make the reader of a kind, which refuses what does not fit.

    A dataclass has no other keys, unless it states a configuration of its own.
    """
    if is_typeddict(kind):
        kind.__pydantic_config__ = {**STRICT, "extra": "ignore"}
    elif not dataclasses.is_dataclass(kind):
        return TypeAdapter(kind, config=STRICT)
    elif not hasattr(kind, "__pydantic_config__"):
        cast("Any", kind).__pydantic_config__ = STRICT
    return TypeAdapter(kind)


def reason(error: ValidationError) -> str:
    """Describe the first of pydantic's refusals of a file's content."""
    first = error.errors(include_url=False)[0]
    where = brief(".".join(map(str, first["loc"])))
    if first["type"] == "missing":
        return f"{where} is missing"
    if first["type"] == "value_error":
        named = f"'{brief(first['input'])}' " if isinstance(first["input"], str) else ""
        return f"{where}: {named}{first['ctx']['error']}"
    for name, words in (("le", "at most"), ("ge", "at least")):
        bound = first.get("ctx", {}).get(name)
        if bound is not None:  # pydantic would write all digits of 1e100
            return f"{where} is {first['input']!r:.40}: input should be {words} {bound:g}"
    words = first["msg"][0].lower() + first["msg"][1:]
    return f"{where} is {first['input']!r:.40}: {words}".lstrip()
