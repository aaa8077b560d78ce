"""Plug-ins: what a user adds in one file, by a name, with settings of its own.

There are five kinds: regularizers, evaluations, backbones, optimizers and data sources. Each is a frozen dataclass of
its settings, decorated with the `register` of its registry. A registry finds them in a package of regbench and in the
entry points of other wheels, when they are first asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from regbench import RegbenchError, settings

P = TypeVar("P")
C = TypeVar("C", bound=type)
Preset = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


class Registry(Generic[P]):
    """The plug-ins of one kind.

    Attributes:
        kind: What one is called in messages, such as "method".
        group: The entry points of other wheels, such as "regbench.methods".
        package: The package of regbench whose modules hold our own.
    """

    def __init__(self, kind: str, group: str, package: str) -> None:
        """Begin with no plug-in; see the class for the arguments."""
        self.kind, self.group, self.package = kind, group, package
        self._classes: dict[str, type[P]] = {}
        self._presets: dict[str, tuple[type[P], Preset]] = {}

    def register(self, name: str, **presets: Preset) -> Callable[[C], C]:
        """Register a class under `name`, and each preset (name -> settings) under its own.

        Args:
            name: What users write, as in `method=name`.
            **presets: Names of variants, with the settings that differ from the defaults, or a function that gives them
                when they are first asked for.

        Returns:
            The class decorator.

        Raises:
            RegbenchError: If a name is taken.
        """

        def decorate(cls: C) -> C:
            for new in (name, *presets):
                if new in self._presets:
                    other = self._presets[new][0].__module__
                    raise RegbenchError(
                        f"{self.kind} name {new!r} of {cls.__module__} is taken by {other}; choose another"
                    )
            settings.validated_json.cache_clear()
            self._classes[name] = cls
            self._presets[name] = (cls, {})
            self._presets.update({preset: (cls, values) for preset, values in presets.items()})
            return cls

        return decorate

    def unregister(self, name: str) -> None:
        """Forget a name and its presets, as if its class had not been registered; for notebooks and tests."""
        settings.validated_json.cache_clear()
        cls = self._classes.pop(name)
        self._presets = {preset: entry for preset, entry in self._presets.items() if entry[0] is not cls}

    def _all(self) -> dict[str, tuple[type[P], Preset]]:
        """Return the presets, after importing every module of the package and every entry point of the group."""
        self._discover()
        return self._presets

    @functools.cache  # noqa: B019  # there is one registry of a kind
    def _discover(self) -> None:
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__, f"{self.package}."):
            importlib.import_module(module.name)
        for entry_point in importlib.metadata.entry_points(group=self.group):
            entry_point.load()

    def names(self) -> list[str]:
        """Return all names, presets included, sorted."""
        return sorted(self._all())

    def of(self, name: str) -> type[P]:
        """Return the class of a name or preset.

        Raises:
            RegbenchError: If the name is unknown.
        """
        if name not in self._all():
            raise RegbenchError(settings.unknown(self.kind, name, self.names()))
        return self._all()[name][0]

    def build(self, name: str, **values: Any) -> P:
        """Build the plug-in `name` with some settings changed.

        Raises:
            RegbenchError: If the name or a setting is unknown, or a value is refused.
        """
        cls = self.of(name)
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for key in values:
            if key not in known:
                has = ", ".join(known) or "none"
                raise RegbenchError(f"{self.kind} {name!r} has no setting {key!r}; it has {has}")
        preset = self._all()[name][1]
        return cls(**{**(preset() if callable(preset) else preset), **values})

    def name(self, plugin: P) -> str:
        """Return the name that the plug-in's class is registered under (not that of a preset)."""
        return next(name for name, cls in self._classes.items() if cls is type(plugin))

    def defaults(self, name: str) -> dict[str, Any]:
        """Return the settings of `name`, by name, as `build(name)` would set them."""
        plugin = self.build(name)
        return {field.name: getattr(plugin, field.name) for field in dataclasses.fields(plugin)}  # type: ignore[arg-type]

    def plain(self, plugin: P) -> dict[str, Any]:
        """Return the plug-in as plain data: its name and its settings."""
        return {"name": self.name(plugin), **settings.plain(plugin)}

    def from_plain(self, data: object, prefix: str) -> P:
        """Make the plug-in of plain data; settings that are left out have the defaults of its name.

        Args:
            data: The name and settings.
            prefix: What stands before the settings in overrides, such as "method.".

        Raises:
            RegbenchError: If a name or setting is unknown, or a value is refused.
        """
        if not isinstance(data, Mapping) or not isinstance(name := data.get("name"), str):
            raise RegbenchError(
                f"{prefix.rstrip('.')}={settings.shown(data)} must be a group of settings with the {self.kind}'s name"
            )
        given = {key: value for key, value in data.items() if key != "name"}
        return settings.from_plain(self.of(name), {**self._plain_defaults(name), **given}, prefix)

    @functools.cache  # noqa: B019  # as above
    def _plain_defaults(self, name: str) -> dict[str, Any]:
        plain: dict[str, Any] = settings.plain(self.build(name))
        return plain

    def setting(self, prefix: str) -> settings.PlugIn:
        """Make the annotation of a setting that is a plug-in of this kind; see `from_plain` for the prefix."""

        def read(value: Any) -> P:
            ours = tuple(self._classes.values())
            return value if isinstance(value, ours) else self.from_plain(value, prefix)

        return settings.PlugIn(read, self.plain, f"the name of a registered {self.kind}, with its settings")
