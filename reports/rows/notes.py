"""What is said below a task's tables: how rows were chosen, what is missing, and what bold means."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from regbench.benchmark.rundir.record import Record
from regbench.reports.rows.significance import LEVEL
from regbench.reports.rows.summary import Row, Summary


def task_notes(summary: Summary) -> list[str]:
    """Say what a reader must know of a task beside its numbers."""
    notes = []
    if summary.on_test:
        notes.append(
            "Chosen on the test set: hyperparameters or the probe's learning rate were picked by scores on the "
            "split that the table reports, so its numbers are optimistic. Compare them with each other only."
        )
    notes += _budget_notes(summary)
    notes += _view_notes(summary)
    chosen_by = f"{summary.selection_title} on the {summary.selection_split} split"
    if any(row.tried > 1 for row in summary.rows):
        notes.append(
            "Where several hyperparameters were tried, the row is the one with the highest "
            f"{chosen_by}; all are listed under Hyperparameters."
        )
    if summary.unchosen:
        notes.append(
            "Not in the table, because several hyperparameters were tried and not all have a "
            f"{chosen_by} to choose by: {', '.join(summary.unchosen)}."
        )
    if summary.waiting:
        notes.append(f"Tuned, but no configuration has its final scores yet: {', '.join(summary.waiting)}.")
    if diverged := [row for row in summary.rows if row.diverged]:
        counts = ", ".join(f"{row.name} ({row.diverged} of {len(row.records)} cells)" for row in diverged)
        notes.append(f"† diverged (loss not finite, or embeddings collapsed) and not counted in the means: {counts}.")
    if edged := [row for row in summary.rows if row.edges]:
        listed = "; ".join(f"{row.name} ({_edges(row)})" for row in edged)
        notes.append(f"‡ chosen at the edge of what was tried, so a better value may lie beyond: {listed}.")
    if absent := sum(row.missing for row in summary.rows) + sum(row.seeds for row in summary.missing):
        notes.append(f"Planned and not finished: {absent} {'cell' if absent == 1 else 'cells'}; n says of how many.")
    if summary.failures:
        kinds = Counter((f.label or f.cell_id, f.failure) for f in summary.failures)
        counts = "; ".join(
            f"{label}, {n} {'cell' if n == 1 else 'cells'} ({why})" for (label, why), n in kinds.most_common(5)
        )
        more = f"; and {len(kinds) - 5} more kinds" if len(kinds) > 5 else ""
        notes.append(f"Failed, {len(summary.failures)} in all, and to be tried again: {counts}{more}.")
    trained = [r for r in summary.records if not r.untrained]
    machines = {machine(r) for r in trained if r.status == "done"}
    if len(machines) > 1:
        notes.append(f"Times were measured on unequal machines: {'; '.join(sorted(machines))}. Compare within one.")
    kinds_of_memory = {r.cost.peak_memory_kind for r in trained if r.cost.peak_memory_kind}
    if len(kinds_of_memory) > 1:
        notes.append(f"Peak memory was measured in unequal ways: {', '.join(sorted(kinds_of_memory))}.")
    commits = {str(r.environment.get("git") or "unknown") for r in summary.records}
    if len(commits) > 1:
        notes.append(f"The cells come from more than one state of the code: {', '.join(sorted(commits))}.")
    return notes


def no_better_than_untrained(summary: Summary) -> str:
    """Say which rows learned nothing by the score that orders them; empty where all did, or nothing tells."""
    name = summary.headline
    gains = {row.name: gain for row in summary.rows if name and (gain := summary.gain(row, name)) is not None}
    if not name or not gains:
        return ""
    title, sign = summary.scores[name].title, 1 if summary.scores[name].higher_is_better else -1
    below = [row for row, gain in gains.items() if sign * gain <= 0]
    if len(below) == len(gains):
        return (
            f"No row is better than the untrained network by {title}: nothing was learned here. Train for more steps, "
            "or choose another learning rate."
        )
    return f"Not better than the untrained network by {title}: {', '.join(below)}." if below else ""


def _edges(row: Row) -> str:
    return ", ".join(f"{side} {key.removeprefix('method.')}" for key, side in row.edges.items())


def _budget_notes(summary: Summary) -> list[str]:
    """Say whether every method had the same chance to be tuned."""
    budgets: dict[int | None, dict[str, None]] = {}
    for row in summary.rows:
        if not row.untrained and "external" not in row.first.cell:
            budgets.setdefault(summary.budget(row), {})[row.name] = None
    if not budgets:
        return []
    if set(budgets) == {None}:
        return ["Hyperparameters were given, not tuned in these sweeps: equal effort is not shown here."]
    split = f"by {summary.selection_title} on the {summary.selection_split} split"
    if len(budgets) == 1:
        (count,) = budgets
        return [f"Equal tuning budget: {count} configurations for each row, chosen {split}."]
    listed = "; ".join(
        f"{'given, not tuned' if count is None else f'{count} tried'}: {_few(list(names))}"
        for count, names in sorted(budgets.items(), key=lambda item: item[0] or 0)
    )
    return [f"Unequal tuning budgets, so compare with care ({listed})."]


def _few(names: Sequence[str]) -> str:
    """Name some of many: leaderboard.csv says of each how many were tried."""
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:3])} and {len(names) - 3} others"


def _view_notes(summary: Summary) -> list[str]:
    """Say what rows of unequal numbers of views have in common: images seen, forward passes or neither."""
    trained = [row.first.cell for row in summary.rows if not row.untrained and "external" not in row.first.cell]
    views = [sum(kind["count"] for kind in cell["augmentation"]["views"].values()) for cell in trained]
    if len(set(views)) < 2:
        return []
    epochs = [cell["epochs"] for cell in trained]
    passes = [number * each for number, each in zip(views, epochs, strict=True)]
    numbers = f"{', '.join(map(str, sorted(set(views))[:-1]))} and {max(views)} views"
    if len(set(epochs)) == 1:
        return [f"Rows of {numbers} saw each image equally often: those of more views took more forward passes."]
    if len(set(passes)) == 1:
        return [
            f"Rows of {numbers} took equally many forward passes, so those of more views saw each image less often."
        ]
    return [f"Rows of {numbers} saw images unequally often and took unequal numbers of forward passes."]


def best_notes(summary: Summary, names: Sequence[str]) -> list[str]:
    """Say what bold means in the columns of some test scores, and what could not be tested."""
    found = [summary.best(name) for name in names]
    if not any(one.tested for one in found):
        return ["Bold: the best mean of its column. Differences were not tested: that takes three seeds in common."]
    least = [
        f"{one.least:.2g} ({summary.scores[name].title})"
        for name, one in zip(names, found, strict=True)
        if not math.isnan(one.least)
    ]
    notes = [
        f"Bold: the best mean of its column, and every row that Tukey's test (all rows, seeds as blocks) cannot tell "
        f"from it at {100 * LEVEL:.0f} %. Means over three seeds can be told apart from a difference of "
        f"{', '.join(least)}."
    ]
    untested = dict.fromkeys(summary.rows[i].name for one in found for i in one.untested)
    if untested:
        shown = [*list(untested)[:5], *([f"{len(untested) - 5} more"] if len(untested) > 5 else [])]
        notes.append(f"Too few seeds to say (fewer than three shared with the best): {', '.join(shown)}.")
    return notes


def machine(record: Record) -> str:
    """Say on what a record's times were taken."""
    hardware, threads, loader = (record.environment.get(key) for key in ("hardware", "threads", "loader"))
    return f"{hardware} with {threads} threads, {loader} loader"
