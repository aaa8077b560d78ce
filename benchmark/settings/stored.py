"""Cells that a run directory or a job keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.compose import put
from regbench.benchmark.settings.overrides import parse
from regbench.benchmark.settings.preset_tree import evaluation_defaults, merged, resolved
from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.fit import complete
from regbench.errors import RegbenchError
from regbench.methods import METHODS
from regbench.settings import at, read_yaml


def load_cell(path: Path) -> Cell:
    """Return the cell of a run directory's `config.yaml`."""
    data = read_yaml(path)
    try:
        return Cell.stored(data)
    except RegbenchError as error:
        raise RegbenchError(
            f"{path} is no config.yaml of a run of this version: {error}"
        ) from error


def load_config(path: Path, overrides: Sequence[str] = ()) -> tuple[Cell, Runtime]:
    """Return the cell of a run directory's `config.yaml`, changed by overrides of single settings,
    and the runtime.

    An override of the runtime begins with `runtime.`. Presets and sweeps are refused.
    """
    own = [override for override in overrides if override.startswith("runtime.")]
    changes = [parse(override) for override in overrides if override not in own]
    cell = load_cell(path)
    tree = cell.plain()
    tree["method"] = METHODS.plain(cell.method)
    tree["evaluation"] = merged(evaluation_defaults(), tree["evaluation"])
    tree["dataset"] = complete(tree["dataset"])
    for change in changes:
        key = str(change.key_or_group)
        if change.is_sweep_override():
            raise RegbenchError(f"{change.input_line}: give one value")
        node = at(tree, key.split("."))
        # A group would need a preset, and the run keeps the settings, not the names of its presets.
        if isinstance(node, dict) and node:
            first = next((name for name in node if name != "name"), "name")
            remedy = f"give single settings of this run, such as {key}.{first}=3"
            raise RegbenchError(f"{change.input_line}: {remedy}")
        try:
            put(tree, key, change.value())
        except RegbenchError as error:
            raise RegbenchError(f"{path}: {error}") from error
    return Cell.from_plain(resolved(tree)), load_run(own)[1]
