"""Choose the cells of a bundle to compute again, and judge how near their scores come."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
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

    finished = [record for record in bundle.records if record.status == "done"]
    # Weights from elsewhere were not trained by regbench, which therefore cannot do it again.
    able = [record for record in finished if "external" not in record.cell]
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
    noise = {} if alike or not trained else _noise(bundle.records)
    how = "it was trained again" if trained else "its weights were evaluated again"
    lines = []
    for score in record.scores:
        value = found.get((score.name, score.split))
        if value is None:
            # Later evaluations are not done when a cell is trained again.
            if (record.cell_id, score.name, score.split) not in bundle.later:
                lines.append(f"{record.path}: {score.name} on {score.split} did not come again")
            continue
        tolerance = 0.0 if alike else _tolerance(score, trained=trained, noise=noise)
        if abs(value - score.value) > tolerance:
            rule = "they must be equal" if alike else f"{tolerance:.2g} is the tolerance"
            lines.append(
                f"{record.path}: {score.name} on {score.split} is {score.value:.6g} there and "
                f"{value:.6g} here, where {how}; {rule}"
            )
    return lines


def _tolerance(score: Score, *, trained: bool, noise: Mapping[tuple[str, str], float]) -> float:
    least = _EVALUATED_POINTS if score.unit == "%" else _EVALUATED_SHARE * abs(score.value)
    if not trained:
        return least
    spread = noise.get((score.name, score.split))
    return _UNKNOWN_NOISE * least if spread is None else max(least, _SPREADS * spread)


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
