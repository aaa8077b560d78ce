"""How easily a method is tuned: how far each of its hyperparameters may be off before it costs a point of accuracy.

Compared are trainings of equal length. A search trains few configurations for all epochs and more for a part of them,
so the length is taken of which there are most. The accuracy at a value is the best over the other hyperparameters that
were tried with it. As a search tries most values with one set of the others only, which may be a bad one, accuracy is
taken to fall off on both sides of the best: a value is at least as good as any that lies further out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbench.benchmark.rundir.record_parts import Searched
from regbench.reports.rows.summary import Configuration, Row, Summary, of_same_seeds

POINTS = 1.0
"""The range of a hyperparameter is where accuracy stays within so many percentage points of the best."""

MIN_VALUES = 3
"""With two values, the range would be the line between them."""

_Scored = tuple[Mapping[str, str], float | None]
"""Settings of a configuration, and its accuracy; None if it diverged."""

# Places on a scale of a value and back: equal steps are tried equally often by a search.
_FORWARD: Mapping[str, Callable[[float], float]] = {
    "log": math.log10,
    "linear": float,
    "logit": lambda value: math.log10(value) - math.log10(1 - value),
}
_BACK: Mapping[str, Callable[[float], float]] = {
    "log": lambda place: 10**place,
    "linear": float,
    "logit": lambda place: 1 / (1 + 10**-place),
}


@dataclass(frozen=True)
class Tolerance:
    """The values between which a method stays within `POINTS` of its best.

    Attributes:
        low: The smallest; between two that were tried, where the line between them crosses.
        high: The largest.
        low_open: Whether no worse value was tried below, so that the range may go on.
        high_open: The same above.
        width: In decades; of a linear scale in its own unit, of a logit scale in decades of the odds.
        lower_bound: Whether it may be wider: an end is open, or values were tried with unequal sets of the other
            hyperparameters, so that some may not have had the best ones.
    """

    low: float
    high: float
    low_open: bool
    high_open: bool
    width: float
    lower_bound: bool


@dataclass(frozen=True)
class Sensitivity:
    """How the accuracy of a method in one setting moves with one of its hyperparameters.

    Attributes:
        row: Row of the leaderboard.
        key: Full name of the hyperparameter.
        searched: Its scale and role.
        epochs: Length of the trainings that are compared.
        points: Value and accuracy of each configuration, by value; None if it diverged.
        envelope: The best accuracy at each value, as it is taken to be.
        chosen: The value in the leaderboard.
        tolerance: None where too few values were tried.
    """

    row: Row
    key: str
    searched: Searched
    epochs: int
    points: tuple[tuple[float, float | None], ...]
    envelope: tuple[tuple[float, float], ...]
    chosen: float
    tolerance: Tolerance | None

    @property
    def role(self) -> str:
        """What kind of hyperparameter it is: "weight" if it balances the loss's terms, "base_lr" or "other"."""
        if self.searched.balances:
            return "weight"
        return "base_lr" if self.key == "optimizer.base_lr" else "other"

    @property
    def best(self) -> float:
        """The best accuracy."""
        return max(accuracy for _, accuracy in self.envelope)


def forward(scale: str, value: float) -> float:
    """Return where a value lies on a scale on which values are spread evenly; a decade is 1 of it.

    Raises:
        ValueError: If the scale does not have the value.
    """
    return _FORWARD[scale](value)


