"""From overrides in Hydra's grammar to cells.

Hydra composes the presets (YAML files of the groups `GROUPS`, ours and the user's), once for each choice of presets.
Defaults come from the classes of settings. Plug-ins and single settings are then put into a copy of the composed tree,
group by group.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.evaluate.base import EVALUATIONS
from regbench.benchmark.settings.cell import Cell, EvaluationOptions, NetworkConfig
from regbench.benchmark.settings.presets import preset_files
from regbench.benchmark.settings.runtime import Cluster, Runtime
from regbench.benchmark.training.optimizers.base import OPTIMIZERS
from regbench.datasets.config import AugmentationConfig, ViewsConfig
from regbench.datasets.fit import complete, fitting
from regbench.datasets.sources.base import SOURCES
from regbench.errors import RegbenchError
from regbench.methods import METHODS
from regbench.plugins import Registry
from regbench.settings import defaults, from_plain, plain, read_yaml, setting
from regbench.wording import shown, unknown

GROUPS = {"dataset": "fashion_mnist", "augmentation": "small_grey", "network": "resnet_tiny", "cluster": "local"}
"""The groups of presets, and the default of each."""

PLUG_INS: dict[str, Registry[Any]] = {
    "method": METHODS,
    "optimizer": OPTIMIZERS,
    "network.backbone": BACKBONES,
    "dataset.source": SOURCES,
}
"""Settings that are chosen by the name of a plug-in."""

Tree = dict[str, Any]

_GROUP_NAMES = (*(field.name for field in dataclasses.fields(Cell)), "runtime", "cluster")


class Composed(NamedTuple):
    """The settings that overrides give; `fitting` holds further overrides that were chosen to fit the images."""

    cell: Cell
    runtime: Runtime
    cluster: Cluster
    fitting: str


class Composer:
    """Makes cells of points. Groups of settings that cells have in common are put together and checked once."""

    def __init__(self, *, prepared: bool = True) -> None:
        """Look up the user's presets.

        Args:
            prepared: Whether to look at what is prepared of one's own images.
        """
        self._prepared = prepared
        self._own = _own_presets()
        self._groups: dict[tuple[object, ...], _Group] = {}

    def compose(self, point: Sequence[str]) -> Composed:
        """Return the cell, the runtime and the cluster of a point.

        Args:
            point: Overrides without choices between values.

        Raises:
            RegbenchError: If an override is unknown or malformed, or gives a cell that cannot be run.
        """
        groups = self._groups_of(point)
        tree = {name: group.plain for name, group in groups.items()}
        fitted = [f"{name}={shown(value)}" for name, value in _fitted(tree, point, prepared=self._prepared).items()]
        if fitted:
            groups = self._groups_of([*point, *fitted])
        made = {name: group.settings for name, group in groups.items()}
        runtime, cluster = made.pop("runtime"), made.pop("cluster")
        return Composed(Cell(**made), runtime, cluster, " ".join(fitted))

    def _groups_of(self, overrides: Sequence[str]) -> dict[str, _Group]:
        """Return each group of settings by its name; a setting of the cell itself is a group too."""
        presets = dict(GROUPS)
        changes: dict[str, list[Override]] = {}
        for override in map(parse, overrides):
            if override.key_or_group in GROUPS:
                presets[override.key_or_group] = str(override.value())
            else:
                changes.setdefault(override.key_or_group.partition(".")[0], []).append(override)
        chosen = tuple(presets.items())
        groups = {
            name: self._group(name, chosen, changes.get(name, ())) for name in dict.fromkeys((*_GROUP_NAMES, *changes))
        }
        if any("${" in override for override in overrides):
            tree = resolved({name: group.plain for name, group in groups.items()})
            groups = {name: _Group(name, value) for name, value in tree.items()}
        return groups

    def _group(self, name: str, presets: tuple[tuple[str, str], ...], changes: Sequence[Override]) -> _Group:
        """Return a group of settings: of the presets, with changes."""
        key = (name, presets, *(override.input_line for override in changes))
        if key not in self._groups:
            tree = self._presets(presets)
            for override in sorted(changes, key=lambda each: each.key_or_group not in PLUG_INS):
                self._put_override(tree, override)
            self._groups[key] = _Group(name, tree[name])
        return self._groups[key]

    def _put_override(self, tree: Tree, override: Override) -> None:
        key, value = str(override.key_or_group), override.value()
        start, _, end = key.partition(".")
        if start == "evaluation" and end.endswith(".dataset") and isinstance(value, str):
            value = self._presets(tuple((GROUPS | {"dataset": value}).items()))["dataset"]
        put(tree, key, value, new=override.is_add() or override.is_force_add())

    def _presets(self, chosen: tuple[tuple[str, str], ...]) -> Tree:
        """Return a new tree of presets, with all defaults."""
        tree: Tree = orjson.loads(_composed(chosen, self._own))
        return tree | {"runtime": plain(Runtime())}  # the environment decides where folders lie by default


@dataclass(frozen=True)
class _Group:
    """A group of settings by its name: plain data, which nobody changes, and the settings that they are."""

    name: str
    plain: Any

    @functools.cached_property
    def settings(self) -> Any:
        """What the plain data are.

        Raises:
            RegbenchError: If they are refused.
        """
        if self.name in ("runtime", "cluster"):
            return from_plain(Runtime if self.name == "runtime" else Cluster, self.plain, f"{self.name}.")
        return setting(Cell, self.name, self.plain)


_OwnPresets = tuple[tuple[Path, int, int], ...]


def _own_presets() -> _OwnPresets:
    """List the user's presets, and what changes when they change."""
    own = sorted(config_folder().glob("*/*.yaml"))
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path in own if (stat := path.lstat()))


