"""Draw docs/quickstart.png, the picture of README, from the table of docs/results/quickstart.md.

python docs/site/quickstart_figure.py
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

DOCS = Path(__file__).resolve().parents[1]
SCORE = "linear top-1 (%)"
# Offsets of the labels in points, and their alignment, where the usual place to the right is taken.
PLACES = {
    ("effective rank", "SimCLR"): (-7, 5, "right"),
    ("effective rank", "VICReg"): (4, 8, "left"),
    ("effective rank", "AUH"): (7, -5, "left"),
    ("effective rank", "SFRIK (L=3)"): (7, -10, "left"),
    ("effective rank", "SFRIK (L=2)"): (-7, -5, "right"),
    ("effective rank", "generalized distance"): (14, 4, "left"),
    ("effective rank", "SFRIK (L=1)"): (7, -10, "left"),
    ("loss (ms/step)", "SimCLR"): (7, -3, "left"),
    ("loss (ms/step)", "VICReg"): (-7, -1, "right"),
    ("loss (ms/step)", "AUH"): (7, -1, "left"),
    ("loss (ms/step)", "SFRIK (L=3)"): (7, -3, "left"),
    ("loss (ms/step)", "SFRIK (L=2)"): (-7, -3, "right"),
    ("loss (ms/step)", "generalized distance"): (14, 4, "left"),
    ("loss (ms/step)", "SFRIK (L=1)"): (7, -10, "left"),
}


def rows(page: Path) -> list[dict[str, str]]:
    """Read the first table of a page that has the score."""
    table = re.search(rf"^\| .*{re.escape(SCORE)}.*(?:\n\|.*)+", page.read_text(), re.MULTILINE)
    assert table is not None
    lines = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table[0].splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def draw(axes: Axes, methods: list[dict[str, str]], x: str, head: str) -> None:
    """Put a labelled mark for each method."""
    for row in methods:
        at, (mean, spread) = float(row[x].split()[0]), map(float, row[SCORE].split(" ± "))
        kernel = row["method"].startswith("SFRIK")
        axes.errorbar(at, mean, spread, fmt="o", color="#d55e00" if kernel else "#0079c1", markersize=6, elinewidth=1)
        right, up, align = PLACES.get((x, row["method"]), (7, -3, "left"))
        axes.annotate(row["method"], (at, mean), (right, up), textcoords="offset points", ha=align, fontsize=9)
    axes.set_xlabel(head)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Write the picture, on white so that it can be read on a dark page too."""
    methods = [row for row in rows(DOCS / "results" / "quickstart.md") if row["method"] != "untrained"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained", facecolor="white")
    draw(left, methods, "effective rank", "effective rank of the embeddings, at most 256")
    left.set_xscale("log")
    left.set_xlim(2, 600)
    left.xaxis.set_major_locator(FixedLocator([3, 10, 30, 100, 300]))
    left.xaxis.set_minor_locator(NullLocator())
    left.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    left.set_ylabel("linear probing, top-1 (%)")
    left.set_title("Three dimensions are too few", fontsize=10)
    draw(right, methods, "loss (ms/step)", "time of the loss (ms a step)")
    right.set_xlim(0, 11)
    right.xaxis.set_major_locator(FixedLocator([0, 2, 4, 6, 8, 10]))
    right.set_title("What the loss costs", fontsize=10)
    figure.savefig(DOCS / "quickstart.png", dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main()
