"""Judge a challenger against finished rows.

The rows have their few seeds and get no more, so a challenger's seeds only narrow its own part of a
difference. The test is of two samples: Student's t, where the variance of a row is that of
all trained rows plus its own, as in `Tukey`. Its level is shared equally (Bonferroni) by all rows.
So no false claim is made in 95 of 100 challenges.

Rows of repeated searches have a score for each search. The challenger has one search, and its seeds
do not show what another search would choose: its mean is one such score, which scatters as those of
the rows do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regbench.reports.rows.significance import LEVEL, own_weight


@dataclass(frozen=True)
class Verdict:
    """The verdict on a challenger beside one row.

    Attributes:
        label: Name of the row.
        difference: Mean of the challenger minus the row's, in the unit of the score.
        half_width: Half the width of the difference's interval. All intervals of a challenge
            hold together.
    """

    label: str
    difference: float
    half_width: float

    @property
    def words(self) -> str:
        """The verdict: "better than", "worse than" or "not significantly different from"."""
        # A width that is not known, NaN, tells nothing apart.
        if not abs(self.difference) > self.half_width:
            return "not significantly different from"
        return "better than" if self.difference > 0 else "worse than"


def verdicts(
    challenger: Sequence[float],
    trained: Mapping[str, Sequence[float]],
    untrained: Mapping[str, Sequence[float]],
    shifts: Sequence[float],
    *,
    of_searches: bool = False,
) -> list[Verdict]:
    """Compare a challenger with each row.

    Args:
        challenger: Scores of the challenger, one for each seed, `MIN_PAIRS` at least. More is
            better.
        trained: Scores of each row that was trained, in the order of the verdicts.
        untrained: The same for rows that nothing was trained for. They scatter less, so the common
            spread is not taken from them.
        shifts: Points that repeated cells scored more on this machine than where the rows are from.
        of_searches: Whether the rows' scores are those of repeated searches, and not of seeds.
    """
    from scipy.stats import t  # takes longer to import than a report of a few cells

    samples = [np.asarray(scores) for scores in trained.values()]
    if not of_searches:
        samples.append(np.asarray(challenger))
    freedom = sum(len(sample) - 1 for sample in samples)
    squares = sum(float(sample.var(ddof=1)) * (len(sample) - 1) for sample in samples)
    rows = {**trained, **untrained}
    # Two-sided, and shared by all rows.
    critical = float(t.ppf(1 - LEVEL / (2 * len(rows)), freedom))
    weight = own_weight(len(trained) + 1)

    def variance(scores: Sequence[float]) -> float:
        return squares / freedom + weight * float(np.var(scores, ddof=1))

    # The machines' effect and the search are the same for all seeds of the challenger, so no number
    # of seeds averages them away.
    shared = float(np.mean(np.square(shifts)))
    if of_searches:
        shared += (1 + weight) * squares / freedom
        own = 0.0
    else:
        own = variance(challenger)
    found = []
    for label, scores in rows.items():
        difference = float(np.mean(challenger) - np.mean(scores))
        fixed = variance(scores) / len(scores) + shared
        half_width = critical * math.sqrt(own / len(challenger) + fixed)
        found.append(Verdict(label, difference, half_width))
    return found


def select(found: Sequence[Verdict], words: str) -> list[Verdict]:
    """Return the verdicts with these words."""
    return [verdict for verdict in found if verdict.words == words]
