"""Settings: frozen dataclasses in which the name, type, bounds, default and meaning of each setting
stand once.

Type and bounds are the field's annotation; the meaning is its line under "Attributes:" in the
class's docstring. Every refusal names the setting as it is written in an override.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import marshal
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NoReturn,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated
from pydantic_core import ArgsKwargs

from regbench.errors import RegbenchError
from regbench.files import MOST_LETTERS, STRICT, adapter, parse_yaml
from regbench.text import brief
from regbench.wording import builtin, hints, plug_in_of, shown, type_words, unknown

T = TypeVar("T")

# Version of `marshal` in which equal values are equal bytes.
_NO_REFERENCES = 2
_INT64 = 2**63
"""Numbers from here on fit neither torch's generators and sizes nor the columns of a report."""

AtLeastZero = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
AtLeastTwo = Annotated[int, Field(ge=2)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,)
)
def settings(cls: type[T]) -> type[T]:
    """Make a class a frozen keyword-only dataclass that refuses what its fields' annotations do not
    allow.

    The class itself refuses settings that do not fit together, in `__post_init__`.
    """
    _, _, meanings = (cls.__doc__ or "").partition("Attributes:")
    for name in re.findall(r"^\s+(\w+): ", meanings, re.MULTILINE):
        value = None if name in cls.__annotations__ else vars(cls).get(name)
        if value is not None and not hasattr(value, "__get__"):  # as properties and methods have
            raise RegbenchError(f"{cls.__name__}.{name} needs a type, as in {name}: float = 1.0")
    made = validated(cls, frozen=True, kw_only=True, config=STRICT)
    # pydantic's refusals name fields and types of Python; a user needs the setting as an override
    # has it.
    build = made.__init__

    @functools.wraps(build)
    def init(self: Any, *args: Any, **values: Any) -> None:
        # Python's lists are as good as the tuples that settings hold, NumPy's numbers as its own.
        values = {name: _as_tuples(value) for name, value in values.items()}
        try:
            build(self, *args, **values)
        except ValidationError as error:
            _refuse(made, values, error, "")

    made.__init__ = init  # type: ignore[method-assign]
    return cast("type[T]", made)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the settings in a YAML file."""
    try:
        with path.open("rb") as file:
            data = parse_yaml(file.read(MOST_LETTERS + 1))
    except OSError as error:
        raise RegbenchError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RegbenchError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise RegbenchError(
            f"{path} holds no settings: it must be YAML with lines of the form name: value"
        )
    return data


def from_plain(cls: type[T], data: object, prefix: str = "") -> T:
    """Make an instance of a dataclass of settings from nested plain data.

    Args:
        cls: A class made by `settings`, or any frozen dataclass of plain fields.
        data: Names and values; what is left out has its default.
        prefix: Text before the names in overrides, such as "optimizer.".

    Raises:
        RegbenchError: If a setting is unknown, missing, of the wrong type or out of bounds, or
            refused by the class.
    """
    if not isinstance(data, Mapping):
        raise RegbenchError(
            f"{prefix.rstrip('. :') or 'a cell'} must be a group of settings, not {shown(data)}"
        )
    values = {str(name): setting(cls, str(name), value, prefix) for name, value in data.items()}
    try:
        # As pydantic's own `__init__` does it, which plain dataclasses lack.
        made: T = adapter(cast("Any", cls)).validator.validate_python(
            ArgsKwargs((), values), self_instance=object.__new__(cls)
        )
    except ValidationError as error:
        _refuse(cls, values, error, prefix)
    return made


def setting(cls: Any, name: str, data: Any, prefix: str = "") -> Any:
    """Make one setting of a class from its plain data, before the class is made from all of them.

    A plug-in or a group is made and checked. Any other value is read as pydantic reads it from
    JSON; what cannot be read stays, and the class refuses it.
    """
    if type(data) is not dict or not _is_plain(data):
        return _made(cls, name, data, prefix)
    return group_of_settings(cls, name, marshal.dumps(data, _NO_REFERENCES), prefix)


def _is_plain(data: Any) -> bool:
    """Return True if data are those of JSON to the last value, which marshal keeps as they are."""
    kind: Any = type(data)
    if kind is dict:
        data = [*data, *data.values()]
    elif kind is not list and kind is not tuple:
        return kind in _SCALARS
    # Most groups hold scalars only, and this is faster than one by one.
    return _SCALARS.issuperset(map(type, data)) or all(map(_is_plain, data))


# Cells of a sweep have most groups in common: without this, 10,000 cells take three seconds longer.
@functools.lru_cache(maxsize=1024)
def group_of_settings(cls: Any, name: str, content: bytes, prefix: str) -> Any:
    """Make a group of settings or a plug-in; `content` is its plain data, marshalled."""
    # The cache also holds what the names of plug-ins meant: `Registry` clears it when that changes.
    return _made(cls, name, marshal.loads(content), prefix)


def _made(cls: Any, name: str, data: Any, prefix: str) -> Any:
    hint, path = hints(cls).get(name), f"{prefix}{name}"
    if plug_in := plug_in_of(hint):
        return plug_in.read(data)
    _refuse_long(data, f"{path}.")
    group = _group_of(hint)
    if group is not None and isinstance(data, Mapping):
        if get_origin(hint) is not dict:
            return from_plain(group, data, f"{path}.")
        found = {}
        for key, value in data.items():
            found[str(key)] = value
            if isinstance(value, Mapping):
                found[str(key)] = from_plain(group, value, f"{path}.{key}.")
        return found
    value, reader = _as_tuples(data), _reader(cls, name)
    if reader is None:  # there is no such setting
        return value
    # Only reading JSON makes paths, sets, members and groups in lists, and converts keys of text.
    if not _is_plain(data) or not reader.validator.isinstance_python(value):
        with contextlib.suppress(TypeError, ValueError):  # no data of JSON, or of another type
            return reader.validate_json(json.dumps(data))
    return value


@functools.cache
def _reader(cls: Any, name: str) -> TypeAdapter[Any] | None:
    """Return the reader of a field of a class, if there is one of this name."""
    names = [field.name for field in dataclasses.fields(cls)]
    return adapter(hints(cls)[name]) if name in names else None


def _as_tuples(value: Any) -> Any:
    """Turn lists into the tuples that settings hold, and NumPy's numbers into Python's."""
    if isinstance(value, list | tuple):
        return tuple(map(_as_tuples, value))
    return builtin(value)


def _refuse_long(data: object, path: str) -> None:
    """Refuse whole numbers beyond 64 bits, which pydantic would take."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            _refuse_long(value, f"{path}{key}.")
    elif isinstance(data, list | tuple):
        for value in data:
            _refuse_long(value, path)
    elif isinstance(data, int) and abs(data) >= _INT64:
        raise RegbenchError(
            f"{path.rstrip('.')}={data} must be below {_INT64}, to fit into 64 bits"
        )


