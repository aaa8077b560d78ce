"""Plug-ins: what a user adds in one file, by a name, with settings of its own.

There are five kinds: regularizers, evaluations, backbones, optimizers and data sources. Each is a
frozen dataclass of its settings, decorated with the `register` of its registry. A registry finds
them in a package of regbench and in the entry points of other wheels, when they are first asked
for. Broken plug-ins of another wheel are left out, with a warning.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import logging
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Generic, TypeVar

from regbench import settings, wording
from regbench.errors import RegbenchError

P = TypeVar("P")
C = TypeVar("C", bound=type)
Cached = TypeVar("Cached", bound="functools._lru_cache_wrapper[Any]")
Preset = Mapping[str, Any] | Callable[[], Mapping[str, Any]]

log = logging.getLogger("regbench")

PACKAGES = {
    "method": "regbench.methods",
    "evaluation": "regbench.benchmark.evaluate",
    "backbone": "regbench.benchmark.backbones",
    "optimizer": "regbench.benchmark.training.optimizers",
    "source": "regbench.datasets.sources",
}
"""Kinds of plug-ins, and the package of regbench whose modules hold our own of each."""

_CHOSEN_BY = {
    "method": "method",
    "optimizer": "optimizer",
    "network.backbone": "backbone",
    "dataset.source": "source",
    "evaluation.protocols": "evaluation",
}

_DEPENDING: list[Callable[[], None]] = [settings.group_of_settings.cache_clear]


def depends_on_plug_ins(cached: Cached) -> Cached:
    """Let a cached function forget its results when a plug-in comes or goes."""
    _DEPENDING.append(cached.cache_clear)
    return cached


class Registry(Generic[P]):
    """The plug-ins of one kind.

    Attributes:
        kind: Name of one in messages, such as "method".
        group: The entry points of other wheels, such as "regbench.methods".
        package: The package of regbench whose modules hold our own.
    """

    def __init__(self, kind: str) -> None:
        """Begin with no plug-in of one of the kinds in `PACKAGES`."""
        self.kind, self.group = kind, f"regbench.{kind}s"
        self._classes: dict[str, type[P]] = {}
        self._presets: dict[str, tuple[type[P], Preset]] = {}
        self._broken: dict[str, str] = {}  # name of an entry point -> why it is left out

    def register(self, name: str, **presets: Preset) -> Callable[[C], C]:
        """Register a class under `name`, and each preset (name -> settings) under its own.

        Args:
            name: Name that users write, as in `method=name`.
            **presets: Names of variants, with the settings that differ from the defaults, or a
                function that gives them when they are first asked for.

        Returns:
            The class decorator.

        Raises:
            RegbenchError: If a name is taken, or the class is not one of settings.
        """

        def decorate(cls: C) -> C:
            for known, other in list(self._classes.items()):
                # A cell of a notebook may run again.
                is_own = other.__module__ == cls.__module__ == "__main__"
                if is_own and other.__qualname__ == cls.__qualname__:
                    self.unregister(known)
            for new in (name, *presets):
                if new in self._presets:
                    module = self._presets[new][0].__module__
                    what = f"{self.kind} name {new!r} of {cls.__module__} is taken by {module}"
                    raise RegbenchError(f"{what}; choose another")
            if "__dataclass_fields__" not in vars(cls):  # a base's lack those of this class
                raise RegbenchError(f"{cls.__name__} needs @settings below @register")
            _forget()
            self._classes[name] = cls
            self._presets |= {new: (cls, values) for new, values in {name: {}, **presets}.items()}
            return cls

        return decorate

    def unregister(self, name: str) -> None:
        """Forget a name and its presets, as if its class had not been registered.

        For notebooks and tests.
        """
        _forget()
        Registry._plain_defaults.cache_clear()
        cls = self._classes.pop(name)
        for preset, (other, _) in list(self._presets.items()):
            if other is cls:
                del self._presets[preset]

    @functools.cache  # noqa: B019  # there is one registry of a kind
    def _all(self) -> dict[str, tuple[type[P], Preset]]:
        """Return the presets, after importing every module of the package and every entry point
        of the group.
        """
        import_own(self.kind)
        for entry_point in importlib.metadata.entry_points(group=self.group):
            self._load(entry_point)
        return self._presets

    def _load(self, entry_point: EntryPoint) -> None:
        """Load what another wheel has, or warn and leave it out: it must not break commands that do
        not need it.
        """
        # Names that a module registered before it failed are taken back.
        before = {*self._presets}
        try:
            entry_point.load()
            # The classes of a package may be in modules that it imports.
            there = [f"{cls.__module__}." for cls in self._classes.values()]
            is_there = any(name.startswith(f"{entry_point.module}.") for name in there)
            if self._presets.keys() == before and not is_there:
                raise RegbenchError(f"no class of {entry_point.module} has @register(NAME)")
            # The commands list its settings: defaults and presets that fail are found here.
            for name in self._presets.keys() - before:
                self.plain(self._build(name, {}))
        except (Exception, SystemExit) as error:
            for name in self._classes.keys() - before:
                self.unregister(name)
            wheel = entry_point.dist.name if entry_point.dist else entry_point.value
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            refusal = (
                f"{self.kind} {entry_point.name!r} cannot be loaded: {cause}. It is an entry point "
                f"of {self.group} in the package {wheel}; mend that, or remove it: pip uninstall "
                f"{wheel}"
            )
            self._broken[entry_point.name] = refusal
            log.warning("%s; all else goes on without it", refusal)

    def names(self) -> list[str]:
        """Return all names, presets included, sorted."""
        return sorted(self._all())

    def of(self, name: str) -> type[P]:
        """Return the class of a name or preset."""
        self.refuse_unknown([name])
        return self._all()[name][0]

    def refuse_unknown(self, names: Sequence[str], where: str = "") -> None:
        """Refuse names that none of the plug-ins has; `where` begins the message."""
        for name in names:
            if name not in self._all():
                broken = self._broken.get(name)
                raise RegbenchError(
                    where + (broken or wording.unknown(self.kind, name, self.names()))
                )

    def build(self, name: str, **values: Any) -> P:
        """Build the plug-in `name` with some settings changed.

        Raises:
            RegbenchError: If the name or a setting is unknown, or a value is refused.
        """
        self.refuse_unknown([name])
        try:
            return self._build(name, values)
        except RegbenchError as error:
            raise RegbenchError(f"{name}: {error}") from error

    def _build(self, name: str, values: Mapping[str, Any]) -> P:
        cls, preset = self._presets[name]
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for key in values:
            if key not in known:
                has = ", ".join(known) or "none"
                raise RegbenchError(f"this {self.kind} has no setting {key!r}; it has {has}")
        if callable(preset):
            preset = preset()
        return cls(**{**preset, **values})

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

        `prefix` stands before the settings in overrides, such as "method.".
        """
        name = data.get("name") if isinstance(data, Mapping) else None
        if not isinstance(data, Mapping) or not isinstance(name, str):
            raise RegbenchError(
                f"{prefix.rstrip('.')}={wording.shown(data)} must be a group of settings with the "
                f"{self.kind}'s name"
            )
        given = {key: value for key, value in data.items() if key != "name"}
        return settings.from_plain(self.of(name), {**self._plain_defaults(name), **given}, prefix)

    # Called for every plug-in of every stored cell.
    @functools.cache  # noqa: B019  # as above
    def _plain_defaults(self, name: str) -> dict[str, Any]:
        plain: dict[str, Any] = settings.plain(self.build(name))
        return plain

    def setting(self, prefix: str) -> wording.PlugIn:
        """Make the annotation of a setting that is a plug-in of this kind.

        See `from_plain` for the prefix.
        """

        def read(value: Any) -> P:
            ours = tuple(self._classes.values())
            return value if isinstance(value, ours) else self.from_plain(value, prefix)

        words = f"the name of a registered {self.kind}, with its settings"
        return wording.PlugIn(read, self.plain, words)


