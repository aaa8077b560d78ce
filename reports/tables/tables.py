"""Tables of a task: the leaderboard and its parts.

A `Table` holds text as it is shown; the functions at the end turn it into Markdown, LaTeX or a terminal's
text, and the page's template into HTML. Numbers for further use are in the data frames.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from tabulate import tabulate

from regbench.reports.rows.significance import MIN_PAIRS, Best, compare, holm
from regbench.reports.rows.summary import DASH as DASH
from regbench.reports.rows.summary import SELECTION_TITLES, Configuration, Row, Stat, Summary, best_notes, is_setting
from regbench.reports.tables import paper

# A table of p-values has a column for each row; more of them are in the CSV file only.
SIGNIFICANCE_ROWS = 40

SCORE_NAMES = {
    "knn_top1": "kNN top-1 (%)",
    "knn_top5": "kNN top-5 (%)",
    "linear_top1": "linear top-1 (%)",
    "linear_top5": "linear top-5 (%)",
    "places205_top1": "Places205 top-1 (%)",
    "places205_top5": "Places205 top-5 (%)",
    "voc07_map": "VOC07 mAP, 11-point (%)",
    "voc07_map_full": "VOC07 mAP (%)",
    "labels1_top1": "1 % labels top-1 (%)",
    "labels1_top5": "1 % labels top-5 (%)",
    "labels10_top1": "10 % labels top-1 (%)",
    "labels10_top5": "10 % labels top-5 (%)",
    "selection_top1": "mean of kNN and linear top-1 (%)",
}

# Of the representation, without labels or training.
MEASURE_NAMES = {
    "alignment": "alignment",
    "uniformity": "uniformity",
    "rankme": "RankMe",
    "alpha_req": "α-ReQ",
    "lidar": "LiDAR",
    "feature_spread": "feature spread",
}


# Of the embeddings at the end of training: how many decimals are shown.
DECIMALS_AT_END = {"effective_rank": 1, "alignment": 2}


def score_name(name: str) -> str:
    """What a score is called in a table's head."""
    if name.startswith("knn_k"):
        k, _, top = name.removeprefix("knn_k").partition("_top")
        return f"kNN (k = {k}) top-{top} (%)"
    return SCORE_NAMES.get(name) or MEASURE_NAMES.get(name, name)


@dataclass(frozen=True)
class Column:
    """A column's head; `spare` > 0 lets a narrow terminal leave it out, the highest first."""

    name: str
    numeric: bool = True
    spare: int = 0


@dataclass(frozen=True)
class Cell:
    """Text of one cell; bold marks the best of its column, and `why` says why it is bold or is not."""

    text: str
    bold: bool = False
    why: str = ""


@dataclass(frozen=True)
class Table:
    """A table as it is shown.

    Attributes:
        slug: Stem of its file names.
        title: What it shows, one line.
    """

    slug: str
    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Unit:
    """A unit that suits the largest value of a column: text = value / divisor with that many decimals."""

    name: str
    divisor: float
    decimals: int

    def text(self, s: Stat | None) -> str:
        """The mean in this unit."""
        return _mean(s, self.decimals, self.divisor)


def time_unit(largest_s: float) -> Unit:
    """Seconds up to ten minutes, minutes up to three hours, else hours."""
    if largest_s < 600:
        return Unit("s", 1, 1)
    return Unit("min", 60, 1) if largest_s < 3 * 3600 else Unit("h", 3600, 2)


def memory_unit(largest_bytes: float) -> Unit:
    """MiB up to 4 GiB, else GiB."""
    return Unit("MiB", 2**20, 0) if largest_bytes < 4 * 2**30 else Unit("GiB", 2**30, 2)


def energy_unit(largest_joules: float) -> Unit:
    """Watt-hours up to ten kilowatt-hours, else those."""
    return Unit("Wh", 3600, 2) if largest_joules < 10 * 3.6e6 else Unit("kWh", 3.6e6, 2)


def largest(rows: Sequence[Configuration], name: str) -> float:
    """Largest mean of a cost, 0 if nobody has it."""
    return max((s.mean for row in rows if (s := row.cost(name))), default=0.0)


