"""Units that suit the values of a column or an axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from regbench.reports.rows.summary import Configuration


@dataclass(frozen=True)
class Unit:
    """A unit that suits the largest value of a column: text = value / divisor with that many
    decimals.
    """

    name: str
    divisor: float
    decimals: int


# Costs and measures for which one unit suits all values.
_FIXED = {
    "img_per_s": Unit("", 1, 0),
    "step_ms": Unit("ms", 1, 1),
    "loss_ms": Unit("ms/step", 1, 2),
    "effective_rank": Unit("", 1, 1),
}


def unit_of(rows: Iterable[Configuration], cost: str) -> Unit:
    """Choose the unit of a cost by its largest mean."""
    if cost in _FIXED:
        return _FIXED[cost]
    choices = {"s": time_unit, "bytes": memory_unit, "joules": energy_unit}
    return choices[cost.rpartition("_")[2]](largest(rows, cost))


def time_unit(largest_s: float) -> Unit:
    """Choose seconds up to ten minutes, minutes up to three hours, else hours."""
    if largest_s < 600:
        return Unit("s", 1, 1)
    return Unit("min", 60, 1) if largest_s < 3 * 3600 else Unit("h", 3600, 2)


def memory_unit(largest_bytes: float) -> Unit:
    """Choose MiB up to 4 GiB, else GiB."""
    if largest_bytes >= 4 * 2**30:
        return Unit("GiB", 2**30, 2)
    # The loss of a small batch takes a few MiB, and whole ones would not tell methods apart.
    return Unit("MiB", 2**20, 0 if largest_bytes >= 100 * 2**20 else 2)


def energy_unit(largest_joules: float) -> Unit:
    """Choose watt-hours up to ten kilowatt-hours, else kilowatt-hours."""
    return Unit("Wh", 3600, 2) if largest_joules < 10 * 3.6e6 else Unit("kWh", 3.6e6, 2)


def largest(rows: Iterable[Configuration], cost: str) -> float:
    """Return the largest mean of a cost; 0 if no row has it."""
    means = [found.mean for row in rows if (found := row.cost(cost))]
    return max([0.0, *means])


def energies(rows: Iterable[Configuration]) -> dict[str, str]:
    """Find the kinds of energy that were measured for any row, with the name of the cost."""
    costs = {kind: f"energy_{kind}_joules" for kind in ("gpu", "cpu")}
    return {kind: cost for kind, cost in costs.items() if largest(rows, cost)}
