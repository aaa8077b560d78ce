"""The tables and figures of docs/results/latents.md, from the bundles of worlds and the pitch.

In the root of a clone: python results/latents/latents.py
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from scipy import stats

from regbench.reports.bundle.bundle import read_bundle

RESULTS = Path("results")
WORLDS = ["latents", "latents_uniform", "latents_sphere", "latents_sparse", "latents_anisotropic"]
WORLDS += ["latents_dependent", "latents_clusters", "latents_imbalanced"]
TRIVIAL = ["raw pixels", "PCA of pixels", "untrained"]
REFERENCES = ["supervised", *TRIVIAL]


def scores(bundle: str) -> pd.DataFrame:
    """Read the test scores of a bundle: one row for each score and final seed.

    Where searches were repeated, one for each score and search, the mean over its seeds.
    """
    rows = []
    for record in read_bundle(RESULTS / f"{bundle}.tar.xz").records:
        unit = record.seed if record.search is None else record.search
        for score in record.scores:
            if score.split == "test":
                rows.append([bundle, record.label, unit, score.name, score.value])
    names = ["world", "row", "unit", "score"]
    found = pd.DataFrame(rows, columns=[*names, "value"])
    return found.groupby(names, as_index=False)["value"].mean()


def difference(data: pd.DataFrame, score: str, row: str, world: str, base: str) -> str:
    """Describe how far a row's score in a world is above that in another, with Welch's interval."""
    own = data[(data["score"] == score) & (data["row"] == row)]
    here, there = (own.loc[own["world"] == place, "value"] for place in (world, base))
    gap = here.mean() - there.mean()
    if here.var() + there.var() < 1e-9:  # of rows without any scatter
        return f"{row}: {gap:+.1f}"
    interval = stats.ttest_ind(here, there, equal_var=False).confidence_interval()
    return f"{row}: {gap:+.1f} ({interval.low:.1f} to {interval.high:.1f})"


def main() -> None:
    """Print the tables and write the figures."""
    data = pd.concat(map(scores, WORLDS))
    grouped = data.groupby(["score", "row", "world"])["value"]
    means, deviations = grouped.mean().unstack(), grouped.std().unstack()
    content = means.loc["content_r2"][WORLDS]
    content = content.loc[content.mean(axis=1).sort_values(ascending=False).index]
    for score in ("content_r2", "content_kernel_r2", "content_mcc", "style_r2_embedding"):
        print(f"\n{score}\n")
        for row in content.index:
            cells = []
            for world in WORLDS:
                value = means.loc[score].get(world, {}).get(row, math.nan)
                spread = deviations.loc[score].get(world, {}).get(row, math.nan)
                cells.append("–" if math.isnan(value) else f"{value:.1f} ± {spread:.1f}")
            print(f"| {row} | {' | '.join(cells)} |")
    methods = [row for row in content.index if row not in REFERENCES]
    print("\nlead of labels over the best row that nothing was trained for")
    for score in ("content_r2", "content_kernel_r2"):
        table = means.loc[score][WORLDS]
        lead = table.loc["supervised"] - table.loc[TRIVIAL].max()
        print(score, lead.round(1).to_dict())
    print("\nSpearman's coefficients of methods between worlds")
    print(content.loc[methods].corr("spearman").round(2).to_string())
    pitch = scores("pitch").query("score == 'linear_top1'").groupby("row")["value"].mean()
    both = [row for row in methods if row in pitch.index]
    found = stats.spearmanr(content.loc[both].mean(axis=1), pitch[both]).statistic
    print(f"\nmean over worlds against the pitch, {len(both)} methods: {found:.2f}")
    for world in WORLDS:
        print(world, round(stats.spearmanr(content.loc[both, world], pitch[both]).statistic, 2))
    clusters = means.loc["cluster_accuracy"]
    print("\ncluster accuracy\n", clusters.dropna(axis=1).round(1).to_string())
    for row in ("SimCLR", "VICReg", "BYOL", "supervised", *TRIVIAL):
        pair = ("latents_imbalanced", "latents_clusters")
        print(difference(data, "cluster_accuracy", row, *pair))
    for score, world in (
        ("content_r2", "latents_uniform"),
        ("content_r2", "latents_anisotropic"),
        ("content_kernel_r2", "latents_dependent"),
        ("content_mcc", "latents_sparse"),
    ):
        print(f"\n{score}, {world} against latents")
        for row in [*methods, "raw pixels"]:
            print(difference(data, score, row, world, "latents"))

    # A map of rows and worlds, by the share of the way from the observations to labels.
    zero, top = content.loc[TRIVIAL].max(), content.loc["supervised"]
    share = (100 * (content.loc[methods] - zero) / (top - zero)).clip(-30, 100)
    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    image = axes.imshow(share, cmap="RdBu", vmin=-100, vmax=100, aspect="auto")
    axes.set_xticks(range(len(WORLDS)), [w.removeprefix("latents_") for w in WORLDS], rotation=30)
    axes.set_yticks(range(len(methods)), methods)
    for y, row in enumerate(methods):
        for x, world in enumerate(WORLDS):
            value = content.loc[row, world]
            axes.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=8)
    label = "share of the way from the observations (0) to labels (100)"
    figure.colorbar(image, label=label)
    figure.savefig("docs/results/latents_map.png", dpi=110)

    # What representations keep of the content, and embeddings of the style.
    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    markers, colors = "osD^v<>PX*h", [*plt.get_cmap("tab10").colors, "black"]
    for row, marker, color in zip(methods, markers, colors, strict=True):
        style = means.loc["style_r2_embedding"].loc[row, ["latents", "latents_clusters"]]
        points = content.loc[row, ["latents", "latents_clusters"]]
        how = {"marker": marker, "color": color, "linestyle": ":", "linewidth": 0.8}
        axes.plot(style, points, label=row, **how)
    axes.set_xlabel("R² of the style from the embedding (%), wanted: 0")
    axes.set_ylabel("R² of the content from the representation (%)")
    axes.set_title("latents (lower end) and latents_clusters", fontsize=10)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig("docs/results/latents_style.png", dpi=110)


main()
