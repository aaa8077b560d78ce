"""What losses cost: the grid is complete, ranks work together, tables and figures show it,
refusals are plain.
"""

from __future__ import annotations

import csv
import io
import math
import re
import resource
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regbench import methods
from regbench.benchmark.machine.meters import draw_embeddings
from regbench.instruments.cost import harness, timing
from regbench.instruments.cost.losses import Grid, cases, measure, table
from regbench.instruments.cost.timing import LossCost
from regbench.methods.forms.engine import Engine
from regbench.processes import Place, Processes, WorkFailed
from tests.refusals import is_refused

CPU = torch.device("cpu")
EXAMPLE = LossCost(method="vicreg", form="gram", auto=True, n=64, q=32, views=2, ranks=1)


def measured(rows: Sequence[LossCost], repeats: int, left_s: float = math.inf) -> list[LossCost]:
    return timing.measure_rows(CPU, rows, torch.float32, repeats, left_s)


# ------------------------------------------------------------------ what all measurements share


def test_turns_are_taken_there_and_back() -> None:
    order: list[str] = []

    def turn(name: str) -> int:
        order.append(name)
        return len(order)

    turns = harness.take_turns({name: partial(turn, name) for name in "abc"}, 2)
    assert turns == {"a": [1, 6], "b": [2, 5], "c": [3, 4]}
    assert "".join(order) == "abccba"


def test_ratios_are_of_one_round() -> None:
    assert harness.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert harness.ratios([2.0, 9.0], [1.0]) == harness.ratios([2.0], None) == []
    assert (harness.median([1.0, 9.0, 2.0]), harness.median([])) == (2.0, None)


def test_numbers_have_three_digits() -> None:
    shown = [harness.number(value) for value in (None, 0.0, 0.012345, 12.345, 12345.0)]
    assert shown == ["–", "0", "0.0123", "12.3", "12,345"]
    assert (harness.span([3.0, 1.0, 2.0]), harness.span([])) == ("1.00–3.00", "–")


# ------------------------------------------------------------------ one process


def test_memory_of_the_textbook_is_more_than_that_of_the_stream_and_the_same_twice() -> None:
    gram = replace(EXAMPLE, method="sfrik_l3", n=1024, q=128)
    found = measured([gram, replace(gram, form="textbook")], repeats=0)
    stream_bytes, textbook_bytes = (row.extra_bytes for row in found)
    assert stream_bytes is not None and textbook_bytes is not None
    assert stream_bytes == measured([gram], repeats=0)[0].extra_bytes
    assert stream_bytes < textbook_bytes / 4
    assert textbook_bytes >= 2 * 1024**2 * 4  # two Gram matrices at the very least


def test_a_call_keeps_no_gradients_for_the_next_to_count() -> None:
    views = [torch.randn(8, 4) for _ in range(2)]
    run = timing.value_and_gradient(methods.build("vicreg"), views, Engine())
    gradients = run()
    assert [gradient.shape for gradient in gradients] == [(8, 4)] * 2
    freed: list[int] = []
    for number_of_view, gradient in enumerate(gradients):
        weakref.finalize(gradient.untyped_storage(), freed.append, number_of_view)
    del gradient, gradients
    assert sorted(freed) == [0, 1]


def test_each_form_is_timed_in_each_round_though_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no\nluck")

    monkeypatch.setattr(type(methods.build("vicreg")), "view_terms", broken)
    rounds: list[Mapping[Any, list[float]]] = []

    def noted(turns: Mapping[Any, Callable[[], float]], repeats: int) -> dict[Any, list[float]]:
        rounds.append(harness.take_turns(turns, repeats))
        return dict(rounds[-1])

    monkeypatch.setattr(timing, "take_turns", noted)
    forms = ("textbook", "gram", "covariance")
    small = replace(EXAMPLE, n=24, q=16)
    rows = [replace(small, form=form, views=views) for form in forms for views in (2, 3)]
    found = measured(rows, repeats=3)
    assert [row.note for row in found] == ["failed: ValueError: no luck"] * 2 + [""] * 4
    assert all(row.median_ms and row.extra_bytes for row in found[2:])
    assert not any(row.median_ms or row.extra_bytes for row in found[:2])
    (of_all,) = rounds
    assert len(of_all) == 4
    assert all(len(times) == 3 and min(times) > 0 for times in of_all.values())


