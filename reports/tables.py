"""Tables of a task: the leaderboard, its parts, and the paper's tables with our numbers in them.

A `Table` holds text as it is shown; the functions at the end turn it into Markdown, LaTeX or a terminal's
text, and the page's template into HTML. Numbers for further use are in the data frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd
from tabulate import tabulate

from regbench.reports import paper
from regbench.reports.summary import Configuration, Row, Stat, Summary, flat, is_setting

DASH = "–"

# Sweep name -> the paper's table that it repeats.
PAPER_SWEEPS = {"in20_table2": 2, "in20_table3": 3, "in100_table4": 4}

SCORE_NAMES = {
    "knn_top1": "kNN top-1 (%)",
    "knn_top5": "kNN top-5 (%)",
    "linear_top1": "linear top-1 (%)",
    "linear_top5": "linear top-5 (%)",
    "places205_top1": "Places205 top-1 (%)",
    "places205_top5": "Places205 top-5 (%)",
    "voc07_map": "VOC07 mAP (%)",
    "labels1_top1": "1 % labels top-1 (%)",
    "labels1_top5": "1 % labels top-5 (%)",
    "labels10_top1": "10 % labels top-1 (%)",
    "labels10_top5": "10 % labels top-5 (%)",
}


@dataclass(frozen=True)
class Column:
    """A column's head; `spare` > 0 lets a narrow terminal leave it out, the highest first."""

    name: str
    numeric: bool = True
    spare: int = 0


@dataclass(frozen=True)
class Cell:
    """Text of one cell; bold marks the best of its column."""

    text: str
    bold: bool = False


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


def largest(rows: Sequence[Configuration], name: str) -> float:
    """Largest mean of a cost, 0 if nobody has it."""
    return max((s.mean for row in rows if (s := row.cost(name))), default=0.0)


def leaderboard(summary: Summary) -> Table:
    """One row per method and setting: accuracy on the test split, gain on the untrained network, and cost.

    The column of the paper's numbers is left out where the sweep repeats the paper: see `paper_tables`.
    """
    rows = summary.rows
    seconds, memory = time_unit(largest(rows, "train_s")), memory_unit(largest(rows, "peak_memory_bytes"))
    headline = summary.headline
    base = any(row.untrained for row in rows)
    references = [paper.in20_linear_top1(row.label) for row in rows]
    beside = any(references) and not any(sweep in PAPER_SWEEPS for sweep in summary.sweeps)
    columns = [
        *_head(summary),
        Column(SCORE_NAMES["knn_top1"]),
        Column(SCORE_NAMES["linear_top1"]),
        Column("n", spare=1),
        *([Column(f"{headline.split('_')[0]} − untrained", spare=2)] if base else []),
        Column(f"train time ({seconds.name})"),
        Column("images/s", spare=4),
        Column("loss (ms/step)"),
        Column(f"peak memory ({memory.name})"),
        *([Column("paper: IN20 % linear top-1, q = 8192", spare=3)] if beside else []),
    ]
    body = [
        [
            *_name(row),
            _accuracy(summary, row, "knn_top1"),
            _accuracy(summary, row, "linear_top1"),
            Cell(str(len(row.records))),
            *([Cell(_signed(summary.gain(row, headline)))] if base else []),
            Cell(seconds.text(row.cost("train_s"))),
            Cell(_mean(row.cost("img_per_s"), 0)),
            Cell(_mean(row.cost("loss_ms"), 2)),
            Cell(memory.text(row.cost("peak_memory_bytes"))),
            *([Cell(DASH if reference is None else f"{reference:.1f}")] if beside else []),
        ]
        for row, reference in zip(rows, references, strict=True)
    ]
    notes = ["Accuracies on the test split: mean ± sample standard deviation over n seeds; one seed has no ±."]
    if beside:
        notes.append(
            "The paper's number is of another data set and network (ResNet-18 on 20 % of ImageNet, 100 "
            "epochs; its Tables 2 and 3): compare the order of the methods, not the values."
        )
    return Table("leaderboard", "Leaderboard", columns, body, notes + summary.notes)