@functools.cache
def _composed(chosen: tuple[tuple[str, str], ...], own: _OwnPresets) -> bytes:
    """Return the tree of a choice of presets as JSON, with all defaults; Hydra takes 0.1 s."""
    for group, name in chosen:
        known = sorted({*preset_files(group), *(path.stem for path, *_ in own if path.parent.name == group)})
        if name not in known:
            raise RegbenchError(unknown(group, name, known))
    folder = config_folder()
    path = [f"hydra.searchpath=[file://{folder}]"] if folder.is_dir() else []
    groups = [f"{group}={name}" for group, name in chosen]
    profile = folder / "cluster" / f"{dict(chosen)['cluster']}.yaml"
    if profile.is_file():
        read_yaml(profile)  # which refuses more clearly than Hydra
    node = {"defaults": ["_self_", *({group: name} for group, name in GROUPS.items())]}
    ConfigStore.instance().store(name="run", node=node, provider="regbench")
    try:
        with initialize_config_module("regbench.benchmark.conf", version_base="1.3", job_name="regbench"):
            data = OmegaConf.to_container(compose("run", [*groups, *path]), resolve=True)
    except Exception as error:  # it is written nowhere what Hydra raises for a file that holds something else
        where = f"{profile} is no profile of a cluster" if profile.is_file() else " ".join(groups)
        raise RegbenchError(f"{where}: {_first_line(error)}") from error
    assert isinstance(data, dict)
    return orjson.dumps(_with_defaults({str(name): value for name, value in data.items()}))


def _with_defaults(tree: Tree) -> Tree:
    """Return the tree with the settings that no preset states, those of its plug-ins too."""
    if not isinstance(tree.get("network"), dict) or not isinstance(tree["network"].get("backbone"), dict):
        raise RegbenchError("network: a preset of the network must hold backbone with its name")
    name = tree["network"]["backbone"].get("name")
    whole = merged(copy.deepcopy(_defaults()), {"network": {"backbone": BACKBONES.plain(BACKBONES.build(str(name)))}})
    whole = merged(whole, tree)
    if kinds := tree["augmentation"].get("views"):  # in place of the default ones
        if not isinstance(kinds, dict) or not all(isinstance(kind, dict) for kind in kinds.values()):
            raise RegbenchError("augmentation.views: a preset must hold the settings of each kind of view by its name")
        whole["augmentation"]["views"] = {name: plain(ViewsConfig()) | kind for name, kind in kinds.items()}
    return whole | {"dataset": complete(tree["dataset"])}


def evaluation_defaults() -> Tree:
    """Return the settings that all evaluations share, and those of every registered one by its name."""
    common: Tree = plain(EvaluationOptions())
    return common | {name: plain(EVALUATIONS.build(name)) for name in EVALUATIONS.names()}


@functools.cache
def _defaults() -> Tree:
    """The settings that have a default, of all registered evaluations too."""
    return {
        **defaults(Cell),
        "method": METHODS.plain(METHODS.build("sfrik")),
        "evaluation": evaluation_defaults(),
        "augmentation": defaults(AugmentationConfig),
        "network": defaults(NetworkConfig),
        "cluster": defaults(Cluster),
    }


def merged(base: Tree, over: Mapping[str, Any]) -> Tree:
    """Put the settings of `over` into `base`, group by group, and return it."""
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), dict)
        base[key] = merged(base[key], value) if both else value
    return base


