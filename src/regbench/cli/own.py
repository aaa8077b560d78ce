"""The command that goes from a folder of images to an answer."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from regbench.api import executor
from regbench.cli.data import prepare
from regbench.cli.grid import conclude
from regbench.cli.group import main
from regbench.cli.options import OVERRIDES_HELP, PathType, overrides_and_runs_dir, positive
from regbench.errors import RegbenchError


@main.command(epilog=OVERRIDES_HELP)
@click.argument("folder", type=PathType(exists=True, file_okay=False))
@overrides_and_runs_dir
@click.option("--hours", type=float, default=1.0, callback=positive, help="The budget.")
@click.option(
    "--plan", is_flag=True, help="Measure, and say what the budget can tell; train no more."
)
@click.option("--skip-unreadable", is_flag=True, help="Leave out images that cannot be read.")
@click.pass_context
def own(
    ctx: click.Context,
    folder: Path,
    overrides: Sequence[str],
    hours: float,
    plan: bool,
    skip_unreadable: bool,
) -> None:
    """Say which method suits your own images, within some hours on this machine.

    FOLDER holds a folder of images for each class, or train/ with these. The images are prepared,
    a short training is measured, and what the budget pays is run: methods whose weight and
    learning rate are searched by successive halving, three seeds of the best of each, untrained
    features and the supervised network. The report begins with the answer, in at most five
    sentences. The same command goes on where it was stopped.

    \b
      regbench own birds --plan            what an hour can tell
      regbench own birds --hours 3
    """
    from regbench.benchmark.settings.runtime import STAGES
    from regbench.benchmark.settings.sweep import load_dataset, load_sweep, read_rows
    from regbench.datasets.stored.manifest import Manifest
    from regbench.reports.rows.power import can_tell
    from regbench.sweeps.own import own_file, relabelled
    from regbench.sweeps.run import run_tuning
    from regbench.wording import quoted

    if not any(override.startswith("dataset.name=") for override in overrides):
        overrides = (f"dataset.name={quoted(folder.resolve().name)}", *overrides)
    config, runtime = load_dataset(["dataset=imagefolder", *overrides])
    data_dir, runs_dir = Path(runtime.data_dir), Path(runtime.runs_dir)
    given = [each for each in overrides if not each.startswith("dataset.name=")]
    if skip_unreadable:
        given.append("--skip-unreadable")
    again = config.prepare_command.replace("FOLDER", shlex.quote(str(folder)), 1)
    again += f" {shlex.join([*given, '--force'])}"
    if force := relabelled(config, data_dir, runs_dir, folder, again):
        click.echo(f"{folder} was prepared with other labels, and is prepared again")
    ctx.invoke(
        prepare,
        dataset="imagefolder",
        source_dir=folder,
        force=force,
        skip_unreadable=skip_unreadable,
        overrides=overrides,
        again=again,
    )
    # Another process may have prepared another folder under this name meanwhile.
    relabelled(config, data_dir, runs_dir, folder, again)
    manifest = Manifest.load(data_dir, config.name)
    if len(manifest.class_names) == 1:
        raise RegbenchError(
            f"all images are of one class, {manifest.class_names[0]!r}: give labels of two classes "
            "or more (docs/data.md), or take all images without: dataset.source.unlabelled=true"
        )
    execute = executor(None, click.echo)
    file = own_file(runs_dir, manifest, hours, overrides, execute)
    planned = read_rows(str(file), overrides)
    # The supervised network is no method's competitor.
    rows = sum("baseline=supervised" not in row for row in planned.rows)
    test_images = manifest.splits["test"]["num_samples"]
    click.echo(f"\n{planned.description}.")
    if manifest.class_names:
        click.echo(f"{can_tell(rows, len(planned.final_seeds), test_images)}\n")
    else:
        click.echo("What this can tell: which methods learn anything here, and at what cost.\n")
    if plan:
        return
    if manifest.class_names:
        final = run_tuning(str(file), overrides, execute, click.echo)
        assert final is not None  # not on Slurm
    else:
        final = load_sweep(str(file), overrides)
    conclude(final, execute(final, STAGES), report=True)
