"""Search spaces: the values of a hyperparameter that a tuning tries, stated with the plug-in
that it belongs to.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from regbench.errors import RegbenchError

Factor = Literal["1", "q", "1/q", "min(n, q)", "log(n)"]
_FACTORS: Mapping[str, Callable[[int, int], float]] = {
    "1": lambda n, q: 1.0,
    "q": lambda n, q: q,
    "1/q": lambda n, q: 1 / q,
    "min(n, q)": lambda n, q: min(n, q),
    "log(n)": lambda n, q: math.log(n),
}


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both in units of `times`.

    A tuning whose best value lies at an end goes on beyond it, but never beyond `least` and `most`.

    Attributes:
        low: The lower end.
        high: The upper end.
        scale: Scale on which values are spread evenly: "log", "linear", or "logit" for a weight λ
            beside 1 − λ: then the odds λ/(1 − λ) are on a logarithmic scale.
        times: Factor of both ends, where theory says how the hyperparameter moves with the
            embedding dimension q or the batch size n.
        balances: Whether it is the number that weighs the method's alignment against its
            regularizer.
        least: The smallest value that there is, for a range that may reach it.
        most: The largest value that there is.
    """

    low: float
    high: float
    scale: Literal["log", "linear", "logit"] = "log"
    times: Factor = "1"
    balances: bool = False
    least: float = -math.inf
    most: float = math.inf

    def __post_init__(self) -> None:
        """Refuse a range without numbers on its scale."""
        bounds = {"log": (0.0, math.inf), "linear": (-math.inf, math.inf), "logit": (0.0, 1.0)}
        least, most = bounds[self.scale]
        if not least < self.low < self.high < most:
            within = {"log": ", above 0", "linear": "", "logit": ", between 0 and 1"}[self.scale]
            raise RegbenchError(
                f"range from {self.low:g} to {self.high:g} on a {self.scale} scale: give finite "
                f"numbers{within}, from a smaller to a larger one"
            )

    def at(self, n: int, q: int) -> Range:
        """Return the range in plain numbers, for batch size n and embedding dimension q."""
        factor = _FACTORS[self.times](n, q)
        return replace(self, low=self.low * factor, high=self.high * factor, times="1")

    def position(self, value: float) -> float:
        """Return where a value lies: 0 at the lower end, 1 at the upper one, even on the scale."""
        low, high, own = map(self._forward, (self.low, self.high, value))
        return (own - low) / (high - low)

    def value(self, position: float) -> float:
        """Return the value at a position, see `position`, to three digits.

        Positions beyond the ends give values up to `least` and `most`.
        """
        low, high = map(self._forward, (self.low, self.high))
        own = low + position * (high - low)
        if self.scale == "logit":
            # Beyond 30 the smaller weight is below 1e-13, and far out exp would overflow.
            # Three digits of the smaller of both weights: 0.9991 is another value than 0.999.
            small = float(f"{1 / (1 + math.exp(min(abs(own), 30.0))):.3g}")
            found = small if own < 0 else round(1 - small, 16)
        else:
            found = float(f"{math.exp(own) if self.scale == 'log' else own:.3g}")
        return min(self.most, max(self.least, found))

    def _forward(self, value: float) -> float:
        if self.scale == "linear":
            return value
        if self.scale == "logit":
            value = value / (1 - value)
        return math.log(value)

    def __str__(self) -> str:
        """Word the range."""
        unit = "" if self.times == "1" else f" × {self.times}"
        role = "; weighs alignment against the regularizer" if self.balances else ""
        return f"{self.low:g}{unit} to {self.high:g}{unit}, {self.scale} scale{role}"


@dataclass(frozen=True)
class Choice:
    """A choice between values that have no order.

    Attributes:
        values: All of them.
    """

    values: tuple[Any, ...]

    def at(self, n: int, q: int) -> Choice:
        """Return it as it is, at every batch size and embedding dimension."""
        return self

    def value(self, position: float) -> Any:
        """Return the value at a position from 0 to 1, of which each value has an equal part."""
        return self.values[min(int(position * len(self.values)), len(self.values) - 1)]

    def __str__(self) -> str:
        """Word the choice."""
        return ", ".join(map(str, self.values))


Space = Mapping[str, Range | Choice]
"""Hyperparameters by name; those that are left out keep their values."""

DIMENSIONS = 6
"""Most dimensions of a search: in more, the first points of `halton` lie on few lines."""


def halton(index: int, dimensions: int, shift: int = 0) -> list[float]:
    """Return point `index`, from 0, of Halton's sequence, which fills the unit cube evenly however
    many are taken.

    A shift other than 0 moves all points alike, modulo the cube (Cranley and Patterson 1976):
    sequences of different shifts fill the cube as evenly, and independently of each other.
    """
    from scipy.stats.qmc import Halton  # takes a second to import, and only searches need it

    sequence = Halton(dimensions, scramble=False)
    sequence.fast_forward(index + 1)  # beyond the origin, which is a corner and not within
    point: list[float] = sequence.random()[0].tolist()
    if shift:
        drawn = random.Random(shift)  # Python promises the same numbers in all of its versions
        point = [(place + drawn.random()) % 1 for place in point]
    return point
