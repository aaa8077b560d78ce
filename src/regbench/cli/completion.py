"""Completion of names in the shell: of those that are found without torch, whose import takes
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _offer(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    """Make the completion of an argument from the names that it can have."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # A name that was given once is not offered again.
        given = ctx.params.get(param.name or "") or ()
        fitting = (name for name in names(ctx) if name.startswith(incomplete))
        return [CompletionItem(name) for name in fitting if name not in given]

    return complete


@_offer
def complete_sweep(ctx: click.Context) -> Iterable[str]:
    """Offer the presets of sweeps."""
    from regbench.benchmark.settings.presets import preset_files

    return preset_files("sweep")


@_offer
def complete_dataset(ctx: click.Context) -> Iterable[str]:
    """Offer the data sets that have a configuration."""
    from regbench.benchmark.settings.presets import preset_files

    return [*preset_files("dataset"), "voc07"]  # which is only evaluated on, so it has no preset


@_offer
def complete_method(ctx: click.Context) -> Iterable[str]:
    """Offer our own methods."""
    from regbench.plugins import own_names

    return own_names("method")


@_offer
def complete_started(ctx: click.Context) -> Iterable[str]:
    """Offer the sweeps that were started."""
    return _folders_with("sweep.json", ctx)


@_offer
def complete_cell(ctx: click.Context) -> Iterable[str]:
    """Offer the cells of the sweep that stands before on the command line."""
    return _folders_with("config.yaml", ctx, str(ctx.params.get("name")))


def _folders_with(file: str, ctx: click.Context, sweep: str = "") -> list[str]:
    parent = Path(ctx.params.get("runs_dir") or "runs", sweep)
    return sorted(path.parent.name for path in parent.glob(f"*/{file}"))
