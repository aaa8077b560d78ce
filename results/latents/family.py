"""The tables, contrasts and map of docs/results/latents.md on all other methods, from the bundles.

In the root of a clone: python results/latents/family.py
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from scipy import stats

from regbench.reports.bundle.bundle import read_bundle

RESULTS = Path("results")
WORLDS = ["", "_uniform", "_sphere", "_sparse", "_clusters", "_imbalanced"]
SHOWN = ["content_r2", "content_kernel_r2", "content_mcc", "style_r2_embedding"]
CLUSTERS = "cluster_accuracy"
LOST = (2.2, 9.0)  # points that labels and BYOL lose
PAIRS = [(row, "RBF kernel") for row in ("KCL (gaussian)", "MMD (heat)", "DHEL")]
CONTRASTIVE = ["InfoNCE", "DCL", "DCLW"]
PAIRS += [(row, "SimCLR") for row in CONTRASTIVE]
BLIND = ["generalized distance", "SUSReg", "MMD (susreg)"]  # to all but the lowest order, mostly
NORMAL = ["KSD, imq", "KSD, gaussian", "MMD, gaussian", "sliced MMD, gaussian"]
PAIRS += [(f"KerJEPA ({kernel})", "RBF kernel") for kernel in NORMAL]
PAIRS += [("Weak-SIGReg", "RBF kernel")]
COVARIANCES = ["VICReg-exp", "VICReg-ctr", "VIbCReg", "TiCo", "W-MSE", "CorInfoMax", "FroSSL"]
KERNELS = ["quadratic kernel", "KCL (gaussian)", "KCL (imq)", "KCL (log)", "KCL (riesz)"]
KERNELS += ["MMD (heat)", "KSD (heat)", "MMD (bandlimited)", "KSD (bandlimited)", "KL (heat)"]


class Test(NamedTuple):
    """Tukey's test of a world.

    Attributes:
        means: R² of the content by method, in points.
        searches: Number of searches by method.
        deviation: Standard deviation between the searches of a method, in points.
        tukey: Distribution of the largest standardized difference.
    """

    means: pd.Series
    searches: pd.Series
    deviation: float
    tukey: stats.distributions.rv_frozen

    def error(self, one: str, other: str) -> float:
        """Standard error of the difference of two methods' means, over √2, in points."""
        return self.deviation * math.sqrt((1 / self.searches[one] + 1 / self.searches[other]) / 2)

    def p(self, one: str, other: str) -> float:
        """Probability of a difference as large as theirs if all methods are equal."""
        gap = self.means[one] - self.means[other]
        return float(self.tukey.sf(abs(gap) / self.error(one, other)))

    def describe(self, one: str, other: str) -> str:
        """Describe how far one method is above another, with its interval."""
        gap = self.means[one] - self.means[other]
        half = self.tukey.ppf(0.95) * self.error(one, other)
        return f"{one} - {other}: {gap:+.1f} ± {half:.1f}, p = {self.p(one, other):.3f}"


def scores(world: str) -> pd.DataFrame:
    """Read the test scores of a world's two bundles: one row for each score, search and seed."""
    rows = []
    for study in ("latents", "latents_family"):
        for record in read_bundle(RESULTS / f"{study}{world}.tar.xz").records:
            if record.is_reference or record.label == "untrained":
                continue
            for score in record.scores:
                if score.split == "test":
                    of_record = [world, record.label, study]
                    rows.append([*of_record, record.search or 0, score.name, score.value])
    names = ["world", "row", "study", "search", "score", "value"]
    return pd.DataFrame(rows, columns=names)


def test_of(data: pd.DataFrame, world: str) -> Test:
    """Make the test of a world, with the deviation between the searches of all methods."""
    content = data[(data["world"] == world) & (data["score"] == "content_r2")]
    of_search = content.groupby(["row", "search"])["value"].mean()
    groups = [own for _, own in of_search.groupby("row") if len(own) > 1]
    freedom = sum(len(own) - 1 for own in groups)
    deviation = math.sqrt(sum(own.var() * (len(own) - 1) for own in groups) / freedom)
    means = of_search.groupby("row").mean()
    searches = of_search.groupby("row").size()
    return Test(means, searches, deviation, stats.studentized_range(len(means), freedom))


