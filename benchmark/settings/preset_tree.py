"""Trees of settings that Hydra makes of presets: YAML files of the groups `GROUPS`, ours and the
user's.

A setting that no preset states has the default of its class.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.evaluate.base import EVALUATIONS
from regbench.benchmark.settings.architecture import NetworkConfig
from regbench.benchmark.settings.cell import Cell, EvaluationOptions
from regbench.benchmark.settings.presets import preset_files
from regbench.benchmark.settings.runtime import Cluster
from regbench.datasets.config import AugmentationConfig, ViewsConfig
from regbench.datasets.fit import complete
from regbench.errors import RegbenchError
from regbench.methods import METHODS
from regbench.plugins import depends_on_plug_ins
from regbench.settings import defaults, plain, read_yaml
from regbench.wording import quoted, unknown

GROUPS = {
    "dataset": "fashion_mnist",
    "augmentation": "small_grey",
    "network": "resnet_tiny",
    "cluster": "local",
}
"""Groups of presets, and the default of each."""

_HYDRA = threading.Lock()

Tree = dict[str, Any]
Presets = tuple[tuple[str, str], ...]
OwnPresets = tuple[tuple[Path, int, int], ...]


def config_folder() -> Path:
    """Return the folder of a user's own presets, such as profiles of clusters in `cluster/`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "regbench"


def own_presets() -> OwnPresets:
    """List the user's presets, each with its time and size, which change when it changes."""
    found = []
    for path in sorted(config_folder().glob("*/*.yaml")):
        stat = path.lstat()
        found.append((path, stat.st_mtime_ns, stat.st_size))
    return tuple(found)


def preset_tree(chosen: Presets, own: OwnPresets) -> Tree:
    """Return a new tree of the chosen presets (group, name), with all defaults.

    `own` are the user's presets.
    """
    tree: Tree = orjson.loads(_preset_json(chosen, own))
    return tree


# Hydra takes 0.1 s. The cache holds JSON because callers change their trees.
@depends_on_plug_ins
@functools.cache
def _preset_json(chosen: Presets, own: OwnPresets) -> bytes:
    own_files = {}
    for group, name in chosen:
        of_user = {path.stem for path, *_ in own if path.parent.name == group}
        known = of_user | {*preset_files(group)}
        if name not in known:
            raise RegbenchError(unknown(group, name, sorted(known)))
        own_file = config_folder() / group / f"{name}.yaml"
        if own_file.is_file():
            read_yaml(own_file)  # which refuses more clearly than Hydra
            own_files[f"{group}/{name}"] = str(own_file)
    groups = [f"{group}={name}" for group, name in chosen]
    try:
        data = _from_hydra(groups)
    # Hydra documents no list of what it raises for a file that holds something else.
    except Exception as error:
        said = first_line(error)
        wrong = [file for preset, file in own_files.items() if preset in said]
        where = " or ".join(wrong or own_files.values()) or " ".join(groups)
        raise RegbenchError(f"{where} cannot be used: {said}") from error
    return orjson.dumps(_with_defaults(data))


def _from_hydra(groups: list[str]) -> Tree:
    node = {"defaults": ["_self_", *({group: name} for group, name in GROUPS.items())]}
    # Hydra can choose a preset only in place of another one, so every group has a default.
    ConfigStore.instance().store(name="run", node=node, provider="regbench")
    folder = config_folder()
    path = [f"hydra.searchpath=[{quoted(f'file://{folder}')}]"] if folder.is_dir() else []
    conf = "regbench.benchmark.conf"
    # All threads share Hydra's state. If an application that calls us has one, it is put back.
    with _HYDRA:
        of_application = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with initialize_config_module(conf, version_base="1.3", job_name="regbench"):
                return _container(compose("run", [*groups, *path]))
        finally:
            GlobalHydra.instance().hydra = of_application


def _container(config: Any) -> Tree:
    data: Any = OmegaConf.to_container(config, resolve=True)
    return {str(name): value for name, value in data.items()}


def _with_defaults(tree: Tree) -> Tree:
    """Return the tree with the settings that no preset states, those of its plug-ins too."""
    network = tree.get("network")
    if not isinstance(network, dict) or not isinstance(network.get("backbone"), dict):
        raise RegbenchError("network: a preset of the network must hold backbone with its name")
    backbone = BACKBONES.build(str(network["backbone"].get("name")))
    whole = merged(copy.deepcopy(_defaults()), {"network": {"backbone": BACKBONES.plain(backbone)}})
    whole = merged(whole, tree)
    whole["dataset"] = complete(tree["dataset"])
    kinds = tree["augmentation"].get("views")
    if kinds:
        # A preset's kinds of views take the place of the default ones; merged, both would be there.
        views = whole["augmentation"]["views"] = {}
        if not isinstance(kinds, dict):
            kinds = {"": kinds}
        for name, kind in kinds.items():
            if not isinstance(kind, dict):
                what = "a preset must hold the settings of each kind of view by its name"
                raise RegbenchError(f"augmentation.views: {what}")
            views[name] = plain(ViewsConfig()) | kind
    return whole


@depends_on_plug_ins
@functools.cache
def _defaults() -> Tree:
    """Return the settings that have a default, those of all registered evaluations too."""
    return {
        **defaults(Cell),
        "method": METHODS.plain(METHODS.build("sfrik")),
        "evaluation": evaluation_defaults(),
        "augmentation": defaults(AugmentationConfig),
        "network": defaults(NetworkConfig),
        "cluster": defaults(Cluster),
    }


def evaluation_defaults() -> Tree:
    """Return the settings that all evaluations share, and those of every registered one by its
    name.
    """
    common: Tree = plain(EvaluationOptions())
    return common | {name: plain(EVALUATIONS.build(name)) for name in EVALUATIONS.names()}


def merged(base: Tree, over: Mapping[str, Any]) -> Tree:
    """Put the settings of `over` into `base`, group by group, and return it."""
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), dict)
        base[key] = merged(base[key], value) if both else value
    return base


def resolved(tree: Tree) -> Tree:
    """Return a tree whose interpolations, such as ${oc.env:HOME}, are resolved."""
    try:
        return _container(OmegaConf.create(tree))
    except OmegaConfBaseException as error:
        raise RegbenchError(first_line(error)) from error


def first_line(error: Exception) -> str:
    """Return an error's own words, with the setting that it is about."""
    words = str(error).strip().partition("\n")[0]
    key = getattr(error, "full_key", None)
    return f"{key}: {words}" if key else words
