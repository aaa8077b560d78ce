"""Commands that bring results to others: submit, verify, leaderboard."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from regbench.cli.completion import complete_started
from regbench.cli.group import main
from regbench.cli.options import PathType, folder_name, runs_dir_option
from regbench.text import counted, printable

if TYPE_CHECKING:
    from regbench.tracks.own_loss import LossFile

_losses_option = click.option(
    "--loss",
    "losses",
    multiple=True,
    help="File of a challenge's loss; may be repeated. It runs, in processes of its own; read it "
    "before.",
)


def _entered(ctx: click.Context, losses: Sequence[str]) -> dict[str, LossFile]:
    """Let stand-ins for the losses of challenges be methods until the command ends.

    Return the file of each name.
    """
    file_of = {}
    for loss in losses:
        from regbench.methods import METHODS
        from regbench.tracks.own_loss import LossFile
        from regbench.tracks.stand_in import entered

        file, folder = LossFile.of(loss), Path(ctx.with_resource(tempfile.TemporaryDirectory()))
        file_of[METHODS.name(ctx.with_resource(entered(file, folder)))] = file
    return file_of


@main.command()
@click.argument(
    "names", nargs=-1, required=True, shell_complete=complete_started, callback=folder_name
)
@runs_dir_option
@click.option("--out", type=PathType(dir_okay=False), required=True, help="The bundle to write.")
@click.option(
    "--weights",
    is_flag=True,
    help="Pack the final weights too, so that others need not train again.",
)
def submit(names: Sequence[str], runs_dir: Path, out: Path, weights: bool) -> None:
    """Pack finished cells into a file that others can check.

    NAMES are sweeps; the file is a bundle. Refuses what `regbench report --check` or
    `regbench verify` would refuse. docs/leaderboard.md says what is in it.

    \b
      regbench submit quickstart --out results/our-lab.tar.xz
      regbench verify results/our-lab.tar.xz
    """
    from regbench.reports.bundle.pack import submit

    done = submit([runs_dir / name for name in names], out, weights=weights)
    click.echo(
        f"{out}: {counted(done.cells, 'cell')}, {done.size_bytes / done.cells / 1000:.1f} kB each; "
        f"sha256 {done.sha256}"
    )
    if done.missing:
        click.echo(f"not finished, and not in it: {counted(done.missing, 'cell')}", err=True)


@main.command()
@click.argument("bundle", type=PathType(exists=True, dir_okay=False))
@click.argument("runtime", nargs=-1)
@click.option(
    "--recompute",
    type=click.IntRange(min=0),
    default=0,
    metavar="K",
    help="Compute K cells again, chosen by the bundle's hash.",
)
@_losses_option
@click.pass_context
def verify(
    ctx: click.Context, bundle: Path, runtime: Sequence[str], recompute: int, losses: Sequence[str]
) -> None:
    """Check a bundle of results.

    Prints a line for each thing that does not fit, and exits with 1 if there is any.

    With --recompute, cells whose training took up to ten minutes are trained again, others
    evaluated from the weights in the bundle. Scores must be equal to the last bit on the same kind
    of CPU, elsewhere as near as other seeds would come. RUNTIME is settings that say where and with
    what:

    \b
      regbench verify results/our-lab.tar.xz
      regbench verify results/our-lab.tar.xz --recompute 3 runtime.data_dir=/scratch/data
    """
    # Before the bundle is read, whose cells have to be cells of known methods.
    file_of = _entered(ctx, losses)
    from regbench.reports.bundle import recompute as again
    from regbench.reports.bundle.bundle import read_bundle
    from regbench.reports.bundle.claims import claim_misfits
    from regbench.reports.find.check import Check

    unpacked = Path(ctx.with_resource(tempfile.TemporaryDirectory()))
    read = read_bundle(bundle, unpacked)
    misfits = claim_misfits(read)
    # A bundle that does not fit itself need not be computed again.
    if misfits:
        recompute = 0
    for record in again.drawn_cells(read, recompute):
        saved = record.checkpoint
        # Weights of others are never kept.
        with tempfile.TemporaryDirectory() as temporary:
            weights = saved is not None and saved.sha256 in read.weights
            if saved is not None and weights:
                shutil.copy(unpacked / record.path.with_name(saved.file), temporary)
            compute: Callable[..., again.Recomputed] = again.recompute
            if record.method in file_of:
                from regbench.tracks.stand_in import recompute_apart

                compute = partial(recompute_apart, file_of[record.method])
            done = compute(record, Path(temporary), weights=weights, overrides=runtime)
        found = again.differences(read, record, done)
        misfits += found
        how = "trained again" if done.trained else "evaluated again from its weights"
        verdict = "equal to the last bit" if done.alike else "as near as other seeds come"
        if found:
            verdict = "not the same"
        name = f"{record.cell_id} ({record.label}, seed {record.seed})"
        click.echo(printable(f"{name}: {how}, {verdict}"))
    checked = Check(len(read.records), tuple(misfits), "cell")
    click.echo(checked if misfits else f"{checked}; sha256 {read.sha256}")
    ctx.exit(1 if misfits else 0)


@main.command()
@click.argument("folder", type=PathType(exists=True, file_okay=False))
@click.option("--out", type=PathType(file_okay=False), required=True, help="Folder to write to.")
@_losses_option
@click.pass_context
def leaderboard(ctx: click.Context, folder: Path, out: Path, losses: Sequence[str]) -> None:
    """Write the report of all bundles in FOLDER.

    A bundle that does not check out is left out and named. docs/leaderboard.md says what the page
    shows.

    \b
      regbench leaderboard results --out board
    """
    from regbench.reports.bundle.leaderboard import write_leaderboard

    _entered(ctx, losses)
    done = write_leaderboard(folder, out)
    for line in done.left_out:
        click.echo(printable(f"left out: {line}"), err=True)
    click.echo(f"{counted(done.bundles, 'bundle')}: {done.page}")
