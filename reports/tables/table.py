"""A table as it is shown, and its text for Markdown, LaTeX and a terminal.

The page's template makes HTML of it.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING

from tabulate import tabulate

from regbench.reports.rows.deviations import Stat
from regbench.reports.rows.same_loss import same_loss_marks
from regbench.reports.rows.summary import DASH, Row, Summary
from regbench.reports.tables.units import unit_of
from regbench.text import printable

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Column:
    """A column's head. Numbers stand at the right, words at the left.

    `spare` > 0 lets a narrow terminal leave it out, the highest first.
    """

    name: str
    numeric: bool = True
    spare: int = 0


@dataclass(frozen=True)
class Entry:
    """The text in one place of a table.

    Bold marks the best of its column, `why` says why it is bold or is not. `shade` is how dark the
    page makes a place of a heat map, from 0 to 100.
    """

    text: str
    bold: bool = False
    why: str = ""
    shade: int | None = None


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Attributes:
        entries: The text in each place.
        label: Name of the method that it is about; empty without one.
        row: The row of the leaderboard that it is about; None without one.
    """

    entries: Sequence[Entry]
    label: str = ""
    row: Row | None = None


@dataclass(frozen=True)
class Table:
    """A table as it is shown.

    Attributes:
        slug: Stem of its file names.
        title: One line that says what it shows.
        columns: Heads of the columns.
        lines: Lines, with an entry for each column.
        notes: Text below the table, a paragraph each.
        warning: One line that a reader must know first; empty without.
        numbers: The same as numbers, with more columns, for a CSV file; None without one.
    """

    slug: str
    title: str
    columns: list[Column]
    lines: list[Line]
    notes: list[str] = field(default_factory=list)
    warning: str = ""
    numbers: pd.DataFrame | None = None


# Heads of a terminal's table wrap at this many letters: about as wide as most numbers.
_HEAD_WIDTH = 9

Filled = tuple[Column, Callable[[Row], Entry | str]]
"""A column of a table of rows, and how a row fills it."""


def entries(*texts: Entry | str) -> list[Entry]:
    """Make a line of a table."""
    return [text if isinstance(text, Entry) else Entry(text) for text in texts]


def table_of_rows(
    summary: Summary,
    slug: str,
    title: str,
    columns: Sequence[Filled],
    notes: Sequence[str],
    rows: Sequence[Row] | None = None,
) -> Table:
    """Make a table of rows of a task; its first columns are the method and the settings that vary.

    Args:
        summary: The task.
        slug: Stem of its file names.
        title: Title of the table.
        columns: Columns after the settings.
        notes: Text below the table, a paragraph each.
        rows: The rows; None: all, and below them those that are planned and have no result.
    """
    places = [row.settings for row in summary.rows] or [row.settings for row in summary.missing]
    settings = places[0] if places else {}
    heads = [Column("method", numeric=False), *map(Column, settings)]
    heads += [column for column, _ in columns]
    lines, same = [], same_loss_marks(summary)
    for row in summary.rows if rows is None else rows:
        marked = row.label + " †" * bool(row.diverged) + " ‡" * bool(row.edges)
        if row in same:
            marked += f" {same[row]}"
        filled = [fill(row) for _, fill in columns]
        lines.append(Line(entries(marked, *row.settings.values(), *filled), row.label, row))
    for absent in summary.missing if rows is None else ():
        known = {"method": absent.label, **absent.settings, "n": f"0 of {absent.seeds}"}
        texts = [known.get(column.name, DASH) for column in heads]
        lines.append(Line(entries(*texts), absent.label))
    return Table(slug, title, heads, lines, list(notes))


def mean(s: Stat | None, decimals: int, divisor: float = 1) -> str:
    """Format a mean, or a dash."""
    return DASH if s is None else f"{s.mean / divisor:,.{decimals}f}"


def mean_pm(s: Stat | None, decimals: int | None = None, divisor: float = 1) -> str:
    """Format mean ± sample standard deviation, or a dash; with four significant digits if no
    decimals are given.
    """
    if s is None:
        return DASH
    form = ",.4g" if decimals is None else f",.{decimals}f"
    text = f"{s.mean / divisor:{form}}"
    return text if s.std is None else f"{text} ± {s.std / divisor:{form}}"


def cost_column(
    rows: Sequence[Row], cost: str, head: str, show: Callable[..., str] = mean_pm, spare: int = 0
) -> Filled:
    """Make a column of a cost: its mean ± standard deviation, or what else `show` makes of its
    statistics. The head names the unit.
    """
    unit = unit_of(rows, cost)
    column = Column(f"{head} ({unit.name})" if unit.name else head, spare=spare)
    return column, lambda row: show(row.cost(cost), unit.decimals, unit.divisor)


