"""From records to the rows of a leaderboard: which cells belong together, which stand for a method.

A *task* is a data set, a backbone and a way to evaluate: accuracies compare within it, so each task has its
own leaderboard, whatever sweeps its cells come from. A *configuration* is a cell without its seed. A *row* is
a method in one setting (embedding dimension, batch size, epochs and the like). Where several configurations
were tried for a row, the one with the highest mean weighted-kNN top-1 on the tuning split stands for it,
which is the paper's protocol. Cells that the test split chose (the paper's second variant, its Table 13) are a task of
their own: they never stand in one ranking with the others.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.tuning_choice import TuningChoice
from regbench.reports.find.runs import Missing
from regbench.reports.rows.significance import LEVEL, Best, best

# The scores that a leaderboard shows and the figures draw, where they were measured; the last one orders the rows.
LEADING = ("knn_top1", "linear_top1")

# How a setting that varies is called in a table's head, where its own name is not it.
SETTING_NAMES = {"embedding_dim": "q", "batch_size": "batch", "epochs": "epochs"}

DASH = "–"

# Tuned for each method, or without effect on the result: these do not make another setting.
_TUNED = ("method.", "optimizer.", "seed", "external.")

# Of the network, what no evaluation sees.
_PROJECTOR = "network.hidden_dim"

# Of the evaluation, what accuracies of a leaderboard depend on; other protocols say what they did beside their scores.
_EVALUATION = ("evaluation.knn.", "evaluation.probe.", "evaluation.select_on")


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation (n − 1) over n seeds; spread is None for a single seed."""

    mean: float
    spread: float | None
    n: int


def stat(values: Iterable[float | None]) -> Stat | None:
    """The statistics of those values that are there, None if none is."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    n, mean = len(known), math.fsum(known) / len(known)
    return Stat(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (n - 1)) if n > 1 else None, n)


@dataclass(frozen=True)
class Configuration:
    """The cells that differ in their seed only."""

    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """Any of the cells, for what they share."""
        return self.records[0]

    @property
    def label(self) -> str:
        """Display name of the method."""
        return self.first.label

    @property
    def untrained(self) -> bool:
        """Whether this is the network as initialized."""
        return self.first.untrained

    @property
    def diverged(self) -> int:
        """How many of the cells diverged: they have no score."""
        return sum(r.status == "diverged" for r in self.records)

    @property
    def final(self) -> bool:
        """Whether any of the cells has its final scores."""
        return any(r.status == "done" for r in self.records)

    def score(self, name: str, split: str = "test") -> Stat | None:
        """Statistics of a score over the seeds."""
        return stat(r.score(name, split) for r in self.records)

    def by_seed(self, name: str, split: str = "test") -> dict[int, float]:
        """Seed -> score."""
        return {r.seed: value for r in self.records if (value := r.score(name, split)) is not None}

    def cost(self, name: str) -> Stat | None:
        """Statistics of a cost over the seeds. An untrained network has none of training's."""
        return None if self.untrained else stat(getattr(r.cost, name) for r in self.records)

    def at_end(self, name: str) -> Stat | None:
        """Statistics over the seeds of a measure of the training history's last epoch; diverged cells do not count."""
        return None if self.untrained else stat(r.at_end.get(name) for r in self.records if r.status == "done")


@dataclass(frozen=True)
class Row(Configuration):
    """The configuration that stands for a method in one setting.

    Attributes:
        settings: The settings that vary in the task, by their name in a table's head; "–" where they do not
            apply.
        tried: How many configurations it was chosen from.
        missing: How many more seeds are planned and not finished.
    """

    settings: dict[str, str]
    tried: int
    missing: int = 0

    @property
    def name(self) -> str:
        """Label with the varying settings, such as "SFRIK (L=2), q=1024"."""
        shown = [f"{k}={v}" for k, v in self.settings.items() if v != DASH]
        return ", ".join([self.label, *shown])


@dataclass(frozen=True)
class MissingRow:
    """A method in one setting of which cells are planned and none is finished.

    Attributes:
        settings: As those of a `Row`.
        seeds: How many are planned.
    """

    label: str
    settings: dict[str, str]
    seeds: int


