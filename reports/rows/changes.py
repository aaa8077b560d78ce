"""Changes between two reports: rows that came and went, their settings, and differences with their tests.

Rows of the same task, method and setting belong together. Where a method has one row left on each side, these do too,
and a table lists the difference of their settings. Where the two share three seeds or more they are compared seed by
seed (a paired t-test: the same seed saw the same images in the same order), else as two samples (Welch's t-test).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from regbench.reports.rows.comparable import row_settings, task_of
from regbench.reports.rows.significance import MIN_PAIRS, holm
from regbench.reports.rows.summary import DASH, Row, Summary

# Costs of a run, in the order of a table.
RATIOS = ("train_s", "step_ms", "loss_ms", "peak_memory_bytes", "loss_extra_bytes")

# A row has several seeds, and another protocol changes no other score.
_NOT_SETTINGS = ("seed", "evaluation.protocols")


@dataclass(frozen=True)
class Difference:
    """The difference of two means, the present one minus the former one.

    Attributes:
        now: Present mean.
        before: Former mean.
        low: Lower end of the 95 % interval; NaN where nothing could be tested, as the next two.
        high: Upper end.
        p: p-value of the test, two-sided.
        pairs: Shared seeds, where they were compared; 0 for two samples.
        p_holm: p-value corrected for all rows of the table.
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
    task = task_of(summary.records[0])
    for other in others:
        if task_of(other.records[0]) == task:
            break
    else:
        return None
    found = [Change(now, before) for now, before in _paired(summary.rows, other.rows)]
    for change in found:
        if change.now is not None and change.before is not None:
            _compare(change, change.now, change.before, summary.leading)
    for name in summary.leading:
        tested = [change for change in found if name in change.differences]
        # Each score is a family of its own: a second one does not make the test of the first stricter.
        p_values = [change.differences[name].p for change in tested]
        corrected = holm(p_values)
        for change, p in zip(tested, corrected, strict=True):
            change.differences[name] = replace(change.differences[name], p_holm=p)
    return found


def _compare(change: Change, now: Row, before: Row, scores: Sequence[str]) -> None:
    # The cell of a baseline holds settings of a method, on which none of its scores depend.
    if not now.is_reference:
        change.settings = _differing(before, now)
    for name in scores:
        ours, theirs = now.by_unit(name), before.by_unit(name)
        if ours and theirs:
            change.differences[name] = differ(ours, theirs)
    for name in RATIOS:
        cost, former_cost = now.cost(name), before.cost(name)
        if cost and former_cost and former_cost.mean > 0:
            change.ratios[name] = cost.mean / former_cost.mean


def differ(now: Mapping[int, float], before: Mapping[int, float]) -> Difference:
    """Compare two rows, each given as seed -> score."""
    from scipy.stats import ttest_1samp, ttest_ind  # takes longer to import than a report of a few cells

    ours, theirs = np.array(list(now.values())), np.array(list(before.values()))
    means = float(ours.mean()), float(theirs.mean())
    # Scores are stated to a hundredth at most: what is below a billionth is rounding.
    of_pairs = [now[seed] - before[seed] for seed in now.keys() & before.keys()]
    shared = np.round(of_pairs, 9)
    pairs = len(shared) if len(shared) >= MIN_PAIRS else 0
    if not pairs and min(len(ours), len(theirs)) < 2:
        return Difference(*means, math.nan, math.nan, math.nan, 0)
    middle = float(shared.mean()) if pairs else round(means[0] - means[1], 9)
    if not any(map(np.ptp, [shared] if pairs else [ours, theirs])):
        # Without any spread t is infinite, or 0/0 where nothing has changed.
        return Difference(*means, middle, middle, float(not middle), pairs)
    # Welch's form of the second test, because nothing says that two sweeps scatter alike.
    test = ttest_1samp(shared, 0) if pairs else ttest_ind(ours, theirs, equal_var=False)
    interval = test.confidence_interval(0.95)
    return Difference(*means, float(interval.low), float(interval.high), float(test.pvalue), pairs)


def _paired(now: Sequence[Row], before: Sequence[Row]) -> list[tuple[Row | None, Row | None]]:
    """Find which rows belong together."""
    former = {(row.label, row_settings(row.first)): row for row in before}
    same = [former.pop((row.label, row_settings(row.first)), None) for row in now]
    for place, row in enumerate(now):
        alike = [i for i, other in enumerate(now) if other.label == row.label]
        unpaired = [i for i in alike if same[i] is None]
        left = [key for key in former if key[0] == row.label]
        # With two rows left on one side, nobody can tell which of them has become which.
        if unpaired == [place] and len(left) == 1:
            same[place] = former.pop(left[0])
    gone = [(None, row) for row in former.values()]
    return [*zip(now, same, strict=True), *gone]


def _differing(before: Row, now: Row) -> dict[str, tuple[str, str]]:
    """Return the settings that differ: full name -> former and present value."""
    old, new = before.first.settings, now.first.settings
    found = {}
    for key in dict.fromkeys((*new, *old)):
        if key not in _NOT_SETTINGS and old.get(key) != new.get(key):
            found[key] = old.get(key, DASH), new.get(key, DASH)
    return found