def signed(value: float | None, decimals: int = 2) -> str:
    """Format a difference with its sign, or a dash."""
    return DASH if value is None else f"{value:+.{decimals}f}".replace("-", "−")


def p_value(p: float) -> str:
    """Format a p-value, or a dash where nothing was tested."""
    if math.isnan(p):
        return DASH
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def to_markdown(table: Table) -> str:
    """Make GitHub Markdown with the title as a heading, the warning above and the notes below."""
    heads = [_markdown(column.name) for column in table.columns]
    parts = [f"### {_markdown(table.title)}"]
    if table.warning:
        parts.append(_markdown(table.warning))
    parts.append(_grid("github", table.columns, heads, _texts(table, _markdown, "**{}**")))
    parts += [f"- {_markdown(note)}" for note in table.notes]
    return "\n\n".join(parts) + "\n"


def to_latex(table: Table) -> str:
    """Make a `tabular` with booktabs rules (needs the booktabs package).

    The notes are comments above it.
    """
    about = [table.title, table.warning, *table.notes]
    lines = [f"% {one_line(text)}" for text in about if text]
    columns = "".join("r" if column.numeric else "l" for column in table.columns)
    head = " & ".join(_latex(column.name) for column in table.columns)
    lines += [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", f"{head} \\\\", "\\midrule"]
    for texts in _texts(table, _latex, "\\textbf{{{}}}"):
        lines.append(" & ".join(texts) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def to_terminal(table: Table, width: int = 120) -> str:
    """Make text that fits a terminal: heads wrap, spare columns are left out if necessary, * marks
    the best.
    """
    body = _texts(table, one_line, "{}*")
    keep = list(range(len(table.columns)))
    while True:
        columns = [table.columns[i] for i in keep]
        heads = [
            "\n".join(wrap(column.name, _HEAD_WIDTH, break_long_words=False)) for column in columns
        ]
        rows = []
        for texts in body:
            rows.append([texts[i] for i in keep])
        text = _grid("pretty", columns, heads, rows)
        # A column with `spare` 0 stays, however narrow the terminal is.
        spare = max(keep, key=lambda i: table.columns[i].spare)
        # Measured and not reckoned: how wide a table is depends on how its heads wrap.
        if max(map(len, text.splitlines())) <= width or table.columns[spare].spare == 0:
            return text
        keep.remove(spare)


def _texts(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Escape the texts of a table, and set the bold ones in bold."""
    rows = []
    for line in table.lines:
        texts = []
        for entry in line.entries:
            text = escape(entry.text)
            texts.append(bold.format(text) if entry.bold else text)
        rows.append(texts)
    return rows


def _grid(
    form: str, columns: Sequence[Column], heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    sides = ["right" if column.numeric else "left" for column in columns]
    # tabulate would take texts for numbers, and print 60.10 as 60.1.
    return tabulate(rows, heads, tablefmt=form, disable_numparse=True, colalign=sides)


def one_line(text: str) -> str:
    """Remove line breaks from untrusted text, and escape control characters."""
    return printable(" ".join(text.split()))


# Signs that Markdown takes for its own. An underscore within a word, or a bracket that no link
# follows, means nothing to it and is left as it is, so that the text can be read.
_MARKDOWN = re.compile(r"[\\`*|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:])|^#")


def _markdown(text: str) -> str:
    """Escape text for Markdown."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", text)


# pdflatex knows ASCII and little else. A bracket or an asterisk at the beginning of a line would be
# read as an argument of the rule above it, and so stands in braces.
_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    "<": "$<$",
    ">": "$>$",
    "[": "{[}",
    "*": "{*}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "≡": r"$\equiv$",
    "≈": r"$\approx$",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "⁺": "$^+$",
    "²": "$^2$",
    "…": r"\dots{}",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "τ": r"$\tau$",
}


def _latex(text: str) -> str:
    """Write ASCII that LaTeX sets as the text.

    A letter that it cannot set loses its accent, a sign becomes "?".
    """
    return "".join(map(_latex_character, one_line(text)))


@functools.cache
def _latex_character(sign: str) -> str:
    if sign in _LATEX:
        return _LATEX[sign]
    if sign.isascii():
        return sign
    # NFKD separates a letter from its accent, and ASCII drops the accent.
    plain = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"
    return "".join(_LATEX.get(one, one) for one in plain)