@dataclass(eq=False)
class Summary:
    """One task.

    Attributes:
        name: The sweeps that the cells come from, with the task where that does not tell it from others.
        sweeps: Their names.
        records: The good records, each cell once.
        configurations: All configurations tried, in the order of their labels.
        rows: One per method and setting, best first, untrained last.
        notes: What a reader must know beside the numbers.
        on_test: Whether the test split chose: such numbers do not compare with those of other summaries.
        missing: What is planned and has no row.
        failures: Cells whose last attempt failed.
        choices: What the tunings of these cells chose, by the path of their `tuning_choice.json`.
    """

    name: str
    sweeps: tuple[str, ...]
    records: tuple[Record, ...]
    configurations: list[Configuration] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    on_test: bool = False
    missing: list[MissingRow] = field(default_factory=list)
    failures: list[Missing] = field(default_factory=list)
    choices: dict[Path, TuningChoice] = field(default_factory=dict)

    @functools.cached_property
    def scores(self) -> dict[str, Score]:
        """One score of each name, for what they share, in the order of the records; what has no best comes last."""
        found = {score.name: score for record in self.records for score in reversed(record.scores)}
        named = dict.fromkeys(score.name for record in self.records for score in record.scores)
        return {name: found[name] for name in sorted(named, key=lambda name: found[name].higher_is_better is None)}

    @functools.cached_property
    def leading(self) -> tuple[str, ...]:
        """The scores of the leaderboard: those of `LEADING` that a row has, or else the first that has a best."""
        measured = [name for name, score in self.scores.items() if score.higher_is_better is not None]
        measured = [name for name in measured if any(row.score(name) for row in self.rows)]
        return tuple(name for name in LEADING if name in measured) or tuple(measured[:1])

    @property
    def headline(self) -> str | None:
        """The score that orders the rows; None where there is none."""
        return self.leading[-1] if self.leading else None

    @property
    def selection_split(self) -> str:
        """The split that chose among configurations."""
        return "test" if self.on_test else "tuning"

    @functools.cached_property
    def selection(self) -> str:
        """The score that chose among configurations."""
        chose = any(record.score("selection_top1", self.selection_split) is not None for record in self.records)
        return "selection_top1" if chose else "knn_top1"

    @property
    def selection_title(self) -> str:
        """What tables call that score."""
        return self.scores[self.selection].title if self.selection in self.scores else "a score"

    @functools.cache  # noqa: B019  # a summary lives as long as its report
    def best(self, name: str) -> Best:
        """Find the rows with the best mean of a test score, or one that cannot be told from it; none without a best."""
        higher = self.scores[name].higher_is_better
        return Best() if higher is None else best([row.by_seed(name) for row in self.rows], higher_is_better=higher)

    def budget(self, row: Row) -> int | None:
        """How many configurations the hyperparameters of a row were chosen from; None if they were given."""
        place = {"label": row.label, **_task_plan(self), **_row_plan(row)}
        stated = [h.get("budget") for r in row.records if (h := r.choice.get("hyperparameters"))]
        if any(number is not None for number in stated):
            # The record states the largest of its tuning; the tuning's own choice says it of each method.
            for choice in self.choices.values():
                for entry in choice.choices:
                    if {"label": entry.label, **entry.setting} == place:
                        return len(entry.ranking)
        return next((int(number) for number in stated if number is not None), row.tried if row.tried > 1 else None)

    def gain(self, row: Row, name: str) -> float | None:
        """Difference of the means of a test score, row minus the untrained row."""
        base = next((s for r in self.rows if r.untrained and (s := r.score(name))), None)
        ours = row.score(name)
        return None if row.untrained or ours is None or base is None else ours.mean - base.mean


@functools.cache
def is_setting(key: str) -> bool:
    """Whether a flat key belongs to the setting of a comparison; the others are hyperparameters or of one protocol."""
    if key.startswith("evaluation."):
        return key.startswith(_EVALUATION) and not key.endswith(("learning_rates", "other_k"))
    return not key.startswith(_TUNED)