def leaderboard(summary: Summary) -> Table:
    """One row per method and setting: accuracy on the test split, gain on the untrained network, and cost.

    What is planned and has no result yet stands below, with dashes. The paper's numbers have a column where a row is
    one of its experiments: the same data set, backbone, embedding dimension, batch and epochs.
    """
    rows = summary.rows
    seconds, memory = time_unit(largest(rows, "train_s")), memory_unit(largest(rows, "peak_memory_bytes"))
    headline = summary.headline
    base = any(row.untrained for row in rows)
    references = [_reference(row, summary.on_test) for row in rows]
    beside = any(references)
    measured = {name: n for name, n in DECIMALS_AT_END.items() if any(row.at_end(name) for row in rows)}
    energies = _energies(rows)
    scores = ("knn_top1", "linear_top1")
    columns = [
        *_head(summary),
        *(Column(SCORE_NAMES[name]) for name in scores),
        Column("n", spare=1),
        *([Column(f"{headline.split('_')[0]} − untrained", spare=4)] if base else []),
        *(Column(name.replace("_", " "), spare=1 + i) for i, name in enumerate(measured, 1)),
        Column(f"train time ({seconds.name})"),
        Column("images/s", spare=7),
        Column("loss (ms/step)"),
        Column(f"peak memory ({memory.name})"),
        *(Column(f"{kind.upper()} energy ({unit.name})", spare=6) for kind, unit in energies.items()),
        *([Column("paper: linear top-1 (%)", spare=5)] if beside else []),
    ]
    accuracies = _accuracies(summary, scores)
    body = [
        [
            *_name(row),
            *accuracies[i],
            Cell(f"{len(row.records)} of {len(row.records) + row.missing}" if row.missing else str(len(row.records))),
            *([Cell(signed(summary.gain(row, headline)))] if base else []),
            *(Cell(spread(row.at_end(name), decimals)) for name, decimals in measured.items()),
            Cell(seconds.text(row.cost("train_s"))),
            Cell(_mean(row.cost("img_per_s"), 0)),
            Cell(_mean(row.cost("loss_ms"), 2)),
            Cell(memory.text(row.cost("peak_memory_bytes"))),
            *(Cell(unit.text(row.cost(f"energy_{kind}_joules"))) for kind, unit in energies.items()),
            *([Cell(DASH if references[i] is None else f"{references[i]:.1f}")] if beside else []),
        ]
        for i, row in enumerate(rows)
    ]
    place = next(i for i, column in enumerate(columns) if column.name == "n")
    body += _missing_rows(summary, len(columns), place)
    notes = ["Accuracies on the test split: mean ± sample standard deviation over n seeds; one seed has no ±."]
    notes += best_notes(summary, scores)
    if measured:
        notes.append(
            "Effective rank (exp of the entropy of the singular values) and alignment (mean ‖u − v‖² of the unit "
            "embeddings of an image's two views: 0 the same, 2 orthogonal) are of the embeddings of the last training "
            "batch."
        )
    if "gpu" in energies:
        notes.append("GPU energy is that of all GPUs of a run, by NVML's counters, in training.")
    if "cpu" in energies:
        notes.append("CPU energy is that of the whole machine's processors, other work on it included.")
    if beside:
        notes.append("The paper's number is of the same data set, network, q, batch and epochs.")
    title = "Leaderboard: chosen on the test set" if summary.on_test else "Leaderboard"
    return Table("leaderboard", title, columns, body, notes + summary.notes)


def _energies(rows: Sequence[Row]) -> dict[str, Unit]:
    """The kinds of energy that were measured of any row, with a unit for each."""
    found = {kind: largest(rows, f"energy_{kind}_joules") for kind in ("gpu", "cpu")}
    return {kind: energy_unit(joules) for kind, joules in found.items() if joules}


def _reference(row: Row, on_test: bool) -> float | None:
    """The paper's linear probing of the same experiment, in percent."""
    cell = row.first.cell
    where = {key: cell[key] for key in ("embedding_dim", "batch_size", "epochs")}
    return paper.linear_top1(row.label, cell["dataset"]["name"], row.first.backbone, on_test=on_test, **where)


