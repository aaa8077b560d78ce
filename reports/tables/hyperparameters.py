"""The table of all configurations that were tried."""

from __future__ import annotations

from collections.abc import Sequence

from regbench.reports.rows.comparable import SETTING_NAMES, is_setting
from regbench.reports.rows.summary import DASH, Configuration, Row, Summary
from regbench.reports.tables.table import (
    Column,
    Line,
    Table,
    entries,
    mean_pm,
    number_columns,
    text_columns,
)
from regbench.text import counted


def hyperparameters_table(summary: Summary) -> Table:
    """Make the table of every configuration tried: its hyperparameters, its score on the tuning
    split, and whether it was chosen.
    """
    rows: dict[str, Row] = {}
    for row in summary.rows:
        rows |= dict.fromkeys((record.cell_id for record in row.records), row)
    tried = []
    for configuration in summary.configurations:
        if not configuration.is_reference:
            found = [rows[each.cell_id] for each in configuration.records if each.cell_id in rows]
            score = configuration.score(summary.selection, summary.selection_split)
            tried.append((configuration, found[0] if found else None, score))
    several = any(row.tried > 1 for row in summary.rows) or any(row is None for _, row, _ in tried)

    # Sorts are stable: this order by score is what remains within each method and setting.
    tried.sort(key=lambda one: -(one[2].mean if one[2] else 0.0))
    # Places are texts of numbers: shorter ones are smaller.
    tried.sort(
        key=lambda one: (
            one[0].label,
            *map(_by_length, _places(one[0])),
            several and one[1] is None,
        )
    )
    varying = _varying([configuration for configuration, _, _ in tried])
    lines = []
    for configuration, row_of, score in tried:
        # A run that diverged does not say what chose it, so the first that says it is asked.
        stated = [record.choice.get("hyperparameters") for record in configuration.records]
        how = next(filter(None, stated), {})
        cell = configuration.first.settings
        words = []
        for key in varying:
            if key in cell:
                words.append(f"{key.removeprefix('method.')}={cell[key]}")
        texts = [configuration.label + " †" * bool(configuration.diverged)]
        texts += _places(configuration)
        texts += [", ".join(words), mean_pm(score, 2), str(len(configuration.records))]
        texts += [str(how.get("selected_on") or DASH), str(how.get("budget") or DASH)]
        if several:
            texts.append("no" if row_of is None else "yes")
        shown = entries(*(text or DASH for text in texts))
        lines.append(Line(shown, configuration.label, row_of))
    selected = f"{summary.selection_title} (%), {summary.selection_split}"
    columns = [*text_columns("method"), *number_columns(*SETTING_NAMES.values())]
    columns += [Column("hyperparameters", numeric=False), Column(selected), Column("n")]
    columns += [Column("chosen on", numeric=False), Column("tried")]
    if several:
        columns += text_columns("in the leaderboard")
    notes = [
        "In the order of the selection score within each method and setting; what stands in the "
        "leaderboard is first."
    ]
    for path, choice in summary.choices.items():
        images = max((entry.images for entry in choice.choices), default=0)
        seeds = ", ".join(map(str, choice.seeds))
        notes.append(
            f"{path}: {counted(choice.budget, 'configuration')} for each method, chosen by "
            f"{choice.score} on the {choice.selected_on} split, seeds {seeds}; at most "
            f"{images:,} training images a method."
        )
    return Table("hyperparameters", "Hyperparameters", columns, lines, notes)


def _places(configuration: Configuration) -> list[str]:
    """Return its values of the settings that have a column of their own."""
    values = [configuration.first.settings.get(key, "null") for key in SETTING_NAMES]
    return [DASH if value == "null" else value for value in values]


def _by_length(text: str) -> tuple[int, str]:
    return len(text), text


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
    # A method's own values are what a reader copies, so all are shown; what no run varies of the
    # rest says nothing.
    own = [key for key in values if key.startswith("method.")]
    return own + [key for key in values if key not in own and len(values[key]) > 1]
