"""Settings: frozen dataclasses in which the name, type, bounds, default and meaning of each setting stand once.

Type and bounds are the field's annotation; the meaning is its line under "Attributes:" in the class's docstring. Every
refusal names the setting as it is written in an override.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import json
import os
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, cast, dataclass_transform, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated
from pydantic_core import core_schema

from regbench.errors import RegbenchError
from regbench.files import parse_yaml

T = TypeVar("T")

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
_INT64 = 2**63
"""Numbers from here on fit neither torch's generators and sizes nor the columns of a report."""

_MANY_DIGITS = re.compile(r"\d{19}")

AtLeastZero = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
AtLeastTwo = Annotated[int, Field(ge=2)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def settings(cls: type[T]) -> type[T]:
    """Make a class a frozen keyword-only dataclass that refuses what its fields' annotations do not allow.

    What does not fit together is for the class to refuse, in `__post_init__`.
    """
    made = validated(cls, frozen=True, kw_only=True, config=_STRICT)
    build = made.__init__

    @functools.wraps(build)
    def init(self: Any, *args: Any, **values: Any) -> None:
        try:
            build(self, *args, **values)
        except ValidationError as error:
            _refuse(made, values, error, "")

    made.__init__ = init  # type: ignore[method-assign]
    return cast("type[T]", made)


@dataclass(frozen=True)
class PlugIn:
    """Annotates a setting that is not plain data, such as a plug-in.

    Attributes:
        read: From the setting or its plain data to the setting; raises `RegbenchError`.
        plain: From the setting to its plain data.
        words: What it must be, for messages and tables.
    """

    read: Callable[[Any], Any]
    plain: Callable[[Any], Any]
    words: str = "a group of settings"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Tell pydantic how to read the setting."""
        return core_schema.no_info_plain_validator_function(self.read)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the settings in a YAML file.

    Raises:
        RegbenchError: If the file cannot be read or holds something else.
    """
    try:
        data = parse_yaml(path.read_bytes())
    except OSError as error:
        raise RegbenchError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RegbenchError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise RegbenchError(f"{path} holds no settings: it must be YAML with lines of the form name: value")
    return data


def from_plain(cls: type[T], data: object, prefix: str = "") -> T:
    """Make an instance of a dataclass of settings from nested plain data.

    Args:
        cls: A class made by `settings`, or any frozen dataclass of plain fields.
        data: Names and values; what is left out has its default.
        prefix: What stands before the names in overrides, such as "optimizer.".

    Raises:
        RegbenchError: If a setting is unknown, missing, of the wrong type or out of bounds, or refused by the class.
    """
    if not isinstance(data, Mapping):
        raise RegbenchError(f"{prefix.rstrip('.') or 'a cell'} must be a group of settings, not {shown(data)}")
    text = json.dumps(data, default=repr)
    if _MANY_DIGITS.search(text):  # few have, and looking at each number takes as long as all the rest
        _refuse_long(data, prefix)
    try:
        return cast("T", validated_json(cast("Any", cls), text))
    except ValidationError as error:
        _refuse(cls, data, error, prefix)


def setting(cls: Any, name: str, data: Any) -> Any:
    """Make one setting of a class of its plain data, for the class to be made of settings.

    A plug-in or a group is made and checked. What is neither stays as it is: the class checks it.

    Raises:
        RegbenchError: If the setting is refused.
    """
    hint = _hints(cls).get(name)
    if plug_in := _plug_in(hint):
        return plug_in.read(data)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_plain(hint, data, f"{name}.")
    _refuse_long(data, name)
    return data


def _refuse_long(data: object, path: str) -> None:
    for name, value in _leaves(data, path):
        if isinstance(value, int) and abs(value) >= _INT64:
            raise RegbenchError(f"{name}={value} must be below {_INT64}, to fit into 64 bits")


@functools.lru_cache(maxsize=1024)
def validated_json(cls: Any, text: str) -> Any:
    """Return an instance of a class of settings from JSON; cells of a sweep have most parts in common.

    What names of plug-ins mean is remembered with it: `Registry` clears the cache when it changes.
    """
    return _adapter(cls).validate_json(text)


@functools.cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    if not hasattr(cls, "__pydantic_config__"):  # a plain dataclass, such as a regularizer
        cls.__pydantic_config__ = _STRICT
    return TypeAdapter(cls)


def _leaves(data: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield the values that are not groups, each with its full name."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _leaves(value, f"{path}{key}.")
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _leaves(value, path)
    else:
        yield path.rstrip("."), data


def plain(value: Any) -> Any:
    """Turn settings into the plain data that JSON and YAML have; `from_plain` reads it back."""
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value):
        return {name: turn(getattr(value, name)) for name, turn in _turns(kind)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


_SCALARS = {str, int, float, bool, NoneType}


@functools.cache
def _turns(cls: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """Return each field of a dataclass with what turns its value into plain data."""
    hints = _hints(cls)
    plug_ins = {field.name: _plug_in(hints[field.name]) for field in dataclasses.fields(cls)}
    return tuple((name, plug_in.plain if plug_in else plain) for name, plug_in in plug_ins.items())


def shown(value: object) -> str:
    """Write a value as an override has it."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) or "''"


def written(value: object) -> str:
    """Write a value of Python as an override has it, text in quotation marks.

    Raises:
        RegbenchError: If no setting can have it.
    """
    if isinstance(value, str | os.PathLike):
        return quoted(os.fspath(value))
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    if value is None or isinstance(value, bool | int | float):
        return shown(value)
    raise RegbenchError(f"{value!r} is no setting; give a number, text, a list, a dictionary or None")


def quoted(text: str) -> str:
    """Write text in quotation marks, as an override has it."""
    # Hydra takes a backslash for a sign of its own only before a quotation mark.
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Word the refusal of a name: with the nearest known names, or else with all (of settings, the groups)."""
    plain_names = {_letters(each): each for each in known}
    meant = _letters(name)
    found = [meant] if meant in plain_names else difflib.get_close_matches(meant, plain_names, n=3, cutoff=0.5)
    near = [plain_names[each] for each in found]
    listed = [each for each in known if "." not in each] or known
    there = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(listed)}"
    return f"unknown {what} {name!r}; {there}"


def _letters(name: str) -> str:
    """Return a name without what people write in different ways: case, `_` and `-`."""
    return re.sub("[-_]", "", name.lower())


@dataclass(frozen=True)
class Setting:
    """One setting, for tables.

    Attributes:
        name: Full name, as an override has it.
        kind: Type and bounds in words.
        default: Default, as an override has it; None where the setting has no default.
        meaning: Meaning, in a line.
    """

    name: str
    kind: str
    default: str | None
    meaning: str


def describe(cls: Any, prefix: str = "") -> list[Setting]:
    """Describe the settings of a dataclass and of the groups in it, in the order of their fields.

    Args:
        cls: The class.
        prefix: What stands before the names in overrides.
    """
    found, texts, known = [], meanings(cls), defaults(cls)
    for field in dataclasses.fields(cls):
        hint, name = _hints(cls)[field.name], f"{prefix}{field.name}"
        if is_dataclass(hint):
            found += describe(hint, f"{name}.")
            continue
        text = shown(known[field.name]) if field.name in known else None
        found.append(Setting(name, _words(hint), text, texts.get(field.name, "")))
    return found


def defaults(cls: Any) -> dict[str, Any]:
    """Return the settings of a class that have a default, as plain data."""
    found = {}
    for field in dataclasses.fields(cls):
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if value is not dataclasses.MISSING:
            found[field.name] = dict(_turns(cls))[field.name](value)
    return found


def meanings(cls: type) -> dict[str, str]:
    """Read the lines under "Attributes:" in the docstrings of a class and of those that it derives from."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        attributes = re.split(r"\n\s*\n", inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")[2])[0]
        for entry in re.split(r"\n(?= {4}\S)", attributes):
            name, _, meaning = entry.strip().partition(":")
            found[name] = " ".join(meaning.split())
    return found


_cached_hints = functools.cache(functools.partial(typing.get_type_hints, include_extras=True))


def _hints(cls: Any) -> dict[Any, Any]:
    return _cached_hints(cls)


def _plug_in(hint: Any) -> PlugIn | None:
    metadata = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return next((each for each in metadata if isinstance(each, PlugIn)), None)


def _refuse(cls: Any, data: Any, error: ValidationError, prefix: str) -> NoReturn:
    """Raise the first of pydantic's refusals in our words."""
    first = error.errors(include_url=False)[0]
    hint, path, value = cls, prefix, data
    for part in first["loc"]:
        if get_origin(hint) is dict and isinstance(value, Mapping) and part in value:
            hint, path, value = get_args(hint)[1], f"{path}{part}.", value[part]
            continue
        if not is_dataclass(hint) or (part not in _hints(hint) and part in value):
            break
        if part not in value:
            raise RegbenchError(f"the setting {path}{part} is missing") from error
        hint, path, value = _hints(hint)[part], f"{path}{part}.", value[part]
        if get_origin(hint) is not dict:
            hint = next((arm for arm in get_args(hint) if isinstance(arm, type) and is_dataclass(arm)), hint)
    if first["type"] == "unexpected_keyword_argument":
        names = [f"{path}{field.name}" for field in dataclasses.fields(hint)]
        raise RegbenchError(unknown("setting", f"{path}{first['loc'][-1]}", names)) from error
    if first["type"] == "value_error":  # of a validator of ours
        raise RegbenchError(f"{path.rstrip('.')}={shown(value)} {first['ctx']['error']}") from error
    words = _words(hint)
    if first["type"] == "finite_number":
        words = words.replace("number", "finite number", 1)
    raise RegbenchError(f"{path.rstrip('.')}={shown(value)} must be {words}") from error


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}
_EXAMPLES = {int: "whole numbers", float: "numbers", str: "words"}
_SUCH_AS = {int: "[1,2]", float: "[0.5,1]", str: "[a,b]"}


def _words(hint: Any) -> str:
    """Word a type and its bounds."""
    origin, arguments = get_origin(hint), get_args(hint)
    if plug_in := _plug_in(hint):
        return plug_in.words
    if origin is Annotated:
        return _words(arguments[0]) + _bounds(hint)
    if origin in (Union, UnionType):
        return " or ".join(_words(arm) for arm in arguments)
    if origin is tuple:
        item = get_args(arguments[0])[0] if get_origin(arguments[0]) is Annotated else arguments[0]
        number = "" if arguments[-1] is ... else f"{len(arguments)} "
        bounds = _bounds(arguments[0]).replace(", ", ", each ", 1)
        return f"a list of {number}{_EXAMPLES.get(item, 'values')}{bounds}, such as {_SUCH_AS.get(item, '[a,b]')}"
    if origin is Literal:
        *first, last = map(shown, arguments)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is dict or is_dataclass(hint):
        return "a group of settings"
    return _KINDS.get(hint, getattr(hint, "__name__", str(hint)))


def _bounds(hint: Any) -> str:
    """Word the bounds, such as ", at least 0 and below 1"; empty without bounds."""
    if get_origin(hint) is not Annotated:
        return ""
    found = [bound for each in hint.__metadata__ for bound in getattr(each, "metadata", [each])]
    if any(isinstance(bound, MinLen) for bound in found):
        return ", not empty"
    names = {Gt: ("above", "gt"), Ge: ("at least", "ge"), Lt: ("below", "lt"), Le: ("at most", "le")}
    words = [f"{names[type(b)][0]} {getattr(b, names[type(b)][1])}" for b in found if type(b) in names]
    return f", {' and '.join(words)}" if words else ""