def put(tree: Tree, key: str, value: Any, *, new: bool = False) -> None:
    """Put one setting into a tree of settings, or choose a plug-in by its name.

    Args:
        tree: Tree of settings; it is changed.
        key: Full name of the setting.
        value: Plain data.
        new: Whether it may be one that the tree has not.

    Raises:
        RegbenchError: If there is no such setting or plug-in.
    """
    chosen = key in PLUG_INS and not isinstance(value, Mapping)
    if chosen:
        value = PLUG_INS[key].plain(PLUG_INS[key].build(str(value)))
    *path, name = key.split(".")
    group: Any = tree
    for part in path:
        group = group.get(part) if isinstance(group, dict) else None
    if not isinstance(group, dict) or (name not in group and not new):
        raise RegbenchError(unknown("setting", key, list(_keys(tree))))
    if not chosen and isinstance(value, Mapping) and isinstance(group.get(name), dict):
        merged(group[name], value)
    else:
        group[name] = value


def resolved(tree: Tree) -> Tree:
    """Return a tree whose interpolations, such as ${oc.env:HOME}, are resolved."""
    try:
        data: Any = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except OmegaConfBaseException as error:
        raise RegbenchError(_first_line(error)) from error
    return dict(data)


def _keys(node: object, path: str = "") -> Iterator[str]:
    if path:
        yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _keys(value, f"{path}.{key}" if path else str(key))


def config_folder() -> Path:
    """Where a user's own profiles of clusters lie, in `cluster/`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "regbench"


def _first_line(error: Exception) -> str:
    """Return an error's own words, with the setting that it is about."""
    key = getattr(error, "full_key", None)
    return (f"{key}: " if key else "") + str(error).strip().partition("\n")[0]


def _fitted(tree: Tree, point: Sequence[str], *, prepared: bool) -> dict[str, Any]:
    """Choose what is left open: a warm-up that fits the epochs, and whatever one's own images decide."""
    given = {str(parse(override).key_or_group) for override in point}
    fitted: dict[str, Any] = {}
    epochs, warmup = tree.get("epochs"), tree["optimizer"].get("warmup_epochs")
    in_epochs = tree["optimizer"].get("warmup_steps") is None
    if in_epochs and isinstance(epochs, int) and isinstance(warmup, int | float) and 0 < epochs < 2 * warmup:
        fitted["optimizer.warmup_epochs"] = epochs / 2
    data_dir = Path(str(tree["runtime"].get("data_dir"))) if prepared else None
    fitted |= fitting(tree["dataset"], tree.get("batch_size"), tree.get("epochs"), data_dir, given)
    return {name: value for name, value in fitted.items() if name not in given}


def points(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The product of the overrides' values.

    Raises:
        RegbenchError: If a value is an interval, which has no end of points.
    """
    choices = []
    for _, override, values in row_values(overrides):
        if isinstance(override.value(), IntervalSweep):
            raise RegbenchError(
                f"{override.input_line} is a range, not a grid; search it: regbench tune NAME --trials 16"
            )
        choices.append(values)
    for point in product(*choices):
        yield list(point)


def row_values(overrides: Sequence[str]) -> list[tuple[str, Override, list[str]]]:
    """Key, override and its values, each as an override, of a row; an interval has none.

    A later override of a key replaces an earlier one, and that of a group drops earlier settings of the group's
    members: another method knows nothing of the hyperparameters of the one before. Profiles of clusters all have the
    same settings, so there a cell's own stay.
    """
    parsed = [parse(override) for override in overrides]
    last: dict[str, Override] = {}
    for override in parsed:
        if override.key_or_group != "cluster":
            group = f"{override.key_or_group}."
            last = {key: earlier for key, earlier in last.items() if not key.startswith(group)}
        last[override.key_or_group] = override
    return [
        (
            key,
            override,
            [f"{key}={value}" for value in override.sweep_string_iterator()]
            if override.is_discrete_sweep()
            else []
            if override.is_sweep_override()
            else [override.input_line or ""],
        )
        for key, override in last.items()
    ]


@functools.lru_cache(maxsize=65536)
def parse(override: str) -> Override:
    """Return one override in Hydra's grammar.

    Raises:
        RegbenchError: If it is none.
    """
    try:
        (parsed,) = _parser().parse_overrides([override])
    except HydraException as error:
        raise RegbenchError(
            f"cannot read {override!r}; write key=value, a list as key=[1,2], and quote values with other signs: "
            "key='\"a (b)\"'"
        ) from error
    if parsed.is_delete():
        raise RegbenchError(f"{override!r} takes a setting away, and a cell needs all of them; write key=value")
    if not parsed.key_or_group or parsed.key_or_group.partition(".")[0] == "hydra":
        raise RegbenchError(f"{override!r} names no setting; write key=value, such as epochs=5")
    return parsed


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()