def plain(value: Any) -> Any:
    """Turn settings into the plain data that JSON and YAML have; `from_plain` reads it back."""
    kind: Any = type(value)
    # Nearly all values are these.
    if kind in _SCALARS:
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {name: turn(getattr(value, name)) for name, turn in _turns(kind)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


_SCALARS = {str, int, float, bool, NoneType}


# Type hints are slow to look up, and reports turn thousands of cells.
@functools.cache
def _turns(cls: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """Return each field of a dataclass with what turns its value into plain data."""
    turns = []
    for field in dataclasses.fields(cls):
        plug_in = plug_in_of(hints(cls)[field.name])
        turns.append((field.name, plug_in.plain if plug_in else plain))
    return tuple(turns)


def names_in(tree: object, path: str = "") -> Iterator[str]:
    """Yield the full name of each setting and group in plain data."""
    if path:
        yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from names_in(value, f"{path}.{key}" if path else str(key))


def at(tree: Any, path: Iterable[str]) -> Any:
    """Return what plain data hold under the names of a path, one within the other; None if
    nothing.
    """
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def defaults(cls: Any) -> dict[str, Any]:
    """Return the settings of a class that have a default, as plain data."""
    found, turns = {}, dict(_turns(cls))
    for field in dataclasses.fields(cls):
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if value is not dataclasses.MISSING:
            found[field.name] = turns[field.name](value)
    return found


def _refuse(cls: Any, data: Any, error: ValidationError, prefix: str) -> NoReturn:
    """Raise the first of pydantic's refusals in our words."""
    first = error.errors(include_url=False)[0]
    if not first["loc"]:  # the whole is refused: by the class, or because it is not JSON
        name, value = prefix.rstrip(". :") or cls.__name__, brief(shown(plain(data)))
        words = " ".join(str(first.get("ctx", {}).get("error", "")).split())
        raise RegbenchError(f"{name}={value} {words or 'must be a group of settings'}") from error
    part, *inner = map(str, first["loc"])
    path = f"{prefix}{part}"
    if first["type"] == "unexpected_keyword_argument":
        if inner:
            raise RegbenchError(f"{path}: unexpected {brief(inner[-1])}") from error
        names = [f"{prefix}{field.name}" for field in dataclasses.fields(cls)]
        raise RegbenchError(unknown("setting", path, names)) from error
    if part not in data:
        raise RegbenchError(f"the setting {path} is missing") from error
    hint, value = hints(cls)[part], plain(data[part])
    if get_origin(hint) is dict and isinstance(value, Mapping) and inner and inner[0] in value:
        hint, value, path = get_args(hint)[1], value[inner[0]], f"{path}.{inner[0]}"
    if first["type"] == "value_error":  # a validator of ours has worded it
        raise RegbenchError(f"{path}={brief(shown(value))} {first['ctx']['error']}") from error
    words = type_words(_group_of(hint) or hint)
    if first["type"] == "finite_number":
        words = words.replace("number", "finite number", 1)
    raise RegbenchError(f"{path}={brief(shown(value))} must be {words}") from error


def _group_of(hint: Any) -> Any:
    """Return the class of settings of a group, which may be optional or one of a dictionary's; None
    for other annotations.
    """
    arms = (hint,)
    if get_origin(hint) in (dict, Union, UnionType):
        arms = get_args(hint)
    for arm in arms:
        if isinstance(arm, type) and is_dataclass(arm):
            return arm
    return None
