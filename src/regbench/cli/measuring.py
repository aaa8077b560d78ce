"""Commands that measure speed and memory: cost, loader-bench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from regbench import RegbenchError
from regbench.cli.completion import complete_dataset, complete_more_methods
from regbench.cli.group import main
from regbench.cli.options import comma_separated, make_folder, positive, settings, whole_numbers

COST_HELP = """
\b
  regbench cost                                          all methods, small sizes: two minutes
  regbench cost vicreg --n 256,2048 --q 8192 --budget inf
  regbench cost sfrik_l3 --forms auto,textbook --ranks 1,2,4
  regbench cost --targets                                a quarter of an hour on two cores
"""


@main.command(epilog=COST_HELP)
@click.argument("methods", nargs=-1, shell_complete=complete_more_methods)
@click.option("--n", help="Batch sizes, over all ranks.  [default: 256,1024]")
@click.option("--q", help="Embedding dimensions.  [default: 512,2048]")
@click.option("--ranks", help="Numbers of processes that share a batch, such as 1,2.  [default: 1]")
@click.option("--forms", help="auto, textbook, gram, covariance.  [default: all that a method has]")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--threads", type=int, default=1, show_default=True, help="Threads of each rank.")
@click.option("--repeats", type=int, default=5, show_default=True, help="Rounds; 0 measures memory only.")
@click.option("--dtype", default="float32", show_default=True, help="Of the embeddings: float32, float64 or bfloat16.")
@click.option(
    "--budget", type=float, help="Seconds in all: what does not fit is left out.  [default: 120; with --targets: inf]"
)
@click.option(
    "--memory-limit",
    type=float,
    callback=positive,
    help="GiB that one case may need.  [default: half of the machine's or GPU's memory]",
)
@click.option("--targets", is_flag=True, help="Measure what the project's targets need and print both side by side.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="runs/cost",
    show_default=True,
    help="Folder to write to.",
)
def cost(
    methods: Sequence[str],
    n: str | None,
    q: str | None,
    ranks: str | None,
    forms: str | None,
    device: str,
    threads: int,
    repeats: int,
    dtype: str,
    budget: float | None,
    memory_limit: float | None,
    targets: bool,
    out: Path,
) -> None:
    """Measure time and memory of METHODS (default: all), each form against the textbook's.

    Measured is the loss with its gradient, over a grid of sizes given as values separated by commas. Forms of a method
    are timed alternately, cheap cases first; what is predicted not to fit the budget or the memory is left out and says
    so. Prints a table and writes cost.csv, cost.md and cost.png.
    """
    from regbench.benchmark.cost import losses as measurement
    from regbench.files import write_bytes
    from regbench.reports.cost import cost_png

    sizes = {"n": n, "q": q, "ranks": ranks}
    asked: dict[str, Any] = {what: whole_numbers(what, text) for what, text in sizes.items() if text is not None}
    if forms is not None:
        asked["forms"] = comma_separated("forms", forms)
    if targets and asked:
        raise RegbenchError(f"--targets has sizes and forms of its own; leave out --{', --'.join(asked)}")
    if budget is None:
        budget = float("inf") if targets else 120.0
    limit = None if memory_limit is None else int(memory_limit * 2**30)
    common: dict[str, Any] = {"device": device, "threads": threads, "repeats": repeats, "dtype": dtype}
    grid = measurement.Grid(methods=methods, budget_s=budget, memory_limit_bytes=limit, **common, **asked)
    machine = measurement.Machine.of(grid)
    make_folder(out)
    click.echo(f"{machine}\n")
    compared = ""
    if targets:
        outcomes, rows = measurement.measure_targets(grid)
        compared = measurement.targets_table(outcomes, "github")
        click.echo(f"{measurement.targets_table(outcomes)}\n")
    else:
        rows = measurement.measure(grid)
    click.echo(f"{measurement.table(rows)}\n\n{measurement.LEGEND}\n")
    measurement.write(rows, machine, out, compared)
    figure = cost_png((out / "cost.csv").read_text())
    if figure is not None:
        write_bytes(out / "cost.png", figure)
    click.echo(f"written: {out / 'cost.csv'}, cost.md" + (", cost.png" if figure is not None else ""))


@main.command("loader-bench")
@click.option("--scenario", multiple=True, help="Images to make: 256, 500x375, raw32; may be repeated.  [default: all]")
@click.option("--data", metavar="DATASET", help="A prepared data set instead.", shell_complete=complete_dataset)
@click.option("--workers", type=int, help="Cores, and threads or processes of each loader.  [default: all cores]")
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Of each loader in each round, about.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Turns of each loader.")
@click.option("--memory", is_flag=True, help="Measure what 4 ranks on one file need in memory, and nothing else.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write all rounds to this CSV file.")
@settings
def loader_bench(
    scenario: Sequence[str],
    data: str | None,
    workers: int | None,
    seconds: float,
    rounds: int,
    memory: bool,
    out: Path | None,
    overrides: Sequence[str],
) -> None:
    r"""Compare the loaders' speed: torchvision (PIL, v2), FFCV with a decode per view, regbench.

    All deliver two views of the same images with the same cores and take turns. The images are made, photo-like JPEGs
    of 256 px and 500 x 375 px to crops of 224 px and raw ones of 32 px, or come from a prepared data set. With a GPU,
    the photometric part is also measured there.

    \b
      regbench loader-bench --scenario 256
      regbench loader-bench --data in20 runtime.data_dir=/scratch/data --out loaders.csv
    """
    import os

    from regbench.benchmark.cost import loaders as measurement
    from regbench.benchmark.cost.loader_memory import measure_memory, memory_table

    if overrides and not data:
        raise RegbenchError("settings as key=value are for a prepared data set; name it: --data DATASET")
    if memory:
        click.echo(memory_table(measure_memory()))
        return
    cores = workers if workers is not None else len(os.sched_getaffinity(0))
    measurement.refuse_impossible(workers=cores, seconds=seconds, rounds=rounds)
    if out:
        make_folder(out.parent)
    with measurement.images(scenario, data, overrides) as images:
        for each in images:
            click.echo(str(each))
        rows, machine = measurement.measure(images, workers=cores, seconds=seconds, rounds=rounds)
    click.echo(f"{machine}\n\n{measurement.table(rows)}\n\n{measurement.LEGEND}")
    if outcomes := measurement.outcomes(rows):
        click.echo(f"\n{measurement.targets_table(outcomes)}")
    if out:
        measurement.write_csv(rows, machine, out)
        click.echo(f"\nwritten: {out}")
