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
from regbench.files import cell_id
from regbench.reports.find.runs import Missing
from regbench.reports.rows.significance import Best, Tukey, best

# The scores that a leaderboard shows and the figures draw, where they were measured; the last one orders the rows.
LEADING = ("knn_top1", "linear_top1")

# How a setting that varies is called in a table's head, where its own name is not it.
SETTING_NAMES = {"embedding_dim": "q", "batch_size": "batch", "epochs": "epochs"}

DASH = "–"

# Tuned for each method, or without effect on the result: these do not make another setting.
_TUNED = ("method.", "optimizer.", "seed", "external.")

# Of the network, what no evaluation sees.
_TRAINING_ONLY = ("network.projector.", "network.statistics")

# Of the evaluation, what accuracies of a leaderboard depend on; other protocols say what they did beside their scores.
_EVALUATION = ("evaluation.knn.", "evaluation.probe.", "evaluation.select_on")


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation (n − 1) over n seeds; spread is None for a single seed."""

    mean: float
    spread: float | None
    n: int

    def over(self, divisor: float) -> Stat:
        """Return the statistics of the values divided by a number."""
        return Stat(self.mean / divisor, self.spread and self.spread / divisor, self.n)


def stat(values: Iterable[float | None]) -> Stat | None:
    """Compute the statistics of the values that are known; None without any."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    n, mean = len(known), math.fsum(known) / len(known)
    return Stat(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (n - 1)) if n > 1 else None, n)


