"""The command that examines the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from regbench.cli.group import main
from regbench.cli.options import make_folder, out_in_runs
from regbench.errors import RegbenchError


@main.command()
@click.argument("sections", nargs=-1)
@click.option("--gpu", is_flag=True, help="Examine the GPU too, some ten minutes.")
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu")),
    default="cuda",
    show_default=True,
    help="With --gpu: cpu tries every part of the examination on small sizes.",
)
@out_in_runs("doctor", "Folder of gpu.md and gpu.json.")
@click.pass_context
def doctor(ctx: click.Context, sections: Sequence[str], gpu: bool, device: str, out: Path) -> None:
    r"""Say what this machine has and lacks, and how to get it.

    With --gpu, it also holds the GPU against the CPU (values and gradients of every loss, a training step, the
    augmentation, resume, the predicted memory, two ranks) and measures losses, trainings by part and loaders. Each
    SECTION (default: all) runs in a process of its own, so one that fails does not stop the others. The report names
    hardware and versions.

    \b
      regbench doctor
      regbench doctor --gpu --out docs/results
      regbench doctor --gpu losses plan
      regbench doctor --gpu --device cpu

    Exits with 1 if a section does not hold.
    """
    if not gpu:
        if sections:
            raise RegbenchError("sections are of the examination of a GPU; add --gpu")
        from tabulate import tabulate

        from regbench.instruments.doctor.inventory import inventory

        rows = [(each.what, each.found, each.remedy) for each in inventory()]
        click.echo(tabulate(rows, ("", "found", "to have it"), disable_numparse=True))
        return
    from regbench.instruments.doctor.examination import Examined, examine

    def tell(examined: Examined) -> None:
        click.echo(f"{examined.name}: {'holds' if examined.ok else 'FAILED'}, {examined.seconds:.0f} s")
        for failure in examined.outcome.failures:
            click.echo(f"  {failure}")

    make_folder(out)
    found = examine(device, out, small=device == "cpu", names=sections, tell=tell)
    click.echo(f"report: {out / 'gpu.md'}")
    ctx.exit(0 if all(each.ok for each in found) else 1)
