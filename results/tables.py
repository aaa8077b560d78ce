"""Writes the tables of a study's page: python results/tables.py SWEEP OUT.csv [OTHER.csv ...].

SWEEP is the folder of a finished tuning of many methods, as runs/digits_search. Its scores on the test split go to
OUT.csv; the tables of docs/results go to the standard output as Markdown: the results, what was chosen, what measures
without labels tell. With the scores of other studies the methods are ranked over all of them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from scipy.stats import bartlett, spearmanr
from tabulate import tabulate

from regbench import RegbenchError
from regbench.files import write_text
from regbench.reports.find.records import read_records, tidy
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.indications import against_chance, indications
from regbench.reports.rows.significance import MIN_PAIRS, Tukey, best
from regbench.reports.rows.summary import Row, Summary, stat
from regbench.reports.rows.tasks import MIN_TESTED_TASKS, compare_over
from regbench.reports.rows.tolerance import Sensitivity, sensitivities
from regbench.reports.tables.indicators import correlation_text
from regbench.reports.tables.sensitivity import SUFFIX, ends_text, width_text
from regbench.reports.tables.table import mean, spread

# Their mean orders the methods: neighbours and a linear layer see different things in a representation.
BOTH = ("knn_top1", "linear_top1")
BOTH_HEAD = "mean of both (%)"
SCORES = {
    "knn_top1": "kNN top-1 (%)",
    "linear_top1": "linear top-1 (%)",
    "retrieval_recall1": "retrieval, recall@1 (%)",
}
COLUMNS = ["cell_id", "label", "seed", "score", "value", "unit", "split", "protocol"]

BySeed = dict[int, float]


def scores_of(file: Path) -> dict[str, dict[str, BySeed]]:
    """Read a CSV file of scores: label -> score -> seed -> per cent."""
    found: dict[str, dict[str, BySeed]] = {}
    for line in pd.read_csv(file).to_dict("records"):
        found.setdefault(line["label"], {}).setdefault(line["score"], {})[line["seed"]] = line["value"]
    return found


def mean_of_both(scores: Mapping[str, BySeed]) -> BySeed:
    """Return seed -> mean of kNN and linear probing, for the seeds that have both."""
    first, second = (scores.get(name, {}) for name in BOTH)
    return {seed: (first[seed] + second[seed]) / 2 for seed in sorted(first.keys() & second.keys())}


def results(summary: Summary) -> tuple[list[Row], str]:
    """Set the scores of all rows, by the mean of kNN and linear probing; return the rows in their order, too."""
    means = {}
    for row in summary.rows:
        means[id(row)] = mean_of_both({name: row.by_seed(name) for name in BOTH})
    rows = [row for row in summary.rows if means[id(row)]]
    rows.sort(key=lambda row: (row.is_reference, -statistics.fmean(means[id(row)].values())))
    columns = {BOTH_HEAD: [means[id(row)] for row in rows]}
    for name, head in SCORES.items():
        columns[head] = [row.by_seed(name) for row in rows]
    tests = {head: Tukey(values) for head, values in columns.items()}
    marked = {head: best(test) for head, test in tests.items()}
    lines = []
    for place, row in enumerate(rows):
        line: list[object] = [row.label + " ‡" * bool(row.edges), len(row.records)]
        for head, values in columns.items():
            line.append(_score(values[place], place in marked[head].rows, 1 if "recall" in head else 2))
        line += [mean(row.at_end("effective_rank"), 1), mean(row.at_end("alignment"), 2)]
        lines.append(line)
    least = [f"{head} {test.least:.2f}" for head, test in tests.items()]
    equal = [f"{head} p = {_bartlett(values):.2g}" for head, values in columns.items()]
    sentences = [
        f"Two rows of {MIN_PAIRS} seeds differ by Tukey's test from: {', '.join(least)}",
        f"Equal spreads of all rows, Bartlett's test: {', '.join(equal)}",
        f"Not told from the best by the mean: {len(marked[BOTH_HEAD].rows)} of {len(rows)} rows",
        *_ranks(rows, tests[BOTH_HEAD].means),
    ]
    heads = ["method", "seeds", *columns, "effective rank", "alignment"]
    return rows, _table(heads, lines) + "\n\n" + ".\n".join(sentences) + "."


def _ranks(rows: Sequence[Row], means: Mapping[int, float]) -> list[str]:
    """Say how the effective rank of the embeddings goes with accuracy; nothing where hardly any differ."""
    ranks, accuracies = [], []
    for place, row in enumerate(rows):
        end = row.at_end("effective_rank")
        if end:
            ranks.append(end.mean)
            accuracies.append(means[place])
    if len(set(ranks)) < 3:
        return []
    rho, p = spearmanr(ranks, accuracies)
    return [f"Effective rank and the mean, Spearman: {rho:.2f}, p = {p:.2g}"]


def _bartlett(values: Sequence[BySeed]) -> float:
    """Return the p-value of equal variances of all rows that have a spread."""
    samples = [list(of_row.values()) for of_row in values]
    samples = [sample for sample in samples if len(sample) >= MIN_PAIRS and len(set(sample)) > 1]
    return float(bartlett(*samples).pvalue) if len(samples) > 1 else float("nan")


def _score(values: BySeed, bold: bool, digits: int) -> str:
    text = spread(stat(values.values()), digits)
    return f"**{text}**" if bold else text


def hyperparameters(summary: Summary, rows: Sequence[Row]) -> str:
    """Set what was chosen for each row, and between which values the score stays within a point of the best."""
    found: dict[int, list[Sensitivity]] = {}
    for one in sensitivities(summary):
        found.setdefault(id(one.row), []).append(one)
    lines = []
    for row in rows:
        # The learning rate comes last, behind what the method has for itself.
        for one in sorted(found.get(id(row), []), key=lambda one: one.role == "base_lr"):
            name = f"`{one.key.partition('.')[2]}`{SUFFIX[one.searched.scale]}"
            chosen = f"{one.chosen:.3g}" + " ‡" * (one.key in row.edges)
            lines.append([row.label, name, chosen, *ends_text(one), width_text(one)])
    return _table(["method", "hyperparameter", "chosen", "from", "to", "width (decades)"], lines, text_columns=2)


def label_free(summary: Summary) -> str:
    """Set what measures without labels tell of the score that chose."""
    lines, found = [], indications(summary)
    for one in found:
        texts = [correlation_text(one.between), spread(one.lost, 2)]
        lines.append([one.measure.title, one.measure.better, *texts])
    table = _table(["measure", "better is", "Spearman's ρ, all methods", "points lost"], lines, text_columns=2)
    p = [f"{title} {value:.2g}" for title, value in against_chance(found).items()]
    return f"{table}\n\nLoses as much as random choice, p: {', '.join(p)}."


def over_tasks(files: Sequence[Path]) -> str:
    """Rank the methods over several studies by the mean of kNN and linear probing.

    Raises:
        RegbenchError: If the studies have no methods and seeds in common.
    """
    tasks: dict[str, dict[str, BySeed]] = {}
    means: dict[str, dict[str, float]] = {}
    for file in files:
        scores = scores_of(file)
        scores.pop("untrained", None)
        tasks[file.stem] = {label: mean_of_both(of) for label, of in scores.items()}
        means[file.stem] = {label: statistics.fmean(of.values()) for label, of in tasks[file.stem].items()}
    comparison = compare_over(tasks)
    if comparison is None:
        raise RegbenchError(f"{', '.join(map(str, files))}: no methods and seeds that all of them have")
    lines = []
    for place, one in enumerate(comparison.standings, 1):
        line = [place, one.label, f"{one.mean_rank:.1f}"]
        if comparison.tested:
            line += [f"[{one.low:.1f}, {one.high:.1f}]", "" if one.alike else "told apart"]
        lines.append(line)
    heads = ["place", "method", "mean rank", "95 % interval", "from the first"]
    table = _table(heads if comparison.tested else heads[:3], lines, text_columns=2)
    test = f"Fewer than {MIN_TESTED_TASKS} tasks, so no test over them."
    if comparison.tested:
        test = (
            f"Friedman p = {comparison.p:.2g}; two mean ranks differ from {comparison.critical_difference:.1f} on, by "
            "Nemenyi's test."
        )
    correlations = pd.DataFrame(means).corr("spearman").round(2).to_markdown()
    return f"{table}\n\n{test} Spearman's correlation of the means:\n\n{correlations}"


def _table(heads: Sequence[str], lines: Sequence[Sequence[object]], text_columns: int = 1) -> str:
    align = ["left"] * text_columns + ["right"] * (len(heads) - text_columns)
    return tabulate(lines, heads, "pipe", disable_numparse=True, colalign=align)


def main() -> None:
    """Write the CSV file and print the tables."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sweep, out, *others = map(Path, sys.argv[1:])
    found = read_records(sweep)
    summary, *more = summarize(found.records, found.missing, found.choices, found.short)
    if more:
        sys.exit(f"{sweep} holds {len(more) + 1} tasks; give the sweep of one")
    data = tidy(found.records).to_pandas()
    tested = data[(data["split"] == "test") & data["unit"].eq("%")]
    write_text(out, tested[COLUMNS].to_csv(index=False))
    rows, table = results(summary)
    parts = [table, hyperparameters(summary, rows), label_free(summary)]
    if others:
        parts.append(over_tasks([out, *others]))
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