@dataclass(frozen=True)
class Configuration:
    """The cells that differ in their seed only."""

    records: tuple[Record, ...]

    def place(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Return the label and those settings, empty where they do not apply: what tells places in a table apart."""
        return self.label, *(self.first.settings.get(key, "") for key in keys)

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
        """Return the statistics of a score over the seeds."""
        return stat(r.score(name, split) for r in self.records)

    def by_seed(self, name: str) -> dict[int, float]:
        """Return seed -> score on the test split."""
        return {r.seed: value for r in self.records if (value := r.score(name, "test")) is not None}

    def cost(self, name: str) -> Stat | None:
        """Return the statistics of a cost over the seeds; None of an untrained network."""
        return None if self.untrained else stat(getattr(r.cost, name) for r in self.records)

    def at_end(self, name: str) -> Stat | None:
        """Return the statistics of a measure in the last epoch of training; diverged cells do not count."""
        return None if self.untrained else stat(r.at_end.get(name) for r in self.records if r.status != "diverged")


def of_same_seeds(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Return the configurations with the seeds that all of them have, if any: the chosen ones may have more."""
    seeds = set.intersection(*({r.seed for r in c.records} for c in configurations))
    return [Configuration(tuple(r for r in c.records if r.seed in seeds or not seeds)) for c in configurations]


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
    def edges(self) -> dict[str, str]:
        """Hyperparameters beyond whose value nothing was tried, see `ChosenConfiguration.edges`."""
        return next((h.get("edges", {}) for r in self.records if (h := r.choice.get("hyperparameters"))), {})

    @functools.cached_property
    def setting(self) -> str:
        """The varying settings, such as "q=1024, batch=256"; empty without any."""
        return ", ".join(f"{k}={v}" for k, v in self.settings.items() if v != DASH)

    @functools.cached_property
    def name(self) -> str:
        """Label with the varying settings, such as "SFRIK (L=2), q=1024"."""
        return ", ".join([self.label, *filter(None, [self.setting])])


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
        choices: What the tunings of these cells chose, by the path of their file.
        varying: The settings that tell its trained cells apart, by their full names.
        configurations: All configurations tried, in the order of their labels.
        rows: One per method and setting, best first, untrained last.
        unchosen: Methods of which nothing chose among several configurations, with their number.
        waiting: Methods that were tuned and have no final score yet, with the number of their configurations.
        missing: What is planned and has no row.
        failures: Cells whose last attempt failed.
        short: Configurations that searches trained for fewer epochs than what they chose; the others have none of them.
    """

    name: str
    sweeps: tuple[str, ...]
    records: tuple[Record, ...]
    choices: Mapping[Path, TuningChoice]
    varying: Sequence[str] = ()
    configurations: list[Configuration] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    unchosen: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    missing: list[MissingRow] = field(default_factory=list)
    failures: list[Missing] = field(default_factory=list)
    short: list[Configuration] = field(default_factory=list)
    _best: dict[str, Best] = field(default_factory=dict, init=False, repr=False)
    _tukey: dict[str, Tukey] = field(default_factory=dict, init=False, repr=False)

    @property
    def on_test(self) -> bool:
        """Whether the test split chose: such numbers do not compare with those of other summaries."""
        return self.records[0].on_test

    @functools.cached_property
    def scores(self) -> dict[str, Score]:
        """One score of each name, for what most share, in the order of the records; what has no best comes last."""
        described: dict[str, Counter[tuple[str, str, bool | None]]] = {}
        found: dict[tuple[str, str, str, bool | None], Score] = {}
        for score in (score for record in self.records for score in record.scores):
            about = score.title, score.unit, score.higher_is_better
            described.setdefault(score.name, Counter())[about] += 1
            found.setdefault((score.name, *about), score)
        usual = [found[name, *counted.most_common(1)[0][0]] for name, counted in described.items()]
        return {score.name: score for score in sorted(usual, key=lambda score: score.higher_is_better is None)}

    @functools.cached_property
    def leading(self) -> tuple[str, ...]:
        """The scores of the leaderboard: those in `LEADING` that a row has, or else the first one that has a best."""
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

    def best(self, name: str) -> Best:
        """Find the rows with the best mean of a test score, or one that cannot be told from it; none without a best."""
        if name not in self._best:
            higher = self.scores[name].higher_is_better
            self._best[name] = Best() if higher is None else best(self.tukey(name), higher_is_better=higher)
        return self._best[name]

    def tukey(self, name: str) -> Tukey:
        """Fit the test of all pairs of rows by a test score."""
        if name not in self._tukey:
            self._tukey[name] = Tukey([row.by_seed(name) for row in self.rows])
        return self._tukey[name]

    def scored(self, name: str, split: str) -> dict[tuple[str, ...], list[tuple[Configuration, float]]]:
        """Group the trained configurations that have a score by their places, each with its mean.

        Means are over the seeds that all of a group have, as are the configurations: the chosen ones may have more.
        """
        groups: dict[tuple[str, ...], list[Configuration]] = {}
        for c in self.configurations:
            if not c.untrained and c.score(name, split) is not None:
                groups.setdefault(c.place(self.varying), []).append(c)
        return {
            place: [(c, score.mean) for c in of_same_seeds(group) if (score := c.score(name, split)) is not None]
            for place, group in groups.items()
        }

    def budget(self, row: Row) -> int | None:
        """Count the configurations that the hyperparameters of a row were chosen from; None if they were given."""
        stated = [h.get("budget") for r in row.records if (h := r.choice.get("hyperparameters"))]
        if any(number is not None for number in stated):
            # The record states the largest of its tuning; the tuning's own choice says it of each method.
            own = {cell_id({**r.cell, "seed": 0}) for r in row.records}
            for choice in self.choices.values():
                for entry in choice.choices:
                    if entry.configuration in own:
                        return len(entry.ranking)
        return next((int(number) for number in stated if number is not None), row.tried if row.tried > 1 else None)

    def gain(self, row: Row, name: str) -> float | None:
        """Subtract the untrained row's mean of a test score from the row's."""
        base = next((s for r in self.rows if r.untrained and (s := r.score(name))), None)
        ours = row.score(name)
        return None if row.untrained or ours is None or base is None else ours.mean - base.mean


@functools.cache
def is_setting(key: str) -> bool:
    """Tell whether a full name is of the setting of a comparison, not of a hyperparameter or of one protocol."""
    if key == "optimizer.name":  # another optimizer is another setting; its numbers are tuned
        return True
    if key.startswith("evaluation."):
        return key.startswith(_EVALUATION) and not key.endswith(("learning_rates", "other_k"))
    return not key.startswith(_TUNED)


def summarize(
    records: Sequence[Record],
    missing: Sequence[Missing] = (),
    choices: Mapping[Path, TuningChoice] | None = None,
    short: Sequence[Record] = (),
) -> list[Summary]:
    """Make a summary of each task, in the order of the records; those that the test split chose come last.

    Args:
        records: The good ones.
        missing: Cells that are planned or have begun and have no record.
        choices: What tunings chose, by the path of their `tuning_choice.json`.
        short: Good ones too, of trainings that are steps of a search.
    """
    settings_of, task_of = functools.cache(_settings), functools.cache(_task)
    configurations = {r: _configuration(r) for r in records}
    settings = {r: settings_of(configuration) for r, configuration in configurations.items()}
    briefly: dict[object, dict[object, list[Record]]] = {}
    for r in short:
        configuration = _configuration(r)
        task = r.on_test, task_of(settings_of(configuration))
        briefly.setdefault(task, {}).setdefault(configuration, []).append(r)
    tasks: dict[object, dict[str, Record]] = {}
    sweeps: dict[object, dict[str, None]] = {}
    for r in records:
        task = r.on_test, task_of(settings[r])
        cells = tasks.setdefault(task, {})
        if r.cell_id not in cells or cells[r.cell_id].status == "tuned":  # a cell that two sweeps share counts once
            cells[r.cell_id] = r
        sweeps.setdefault(task, {})[r.sweep] = None
    found = [(tuple(sweeps[task]), tuple(cells.values()), briefly.get(task, {})) for task, cells in tasks.items()]
    found.sort(key=lambda one: one[1][0].on_test)
    titles = Counter(_name(*one[:2]) for one in found)
    summaries: list[Summary] = []
    for of_task, cells_of_task, short_ones in found:
        name, first = _name(of_task, cells_of_task), cells_of_task[0]
        if titles[name] > 1:
            name += f": {first.cell['dataset']['name']}, {first.backbone}"
        while name in {s.name for s in summaries}:
            name += " (another evaluation or image size)"
        named = {str(r.choice.get("hyperparameters", {}).get("record")) for r in cells_of_task}
        own = {
            path: choice
            for path, choice in (choices or {}).items()
            if path.absolute().parent.name in of_task or "/".join(path.absolute().parts[-2:]) in named
        }
        summaries.append(Summary(name, of_task, cells_of_task, own))
        summaries[-1].short += [Configuration(tuple(seeds)) for seeds in short_ones.values()]
        _fill(summaries[-1], configurations, settings)
    _place_missing(summaries, missing)
    return summaries


def _name(sweeps: tuple[str, ...], records: tuple[Record, ...]) -> str:
    return " + ".join(sweeps) + " (chosen on the test set)" * records[0].on_test


_Settings = tuple[tuple[str, str], ...]


def task_of(record: Record) -> tuple[bool, _Settings]:
    """Return what is the same of two records whose accuracies compare: the split that chose and the task's settings."""
    return record.on_test, _task(row_settings(record))


def row_settings(record: Record) -> _Settings:
    """Return the settings that are the same of two records of one method in one row."""
    return _settings(_configuration(record))


def _task(settings: _Settings) -> _Settings:
    """Choose the settings that an accuracy depends on beside the method and its training."""
    parts = ("dataset.", "network.", "evaluation.")
    return tuple((k, v) for k, v in settings if k.startswith(parts) and not k.startswith(_TRAINING_ONLY))


def _settings(configuration: _Settings) -> _Settings:
    return tuple(sorted(item for item in configuration if is_setting(item[0])))


def _configuration(record: Record) -> _Settings:
    settings = dict(record.settings)
    settings.pop("seed", None)
    return tuple(settings.items())


def _fill(summary: Summary, configuration_of: Mapping[Record, _Settings], settings: Mapping[Record, _Settings]) -> None:
    """Make the configurations and the rows of a task's records."""
    summary.varying = _varying_settings(settings[r] for r in summary.records if not r.untrained)
    groups: dict[object, dict[object, dict[int, Record]]] = {}
    for r in summary.records:
        if r.untrained:
            # Neither the method nor its projector touches an untrained representation: one row, a cell a seed.
            row: object = ""
            configuration: object = ""
        else:
            row = (r.label, settings[r])
            configuration = configuration_of[r]
        groups.setdefault(row, {}).setdefault(configuration, {})[r.seed] = r

    for group in groups.values():
        configurations = [Configuration(tuple(seeds.values())) for seeds in group.values()]
        summary.configurations += configurations
        described = f"{configurations[0].label} ({len(configurations)})"
        if not any(c.final for c in configurations) and any(
            r.status == "tuned" for c in configurations for r in c.records
        ):
            summary.waiting.append(described)
            continue
        chosen = _choose(configurations, summary.selection, summary.selection_split)
        if chosen is None:
            summary.unchosen.append(described)
            continue
        cell = {} if chosen.untrained else chosen.first.settings
        places = {setting_name(k): DASH if (v := cell.get(k, "null")) == "null" else v for k in summary.varying}
        records = tuple(r for r in chosen.records if r.status != "tuned")
        summary.rows.append(Row(records, places, len(configurations)))
    headline = summary.scores[summary.headline] if summary.headline else None

    def order(row: Row) -> tuple[bool, float]:
        found = row.score(headline.name) if headline else None
        if headline is None or found is None:
            return row.untrained, math.inf
        return row.untrained, -found.mean if headline.higher_is_better else found.mean

    summary.rows.sort(key=order)


def setting_name(key: str) -> str:
    """Say what tables call a setting."""
    name = key.removesuffix(".name").rpartition(".")[2]
    return SETTING_NAMES.get(key, f"projector {name}" if key.startswith("network.projector.") else name)


def _choose(configurations: Sequence[Configuration], score: str, split: str) -> Configuration | None:
    """Find the configuration with the best score for selection; None if there are several and not all have one."""
    alive = [c for c in configurations if c.final] or configurations[:1]
    if len(alive) == 1:
        return alive[0]
    tuning = [c.score(score, split) for c in alive]
    known = [(t.mean, i) for i, t in enumerate(tuning) if t is not None]
    return alive[max(known)[1]] if len(known) == len(alive) else None


def _varying_settings(settings: Iterable[_Settings]) -> list[str]:
    """Find the settings that tell the trained cells of a task apart, without those that say the same twice."""
    cells = [dict(items) for items in dict.fromkeys(settings)]
    first = ("embedding_dim", "batch_size", "augmentation.name", "epochs")  # of two that say the same, the first
    keys = [*first, *sorted({k for cell in cells for k in cell} - set(first))]
    shown: list[str] = []
    groups = 1
    for key in keys:
        split = len({tuple(cell.get(k) for k in (*shown, key)) for cell in cells})
        if split > groups:
            shown.append(key)
            groups = split
    return shown


def _place_missing(summaries: Sequence[Summary], missing: Sequence[Missing]) -> None:
    """Give each cell without a record to the row that it belongs to, as far as its plan tells."""
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
            settings = {setting_name(k): str(plan.get(k, DASH)) for k in summary.varying}
            summary.missing.append(MissingRow(label, settings, len(seeds)))


def _agrees(plan: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    """Tell whether nothing that the plan says of a cell speaks against a place in a table."""
    return all(plan.get(key) in (None, value) for key, value in place.items())


def _task_plan(summary: Summary) -> dict[str, Any]:
    cell = summary.records[0].cell
    return {"dataset": cell["dataset"]["name"], "backbone": summary.records[0].backbone}


def _row_plan(row: Row) -> dict[str, Any]:
    return {} if row.untrained else {key: row.first.cell[key] for key in SETTING_NAMES}