def test_what_is_timed_is_the_loss() -> None:
    views = draw_embeddings(12, 5, 4, torch.float64, CPU)
    method = methods.build("sfrik_l3")
    leaves = [view.clone().requires_grad_() for view in views]
    loss = method.loss(*leaves, engine=Engine(form="textbook"), global_views=2)
    expected = torch.autograd.grad(loss, leaves)
    found = timing.value_and_gradient(method, views, Engine(form="gram"))()
    torch.testing.assert_close(list(found), list(expected))


# ------------------------------------------------------------------ the grid


def test_losses_are_measured_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's default
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    timing.join(Place(0, 1, ""), "cpu", 2**30)
    assert not torch.backends.cudnn.allow_tf32


def test_the_cases_are_complete_and_in_order() -> None:
    grid = Grid(
        methods=("sfrik_l2", "simclr"), n=(33, 16), q=(8,), views=(4, 2), ranks=(2, 1), device="cpu"
    )
    forms = {"sfrik_l2": ["textbook", "gram", "covariance"], "simclr": ["textbook", "gram"]}
    assert [(row.method, row.n, row.ranks, row.form, row.views) for row in cases(grid)] == [
        (method, n, ranks, form, views)
        for method in ("sfrik_l2", "simclr")
        for n in (16, 33)
        for ranks in (1, 2)
        for form in forms[method]
        for views in (2, 4)
    ]


def test_forms_asked_for() -> None:
    grid = Grid(
        methods=("vicreg", "auh"), n=(8,), q=(4,), ranks=(9,), forms=("auto", "gram", "covariance")
    )
    assert [(row.method, row.form, row.auto, row.note) for row in cases(grid)] == [
        ("vicreg", "covariance", True, "fewer embeddings than ranks"),
        ("vicreg", "gram", False, "fewer embeddings than ranks"),
        ("auh", "gram", True, "fewer embeddings than ranks"),
        ("auh", "covariance", False, "has no covariance form"),
    ]


@pytest.fixture(scope="module")
def rows() -> list[LossCost]:
    grid = Grid(methods=("sfrik_l2",), n=(33,), q=(40,), ranks=(2, 1), repeats=2, device="cpu")
    return measure(grid)


def test_everything_is_measured(rows: list[LossCost]) -> None:
    assert [(row.ranks, row.form) for row in rows] == [
        (ranks, form) for ranks in (1, 2) for form in ("textbook", "gram", "covariance")
    ]
    for row in rows:
        assert not row.note
        assert row.median_ms and row.low_ms and row.high_ms and row.extra_bytes
        assert 0 < row.low_ms <= row.median_ms <= row.high_ms
        assert row.vs_textbook and row.vs_one_rank
        if row.ranks == 1:
            assert row.vs_one_rank == 1
            assert row.form != "textbook" or row.vs_textbook == 1


def test_every_form_is_compared_with_that_of_as_many_views_and_ranks() -> None:
    shared_ms = {("textbook", 2): 8.0, ("gram", 2): 4.0, ("textbook", 4): 24.0, ("gram", 4): 6.0}
    times_ms: dict[tuple[str, str, int], list[float]] = {}
    for variant, ms in shared_ms.items():
        times_ms["shared", *variant], times_ms["alone", *variant] = [ms], [10 * ms]
    found = {}
    grid = Grid(methods=("auh",), n=(8,), q=(4,), views=(2, 4), ranks=(1, 3), device="cpu")
    for row in cases(grid):
        timed = timing.with_times(row, times_ms)
        ms = shared_ms[row.form, row.views]
        assert timed.median_ms == timed.low_ms == timed.high_ms == ms
        compared = (timed.vs_textbook, timed.vs_one_rank, timed.vs_two_views)
        found[row.ranks, row.form, row.views] = compared
    assert found == {
        (1, "textbook", 2): (1.0, 1.0, 1.0),
        (1, "gram", 2): (0.5, 1.0, 1.0),
        (1, "textbook", 4): (1.0, 1.0, 3.0),
        (1, "gram", 4): (0.25, 1.0, 1.5),
        (3, "textbook", 2): (0.1, 0.1, 1.0),
        (3, "gram", 2): (0.05, 0.1, 1.0),
        (3, "textbook", 4): (0.1, 0.1, 3.0),
        (3, "gram", 4): (0.025, 0.1, 1.5),
    }