def leaderboard_frame(summary: Summary) -> pd.DataFrame:
    """The leaderboard as numbers, units in the column names; the spread is a sample standard deviation.

    `best` says whether the row has the best mean of that score or cannot be told from it; `n_missing` counts
    planned seeds that are not finished.
    """
    out = []
    names = ("knn_top1", "linear_top1")
    best = {name: summary.best(name).rows for name in names}
    for i, row in enumerate(summary.rows):
        settings = {k: None if v == DASH else v for k, v in row.settings.items()}
        entry: dict[str, object] = {"sweep": summary.name, "label": row.label, **settings}
        entry |= {
            "chosen_on_test": summary.on_test,
            "n": len(row.records),
            "n_missing": row.missing,
            "n_diverged": row.diverged,
            "configurations_tried": row.tried,
            "tuning_budget": summary.budget(row),
        }
        for name in names:
            s = row.score(name)
            entry |= {
                f"{name}_percent": s and s.mean,
                f"{name}_percent_std": s and s.spread,
                f"{name}_n": s and s.n,
                f"{name}_best": i in best[name],
            }
            entry[f"{name}_minus_untrained"] = summary.gain(row, name)
        for name in (
            "train_s",
            "img_per_s",
            "step_ms",
            "loss_ms",
            "peak_memory_bytes",
            "energy_gpu_joules",
            "energy_cpu_joules",
        ):
            s = row.cost(name)
            entry[name] = s and s.mean
        for name in DECIMALS_AT_END:
            s = row.at_end(name)
            entry |= {name: s and s.mean, f"{name}_std": s and s.spread}
        entry["paper_linear_top1_percent"] = _reference(row, summary.on_test)
        out.append(entry)
    for absent in summary.missing:
        settings = {k: None if v == DASH else v for k, v in absent.settings.items()}
        out.append({"sweep": summary.name, "label": absent.label, **settings, "n": 0, "n_missing": absent.seeds})
    return pd.DataFrame(out)


def accuracy_table(summary: Summary) -> Table:
    """Every score of the test split, and those of the tuning split that selection saw."""
    measured = {(s.name, s.split) for row in summary.rows for r in row.records for s in r.scores}
    known = [*SCORE_NAMES, *MEASURE_NAMES]
    names = [*known, *sorted({name for name, _ in measured} - set(known))]
    shown = [(name, split) for split in ("test", "tuning") for name in names if (name, split) in measured]
    columns = _head(summary) + [Column(f"{score_name(name)}, {split}") for name, split in shown]
    tested = [name for name, split in shown if split == "test"]
    test = _accuracies(summary, tested)
    body = [
        [*_name(row), *test[i], *(Cell(spread(row.score(name, split), 2)) for name, split in shown if split != "test")]
        for i, row in enumerate(summary.rows)
    ]
    body += _missing_rows(summary, len(columns))
    notes = ["The tuning split chooses; it is no result."]
    notes += best_notes(summary, [name for name in tested if name not in MEASURE_NAMES])
    if any(name in MEASURE_NAMES for name, _ in shown):
        notes.append("Measures without labels have no best.")
    return Table("accuracy", "Accuracy", columns, body, notes)


def significance_frame(summary: Summary) -> pd.DataFrame:
    """Every pair of trained rows: the paired t-test over the seeds that they share.

    Returns:
        Columns score, one, other, pairs, difference (mean of one minus other), p, p_holm (corrected for all pairs of
        that score); p is missing with fewer than three pairs.
    """
    out = []
    rows = [row for row in summary.rows if not row.untrained]
    for name in ("linear_top1", "knn_top1"):
        values = [row.by_seed(name) for row in rows]
        pairs: list[dict[str, Any]] = []
        for i, row in enumerate(rows[:-1]):
            if not values[i]:
                continue
            for other, c in zip(rows[i + 1 :], compare(values[i], values[i + 1 :]), strict=True):
                pair: dict[str, Any] = {"score": name, "one": row.name, "other": other.name, "pairs": c.pairs}
                pairs.append({**pair, "difference": c.difference, "p": c.p})
        for pair, p in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
            out.append({**pair, "p_holm": p})
    return pd.DataFrame(out, columns=["score", "one", "other", "pairs", "difference", "p", "p_holm"])


