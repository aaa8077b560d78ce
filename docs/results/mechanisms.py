"""Print the tables of docs/results/mechanisms.md and draw its figures: python docs/results/mechanisms.py results.

The folder holds the bundles of the sweeps quickstart_tuning, heuristics and mechanisms.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import linregress, t, ttest_ind

from regbench.benchmark.rundir.record import Record
from regbench.reports.bundle.bundle import read_bundle
from regbench.reports.rows.significance import holm

BUNDLES = ("quickstart", "heuristics", "mechanisms")
HERE = Path(__file__).parent
PLAIN = {"classes": 10, "bits": 0, "imbalance": 0.0, "batch": 128, "q": 512}
METHODS = ("SFRIK (L=2)", "VICReg", "SimCLR", "SIGReg", "BYOL")
REGULARIZERS = METHODS[:4]
WEIGHTS = {
    "SFRIK (L=2)": ("method.alignment_weight", (1000, 250, 4000)),
    "VICReg": ("method.alignment_weight", (6, 3, 12)),
    "SimCLR": ("method.temperature", (0.2, 0.1, 0.4)),
    "SIGReg": ("method.regularization_weight", (0.05, 0.0125, 0.2)),
    "BYOL": ("optimizer.base_lr", (3, 1.5, 6)),
}
"""The setting that weighs each method's terms, and its values: first the chosen one."""
COLOURS = dict(zip(METHODS, ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#666666"), strict=True))
MEASURES = {"loss": -1, "effective_rank": 1, "rankme tuning": 1, "lidar tuning": 1, "alpha_req tuning": 0}
"""Measures without labels; 1 where more is said to be better, -1 where less, 0 where the nearest to 1."""


def cells(folder: Path) -> pd.DataFrame:
    """Return a row for each training: what was varied, its scores and the last numbers of its training."""
    rows = {}
    for name in BUNDLES:
        bundle = read_bundle(folder / f"{name}.zip")
        for record in bundle.records:
            if record.status != "diverged" and _compared(record.settings):
                rows.setdefault(record.cell_id, _row(record) | bundle.last_epoch(record) | {"sweep": name})
    return pd.DataFrame(rows.values())


def _compared(settings: dict[str, str]) -> bool:
    """Say whether a cell is of the study's rows: plain ones, and BYOL with its teacher."""
    teacher = settings.get("network.teacher", "none")
    return teacher == ("ema" if settings.get("method.name") == "byol" else "none")


def _row(record: Record) -> dict[str, object]:
    settings = record.settings
    weighed = WEIGHTS.get(record.label, ("", ()))[0]
    row = {
        "method": record.label,
        "seed": record.seed,
        "weight": float(settings.get(weighed, "nan")),
        "rate": float(settings["optimizer.base_lr"]) if "optimizer.base_lr" in settings else np.nan,
        "trained": not record.untrained,
        "classes": int(settings["dataset.num_classes"]),
        "bits": int(settings.get("dataset.shared_bits", 0)),
        "imbalance": float(settings["dataset.source.imbalance"]),
        "batch": int(settings.get("batch_size", 128)),
        "q": int(settings.get("embedding_dim", 512)),
    }
    for score in record.scores:
        row.setdefault(f"{score.name} {score.split}", score.value)
    return row


def at(frame: pd.DataFrame, **changes: float) -> pd.DataFrame:
    """Return the cells of a setting that differs from the plain one by `changes`."""
    for key, value in (PLAIN | changes).items():
        frame = frame[frame[key] == value]
    return frame


def chosen(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return a method's scored cells with the weight that was chosen on plain scenes, by seed."""
    rate = 3 if method == "BYOL" else 6
    rows = frame[(frame["method"] == method) & (frame["weight"] == WEIGHTS[method][1][0]) & (frame["rate"] == rate)]
    return rows[rows["linear_top1 test"].notna()].sort_values("seed").drop_duplicates("seed").set_index("seed")


def ends(frame: pd.DataFrame, split: str = "test") -> tuple[float, float]:
    """Return the score of the best row that nothing was trained for, and that of training with labels."""
    column = f"linear_top1 {split}"
    untrained = frame[~frame["trained"]].groupby("method")[column].mean()
    return float(untrained.max()), float(frame[frame["method"] == "supervised"][column].mean())


def shares(frame: pd.DataFrame, method: str) -> pd.Series:
    """Return the share of the way of each seed, in per cent."""
    low, high = ends(frame)
    return 100 * (chosen(frame, method)["linear_top1 test"] - low) / (high - low)


def interval(values: pd.Series | np.ndarray) -> tuple[float, float]:
    """Return mean and half the width of the 95 % interval of Student's t."""
    n = len(values)
    return float(np.mean(values)), float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else np.nan


def contrasts(values: dict[str, pd.Series], pairs: list[tuple[str, str]]) -> None:
    """Print Welch's test of each pair, with Holm's correction over them."""
    tests = [ttest_ind(values[one], values[two], equal_var=False) for one, two in pairs]
    corrected = holm([float(test.pvalue) for test in tests])
    for (one, two), test, p in zip(pairs, tests, corrected, strict=True):
        low, high = test.confidence_interval()
        difference = float(values[one].mean() - values[two].mean())
        print(f"  {one} - {two}: {difference:.1f} [{low:.1f}, {high:.1f}], p = {p:.2g}")


def setting(frame: pd.DataFrame, title: str, **changes: float) -> None:
    """Print the rows of a setting: each method with its weights, and the references."""
    print(f"\n## {title}")
    rows = at(frame, **changes)
    columns = ["linear_top1 test", "knn_top1 test", "linear_top1 tuning", "effective_rank", "alignment"]
    extra = [c for c in rows if "shared_bits" in c or c.startswith(("linear_head", "linear_tail"))]
    found = rows.groupby(["method", "weight", "rate"], dropna=False)[columns + extra].agg(["mean", "std"])
    found = found.dropna(axis=1, how="all").round(2)
    found["n"] = rows.groupby(["method", "weight", "rate"], dropna=False).size()
    print(found.to_string())
    print("ends:", ends(rows))


def shift(frame: pd.DataFrame, methods: tuple[str, ...], **changes: float) -> dict[str, pd.Series]:
    """Print and return the share of the way that each method loses by a change, seed by seed."""
    lost = {}
    for method in methods:
        before, after = shares(at(frame), method), shares(at(frame, **changes), method)
        lost[method] = (before - after).dropna()
        b, a, d = interval(before), interval(after), interval(lost[method])
        print(f"{method}: {b[0]:.0f} ± {b[1]:.0f} to {a[0]:.0f} ± {a[1]:.0f}, lost {d[0]:.1f} ± {d[1]:.1f}")
    return lost


def by_rank(frame: pd.DataFrame, classes: int) -> pd.DataFrame:
    """Return rank and share of the way on the tuning split of the twelve configurations, means over seeds."""
    rows = at(frame, classes=classes)
    low, high = ends(rows, "tuning")
    found = []
    for method in REGULARIZERS:
        for weight in WEIGHTS[method][1]:
            cell = rows[(rows["method"] == method) & (rows["weight"] == weight) & (rows["rate"] == 6)]
            mean = cell.drop_duplicates("seed")[["effective_rank", "linear_top1 tuning"]].mean()
            found.append((method, weight, mean.iloc[0], 100 * (mean.iloc[1] - low) / (high - low)))
    table = pd.DataFrame(found, columns=["method", "weight", "rank", "share"])
    return table[table["rank"] > 10]


def h1(frame: pd.DataFrame) -> None:
    """Print the slope of the share of the way over log₂ of the effective rank, at each number of classes."""
    slopes, figure = {}, plt.figure(figsize=(8, 3.4))
    for place, classes in enumerate((10, 160), 1):
        table = by_rank(frame, classes)
        print(table.round(1).to_string(index=False))
        fit = linregress(np.log2(table["rank"]), table["share"])
        half = t.ppf(0.975, len(table) - 2) * fit.stderr
        slopes[classes] = fit.slope, fit.stderr, len(table) - 2
        print(f"{classes} classes: {fit.slope:.1f} ± {half:.1f} points for each doubling")
        axes = figure.add_subplot(1, 2, place, title=f"{classes} classes", xlabel="effective rank")
        for method, part in table.groupby("method"):
            axes.plot(part["rank"], part["share"], "o", color=COLOURS[str(method)], label=method)
        line = np.array([table["rank"].min(), table["rank"].max()])
        axes.plot(line, fit.intercept + fit.slope * np.log2(line), "k--", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.axhline(0, color="grey", linewidth=0.8)
        if place == 1:
            axes.set_ylabel("share of the way (%)")
            axes.legend(fontsize=8, frameon=False)
    (a, ea, na), (b, eb, nb) = slopes.values()
    half = t.ppf(0.975, na + nb) * np.hypot(ea, eb)
    print(f"difference of slopes: {b - a:.1f} ± {half:.1f}")
    save(figure, "rank_and_classes")


def two_ends(
    frame: pd.DataFrame, methods: tuple[str, ...], name: str, before: str, after: str, **changes: float
) -> None:
    """Draw the share of the way of each method before and after a change, seeds as points."""
    figure = plt.figure(figsize=(8, 3.2))
    axes = figure.add_subplot(ylabel="share of the way (%)")
    for place, method in enumerate(methods):
        for side, rows in enumerate((at(frame), at(frame, **changes))):
            values = shares(rows, method)
            x, (mean, half) = place + 0.3 * side, interval(values)
            axes.plot(np.full(len(values), x), values, ".", color=COLOURS[method], alpha=0.4)
            marker = "os"[side]
            axes.errorbar(x, mean, half, fmt=marker, color=COLOURS[method], mfc="white" if side else None, capsize=3)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xticks(np.arange(len(methods)) + 0.15, methods)
    axes.set_title(f"filled circle: {before}; open square: {after}", fontsize=9)
    save(figure, name)


def slope(scores: pd.Series, doublings: np.ndarray) -> float:
    """Return the points that each doubling brings, of one seed."""
    return float(linregress(doublings, scores).slope)


def h4(frame: pd.DataFrame) -> None:
    """Print the points of linear probing that each doubling of batch and q brings, and draw them."""
    figure = plt.figure(figsize=(8, 3.2))
    for place, (key, values) in enumerate({"batch": (32, 128, 512), "q": (64, 512, 2048)}.items(), 1):
        axes = figure.add_subplot(1, 2, place, xlabel=key, ylabel="linear probing (%)")
        slopes = {}
        for method in ("VICReg", "SimCLR"):
            scores = [chosen(at(frame, **{key: value}), method)["linear_top1 test"] for value in values]
            table = pd.concat(scores, axis=1, keys=values)
            slopes[method] = table.dropna().apply(slope, axis=1, doublings=np.log2(values))
            means = [interval(score) for score in scores]
            print(key, method, [f"{mean:.1f} ± {half:.1f}" for mean, half in means], "slope", interval(slopes[method]))
            mean, half = np.array(means).T
            axes.errorbar(values, mean, half, marker="o", color=COLOURS[method], capsize=3, label=method)
        axes.set_xscale("log", base=2)
        axes.legend(fontsize=8, frameon=False)
        contrasts(slopes, [("VICReg", "SimCLR")])
    save(figure, "batch_and_dimension")


def h6(folder: Path, frame: pd.DataFrame) -> None:
    """Print the points lost by choosing by each measure, over the shipped searches and over the trials of step 3."""
    for name in ("quickstart", "heuristics", "fashion_mnist", "digits"):
        losses(list(searches(folder / f"{name}.zip")), name)
    rows = frame[frame["method"].isin(REGULARIZERS) & (frame["seed"] == 0) & (frame["sweep"] == "mechanisms")]
    rows = rows.rename(columns={"linear_top1 tuning": "accuracy"})
    groups = [group for _, group in rows.groupby(["method", *PLAIN]) if len(group) == 3]
    losses(groups, "step 3")


def searches(path: Path) -> Iterator[pd.DataFrame]:
    """Yield the trials of each search of a bundle, of its full length: accuracy by labels, and what needs none."""
    bundle = read_bundle(path)
    records = {record.cell_id: record for record in bundle.records}
    for choice in bundle.choices.values():
        for row in choice.choices:
            trials = []
            for entry in row.ranking:
                if entry.value is not None:
                    measured = bundle.last_epoch(records[entry.cell_id])
                    trials.append({"accuracy": entry.value, "epochs": entry.epochs} | measured)
            table = pd.DataFrame(trials)
            yield table[table["epochs"] == table["epochs"].max()]


def losses(groups: list[pd.DataFrame], title: str) -> None:
    """Print the mean points lost by each measure, its difference from a random choice, and the worst search."""
    found: dict[str, list[float]] = {}
    for group in groups:
        accuracy = group["accuracy"]
        if len(group) < 3:
            continue
        found.setdefault("random choice", []).append(float(accuracy.max() - accuracy.mean()))
        for name, sign in MEASURES.items():
            values = group[name] if name in group else pd.Series(dtype=float)
            if len(values) and values.notna().all():
                better = sign * values if sign else -(values - 1).abs()
                found.setdefault(name, []).append(float(accuracy.max() - accuracy[better.idxmax()]))
    chance = np.array(found.get("random choice", []))
    for name, lost in found.items():
        gain = interval(chance - np.array(lost))
        share = 100 * np.mean(lost) / chance.mean()
        print(
            f"{title}: {name} loses {np.mean(lost):.2f} ({share:.0f} % of chance), gains {gain[0]:.2f} ± {gain[1]:.2f}, worst {max(lost):.1f}, n = {len(lost)}"
        )


def save(figure: plt.Figure, name: str) -> None:
    """Write a figure beside this page."""
    figure.tight_layout()
    figure.savefig(HERE / f"mechanisms_{name}.png", dpi=110)
    plt.close(figure)


def main() -> None:
    """Print everything."""
    frame = cells(Path(sys.argv[1]))
    setting(frame, "Plain scenes")
    print("\n# H2")
    setting(frame, "12 shared bits", bits=12)
    lost = shift(frame, REGULARIZERS, bits=12)
    contrasts(lost, list(combinations(REGULARIZERS, 2)))
    two_ends(frame, REGULARIZERS, "shared_bits", "plain scenes", "12 shared bits", bits=12)
    print("\n# H1")
    setting(frame, "160 classes", classes=160)
    shift(frame, REGULARIZERS, classes=160)
    h1(frame)
    print("\n# H3")
    setting(frame, "Imbalance 1.5", imbalance=1.5)
    lost = shift(frame, METHODS, imbalance=1.5)
    contrasts(lost, [(method, "BYOL") for method in REGULARIZERS])
    two_ends(frame, METHODS, "imbalance", "balanced", "unbalanced", imbalance=1.5)
    print("\n# H4")
    h4(frame)
    print("\n# H6")
    h6(Path(sys.argv[1]), frame)


if __name__ == "__main__":
    main()
