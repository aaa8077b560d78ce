"""Completion of names in the shell."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_sweep(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the presets of sweeps."""
    from regbench.benchmark.settings.presets import preset_files

    return _beginning(preset_files("sweep"), incomplete)


def complete_recipe(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the recipes with published numbers."""
    from regbench.benchmark.settings.recipes import recipes

    return _beginning(recipes(), incomplete)


def complete_dataset(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the data sets that have a configuration."""
    from regbench.benchmark.settings.presets import preset_files

    return _beginning([*preset_files("dataset"), "voc07"], incomplete)


def complete_method(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the registered methods that were not given yet."""
    from regbench import methods

    given = ctx.params.get(param.name or "") or ()
    return _beginning([name for name in methods.names() if name not in given], incomplete)


def complete_override(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the settings, and after the equals sign the values that have names."""
    from regbench.benchmark.settings.compose import PLUG_INS
    from regbench.benchmark.settings.listing import listing
    from regbench.benchmark.settings.presets import preset_files

    values: dict[str, Iterable[str]] = {}
    for group in ("dataset", "augmentation", "network", "cluster"):
        values[group] = preset_files(group)
    for place, registry in PLUG_INS.items():
        values[place] = registry.names()
    keys = dict.fromkeys(values)
    for _, found in listing():
        keys |= dict.fromkeys(setting.name for setting in found)
    key, equals, beginning = incomplete.partition("=")
    if equals:
        return [CompletionItem(f"{key}={name}") for name in values.get(key, ()) if name.startswith(beginning)]
    # Bash ends words at "=": the key is then a word before this one, and the value alone is to be completed.
    words = [word for word in ctx.params.get("overrides") or () if word != "="]
    if words and words[-1] in keys:
        return _beginning(values.get(words[-1], ()), incomplete)
    return _beginning([f"{name}=" for name in keys], incomplete)


def complete_started(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the sweeps that were started."""
    return _folders_with("sweep.json", Path(ctx.params.get("runs_dir") or "runs"), incomplete)


def complete_cell(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the cells of the sweep that stands before on the command line."""
    sweep = Path(ctx.params.get("runs_dir") or "runs") / str(ctx.params.get("name"))
    return _folders_with("config.yaml", sweep, incomplete)


def _folders_with(file: str, parent: Path, incomplete: str) -> list[CompletionItem]:
    found = sorted(parent.glob(f"{incomplete}*/{file}"))
    return [CompletionItem(path.parent.name) for path in found]