def significance_table(summary: Summary) -> Table:
    """p-values of all pairs of rows by the score that orders the leaderboard."""
    scored = [row for row in summary.rows if not row.untrained and row.score(summary.headline)]
    # Most rows of a tuning have the one seed that they were tuned with.
    rows = [row for row in scored if len(row.by_seed(summary.headline)) >= MIN_PAIRS]
    shown = rows[:SIGNIFICANCE_ROWS]
    values = [row.by_seed(summary.headline) for row in shown]
    body = []
    for i, row in enumerate(shown):
        cells = [
            Cell(DASH if i == j or c.pairs < MIN_PAIRS else _p(c.p)) for j, c in enumerate(compare(values[i], values))
        ]
        body.append([Cell(f"{i + 1}. {row.name}"), *cells])
    notes = [
        "p: the chance of a mean difference at least this large if the two rows were equally good. Paired t-test over "
        "the seeds that both have, two-sided, each pair for itself; the CSV file also has the corrected values.",
        f"A dash: too few seeds to say (fewer than {MIN_PAIRS} shared).",
    ]
    if len(scored) > len(rows):
        notes.append(f"Left out: {len(scored) - len(rows)} rows with fewer than {MIN_PAIRS} seeds.")
    if len(rows) > len(shown):
        notes.append(f"The first {len(shown)} of {len(rows)} rows; all are in the CSV file.")
    title = f"Significance of differences, {SCORE_NAMES[summary.headline]}"
    columns = [Column("", numeric=False), *(Column(str(i + 1)) for i in range(len(shown)))]
    return Table("significance", title, columns, body, notes)


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def time_table(summary: Summary) -> Table:
    """Where the time goes."""
    rows = [row for row in summary.rows if not row.untrained]
    train, evaluate = (time_unit(largest(rows, name)) for name in ("train_s", "evaluate_s"))
    columns = [
        *_head(summary),
        Column(f"training ({train.name})"),
        Column(f"evaluation ({evaluate.name})"),
        Column("images/s"),
        Column("step (ms)"),
        Column("loss (ms/step)"),
        Column("loss / step (%)"),
    ]
    body = []
    for row in rows:
        step, loss = row.cost("step_ms"), row.cost("loss_ms")
        share = f"{100 * loss.mean / step.mean:.1f}" if step and loss and step.mean > 0 else DASH
        body.append(
            [
                *_name(row),
                Cell(spread(row.cost("train_s"), train.decimals, train.divisor)),
                Cell(spread(row.cost("evaluate_s"), evaluate.decimals, evaluate.divisor)),
                Cell(spread(row.cost("img_per_s"), 0)),
                Cell(spread(row.cost("step_ms"), 1)),
                Cell(spread(row.cost("loss_ms"), 2)),
                Cell(share),
            ]
        )
    note = "Times of a step are medians; loss is forward and backward of the regularizer alone."
    return Table("time", "Time", columns, body, [note])


def memory_table(summary: Summary) -> Table:
    """Peak memory of training."""
    rows = [row for row in summary.rows if not row.untrained]
    unit = memory_unit(largest(rows, "peak_memory_bytes"))
    columns = [*_head(summary), Column(f"peak memory ({unit.name})"), Column("measured as", numeric=False)]
    body = []
    for row in rows:
        kinds = sorted({r.cost.peak_memory_kind for r in row.records if r.cost.peak_memory_kind})
        peak = spread(row.cost("peak_memory_bytes"), unit.decimals, unit.divisor)
        body.append([*_name(row), Cell(peak), Cell(", ".join(kinds) or DASH)])
    return Table("memory", "Memory", columns, body)


def energy_table(summary: Summary) -> Table | None:
    """Energy of training; None where nothing was measured."""
    rows = [row for row in summary.rows if not row.untrained]
    energies = _energies(rows)
    if not energies:
        return None
    columns = _head(summary)
    for kind, unit in energies.items():
        columns += [Column(f"{kind.upper()} energy ({unit.name})"), Column(f"{kind.upper()} mean power (W)")]
    body = []
    for row in rows:
        cells = []
        for kind, unit in energies.items():
            used, train = row.cost(f"energy_{kind}_joules"), row.cost("train_s")
            power = f"{used.mean / train.mean:,.0f}" if used and train and train.mean > 0 else DASH
            cells += [Cell(spread(used, unit.decimals, unit.divisor)), Cell(power)]
        body.append([*_name(row), *cells])
    return Table("energy", "Energy", columns, body, ["Of training alone; power is over the training time."])


