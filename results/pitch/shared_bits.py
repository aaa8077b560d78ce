"""The table and figure of docs/results/pitch.md on bits that both views share, from the bundle.

In the root of a clone: python results/pitch/shared_bits.py
"""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from scipy import stats

from regbench.reports.bundle.bundle import read_bundle

BUNDLE = Path("results/pitch_shared_bits.tar.xz")
CHANCE = 10.0
READ_OUTS = {"linear_top1": "linear", "knn_top1": "kNN"}


def scores() -> pd.DataFrame:
    """Read the accuracies on the test split, in per cent: one row for each seed and read-out."""
    lines = []
    for record in read_bundle(BUNDLE).records:
        bits = record.cell["dataset"].get("shared_bits", 0)
        row = record.label
        if row == "supervised":
            row += f", rate {record.cell['optimizer']['base_lr']:g}"
        for score in record.scores:  # none if it diverged
            if score.split == "test" and score.name in READ_OUTS:
                lines.append([row, bits, record.seed, score.name, score.value])
    return pd.DataFrame(lines, columns=["row", "bits", "seed", "score", "value"])


def described(values: pd.Series) -> str:
    """Format the mean of seeds ± their standard deviation; the others of three diverged."""
    if values.empty:
        return "–"
    if len(values) == 1:
        return f"{values.mean():.1f} (n = 1)"
    return f"{values.mean():.1f} ± {values.std():.1f}" + " (n = 2)" * (len(values) == 2)


class Kept(NamedTuple):
    """What a row has above chance with bits, as a share of what it has without, in per cent.

    Attributes:
        share: The ratio of the two means.
        parts: Variance of the share by that of each mean (delta method), and its degrees of
            freedom.
    """

    share: float
    parts: list[tuple[float, int]]

    @classmethod
    def of(cls, of_row: pd.DataFrame, bits: int) -> Kept:
        """Compute it from the seeds of a row."""
        values, plain = (of_row.loc[of_row["bits"] == each, "value"] for each in (bits, 0))
        share = 100 * (values.mean() - CHANCE) / (plain.mean() - CHANCE)
        parts = []
        for sample, slope in ((values, 100), (plain, share)):
            scaled = sample * slope / (plain.mean() - CHANCE)
            parts.append((scaled.var() / len(scaled), len(scaled) - 1))
        return cls(share, parts)


def interval(difference: float, parts: list[tuple[float, int]]) -> str:
    """Format a difference with its 95 % interval, by Welch and Satterthwaite."""
    variance = math.fsum(part for part, _ in parts)
    freedom = variance**2 / math.fsum(part**2 / own for part, own in parts)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    return f"{difference:.1f} ({difference - half:.1f} to {difference + half:.1f})"


def main() -> None:
    """Print the table and the contrasts, and draw the figure."""
    data = scores()
    levels = sorted(data["bits"].unique())
    plain = data[(data["bits"] == 0) & (data["score"] == "linear_top1")]
    order = plain.groupby("row")["value"].mean().sort_values(ascending=False).index
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for axes, (score, title) in zip(panels, READ_OUTS.items(), strict=True):
        print(f"| row, {title} | {' | '.join(f'bits: {bits} (%)' for bits in levels)} | kept (%) |")
        print(f"|{'---|' * (len(levels) + 2)}")
        of_score = data[data["score"] == score]
        for row in order:
            of_row = of_score[of_score["row"] == row]
            runs = {bits: of_row[of_row["bits"] == bits] for bits in levels}
            texts = [described(runs[bits]["value"]) for bits in levels]
            kept = []
            for bits in levels[1:]:
                is_there = not runs[bits].empty
                kept.append(str(round(Kept.of(of_row, bits).share)) if is_there else "–")
            last = "–" if row == "untrained" else " / ".join(kept)
            print(f"| {row} | {' | '.join(texts)} | {last} |".replace("-", "−"))
            means = of_row.groupby("bits")["value"].mean()
            places = [levels.index(bits) for bits in means.index]
            axes.plot(places, means, marker="o", label=row)
        axes.set_xticks(range(len(levels)), levels)
        axes.set(xlabel="shared bits", title=f"{title} top-1 (%)")
        axes.axhline(CHANCE, color="grey", linewidth=0.8)
        print()
        methods = [row for row in order if not row.startswith(("supervised", "untrained"))]
        for bits in levels[1:]:
            kept_by = {row: Kept.of(of_score[of_score["row"] == row], bits) for row in methods}
            print(f"share kept, and points kept more (bits: {bits}), {title} (each 95 %):")
            for row, own in kept_by.items():
                print(f"{row}: {interval(*own)}")
            for one, other in combinations(methods, 2):
                first, second = kept_by[one], kept_by[other]
                difference = first.share - second.share
                print(f"{one} - {other}: {interval(difference, first.parts + second.parts)}")
            print()
    panels[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig("docs/results/pitch_shared_bits.png", dpi=110)


main()
