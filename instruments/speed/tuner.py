"""Compares the search with a grid at equal images, on real training: `python
instruments/speed/tuner.py [--plan]`.

The setting is that of the preset fashion_mnist_search. For each method the grid has three weights
and three learning rates: at a quarter, the middle and three quarters of the ranges that the method
and the optimizer state. The search has the same budget, nine trainings. Both choose on the tuning
split, and what they choose is scored on the test split with three seeds. The table has the points
that the search gained over the grid, with 95 % intervals and p-values of a paired t-test over the
seeds. On two quiet cores it takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from scipy.stats import ttest_1samp

import regbench
from regbench.benchmark.settings.presets import preset_files
from regbench.benchmark.settings.sweep import load_run
from regbench.spaces import Range

# Two losses of kernels, and a contrastive one, one of variances and one of spectra.
METHODS = ("sfrik_l3", "auh", "simclr", "vicreg", "frossl")
COMMON: list[str] = yaml.safe_load(preset_files("sweep")["fashion_mnist_search"].read_text())[
    "common"
]
POSITIONS = (0.25, 0.5, 0.75)


def grid(method: str) -> str:
    """Return the row of a sweep's file with the grid of a method."""
    common = " ".join(COMMON).split()
    cell, _ = load_run([*common, f"method={method}"])
    row = f"method={method}"
    for group, space in (("method", cell.method.space), ("optimizer", cell.optimizer.space)):
        for name, each in (space or {}).items():
            if isinstance(each, Range) and (each.balances or group == "optimizer"):
                at = each.at(n=cell.batch_size, q=cell.embedding_dim)
                values = ",".join(f"{at.value(position):g}" for position in POSITIONS)
                row += f" {group}.{name}={values}"
    return row


def gained(runs_dir: Path) -> pd.DataFrame:
    """Compare what the two chose on the test split, seed by seed: the same seed saw the same
    images.
    """
    points = {}
    for sweep in ("tuner_grid", "tuner_search"):
        scores = regbench.load_records(runs_dir / sweep).query(
            "split == 'test' and status == 'done'"
        )
        points[sweep] = scores.set_index(["label", "score", "seed"])["value"]
    difference = (points["tuner_search"] - points["tuner_grid"]).dropna()
    lines = []
    for (label, score), of_seeds in difference.groupby(["label", "score"]):
        test = ttest_1samp(of_seeds, 0)
        low, high = test.confidence_interval(0.95)
        line = {
            "method": label,
            "score": score,
            "gained": of_seeds.mean(),
            "low": low,
            "high": high,
        }
        lines.append(line | {"p": test.pvalue})
    return pd.DataFrame(lines).round(3)


def main() -> None:
    """Write the two sweep files, tune with each, and print what the search gained over the grid."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--plan", action="store_true", help="show what it will take; run nothing")
    options = parser.parse_args()
    options.runs_dir.mkdir(parents=True, exist_ok=True)
    program = str(Path(sys.executable).with_name("regbench"))
    runs = ["--runs-dir", str(options.runs_dir)]
    sweeps: dict[str, dict[str, Any]] = {
        "tuner_grid": {"cells": [grid(method) for method in METHODS]},
        "tuner_search": {"cells": [f"method={','.join(METHODS)}"], "trials": len(POSITIONS) ** 2},
    }
    for name, own in sweeps.items():
        file = options.runs_dir / f"{name}.yaml"
        content = {
            "description": "The search against a grid",
            "common": COMMON,
            "final_seeds": [0, 1, 2],
            **own,
        }
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        command = [program, "tune", str(file), *runs]
        subprocess.run([*command, "--plan"] if options.plan else command, check=True)
    if not options.plan:
        print(gained(options.runs_dir).to_string(index=False))


if __name__ == "__main__":
    main()
