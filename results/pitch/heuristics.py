"""The table and figure of docs/results/heuristics.md on the pitch, from the two bundles.

In the root of a clone: python results/pitch/heuristics.py
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from scipy import stats

from regbench.reports.bundle.bundle import Record, read_bundle
from regbench.reports.rows.significance import own_weight

RESULTS = Path("results")
READ_OUTS = {"linear_top1": "linear", "knn_top1": "kNN"}
REGULARIZERS = ["RBF kernel", "SimCLR", "VICReg"]
ROWS = [*REGULARIZERS, "BYOL", "SimSiam"]
PARTS = ["plain", "predictor", "teacher", "teacher and predictor"]
UNTRAINED = ["HOG", "random patches"]


def parts_of(record: Record) -> str:
    """Name the parts that a record's network has beside the encoder and the projector."""
    network = record.cell["network"]
    parts = []
    if network.get("teacher") == "ema":
        parts.append("teacher")
    if network.get("predictor"):
        parts.append("predictor")
    return " and ".join(parts) or "plain"


def scores(bundle: str) -> pd.DataFrame:
    """Read the scores on the test split: one row for each score and final seed."""
    lines = []
    for record in read_bundle(RESULTS / f"{bundle}.tar.xz").records:
        is_method = not record.is_reference and record.label != "untrained"
        of_record = [record.label, parts_of(record), is_method, record.search or 0]
        for score in record.scores:
            if score.split == "test" and score.name in READ_OUTS:
                lines.append([*of_record, score.name, score.value])
    names = ["row", "parts", "is_method", "search", "score", "value"]
    return pd.DataFrame(lines, columns=names)


def spread(of_search: pd.Series) -> tuple[float, int]:
    """Pool the deviation between a row's searches, of means over seeds, in points.

    Returns:
        The deviation, and its degrees of freedom.
    """
    groups = [own for _, own in of_search.groupby(level=["row", "parts"]) if len(own) > 1]
    freedom = sum(len(own) - 1 for own in groups)
    squares = sum(own.var() * (len(own) - 1) for own in groups)
    return math.sqrt(squares / freedom), freedom


def contrasts(of_search: pd.Series, zero: float) -> None:
    """Print how far each row is from its plain row, or if it has none from all plain rows.

    The spread is that of all methods of both bundles. The variance of the pair's own rows is added,
    as in the tables; a row of one search has none.
    """
    deviation, freedom = spread(of_search)
    grouped = of_search.loc[ROWS].groupby(level=["row", "parts"])
    means, searches, variances = grouped.mean(), grouped.count(), grouped.var()
    tukey = stats.studentized_range(len(means), freedom)
    print(f"deviation between searches {deviation:.2f}, {freedom} degrees of freedom")
    for row, parts in means.index:
        mean = means[row, parts]
        texts = [f"{row}, {parts}: {mean - zero:+.1f} from the best untrained"]
        plain_rows = [row] if row in REGULARIZERS else REGULARIZERS
        for plain in plain_rows if parts != "plain" else []:
            gap = mean - means[plain, "plain"]
            shares = 1 / searches[row, parts] + 1 / searches[plain, "plain"]
            own = variances[[(row, parts), (plain, "plain")]].mean()
            of_one = math.sqrt(deviation**2 + own_weight(len(means)) * own)
            error = of_one * math.sqrt(shares / 2)
            half = tukey.ppf(0.95) * error
            chance = tukey.sf(abs(gap) / error)
            texts.append(f"{gap:+.1f} ± {half:.1f} from plain {plain}, p = {chance:.3f}")
        print("; ".join(texts))


def main() -> None:
    """Print the table and the contrasts, and draw the figure."""
    own = scores("pitch_heuristics")
    # The zero is that of the pitch's page, which has three searches.
    data = pd.concat([scores("pitch"), own[own["is_method"]]])
    means = data.groupby(["score", "row", "parts"])["value"].mean()
    for row in ROWS:
        cells = []
        for parts in PARTS:
            both = [means.get((score, row, parts)) for score in READ_OUTS]
            cells.append("–" if None in both else " / ".join(f"{value:.1f}" for value in both))
        print(f"| {row} | {' | '.join(cells)} |")

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for axes, (score, title) in zip(panels, READ_OUTS.items(), strict=True):
        zero = means[score].loc[UNTRAINED].max()
        of_methods = data[(data["score"] == score) & data["is_method"]]
        print(f"\n{title}")
        contrasts(of_methods.groupby(["row", "parts", "search"])["value"].mean(), zero)
        for row in REGULARIZERS:
            axes.plot(PARTS, [means[score, row, parts] for parts in PARTS], marker="o", label=row)
        axes.axhline(zero, color="grey", linewidth=0.8, label="best untrained features")
        axes.tick_params(axis="x", rotation=15)
        axes.set(title=f"{title} top-1 (%)")
    panels[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig("docs/results/heuristics_pitch.png", dpi=110)


main()
