"""Draw a sweep's progress for a terminal: the states of its cells and the curves of those that
have begun.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from regbench.benchmark.rundir.run_folder import RunFolder
from regbench.sweeps.status import CellStatus, counts
from regbench.text import counted

# The states in the order of the rows, and how each is coloured.
_STATES = {
    "running": "green",
    "failed": "red",
    "lost": "red",
    "damaged": "red",
    "interrupted": "yellow",
    "cancelled": "yellow",
    "preempted": "yellow",
    "diverged": "magenta",
    "queued": "cyan",
    "pending": "dim",
    "tuned": "blue",
    "done": "blue",
}
_HEADS = (
    *("cell", "method", "seed", "state", "epochs", "", "img/s", "left"),
    *("loss", "", "score", "", ""),
)
_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 16


def drawn(statuses: Sequence[CellStatus], rows: int) -> Group:
    """Draw the states of cells, running ones first, each with its curves.

    Args:
        statuses: The cells.
        rows: Number of cells that are shown.
    """
    order = list(_STATES)
    # Running cells come first, as a terminal may not have a row for each cell.
    shown = sorted(statuses, key=lambda status: order.index(status.state))[:rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in _HEADS:
        table.add_column(head, no_wrap=True)
    for status in shown:
        history = RunFolder(status.directory, ()).history()
        losses = [row["loss"] for row in history if "loss" in row]
        title, scores = scores_of(history)
        row, colour = status.columns, _STATES[status.state]
        table.add_row(
            row["cell"],
            # A label or an error may hold brackets, which rich takes for its markup.
            escape(row["method"]),
            str(row["seed"]),
            f"[{colour}]{row['state']}[/{colour}]",
            row["epochs"],
            ProgressBar(total=max(1, status.epochs), completed=status.epochs_done, width=10),
            row["img/s"],
            row["left"],
            sparkline(losses),
            f"{losses[-1]:.4g}" if losses else "",
            sparkline(scores),
            f"{scores[-1]:.2f} {title}" if scores else "",
            escape(status.detail),
        )
    hidden = len(statuses) - len(shown)
    more = f"; {hidden} not shown" if hidden else ""
    return Group(table, "", f"{counted(len(statuses), 'cell')}: {counts(statuses)}{more}")


def scores_of(history: Sequence[dict[str, Any]]) -> tuple[str, list[float]]:
    """Return the first score that was measured while training: its name and its values."""
    scores = list(chain(*(row.get("scores", ()) for row in history)))
    name = scores[0]["name"] if scores else ""
    return name, [score["value"] for score in scores if score["name"] == name]


def sparkline(values: Sequence[float]) -> str:
    """Draw a curve from its lowest value to its highest in one line of text.

    A longer one is thinned out.
    """
    if len(values) > _CURVE_WIDTH:
        # The first and the last value stay.
        step = (len(values) - 1) / (_CURVE_WIDTH - 1)
        values = [values[round(i * step)] for i in range(_CURVE_WIDTH)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    curve = ""
    for value in values:
        if not math.isfinite(value):
            curve += " "  # a step that diverged is a gap
        else:
            curve += _BLOCKS[round((value - low) / span * 7) if span else 0]
    return curve
