"""The table of all configurations that were tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regbench.reports.rows.comparable import SETTING_NAMES, is_setting
from regbench.reports.rows.summary import DASH, Configuration, Row, Summary
from regbench.reports.tables.table import Column, Line, Table, entries, mean_pm
from regbench.text import counted


def hyperparameters_table(summary: Summary) -> Table:
    """Make the table of every configuration tried: its hyperparameters, its score on the tuning
    split, and whether it was chosen.
    """
    rows: dict[str, Row] = {}
    for row in summary.rows:
        rows |= dict.fromkeys((record.cell_id for record in row.records), row)
    trained = [one for one in summary.configurations if not one.is_reference]
    varying = _varying(trained)
    ordered: list[tuple[Configuration, Row | None]] = []
    for configuration in trained:
        shown = filter(None, (rows.get(record.cell_id) for record in configuration.records))
        ordered.append((configuration, next(shown, None)))
    ordered.sort(key=lambda one: _order(summary, *one))
    several = any(row.tried > 1 for row in summary.rows)
    several = several or any(row_of is None for _, row_of in ordered)
    lines = []
    for configuration, row_of in ordered:
        texts = _texts(summary, configuration, row_of, varying)
        if several:
            texts.append("no" if row_of is None else "yes")
        lines.append(Line(entries(*texts), configuration.label, row_of))
    selected = f"{summary.selection_title} (%), {summary.selection_split}"
    columns = [Column("method", numeric=False), *map(Column, SETTING_NAMES.values())]
    columns += [Column("hyperparameters", numeric=False), Column(selected), Column("n")]
    columns += [Column("chosen on", numeric=False), Column("tried")]
    if several:
        columns.append(Column("in the leaderboard", numeric=False))
    notes = [
        "In the order of the selection score within each method and setting; what stands in the "
        "leaderboard is first."
    ]
    for path, choice in summary.choices.items():
        images = max((entry.images for entry in choice.choices), default=0)
        seeds = ", ".join(map(str, choice.seeds))
        most = "up to " * (len({len(entry.ranking) for entry in choice.choices}) > 1)
        notes.append(
            f"{path}: {most}{counted(choice.budget, 'configuration')} for each method, chosen by "
            f"{choice.score} on the {choice.selected_on} split, seeds {seeds}; at most "
            f"{images:,} training images a method."
        )
    return Table("hyperparameters", "Hyperparameters", columns, lines, notes)


def _places(configuration: Configuration) -> list[str]:
    """Return the settings of a configuration that have columns of their own."""
    places = [configuration.first.settings.get(key, "null") for key in SETTING_NAMES]
    return [DASH if place == "null" else place for place in places]


def _order(summary: Summary, configuration: Configuration, row: Row | None) -> tuple[Any, ...]:
    """Return the sort key of a line: within each method and setting, what stands in the leaderboard
    comes first, then the best score.
    """
    score = configuration.score(summary.selection, summary.selection_split)
    # Places are texts of numbers: shorter ones are smaller.
    sizes = [(len(place), place) for place in _places(configuration)]
    return configuration.label, *sizes, row is None, -score.mean if score else 0.0


def _texts(
    summary: Summary, configuration: Configuration, row: Row | None, varying: Sequence[str]
) -> list[str]:
    """Fill the line of a configuration."""
    # Not every run says what chose it, so the first that does is taken.
    stated = [record.choice.get("hyperparameters") for record in configuration.records]
    how = next(filter(None, stated), {})
    tried = how.get("budget")
    if tried and row is not None:
        tried = summary.budget(row)
    settings = configuration.first.settings
    words = [f"{key.removeprefix('method.')}={settings[key]}" for key in varying if key in settings]
    score = configuration.score(summary.selection, summary.selection_split)
    label = configuration.label + " †" * bool(configuration.diverged)
    texts = [label, *_places(configuration), ", ".join(words) or DASH, mean_pm(score, 2)]
    texts.append(str(len(configuration.records)))
    return [*texts, str(how.get("selected_on") or DASH), str(tried or DASH)]


def _varying(trained: Sequence[Configuration]) -> list[str]:
    """Find the settings to show: all of the methods, and those of optimizer and evaluation that
    differ.
    """
    values: dict[str, set[str | None]] = {}
    keys: dict[str, None] = {}
    for configuration in trained:
        keys |= dict.fromkeys(configuration.first.settings)
    for key in keys:
        tuned = key.startswith(("method.", "optimizer.", "evaluation.")) and not is_setting(key)
        if tuned and key not in ("method.name", "evaluation.protocols"):
            values[key] = {configuration.first.settings.get(key) for configuration in trained}
    # A reader copies a method's own values, so all are shown. Other settings are shown if runs vary
    # them.
    own = [key for key in values if key.startswith("method.")]
    return own + [key for key in values if key not in own and len(values[key]) > 1]
