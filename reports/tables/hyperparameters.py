"""The table of all configurations that were tried."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regbench.reports.rows.comparable import is_setting
from regbench.reports.rows.summary import DASH, SETTING_NAMES, Configuration, Summary
from regbench.reports.tables.table import Column, Entry, Table, number_columns, spread, text_columns


@dataclass(frozen=True)
class _Line:
    """A configuration, of which there may be no record here.

    Attributes:
        label: Method, with a sign where it diverged.
        places: Values of the columns `SETTING_NAMES`.
        hyperparameters: Those that set it apart, in words.
        value: Score that chooses.
        texts: The score, the seeds, what chose it, among how many, and whether it is in the leaderboard.
    """

    label: str
    places: Sequence[str]
    hyperparameters: str
    value: float | None
    texts: tuple[object, ...]

    def entries(self) -> list[Entry]:
        """Return the line of the table; a dash stands for what is not known."""
        texts = (self.label, *self.places, self.hyperparameters, *self.texts)
        return [Entry(str(text or DASH)) for text in texts]


def hyperparameters_table(summary: Summary) -> Table:
    """Set every configuration tried: what sets it apart, its score on the tuning split, whether it was chosen."""
    trained = [configuration for configuration in summary.configurations if not configuration.is_reference]
    chosen: set[str] = set()
    for row in summary.rows:
        chosen.update(record.cell_id for record in row.records)
    varying = _varying(trained)
    lines = []
    several = any(row.tried > 1 for row in summary.rows)
    for configuration in trained:
        is_row = any(record.cell_id in chosen for record in configuration.records)
        several = several or not is_row
        lines.append(_line_of(configuration, summary, varying, "yes" if is_row else "no"))
    lines += _ranked_elsewhere(summary)

    def order(line: _Line) -> tuple[object, ...]:
        name = line.label.removesuffix(" †")
        left_out = several and line.texts[-1] == "no"
        # Places are texts of numbers: shorter ones are smaller.
        return name, *map(len, line.places), *line.places, left_out, -(line.value or 0.0)

    selected = f"{summary.selection_title} (%), {summary.selection_split}"
    columns = [*text_columns("method"), *number_columns(*SETTING_NAMES.values())]
    columns += [Column("hyperparameters", numeric=False), Column(selected), Column("n")]
    columns += [Column("chosen on", numeric=False), Column("tried")]
    if several:
        columns += text_columns("in the leaderboard")
    body = [line.entries()[: len(columns)] for line in sorted(lines, key=order)]
    notes = [
        "In the order of the selection score within each method and setting; what stands in the leaderboard is first."
    ]
    for path, choice in summary.choices.items():
        images = max((entry.images for entry in choice.choices), default=0)
        notes.append(
            f"{path}: {choice.budget} configurations for each method, chosen by {choice.score} on the "
            f"{choice.selected_on} split, seeds {', '.join(map(str, choice.seeds))}; at most {images:,} training "
            "images a method."
        )
    return Table("hyperparameters", "Hyperparameters", columns, body, notes)


def _varying(trained: Sequence[Configuration]) -> list[str]:
    """Find the settings to show: all of the methods, and those of optimizer and evaluation that differ."""
    values: dict[str, set[str | None]] = {}
    for key in dict.fromkeys(itertools.chain(*(configuration.first.settings for configuration in trained))):
        tuned = key.startswith(("method.", "optimizer.", "evaluation.")) and not is_setting(key)
        if tuned and key not in ("method.name", "evaluation.protocols"):
            values[key] = {configuration.first.settings.get(key) for configuration in trained}
    shown = [key for key, different in values.items() if key.startswith("method.") or len(different) > 1]
    return sorted(shown, key=lambda key: not key.startswith("method."))


def _line_of(configuration: Configuration, summary: Summary, varying: Sequence[str], in_leaderboard: str) -> _Line:
    cell = configuration.first.settings
    how: Mapping[str, Any] = {}
    for record in configuration.records:
        how = how or record.choice.get("hyperparameters", {})
    places = []
    for key in SETTING_NAMES:
        value = cell.get(key, "null")
        places.append(DASH if value == "null" else value)
    score = configuration.score(summary.selection, summary.selection_split)
    texts = spread(score, 2), len(configuration.records), how.get("selected_on"), how.get("budget"), in_leaderboard
    label = configuration.label + " †" * bool(configuration.diverged)
    own = {key: cell[key] for key in varying if key in cell}
    return _Line(label, places, _in_words(own), score.mean if score else None, texts)


def _ranked_elsewhere(summary: Summary) -> list[_Line]:
    """List the configurations that a tuning ranked and whose records are not in the report."""
    here = {record.cell_id for record in summary.records}
    lines = []
    for choice in summary.choices.values():
        for entry in choice.choices:
            for ranked in entry.ranking:
                if ranked.cell_id in here:
                    continue
                setting = {**entry.setting, "epochs": ranked.epochs}
                places = [str(setting.get(key, DASH)) for key in SETTING_NAMES]
                text = DASH if ranked.value is None else f"{ranked.value:.2f}"
                label = entry.label + " †" * (ranked.status == "diverged")
                texts = text, len(choice.seeds), "", "", "no"
                lines.append(_Line(label, places, _in_words(ranked.hyperparameters), ranked.value, texts))
    return lines


def _in_words(hyperparameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.removeprefix('method.')}={value}" for key, value in hyperparameters.items())
