"""Print the tables of mechanisms.md and draw its figures: python mechanisms.py RESULTS FIGURES.

The first folder holds the bundles, the second gets the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from mechanisms_cells import (
    PLAIN,
    REGULARIZERS,
    STUDY,
    WEIGHTS,
    at,
    by_level,
    cells,
    contrasts,
    ends,
    half_width,
    print_contrasts,
    print_table,
    scores,
    shares,
    weighted,
    worded,
)
from mechanisms_figures import COLOURS, draw_levels, draw_sizes, save
from numpy.typing import NDArray
from scipy.stats import linregress, spearmanr, t

from regbench.reports.bundle.bundle import read_bundle

DRAWS = 2000
SEARCHED = ("quickstart", "heuristics", "fashion_mnist", "digits")
UNLABELLED = {
    "training loss": ("loss", "lower"),
    "effective rank": ("effective_rank", "higher"),
    "RankMe": ("rankme tuning", "higher"),
    "LiDAR": ("lidar tuning", "higher"),
    "α-ReQ": ("alpha_req tuning", "nearest 1"),
}
"""Measures without labels: their column, and where theory expects the accurate networks."""


def print_change(
    frame: pd.DataFrame, extra: dict[str, str], methods: Sequence[str] = REGULARIZERS, **changes: float
) -> dict[str, pd.Series]:
    """Print what a change does to each method, and return the share of the way that each seed
    loses.

    Args:
        frame: All cells.
        extra: Further columns: head -> column of the cells.
        methods: The methods.
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
    head = ["method", "before (%)", "after (%)", "share before", "after", "lost", *extra,
        "other weights"]
    if all(row[-1] == "–" for row in rows):  # no other weight was tried
        head, rows = head[:-1], [row[:-1] for row in rows]
    print_table(head, rows)
    return lost


def other_weights(frame: pd.DataFrame, method: str) -> str:
    """Word the points of linear probing that other weights bring with seed 0; – where they were
    not trained.
    """
    found = []
    first = scores(frame, method)
    for weight in WEIGHTS[method][1][1:]:
        rows = weighted(frame, method, weight)
        if len(rows):
            found.append(f"{weight:g}: {rows['linear_top1 test'].loc[0] - first.loc[0]:+.1f}")
    return "; ".join(found) or "–"


def other_rates(frame: pd.DataFrame, method: str) -> str:
    """Word the points of linear probing that half and twice the learning rate bring with seed 0."""
    rows = frame[(frame["method"] == method) & (frame["weight"] == WEIGHTS[method][1][0]) & (frame[
        "seed"] == 0)]
    points = rows.groupby("rate")["linear_top1 test"].first()
    return "; ".join(f"{rate:g}: {points[rate] - points[6]:+.1f}" for rate in (3, 12) if rate in points) or "–"


def draw_bits(frame: pd.DataFrame, path: Path) -> None:
    """Draw each regularizer's share of the way and effective rank over the number of bits."""
    figure, bits = plt.figure(figsize=(8, 3.4)), (0, 4, 12)
    parts = [at(frame, bits=count) for count in bits]
    left = figure.add_subplot(1, 2, 1, xlabel="shared bits", ylabel="share of the way (%)")
    draw_levels(left, bits, by_level(parts, REGULARIZERS, shares))
    left.axhline(0, color="grey", linewidth=0.8)
    right = figure.add_subplot(1, 2, 2, xlabel="shared bits", ylabel="effective rank")
    draw_levels(right, bits, by_level(parts, REGULARIZERS, partial(scores, column="effective_rank")))
    right.plot([3, 5], [15, 15], "k--", linewidth=1, label="most that four bits allow")
    right.legend(fontsize=8, frameon=False)
    save(figure, path)


def draw_imbalance(frame: pd.DataFrame, path: Path) -> None:
    """Draw each method's share of the way over the imbalance, and its accuracy of frequent and
    of rare classes.
    """
    figure, levels = plt.figure(figsize=(8, 3.4)), (0, 1.5)
    parts = [at(frame, imbalance=level) for level in levels]
    left = figure.add_subplot(1, 2, 1, xlabel="exponent of the imbalance", ylabel="share of the "
    "way (%)")
    draw_levels(left, levels, by_level(parts, WEIGHTS, shares))
    left.axhline(0, color="grey", linewidth=0.8)
    left.legend(fontsize=8, frameon=False)
    right = figure.add_subplot(1, 2, 2, ylabel="linear probing (%)", title="imbalance 1.5")
    kinds = ("linear_head_top1 test", "linear_tail_top1 test")
    values = {}
    for method in WEIGHTS:
        values[method] = [scores(parts[1], method, kind) for kind in kinds]
    draw_levels(right, (0, 1), values)
    right.set_xticks((0, 1), ("frequent classes", "rare classes"))
    for place, kind in enumerate(kinds):
        labelled = parts[1].loc[parts[1]["method"] == "supervised", kind].mean()
        right.plot([place - 0.1, place + 0.1], [labelled, labelled], "k-", label=None if place else
            "with labels")
    right.legend(fontsize=8, frameon=False)
    save(figure, path)


