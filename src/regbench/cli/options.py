"""Options and arguments that several commands share, and what refuses their values."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from regbench.cli.completion import complete_cell, complete_started
from regbench.errors import RegbenchError
from regbench.text import refuse_name

OVERRIDES_HELP = """
Settings are given as key=value in Hydra's grammar:

\b
  method=vicreg                    another regularizer (names: regbench methods)
  method.weights=[1,40,40]         one of its hyperparameters
  embedding_dim=1024 batch_size=512 epochs=20 seed=1
  dataset=cifar10 augmentation=small_color network=resnet18_small
  optimizer.base_lr=0.5 optimizer.warmup_epochs=2
  evaluation.while_training=[knn]  accuracy while training, for curves
  runtime.device=cuda runtime.data_dir=/scratch/data
"""


def _known_names(
    ctx: click.Context, param: click.Parameter, overrides: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse unknown names of plug-ins, and settings that a later one drops, before torch is
    imported.
    """
    from regbench.benchmark.settings.overrides import refuse_dropped
    from regbench.plugins import refuse_unknown_in

    refuse_unknown_in(overrides)
    refuse_dropped(overrides)
    return overrides


class PathType(click.Path):
    """Paths that are given to commands.

    An empty one is refused, as it would stand for this folder, and ~, which no shell wrote out.
    """

    def __init__(self, **options: Any) -> None:
        """Take the options of `click.Path`, but for the type."""
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if not os.fspath(value):
            self.fail("the path is empty; give . for this folder", param, ctx)
        if os.fspath(value).startswith("~"):
            self.fail(f"{value}: no shell reads ~ here; write it out", param, ctx)
        return super().convert(value, param, ctx)


# Without the option --runs-dir, as for the command that prepares data sets.
settings = click.argument("overrides", nargs=-1, callback=_known_names)


def overrides_and_runs_dir(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take settings of runs, and the folder of runs by the option that all commands have for it."""

    @functools.wraps(command)
    def with_runs_dir(*, overrides: tuple[str, ...], runs_dir: Path | None, **others: Any) -> Any:
        if runs_dir is not None:
            from regbench.wording import quoted

            # The option counts more than a setting.
            overrides = (*overrides, f"runtime.runs_dir={quoted(str(runs_dir))}")
        return command(overrides=overrides, **others)

    folder = click.option(
        "--runs-dir",
        type=PathType(file_okay=False),
        help="Folder of run directories.  [default: runs, or $REGBENCH_RUNS_DIR]",
    )
    return settings(folder(with_runs_dir))


def positive(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse a number that is not above 0 and finite."""
    if value is not None and not 0 < value < math.inf:
        raise RegbenchError(f"{param.get_error_hint(ctx)}: {value:g} is not a number above 0")
    return value


def folder_name(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse a name, or one of several, that would leave the folder that it is to lie in."""
    # click gives a tuple for what may be repeated or has several parts.
    for name in value if isinstance(value, tuple) else (value,):
        refuse_name(param.get_error_hint(ctx), name)
    return value


def make_folder(folder: Path) -> None:
    """Make the folder that `--out` asks for, before any work that would be lost without it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot make the folder {folder}: {error.strerror}"
        raise RegbenchError(f"{what}; give another --out") from error


runs_dir_option = click.option(
    "--runs-dir",
    type=PathType(file_okay=False),
    default="runs",
    envvar="REGBENCH_RUNS_DIR",
    show_envvar=True,
    help="Folder of run directories.",
)


def out_in_runs(name: str) -> Callable[[Any], Any]:
    """Make the option `--out` of a command that writes into the folder of runs."""

    # Asked for when the command runs, as the folder of runs may come from the environment.
    def default() -> str:
        from regbench.benchmark.settings.runtime import Runtime

        return str(Path(Runtime().runs_dir) / name)

    return click.option(
        "--out",
        type=PathType(file_okay=False),
        default=default,
        show_default=f"{name} in the folder of runs",
        help="Folder to write to.",
    )


def of_started_sweep(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take the name of a sweep that was started and the folder of runs.

    The command gets the sweep's `folder`.
    """

    @functools.wraps(command)
    def with_folder(*, name: str, runs_dir: Path, **others: Any) -> Any:
        from regbench.sweeps.status import sweep_folder

        return command(folder=sweep_folder(runs_dir, name), **others)

    name_argument = click.argument("name", shell_complete=complete_started)
    return name_argument(runs_dir_option(with_folder))


cells_argument = click.argument("cells", nargs=-1, shell_complete=complete_cell)


class CommaSeparated(click.types.StringParamType):
    """Values separated by commas, each made by `kind`, which messages call `what`."""

    def __init__(self, kind: Callable[[str], Any], what: str) -> None:
        """Take any number of values."""
        self._kind, self._what = kind, what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the values as a tuple."""
        if not isinstance(value, str):  # a default
            return value
        parts = [part.strip() for part in value.split(",")]
        with contextlib.suppress(ValueError):
            if all(parts):
                return tuple(map(self._kind, parts))
        option = param.opts[0] if param else ""
        raise RegbenchError(f"{option} must be {self._what} separated by commas, not {value!r}")


VALUES = CommaSeparated(str, "values")
WHOLE_NUMBERS = CommaSeparated(int, "whole numbers")
