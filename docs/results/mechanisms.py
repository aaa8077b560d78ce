"""Print the tables of mechanisms.md and draw its figures: python docs/results/mechanisms.py results docs/results.

The first folder holds the bundles, the second gets the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
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
PLAIN = {"classes": 10, "bits": 0, "imbalance": 0.0, "batch": 128, "q": 512}
REGULARIZERS = ("SFRIK (L=2)", "VICReg", "SimCLR", "SIGReg")
METHODS = (*REGULARIZERS, "BYOL")
WEIGHTS = {
    "SFRIK (L=2)": ("method.alignment_weight", (1000, 250, 4000)),
    "VICReg": ("method.alignment_weight", (6, 3, 12)),
    "SimCLR": ("method.temperature", (0.2, 0.1, 0.4)),
    "SIGReg": ("method.regularization_weight", (0.05, 0.0125, 0.2)),
    "BYOL": ("optimizer.base_lr", (3, 1.5, 6)),
}
"""The setting that weighs each method's terms, and its values: first the one that was chosen on plain scenes."""

COLOURS = dict(zip(METHODS, ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#666666"), strict=True))
UNLABELLED = {
    "training loss": ("loss", "lower"),
    "effective rank": ("effective_rank", "higher"),
    "RankMe": ("rankme tuning", "higher"),
    "LiDAR": ("lidar tuning", "higher"),
    "α-ReQ": ("alpha_req tuning", "nearest 1"),
}
"""Measures without labels: their column, and where theory expects the accurate networks."""


def cells(folder: Path) -> pd.DataFrame:
    """Return a row for each training: what was varied, its scores, and the numbers of its last epoch."""
    rows: dict[str, dict[str, object]] = {}
    for name in BUNDLES:
        bundle = read_bundle(folder / f"{name}.zip")
        for record in bundle.records:
            if record.status != "diverged" and _is_compared(record.settings):
                row = _row(record) | bundle.last_epoch(record) | {"sweep": name}
                rows.setdefault(record.cell_id, row)
    return pd.DataFrame(list(rows.values()))


def _is_compared(settings: dict[str, str]) -> bool:
    """Say whether a cell is a plain row, or BYOL with its teacher."""
    expected = "ema" if settings.get("method.name") == "byol" else "none"
    return settings.get("network.teacher", "none") == expected


def _row(record: Record) -> dict[str, object]:
    settings = record.settings
    weighed = WEIGHTS.get(record.label, ("", ()))[0]
    row: dict[str, object] = {
        "method": record.label,
        "seed": record.seed,
        "weight": float(settings.get(weighed, "nan")),
        "rate": float(settings.get("optimizer.base_lr", "nan")),
        "trained": not record.untrained,
        "classes": int(settings["dataset.num_classes"]),
        "bits": int(settings.get("dataset.shared_bits", "0")),
        "imbalance": float(settings["dataset.source.imbalance"]),
        "batch": int(settings.get("batch_size", "128")),
        "q": int(settings.get("embedding_dim", "512")),
    }
    for score in record.scores:
        row.setdefault(f"{score.name} {score.split}", score.value)
    bits = [score.value for score in record.scores if score.name.startswith("factor_bit_")]
    row["bits kept"] = float(np.mean(bits[: len(bits) // 2])) if bits else np.nan
    return row


def at(frame: pd.DataFrame, **changes: float) -> pd.DataFrame:
    """Return the cells of the setting that differs from the plain one by `changes`."""
    for key, value in (PLAIN | changes).items():
        frame = frame[frame[key] == value]
    return frame


def weighted(frame: pd.DataFrame, method: str, weight: float) -> pd.DataFrame:
    """Return a method's cells with one weight, by seed: those with a score on the test split, where there are such."""
    rate = weight if method == "BYOL" else 6
    rows = frame[(frame["method"] == method) & (frame["weight"] == weight) & (frame["rate"] == rate)]
    rows = rows.sort_values(["seed", "linear_top1 test"])  # cells without a test score come last
    return rows.drop_duplicates("seed").set_index("seed")


def scores(frame: pd.DataFrame, method: str, column: str = "linear_top1 test") -> pd.Series:
    """Return the scores of the weight that was chosen on plain scenes, by seed."""
    return weighted(frame, method, WEIGHTS[method][1][0])[column].dropna()


def ends(frame: pd.DataFrame, split: str = "test") -> tuple[float, float]:
    """Return the score of the best row that nothing was trained for, and that of training with labels."""
    column = f"linear_top1 {split}"
    untrained = frame[~frame["trained"]].groupby("method")[column].mean()
    return float(untrained.max()), float(frame[frame["method"] == "supervised"][column].mean())


def shares(frame: pd.DataFrame, method: str) -> pd.Series:
    """Return the share of the way of each seed, in per cent."""
    low, high = ends(frame)
    return 100 * (scores(frame, method) - low) / (high - low)


def half_width(values: Sequence[float] | pd.Series) -> float:
    """Return half the width of the 95 % interval of a mean, of Student's t."""
    n = len(values)
    return float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))


def worded(values: Sequence[float] | pd.Series, digits: int = 1) -> str:
    """Word a mean and its interval."""
    return f"{np.mean(values):.{digits}f} ± {half_width(values):.{digits}f}"


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table of Markdown."""
    print()
    for line in (head, ["---", *["---:"] * (len(head) - 1)], *rows):
        print("| " + " | ".join(map(str, line)) + " |")


def print_contrasts(values: dict[str, pd.Series], pairs: Sequence[tuple[str, str]]) -> None:
    """Print Welch's test of each pair, with Holm's correction over them."""
    tests = [ttest_ind(values[one], values[two], equal_var=False) for one, two in pairs]
    corrected = holm([float(test.pvalue) for test in tests])
    rows = []
    for (one, two), test, p in zip(pairs, tests, corrected, strict=True):
        low, high = test.confidence_interval()
        difference = values[one].mean() - values[two].mean()
        rows.append((f"{one} − {two}", f"{difference:.1f}", f"{low:.1f} to {high:.1f}", f"{p:.2g}"))
    print_table(("contrast", "difference", "95 %", "p (Holm)"), rows)


def print_change(
    frame: pd.DataFrame, methods: Sequence[str], extra: dict[str, str], **changes: float
) -> dict[str, pd.Series]:
    """Print what a change does to each method, and return the share of the way that each seed loses.

    Args:
        frame: All cells.
        methods: The methods.
        extra: Further columns: head -> column of the cells.
        **changes: The setting that differs.
    """
    before, after = at(frame), at(frame, **changes)
    lost, rows = {}, []
    for method in methods:
        lost[method] = (shares(before, method) - shares(after, method)).dropna()
        row = [method, worded(scores(before, method)), worded(scores(after, method))]
        row += [f"{shares(before, method).mean():.0f}", f"{shares(after, method).mean():.0f}", worded(lost[method])]
        row += [f"{scores(after, method, column).mean():.1f}" for column in extra.values()]
        rows.append([*row, other_weights(after, method)])
    for title, place in (("with labels", 1), ("best untrained row", 0)):
        row = [title, f"{ends(before)[place]:.1f}", f"{ends(after)[place]:.1f}", "–", "–", "–"]
        rows.append(row + ["–"] * (len(extra) + 1))
    print_table(("method", "before (%)", "after (%)", "share before", "after", "lost", *extra, "other weights"), rows)
    return lost


def other_weights(frame: pd.DataFrame, method: str) -> str:
    """Word the points of linear probing that other weights bring with seed 0; – where they were not trained."""
    found = []
    first = scores(frame, method)
    for weight in WEIGHTS[method][1][1:]:
        rows = weighted(frame, method, weight)
        if len(rows):
            found.append(f"{weight:g}: {rows['linear_top1 test'].loc[0] - first.loc[0]:+.1f}")
    return "; ".join(found) or "–"


def draw_change(
    frame: pd.DataFrame, methods: Sequence[str], path: Path, words: tuple[str, str], **changes: float
) -> None:
    """Draw each method's share of the way before and after a change: seeds as points, means with intervals."""
    figure = plt.figure(figsize=(7, 3.2))
    axes = figure.add_subplot(ylabel="share of the way (%)")
    for place, method in enumerate(methods):
        for side, rows in enumerate((at(frame), at(frame, **changes))):
            values, x = shares(rows, method), place + 0.3 * side
            axes.plot(np.full(len(values), x), values, ".", color=COLOURS[method], alpha=0.4)
            face = "white" if side else COLOURS[method]
            axes.errorbar(x, values.mean(), half_width(values), fmt="o", color=COLOURS[method], mfc=face, capsize=3)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.axhline(100, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xticks(np.arange(len(methods)) + 0.15, methods)
    axes.set_title(f"full: {words[0]}; open: {words[1]}", fontsize=9)
    save(figure, path)


def by_rank(frame: pd.DataFrame, classes: int) -> pd.DataFrame:
    """Return rank and share of the way on the tuning split of the configurations that have not collapsed."""
    rows = at(frame, classes=classes)
    low, high = ends(rows, "tuning")
    found = []
    for method in REGULARIZERS:
        for weight in WEIGHTS[method][1]:
            mean = weighted(rows, method, weight)[["effective_rank", "linear_top1 tuning"]].mean()
            found.append((method, mean.iloc[0], 100 * (mean.iloc[1] - low) / (high - low)))
    table = pd.DataFrame(found, columns=["method", "rank", "share"])
    return table[table["rank"] > 10]


def rank_and_classes(frame: pd.DataFrame, path: Path) -> None:
    """Print and draw the slope of the share of the way over log₂ of the effective rank, with 10 and 160 classes."""
    figure, rows, slopes = plt.figure(figsize=(8, 3.4)), [], []
    for place, classes in enumerate((10, 160), 1):
        table = by_rank(frame, classes)
        fit = linregress(np.log2(table["rank"]), table["share"])
        freedom = len(table) - 2
        slopes.append((fit.slope, fit.stderr, freedom))
        half = t.ppf(0.975, freedom) * fit.stderr
        rows.append((f"{classes} classes", f"{fit.slope:.1f} ± {half:.1f}", len(table), f"{fit.rvalue:.2f}"))
        axes = figure.add_subplot(1, 2, place, title=f"{classes} classes", xlabel="effective rank")
        for method, part in table.groupby("method", sort=False):
            axes.plot(part["rank"], part["share"], "o", color=COLOURS[str(method)], label=method)
        line = np.array([table["rank"].min(), table["rank"].max()])
        axes.plot(line, fit.intercept + fit.slope * np.log2(line), "k--", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_ylabel("share of the way, tuning split (%)")
        axes.legend(fontsize=8, frameon=False)
    (first, error, freedom), (second, other_error, other_freedom) = slopes
    half = t.ppf(0.975, freedom + other_freedom) * np.hypot(error, other_error)
    rows.append(("160 − 10 classes", f"{second - first:.1f} ± {half:.1f}", "–", "–"))
    print_table(("", "points for each doubling of the rank", "configurations", "correlation"), rows)
    save(figure, path)


def searches(path: Path) -> Iterator[pd.DataFrame]:
    """Yield the trials of each search of a bundle that had its full length: accuracy, and what needs no labels."""
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


def trials(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the three weights of each method where the setting was changed, with seed 0."""
    rows = frame[(frame["sweep"] == "mechanisms") & (frame["seed"] == 0) & frame["method"].isin(REGULARIZERS)]
    rows = rows.assign(accuracy=rows["linear_top1 tuning"])
    for _, group in rows.groupby(["method", *PLAIN]):
        if len(group) == 3:
            yield group


def lost_without_labels(groups: Iterable[pd.DataFrame], title: str) -> list[tuple[object, ...]]:
    """Return a row for each measure: the points lost by choosing with it, over searches of three trials or more."""
    found: dict[str, list[float]] = {"random choice": []}
    for group in groups:
        if len(group) < 3:
            continue
        accuracy = group["accuracy"]
        found["random choice"].append(accuracy.max() - accuracy.mean())
        for name, (column, better) in UNLABELLED.items():
            if column not in group or group[column].isna().any():
                continue
            values = -(group[column] - 1).abs() if better == "nearest 1" else group[column]
            picked = values.idxmin() if better == "lower" else values.idxmax()
            found.setdefault(name, []).append(accuracy.max() - accuracy.loc[picked])
    chance, rows = np.array(found["random choice"]), []
    for name, lost in found.items():
        gained = "–" if name == "random choice" else worded(chance - np.array(lost), 2)
        percent = f"{100 * np.mean(lost) / chance.mean():.0f}"
        rows.append((title, len(lost), name, f"{np.mean(lost):.2f}", percent, gained, f"{max(lost):.1f}"))
    return rows


def print_label_free(folder: Path, frame: pd.DataFrame) -> None:
    """Print what choosing a weight without labels costs, over shipped searches and over this study's trials."""
    rows = []
    for name in ("quickstart", "heuristics", "fashion_mnist", "digits"):
        rows += lost_without_labels(searches(folder / f"{name}.zip"), name)
    rows += lost_without_labels(trials(frame), "this study")
    head = ("searches of", "searches", "chosen by", "points lost", "% of chance", "better than chance by", "at worst")
    print_table(head, rows)


def save(figure: plt.Figure, path: Path) -> None:
    """Write a figure."""
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(bundles: Path, out: Path) -> None:
    """Print all tables and draw all figures."""
    frame = cells(bundles)
    rank_and_classes(frame, out / "mechanisms_rank_and_classes.png")
    print_change(frame, REGULARIZERS, {"rank after": "effective_rank"}, classes=160)
    lost = print_change(frame, REGULARIZERS, {"bits kept (%)": "bits kept"}, bits=12)
    print_contrasts(lost, [("VICReg", other) for other in REGULARIZERS if other != "VICReg"])
    draw_change(frame, REGULARIZERS, out / "mechanisms_shared_bits.png", ("plain scenes", "12 shared bits"), bits=12)
    groups = {"head (%)": "linear_head_top1 test", "tail (%)": "linear_tail_top1 test"}
    lost = print_change(frame, METHODS, groups, imbalance=1.5)
    print_contrasts(lost, [(method, "BYOL") for method in REGULARIZERS])
    draw_change(frame, METHODS, out / "mechanisms_imbalance.png", ("balanced", "unbalanced"), imbalance=1.5)
    print_label_free(bundles, frame)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
