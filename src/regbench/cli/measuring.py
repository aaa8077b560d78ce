"""Commands that measure speed and memory: cost, loader-bench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from regbench.cli.completion import complete_dataset, complete_method
from regbench.cli.group import main
from regbench.cli.options import (
    PathType,
    comma_separated,
    make_folder,
    out_in_runs,
    positive,
    settings,
    whole_numbers,
)
from regbench.errors import RegbenchError

COST_HELP = """
\b
  regbench cost                                          all methods, small sizes: two minutes
  regbench cost vicreg --n 256,2048 --q 8192 --budget inf
  regbench cost sfrik_l3 --forms auto,textbook --ranks 1,2,4
"""


@main.command(epilog=COST_HELP)
@click.argument("methods", nargs=-1, shell_complete=complete_method)
@click.option("--n", help="Batch sizes, over all ranks.  [default: 256,1024]")
@click.option("--q", help="Embedding dimensions.  [default: 512,2048]")
@click.option(
    "--views",
    help="Numbers of views of an image, of which two are global, such as 2,8.  [default: 2]",
)
@click.option("--ranks", help="Numbers of processes that share a batch, such as 1,2.  [default: 1]")
@click.option("--forms", help="auto, textbook, gram, covariance.  [default: all that a method has]")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--threads", type=int, default=1, show_default=True, help="Threads of each rank.")
@click.option(
    "--repeats", type=int, default=5, show_default=True, help="Rounds; 0 measures memory only."
)
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    help="Of the embeddings: float32, float64 or bfloat16.",
)
@click.option(
    "--budget",
    type=float,
    default=120.0,
    show_default=True,
    help="Seconds in all: what does not fit is left out.",
)
@click.option(
    "--memory-limit",
    type=float,
    callback=positive,
    help="GiB that one case may need.  [default: half of the machine's or GPU's memory]",
)
@out_in_runs("cost", "Folder to write to.")
def cost(
    methods: Sequence[str],
    forms: str | None,
    budget: float,
    memory_limit: float | None,
    out: Path,
    **asked: Any,
) -> None:
    """Measure time and memory of the losses.

    METHODS are by default all. Measured is the loss with its gradient, over a grid of sizes given
    as values separated by commas. Each form of a method is held against the textbook's; they are
    timed alternately, small sizes first; what does not fit the budget or the memory is left out and
    says so. Prints a table and writes cost.csv and cost.png.
    """
    # Every command imports what needs torch when it runs: that takes seconds, and --help should not
    # wait for it.
    from dataclasses import asdict

    from regbench.files import write_bytes, write_text
    from regbench.instruments.cost import losses
    from regbench.instruments.cost.harness import in_words, to_csv
    from regbench.reports.page.cost_curves import cost_png

    for what in ("n", "q", "views", "ranks"):
        sizes = asked.pop(what)
        if sizes is not None:
            asked[what] = tuple(whole_numbers(what, sizes))
    if forms is not None:
        asked["forms"] = tuple(comma_separated("forms", forms))
    if memory_limit is not None:
        asked["memory_limit_bytes"] = int(memory_limit * 2**30)
    grid = losses.Grid(methods=tuple(methods), budget_s=budget, **asked)
    # Now, or minutes of measuring could be lost for want of it.
    make_folder(out)
    click.echo(f"{in_words(grid.machine)}\n")
    rows = losses.measure(grid)
    click.echo(f"{losses.table(rows)}\n\n{losses.LEGEND}\n")
    text = to_csv([asdict(row) for row in rows], grid.machine)
    write_text(out / "cost.csv", text)
    figure = cost_png(text)
    if figure is not None:
        write_bytes(out / "cost.png", figure)
    click.echo(f"written: {out / 'cost.csv'}" + (", cost.png" if figure is not None else ""))


@main.command("loader-bench")
@click.option(
    "--scenario",
    multiple=True,
    type=click.Choice(("256", "500x375")),
    help="Images to make; may be repeated.  [default: all]",
)
@click.option(
    "--data",
    metavar="DATASET",
    help="A prepared data set instead.",
    shell_complete=complete_dataset,
)
@click.option(
    "--workers",
    type=int,
    help="Cores, and threads or processes of each loader.  [default: all cores]",
)
@click.option(
    "--seconds",
    type=float,
    default=2.0,
    show_default=True,
    callback=positive,
    help="Of each turn, about.",
)
@click.option(
    "--rounds", type=click.IntRange(1), default=5, show_default=True, help="Turns of each loader."
)
@click.option("--out", type=PathType(dir_okay=False), help="Write all rounds to this CSV file.")
@settings
def loader_bench(
    scenario: Sequence[str],
    data: str | None,
    workers: int | None,
    seconds: float,
    rounds: int,
    out: Path | None,
    overrides: Sequence[str],
) -> None:
    r"""Compare the speed of image loaders.

    torchvision's usual code and regbench, with and without FFCV. All deliver two views of the same
    images with the same cores and take turns. The images are made, photo-like JPEGs of 256 px and
    500 x 375 px to crops of 224 px, or come from a prepared data set. With a GPU, the photometric
    part is also measured there.

    \b
      regbench loader-bench --scenario 256
      regbench loader-bench --data in20 runtime.data_dir=/scratch/data --out loaders.csv
    """
    import os
    import tempfile

    from regbench.files import write_text
    from regbench.instruments.cost import loader_speed
    from regbench.instruments.cost.harness import in_words, to_csv
    from regbench.instruments.cost.images import SCENARIOS, PreparedImages, make_images

    if overrides and not data:
        raise RegbenchError(
            "settings as key=value are for a prepared data set; name it: --data DATASET"
        )
    # A job or a container may have fewer cores than the machine.
    there = len(os.sched_getaffinity(0))
    cores = there if workers is None else workers
    if not 1 <= cores <= there:
        raise RegbenchError(f"--workers is {cores}; choose 1 to {there}, the number of cores here")
    if out:
        make_folder(out.parent)
    images = [PreparedImages.of([f"dataset={data}", *overrides])] if data else []
    # A prepared data set is measured alone, unless scenarios are named too.
    made = dict.fromkeys(scenario) if scenario or data else SCENARIOS
    with tempfile.TemporaryDirectory(prefix="regbench-loader-") as folder:
        images += [make_images(SCENARIOS[name], Path(folder)) for name in made]
        for each in images:
            click.echo(str(each))
        lines, machine = loader_speed.measure(images, workers=cores, seconds=seconds, rounds=rounds)
    click.echo(f"{in_words(machine)}\n\n{loader_speed.tables(lines)}\n\n{loader_speed.LEGEND}")
    if out:
        write_text(out, to_csv(lines, machine))
        click.echo(f"\nwritten: {out}")
