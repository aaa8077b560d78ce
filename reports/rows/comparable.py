"""Find the settings that decide what a cell compares with: its task, its row in the task's
table, its configuration.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence

from regbench.benchmark.rundir.record import Record

Settings = tuple[tuple[str, str], ...]
"""Full names and values of settings."""

# Names that a table's head has for settings that vary, in place of their own.
SETTING_NAMES = {"embedding_dim": "q", "batch_size": "batch", "epochs": "epochs"}

# Tuned for each method, or without effect on the result: these do not make another setting.
_TUNED = ("method.", "optimizer.", "seed", "external.", "baseline")

# The part of the evaluation that accuracies of a leaderboard depend on; other protocols are stated
# beside their scores.
_COMPARED = ("evaluation.knn.", "evaluation.probe.", "evaluation.select_on", "evaluation.precision")

# Parts of a cell that an accuracy depends on beside the method and its training.
_OF_TASK = ("dataset.", "network.", "evaluation.")

# Parts of the network that no evaluation sees.
_TRAINING_ONLY = (
    *("network.projector.", "network.predictor.", "network.teacher"),
    *("network.momentum", "network.statistics"),
)

# If two settings distinguish the same rows, a table shows the one that is first here.
_SHOWN_FIRST = (
    *("embedding_dim", "batch_size", "augmentation.name", "epochs"),
    *("network.teacher", "network.predictor.depth"),
)


# Every setting of every record is asked about, and thousands of records have the same hundred
# names.
@functools.cache
def is_setting(key: str) -> bool:
    """Return True if a full name belongs to the setting of a comparison, not to a hyperparameter or
    a single protocol.
    """
    if key == "optimizer.name":  # another optimizer is another setting; its numbers are tuned
        return True
    if key.startswith("evaluation."):
        # The probe's rate is tuned within a run, and a kNN of another k has a score of its own.
        return key.startswith(_COMPARED) and not key.endswith(("learning_rates", "other_k"))
    return not key.startswith(_TUNED)


def configuration_settings(record: Record) -> Settings:
    """Return all settings except the seed and those of evaluations that are not compared."""
    found = []
    for key, value in record.settings.items():
        is_compared = not key.startswith("evaluation.") or key.startswith(_COMPARED)
        if key != "seed" and is_compared:
            found.append((key, value))
    return tuple(found)


def reference_settings(record: Record) -> tuple[Settings, Settings]:
    """Return the settings of the row and of the configuration of a record that is no method's."""
    if record.untrained:  # neither a method nor its projector touches the representation
        return (), ()
    row, configuration = row_settings(record), configuration_settings(record)
    if record.cell["baseline"] != "supervised":
        return row, configuration
    without = (*_TRAINING_ONLY, "embedding_dim", "method.")
    return (
        tuple(item for item in row if not item[0].startswith(without)),
        tuple(item for item in configuration if not item[0].startswith(without)),
    )


def row_settings(record: Record) -> Settings:
    """Return the settings that all records in one row of a method share."""
    return tuple(item for item in record.settings.items() if is_setting(item[0]))


def task_of(record: Record, settings: Settings | None = None) -> tuple[bool, Settings]:
    """Return what records must share for their accuracies to compare: whether the test split chose,
    and settings.

    Args:
        record: The record.
        settings: Settings of the row (`row_settings`), if they are known.
    """
    own = row_settings(record) if settings is None else settings
    of_task = [item for item in own if item[0].startswith(_OF_TASK)]
    return record.on_test, tuple(item for item in of_task if not item[0].startswith(_TRAINING_ONLY))


def varying_settings(settings: Iterable[Settings]) -> list[str]:
    """Find the settings that distinguish rows, without redundant ones."""
    rows = list(map(dict, dict.fromkeys(settings)))
    others = set().union(*rows) - set(_SHOWN_FIRST)
    shown: list[str] = []
    groups = 1
    for key in [*_SHOWN_FIRST, *sorted(others)]:
        told_by = (*shown, key)
        apart = len({tuple(map(row.get, told_by)) for row in rows})
        # A setting that divides no group further adds nothing to those that are shown.
        if apart > groups:
            shown.append(key)
            groups = apart
    return shown


def _short_name(key: str) -> str:
    name = key.removesuffix(".name").rpartition(".")[2]
    if key == "network.momentum":
        return "teacher's momentum"
    group, _, rest = key.removeprefix("network.").partition(".")
    if rest and group in ("projector", "predictor"):
        name = f"{group} {name}"
    return SETTING_NAMES.get(key, name)


def setting_names(keys: Sequence[str]) -> dict[str, str]:
    """Return what tables call each of some settings: the full name if two would be called
    the same.
    """
    names = {key: _short_name(key) for key in keys}
    counts = Counter(names.values())
    return {key: name if counts[name] == 1 else key for key, name in names.items()}
