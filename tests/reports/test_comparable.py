"""Which settings decide what a record compares with."""

from __future__ import annotations

import pytest

from regbench.reports.rows import comparable
from tests.records import made

# What a cell states that tells tasks apart, what tells rows apart, and what does neither.
OF_TASKS = {"dataset.name", "network.backbone.name", "evaluation.knn.k", "evaluation.probe.epochs"}
OF_TASKS |= {"evaluation.precision", "evaluation.select_on"}
OF_ROWS = OF_TASKS | {"network.projector.width", "network.statistics", "embedding_dim", "epochs"}
OF_ROWS |= {"batch_size", "augmentation.name", "optimizer.name"}
OF_NEITHER = {"evaluation.knn.other_k", "evaluation.probe.learning_rates", "evaluation.select_by"}
OF_NEITHER |= {"evaluation.voc07.costs", "optimizer.base_lr", "method.name", "seed"}
OF_NEITHER |= {"external.sha256", "baseline"}


def test_what_makes_a_row_and_a_task() -> None:
    cell: dict[str, object] = {}
    for key in sorted(OF_ROWS | OF_NEITHER):
        group = cell
        *groups, name = key.split(".")
        for each in groups:
            group = group.setdefault(each, {})  # type: ignore[assignment]
        group[name] = 7
    cell["dataset"], cell["network"]["backbone"] = {"name": "7"}, {"name": "7"}  # type: ignore[index]
    record = made(cell)
    assert {key for key in OF_ROWS | OF_NEITHER if comparable.is_setting(key)} == OF_ROWS
    assert {key for key, _ in comparable.row_settings(record)} == OF_ROWS
    on_test, of_task = comparable.task_of(record)
    assert (on_test, {key for key, _ in of_task}) == (False, OF_TASKS)
    assert comparable.task_of(record, comparable.row_settings(record)) == (on_test, of_task)
    beside = {"seed", "evaluation.select_by", "evaluation.voc07.costs"}
    configuration = {key for key, _ in comparable.configuration_settings(record)}
    assert configuration == (OF_ROWS | OF_NEITHER) - beside
    assert comparable.task_of(made(cell, choice={"probe": {"selected_on": "test"}}))[0]


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
    assert comparable.varying_settings(tuple(row.items()) for row in rows) == shown
