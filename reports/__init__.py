"""Reports: from the records of finished runs to tables, figures and one self-contained page.

Reads what runs leave on disk and nothing else of the package. Heavy imports (pandas, matplotlib) wait until a
report is written.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from regbench.errors import RegbenchError
from regbench.files import write_atomically, write_bytes
from regbench.reports.collecting import uncollected
from regbench.reports.latest import LATEST, Report, keep, latest, made_of

if TYPE_CHECKING:
    from regbench.reports.find.records import Records
    from regbench.reports.page.cost_curves import Line

__all__ = ["Report", "write_report"]


def write_report(
    runs: Path | Sequence[Path],
    out: Path,
    *,
    whole_paper: bool = False,
    cost: Path | None = None,
    against: Path | Sequence[Path] = (),
) -> Report:
    """Write the report of all finished runs under some folders. Safe at any moment of a sweep.

    What is damaged or was changed is left out, see `find.judging.judge`. Cells of the same task (data set, backbone,
    evaluation) share a leaderboard, whatever their sweeps; those that the test split chose have one of their own. The
    files are index.html, report.json (what the report was made of: while that is as it was, the report is not made
    again), tidy.{csv,parquet} (one row per record and score), leaderboard.{md,tex,csv},
    significance.{md,tex,csv} (p-values of all pairs of rows), indicators and sensitivity where several configurations
    were tried, the tables accuracy, time, memory, convergence and energy
    (where they were measured) and hyperparameters as .md and .tex, accuracy_vs_time.png and
    accuracy_vs_effective_rank.png, and paper_table<number>.{md,tex,csv} for the paper's tables. With several tasks, the
    names of what belongs to one end in -<task>.

    Args:
        runs: Folders of sweeps, sweeps or run directories.
        out: The folder to write to; made if it does not exist. Files of the same names are replaced.
        whole_paper: Whether to write also those tables of the paper in which no number of ours has a place.
        cost: The cost.csv of `regbench cost`, whose curves the page shows too.
        against: Former runs, likewise; what changed since then is a table (against.{md,tex,csv}).

    Raises:
        RegbenchError: If there is no readable record, `cost` is no such file, nothing of `against` is of a task of
            `runs`, or `out` cannot be written.
    """
    with uncollected():
        return _write_report(runs, out, whole_paper, cost, [against] if isinstance(against, Path) else against)


def _write_report(
    runs: Path | Sequence[Path], out: Path, whole_paper: bool, cost: Path | None, against: Sequence[Path]
) -> Report:
    from regbench.reports.find.records import read_records

    costs = []
    if cost is not None:
        from regbench.reports.page.cost_curves import read_cost  # draws, too

        costs = read_cost(cost)
    found, former = read_records(runs), read_records(against) if against else None
    state = made_of(found, former, whole_paper, cost)
    report = latest(out, state)
    if report is None:
        report = _made(found, former, out, whole_paper, costs)
        keep(report, state)
    return report


def _made(found: Records, former: Records | None, out: Path, whole_paper: bool, costs: Sequence[Line]) -> Report:
    from pyarrow import csv, parquet

    from regbench.reports.find.records import tidy
    from regbench.reports.page import figures
    from regbench.reports.page.drawing import styles
    from regbench.reports.page.page import render_page
    from regbench.reports.rows.grouping import summarize
    from regbench.reports.rows.tasks import over_tasks
    from regbench.reports.tables.against import compared
    from regbench.reports.tables.details import significance_frame, tables_of
    from regbench.reports.tables.indicators import indicators
    from regbench.reports.tables.leaderboard import leaderboard_frame
    from regbench.reports.tables.over_tasks import over_tasks_frame, over_tasks_table
    from regbench.reports.tables.paper_tables import paper_tables
    from regbench.reports.tables.sensitivity import sensitivity
    from regbench.reports.tables.table import to_latex, to_markdown, to_terminal

    summaries = summarize(found.records, found.missing, found.choices, found.short)
    style = styles(r.label for r in found.records if not r.untrained)
    data = tidy(found.records)
    contents: dict[str, str | bytes | Callable[[IO[bytes]], Any]] = {
        "tidy.csv": lambda file: csv.write_csv(data, file, csv.WriteOptions(quoting_style="needed")),
        "tidy.parquet": lambda file: parquet.write_table(data, file),
    }
    papers = paper_tables(summaries, whole=whole_paper)
    named = {table.slug: table for table, _ in papers}
    contents |= {f"{table.slug}.csv": frame.to_csv(index=False) for table, frame in papers}
    if (comparison := over_tasks(summaries)) is not None:
        named["over_tasks"] = over_tasks_table(comparison)
        contents["over_tasks.csv"] = over_tasks_frame(comparison).to_csv(index=False)
    tables = [tables_of(summary) for summary in summaries]
    before = [] if former is None else summarize(former.records, former.missing, former.choices)
    since = compared(summaries, before) if before else {}
    texts, suffixes = [], set[str]()
    for summary, of_task in zip(summaries, tables, strict=True):
        suffix = "" if len(summaries) == 1 else "-" + re.sub(r"[^\w.]+", "_", summary.name).strip("_")
        while suffix in suffixes:  # of names that differ in other signs
            suffix += "_"
        suffixes.add(suffix)
        more = {"indicators": indicators(summary), "sensitivity": sensitivity(summary)}
        for slug, told in (more | {"against": since.get(summary.name)}).items():
            if told is not None:
                of_task[slug], frame = told
                contents[f"{slug}{suffix}.csv"] = frame.to_csv(index=False)
        named |= {f"{slug}{suffix}": table for slug, table in of_task.items()}
        contents[f"leaderboard{suffix}.csv"] = leaderboard_frame(summary).to_csv(index=False)
        contents[f"significance{suffix}.csv"] = significance_frame(summary).to_csv(index=False)
        for stem, quantity in (("time", figures.TRAINING_TIME), ("effective_rank", figures.EFFECTIVE_RANK)):
            if (png := figures.scatter_png(summary, style, quantity)) is not None:
                contents[f"accuracy_vs_{stem}{suffix}.png"] = png
        leaderboard = of_task["leaderboard"]
        lines = [f"{summary.name}: {len(summary.records)} cells", *filter(None, [leaderboard.warning])]
        lines.append(to_terminal(leaderboard))
        notes = ["* stands for bold.", *leaderboard.notes]
        lines += map(_told, notes)
        if "against" in of_task:
            lines += ["", of_task["against"].title, to_terminal(of_task["against"])]
            lines += map(_told, of_task["against"].notes)
        texts.append("\n".join(lines))
    for stem, table in named.items():
        contents[f"{stem}.md"] = to_markdown(table)
        contents[f"{stem}.tex"] = to_latex(table)
    together = None if comparison is None else (comparison, named["over_tasks"])
    contents["index.html"] = render_page(
        summaries, tables, found, style, [table for table, _ in papers], costs, together
    )

    texts += [f"not finished yet: {count} of {sweep}" for sweep, count in found.unfinished.items()]
    try:
        for name, content in contents.items():
            if callable(content):
                write_atomically(out / name, content)
            else:
                write_bytes(out / name, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise RegbenchError(f"cannot write to {out}: {error.strerror}; give another folder") from error
    files, skipped = tuple(out / name for name in (*contents, LATEST)), tuple(map(str, found.skipped))
    return Report(out / "index.html", "\n\n".join(texts), files, skipped, found.warning)


def _told(note: str) -> str:
    return textwrap.fill(note, 118, initial_indent="  ", subsequent_indent="    ")
