"""Choose the cells of a bundle to compute again, and judge how near their scores come."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.settings.identity import configuration_id
from regbench.reports.bundle.bundle import Bundle

# The same weights evaluated on another machine give a score in per cent that differs by so much at
# most.
_EVALUATED_POINTS = 0.5

# The same of a score that is no percentage, as a share of it.
_EVALUATED_SHARE = 0.01

# Times as much where no configuration of the bundle has two seeds, so that nothing tells how much
# seeds differ.
_UNKNOWN_NOISE = 4.0

# Two runs differ by √2 standard deviations of one run; three of these are exceeded once in 400
# scores.
_SPREADS = 3 * math.sqrt(2)


def drawn_cells(bundle: Bundle, count: int) -> list[Record]:
    """Choose cells by the bundle's hash: nobody else can choose, and everybody finds the same."""

    def draw(record: Record) -> bytes:
        return hashlib.sha256(f"{bundle.sha256} {record.cell_id}".encode()).digest()

    able = []
    for record in bundle.records:
        # Weights from elsewhere were not trained by regbench, which therefore cannot do it again.
        if record.status == "done" and "external" not in record.cell:
            able.append(record)
    return sorted(able, key=draw)[:count]


def differences(
    bundle: Bundle, record: Record, scores: Sequence[Score], *, trained: bool, alike: bool
) -> list[str]:
    """List the scores of a cell that did not come again, a line each.

    Args:
        bundle: The bundle, whose seeds tell how much scores vary by themselves.
        record: Record of the cell.
        scores: Scores of the second computation.
        trained: Whether it was trained again; else its weights were evaluated again.
        alike: Whether the scores have to be equal to the last bit.
    """
    found = {(score.name, score.split): score.value for score in scores}
    how = "its weights were evaluated again"
    noise: dict[Any, float] = {}
    if trained:
        how = "it was trained again"
        noise = _noise(bundle.records)
    lines = []
    for score in record.scores:
        named = f"{record.path}: {score.name} on {score.split}"
        value = found.get((score.name, score.split))
        if value is None:
            # Later evaluations are not done when a cell is trained again.
            if (record.cell_id, score.name, score.split) not in bundle.later:
                lines.append(f"{named} did not come again")
            continue
        tolerance = _EVALUATED_SHARE * abs(score.value)
        if score.unit == "%":
            tolerance = _EVALUATED_POINTS
        spread = noise.get((score.name, score.split))
        if spread is not None:
            tolerance = max(tolerance, _SPREADS * spread)
        elif trained:
            tolerance *= _UNKNOWN_NOISE
        rule = f"{tolerance:.2g} is the tolerance"
        if alike:
            tolerance, rule = 0.0, "they must be equal"
        if abs(value - score.value) > tolerance:
            numbers = f"{score.value:.6g} there and {value:.6g} here"
            lines.append(f"{named} is {numbers}, where {how}; {rule}")
    return lines


def _noise(records: Sequence[Record]) -> dict[tuple[str, str], float]:
    """Find how much each score varies from seed to seed: the standard deviation pooled over
    configurations.
    """
    import pandas as pd  # takes longer to import than most bundles to verify

    rows = []
    for record in records:
        configuration = configuration_id(record.cell)
        for score in record.scores:
            rows.append((score.name, score.split, configuration, score.value))
    names = ["name", "split", "configuration"]
    # A single seed has no variance, and drops out.
    found = (
        pd.DataFrame(rows, columns=[*names, "value"])
        .groupby(names)["value"]
        .agg(["var", "count"])
        .dropna()
    )
    # Seeds of one configuration share its mean, so each gives one degree of freedom less than it
    # has seeds.
    freedom = found["count"] - 1
    squares = (found["var"] * freedom).groupby(names[:2]).sum()
    noise: dict[Any, float] = (squares / freedom.groupby(names[:2]).sum()).pow(0.5).to_dict()
    return noise
