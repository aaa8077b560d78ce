"""From overrides to cells.

Hydra puts presets together, once for each choice of them. Plug-ins and single settings are then put
into a copy of that tree, group by group.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override

from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.overrides import parse
from regbench.benchmark.settings.preset_tree import (
    GROUPS,
    Presets,
    Tree,
    merged,
    own_presets,
    preset_tree,
    resolved,
)
from regbench.benchmark.settings.runtime import Cluster, Runtime
from regbench.benchmark.training.optimizers.base import OPTIMIZERS
from regbench.datasets.fit import fitting
from regbench.datasets.sources.base import SOURCES
from regbench.errors import RegbenchError
from regbench.methods import METHODS
from regbench.plugins import Registry
from regbench.settings import at, from_plain, names_in, plain, setting
from regbench.wording import shown, unknown

PLUG_INS: dict[str, Registry[Any]] = {
    "method": METHODS,
    "optimizer": OPTIMIZERS,
    "network.backbone": BACKBONES,
    "dataset.source": SOURCES,
}
"""Settings that are chosen by the name of a plug-in."""

# The groups of settings beside those of a cell.
_BESIDE: dict[str, Any] = {"runtime": Runtime, "cluster": Cluster}
_GROUP_NAMES = (*(field.name for field in dataclasses.fields(Cell)), *_BESIDE)


class Composed(NamedTuple):
    """Settings that overrides give.

    `fitting` holds further overrides that were chosen to fit the images.
    """

    cell: Cell
    runtime: Runtime
    cluster: Cluster
    fitting: str


class Composer:
    """Makes cells of points.

    Groups of settings that cells have in common are put together and checked once.
    """

    def __init__(self, *, prepared: bool = True) -> None:
        """Look up the user's presets.

        `prepared`: whether to look at the user's own prepared images too.
        """
        self._prepared = prepared
        self._own = own_presets()
        self._groups: dict[tuple[object, ...], Any] = {}
        self._weights: dict[tuple[object, ...], Any] = {}
        self._made: dict[tuple[str, int], tuple[Any, Any]] = {}

    def compose(self, point: Sequence[str]) -> Composed:
        """Return the cell, the runtime and the cluster of a point: overrides without choices
        between values.
        """
        tree = self._tree(point)
        given: set[str] = set()
        for override in map(parse, point):
            # A mapping gives its members too.
            given.update(names_in(override.value(), override.key_or_group))
        chosen = _fitted(tree, given, prepared=self._prepared)
        fitted = [f"{name}={shown(value)}" for name, value in chosen.items()]
        # Again from the start, as a fitted setting may be that of a plug-in or a group.
        if fitted:
            tree = self._tree([*point, *fitted])
        made = {name: self._settings(name, data) for name, data in tree.items()}
        runtime, cluster = made.pop("runtime"), made.pop("cluster")
        cell = self._with_weights(Cell(**made), given)
        return Composed(cell, runtime, cluster, " ".join(fitted))

    def _with_weights(self, cell: Cell, given: Collection[str]) -> Cell:
        """Note the SHA-256 of the weights that the network begins with, and the colours that they
        expect, where these are not `given`.
        """
        network, dataset = cell.network, cell.dataset
        # Whether weights fit depends on the size of the images.
        if network.init is None or not self._prepared:
            return cell
        # It needs torch, and few cells need it.
        from regbench.benchmark.backbones.weights import load_backbone

        asked = network.init, network.backbone, dataset.input_channels, dataset.image_size
        if asked not in self._weights:
            found = load_backbone(*asked)
            self._weights[asked] = found.sha256, found.mean, found.std
        sha256, mean, std = self._weights[asked]
        if network.init_sha256 is not None:
            network.refuse_other_weights(sha256)
        network = replace(network, init_sha256=sha256)
        for name, values in (("mean", mean), ("std", std)):
            if values and f"dataset.{name}" not in given:
                dataset = replace(dataset, **{name: values})
        return replace(cell, network=network, dataset=dataset)

    def _tree(self, overrides: Sequence[str]) -> Tree:
        """Return the plain data of all groups, which nobody may change: cells share them.

        A setting of the cell itself is a group too.
        """
        presets = dict(GROUPS)
        changes: dict[str, list[Override]] = {name: [] for name in _GROUP_NAMES}
        for override in map(parse, overrides):
            key = override.key_or_group
            if key in GROUPS:
                presets[key] = str(override.value())
            else:
                changes.setdefault(key.partition(".")[0], []).append(override)
        chosen, tree = tuple(presets.items()), {}
        for name, own in changes.items():
            place = (name, chosen, *(override.input_line for override in own))
            if place not in self._groups:
                whole = self._presets(chosen)
                # A plug-in comes before its settings, wherever it stands on the line.
                for override in sorted(own, key=lambda each: each.key_or_group not in PLUG_INS):
                    key, value = override.key_or_group, override.value()
                    if re.fullmatch(r"evaluation\..+\.dataset", key) and isinstance(value, str):
                        # The data set of an evaluation may be given by the name of a preset too.
                        of_evaluation = tuple((GROUPS | {"dataset": value}).items())
                        value = self._presets(of_evaluation)["dataset"]
                        put(whole, key, None)  # nothing stays of the data set before
                    put(whole, key, value, new=override.is_add() or override.is_force_add())
                self._groups[place] = whole[name]
            tree[name] = self._groups[place]
        # An interpolation may name a setting of another group, so it needs the whole tree.
        return resolved(tree) if any("${" in override for override in overrides) else tree

    def _settings(self, name: str, data: Any) -> Any:
        """Return the settings made of the plain data of a group, which is looked up by identity."""
        place = name, id(data)
        if place not in self._made:
            if name in _BESIDE:
                made: Any = from_plain(_BESIDE[name], data, f"{name}.")
            else:
                made = setting(Cell, name, data)
            # The data are kept too, so that no other object gets their id.
            self._made[place] = data, made
        return self._made[place][1]

    def _presets(self, chosen: Presets) -> Tree:
        # The runtime's defaults are not cached: the environment decides where folders lie.
        return preset_tree(chosen, self._own) | {"runtime": plain(Runtime())}


def put(tree: Tree, key: str, value: Any, *, new: bool = False) -> None:
    """Put one setting, plain data, into a tree of settings, or choose a plug-in by its name; refuse
    what is unknown.

    A setting that the tree lacks is unknown, unless it is `new`.
    """
    is_name = key in PLUG_INS and not isinstance(value, Mapping)
    if is_name:
        value = PLUG_INS[key].plain(PLUG_INS[key].build(str(value)))
    *path, name = key.split(".")
    if name == "name" and ".".join(path) in PLUG_INS:
        raise RegbenchError(f"{key}={shown(value)}: write {'.'.join(path)}={value}")
    group = at(tree, path)
    if not isinstance(group, dict) or (name not in group and not new):
        raise RegbenchError(unknown("setting", key, list(names_in(tree))))
    if key in PLUG_INS and not is_name and "name" in value:
        put(tree, key, value["name"])
        value = {member: inner for member, inner in value.items() if member != "name"}
    if not is_name and isinstance(value, Mapping) and isinstance(group.get(name), dict):
        merged(group[name], value)
    else:
        group[name] = value  # settings of another plug-in would mean nothing to the new one


def _fitted(tree: Tree, given: Collection[str], *, prepared: bool) -> dict[str, Any]:
    """Choose what is left open: a warm-up that fits the epochs, and whatever one's own images
    decide; settings that are `given`, by name, stay.
    """
    fitted: dict[str, Any] = {}
    epochs: Any = tree.get("epochs")
    warmup: Any = tree["optimizer"].get("warmup_epochs")
    # Values of other types are refused later, by the classes.
    are_numbers = isinstance(epochs, int) and isinstance(warmup, int | float)
    in_epochs = tree["optimizer"].get("warmup_steps") is None
    is_open = "optimizer.warmup_epochs" not in given and in_epochs
    if is_open and are_numbers and 0 < epochs < 2 * warmup:
        fitted["optimizer.warmup_epochs"] = epochs / 2
    data_dir = Path(str(tree["runtime"].get("data_dir"))) if prepared else None
    return fitted | fitting(tree["dataset"], tree.get("batch_size"), epochs, data_dir, given)