def worded_ranks(parts: Sequence[pd.DataFrame], method: str) -> str:
    """Word a method's mean effective rank at each level."""
    return " / ".join(f"{scores(part, method, 'effective_rank').mean():.1f}" for part in parts)


def print_sizes(frame: pd.DataFrame, name: str, sizes: Sequence[int], path: Path) -> None:
    """Print and draw linear probing for each batch size or q, and the points that each doubling
    brings to a seed.

    Args:
        frame: All cells.
        name: Setting that is varied: batch or q.
        sizes: Values of the setting.
        path: The figure's file.
    """
    doublings = np.log2(sizes)
    parts = [at(frame, **{name: size}) for size in sizes]
    drawn = by_level(parts, ("VICReg", "SimCLR"), scores)
    slopes, rows, others = {}, [], []
    for method, columns in drawn.items():
        seeds = pd.concat(columns, axis=1).dropna()
        slopes[method] = seeds.apply(lambda seed: linregress(doublings, seed).slope, axis=1)
        rows.append((method, *map(worded, columns), worded(slopes[method], 2), worded_ranks(parts, method)))
        tried = other_rates if name == "batch" else other_weights
        others.append((method, *(tried(part, method) for part in (parts[0], parts[-1]))))
    print_table(("method", *(f"{name} {size} (%)" for size in sizes), "points for each doubling",
        "ranks"), rows)
    print_contrasts(slopes, [("VICReg", "SimCLR")])
    print_table(("method", *(f"{name} {size}" for size in (sizes[0], sizes[-1]))), others)
    draw_sizes("batch size" if name == "batch" else name, sizes, drawn, ends(at(frame))[0], path)


def print_wide(frame: pd.DataFrame) -> None:
    """Print how much of what q = 64 costs comes back where the hidden layers have 512 units."""
    titles = ("q 64", "hidden 512", "q 512")
    parts = [at(frame, q=64), at(frame, q=64, hidden=512), at(frame)]
    compared, pairs, rows = {}, [], []
    for method, columns in by_level(parts, ("VICReg", "SimCLR"), scores).items():
        narrow, wide, plain = columns
        back = 100 * (wide - narrow) / (plain.mean() - narrow.mean())
        rows.append((method, *map(worded, columns), worded(back, 0), worded_ranks(parts, method)))
        names = [f"{method}, {title}" for title in titles]
        compared |= dict(zip(names, columns, strict=True))
        pairs += [(names[1], names[0]), (names[2], names[1])]
    print_table(("method", *(f"{title} (%)" for title in titles), "of the loss back (%)", "ranks"), rows)
    print_contrasts(compared, pairs)


def rank_correlation(short: Sequence[pd.Series], long: Sequence[pd.Series]) -> tuple[float, float, float]:
    """Return Spearman's correlation of the methods' means at two lengths, and its 95 % interval
    over drawn seeds.
    """
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        means = []
        for methods in (short, long):
            means.append([generator.choice(seeds, len(seeds)).mean() for seeds in methods])
        drawn.append(spearmanr(*means).statistic)
    found = spearmanr([seeds.mean() for seeds in short], [seeds.mean() for seeds in long]).statistic
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(found), float(low), float(high)