def hyperparameters_table(summary: Summary) -> Table:
    """Every configuration tried: what sets it apart, its score on the tuning split, whether it was chosen."""
    trained = [c for c in summary.configurations if not c.untrained]
    cells = [c.first.settings for c in trained]
    keys = list({k: None for cell in cells for k in cell if k.startswith(("method.", "optimizer.", "evaluation."))})
    keys = [k for k in keys if not is_setting(k) and k not in ("method.name", "method.label", "evaluation.protocols")]
    keys.sort(key=lambda k: not k.startswith("method."))
    varying = [k for k in keys if k.startswith("method.") or len({cell.get(k) for cell in cells}) > 1]
    rows = {row.records[0].cell_id: row for row in summary.rows}
    chosen = [any(r.cell_id in rows for r in c.records) for c in trained]
    several = any(row.tried > 1 for row in summary.rows) or not all(chosen)
    columns = [
        Column("method", numeric=False),
        Column("q"),
        Column("batch"),
        Column("epochs"),
        Column("hyperparameters", numeric=False),
        Column(f"{SELECTION_TITLES[summary.selection]} (%), {summary.selection_split}"),
        Column("n"),
        Column("chosen on", numeric=False),
        Column("tried"),
        *([Column("in the leaderboard", numeric=False)] if several else []),
    ]
    lines: list[tuple[tuple[object, ...], list[Cell]]] = []
    for c, cell, is_row in zip(trained, cells, chosen, strict=True):
        values = [f"{k.removeprefix('method.')}={cell[k]}" for k in varying if k in cell]
        tuning = c.score(summary.selection, summary.selection_split)
        how: dict[str, object] = next((h for r in c.records if (h := r.choice.get("hyperparameters"))), {})
        places = [DASH if cell.get(k, "null") == "null" else cell[k] for k in ("embedding_dim", "batch_size", "epochs")]
        line = [
            Cell(c.label + " †" * bool(c.diverged)),
            *map(Cell, places),
            Cell(", ".join(values) or DASH),
            Cell(spread(tuning, 2)),
            Cell(str(len(c.records))),
            Cell(str(how.get("selected_on") or DASH)),
            Cell(str(how.get("budget") or DASH)),
            *([Cell("yes" if is_row else "no")] if several else []),
        ]
        lines.append(((c.label, *map(len, places), *places, not is_row, -tuning.mean if tuning else 0.0), line))
    lines += _runners_up(summary, several)
    lines.sort(key=lambda item: item[0])
    notes = [
        "In the order of the selection score within each method and setting; what stands in the leaderboard is first."
    ]
    notes += [
        f"{path}: {choice.budget} configurations for each method, chosen by {choice.score} on the "
        f"{choice.selected_on} split, seeds {', '.join(map(str, choice.seeds))}."
        for path, choice in summary.choices.items()
    ]
    return Table("hyperparameters", "Hyperparameters", columns, [line for _, line in lines], notes)


def _runners_up(summary: Summary, several: bool) -> list[tuple[tuple[object, ...], list[Cell]]]:
    """Configurations that a tuning ranked and whose own records are not in the report."""
    here = {r.cell_id for r in summary.records}
    out = []
    for choice in summary.choices.values():
        for entry in choice.choices:
            places = [str(entry.setting.get(k, DASH)) for k in ("embedding_dim", "batch_size", "epochs")]
            for ranked in entry.ranking:
                if ranked.cell_id in here:
                    continue
                values = [f"{k.removeprefix('method.')}={v}" for k, v in ranked.hyperparameters.items()]
                line = [
                    Cell(entry.label + " †" * (ranked.status == "diverged")),
                    *map(Cell, places),
                    Cell(", ".join(values) or DASH),
                    Cell(DASH if ranked.value is None else f"{ranked.value:.2f}"),
                    Cell(str(len(choice.seeds))),
                    Cell(DASH),
                    Cell(DASH),
                    *([Cell("no")] if several else []),
                ]
                out.append(((entry.label, *map(len, places), *places, True, -(ranked.value or 0.0)), line))
    return out


def to_markdown(table: Table) -> str:
    """GitHub Markdown with the title as a heading and the notes below."""
    rows = [[f"**{_markdown(c.text)}**" if c.bold else _markdown(c.text) for c in row] for row in table.rows]
    heads = [_markdown(column.name) for column in table.columns]
    body = tabulate(rows, heads, tablefmt="github", disable_numparse=True, colalign=_alignment(table))
    return (
        "\n\n".join([f"### {_markdown(table.title)}", body, *(f"- {_markdown(note)}" for note in table.notes)]) + "\n"
    )


def to_latex(table: Table) -> str:
    """A `tabular` with booktabs rules (needs the booktabs package); the notes are comments above it."""
    columns = "".join("r" if column.numeric else "l" for column in table.columns)
    head = " & ".join(_latex(column.name) for column in table.columns)
    rows = [
        " & ".join(f"\\textbf{{{_latex(c.text)}}}" if c.bold else _latex(c.text) for c in row) for row in table.rows
    ]
    lines = [
        *(f"% {_one_line(line)}" for line in [table.title, *table.notes]),
        f"\\begin{{tabular}}{{{columns}}}",
    ]
    lines += ["\\toprule", f"{head} \\\\", "\\midrule", *(f"{row} \\\\" for row in rows), "\\bottomrule"]
    return "\n".join([*lines, "\\end{tabular}"]) + "\n"


