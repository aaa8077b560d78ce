"""Words for settings: values as an override has them, types and bounds, refusals of unknown
names.
"""

from __future__ import annotations

import difflib
import functools
import numbers
import os
import re
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import MinLen
from pydantic_core import core_schema

from regbench.errors import RegbenchError


@dataclass(frozen=True)
class PlugIn:
    """Annotates a setting that is not plain data, such as a plug-in.

    Attributes:
        read: Function from the setting or its plain data to the setting; raises `RegbenchError`.
        plain: Function from the setting to its plain data.
        words: Description of what it must be, for messages and tables.
    """

    read: Callable[[Any], Any]
    plain: Callable[[Any], Any]
    words: str = "a group of settings"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Tell pydantic how to read the setting."""
        return core_schema.no_info_plain_validator_function(self.read)


@functools.cache
def hints(cls: Any) -> dict[str, Any]:
    """Return the annotations of a class by field, with their metadata."""
    return typing.get_type_hints(cls, include_extras=True)


def plug_in_of(hint: Any) -> PlugIn | None:
    """Return the plug-in that an annotation names, if it does."""
    if get_origin(hint) is Annotated:
        for each in hint.__metadata__:
            if isinstance(each, PlugIn):
                return each
    return None


def shown(value: object) -> str:
    """Write a value as an override has it."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    if value is None:
        return "null"
    # YAML writes booleans in lower case.
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or "''"


def written(value: object) -> str:
    """Write a value of Python as an override has it, text in quotation marks.

    Refuse what no setting can have.
    """
    if isinstance(value, str | os.PathLike):
        return quoted(os.fspath(value))
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    value = builtin(value)
    if value is None or isinstance(value, bool | int | float):
        return shown(value)
    raise RegbenchError(
        f"{value!r} is no setting; give a number, text, a list, a dictionary or None"
    )


def builtin(value: Any) -> Any:
    """Turn a number of another library, such as NumPy, into Python's own."""
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return value


def quoted(text: str) -> str:
    """Write text in quotation marks, as an override has it."""
    # Hydra reads a backslash as an escape only before a quotation mark, so it is doubled only
    # there.
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    escaped = re.sub(r"(\\*)$", r"\1\1", escaped)
    return f"'{escaped}'"


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Describe the refusal of a name: with the nearest known names, or else with all (of settings,
    the groups).
    """
    by_letters = {_letters(each): each for each in known}
    # The same letters in another spelling leave no doubt.
    near = [_letters(name)]
    if near[0] not in by_letters:
        near = difflib.get_close_matches(near[0], by_letters, n=3, cutoff=0.5)
    if near:
        names = ", ".join(by_letters[each] for each in near)
        return f"unknown {what} {name!r}; did you mean {names}?"
    # The names of all settings would fill a screen.
    groups = [each for each in known if "." not in each]
    return f"unknown {what} {name!r}; known: {', '.join(groups or known)}"


def _letters(name: str) -> str:
    """Return a name without what people write in different ways: case, `_` and `-`."""
    return re.sub("[-_]", "", name.lower())


_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "null",
}
_ITEMS = {int: "whole numbers", float: "numbers", str: "words"}
_EXAMPLES = {int: "[1,2]", float: "[0.5,1]"}
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def type_words(hint: Any) -> str:
    """Describe a type and its bounds."""
    origin, arguments = get_origin(hint), get_args(hint)
    if plug_in := plug_in_of(hint):
        return plug_in.words
    if origin is Annotated:
        return type_words(arguments[0]) + _bounds(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(type_words, arguments))
    if origin is tuple:
        return _list_words(arguments)
    if origin is Literal:
        *first, last = map(shown, arguments)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is dict or is_dataclass(hint):
        return "a group of settings"
    return _KINDS.get(hint, getattr(hint, "__name__", str(hint)))


def _list_words(arguments: tuple[Any, ...]) -> str:
    """Describe the type of a list; `arguments` are those of the tuple's type."""
    item = first = arguments[0]
    if get_origin(first) is Annotated:
        item = get_args(first)[0]
    number = "" if arguments[-1] is ... else f"{len(arguments)} "
    bounds = _bounds(first).replace(", ", ", each ", 1)
    return (
        f"a list of {number}{_ITEMS.get(item, 'values')}{bounds}, such as "
        f"{_EXAMPLES.get(item, '[a,b]')}"
    )


def _bounds(hint: Any) -> str:
    """Describe the bounds, such as ", at least 0 and below 1"; empty without bounds."""
    if get_origin(hint) is not Annotated:
        return ""
    if any(isinstance(limit, MinLen) for limit in _limits(hint)):
        return ", not empty"
    words = [f"{_BOUNDS[name]} {value}" for name, value in bounds(hint).items()]
    return f", {' and '.join(words)}" if words else ""


def bounds(hint: Any) -> dict[str, float]:
    """Return the bounds that a type has, by their names, "gt", "ge", "lt" and "le"."""
    found: dict[str, float] = {}
    for limit in _limits(hint):
        found |= {name: getattr(limit, name) for name in _BOUNDS if hasattr(limit, name)}
    return found


def _limits(hint: Any) -> list[Any]:
    limits: list[Any] = []
    for each in getattr(hint, "__metadata__", ()):
        # pydantic's Field holds its bounds as a list; annotated_types' stand alone.
        limits += getattr(each, "metadata", [each])
    return limits