def contrasts(test: Test, best: str) -> None:
    """Print a world's differences that the predictions are about."""
    others = test.means[test.means > test.means[best]]
    for row in others.index:
        print(test.describe(row, best))
    below = test.means.index[test.means < test.means[best]]
    clearly = sum(test.p(row, best) < 0.05 for row in below)
    print(f"significantly below {best}: {clearly} of {len(test.means) - 1}")
    for row in BLIND:
        print(test.describe(row, "SFRIK (L=2)"))
    for group, names in {"covariances": COVARIANCES, "kernels": KERNELS}.items():
        print(f"{group}: median {test.means[names].median():.1f}")


def between_searches(data: pd.DataFrame) -> None:
    """Print how much the two searches of a method differ, in each world that has two."""
    content = data[(data["study"] == "latents_family") & (data["score"] == "content_r2")]
    for world, own in content.groupby("world", sort=False):
        of_search = own.groupby(["row", "search"])["value"].mean().unstack()
        if len(of_search.columns) < 2:
            continue
        first, second = (of_search[search] for search in of_search)
        gap = (first - second).abs().sort_values(ascending=False)
        rank = first.corr(second, "spearman")
        print(f"latents{world}: median {gap.median():.1f}, Spearman's coefficient {rank:.2f}")
        for row in gap.index[:5]:
            print(f"    {row}: {first[row]:.1f} and {second[row]:.1f}")


def draw(content: pd.DataFrame) -> None:
    """Draw the map of methods and worlds, each world's colours by its own best and worst."""
    share = (content - content.min()) / (content.max() - content.min())
    figure, axes = plt.subplots(figsize=(6.5, 11), layout="constrained")
    axes.imshow(share, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(WORLDS)), content.columns, rotation=30)
    axes.set_yticks(range(len(content)), content.index, fontsize=8)
    for y, row in enumerate(content.index):
        for x, world in enumerate(content.columns):
            colour = "black" if share.loc[row, world] > 0.5 else "white"
            how = {"ha": "center", "va": "center", "fontsize": 8, "color": colour}
            axes.text(x, y, f"{content.loc[row, world]:.0f}", **how)
    axes.set_title("R² of the content by linear regression (%)", fontsize=10)
    figure.savefig("docs/results/latents_family.png", dpi=110)


def main() -> None:
    """Print the tables, and the differences with Tukey's test at 5 %; draw the map."""
    data = pd.concat(map(scores, WORLDS))
    means = data.groupby(["score", "row", "world"])["value"].mean().unstack()[WORLDS]
    content = means.loc["content_r2"]
    content = content.loc[content.mean(axis=1).sort_values(ascending=False).index]
    for score in SHOWN:
        print(f"\n{score}\n")
        for row in content.index:
            print(f"| {row} | {' | '.join(f'{value:.1f}' for value in means.loc[score, row])} |")

    first = set(data.loc[data["study"] == "latents", "row"])
    for world in WORLDS:
        test = test_of(data, world)
        print(f"\nlatents{world}: deviation between searches {test.deviation:.2f}")
        best = test.means[list(first)].idxmax()
        contrasts(test, best)
        if not world:
            for pair in PAIRS:
                print(test.describe(*pair))
    # There the two searches of W-MSE are further apart than any other method's.
    for world in ("_sparse", "_imbalanced"):
        rest = test_of(data[data["row"] != "W-MSE"], world)
        print(f"\nlatents{world} without W-MSE: deviation between searches {rest.deviation:.2f}")
        for row in BLIND:
            print(rest.describe(row, "SFRIK (L=2)"))
    print()
    for row in CONTRASTIVE:
        print(f"on the sphere {row}: {content.loc[row, '_sphere']:.1f}", end="; ")
    print(f"RBF kernel {content.loc['RBF kernel', '_sphere']:.1f}")
    print("\nSpearman's coefficients between worlds")
    ranks = content.corr("spearman")
    print(ranks.round(2).to_string())
    # Bonett and Wright (2000), Sample size requirements for correlations, equation 9.
    for world, rank in ranks[""].drop("").items():
        half = 1.96 * math.sqrt((1 + rank**2 / 2) / (len(content) - 3))
        low, high = (math.tanh(math.atanh(rank) + side * half) for side in (-1, 1))
        print(f"latents and latents{world}: {rank:.3f} ({low:.3f} to {high:.3f})")
    lost = (means.loc[CLUSTERS, "_clusters"] - means.loc[CLUSTERS, "_imbalanced"]).sort_values()
    others = lost.drop(list(first))
    print(f"\ncluster accuracy lost with imbalance: {others.between(*LOST).sum()} of {len(others)}")
    print(lost.round(1).to_string())
    print("\ndifferences of two searches, in points")
    between_searches(data)
    draw(content.rename(columns=lambda world: f"latents{world}"))


main()