def to_terminal(table: Table, width: int = 120) -> str:
    """Text that fits a terminal: heads wrap, spare columns are left out if they must, * marks the best."""
    keep = list(range(len(table.columns)))
    while True:
        heads = [_wrap(table.columns[i].name) for i in keep]
        rows = [[_one_line(row[i].text) + "*" * row[i].bold for i in keep] for row in table.rows]
        align = [_alignment(table)[i] for i in keep]
        text = tabulate(rows, heads, tablefmt="pretty", disable_numparse=True, colalign=align)
        spare = max(keep, key=lambda i: table.columns[i].spare)
        if max(map(len, text.splitlines())) <= width or table.columns[spare].spare == 0:
            return text
        keep.remove(spare)


def _head(summary: Summary) -> list[Column]:
    settings = next(
        (list(s) for s in [row.settings for row in summary.rows] + [row.settings for row in summary.missing]), []
    )
    return [Column("method", numeric=False), *(Column(s) for s in settings)]


def _name(row: Row) -> list[Cell]:
    return [Cell(row.label + " †" * bool(row.diverged)), *(Cell(v) for v in row.settings.values())]


def _missing_rows(summary: Summary, width: int, count: int | None = None) -> list[list[Cell]]:
    """What is planned and has no row: dashes, with "0 of 5" in the column `count`."""
    body = []
    for row in summary.missing:
        cells = [Cell(row.label), *(Cell(v) for v in row.settings.values())]
        cells += [Cell(DASH)] * (width - len(cells))
        if count is not None:
            cells[count] = Cell(f"0 of {row.seeds}")
        body.append(cells)
    return body


def _accuracies(summary: Summary, names: Sequence[str]) -> list[list[Cell]]:
    """For each row a cell for each of some test scores; bold where no row is known to be better."""
    body: list[list[Cell]] = [[] for _ in summary.rows]
    for name in names:
        best = Best() if name in MEASURE_NAMES else summary.best(name)
        for i, row in enumerate(summary.rows):
            s = row.score(name)
            few = f" (n={s.n})" if s is not None and s.n < len(row.records) else ""
            body[i].append(Cell(spread(s, 2) + few, i in best.rows, best.reason(i)))
    return body


def _mean(s: Stat | None, decimals: int, divisor: float = 1) -> str:
    return DASH if s is None else f"{s.mean / divisor:,.{decimals}f}"


def spread(s: Stat | None, decimals: int, divisor: float = 1) -> str:
    """Mean ± sample standard deviation."""
    mean = _mean(s, decimals, divisor)
    return mean if s is None or s.spread is None else f"{mean} ± {s.spread / divisor:,.{decimals}f}"


def signed(value: float | None) -> str:
    """A difference with its sign."""
    return DASH if value is None else f"{value:+.2f}".replace("-", "−")


def _alignment(table: Table) -> list[str]:
    return ["right" if column.numeric else "left" for column in table.columns]


def _one_line(text: str) -> str:
    """Text of others without line breaks and control characters."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


# What Markdown takes for its own: an underscore within a word, or a bracket that no link follows, is left as it is.
_MARKDOWN = re.compile(r"[\\`*|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:])|^#")


def _markdown(text: str) -> str:
    """Markdown that shows the text as it is."""
    text = _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", text)


_LATEX = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"},
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{"[": "{[}", "*": "{*}", "`": r"\textasciigrave{}"},  # the first two would be an argument of the rule above
    **{"±": r"$\pm$", "†": r"$\dagger$", "−": "$-$", "–": "--", "×": r"$\times$", "⁺": "$^+$", "…": r"\dots{}"},
    **{"α": r"$\alpha$", "λ": r"$\lambda$", "μ": r"$\mu$", "τ": r"$\tau$"},
}


def _latex(text: str) -> str:
    """ASCII that LaTeX sets as the text; a letter that it cannot set loses its accent, a sign becomes "?"."""
    out = []
    for c in _one_line(text):
        plain = c if c.isascii() else unicodedata.normalize("NFKD", c).encode("ascii", "ignore").decode() or "?"
        out.append(_LATEX.get(c) or "".join(_LATEX.get(p, p) for p in plain))
    return "".join(out)


def _wrap(head: str) -> str:
    """Breaks a column's head into lines of about 9 characters at its spaces."""
    lines = [""]
    for word in head.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > 9:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