def summarize(
    records: Sequence[Record],
    missing: Sequence[Missing] = (),
    choices: Mapping[Path, TuningChoice] | None = None,
) -> list[Summary]:
    """One summary for each task, in the order of the records; those that the test split chose come last.

    Args:
        records: The good ones.
        missing: Cells that are planned or have begun and have no record.
        choices: What tunings chose, by the path of their `tuning_choice.json`.
    """
    settings = {r: _settings(r) for r in records}
    tasks: dict[object, dict[str, Record]] = {}
    sweeps: dict[object, dict[str, None]] = {}
    for r in records:
        task = _task(r, settings[r])
        cells = tasks.setdefault(task, {})
        if r.cell_id not in cells or cells[r.cell_id].status == "tuned":  # a cell that two sweeps share counts once
            cells[r.cell_id] = r
        sweeps.setdefault(task, {})[r.sweep] = None
    on_test = {task: next(iter(cells.values())).on_test for task, cells in tasks.items()}
    names = {task: " + ".join(sweeps[task]) + " (chosen on the test set)" * on_test[task] for task in tasks}
    titles = Counter(names.values())
    summaries: list[Summary] = []
    for task in sorted(tasks, key=lambda task: on_test[task]):
        name, cells = names[task], tasks[task]
        if titles[name] > 1:
            r = next(iter(cells.values()))
            name += f": {r.cell['dataset']['name']}, {r.backbone}"
        while name in {s.name for s in summaries}:
            name += " (another evaluation or image size)"
        summary = Summary(name, tuple(sweeps[task]), tuple(cells.values()), on_test=on_test[task])
        named = {str(r.choice.get("hyperparameters", {}).get("record")) for r in summary.records}
        summary.choices = {
            path: choice
            for path, choice in (choices or {}).items()
            if path.absolute().parent.name in summary.sweeps or str(path) in named
        }
        summaries.append(summary)
    shown = {id(s): _varying_settings(settings[r] for r in s.records if not r.untrained) for s in summaries}
    unchosen = {id(s): _fill(s, settings, shown[id(s)]) for s in summaries}
    _place_missing(summaries, shown, missing)
    for summary in summaries:
        summary.notes = _notes(summary, *unchosen[id(summary)])
    return summaries


_Settings = tuple[tuple[str, str], ...]


def _task(record: Record, settings: _Settings) -> object:
    """The settings that an accuracy depends on beside the method and its training."""
    parts = ("dataset.", "network.", "evaluation.")
    return record.on_test, *((k, v) for k, v in settings if k.startswith(parts) and not k.startswith(_PROJECTOR))


def _settings(record: Record) -> _Settings:
    return tuple(sorted(item for item in record.settings.items() if is_setting(item[0])))


def _fill(summary: Summary, settings: Mapping[Record, _Settings], shown: Sequence[str]) -> tuple[list[str], list[str]]:
    """Makes configurations and rows; returns the methods that nothing chose, and those without a final score."""
    groups: dict[object, dict[object, dict[int, Record]]] = {}
    for r in summary.records:
        if r.untrained:
            # Neither the method nor its projector touches an untrained representation: one row, a cell a
            # seed.
            row: object = ""
            configuration: object = ""
        else:
            row = (r.label, settings[r])
            configuration = tuple((k, v) for k, v in r.settings.items() if k != "seed")
        groups.setdefault(row, {}).setdefault(configuration, {})[r.seed] = r

    unchosen, waiting = [], []
    for group in groups.values():
        configurations = [Configuration(tuple(seeds.values())) for seeds in group.values()]
        summary.configurations += configurations
        described = f"{configurations[0].label} ({len(configurations)})"
        if not any(c.final for c in configurations) and any(
            r.status == "tuned" for c in configurations for r in c.records
        ):
            waiting.append(described)
            continue
        chosen = _choose(configurations, summary.selection, summary.selection_split)
        if chosen is None:
            unchosen.append(described)
            continue
        cell = {} if chosen.untrained else chosen.first.settings
        places = {_setting_name(k): DASH if (v := cell.get(k, "null")) == "null" else v for k in shown}
        records = tuple(r for r in chosen.records if r.status != "tuned")
        summary.rows.append(Row(records, places, len(configurations)))
    headline = summary.scores[summary.headline] if summary.headline else None

    def order(row: Row) -> tuple[bool, float]:
        found = row.score(headline.name) if headline else None
        if headline is None or found is None:
            return row.untrained, math.inf
        return row.untrained, -found.mean if headline.higher_is_better else found.mean

    summary.rows.sort(key=order)
    return unchosen, waiting


