"""The command that audits losses of any library: audit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from regbench.cli.group import main
from regbench.cli.options import PathType, make_folder, out_in_runs


@main.command()
@click.argument("targets", nargs=-1, required=True)
@click.option(
    "--claims", metavar="METHOD", help="What it says it is, such as 'simclr(temperature=0.5)'."
)
@click.option(
    "--call",
    default="arguments",
    help="How it takes views: arguments, list, stacked, concatenated, labelled or each.",
)
@click.option("--gathers", is_flag=True, help="It says that several processes share one batch.")
@click.option(
    "--views",
    type=click.IntRange(min=2),
    default=2,
    help="The largest number of views that it takes.",
)
@click.option(
    "--probe", "probes", multiple=True, help="Run this one only; may be repeated.  [default: all]"
)
@click.option(
    "--source",
    type=PathType(exists=True, file_okay=False),
    help="A checkout of the library, in place of an installed one.",
)
@out_in_runs("audit")
def audit(
    targets: Sequence[str],
    claims: str | None,
    call: str,
    gathers: bool,
    views: int,
    probes: Sequence[str],
    source: Path | None,
    out: Path,
) -> None:
    """Audit losses of libraries, or your own, as black boxes.

    TARGETS are libraries, one of their losses, or losses of your own.

    Value against the textbook of what a loss claims to be, gradient against differences,
    symmetries, collapse and other hard batches, half precision, memory, and 1 to 4 processes as
    DistributedDataParallel uses them. Prints what is found, a defect, a convention or a note, and
    writes audit.json. Ends with exit code 1 if there is a defect.

    \b
      regbench audit lightly                                   a library with adapters
      regbench audit solo-learn --source ~/solo-learn          the same, from a checkout
      regbench audit lightly:NTXentLoss --probe ranks          one of its losses, one probe
      regbench audit my_loss.py:MyLoss --claims vicreg         a file of your own
      regbench audit 'my.package:Loss(0.1)' --call list --views 4 --gathers
    """
    from tqdm import tqdm

    from regbench.audit import ALL_PROBES, audit_losses
    from regbench.files import write_text
    from regbench.instruments.audit.adapters import find_losses
    from regbench.instruments.audit.finding import plain, table
    from regbench.instruments.cost.harness import in_words, machine

    if source is not None:
        # First, so that it counts more than an installed copy.
        sys.path.insert(0, str(source.resolve()))
    losses, options = find_losses(targets, claims or "", call, gathers, views)
    options += f" --source {source}" if source is not None else ""
    make_folder(out)
    found = audit_losses(losses, tuple(probes) or ALL_PROBES, options.strip(), separately=True)
    reports = []
    with tqdm(found, total=len(losses), desc="audit", leave=False, disable=None) as bar:
        for report in bar:
            reports.append(report)
            # By way of the bar: a plain echo would land in its line.
            done = f"{len(report.findings)} found in {report.seconds_s:.1f} s"
            bar.write(f"{report.loss} ({report.version}): {done}")
    if any(report.findings for report in reports):
        click.echo(f"\n{table(reports)}\n")
    where = f"{in_words(machine('cpu', ('regbench', 'torch')))}."
    write_text(out / "audit.json", plain(reports, where))
    click.echo(f"written: {out / 'audit.json'}")
    if defects := sum(len(report.defects) for report in reports):
        raise click.ClickException(f"defects: {defects}; losses: {len(losses)}")
