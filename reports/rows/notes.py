"""Notes below a task's tables and curves: how rows were chosen, what is missing, what bold means.

A note that does not apply is an empty text, and notes that do not are an empty list.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from regbench.benchmark.rundir.record import Record, Score
from regbench.reports.find.check import several_contents
from regbench.reports.rows.deviations import nested_deviations
from regbench.reports.rows.significance import LEVEL, POWER, images_for
from regbench.reports.rows.summary import CONTENT, MIXED, Row, Summary, mean_of
from regbench.text import counted, few

UNITS = {"seed": "seeds", "search": "searches", MIXED: "seeds or searches"}

GATE_POINTS = 30
"""Points of accuracy by which labels must lead the best untrained row: below it a task measures
little.
"""


def task_notes(summary: Summary) -> list[str]:
    """List what a reader must know about a task besides its numbers."""
    notes = []
    if summary.on_test:
        notes.append(
            "Chosen on the test set: hyperparameters or the probe's learning rate were picked by "
            "scores on the split that the table reports, so its numbers are optimistic. Compare "
            "them with each other only."
        )
    contents = "; ".join(several_contents(summary.all_records))
    if contents:
        notes.append(f"The cells saw unequal images, so compare within one content: {contents}.")
    notes.append(_budget(summary))
    diverged, at_edge = [], []
    for row in summary.rows:
        if row.diverged:
            diverged.append(f"{row.name} ({row.diverged} of {counted(len(row.records), 'cell')})")
        edges = [f"{side} {key.removeprefix('method.')}" for key, side in row.edges.items()]
        if edges:
            at_edge.append(f"{row.name} ({', '.join(edges)})")
    for beginning, names in (
        (
            "Not in the table, as not all of several configurations have a score to choose by",
            summary.unchosen,
        ),
        ("Not in the table, as tuned without final scores yet", summary.waiting),
        (
            "† diverged (loss not finite, or embeddings collapsed) and not counted in the means",
            diverged,
        ),
        ("‡ chosen at the edge of what was tried, so a better value may lie beyond", at_edge),
    ):
        if names:
            notes.append(f"{beginning}: {'; '.join(names)}.")
    notes += [_missing(summary), _origins(summary), _repeated(summary), _machines(summary)]
    return list(filter(None, notes))


def _budget(summary: Summary) -> str:
    """Describe whether every method had the same chance to be tuned."""
    budgets: dict[int | None, list[str]] = {}
    per_searched: dict[int | None, set[int | None]] = {}
    for row in summary.methods:
        if "external" not in row.first.cell:  # nobody says how much published weights were tuned
            budget, entry = summary.budget(row), summary.chosen(row)
            budgets.setdefault(budget, []).append(row.name)
            searched = entry.setting.get("searched") if entry else None
            per_searched.setdefault(searched, set()).add(budget)
    if not budgets:
        return ""
    if set(budgets) == {None}:
        return (
            "Hyperparameters were given, not tuned in these sweeps: equal effort is not shown here."
        )
    names_of_scores = {choice.score for choice in summary.choices.values()} & summary.scores.keys()
    titles = {summary.scores[name].title for name in names_of_scores} or {summary.selection_title}
    by = " or ".join(sorted(titles))
    chosen = f"chosen by {by} on the {summary.selection_split} split"
    if len(budgets) == 1:
        budget_of_all = counted(max(filter(None, budgets)), "configuration")
        return f"Equal tuning budget: {budget_of_all} for each row, {chosen}."
    listed = []
    for count, names in sorted(budgets.items(), key=lambda item: item[0] or 0):
        tried = "given, not tuned" if count is None else f"{count} tried"
        listed.append(f"{tried} ({few(names, between='; ')})")
    budgets_of_rows = ", ".join(listed)
    if None not in per_searched and all(len(counts) == 1 for counts in per_searched.values()):
        return (
            "Tuning budgets in proportion to the number of searched hyperparameters, "
            f"{chosen}: {budgets_of_rows}."
        )
    return f"Unequal tuning budgets, so compare with care, {chosen}: {budgets_of_rows}."


def _missing(summary: Summary) -> str:
    """Count what is planned and not finished, and what failed."""
    texts = []
    # Rows of the table lack seeds; of other rows no cell has ended yet.
    absent = sum(row.missing for row in summary.rows) + sum(row.seeds for row in summary.missing)
    if absent:
        texts.append(f"Planned and not finished: {counted(absent, 'cell')}; n says of how many.")
    if summary.failures:
        kinds = Counter((cell.label or cell.cell_id, cell.failure) for cell in summary.failures)
        counts = [
            f"{label}, {counted(n, 'cell')} ({why})" for (label, why), n in kinds.most_common()
        ]
        number = len(summary.failures)
        texts.append(
            f"Failed, {number} in all, and to be tried again: {few(counts, between='; ')}."
        )
    return " ".join(texts)


def _origins(summary: Summary) -> str:
    """Name machines, ways of measuring and states of the code, where there are several."""
    # References have no times to compare.
    trained = [record for record in summary.records if not record.is_reference]
    machines = {machine(record) for record in trained if record.status == "done"}
    memory = set(filter(None, (record.cost.peak_memory_kind for record in trained)))
    code = {str(record.environment.get("git") or "unknown") for record in summary.records}
    found = {"machines": machines, "measures of peak memory": memory, "states of the code": code}
    several = {what: different for what, different in found.items() if len(different) > 1}
    texts = [f"{what} ({'; '.join(sorted(different))})" for what, different in several.items()]
    if not texts:
        return ""
    return f"The cells come from unequal {', '.join(texts)}: compare times and memory within one."


def way_notes(summary: Summary) -> list[str]:
    """Describe where the share of the way begins and ends, by each score that has one."""
    ends = []
    for score, trivial, lead in _leads_of_labels(summary):
        if lead > 0:
            ends.append(f"{score.title} {trivial.label} ({lead:.1f} away)")
    if not ends:
        return []
    notes = [
        "The share of the way: 100 is the same network supervised, and 0 the best of the rows that "
        f"nothing was trained for: by {', by '.join(ends)}."
    ]
    # A list, because a stranger's cell may hold anything, such as a value without a hash.
    named = [row.first.cell.get("baseline") for row in summary.rows]
    has_both = "hog" in named and "random_patches" in named
    if CONTENT not in summary.leading and not has_both:
        notes.append(
            "Without baseline=hog and baseline=random_patches among the rows the 0 may be too low."
        )
    return notes


def _leads_of_labels(summary: Summary) -> Iterator[tuple[Score, Row, float]]:
    """Yield each leading score that untrained and supervised rows have, the best untrained row, and
    by how much the supervised one is better, to a tenth.
    """
    for name in summary.leading:
        score, trivial = summary.scores[name], summary.best_trivial(name)
        supervised = summary.supervised(name)
        if trivial is not None and supervised is not None:
            lead = score.sign * (mean_of(supervised, name) - mean_of(trivial, name))
            yield score, trivial, round(lead, 1)


def task_gate(summary: Summary) -> str:
    """Warn of a task on which labels lead the best untrained row by less than `GATE_POINTS`."""
    narrow = []
    for score, trivial, lead in _leads_of_labels(summary):
        if score.unit == "%" and lead < GATE_POINTS:
            narrow.append(f"{lead:.1f} points of {score.title} ({trivial.label})")
    if not narrow:
        return ""
    return (
        f"This task measures little: labels lead the best untrained row by {' and '.join(narrow)}; "
        f"a comparison of methods needs {GATE_POINTS} by each."
    )


def no_better_than_trivial(summary: Summary) -> str:
    """Name the rows that learned nothing, by each score of the leaderboard."""
    texts = []
    gained_nothing = False
    for name in summary.leading:
        score, trivial = summary.scores[name], summary.best_trivial(name)
        gains = {row.name: summary.gain(row, name) for row in summary.rows}
        compared = {row: gain for row, gain in gains.items() if gain is not None}
        below = [row for row, gain in compared.items() if score.sign * gain <= 0]
        if trivial is None or not below:
            continue
        named = trivial.label if "baseline" in trivial.first.cell else "the untrained network"
        if len(below) < len(compared):
            texts.append(f"Not better than {named} by {score.title}: {'; '.join(below)}.")
        else:
            texts.append(f"No row is better than {named} by {score.title}.")
            gained_nothing = True
    if gained_nothing:
        texts.append(
            "Training has gained nothing there: train for more steps, choose another learning rate "
            "or other images."
        )
    return " ".join(texts)


def best_notes(summary: Summary, names: Sequence[str]) -> list[str]:
    """Describe what bold means in the columns of some test scores, and what was not tested."""
    found = {name: summary.best(name) for name in names}
    units, bold = UNITS[summary.unit], "Bold: the best mean of its column, supervised rows aside"
    if not any(best.tested for best in found.values()):
        return [f"{bold}. Differences from it were not tested: that takes three {units} in common."]
    least = []
    untested: dict[str, None] = {}
    for name, best in found.items():
        if not math.isnan(best.least):
            least.append(f"{best.least:.2g} ({summary.scores[name].title})")
        untested |= dict.fromkeys(summary.rows[place].name for place in best.untested)
    notes = [
        f"{bold}, and every row that is not significantly different from it at {100 * LEVEL:.0f} % "
        f"by Tukey's test (all these rows, {units} as blocks, own variance added). Two methods "
        "that scatter as all do on average are significantly different from a difference of "
        f"{', '.join(least)} on, over three {units}."
    ]
    if untested:
        notes.append(
            f"Not tested, with fewer than three {units} shared with the best: "
            f"{few(list(untested), between='; ')}."
        )
    return notes


def power_notes(summary: Summary) -> list[str]:
    """Describe which differences of the headline score can be found here, and how many seeds and
    images others take.
    """
    headline = summary.headline
    if headline is None or summary.scores[headline].unit != "%":
        return []
    tukey = summary.tukey(headline)
    # A single row has no variance, and scores without any would promise to find every difference.
    # Seeds and searches have a variance each. Without seeds of methods, that is of untrained rows.
    if not tukey.seeds or not tukey.power.deviation > 0 or summary.unit == MIXED:
        return []
    title, found = summary.scores[headline].title, tukey.power.detectable(tukey.seeds)
    one, half = tukey.power.seeds_for(1.0), tukey.power.seeds_for(0.5)
    plural = UNITS[summary.unit]
    text = (
        f"What this comparison can tell: with {tukey.seeds} {plural} of each of {tukey.rows} rows, "
        f"a true difference of {found:.2g} points of {title} between methods is found with "
        f"{100 * POWER:.0f} % power at {100 * LEVEL:.0f} % (Tukey's test with its variance; normal "
        f"approximation). A difference of 1 point takes {one} {plural}, one of 0.5 points {half}."
    )
    # R² has another variance.
    if headline.endswith(("top1", "recall1")):
        accuracy = fmean(tukey.means.values())
        many, more = images_for(accuracy, 1.0), images_for(accuracy, 0.5)
        text += (
            f" All {plural} have the same test images, whose own error they do not average out: it "
            f"is below half of such a difference with {many:,} and {more:,} test images (binomial "
            f"variance at the rows' mean of {accuracy:.0f} %; fewer are enough, as methods share "
            "the images)."
        )
    return [text]


def _repeated(summary: Summary) -> str:
    """Describe what numbers mean if searches were repeated, and the searches' share of variance."""
    methods = [row for row in summary.methods if row.repeated]
    if not methods:
        return ""
    texts = [
        "Searches were repeated: a mean, its ± and the test are over what each search chose, taken "
        "as the mean of its final seeds. So they hold for the outcome of tuning and training, and "
        "not for one set of hyperparameters. n: final runs, and in how many searches."
    ]
    for name in summary.leading:
        found = nested_deviations(row.samples(name) for row in methods)
        if found is not None:
            seed, search = found
            share = search**2 / (seed**2 + search**2) if seed or search else 0.0
            texts.append(
                f"Standard deviation of {summary.scores[name].title} within a method: "
                f"{seed:.2f} points from the final seed and {search:.2f} from the "
                f"search, which has {100 * share:.0f} % of the variance of a single run "
                "(estimated over all rows)."
            )
    return " ".join(texts)