def _forget() -> None:
    """Forget what a name meant before, which may mean something else now."""
    for clear in _DEPENDING:
        clear()


def has_others(kind: str) -> bool:
    """Return True if another wheel has plug-ins of a kind."""
    return bool(importlib.metadata.entry_points(group=f"regbench.{kind}s"))


def import_own(kind: str) -> None:
    """Import all modules of the package that holds our own plug-ins of a kind."""
    package = importlib.import_module(PACKAGES[kind])
    for module in pkgutil.iter_modules(package.__path__, f"{PACKAGES[kind]}."):
        importlib.import_module(module.name)


def own_files(kind: str) -> list[Path]:
    """Return the files of the package that holds our own plug-ins of a kind, sorted."""
    spec = importlib.util.find_spec(PACKAGES[kind])
    assert spec is not None and spec.origin is not None
    return sorted(Path(spec.origin).parent.glob("*.py"))


def own_names(kind: str) -> list[str]:
    """Return the names of our own plug-ins of a kind, sorted, without the import of any."""
    names: list[str] = []
    for file in own_files(kind):
        for node in ast.walk(ast.parse(file.read_bytes())):
            match node:
                # As in register("name", preset=...).
                case ast.Call(func=ast.Name(id="register"), args=[name], keywords=presets):
                    names.append(ast.literal_eval(name))
                    names += [str(preset.arg) for preset in presets]
    return sorted(names)


def refuse_unknown(kind: str, names: Collection[str], where: str = "") -> None:
    """Refuse names that no plug-in has, before torch is imported, which takes seconds."""
    # The registry refuses names later if another wheel may have them, or if torch is there already.
    if not names or sys.modules.get("torch") or has_others(kind):
        return
    known = own_names(kind)
    for name in names:
        if name not in known:
            raise RegbenchError(where + wording.unknown(kind, name, known))


def refuse_unknown_in(overrides: Sequence[str]) -> None:
    """Refuse overrides that choose plug-ins by unknown names, such as `method=vicregg`, before
    torch is imported.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        names = value.strip("[]").split(",")
        # Values in quotation marks or with functions are left to Hydra's grammar.
        if key in _CHOSEN_BY and all(re.fullmatch(r"[\w-]+", name) for name in names):
            kind = _CHOSEN_BY[key]
            refuse_unknown(kind, names, f"{key}: " if kind == "evaluation" else "")
