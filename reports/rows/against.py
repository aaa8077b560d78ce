"""What changed between two reports: rows that came and went, their settings, and differences with their tests.

Rows of the same task, method and setting belong together; of a method that has one row left on each side, these do too,
and the difference of their settings is told. Where the two share three seeds or more they are compared seed by seed (a
paired t-test: the same seed saw the same images in the same order), else as two samples (Welch's t-test).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from regbench.reports.rows.comparable import row_settings, task_of
from regbench.reports.rows.significance import MIN_PAIRS, holm
from regbench.reports.rows.summary import Row, Summary

# Of what a run takes, in the order of a table.
RATIOS = ("train_s", "step_ms", "loss_ms", "peak_memory_bytes", "loss_extra_bytes")

_NOT_SETTINGS = ("seed", "evaluation.protocols")


@dataclass(frozen=True)
class Difference:
    """Of two means, the present one minus the former one.

    Attributes:
        now: Present mean.
        before: Former mean.
        low: Lower end of the 95 % interval; NaN where nothing could be tested, as the next two.
        high: Upper end.
        p: Of the test, two-sided.
        pairs: Shared seeds, where they were compared; 0 for two samples.
        p_holm: Corrected for all rows of the table.
    """

    now: float
    before: float
    low: float
    high: float
    p: float
    pairs: int
    p_holm: float = math.nan

    @property
    def value(self) -> float:
        """The difference."""
        return self.now - self.before


@dataclass
class Change:
    """A row on both sides, or on one.

    Attributes:
        now: The present row; None if it is gone.
        before: The former one; None if it is new.
        settings: Settings that differ: full name -> former and present text.
        differences: By score.
        ratios: Present over former mean of what was measured on both sides.
    """

    now: Row | None
    before: Row | None
    settings: dict[str, tuple[str, str]] = field(default_factory=dict)
    differences: dict[str, Difference] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    @property
    def row(self) -> Row:
        """The present row, or the former one if it is gone."""
        row = self.now or self.before
        assert row is not None
        return row


def changes(summary: Summary, others: Sequence[Summary]) -> list[Change] | None:
    """Compare a task with its counterpart among others; None without one.

    Returns:
        Rows in the order of the leaderboard, then those that are gone.
    """
    other = next((each for each in others if task_of(each.records[0]) == task_of(summary.records[0])), None)
    if other is None:
        return None
    found = [Change(now, before) for now, before in _paired(summary.rows, other.rows)]
    for change in found:
        if change.now is None or change.before is None:
            continue
        if not change.now.untrained:
            change.settings = _differing(change.before, change.now)
        for name in summary.leading:
            now, before = change.now.by_seed(name), change.before.by_seed(name)
            if now and before:
                change.differences[name] = differ(now, before)
        for name in RATIOS:
            ours, theirs = change.now.cost(name), change.before.cost(name)
            if ours and theirs and theirs.mean > 0:
                change.ratios[name] = ours.mean / theirs.mean
    for name in summary.leading:
        tested = [change for change in found if name in change.differences]
        for change, p in zip(tested, holm([change.differences[name].p for change in tested]), strict=True):
            change.differences[name] = replace(change.differences[name], p_holm=p)
    return found


def differ(now: Mapping[int, float], before: Mapping[int, float]) -> Difference:
    """Compare two rows, each given as seed -> score."""
    from scipy.special import stdtr, stdtrit  # scipy.stats takes longer to import than a report of a few cells

    ours, theirs = np.array(list(now.values())), np.array(list(before.values()))
    # Scores are stated to a hundredth at most: what is below a billionth is rounding.
    paired = np.round([now[seed] - before[seed] for seed in now.keys() & before.keys()], 9)
    pairs = len(paired) if len(paired) >= MIN_PAIRS else 0
    middle = degrees = error = math.nan
    if pairs:
        middle, error, degrees = paired.mean(), paired.std(ddof=1) / math.sqrt(pairs), pairs - 1.0
    elif min(len(ours), len(theirs)) > 1:
        parts = [float(side.var(ddof=1)) / len(side) for side in (ours, theirs)]
        middle, error = round(ours.mean() - theirs.mean(), 9), math.sqrt(sum(parts))
        weights = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (ours, theirs), strict=True))
        degrees = sum(parts) ** 2 / weights if weights else 1.0
    reach = error * float(stdtrit(degrees, 0.975)) if error else 0.0
    p = 2 * float(stdtr(degrees, -abs(middle) / error)) if error else float(not middle)
    return Difference(float(ours.mean()), float(theirs.mean()), float(middle - reach), float(middle + reach), p, pairs)


def _paired(now: Sequence[Row], before: Sequence[Row]) -> list[tuple[Row | None, Row | None]]:
    """Find which rows belong together."""
    former = {(row.label, row_settings(row.first)): row for row in before}
    own = {id(row): former.pop((row.label, row_settings(row.first)), None) for row in now}
    for row in now:
        alone = [each for each in now if each.label == row.label and own[id(each)] is None] == [row]
        left = [key for key in former if key[0] == row.label]
        if alone and len(left) == 1:
            own[id(row)] = former.pop(left[0])
    return [*((row, own[id(row)]) for row in now), *((None, row) for row in former.values())]


def _differing(before: Row, now: Row) -> dict[str, tuple[str, str]]:
    old, new = before.first.settings, now.first.settings
    keys = [key for key in dict.fromkeys((*new, *old)) if key not in _NOT_SETTINGS]
    return {key: (old.get(key, "–"), new.get(key, "–")) for key in keys if old.get(key) != new.get(key)}
