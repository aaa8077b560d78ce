"""From records to the rows of a leaderboard: which cells belong together, which stand for a method.

A *task* is a data set, a backbone and a way to evaluate: accuracies compare within it, so each task has its
own leaderboard, whatever sweeps its cells come from. A *configuration* is a cell without its seed. A *row* is
a method in one setting (embedding dimension, batch size, epochs and the like). Where several configurations
were tried for a row, the one with the highest mean weighted-kNN top-1 on the tuning split stands for it,
which is the paper's protocol; the test split never chooses.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regbench.reports.records import Record

SELECTION = "knn_top1"

# How a setting that varies is called in a table's head, where its own name is not it.
SETTING_NAMES = {"embedding_dim": "q", "batch_size": "batch", "epochs": "epochs"}

# Tuned for each method, or without effect on the result: these do not make another setting.
_TUNED = ("method.", "optimizer.", "seed", "evaluation.probe.learning_rates", "evaluation.batch_size")


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
    return Stat(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


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

    def score(self, name: str, split: str = "test") -> Stat | None:
        """Statistics of a score over the seeds."""
        return stat(r.score(name, split) for r in self.records)

    def cost(self, name: str) -> Stat | None:
        """Statistics of a cost over the seeds. An untrained network has none of training's."""
        return None if self.untrained else stat(r.cost.get(name) for r in self.records)


@dataclass(frozen=True)
class Row(Configuration):
    """The configuration that stands for a method in one setting.

    Attributes:
        settings: The settings that vary in the task, by their name in a table's head; "–" where they do not
            apply.
        tried: How many configurations it was chosen from.
    """

    settings: dict[str, str]
    tried: int

    @property
    def name(self) -> str:
        """Label with the varying settings, such as "SFRIK (L=2), q=1024"."""
        shown = [f"{k}={v}" for k, v in self.settings.items() if v != "–"]
        return ", ".join([self.label, *shown])


