"""Notes below a task's tables: how rows were chosen, what is missing, and what bold means."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from regbench.benchmark.rundir.record import Record
from regbench.reports.rows.deviations import components, nested_deviations
from regbench.reports.rows.significance import LEVEL, POWER, images_for
from regbench.reports.rows.summary import Summary

# A note is one paragraph below a table: of what is listed in it, a reader sees the first few and
# how many more.
_FAILURES_SHOWN = 5
_UNTESTED_SHOWN = 5

UNITS = {"seed": "seeds", "search": "searches"}


def task_notes(summary: Summary) -> list[str]:
    """Say what a reader must know of a task beside its numbers."""
    notes = []
    if summary.on_test:
        notes.append(
            "Chosen on the test set: hyperparameters or the probe's learning rate were picked by "
            "scores on the split that the table reports, so its numbers are optimistic. Compare "
            "them with each other only."
        )
    return [
        *notes,
        *_budget_notes(summary),
        *_view_notes(summary),
        *_choice_notes(summary),
        *_missing_notes(summary),
        *_origin_notes(summary),
        *search_notes(summary),
        *machine_notes(summary),
    ]


def _choice_notes(summary: Summary) -> list[str]:
    """Say how rows were chosen among configurations, and which diverged or lie at an edge of
    what was tried.
    """
    notes = []
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
        notes.append(
            f"Tuned, but no configuration has its final scores yet: {', '.join(summary.waiting)}."
        )
    diverged = []
    for row in summary.rows:
        if row.diverged:
            diverged.append(f"{row.name} ({row.diverged} of {len(row.records)} cells)")
    if diverged:
        notes.append(
            "† diverged (loss not finite, or embeddings collapsed) and not counted in the means: "
            f"{', '.join(diverged)}."
        )
    edged = []
    for row in summary.rows:
        if row.edges:
            edges = ", ".join(
                f"{side} {key.removeprefix('method.')}" for key, side in row.edges.items()
            )
            edged.append(f"{row.name} ({edges})")
    if edged:
        listed = "; ".join(edged)
        notes.append(
            f"‡ chosen at the edge of what was tried, so a better value may lie beyond: {listed}."
        )
    return notes


def _missing_notes(summary: Summary) -> list[str]:
    """Say what is planned and not finished, and what failed."""
    notes = []
    # Rows of the table lack seeds; of other rows no cell has ended yet.
    absent = sum(row.missing for row in summary.rows) + sum(row.seeds for row in summary.missing)
    if absent:
        notes.append(
            f"Planned and not finished: {absent} {'cell' if absent == 1 else 'cells'}; n says of "
            "how many."
        )
    if summary.failures:
        kinds = Counter((cell.label or cell.cell_id, cell.failure) for cell in summary.failures)
        listed = []
        for (label, why), n in kinds.most_common(_FAILURES_SHOWN):
            listed.append(f"{label}, {n} {'cell' if n == 1 else 'cells'} ({why})")
        if len(kinds) > _FAILURES_SHOWN:
            listed.append(f"and {len(kinds) - _FAILURES_SHOWN} more kinds")
        counts = "; ".join(listed)
        notes.append(f"Failed, {len(summary.failures)} in all, and to be tried again: {counts}.")
    return notes


def _origin_notes(summary: Summary) -> list[str]:
    """Say where numbers do not compare, because machines, ways of measuring or the code differ."""
    notes = []
    # References have no times to compare.
    trained = [record for record in summary.records if not record.is_reference]
    finished = [record for record in trained if record.status == "done"]
    machines = set(map(machine, finished))
    if len(machines) > 1:
        notes.append(
            f"Times were measured on unequal machines: {'; '.join(sorted(machines))}. Compare "
            "within one."
        )
    kinds_of_memory = {
        record.cost.peak_memory_kind for record in trained if record.cost.peak_memory_kind
    }
    if len(kinds_of_memory) > 1:
        notes.append(
            f"Peak memory was measured in unequal ways: {', '.join(sorted(kinds_of_memory))}."
        )
    commits = {str(record.environment.get("git") or "unknown") for record in summary.records}
    if len(commits) > 1:
        notes.append(
            f"The cells come from more than one state of the code: {', '.join(sorted(commits))}."
        )
    return notes


def no_better_than_trivial(summary: Summary) -> str:
    """Say which rows learned nothing by the score that orders them.

    Empty where all did, or nothing tells.
    """
    if summary.headline is None:
        return ""
    score = summary.scores[summary.headline]
    below, compared = [], 0
    for row in summary.rows:
        gain = summary.gain(row, summary.headline)
        if gain is not None:
            compared += 1
            is_below = gain <= 0 if score.higher_is_better else gain >= 0
            if is_below:
                below.append(row.name)
    if not below:
        return ""
    trivial = summary.best_trivial(summary.headline)
    named = "the untrained network"
    if trivial is not None and "baseline" in trivial.first.cell:
        named = trivial.label
    if len(below) < compared:
        return f"Not better than {named} by {score.title}: {', '.join(below)}."
    if trivial is not None and "baseline" in trivial.first.cell:
        return (
            f"No row is better than {named} by {score.title}: this task measures no representation "
            "learning. Train for more steps, or take images on which pixels alone tell little, "
            "such as dataset=scenes."
        )
    return (
        f"No row is better than {named} by {score.title}: nothing was learned here. Train for more "
        "steps, or choose another learning rate."
    )


def _budget_notes(summary: Summary) -> list[str]:
    """Say whether every method had the same chance to be tuned."""
    budgets: dict[int | None, dict[str, None]] = {}
    per_searched: dict[int | None, set[int | None]] = {}
    for row in summary.methods:
        if "external" not in row.first.cell:  # nobody says how much published weights were tuned
            budget, entry = summary.budget(row), summary.chosen(row)
            budgets.setdefault(budget, {})[row.name] = None
            per_searched.setdefault(entry.setting.get("searched") if entry else None, set()).add(
                budget
            )
    if not budgets:
        return []
    if set(budgets) == {None}:
        return [
            "Hyperparameters were given, not tuned in these sweeps: equal effort is not shown here."
        ]
    split = f"by {summary.selection_title} on the {summary.selection_split} split"
    if len(budgets) == 1:
        (count,) = budgets
        return [f"Equal tuning budget: {count} configurations for each row, chosen {split}."]
    listed = []
    for count, names in sorted(budgets.items(), key=lambda item: item[0] or 0):
        tried = "given, not tuned" if count is None else f"{count} tried"
        listed.append(f"{tried}: {_few(list(names))}")
    if all(len(counts) == 1 for counts in per_searched.values()) and None not in per_searched:
        return [
            "Tuning budgets in proportion to the number of searched hyperparameters "
            f"({'; '.join(listed)})."
        ]
    return [f"Unequal tuning budgets, so compare with care ({'; '.join(listed)})."]


def _few(names: Sequence[str]) -> str:
    """Name some of many: leaderboard.csv says of each how many were tried."""
    return (
        ", ".join(names)
        if len(names) <= 6
        else f"{', '.join(names[:3])} and {len(names) - 3} others"
    )


def _view_notes(summary: Summary) -> list[str]:
    """Say what rows of unequal numbers of views have in common: images seen, forward passes or
    neither.
    """
    views, teachers, epochs, passes = set(), set(), set(), set()
    for row in summary.methods:
        cell = row.first.cell
        if "external" in cell:
            continue
        kinds = cell["augmentation"]["views"].values()
        number = sum(kind["count"] for kind in kinds)
        is_taught = cell["network"].get("teacher") == "ema"
        # A teacher sees the global views alone.
        taught = sum(kind["count"] for kind in kinds if not kind["local"]) if is_taught else 0
        views.add(number)
        teachers.add(is_taught)
        epochs.add(cell["epochs"])
        # A backward pass costs as much as two forward ones, and a teacher takes none.
        passes.add((3 * number + taught) * cell["epochs"])
    if len(views) < 2:
        return _teacher_notes(teachers, passes)
    *fewer, most = sorted(views)
    numbers = f"{', '.join(map(str, fewer))} and {most} views"
    if len(epochs) == 1:
        return [
            f"Rows of {numbers} saw each image equally often: those of more views took more "
            "forward passes."
        ]
    if len(passes) == 1:
        return [
            f"Rows of {numbers} took equally many forward passes, so those of more views saw each "
            "image less often."
        ]
    return [
        f"Rows of {numbers} saw images unequally often and took unequal numbers of forward passes."
    ]


def _teacher_notes(teachers: set[bool], passes: set[int]) -> list[str]:
    """Say what a teacher costs where some rows have one and took more passes."""
    if len(teachers) < 2 or len(passes) < 2:
        return []
    return [
        "Rows with an EMA teacher passed the global views once more, forward only: a third of a "
        "trained pass."
    ]


def best_notes(summary: Summary, names: Sequence[str]) -> list[str]:
    """Say what bold means in the columns of some test scores, and what could not be tested."""
    found = {name: summary.best(name) for name in names}
    plural = UNITS[summary.unit]
    if not any(best.tested for best in found.values()):
        why = f"that takes three {plural} in common"
        return [f"Bold: the best mean of its column. Differences were not tested: {why}."]
    least = []
    untested: dict[str, None] = {}
    for name, best in found.items():
        if not math.isnan(best.least):
            least.append(f"{best.least:.2g} ({summary.scores[name].title})")
        untested.update(dict.fromkeys(summary.rows[place].name for place in best.untested))
    notes = [
        f"Bold: the best mean of its column, and every row that Tukey's test (all rows, {plural} "
        f"as blocks, own spread added) cannot tell from it at {100 * LEVEL:.0f} %. Two rows that "
        f"scatter as all do on average can be told apart from a difference of {', '.join(least)} "
        f"on, over three {plural}."
    ]
    if untested:
        shown = list(untested)[:_UNTESTED_SHOWN]
        if len(untested) > _UNTESTED_SHOWN:
            shown.append(f"{len(untested) - _UNTESTED_SHOWN} more")
        notes.append(
            f"Too few {plural} to say (fewer than three shared with the best): {', '.join(shown)}."
        )
    return notes


def power_notes(summary: Summary) -> list[str]:
    """Say which differences of the headline score can be found here, and how many seeds and
    images others take.
    """
    headline = summary.headline
    if headline is None or summary.scores[headline].unit != "%":
        return []
    tukey = summary.tukey(headline)
    # One row has no spread of its own, and scores without any would promise to find any difference.
    if not tukey.deviation > 0:
        return []
    title, found = summary.scores[headline].title, tukey.power.detectable(tukey.seeds)
    one, half = tukey.power.seeds_for(1.0), tukey.power.seeds_for(0.5)
    plural = UNITS[summary.unit]
    accuracy = fmean(tukey.means.values())
    many, more = images_for(accuracy, 1.0), images_for(accuracy, 0.5)
    return [
        f"What this comparison can tell: with {tukey.seeds} {plural} of each of {tukey.rows} rows, "
        f"a true difference of {found:.2g} points of {title} is found with {100 * POWER:.0f} % "
        f"power at {100 * LEVEL:.0f} % (Tukey's test with its spread; normal approximation). A "
        f"difference of 1 point takes {one} {plural}, one of 0.5 points {half}. All {plural} have "
        "the same test images, whose own error they do not average out: it is below half of such "
        f"a difference with {many:,} and {more:,} test images (binomial variance at the rows' mean "
        f"of {accuracy:.0f} %; fewer are enough, as methods share the images)."
    ]


def search_notes(summary: Summary) -> list[str]:
    """Say what repeated searches make of the numbers, and how much of the variance is theirs."""
    if not any(row.repeated for row in summary.rows):
        return []
    notes = [
        "Searches were repeated: a mean, its ± and the test are over what each search chose, taken "
        "as the mean of its final seeds. So they hold for the outcome of tuning and training, and "
        "not for one set of hyperparameters. n: final runs, and in how many searches."
    ]
    methods = [row for row in summary.methods if row.repeated]
    for name in summary.leading:
        found = components(row.samples(name) for row in methods)
        if found is not None:
            notes.append(
                f"Standard deviation of {summary.scores[name].title} within a method: "
                f"{found.seed:.2f} points from the final seed and {found.search:.2f} from the "
                f"search, which has {100 * found.share:.0f} % of the variance of a single run "
                "(estimated over all rows)."
            )
    return notes


def machine_notes(summary: Summary) -> list[str]:
    """Say how much of the variance is the machine's, where runs of a row were done on
    processors of several models.
    """
    notes = []
    for name in summary.leading:
        models: set[str] = set()
        groups = []
        for row in summary.methods:
            # Runs of one search are compared, so that what the search gives does not count as the
            # machine's.
            searches: dict[int | None, dict[str, list[float]]] = {}
            own = set()
            for record in row.records:
                value = record.score(name, "test")
                if value is not None:
                    own.add(processor(record))
                    searches.setdefault(record.search, {}).setdefault(processor(record), []).append(
                        value
                    )
            if len(own) > 1:
                models |= own
                groups += list(searches.values())
        if not models:
            continue
        title, listed = summary.scores[name].title, "; ".join(sorted(models))
        found = nested_deviations(groups)
        if found is None:
            rest = "seed's and the search's" if summary.unit == "search" else "seed's"
            return [
                f"Runs of a row come from several machines ({listed}): too few to tell their part "
                f"from the {rest}."
            ]
        seed, of_machine = found
        notes.append(
            f"Standard deviation of {title} between machines ({listed}) within a row and search: "
            f"{of_machine:.2f} points, beside {seed:.2f} from the seed on one machine (over all "
            "rows with runs on several)."
        )
    return notes


def processor(record: Record) -> str:
    """Name the model of the GPU or CPU that a record comes from, without the number of its
    cores.
    """
    return str(record.environment.get("hardware")).rpartition(" cores of ")[2]


def machine(record: Record) -> str:
    """Say on what a record's times were taken."""
    hardware, threads, loader = (
        record.environment.get(key) for key in ("hardware", "threads", "loader")
    )
    return f"{hardware} with {threads} threads, {loader} loader"
