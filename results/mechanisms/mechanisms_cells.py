"""Read the cells of mechanisms.md from their bundles, choose among them, and word numbers and
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t, ttest_ind

from regbench.benchmark.rundir.record import Record
from regbench.reports.bundle.bundle import read_bundle

STUDY = ("mechanisms", "mechanisms_imbalance", "mechanisms_sizes", "mechanisms_lengths",
    "mechanisms_weights")
BUNDLES = ("quickstart", "heuristics", *STUDY)
PLAIN = {"classes": 10, "bits": 0, "imbalance": 0, "batch": 128, "q": 512, "hidden": 0, "epochs": 15}
REGULARIZERS = ("SFRIK (L=2)", "VICReg", "SimCLR", "SIGReg")
WEIGHTS = {
    "SFRIK (L=2)": ("method.alignment_weight", (1000, 250, 4000)),
    "VICReg": ("method.alignment_weight", (6, 3, 12)),
    "SimCLR": ("method.temperature", (0.2, 0.1, 0.4)),
    "SIGReg": ("method.regularization_weight", (0.05, 0.0125, 0.2)),
    "BYOL": ("optimizer.base_lr", (3, 1.5, 6)),
}
"""The setting that weighs each method's terms, and its values: first the one that was chosen on
plain scenes.

BYOL has no weight; its learning rate stands in its place.
"""


def cells(folder: Path) -> pd.DataFrame:
    """Return a row for each training: what was varied, its scores, and the numbers of its last
    epoch.
    """
    rows: dict[str, dict[str, object]] = {}
    for name in BUNDLES:
        bundle = read_bundle(folder / f"{name}.tar.xz")
        for record in bundle.records:
            if record.status != "diverged" and _is_compared(record):
                row = _row(record) | bundle.last_epoch(record) | {"sweep": name}
                rows.setdefault(record.cell_id, row)
    return pd.DataFrame(list(rows.values()))


def _is_compared(record: Record) -> bool:
    """Say whether a cell has neither a predictor nor a teacher, or is BYOL, which has both."""
    return record.label == "BYOL" or record.settings.get("network.teacher", "none") == "none"


def _row(record: Record) -> dict[str, object]:
    settings = record.settings
    weighed = WEIGHTS.get(record.label, ("", ()))[0]
    hidden = settings.get("network.projector.hidden_dim", "null")
    row: dict[str, object] = {
        "method": record.label,
        "seed": record.seed,
        "weight": float(settings.get(weighed, "nan")),
        "rate": float(settings.get("optimizer.base_lr", "nan")),
        "trained": not record.untrained,
        "classes": int(settings["dataset.num_classes"]),
        "bits": int(settings.get("dataset.shared_bits", "0")),
        "imbalance": float(settings.get("dataset.source.imbalance", "0")),
        "batch": int(settings["batch_size"]),
        "q": int(settings["embedding_dim"]),
        "hidden": 0 if hidden == "null" else int(hidden),  # 0: as wide as the embedding
        # Rows that nothing was trained for stand beside every length.
        "epochs": PLAIN["epochs"] if record.untrained else int(settings["epochs"]),
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


def weighted(frame: pd.DataFrame, method: str, weight: float, rate: float = 6) -> pd.DataFrame:
    """Return a method's cells with one weight, by seed: those with a score on the test split,
    where there are such.
    """
    rows = frame[(frame["method"] == method) & (frame["weight"] == weight)]
    rows = rows[(rows["rate"] == rate) | (rows["method"] == "BYOL")]
    rows = rows.sort_values(["seed", "linear_top1 test"])  # cells without a test score come last
    return rows.drop_duplicates("seed").set_index("seed")


def scores(frame: pd.DataFrame, method: str, column: str = "linear_top1 test") -> pd.Series:
    """Return the scores of the weight that was chosen on plain scenes, by seed."""
    return weighted(frame, method, WEIGHTS[method][1][0])[column].dropna()


def by_level(
    parts: Sequence[pd.DataFrame], methods: Iterable[str], measure: Callable[[pd.DataFrame, str], pd.Series]
) -> dict[str, list[pd.Series]]:
    """Return the measure's seeds of each method, in the order of the levels' cells."""
    values = {}
    for method in methods:
        values[method] = [measure(rows, method) for rows in parts]
    return values


def ends(frame: pd.DataFrame, split: str = "test") -> tuple[float, float]:
    """Return the score of the best row that nothing was trained for, and that of training with
    labels.
    """
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


def contrasts(values: dict[str, pd.Series], pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Return Welch's test of each pair: difference of the means, its 95 % interval, and p with
    Holm's correction.
    """
    rows = []
    for one, two in pairs:
        test = ttest_ind(values[one], values[two], equal_var=False)
        low, high = test.confidence_interval()
        rows.append((one, two, values[one].mean() - values[two].mean(), low, high, float(test.pvalue)))
    table = pd.DataFrame(rows, columns=["one", "two", "difference", "low", "high", "p"])
    return table.assign(p=holm(list(table["p"])))


def print_contrasts(values: dict[str, pd.Series], pairs: Sequence[tuple[str, str]]) -> None:
    """Print the contrasts of pairs."""
    rows = []
    for row in contrasts(values, pairs).itertuples():
        interval = f"{row.low:.1f} to {row.high:.1f}"
        rows.append((f"{row.one} − {row.two}", f"{row.difference:.1f}", interval, f"{row.p:.2g}"))
    print_table(("contrast", "difference", "95 %", "p (Holm)"), rows)


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values for being several, by Holm's step-down procedure; NaN stays and does not
    count.
    """
    values = np.array(p, float)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    factors = len(order) - np.arange(len(order))
    values[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return [float(v) for v in values]