def print_lengths(frame: pd.DataFrame, path: Path) -> None:
    """Print and draw linear probing for each length of training, and how the shorter rankings
    hold for the longest.
    """
    lengths, pairs = (4, 8, 15, 30), list(combinations(REGULARIZERS, 2))
    drawn = by_level([at(frame, epochs=length) for length in lengths], REGULARIZERS, scores)
    print_table(
        ("method", *(f"{length} epochs (%)" for length in lengths)),
        [(method, *map(worded, columns)) for method, columns in drawn.items()],
    )
    tests = []
    for place in range(len(lengths)):
        tests.append(contrasts({method: columns[place] for method, columns in drawn.items()}, pairs))
    rows = []
    for place, length in enumerate(lengths[:-1]):
        found, low, high = rank_correlation(
            [columns[place] for columns in drawn.values()], [columns[-1] for columns in drawn.values()]
        )
        told = tests[place]["p"] < 0.05
        turned = told & (tests[place]["difference"] * tests[-1]["difference"] < 0)
        rows.append((f"{length} epochs", f"{found:.1f}", f"{low:.1f} to {high:.1f}", told.sum(), turned.sum()))
    head = ("ranking after", "rank correlation with 30 epochs", "95 %", "significant pairs",
        "of "
        "them turned round")
    print_table(head, rows)
    draw_sizes("epochs", lengths, drawn, ends(at(frame))[0], path)


def print_searches(frame: pd.DataFrame) -> None:
    """Print what each seed's search on plain scenes chooses by linear probing, and how the
    other configurations compare.
    """
    plain, choices, others = at(frame), [], []
    for method in REGULARIZERS:
        first, smaller, larger = WEIGHTS[method][1]
        tuning, test = {}, {}
        for weight, rate in ((first, 6), (smaller, 6), (larger, 6), (first, 3), (first, 12)):
            seeds, name = weighted(plain, method, weight, rate).loc[:2], f"{weight:g}, {rate}"
            tuning[name], test[name] = seeds["linear_top1 tuning"], seeds["linear_top1 test"]
        own, *rivals = tuning
        chosen = pd.DataFrame(tuning).idxmax(axis=1)
        gains = [test[chosen[seed]][seed] - test[own][seed] for seed in (1, 2)]
        choices.append((method, own, *chosen, f"{np.mean(gains):+.1f}"))
        others.append((method, *(f"{name}: {worded(tuning[name] - tuning[own])}" for name in rivals)))
    print_table(("method", "the study's", "seed 0", "seed 1", "seed 2", "choices, test"), choices)
    print_table(("method", "smaller weight", "larger weight", "half the rate", "twice the rate"), others)


def by_rank(frame: pd.DataFrame, classes: int) -> pd.DataFrame:
    """Return rank and share of the way on the tuning split of the configurations that have not
    collapsed.
    """
    rows = at(frame, classes=classes)
    low, high = ends(rows, "tuning")
    found = []
    for method in REGULARIZERS:
        for weight in WEIGHTS[method][1]:
            cells_of_weight = weighted(rows, method, weight)
            accuracy = cells_of_weight["linear_top1 tuning"].mean()
            found.append((method, cells_of_weight["effective_rank"].mean(), 100 * (accuracy - low) / (high - low)))
    table = pd.DataFrame(found, columns=["method", "rank", "share"])
    return table[table["rank"] > 10]


