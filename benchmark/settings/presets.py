"""The package's presets: YAML files of settings, by name."""

from __future__ import annotations

import functools
from pathlib import Path

from regbench.datasets.config import DatasetConfig
from regbench.settings import from_plain, read_yaml

CONF = Path(__file__).parents[1] / "conf"


@functools.cache
def preset_files(group: str) -> dict[str, Path]:
    """Return the presets of a group, such as "dataset": name -> file, sorted by name."""
    return {path.stem: path for path in sorted((CONF / group).glob("*.yaml"))}


@functools.cache
def dataset_preset(name: str) -> DatasetConfig:
    """Return a data set that comes with the package."""
    return from_plain(DatasetConfig, read_yaml(preset_files("dataset")[name]), "dataset.")


def sweep_names() -> dict[str, str]:
    """Return the sweeps that come with the package: name -> description."""
    return {
        name: str(read_yaml(path)["description"]) for name, path in preset_files("sweep").items()
    }
