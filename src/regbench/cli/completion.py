"""Completion of names in the shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _offer(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    """Make the completion of an argument from the names that it can have."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # What was given once is not offered again.
        given = ctx.params.get(param.name or "") or ()
        return [CompletionItem(name) for name in names(ctx) if name.startswith(incomplete) and name not in given]

    return complete


@_offer
def complete_sweep(ctx: click.Context) -> Iterable[str]:
    """Offer the presets of sweeps."""
    from regbench.benchmark.settings.presets import preset_files

    return preset_files("sweep")


@_offer
def complete_recipe(ctx: click.Context) -> Iterable[str]:
    """Offer the recipes with published numbers."""
    from regbench.benchmark.settings.recipes import recipes

    return recipes()


@_offer
def complete_dataset(ctx: click.Context) -> Iterable[str]:
    """Offer the data sets that have a configuration."""
    from regbench.benchmark.settings.presets import preset_files

    return [*preset_files("dataset"), "voc07"]  # which is only evaluated on, so it has no preset


@_offer
def complete_method(ctx: click.Context) -> Iterable[str]:
    """Offer the registered methods."""
    from regbench import methods

    return methods.names()


@_offer
def complete_started(ctx: click.Context) -> Iterable[str]:
    """Offer the sweeps that were started."""
    return _folders_with("sweep.json", _runs_dir(ctx))


@_offer
def complete_cell(ctx: click.Context) -> Iterable[str]:
    """Offer the cells of the sweep that stands before on the command line."""
    return _folders_with("config.yaml", _runs_dir(ctx) / str(ctx.params.get("name")))


def _folders_with(file: str, parent: Path) -> list[str]:
    return sorted(path.parent.name for path in parent.glob(f"*/{file}"))


def _runs_dir(ctx: click.Context) -> Path:
    return Path(ctx.params.get("runs_dir") or "runs")


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
    key, equals, _ = incomplete.partition("=")
    # Bash ends words at "=": the key is then a word before this one, and the value alone is to be completed.
    words = [word for word in ctx.params.get("overrides") or () if word != "="]
    if equals:
        offered = [f"{key}={name}" for name in values.get(key, ())]
    elif words and words[-1] in keys:
        offered = list(values.get(words[-1], ()))
    else:
        offered = [f"{name}=" for name in keys]
    return [CompletionItem(name) for name in offered if name.startswith(incomplete)]