def leaderboard_frame(summary: Summary) -> pd.DataFrame:
    """The leaderboard as numbers, units in the column names; the spread is a sample standard deviation."""
    out = []
    for row in summary.rows:
        settings = {k: None if v == DASH else v for k, v in row.settings.items()}
        entry: dict[str, object] = {"sweep": summary.name, "label": row.label, **settings}
        entry |= {
            "n": len(row.records),
            "n_diverged": row.diverged,
            "configurations_tried": row.tried,
        }
        for name in ("knn_top1", "linear_top1"):
            s = row.score(name)
            entry |= {
                f"{name}_percent": s and s.mean,
                f"{name}_percent_std": s and s.spread,
                f"{name}_n": s and s.n,
            }
            entry[f"{name}_minus_untrained"] = summary.gain(row, name)
        for name in ("train_s", "img_per_s", "step_ms", "loss_ms", "peak_memory_bytes"):
            s = row.cost(name)
            entry[name] = s and s.mean
        entry["paper_in20_linear_top1_percent"] = paper.in20_linear_top1(row.label)
        out.append(entry)
    return pd.DataFrame(out)


def accuracy_table(summary: Summary) -> Table:
    """Every score of the test split, and those of the tuning split that selection saw."""
    measured = {(s.name, s.split) for row in summary.rows for r in row.records for s in r.scores}
    names = [*SCORE_NAMES, *sorted({name for name, _ in measured} - set(SCORE_NAMES))]
    shown = [(name, split) for split in ("test", "tuning") for name in names if (name, split) in measured]
    columns = _head(summary) + [Column(f"{SCORE_NAMES.get(name, name)}, {split}") for name, split in shown]
    body = []
    for row in summary.rows:
        cells = [
            _accuracy(summary, row, name) if split == "test" else Cell(_spread(row.score(name, split), 2))
            for name, split in shown
        ]
        body.append([*_name(row), *cells])
    return Table("accuracy", "Accuracy", columns, body, ["The tuning split chooses; it is no result."])


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
                Cell(_spread(row.cost("train_s"), train.decimals, train.divisor)),
                Cell(_spread(row.cost("evaluate_s"), evaluate.decimals, evaluate.divisor)),
                Cell(_spread(row.cost("img_per_s"), 0)),
                Cell(_spread(row.cost("step_ms"), 1)),
                Cell(_spread(row.cost("loss_ms"), 2)),
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
        kinds = sorted({str(r.cost["peak_memory_kind"]) for r in row.records if "peak_memory_kind" in r.cost})
        peak = _spread(row.cost("peak_memory_bytes"), unit.decimals, unit.divisor)
        body.append([*_name(row), Cell(peak), Cell(", ".join(kinds) or DASH)])
    return Table("memory", "Memory", columns, body)


def hyperparameters_table(summary: Summary) -> Table:
    """Every configuration tried: what sets it apart, its score on the tuning split, whether it was chosen."""
    trained = [c for c in summary.configurations if not c.untrained]
    cells = [flat({k: v for k, v in c.first.cell.items() if k != "seed"}) for c in trained]
    keys = list({k: None for cell in cells for k in cell if not is_setting(k) and k != "method.name"})
    keys.sort(key=lambda k: not k.startswith("method."))
    varying = [k for k in keys if k.startswith("method.") or len({cell.get(k) for cell in cells}) > 1]
    rows = {row.records[0].cell_id: row for row in summary.rows}
    several = any(row.tried > 1 for row in summary.rows) or len(rows) < len(summary.configurations)
    columns = [
        Column("method", numeric=False),
        Column("q"),
        Column("batch"),
        Column("epochs"),
        Column("hyperparameters", numeric=False),
        Column("kNN top-1 (%), tuning"),
        Column("n"),
        *([Column("in the leaderboard", numeric=False)] if several else []),
    ]
    body = []
    for c, cell in zip(trained, cells, strict=True):
        values = [f"{k.removeprefix('method.')}={cell[k]}" for k in varying if k in cell]
        body.append(
            [
                Cell(c.label),
                *(Cell(cell[k]) for k in ("embedding_dim", "batch_size", "epochs")),
                Cell(", ".join(values) or DASH),
                Cell(_spread(c.score("knn_top1", "tuning"), 2)),
                Cell(str(len(c.records))),
                *([Cell("yes" if c.first.cell_id in rows else "no")] if several else []),
            ]
        )
    return Table("hyperparameters", "Hyperparameters", columns, body)


