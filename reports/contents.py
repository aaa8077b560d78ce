"""The files of a report: tables in four forms, figures and the page, by their names."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import pandas as pd
from pyarrow import parquet

from regbench.csv_files import csv_text, write_table
from regbench.reports.find.records import Records, tidy
from regbench.reports.page import figures
from regbench.reports.page.drawing import styles
from regbench.reports.page.page import render_page
from regbench.reports.rows.answer import answer
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.summary import Summary
from regbench.reports.rows.tasks import over_tasks
from regbench.reports.tables.details import tables_of
from regbench.reports.tables.kept_factors import factors_frame
from regbench.reports.tables.over_tasks import over_tasks_table
from regbench.reports.tables.paper import beside_paper
from regbench.reports.tables.table import Table, one_line, to_latex, to_markdown, to_terminal
from regbench.text import counted

ReportFiles = dict[str, str | bytes | Callable[[IO[bytes]], Any]]
"""File name -> its content, or a function that writes it to an open file."""

_FIGURES = {"time": figures.TRAINING_TIME, "effective_rank": figures.EFFECTIVE_RANK}
_WIDTH = 118  # of notes, beside a table of 120 columns


def report_contents(found: Records) -> tuple[ReportFiles, str]:
    """Make a report.

    Args:
        found: Records that the report is about.

    Returns:
        The files, and the leaderboards with their notes as text for a terminal.
    """
    summaries = summarize(found.records, found.missing, found.choices, found.short)
    shown = (*found.records, *found.short)  # so far a method may have only short trainings
    style = styles([record.label for record in shown if not record.is_reference])
    data = tidy(found.records)
    contents: ReportFiles = {
        "tidy.csv": lambda file: write_table(data, file),
        "tidy.parquet": lambda file: parquet.write_table(data, file),
    }
    beside, comparison = beside_paper(summaries), over_tasks(summaries)
    together = over_tasks_table(comparison) if comparison else None
    for of_all in filter(None, (beside, together)):
        contents |= _table_files(of_all)
    tables, texts = [], []
    for summary, suffix in zip(summaries, _suffixes(summaries), strict=True):
        of_task = tables_of(summary)
        for table in of_task.values():
            contents |= _table_files(table, suffix)
        for name, quantity in _FIGURES.items():
            png = figures.scatter_png(summary, style, quantity)
            if png is not None:
                contents[f"accuracy_vs_{name}{suffix}.png"] = png
        # The tables of factors, one for each layer, share a CSV file.
        kept = factors_frame(summary)
        if len(kept):
            contents[f"factors{suffix}.csv"] = _csv(kept)
        tables.append(of_task)
        texts.append(_terminal_text(summary, of_task))
    for sweep, count in found.unfinished.items():
        texts.append(one_line(f"not finished yet: {count} of {sweep}"))
    contents["index.html"] = render_page(summaries, tables, found, style, beside, together)
    return contents, "\n\n".join(texts)


def _table_files(table: Table, suffix: str = "") -> ReportFiles:
    stem = table.slug + suffix
    files: ReportFiles = {f"{stem}.md": to_markdown(table), f"{stem}.tex": to_latex(table)}
    if table.numbers is not None:
        files[f"{stem}.csv"] = _csv(table.numbers)
    return files


def _csv(frame: pd.DataFrame) -> str:
    return csv_text(frame.columns, frame.itertuples(index=False, name=None))


def _suffixes(summaries: Sequence[Summary]) -> Iterator[str]:
    """Yield the ending of the names of each task's files: empty if there is only one task."""
    seen = set()
    for summary in summaries:
        suffix = ""
        if len(summaries) > 1:
            # Names of tasks have spaces and signs. A file's name, which begins with a table's or a
            # figure's, has at most 100 characters.
            suffix = "-" + re.sub(r"[^A-Za-z0-9.]+", "_", summary.name)[:60].strip("_")
        while suffix in seen:  # names that differ in other signs give the same suffix
            suffix += "_"
        seen.add(suffix)
        yield suffix


def _terminal_text(summary: Summary, tables: Mapping[str, Table]) -> str:
    """Format the leaderboard of a task and its tables of factors, with their notes, and then the
    answer.
    """
    leaderboard = tables["leaderboard"]
    heading = f"{summary.name}: {counted(len(summary.records), 'cell')}"
    lines = [one_line(text) for text in (heading, leaderboard.warning) if text]
    lines += [to_terminal(leaderboard), *map(_note, ["* stands for bold.", *leaderboard.notes])]
    for slug, table in tables.items():
        # The other tables are in the files: a terminal has room for few.
        if slug.startswith("factors"):
            lines += ["", table.title, to_terminal(table), *map(_note, table.notes)]
    if answered := answer(summary):
        lines += ["", *map(_note, answered)]
    return "\n".join(lines)


def _note(text: str) -> str:
    return textwrap.fill(one_line(text), _WIDTH, initial_indent="  ", subsequent_indent="    ")
