"""The table and figure of docs/results/pitch.md on bits that both views share, from the bundle.

In the root of a clone: python results/pitch/shared_bits.py
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from scipy import stats

from regbench.reports.bundle.bundle import read_bundle

BUNDLE = Path("results/pitch_shared_bits.tar.xz")
CHANCE = 10.0
READ_OUTS = {"linear_top1": "linear", "knn_top1": "kNN"}


def scores() -> pd.DataFrame:
    """Read the accuracies on the test split, in per cent: one row for each seed and read-out.

    `kept`: what a row has above chance, as a share (%) of its mean without bits.
    """
    lines = []
    for record in read_bundle(BUNDLE).records:
        bits = record.cell["dataset"].get("shared_bits", 0)
        row = record.label
        if row == "supervised":
            row += f", rate {record.cell['optimizer']['base_lr']:g}"
        for score in record.scores:  # none if it diverged
            if score.split == "test" and score.name in READ_OUTS:
                lines.append([row, bits, record.seed, score.name, score.value])
    found = pd.DataFrame(lines, columns=["row", "bits", "seed", "score", "value"])
    plain = found[found["bits"] == 0].groupby(["row", "score"])["value"].mean().rename("plain")
    found = found.join(plain, on=["row", "score"])
    found["kept"] = 100 * (found["value"] - CHANCE) / (found["plain"] - CHANCE)
    return found


def described(values: pd.Series) -> str:
    """Format the mean of seeds ± their standard deviation; the others of three diverged."""
    if values.empty:
        return "–"
    if len(values) == 1:
        return f"{values.mean():.1f} (n = 1)"
    return f"{values.mean():.1f} ± {values.std():.1f}" + " (n = 2)" * (len(values) == 2)


def contrast(data: pd.DataFrame, one: str, other: str) -> str:
    """Describe how much more of its accuracy one method keeps than another, by Welch's test."""
    first, second = (data.loc[data["row"] == row, "kept"] for row in (one, other))
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    gap = first.mean() - second.mean()
    return f"{one} - {other}: {gap:.1f} ({interval.low:.1f} to {interval.high:.1f})"


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
                shares = runs[bits]["kept"]
                kept.append("–" if shares.empty else str(round(shares.mean())))
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
            at_level = of_score[of_score["bits"] == bits]
            print(f"points of share kept more (bits: {bits}), {title} (95 %):")
            for one, other in combinations(methods, 2):
                print(contrast(at_level, one, other))
            print()
    panels[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig("docs/results/pitch_shared_bits.png", dpi=110)


main()