def paper_frame(summary: Summary, number: int) -> pd.DataFrame:
    """A table of the paper number by number, with ours beside it.

    A row of ours takes a place only where label, embedding dimension, batch size and epochs are the paper's.

    Returns:
        Columns table, label, embedding_dim, epochs, metric, ours, ours_std, n, paper, difference; ours and
        difference are missing where the cell was not run.
    """
    frame = paper.paper_table(number).rename(columns={"value": "paper"})
    places = zip(frame["label"], frame["embedding_dim"], frame["batch_size"], frame["epochs"], strict=True)
    ours = []
    for place, metric in zip(places, frame["metric"], strict=True):
        # Numbers that the paper cites from elsewhere state no q: nothing of ours equals <NA>.
        match = [r for r in summary.rows if not any(map(pd.isna, place)) and _place(r) == place]
        ours.append(match[0].score(metric) if len(match) == 1 else None)
    frame["ours"] = pd.Series([s.mean if s else None for s in ours], frame.index, dtype=float)
    frame["ours_std"] = pd.Series([s.spread if s else None for s in ours], frame.index, dtype=float)
    frame["n"] = pd.array([s.n if s else None for s in ours], dtype="Int64")
    frame["difference"] = frame["ours"] - frame["paper"]
    columns = "table label embedding_dim epochs metric ours ours_std n paper difference"
    return frame[columns.split()].reset_index(drop=True)


def paper_tables(summary: Summary) -> list[tuple[Table, pd.DataFrame]]:
    """The paper's tables that the summary's sweeps repeat, in their own shape, each with its numbers.

    Each cell is "ours / paper / difference".
    """
    numbers = [(sweep, PAPER_SWEEPS[sweep]) for sweep in summary.sweeps if sweep in PAPER_SWEEPS]
    return [_paper_table(summary, sweep, number) for sweep, number in numbers]


def _paper_table(summary: Summary, sweep: str, number: int) -> tuple[Table, pd.DataFrame]:
    frame = paper_frame(summary, number)
    cells: dict[str, dict[str, str]] = {}
    for i, label in enumerate(frame["label"]):
        q, epochs, metric = (frame[c].iloc[i] for c in ("embedding_dim", "epochs", "metric"))
        ours, spread, reference = (float(frame[c].iloc[i]) for c in ("ours", "ours_std", "paper"))
        if number == 2:
            row, column = f"q = {q}", label
        elif number == 3:
            row, column = label, SCORE_NAMES[metric]
        else:
            dimension = "" if pd.isna(q) else f", q = {q}"
            row, column = f"{label}{dimension}, {epochs} epochs", SCORE_NAMES[metric]
        text = f"{DASH} / {reference:.1f} / {DASH}"
        if not math.isnan(ours):
            mean = _spread(Stat(ours, None if math.isnan(spread) else spread, 1), 2)
            text = f"{mean} / {reference:.1f} / {_signed(ours - reference)}"
        cells.setdefault(row, {})[column] = text
    heads = list(dict.fromkeys(column for row in cells.values() for column in row))
    if number == 2:  # SFRIK stands at the right, by its order
        heads.sort(key=lambda head: head if head.startswith("SFRIK") else "")
    body = [[Cell(name), *(Cell(row.get(head, DASH)) for head in heads)] for name, row in cells.items()]
    notes = ["Each cell: ours / paper / difference, in percent. A dash: not run, or not in the paper."]
    reference_rows = paper.paper_table(number)
    columns = (reference_rows[c] for c in ("label", "embedding_dim", "batch_size", "epochs"))
    places = [place for place in zip(*columns, strict=True) if not any(map(pd.isna, place))]
    if other := sum(not row.untrained and _place(row) not in places for row in summary.rows):
        notes.append(f"Left out: {other} of our rows, with a method or setting that the paper's table has not.")
    cell = summary.records[0].cell
    notes.append(f"Ours: {cell['dataset']['name']}, {cell['network']['backbone']}.")
    title = f"Table {number} of the paper, with ours"
    return Table(sweep, title, [Column("", numeric=False), *map(Column, heads)], body, notes), frame


