"""All settings that there are, for a user to look up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from regbench.benchmark.evaluate.base import EVALUATIONS
from regbench.benchmark.settings.cell import Cell, EvaluationOptions
from regbench.benchmark.settings.compose import PLUG_INS
from regbench.benchmark.settings.runtime import Cluster, Runtime
from regbench.datasets.config import ViewsConfig
from regbench.plugins import Registry
from regbench.settings import Setting, describe, plain, shown


def listing() -> Iterator[tuple[str, list[Setting]]]:
    """Yield the settings of a cell, of each plug-in but the regularizers, of the runtime and of the cluster.

    Yields:
        A title and the settings under it.
    """
    groups = ("evaluation", *PLUG_INS)
    yield "cell", [setting for setting in describe(Cell) if setting.name not in groups]
    yield "views of the augmentation, by kind", describe(ViewsConfig, "augmentation.views.KIND.")
    yield "evaluation", describe(EvaluationOptions, "evaluation.")
    for name in EVALUATIONS.names():
        yield f"evaluation {name}", _described(EVALUATIONS, name, f"evaluation.{name}.")
    for place, registry in PLUG_INS.items():
        if place != "method":  # `regbench methods` lists those
            for name in registry.names():
                yield f"{place}={name}", _described(registry, name, f"{place}.")
    yield "runtime", describe(Runtime, "runtime.")
    yield "cluster", describe(Cluster, "cluster.")


def _described(registry: Registry[Any], name: str, prefix: str) -> list[Setting]:
    """The settings of a plug-in, with the defaults of its name, which may be that of a preset."""
    found = describe(registry.of(name), prefix)
    defaults = {f"{prefix}{key}": shown(plain(value)) for key, value in registry.defaults(name).items()}
    return [replace(setting, default=defaults.get(setting.name, setting.default)) for setting in found]
