"""The table of all configurations that were tried."""

from __future__ import annotations

from collections.abc import Sequence

from regbench.reports.rows.comparable import SETTING_NAMES, is_setting
from regbench.reports.rows.summary import DASH, Configuration, Summary
from regbench.reports.tables.table import (
    Column,
    Table,
    entries,
    number_columns,
    spread,
    text_columns,
)


def hyperparameters_table(summary: Summary) -> Table:
    """Set every configuration tried: what sets it apart, its score on the tuning split, whether
    it was chosen.
    """
    trained = [
        configuration for configuration in summary.configurations if not configuration.is_reference
    ]
    shown: set[str] = set()
    for row in summary.rows:
        shown.update(record.cell_id for record in row.records)
    varying = _varying(trained)
    several = any(row.tried > 1 for row in summary.rows)
    lines = []
    for configuration in trained:
        is_row = any(record.cell_id in shown for record in configuration.records)
        several = several or not is_row
        lines.append(
            (configuration, is_row, configuration.score(summary.selection, summary.selection_split))
        )
    # Places are texts of numbers: shorter ones are smaller.
    # Sorts are stable: this order by score is what remains within each method and setting.
    lines.sort(key=lambda line: -(line[2].mean if line[2] else 0.0))
    lines.sort(
        key=lambda line: (
            line[0].label,
            *map(_by_length, _places(line[0])),
            several and not line[1],
        )
    )
    body = []
    for configuration, is_row, score in lines:
        # A run that diverged does not say what chose it, so the first that says it is asked.
        how = next(
            (
                r.choice["hyperparameters"]
                for r in configuration.records
                if "hyperparameters" in r.choice
            ),
            {},
        )
        cell = configuration.first.settings
        words = []
        for key in varying:
            if key in cell:
                words.append(f"{key.removeprefix('method.')}={cell[key]}")
        label = configuration.label + " †" * bool(configuration.diverged)
        texts = [
            label,
            *_places(configuration),
            ", ".join(words),
            spread(score, 2),
            len(configuration.records),
        ]
        texts += [
            how.get("selected_on"),
            how.get("budget"),
            *(["yes" if is_row else "no"] if several else []),
        ]
        body.append(entries(*(str(text or DASH) for text in texts)))
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
        notes.append(
            f"{path}: {choice.budget} configurations for each method, chosen by {choice.score} on "
            f"the {choice.selected_on} split, seeds {', '.join(map(str, choice.seeds))}; at most "
            f"{images:,} training images a method."
        )
    return Table("hyperparameters", "Hyperparameters", columns, body, notes)


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
    shown = [
        key for key, different in values.items() if key.startswith("method.") or len(different) > 1
    ]
    return sorted(shown, key=lambda key: not key.startswith("method."))
