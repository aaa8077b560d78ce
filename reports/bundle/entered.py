"""The rows that a bundle enters into a leaderboard, and whether a rows file states them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from regbench.benchmark.rundir.record import Record
from regbench.reports.bundle.bundle import Bundle
from regbench.reports.bundle.rows_file import EnteredRow, RowsFile
from regbench.reports.find.records import steps_of_searches
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.summary import Row, Summary
from regbench.text import brief


def entered_rows(bundle: Bundle) -> tuple[EnteredRow, ...]:
    """Make the rows of the methods in a bundle that has checked out, as a leaderboard of it
    alone shows them.
    """
    short = steps_of_searches(bundle.records, bundle.choices.values(), in_bundle=True)
    records = [record for record in bundle.records if record not in short]
    # Their order decides that of rows with equal scores.
    records.sort(key=lambda r: (r.is_reference, r.label, r.seed, r.cell_id))
    summaries = summarize(records, short=[r for r in bundle.records if r in short])
    rows: list[EnteredRow] = []
    titles: Counter[str] = Counter()
    for summary in sorted(summaries, key=lambda each: _dataset(each.records[0])):
        first = summary.records[0]
        title = f"{_dataset(first)}, {first.backbone}"
        if summary.on_test:
            title += ", chosen on the test set"
        # Other settings that tell tasks apart, such as the k of kNN, are too long for a title.
        titles[title] += 1
        if titles[title] > 1:
            title += f" (evaluated in another way: {titles[title]})"
        rows += [_entered(title, summary, row) for row in summary.methods]
    return tuple(rows)


def _dataset(record: Record) -> str:
    return str(record.cell["dataset"]["name"])


def rows_misfits(path: Path, file: RowsFile, bundle: Bundle) -> Iterator[str]:
    """Yield a line for each thing that a rows file states and its bundle, which has checked
    out, does not hold.
    """
    held = {(row.task, row.row): row for row in entered_rows(bundle)}
    stated = {(row.task, row.row): row for row in file.rows}
    if len(stated) < len(file.rows):
        yield f"{path}: a row is in it twice"
    for key in dict.fromkeys([*stated, *held]):
        name = f"{path}: {brief(key[1])} on {brief(key[0])}"
        if key not in held:
            yield f"{name}: the bundle has no such row"
        elif key not in stated:
            yield (
                f"{name}: the bundle holds this row, and the file does not; a bundle is entered "
                "with all its rows"
            )
        else:
            says, holds = stated[key].claims(), held[key].claims()
            for what in dict.fromkeys([*says, *holds]):
                one, other = says.get(what, "missing"), holds.get(what, "missing")
                if one != other:
                    stated_as = f"{brief(what)} is {brief(str(one))} in the file"
                    yield f"{name}: {stated_as} and {brief(str(other))} in the bundle"


def _entered(task: str, summary: Summary, row: Row) -> EnteredRow:
    tried = _tried(summary, row)
    # Searches that were repeated have chosen different ones.
    chosen = set.intersection(*(set(_hyperparameters(record).items()) for record in row.records))
    settings = {}
    for name, value in sorted(chosen):
        if name.startswith("method.") or any(other.get(name) != value for other in tried):
            settings[name] = value
    scores = {}
    for score in summary.leading:
        scores[score] = {str(record.seed): record.score(score, "test") for record in row.records}
    different = {tuple(each.items()) for each in tried}
    return EnteredRow(task, row.name, settings, max(len(different), row.tried), scores)


def _tried(summary: Summary, row: Row) -> list[dict[str, str]]:
    """List the hyperparameters of all configurations of a row, those too that a search stopped
    early.
    """
    shared = [key for key in summary.varying if key != "epochs"]
    whole = [
        each
        for each in summary.configurations
        if each.place(summary.varying) == row.place(summary.varying)
    ]
    stopped = [each for each in summary.short if each.place(shared) == row.place(shared)]
    return [_hyperparameters(each.first) for each in (*whole, *stopped)]


def _hyperparameters(record: Record) -> dict[str, str]:
    found = {}
    for name, value in record.settings.items():
        # A search that trains for a part of the epochs warms up for the same part of it.
        if name.startswith(("method.", "optimizer.")) and name != "optimizer.warmup_epochs":
            found[name] = value
    return found