def _setting_name(key: str) -> str:
    return SETTING_NAMES.get(key, key.rpartition(".")[2])


def _choose(configurations: Sequence[Configuration], score: str, split: str) -> Configuration | None:
    """The configuration that the selection split prefers; None if it was not asked about each of several."""
    alive = [c for c in configurations if c.final] or configurations[:1]
    if len(alive) == 1:
        return alive[0]
    tuning = [c.score(score, split) for c in alive]
    known = [(t.mean, i) for i, t in enumerate(tuning) if t is not None]
    return alive[max(known)[1]] if len(known) == len(alive) else None


def _varying_settings(settings: Iterable[_Settings]) -> list[str]:
    """Settings that tell the trained cells of a task apart, without those that say the same twice."""
    cells = [dict(items) for items in dict.fromkeys(settings)]
    keys = [*SETTING_NAMES, *sorted({k for cell in cells for k in cell} - set(SETTING_NAMES))]
    shown: list[str] = []
    groups = 1
    for key in keys:
        split = len({tuple(cell.get(k) for k in (*shown, key)) for cell in cells})
        if split > groups:
            shown.append(key)
            groups = split
    return shown


def _place_missing(
    summaries: Sequence[Summary], shown: Mapping[int, Sequence[str]], missing: Sequence[Missing]
) -> None:
    """Gives each cell without a record to the row that it belongs to, as far as its plan tells."""
    groups: dict[tuple[object, ...], list[Missing]] = {}
    for cell in missing:
        groups.setdefault((cell.sweep, cell.label, *sorted(cell.plan.items())), []).append(cell)
    for cells in groups.values():
        plan, label = cells[0].plan, cells[0].label
        places = [s for s in summaries if cells[0].sweep in s.sweeps and _agrees(plan, _task_plan(s))]
        for summary in places:
            summary.failures += [cell for cell in cells if cell.failure]
        if not label or len(places) != 1:
            continue
        (summary,) = places
        finished = {r.cell_id for r in summary.records}
        seeds = {cell.seed for cell in cells if cell.cell_id not in finished}
        rows = [i for i, row in enumerate(summary.rows) if row.label == label and _agrees(plan, _row_plan(row))]
        if len(rows) == 1:
            row = summary.rows[rows[0]]
            more = len(seeds - {r.seed for r in row.records})
            summary.rows[rows[0]] = replace(row, missing=row.missing + more)
        elif not rows and seeds:
            settings = {_setting_name(k): str(plan.get(k, DASH)) for k in shown[id(summary)]}
            summary.missing.append(MissingRow(label, settings, len(seeds)))


