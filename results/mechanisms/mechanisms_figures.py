"""Draw what the figures of mechanisms.md have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from mechanisms_cells import WEIGHTS, half_width

COLOURS = dict(zip(WEIGHTS, ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#555555"), strict=True))


def draw_levels(axes: Axes, levels: Sequence[float], values: Mapping[str, Sequence[pd.Series]]) -> None:
    """Draw the seeds and the mean of each method at each level.

    `values` has a method's seeds in the levels' order.
    """
    width = 0.02 * (max(levels) - min(levels))
    for shift, (method, columns) in enumerate(values.items()):
        for level, seeds in zip(levels, columns, strict=True):
            x, colour = level + width * (shift - (len(values) - 1) / 2), COLOURS[method]
            axes.plot(np.full(len(seeds), x), seeds, ".", color=colour, alpha=0.4)
            label = method if level == levels[0] else None
            axes.errorbar(x, seeds.mean(), half_width(seeds), fmt="o", color=colour, capsize=3, label=label)
    axes.set_xticks(levels)


def draw_sizes(
    label: str, sizes: Sequence[int], values: Mapping[str, Sequence[pd.Series]], untrained: float, path: Path
) -> None:
    """Draw each method's linear probing over sizes that double, beside the best untrained row.

    Args:
        label: Label of the axis of sizes.
        sizes: The sizes.
        values: Seeds of each method, in the order of the sizes.
        untrained: Linear probing of the best row that nothing was trained for, in per cent.
        path: The figure's file.
    """
    figure, doublings = plt.figure(figsize=(5, 3.4)), np.log2(sizes)
    axes = figure.add_subplot(xlabel=label, ylabel="linear probing (%)")
    draw_levels(axes, doublings, values)
    axes.axhline(untrained, color="grey", linewidth=0.8, label="best untrained row")
    axes.set_xticks(doublings, map(str, sizes))
    axes.legend(fontsize=8, frameon=False)
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    """Write a figure."""
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
