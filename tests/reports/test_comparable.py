"""Which settings decide what a record compares with."""

from __future__ import annotations

import pytest

from regbench.reports.rows.comparable import (
    configuration_settings,
    is_setting,
    row_settings,
    task_of,
    varying_settings,
)
from tests.records import made

# What a cell states -> whether two rows differ in it, and two tasks.
DECIDES = {
    "dataset.name": (True, True),
    "network.backbone.name": (True, True),
    "network.projector.width": (True, False),
    "network.statistics": (True, False),
    "evaluation.knn.k": (True, True),
    "evaluation.knn.other_k": (False, False),
    "evaluation.probe.epochs": (True, True),
    "evaluation.probe.learning_rates": (False, False),
    "evaluation.precision": (True, True),
    "evaluation.select_on": (True, True),
    "evaluation.select_by": (False, False),
    "evaluation.voc07.costs": (False, False),
    "embedding_dim": (True, False),
    "batch_size": (True, False),
    "epochs": (True, False),
    "augmentation.name": (True, False),
    "optimizer.name": (True, False),
    "optimizer.base_lr": (False, False),
    "method.name": (False, False),
    "seed": (False, False),
    "external.sha256": (False, False),
    "baseline": (False, False),
}


def test_what_makes_a_row_and_a_task() -> None:
    cell: dict[str, object] = {}
    for key in DECIDES:
        group = cell
        *groups, name = key.split(".")
        for each in groups:
            group = group.setdefault(each, {})  # type: ignore[assignment]
        group[name] = 7
    cell["dataset"], cell["network"]["backbone"] = {"name": "7"}, {"name": "7"}  # type: ignore[index]
    record = made(cell)
    assert {key: is_setting(key) for key in DECIDES} == {
        key: row for key, (row, _) in DECIDES.items()
    }
    assert {key for key, _ in row_settings(record)} == {
        key for key, (row, _) in DECIDES.items() if row
    }
    of_task = {key for key, (_, task) in DECIDES.items() if task}
    assert (task_of(record)[0], {key for key, _ in task_of(record)[1]}) == (False, of_task)
    assert task_of(record, row_settings(record)) == task_of(record)
    beside = {"seed", "evaluation.select_by", "evaluation.voc07.costs"}
    assert {key for key, _ in configuration_settings(record)} == DECIDES.keys() - beside
    assert task_of(made(cell, choice={"probe": {"selected_on": "test"}}))[0]


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([{"a": "1", "epochs": "3"}, {"a": "1", "epochs": "3"}], []),
        ([{"a": "1", "epochs": "3"}, {"a": "2", "epochs": "4"}], ["epochs"]),
        ([{"b": "1", "a": "3"}, {"b": "2", "a": "4"}], ["a"]),
        (
            [{"batch_size": "1", "embedding_dim": "3"}, {"batch_size": "2", "embedding_dim": "4"}],
            ["embedding_dim"],
        ),
        ([{"b": "1", "a": "3"}, {"b": "2", "a": "3"}, {"b": "2"}], ["a", "b"]),
        ([{"a": "1", "network.predictor.depth": "0"}, {"a": "2"}], ["network.predictor.depth"]),
    ],
)
def test_settings_that_tell_rows_apart(rows: list[dict[str, str]], shown: list[str]) -> None:
    assert varying_settings(tuple(row.items()) for row in rows) == shown
