"""Completion of names in the shell."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click
from click.shell_completion import CompletionItem


def _names(folder: str) -> list[str]:
    files = (resources.files("regbench") / "benchmark" / "conf" / folder).iterdir()
    return sorted(path.name.removesuffix(".yaml") for path in files if path.name.endswith(".yaml"))


def complete_sweep(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the presets of sweeps."""
    return [CompletionItem(name) for name in _names("sweep") if name.startswith(incomplete)]


def complete_dataset(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the data sets that have a configuration."""
    return [CompletionItem(name) for name in [*_names("dataset"), "voc07"] if name.startswith(incomplete)]


def complete_method(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the registered methods."""
    from regbench import methods

    return [CompletionItem(name) for name in methods.names() if name.startswith(incomplete)]


_COMPLETED = (
    *("method", "dataset", "augmentation", "network", "embedding_dim", "batch_size", "epochs", "seed"),
    *("optimizer.base_lr", "optimizer.warmup_epochs", "runtime.device", "runtime.loader"),
)


def complete_override(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the settings, and after the equals sign the values that have names."""
    key, equals, value = incomplete.partition("=")
    prefix = f"{key}="
    # Bash ends words at "=": the key is then a word before this one, and the value alone is to be completed.
    words = [word for word in ctx.params.get("overrides") or () if word != "="]
    if not equals and words and words[-1] in _COMPLETED:
        key, equals, value, prefix = words[-1], "=", incomplete, ""
    if not equals:
        return [CompletionItem(f"{name}=") for name in _COMPLETED if name.startswith(key)]
    known: list[str] = []
    if key == "method":
        from regbench import methods

        known = methods.names()
    elif key in ("dataset", "augmentation", "network"):
        known = _names(key)
    return [CompletionItem(prefix + name) for name in known if name.startswith(value)]


def complete_started(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the sweeps that were started."""
    folders = sorted(Path(ctx.params.get("runs_dir") or "runs").glob(f"{incomplete}*/sweep.json"))
    return [CompletionItem(path.parent.name) for path in folders]


def complete_cell(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the cells of the sweep that stands before on the command line."""
    folder = Path(ctx.params.get("runs_dir") or "runs") / str(ctx.params.get("name"))
    return [CompletionItem(path.parent.name) for path in sorted(folder.glob(f"{incomplete}*/config.yaml"))]


def complete_more_methods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the methods that were not given yet."""
    given = ctx.params.get(param.name or "") or ()
    return [item for item in complete_method(ctx, param, incomplete) if item.value not in given]
