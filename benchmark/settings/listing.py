"""All settings that there are, for a user to look up."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from regbench.benchmark.evaluate.base import EVALUATIONS
from regbench.benchmark.settings.cell import Cell, EvaluationOptions
from regbench.benchmark.settings.compose import PLUG_INS
from regbench.benchmark.settings.runtime import Cluster, Runtime
from regbench.datasets.config import ViewsConfig
from regbench.plugins import Registry
from regbench.settings import defaults, plain
from regbench.wording import hints, shown, type_words


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


def listing() -> Iterator[tuple[str, list[Setting]]]:
    """Yield the settings of a cell, of each plug-in but the regularizers, of the runtime and of the
    cluster.

    Yields:
        A title and the settings under it.
    """
    groups = ("evaluation", *PLUG_INS)
    yield "cell", [setting for setting in _described(Cell) if setting.name not in groups]
    yield "views of the augmentation, by kind", _described(ViewsConfig, "augmentation.views.KIND.")
    yield "evaluation", _described(EvaluationOptions, "evaluation.")
    for name in EVALUATIONS.names():
        yield f"evaluation {name}", _described_plug_in(EVALUATIONS, name, f"evaluation.{name}.")
    for place, registry in PLUG_INS.items():
        if place != "method":  # `regbench methods` lists those
            for name in registry.names():
                yield f"{place}={name}", _described_plug_in(registry, name, f"{place}.")
    yield "runtime", _described(Runtime, "runtime.")
    yield "cluster", _described(Cluster, "cluster.")


def _described_plug_in(registry: Registry[Any], name: str, prefix: str) -> list[Setting]:
    """Describe the settings of a plug-in, with the defaults that it has under this name."""
    own = registry.defaults(name)
    found = []
    for setting in _described(registry.of(name), prefix):
        key = setting.name.removeprefix(prefix)
        # A setting of a nested group keeps the default of its class.
        found.append(replace(setting, default=shown(plain(own[key]))) if key in own else setting)
    return found


def _described(cls: Any, prefix: str = "") -> list[Setting]:
    """Describe the settings of a dataclass and of the groups in it, in the order of their fields.

    `prefix` begins the names in overrides.
    """
    found = []
    texts, known = meanings(cls), defaults(cls)
    for field in dataclasses.fields(cls):
        hint, name = hints(cls)[field.name], f"{prefix}{field.name}"
        if is_dataclass(hint):
            found += _described(hint, f"{name}.")
            continue
        default = shown(known[field.name]) if field.name in known else None
        found.append(Setting(name, type_words(hint), default, texts.get(field.name, "")))
    return found


def meanings(cls: type) -> dict[str, str]:
    """Read the lines under "Attributes:" in the docstrings of a class and of those that it
    derives from.
    """
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        _, _, below = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")
        attributes = re.split(r"\n\s*\n", below)[0]
        # An entry begins four blanks in; its further lines are indented deeper.
        for entry in re.split(r"\n(?= {4}\S)", attributes):
            name, _, meaning = entry.strip().partition(":")
            found[name] = " ".join(meaning.split())
    return found
