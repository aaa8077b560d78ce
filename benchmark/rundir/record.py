"""Records of finished runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """One number that an evaluation gave a cell, with all that tables need to show it.

    Attributes:
        name: In a record, such as "linear_top1".
        value: In `unit`.
        split: That it was measured on.
        protocol: How it was measured, in words.
        title: What tables call it, without the unit, such as "linear top-1".
        unit: Such as "%"; empty for a pure number.
        higher_is_better: None where no value is the best.
    """

    name: str
    value: float
    split: str
    protocol: str
    title: str
    unit: str = "%"
    higher_is_better: bool | None = True
