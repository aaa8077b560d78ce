"""Settings from plain data, their types and ranges checked; every refusal names the setting as it is overridden."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union

from regbench import RegbenchError, settings
from regbench.files import parse_yaml

T = TypeVar("T")

_INT64 = 2**63
"""What neither torch's generators and sizes nor the columns of a report can hold."""


@dataclass(frozen=True)
class Range:
    """What a number may be.

    Attributes:
        low: The smallest.
        high: The largest.
        above: `low` itself is excluded.
        below: `high` itself is excluded.
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, number: float) -> bool:
        """Whether it may; never for NaN."""
        over = number > self.low if self.above else number >= self.low
        return over and (number < self.high if self.below else number <= self.high)

    def __str__(self) -> str:
        """Such as "at least 0 and below 1"."""
        low = f"{'above' if self.above else 'at least'} {self.low}"
        return low if math.isinf(self.high) else f"{low} and {'below' if self.below else 'at most'} {self.high}"


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file.

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


def structure(cls: type[T], data: object, prefix: str = "") -> T:
    """An instance of the dataclass `cls` from nested plain data.

    Args:
        cls: Whose fields are the settings.
        data: Names and values.
        prefix: What stands before the names in overrides, such as "optimizer.".

    Raises:
        RegbenchError: If a setting is unknown, missing or of the wrong type, or the class refuses it.
    """
    if hasattr(cls, "__pydantic_config__"):
        return settings.from_plain(cls, data, prefix)
    if not isinstance(data, Mapping):
        raise RegbenchError(f"{prefix.rstrip('.') or 'a cell'} must be a group of settings, not {shown(data)}")
    fields, hints = {field.name: field for field in dataclasses.fields(cls)}, _hints(cls)  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise RegbenchError(unknown("setting", f"{prefix}{key}", [f"{prefix}{name}" for name in fields]))
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], f"{prefix}{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RegbenchError(f"the setting {prefix}{name} is missing")
    return cls(**values)


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """The refusal of a name, with the nearest there are, or else all, of settings the groups."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    listed = [each for each in known if "." not in each] or known
    there = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(listed)}"
    return f"unknown {what} {name!r}; {there}"


def check_numbers(settings: object, ranges: Mapping[type, Mapping[str, Range]], prefix: str = "") -> None:
    """Refuses numbers that are not finite, need more than 64 bits or are out of their range.

    Args:
        settings: A dataclass; those in it are looked at too.
        ranges: Of the fields of each class, in lists of each number.
        prefix: What stands before the names in overrides.

    Raises:
        RegbenchError: Naming the setting and what it must be.
    """
    own = ranges.get(type(settings), {})
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        name, value = f"{prefix}{field.name}", getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            check_numbers(value, ranges, f"{name}.")
            continue
        each = "each " if isinstance(value, tuple) else ""
        for number in _numbers(value):
            if isinstance(number, float) and not math.isfinite(number):
                raise RegbenchError(f"{name}={shown(value)} must be {each}a finite number")
            if (allowed := own.get(field.name)) and number not in allowed:
                raise RegbenchError(f"{name}={shown(value)} must be {each}{allowed}")
            if isinstance(number, int) and abs(number) >= _INT64:
                raise RegbenchError(f"{name}={shown(value)} must be {each}below {_INT64}, to fit into 64 bits")


def shown(value: object) -> str:
    """A value as it is written in an override."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) or "''"


def _numbers(value: object) -> Iterator[int | float]:
    if isinstance(value, tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert(hint: Any, value: Any, path: str) -> Any:
    """The value as the type of its field: whole numbers become real ones where these are wanted, lists tuples."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and not isinstance(value, hint):  # type: ignore[arg-type]
        return structure(hint, value, f"{path}.")  # type: ignore[arg-type]
    if origin in (Union, types.UnionType):
        for arm in arguments:
            try:
                return _convert(arm, value, path)
            except RegbenchError:
                continue
        _refuse(hint, value, path)
    if origin is tuple and isinstance(value, list | tuple):
        items = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(items) != len(value):
            _refuse(hint, value, path)
        try:
            return tuple(_convert(item, each, path) for item, each in zip(items, value, strict=True))
        except RegbenchError:
            _refuse(hint, value, path)
    if origin is dict and isinstance(value, Mapping):
        return {key: _convert(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    if hint is float and type(value) is int and abs(value) < _INT64:
        return float(value)
    fits = (
        hint is Any
        or (origin is Literal and value in arguments)
        or (type(value) is hint if hint in (int, float, bool, str) else origin is None and isinstance(value, hint))
    )
    if not fits:
        _refuse(hint, value, path)
    return value


def _refuse(hint: Any, value: object, path: str) -> NoReturn:
    raise RegbenchError(f"{path}={shown(value)} must be {_expected(hint)}")


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}


def _expected(hint: Any) -> str:
    """A type in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_expected(arm) for arm in arguments)
    if origin is tuple:
        number = "" if arguments[-1] is ... else f"{len(arguments)} "
        words = {int: "whole numbers, such as [1,2]", float: "numbers, such as [0.5,1]", str: "words, such as [a,b]"}
        return f"a list of {number}{words.get(arguments[0], 'values')}"
    if origin is Literal:
        return " or ".join(map(shown, arguments))
    return "a group of settings" if origin is dict else _WORDS.get(hint, getattr(hint, "__name__", str(hint)))