def rank_and_classes(frame: pd.DataFrame, path: Path) -> None:
    """Print and draw the slope of the share of the way over log₂ of the effective rank, with 10
    and 160 classes.
    """
    figure, rows, slopes = plt.figure(figsize=(8, 3.4)), [], []
    for place, classes in enumerate((10, 160), 1):
        table = by_rank(frame, classes)
        fit = linregress(np.log2(table["rank"]), table["share"])
        freedom = len(table) - 2
        slopes.append((fit.slope, fit.stderr, freedom))
        half = t.ppf(0.975, freedom) * fit.stderr
        rows.append((f"{classes} classes", f"{fit.slope:.1f} ± {half:.1f}", len(table),
            f"{fit.rvalue:.2f}"))
        axes = figure.add_subplot(1, 2, place, title=f"{classes} classes", xlabel="effective rank")
        for method, part in table.groupby("method", sort=False):
            axes.plot(part["rank"], part["share"], "o", color=COLOURS[str(method)], label=method)
        line = np.array([table["rank"].min(), table["rank"].max()])
        axes.plot(line, fit.intercept + fit.slope * np.log2(line), "k--", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xticks([32, 64, 128], ["32", "64", "128"])
        axes.set_ylabel("share of the way, tuning split (%)")
        axes.legend(fontsize=8, frameon=False)
    (first, error, freedom), (second, other_error, other_freedom) = slopes
    half = t.ppf(0.975, freedom + other_freedom) * np.hypot(error, other_error)
    rows.append(("160 − 10 classes", f"{second - first:.1f} ± {half:.1f}", "–", "–"))
    print_table(("", "points for each doubling of the rank", "configurations", "correlation"), rows)
    save(figure, path)


def searches(path: Path) -> Iterator[pd.DataFrame]:
    """Yield the trials of each search of a bundle that had its full length: accuracy, and what
    needs no labels.
    """
    bundle = read_bundle(path)
    records = {record.cell_id: record for record in bundle.records}
    for choice in bundle.choices.values():
        for row in choice.choices:
            tried = []
            for entry in row.ranking:
                if entry.value is not None:
                    measured = bundle.last_epoch(records[entry.cell_id])
                    tried.append({"accuracy": entry.value, "epochs": entry.epochs} | measured)
            table = pd.DataFrame(tried)
            yield table[table["epochs"] == table["epochs"].max()]


def trials(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the configurations that each method tried with one seed and in one setting."""
    rows = frame[frame["method"].isin(REGULARIZERS)]
    rows = rows.assign(accuracy=rows["linear_top1 tuning"])
    for _, group in rows.groupby(["method", "seed", *PLAIN]):
        yield group


def lost_without_labels(groups: Iterable[pd.DataFrame]) -> dict[str, NDArray[np.float64]]:
    """Return the points that choosing by each measure loses in each search of three trials or
    more.
    """
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
    return {name: np.array(lost) for name, lost in found.items()}


def print_label_free(folder: Path, frame: pd.DataFrame, path: Path) -> None:
    """Print and draw what choosing a weight without labels costs, over shipped searches and
    this study's trials.
    """
    lost = {name: lost_without_labels(searches(folder / f"{name}.tar.xz")) for name in SEARCHED}
    lost["this study"] = lost_without_labels(trials(frame[frame["sweep"].isin(STUDY) & (frame[
        "seed"] == 0)]))
    lost["its search, repeated"] = lost_without_labels(trials(at(frame[frame["seed"].isin((1, 2))])))
    rows, gains = [], []
    for title, measures in lost.items():
        chance = measures["random choice"]
        for name, values in measures.items():
            gained = "–"
            if name != "random choice":
                gained = worded(chance - values, 2)
                gains.append((f"{title}: {name}", chance - values))
            percent = f"{100 * values.mean() / chance.mean():.0f}"
            rows.append((title, len(values), name, f"{values.mean():.2f}", percent, gained,
                f"{values.max():.1f}"))
    head = ("searches of", "searches", "chosen by", "points lost", "% of chance",
        "better "
        "than chance by", "at worst")
    print_table(head, rows)
    figure = plt.figure(figsize=(7, 4))
    axes = figure.add_subplot(xlabel="points better than a random choice")
    for place, (_, values) in enumerate(gains):
        axes.errorbar(values.mean(), -place, xerr=half_width(values), fmt="o", color="#0072b2", capsize=3)
    axes.set_yticks(-np.arange(len(gains)), [title for title, _ in gains], fontsize=8)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_xlim(-7, 7)
    save(figure, path)


def main(bundles: Path, out: Path) -> None:
    """Print all tables and draw all figures."""
    frame = cells(bundles)
    rank = {"rank after": "effective_rank"}
    print_change(frame, rank, classes=160)
    many = at(frame, classes=160)
    print_contrasts({method: scores(many, method) for method in REGULARIZERS}, list(combinations(REGULARIZERS, 2)))
    rank_and_classes(frame, out / "mechanisms_rank_and_classes.png")
    for bits in (12, 4):
        lost = print_change(frame, rank | {"bits kept (%)": "bits kept"}, bits=bits)
        print_contrasts(lost, [("VICReg", other) for other in REGULARIZERS if other != "VICReg"])
    draw_bits(frame, out / "mechanisms_shared_bits.png")
    parts = {"frequent classes (%)": "linear_head_top1 test", "rare classes (%)":
        "linear_tail_top1 test"}
    lost = print_change(frame, rank | parts, list(WEIGHTS), imbalance=1.5)
    print_contrasts(lost, [(method, "BYOL") for method in REGULARIZERS])
    draw_imbalance(frame, out / "mechanisms_imbalance.png")
    print_sizes(frame, "batch", (32, 128, 512), out / "mechanisms_batches.png")
    print_sizes(frame, "q", (64, 512, 2048), out / "mechanisms_q.png")
    print_wide(frame)
    print_lengths(frame, out / "mechanisms_lengths.png")
    print_searches(frame)
    print_label_free(bundles, frame, out / "mechanisms_label_free.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
