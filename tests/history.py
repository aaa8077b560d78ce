"""The epochs of a run, and what two runs must agree on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regbench.benchmark.rundir.checkpoint import load_checkpoint
from regbench.benchmark.rundir.record import Record
from tests.there import there

TRAINED = (
    *("loss", "alignment", "uniformity", "effective_rank", "feature_spread"),
    *("learning_rate", "terms"),
)
"""Numbers of an epoch that the training alone decides."""


def trained(record: Record) -> list[dict[str, Any]]:
    """The numbers of each epoch that the training alone decides."""
    return [{key: row[key] for key in TRAINED} for row in record.history]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    """The weights of the last checkpoint, with BN's statistics and a teacher's."""
    loaded = there(load_checkpoint(directory))
    return {**loaded[0]["network"], **loaded[0].get("teacher", {})}


def assert_same(one: Record, other: Record, *, curves: bool = True) -> None:
    """Compare what two runs of a cell must agree on to the last bit; `curves`: those too."""
    assert (one.scores, one.choice, trained(one)) == (other.scores, other.choice, trained(other))
    if curves:
        first, second = ([row.get("scores") for row in each.history] for each in (one, other))
        assert first == second
    found, expected = weights(one.path.parent), weights(other.path.parent)
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def untimed(record: Record) -> list[dict[str, Any]]:
    """The rows without seconds and milliseconds, in which no two runs agree."""
    return [
        {k: v for k, v in row.items() if not k.endswith(("_s", "_ms"))} for row in record.history
    ]


def all_digits(record: Record) -> list[dict[str, Any]]:
    """The rows as the last checkpoint holds them: the file of the history has six digits of
    each number.
    """
    loaded = there(load_checkpoint(record.path.parent))
    rows: list[dict[str, Any]] = loaded[0]["progress"]["history"]
    return rows
