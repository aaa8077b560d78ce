"""The table and contrasts of docs/results/latents.md on all other methods, from the two bundles.

In the root of a clone: python results/latents/family.py
"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
from scipy import stats

from regbench.reports.bundle.bundle import read_bundle

RESULTS = Path("results")
SHOWN = ["content_r2", "content_kernel_r2", "content_mcc", "style_r2_embedding"]
PAIRS = [(row, "RBF kernel") for row in ("KCL (gaussian)", "MMD (heat)", "DHEL")]
PAIRS += [(row, "SimCLR") for row in ("InfoNCE", "DCL", "DCLW")]
PAIRS += [(row, "SFRIK (L=2)") for row in ("generalized distance", "SUSReg", "MMD (susreg)")]
NORMAL = ["KSD, imq", "KSD, gaussian", "MMD, gaussian", "sliced MMD, gaussian"]
PAIRS += [(f"KerJEPA ({kernel})", "RBF kernel") for kernel in NORMAL]
PAIRS += [("Weak-SIGReg", "RBF kernel")]
COVARIANCES = ["VICReg-exp", "VICReg-ctr", "VIbCReg", "TiCo", "W-MSE", "CorInfoMax", "FroSSL"]
KERNELS = ["quadratic kernel", "KCL (gaussian)", "KCL (imq)", "KCL (log)", "KCL (riesz)"]
KERNELS += ["MMD (heat)", "KSD (heat)", "MMD (bandlimited)", "KSD (bandlimited)", "KL (heat)"]
GROUPS = {"covariances": COVARIANCES, "kernels on the sphere": KERNELS}


def scores(bundle: str) -> pd.DataFrame:
    """Read the test scores of a bundle's methods: one row for each score, search and seed."""
    rows = []
    for record in read_bundle(RESULTS / f"{bundle}.tar.xz").records:
        if record.is_reference or record.label == "untrained":
            continue
        for score in record.scores:
            if score.split == "test":
                rows.append([record.label, record.search or 0, score.name, score.value])
    return pd.DataFrame(rows, columns=["row", "search", "score", "value"])


def main() -> None:
    """Print the table, and the differences with Tukey's test and interval at 5 %."""
    searched, others = scores("latents"), scores("latents_family")
    data = pd.concat([searched, others])
    grouped = data[data["score"].isin(SHOWN)].groupby(["row", "score"])["value"]
    means, counts = grouped.mean().unstack()[SHOWN], grouped.count().unstack()["content_r2"]
    seeds = grouped.std().unstack()["content_r2"]
    for row in means.sort_values("content_r2", ascending=False).index:
        texts = [f"{means.loc[row, score]:.1f}" for score in SHOWN]
        texts[0] += f" ± {seeds[row]:.1f}"
        print(f"| {row} | {' | '.join(texts)} | {counts[row]} |")

    content = data[data["score"] == "content_r2"]
    of_search = content.groupby(["row", "search"])["value"].mean()
    groups = [own for _, own in of_search.groupby("row") if len(own) > 1]
    freedom = sum(len(own) - 1 for own in groups)
    deviation = math.sqrt(sum(own.var() * (len(own) - 1) for own in groups) / freedom)
    of_method = of_search.groupby("row").mean()
    tukey = stats.studentized_range(len(of_method), freedom)
    error = deviation * math.sqrt((1 + 1 / 3) / 2)  # one search against three
    half = tukey.ppf(0.95) * error
    print(
        f"\ndeviation between searches {deviation:.2f}, {freedom} degrees of freedom, ± {half:.1f}"
    )
    above = of_method.sort_values(ascending=False)
    better = above[above > of_method["RBF kernel"]].index
    for one, other in [*PAIRS, *((row, "RBF kernel") for row in better)]:
        gap = of_method[one] - of_method[other]
        print(f"{one} - {other}: {gap:+.1f}, p = {tukey.sf(abs(gap) / error):.3f}")
    for group, names in GROUPS.items():
        own = of_method[names]
        print(f"{group}: median {own.median():.1f}, {own.round(1).to_dict()}")


main()