def test_beyond_the_budget_the_costliest_is_left_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    textbook = replace(EXAMPLE, method="sfrik_l3", n=512, q=64, form="textbook")
    gram = replace(textbook, form="gram")
    assert all(row.median_ms for row in measured([textbook, gram], repeats=1))
    found = measured([textbook, gram], repeats=2, left_s=0.0)
    assert all(row.note.startswith("left out: about ") and row.extra_bytes for row in found)
    assert all("over what is left of the budget" in row.note for row in found)
    assert all(row.median_ms is None for row in found)
    # the first call of each takes three seconds and two: both leave seven
    times_s = iter((0.0, 3.0, 3.0, 5.0))
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(times_s)))
    costly, cheap = measured([textbook, gram], repeats=1, left_s=12.0)
    assert costly.note.startswith("left out: about 6 s") and cheap.median_ms
    monkeypatch.undo()
    grid = Grid(methods=("auh",), n=(8,), q=(4,), device="cpu", budget_s=1e-9)
    assert {row.note for row in measure(grid)} == {"left out: the budget of 1e-09 s is spent"}


def test_what_needs_more_memory_than_the_limit_is_left_out_and_nothing_else() -> None:
    """The textbook's Gram matrices of 2⁸ MiB each do not fit into 2⁸ MiB beside what the
    runtime is granted.
    """
    grid = Grid(
        methods=("auh",), n=(8192,), q=(8,), repeats=0, device="cpu", memory_limit_bytes=2**28
    )
    notes = {row.form: row.note for row in measure(grid)}
    assert notes == {"textbook": "left out: it needs more memory than the limit", "gram": ""}


def test_a_process_that_ends_leaves_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: Processes, *arguments: object) -> Sequence[object]:
        raise WorkFailed("rank 0 was ended by signal 9")

    monkeypatch.setattr(Processes, "ask", ask)
    (row,) = measure(Grid(methods=("auh",), n=(8,), q=(4,), forms=("gram",), device="cpu"))
    assert row.note == "failed: rank 0 was ended by signal 9"
    assert row.median_ms is None and row.extra_bytes is None
    assert row.note in table([row])


# ------------------------------------------------------------------ tables and figures


def test_table_and_csv(rows: list[LossCost]) -> None:
    odd = replace(EXAMPLE, note='left out: "2 GiB", over\nit', extra_bytes=0)
    machine = Grid(device="cpu", threads=2).machine
    assert "gram*" in table(rows)
    assert "threads 2, dtype float32" in harness.in_words(machine)
    text = harness.to_csv([asdict(row) for row in [*rows, odd]], machine)
    lines = csv.DictReader(io.StringIO(text, newline=""))
    for row, line in zip([*rows, odd], lines, strict=True):
        expected = {key: "" if value is None else str(value) for key, value in asdict(row).items()}
        assert expected.items() <= line.items()
        assert (line["torch"], line["dtype"], line["threads"]) == (version("torch"), "float32", "2")


# ------------------------------------------------------------------ refusals


def test_refusals() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"methods": ("vicregg",)}, "unknown method 'vicregg'"),
        ({"forms": ("gramm",)}, "unknown form 'gramm'; choose auto, gram"),
        ({"n": (1,)}, "n=[1] must be a list of whole numbers, each at least 2"),
        ({"q": ()}, "q=[] must be a list"),
        ({"ranks": (0,)}, "ranks=[0] must be"),
        ({"threads": 0}, "threads=0 must be"),
        ({"repeats": -1}, "repeats=-1 must be a whole number, at least 0"),
        ({"budget_s": 0.0}, "budget_s=0.0 must be a number, above 0"),
        ({"budget_s": math.nan}, "budget_s=nan must be"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes=0 must be"),
        ({"dtype": "int8"}, "dtype=int8 must be float32, float64 or bfloat16"),
        ({"device": "tpu"}, "device=tpu must be auto, cpu or cuda"),
    ]
    if not torch.cuda.is_available():
        wrong.append(({"device": "cuda"}, "no CUDA device"))
    for settings, message in wrong:
        with is_refused(re.escape(message)):
            Grid(**settings)
