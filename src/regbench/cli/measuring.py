"""The command that measures time and memory of losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from regbench.cli.completion import complete_method
from regbench.cli.group import main
from regbench.cli.options import VALUES, WHOLE_NUMBERS, make_folder, out_in_runs, positive

COST_HELP = """
\b
  regbench cost                                          all methods, small sizes: two minutes
  regbench cost vicreg --n 256,2048 --q 8192 --budget inf
  regbench cost sfrik_l3 --forms auto,textbook --ranks 1,2,4
"""


def _sizes(option: str, default: str, what: str) -> Callable[[Any], Any]:
    return click.option(option, type=WHOLE_NUMBERS, default=default, help=what)


@main.command(epilog=COST_HELP)
@click.argument("methods", nargs=-1, shell_complete=complete_method)
@_sizes("--n", "256,1024", "Batch sizes, over all ranks.")
@_sizes("--q", "512,2048", "Embedding dimensions.")
@_sizes("--views", "2", "Numbers of views of an image, of which two are global, such as 2,8.")
@_sizes("--ranks", "1", "Numbers of processes that share a batch, such as 1,2.")
@click.option(
    "--forms",
    type=VALUES,
    default=(),
    show_default=False,
    help="auto, textbook, gram, covariance, powers.  [default: all that a method has]",
)
@click.option("--device", default="auto", help="auto, cpu or cuda.")
@click.option("--threads", default=1, help="Threads of each rank.")
@click.option("--repeats", default=5, help="Rounds; 0 measures memory only.")
@click.option("--dtype", default="float32", help="Of the embeddings: float32, float64 or bfloat16.")
@click.option("--budget", default=120.0, help="Seconds in all: what does not fit is left out.")
@click.option(
    "--memory-limit",
    type=float,
    callback=positive,
    help="GiB that one case may need.  [default: half of the machine's or GPU's memory]",
)
@out_in_runs("cost")
def cost(
    methods: Sequence[str], budget: float, memory_limit: float | None, out: Path, **asked: Any
) -> None:
    """Measure time and memory of the losses.

    METHODS are by default all. Measured is the loss with its gradient, over a grid of sizes given
    as values separated by commas. Each form of a method is held against the textbook's; they are
    timed alternately, small sizes first; what does not fit the budget or the memory is left out and
    says so. Prints a table and writes cost.csv.
    """
    # Every command imports what needs torch when it runs: that takes seconds, and --help should not
    # wait for it.
    from dataclasses import asdict

    from regbench.files import write_text
    from regbench.instruments.cost import losses
    from regbench.instruments.cost.harness import in_words, to_csv

    if memory_limit is not None:
        asked["memory_limit_bytes"] = int(memory_limit * 2**30)
    grid = losses.Grid(methods=tuple(methods), budget_s=budget, **asked)
    # Now, or minutes of measuring could be lost for want of it.
    make_folder(out)
    click.echo(f"{in_words(grid.machine)}\n")
    rows = losses.measure(grid)
    click.echo(f"{losses.table(rows)}\n\n{losses.LEGEND}\n")
    write_text(out / "cost.csv", to_csv([asdict(row) for row in rows], grid.machine))
    click.echo(f"written: {out / 'cost.csv'}")