def _machines(summary: Summary) -> str:
    """Describe how much of the variance is the machine's, where runs of a row were done on
    processors of several models.
    """
    texts = []
    for name in summary.leading:
        models: set[str] = set()
        groups: list[dict[str, list[float]]] = []
        for row in summary.methods:
            # Only runs of the same search are compared, so that differences between searches do not
            # count as the machine's.
            searches: dict[int | None, dict[str, list[float]]] = {}
            for record in row.records:
                value = record.score(name, "test")
                if value is not None:
                    of_search = searches.setdefault(record.search, {})
                    of_search.setdefault(processor(record), []).append(value)
            own = set().union(*searches.values())
            if len(own) > 1:
                models |= own
                groups += searches.values()
        found = nested_deviations(groups)
        if found is not None:
            seed, of_machine = found
            texts.append(
                f"Standard deviation of {summary.scores[name].title} between machines "
                f"({'; '.join(sorted(models))}) within a row and search: {of_machine:.2f} points, "
                f"beside {seed:.2f} from the seed on one machine (over all rows with runs on "
                "several)."
            )
    return " ".join(texts)


def processor(record: Record) -> str:
    """Return the model of the GPU or CPU that a record comes from, without the number of its
    cores.
    """
    return re.sub(r"\d+ cores of ", "", str(record.environment.get("hardware")))


def machine(record: Record) -> str:
    """Describe what a record's times were taken on."""
    said = record.environment.get
    return f"{said('hardware')} with {said('threads')} threads, {said('loader')} loader"


def curve_notes(summary: Summary) -> list[str]:
    """Describe the curves: on which split, how often, and on what hardware their time was taken."""
    splits: dict[str, None] = {}
    intervals, machines = set(), set()
    for row in summary.rows:
        for record in row.records:
            if record.measured:
                splits |= dict.fromkeys(each.score.split for each in record.measured)
                intervals.add(int(record.cell["evaluation"]["every_epochs"]))
                machines.add(machine(record))
    how_often = "each epoch"
    if intervals != {1}:
        how_often = f"every {' or '.join(map(str, sorted(intervals)))} epochs and after the last"
    where = "; ".join(sorted(machines))
    if len(machines) > 1:
        where = f"unequal machines, so compare within one: {where}"
    return [
        f"Accuracy while training is of the {' and '.join(splits)} split, after {how_often}.",
        f"Its time is that of training alone, without checkpoints and evaluations, on {where}.",
    ]