def _agrees(plan: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    """Whether nothing that the plan says of a cell speaks against a place in a table."""
    return all(plan.get(key) in (None, value) for key, value in place.items())


def _task_plan(summary: Summary) -> dict[str, Any]:
    cell = summary.records[0].cell
    return {"dataset": cell["dataset"]["name"], "backbone": summary.records[0].backbone}


def _row_plan(row: Row) -> dict[str, Any]:
    return {} if row.untrained else {key: row.first.cell[key] for key in SETTING_NAMES}


def _notes(summary: Summary, unchosen: list[str], waiting: list[str]) -> list[str]:
    notes = []
    if summary.on_test:
        notes.append(
            "Chosen on the test set: hyperparameters or the probe's learning rate were picked by scores on the "
            "split that the table reports, so its numbers are optimistic. Compare them with each other only."
        )
    notes += _budget_notes(summary)
    chosen_by = f"{summary.selection_title} on the {summary.selection_split} split"
    if any(row.tried > 1 for row in summary.rows):
        notes.append(
            "Where several hyperparameters were tried, the row is the one with the highest "
            f"{chosen_by}; all are listed under Hyperparameters."
        )
    if unchosen:
        notes.append(
            "Not in the table, because several hyperparameters were tried and not all have a "
            f"{chosen_by} to choose by: {', '.join(unchosen)}."
        )
    if waiting:
        notes.append(f"Tuned, but no configuration has its final scores yet: {', '.join(waiting)}.")
    if diverged := [row for row in summary.rows if row.diverged]:
        counts = ", ".join(f"{row.name} ({row.diverged} of {len(row.records)} cells)" for row in diverged)
        notes.append(f"† diverged (loss not finite, or embeddings collapsed) and not counted in the means: {counts}.")
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
    machines = {_machine(r) for r in trained if r.status == "done"}
    if len(machines) > 1:
        notes.append(f"Times were measured on unequal machines: {'; '.join(sorted(machines))}. Compare within one.")
    kinds_of_memory = {r.cost.peak_memory_kind for r in trained if r.cost.peak_memory_kind}
    if len(kinds_of_memory) > 1:
        notes.append(f"Peak memory was measured in unequal ways: {', '.join(sorted(kinds_of_memory))}.")
    commits = {str(r.environment.get("git") or "unknown") for r in summary.records}
    if len(commits) > 1:
        notes.append(f"The cells come from more than one state of the code: {', '.join(sorted(commits))}.")
    return notes


def _budget_notes(summary: Summary) -> list[str]:
    """Whether every method had the same chance to be tuned."""
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
        f"{'given, not tuned' if count is None else f'{count} tried'}: {', '.join(names)}"
        for count, names in sorted(budgets.items(), key=lambda item: item[0] or 0)
    )
    return [f"Unequal tuning budgets, so compare with care ({listed})."]


def best_notes(summary: Summary, names: Sequence[str]) -> list[str]:
    """What bold means in the columns of some test scores, in one line, and what could not be tested."""
    found = [summary.best(name) for name in names]
    tested = max((one.tested for one in found), default=0)
    if not tested:
        return [
            "Bold: the best mean of its column. Differences were not tested: a paired test takes three seeds that two "
            "rows share."
        ]
    notes = [
        "Bold: the best mean of its column, and every row that a paired t-test over shared seeds cannot tell from it "
        f"at {100 * LEVEL:.0f} % (Holm's correction for up to {tested} comparisons with the best)."
    ]
    notes += [note for name, one in zip(names, found, strict=True) if (note := _crossing(summary, name, one))]
    untested = dict.fromkeys(summary.rows[i].name for one in found for i in one.untested)
    if untested:
        shown = [*list(untested)[:5], *([f"{len(untested) - 5} more"] if len(untested) > 5 else [])]
        notes.append(f"Too few seeds to say (fewer than three shared with the best): {', '.join(shown)}.")
    return notes


def _crossing(summary: Summary, name: str, one: Best) -> str:
    """Why a mean is bold though a higher one is not; empty where there is no such one."""
    means = {i: s.mean for i, row in enumerate(summary.rows) if (s := row.score(name))}
    sign = 1 if summary.scores[name].higher_is_better else -1
    low = min(one.rows, key=lambda i: sign * means[i], default=None)
    high = max(means.keys() - one.rows, key=lambda i: sign * means[i], default=None)
    if low is None or high is None or sign * means[high] <= sign * means[low]:
        return ""
    below, above = (f"{summary.rows[i].name} ({means[i]:.2f})" for i in (low, high))
    why = (
        "shares too few seeds with the best to be tested"
        if high in one.untested
        else "differs from it by much the same on every seed, which the test can tell"
    )
    score = summary.scores[name].title
    return (
        f"No mistake: in {score}, {below} is bold and {above} is not. The first has few seeds or varies "
        f"so much over them that it cannot be told from the best; the second {why}."
    )


def _machine(record: Record) -> str:
    hardware, threads, loader = (record.environment.get(key) for key in ("hardware", "threads", "loader"))
    return f"{hardware} with {threads} threads, {loader} loader"