def sensitivities(summary: Summary) -> list[Sensitivity]:
    """Find how each row's accuracy moves with the hyperparameters of which several values were tried.

    Accuracy is the score that chose, on the split that chose. Values of methods whose records state no range for them
    are left out.
    """
    # Where rows differ in their epochs, a short training might belong to any of them.
    by_epochs = "epochs" in summary.varying
    short = [] if by_epochs else summary.short
    keys = [key for key in summary.varying if key != "epochs"]
    groups: dict[tuple[str, ...], dict[int, list[Configuration]]] = {}
    for c in (*summary.configurations, *short):
        trained = not c.is_reference and "external" not in c.first.cell
        if trained and (c.diverged or c.score(summary.selection, summary.selection_split)):
            groups.setdefault(c.place(keys), {}).setdefault(int(c.first.cell["epochs"]), []).append(c)
    found = []
    for row in summary.rows:
        lengths = {} if row.is_reference else groups.get(row.place(keys), {})
        if by_epochs:
            own = row.first.cell["epochs"]
            lengths = {own: lengths[own]} if own in lengths else {}
        if not lengths:
            continue
        # Most configurations first, and of equally many the longer trainings.
        epochs = max(lengths, key=lambda length: (len(lengths[length]), length))
        scored = _scored(lengths[epochs], summary)
        for key, searched in row.first.searched.items():
            one = _sensitivity(row, key, searched, epochs, scored)
            if one is not None:
                found.append(one)
    return found


def _scored(configurations: Sequence[Configuration], summary: Summary) -> list[_Scored]:
    """Return the settings and the accuracy of each, over the seeds that all have."""
    scored: list[_Scored] = []
    for c, same in zip(configurations, of_same_seeds(configurations), strict=True):
        found = same.score(summary.selection, summary.selection_split)
        scored.append((c.first.settings, found.mean if found and not c.diverged else None))
    return scored


def _sensitivity(row: Row, key: str, searched: Searched, epochs: int, scored: Sequence[_Scored]) -> Sensitivity | None:
    """Compare the accuracy at the values of a hyperparameter; None where fewer than two values were tried."""
    points: list[tuple[float, float | None]] = []
    # The sets of the other hyperparameters that each value was tried with.
    others: dict[float, set[tuple[str | None, ...]]] = {}
    for settings, accuracy in scored:
        value = _on_scale(settings, key, searched)
        if value is not None:
            points.append((value, accuracy))
            others.setdefault(value, set()).add(tuple(settings.get(k) for k in row.first.searched if k != key))
    points.sort(key=lambda point: point[0])
    chosen = _on_scale(row.first.settings, key, searched)
    best: dict[float, float] = {}  # of a configuration that diverged the accuracy counts as none
    for value, accuracy in points:
        best[value] = max(best.get(value, 0.0), accuracy or 0.0)
    if len(best) < 2 or chosen is None or not any(best.values()):
        return None
    envelope = _falling_off(np.array(list(best.values())))
    tolerance = None
    if len(best) >= MIN_VALUES:
        unequal = len(set(map(frozenset, others.values()))) > 1
        places = np.array([forward(searched.scale, value) for value in best])
        tolerance = _tolerance(places, envelope, searched.scale, unequal=unequal)
    along = tuple(zip(best, envelope.tolist(), strict=True))
    return Sensitivity(row, key, searched, epochs, tuple(points), along, chosen, tolerance)


def _on_scale(settings: Mapping[str, str], key: str, searched: Searched) -> float | None:
    """Return a setting's value; None where it is no number that its scale has."""
    try:
        value = float(settings.get(key, ""))
        forward(searched.scale, value)
    except ValueError:
        return None
    return value


def _falling_off(accuracies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the least accuracies at or above these that fall off on both sides of the best."""
    top = int(accuracies.argmax())
    left, right = accuracies[: top + 1], accuracies[top + 1 :]
    return np.concatenate([np.maximum.accumulate(left), np.maximum.accumulate(right[::-1])[::-1]])


def _tolerance(places: NDArray[np.float64], envelope: NDArray[np.float64], scale: str, *, unequal: bool) -> Tolerance:
    level = envelope.max() - POINTS
    inside = np.flatnonzero(envelope >= level)
    first, last = int(inside[0]), int(inside[-1])
    low, high = places[first], places[last]
    if first > 0:
        low = np.interp(level, envelope[[first - 1, first]], places[[first - 1, first]])
    if last < len(places) - 1:
        high = np.interp(level, envelope[[last + 1, last]], places[[last + 1, last]])
    opens = first == 0, last == len(places) - 1  # no worse value was tried on that side
    back = _BACK[scale]
    return Tolerance(back(float(low)), back(float(high)), *opens, float(high - low), unequal or any(opens))