def to_markdown(table: Table) -> str:
    """GitHub Markdown with the title as a heading and the notes below."""
    rows = [[_escape_markdown(c) for c in row] for row in table.rows]
    heads = [_escape_markdown(Cell(column.name)) for column in table.columns]
    body = tabulate(rows, heads, tablefmt="github", disable_numparse=True, colalign=_alignment(table))
    return "\n\n".join([f"### {table.title}", body, *(f"- {note}" for note in table.notes)]) + "\n"


def to_latex(table: Table) -> str:
    """A `tabular` with booktabs rules (needs the booktabs package); the notes are comments above it."""
    rows = [[f"\\textbf{{{_latex(c.text)}}}" if c.bold else _latex(c.text) for c in row] for row in table.rows]
    # Positions name the columns here: two heads may read alike, and a data frame would mix them up.
    frame = pd.DataFrame(rows, columns=range(len(table.columns)), dtype=object)
    body = frame.to_latex(
        index=False,
        escape=False,
        header=[_latex(column.name) for column in table.columns],
        column_format="".join("r" if column.numeric else "l" for column in table.columns),
    )
    comments = "".join(f"% {line}\n" for line in [table.title, *table.notes])
    return comments + body


def to_terminal(table: Table, width: int = 120) -> str:
    """Text that fits a terminal: heads wrap, spare columns are left out if they must, * marks the best."""
    keep = list(range(len(table.columns)))
    while True:
        heads = [_wrap(table.columns[i].name) for i in keep]
        rows = [[row[i].text + "*" * row[i].bold for i in keep] for row in table.rows]
        align = [_alignment(table)[i] for i in keep]
        text = tabulate(rows, heads, tablefmt="pretty", disable_numparse=True, colalign=align)
        spare = max(keep, key=lambda i: table.columns[i].spare)
        if max(map(len, text.splitlines())) <= width or table.columns[spare].spare == 0:
            return text
        keep.remove(spare)


def _head(summary: Summary) -> list[Column]:
    settings = list(summary.rows[0].settings) if summary.rows else []
    return [Column("method", numeric=False), *(Column(s) for s in settings)]


def _name(row: Row) -> list[Cell]:
    return [Cell(row.label + " †" * bool(row.diverged)), *(Cell(v) for v in row.settings.values())]


def _accuracy(summary: Summary, row: Row, name: str) -> Cell:
    s = row.score(name)
    text = _spread(s, 2)
    if s is not None and s.n < len(row.records):
        text += f" (n={s.n})"
    return Cell(text, s is not None and round(s.mean, 2) == summary.best(name))


def _mean(s: Stat | None, decimals: int, divisor: float = 1) -> str:
    return DASH if s is None else f"{s.mean / divisor:,.{decimals}f}"


def _spread(s: Stat | None, decimals: int, divisor: float = 1) -> str:
    mean = _mean(s, decimals, divisor)
    return mean if s is None or s.spread is None else f"{mean} ± {s.spread / divisor:,.{decimals}f}"


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{value:+.2f}".replace("-", "−")


def _place(row: Row) -> tuple[object, ...]:
    cell = row.first.cell
    return (row.label, cell["embedding_dim"], cell["batch_size"], cell["epochs"])


def _alignment(table: Table) -> list[str]:
    return ["right" if column.numeric else "left" for column in table.columns]


def _escape_markdown(cell: Cell) -> str:
    text = cell.text.replace("|", "\\|")
    return f"**{text}**" if cell.bold else text


def _latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {c: f"\\{c}" for c in "&%$#_{}"}
    special |= {"±": r"$\pm$", "†": r"$\dagger$", "−": "$-$", "–": "--", "μ": r"$\mu$", "λ": r"$\lambda$"}
    return "".join(special.get(c, c) for c in text)


def _wrap(head: str) -> str:
    """Breaks a column's head into lines of about 9 characters at its spaces."""
    lines = [""]
    for word in head.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > 9:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
