"""Reports: from the records of finished runs to tables, figures and one self-contained page.

Reads `record.json` files and nothing else of the package. Heavy imports (pandas, matplotlib) wait until a
report is written.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regbench import RegbenchError
from regbench.files import write_bytes

__all__ = ["Report", "write_report"]


@dataclass(frozen=True)
class Report:
    """What `write_report` left.

    Attributes:
        page: The HTML page.
        leaderboard: The leaderboards with their notes as text for a terminal of 120 columns.
        files: All files written, the page included.
        skipped: Damaged records that are not in the report, each "path: reason".
    """

    page: Path
    leaderboard: str
    files: tuple[Path, ...]
    skipped: tuple[str, ...]


def write_report(runs: Path | Sequence[Path], out: Path) -> Report:
    """Writes the report of all finished runs under some folders. Safe at any moment of a sweep.

    Cells of the same task (data set, backbone, evaluation) share a leaderboard, whatever their sweeps. The
    files are index.html, tidy.csv (one row per record and score), leaderboard.{md,tex,csv}, the tables
    accuracy, time, memory and hyperparameters as .md and .tex, accuracy_vs_time.png, and for a sweep that
    repeats a table of the paper <sweep>.{md,tex,csv}. With several tasks, the names of what belongs to one
    end in -<task>.

    Args:
        runs: Folders of sweeps, sweeps or run directories.
        out: The folder to write to; made if it does not exist. Files of the same names are replaced.

    Raises:
        RegbenchError: If there is no readable record, or `out` cannot be written.
    """
    from regbench.reports import figures, page, tables
    from regbench.reports.records import read_records, tidy
    from regbench.reports.summary import summarize

    found = read_records(runs)
    summaries = summarize(found.records)
    style = figures.styles(r.label for r in found.records if not r.untrained)
    contents: dict[str, str | bytes] = {"tidy.csv": tidy(found.records).to_csv(index=False)}
    texts = []
    for summary in summaries:
        suffix = "" if len(summaries) == 1 else "-" + re.sub(r"[^\w.]+", "_", summary.name).strip("_")
        leaderboard = tables.leaderboard(summary)
        shown = [leaderboard, tables.accuracy_table(summary), tables.time_table(summary)]
        shown += [tables.memory_table(summary), tables.hyperparameters_table(summary)]
        named = {f"{table.slug}{suffix}": table for table in shown}
        contents[f"leaderboard{suffix}.csv"] = tables.leaderboard_frame(summary).to_csv(index=False)
        for table, frame in tables.paper_tables(summary):
            stem = table.slug + suffix * (f"{table.slug}.csv" in contents)  # its sweep may be in several tasks
            named[stem] = table
            contents[f"{stem}.csv"] = frame.to_csv(index=False)
        for stem, table in named.items():
            contents[f"{stem}.md"] = tables.to_markdown(table)
            contents[f"{stem}.tex"] = tables.to_latex(table)
        if (png := figures.main_png(summary, style)) is not None:
            contents[f"accuracy_vs_time{suffix}.png"] = png
        lines = [f"{summary.name}: {len(summary.records)} cells", tables.to_terminal(leaderboard)]
        notes = ["* best of its column", *leaderboard.notes]
        lines += [textwrap.fill(note, 118, initial_indent="  ", subsequent_indent="    ") for note in notes]
        texts.append("\n".join(lines))
    contents["index.html"] = page.render_page(summaries, found, style)

    skipped = tuple(f"{s.path}: {s.reason}" for s in found.skipped)
    texts += [f"not finished yet: {count} of {sweep}" for sweep, count in found.unfinished.items()]
    texts += [f"damaged, not in the report: {line}" for line in skipped]
    try:
        for name, content in contents.items():
            write_bytes(out / name, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise RegbenchError(f"cannot write to {out}: {error.strerror}; give another folder") from error
    return Report(out / "index.html", "\n\n".join(texts), tuple(out / name for name in contents), skipped)