@dataclass
class Summary:
    """One task.

    Attributes:
        name: The sweeps that the cells come from, with the task where that does not tell it from others.
        sweeps: Their names.
        records: The good records, each cell once.
        configurations: All configurations tried, in the order of their labels.
        rows: One per method and setting, best first, untrained last.
        notes: What a reader must know beside the numbers.
    """

    name: str
    sweeps: tuple[str, ...]
    records: tuple[Record, ...]
    configurations: list[Configuration] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The score that orders the rows: linear probing, or weighted kNN where nothing was probed."""
        return "linear_top1" if any(r.score("linear_top1") for r in self.rows) else "knn_top1"

    def best(self, name: str) -> float | None:
        """Highest mean of a test score, rounded as it is printed."""
        return max((round(s.mean, 2) for row in self.rows if (s := row.score(name))), default=None)

    def gain(self, row: Row, name: str) -> float | None:
        """Difference of the means of a test score, row minus the untrained row."""
        base = next((s for r in self.rows if r.untrained and (s := r.score(name))), None)
        ours = row.score(name)
        return None if row.untrained or ours is None or base is None else ours.mean - base.mean


def flat(cell: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as one level of text: {"network": {"backbone": "x"}} -> {"network.backbone": "x"}."""
    out: dict[str, str] = {}
    for key, value in cell.items():
        if isinstance(value, dict):
            out.update(flat(value, f"{prefix}{key}."))
        else:
            out[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return out


def is_setting(key: str) -> bool:
    """Whether a flat key belongs to the setting of a comparison; the others are hyperparameters."""
    return not key.startswith(_TUNED)


def summarize(records: Sequence[Record]) -> list[Summary]:
    """One summary for each task, in the order of the records."""
    tasks: dict[str, dict[str, Record]] = {}
    sweeps: dict[str, dict[str, None]] = {}
    for r in records:
        tasks.setdefault(_task(r), {}).setdefault(r.cell_id, r)  # a cell that two sweeps share counts once
        sweeps.setdefault(_task(r), {})[r.sweep] = None
    titles = [" + ".join(sweeps[task]) for task in tasks]
    summaries: list[Summary] = []
    for task, cells in tasks.items():
        name = " + ".join(sweeps[task])
        if titles.count(name) > 1:
            cell = next(iter(cells.values())).cell
            name += f": {cell['dataset']['name']}, {cell['network']['backbone']}"
        while name in {s.name for s in summaries}:
            name += " (another evaluation or image size)"
        summaries.append(_summarize(Summary(name, tuple(sweeps[task]), tuple(cells.values()))))
    return summaries


def _task(record: Record) -> str:
    """The settings that an accuracy depends on beside the method and its training."""
    settings = _settings(record)
    parts = ("dataset.", "network.", "evaluation.")
    return json.dumps([i for i in settings.items() if i[0].startswith(parts) and i[0] != "network.hidden_dim"])


def _settings(record: Record) -> dict[str, str]:
    return {key: value for key, value in sorted(flat(record.cell).items()) if is_setting(key)}


def _summarize(summary: Summary) -> Summary:
    shown = _varying_settings(summary.records)
    groups: dict[str, dict[str, dict[int, Record]]] = {}
    for r in summary.records:
        if r.untrained:
            # Neither the method nor its projector touches an untrained representation: one row, a cell a
            # seed.
            row = configuration = ""
        else:
            row = json.dumps([r.label, _settings(r)])
            configuration = json.dumps({**r.cell, "seed": None}, sort_keys=True)
        groups.setdefault(row, {}).setdefault(configuration, {})[r.seed] = r

    unchosen = []
    for group in groups.values():
        configurations = [Configuration(tuple(seeds.values())) for seeds in group.values()]
        summary.configurations += configurations
        chosen = _choose(configurations)
        if chosen is None:
            unchosen.append(f"{configurations[0].label} ({len(configurations)})")
            continue
        cell = {} if chosen.untrained else flat(chosen.first.cell)
        settings = {SETTING_NAMES.get(k, k.rpartition(".")[2]): cell.get(k, "–") for k in shown}
        summary.rows.append(Row(chosen.records, settings, len(configurations)))
    headline = summary.headline

    def order(row: Row) -> tuple[bool, float]:
        score = row.score(headline)
        return (row.untrained, -score.mean if score else float("inf"))

    summary.rows.sort(key=order)
    summary.notes = _notes(summary, unchosen)
    return summary


def _choose(configurations: Sequence[Configuration]) -> Configuration | None:
    """The configuration that the tuning split prefers; None if it was not asked about each of several."""
    alive = [c for c in configurations if c.diverged < len(c.records)] or configurations[:1]
    if len(alive) == 1:
        return alive[0]
    tuning = [c.score(SELECTION, "tuning") for c in alive]
    known = [(t.mean, i) for i, t in enumerate(tuning) if t is not None]
    return alive[max(known)[1]] if len(known) == len(alive) else None


def _varying_settings(records: Sequence[Record]) -> list[str]:
    """Settings that tell the trained cells of a task apart, without those that say the same twice."""
    cells = [_settings(r) for r in records if not r.untrained]
    keys = [*SETTING_NAMES, *sorted({k for cell in cells for k in cell} - set(SETTING_NAMES))]
    shown: list[str] = []
    groups = 1
    for key in keys:
        split = len({tuple(cell.get(k) for k in (*shown, key)) for cell in cells})
        if split > groups:
            shown.append(key)
            groups = split
    return shown


def _notes(summary: Summary, unchosen: list[str]) -> list[str]:
    notes = []
    if any(row.tried > 1 for row in summary.rows):
        notes.append(
            "Where several hyperparameters were tried, the row is the one with the highest kNN top-1 on the "
            "tuning split; all are listed under Hyperparameters."
        )
    if unchosen:
        notes.append(
            "Not in the table, because several hyperparameters were tried and not all have a kNN top-1 on "
            f"the tuning split to choose by: {', '.join(unchosen)}."
        )
    if diverged := [row for row in summary.rows if row.diverged]:
        counts = ", ".join(f"{row.name} ({row.diverged} of {len(row.records)} cells)" for row in diverged)
        notes.append(f"† diverged (loss not finite, or embeddings collapsed) and not counted in the means: {counts}.")
    trained = [r for r in summary.records if not r.untrained]
    machines = {_machine(r) for r in trained}
    if len(machines) > 1:
        notes.append(f"Times were measured on unequal machines: {'; '.join(sorted(machines))}. Compare within one.")
    kinds = {str(r.cost["peak_memory_kind"]) for r in trained if "peak_memory_kind" in r.cost}
    if len(kinds) > 1:
        notes.append(f"Peak memory was measured in unequal ways: {', '.join(sorted(kinds))}.")
    commits = {str(r.environment.get("git") or "unknown") for r in summary.records}
    if len(commits) > 1:
        notes.append(f"The cells come from more than one state of the code: {', '.join(sorted(commits))}.")
    return notes


def _machine(record: Record) -> str:
    hardware, threads, loader = (record.environment.get(key) for key in ("hardware", "threads", "loader"))
    return f"{hardware} with {threads} threads, {loader} loader"
