"""What losses cost: the grid is complete, ranks work together, tables and figures show it, refusals are plain."""

from __future__ import annotations

import csv
import math
import re
import weakref
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regbench import RegbenchError, methods
from regbench.instruments.cost import losses
from regbench.instruments.cost.grid import Grid, LossCost, cases
from regbench.instruments.cost.harness import median, number, ratios, span, table, take_turns, to_csv
from regbench.instruments.cost.losses import measure
from regbench.instruments.cost.ranks import (
    Case,
    Measured,
    Prediction,
    Rank,
    Variant,
    gemm_floor,
    measure_variants,
    predict,
    value_and_gradient,
)
from regbench.methods.engine import Engine
from regbench.processes import Processes, WorkFailed
from regbench.reports.page.cost_curves import cost_png

EXAMPLE = LossCost(
    method="vicreg", form="gram", auto=True, n=64, q=32, views=2, ranks=1, embedding_bytes=2 * 64 * 32 * 4
)


def extra_bytes(case: Case, form: str) -> int:
    return measure_variants(Rank(), case, [Variant(form, 2)], repeats=0).extra_bytes[Variant(form, 2)]


# ------------------------------------------------------------------ what all measurements share


def test_turns_are_taken_there_and_back() -> None:
    order: list[str] = []

    def turn(name: str) -> int:
        order.append(name)
        return len(order)

    assert take_turns({name: partial(turn, name) for name in "abc"}, 2) == {"a": [1, 6], "b": [2, 5], "c": [3, 4]}
    assert "".join(order) == "abccba"


def test_ratios_are_of_one_round() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert ratios([2.0, 9.0], [1.0]) == ratios([2.0], None) == []
    assert (median([1.0, 9.0, 2.0]), median([])) == (2.0, None)


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (None, 0.0, 0.012345, 12.345, 12345.0)] == ["–", "0", "0.0123", "12.3", "12,345"]
    assert (span([3.0, 1.0, 2.0]), span([])) == ("1.00–3.00", "–")


# ------------------------------------------------------------------ one process


def test_memory_of_the_textbook_is_more_than_that_of_the_stream_and_the_same_twice() -> None:
    case = Case(method="sfrik_l3", n=1024, q=128)
    gram, again, textbook = (extra_bytes(case, form) for form in ("gram", "gram", "textbook"))
    assert gram == again < textbook / 4
    assert textbook >= 2 * 1024**2 * 4  # two Gram matrices at the very least


def test_a_call_keeps_no_gradients_for_the_next_to_count() -> None:
    run = value_and_gradient(methods.build("vicreg"), [torch.randn(8, 4) for _ in range(2)], Engine())
    gradients = run()
    assert [gradient.shape for gradient in gradients] == [(8, 4)] * 2
    freed: list[int] = []
    for number_of_view, gradient in enumerate(gradients):
        weakref.finalize(gradient.untyped_storage(), freed.append, number_of_view)
    del gradient, gradients
    assert sorted(freed) == [0, 1]


@pytest.mark.parametrize(("n", "q"), [(6, 10), (9, 4)])
def test_gemm_floor(n: int, q: int) -> None:
    small = min(n, q)
    run = gemm_floor([torch.randn(n, q), torch.randn(n, q)])
    with FlopCounterMode(display=False) as counter:
        assert not run()
    assert counter.get_total_flops() == 2 * 2 * (math.ceil(small / 2) + small) * n * q


def test_every_form_is_timed_in_every_round_though_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no\nluck")

    monkeypatch.setattr(type(methods.build("vicreg")), "view_terms", broken)
    variants = [Variant(form, views) for form in ("textbook", "gram", "covariance") for views in (2, 3)]
    result = measure_variants(Rank(), Case(method="vicreg", n=24, q=16), variants, repeats=3)
    assert result.failed == dict.fromkeys(variants[:2], "ValueError: no luck")
    assert set(result.shared_ms) == set(result.extra_bytes) == {*variants[2:]}
    assert not result.alone_ms
    assert all(len(times) == 3 and min(times) > 0 for times in [*result.shared_ms.values(), result.floor_ms])


@pytest.mark.parametrize("form", ["textbook", "gram"])
def test_prediction_of_memory(form: str) -> None:
    """Not far off, and not the square of the size for what streams."""
    case = Case(method="vicreg", n=1024, q=512)
    predicted = predict(Rank(), case, Variant(form, 2), memory_limit_bytes=1)
    assert predicted.seconds > 0
    assert 0.4 < predicted.bytes / extra_bytes(case, form) < 4


def test_what_fits_in_any_case_is_not_probed_for_memory() -> None:
    assert predict(Rank(), Case(method="auh", n=16, q=16), Variant("gram", 2), memory_limit_bytes=2**30).bytes == 0


def test_what_is_timed_is_the_loss() -> None:
    views = Case(method="sfrik_l3", n=12, q=5, dtype="float64").embeddings(torch.device("cpu"), views=4)
    method = methods.build("sfrik_l3")
    leaves = [view.clone().requires_grad_() for view in views]
    loss = method.loss(*leaves, engine=Engine(form="textbook"), global_views=2)
    expected = torch.autograd.grad(loss, leaves)
    torch.testing.assert_close(list(value_and_gradient(method, views, Engine(form="gram"))()), list(expected))


# ------------------------------------------------------------------ the grid


def test_the_cases_are_complete_and_in_order() -> None:
    grid = Grid(methods=("sfrik_l2", "simclr"), n=(33, 16), q=(8,), views=(4, 2), ranks=(2, 1), device="cpu")
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
    grid = Grid(methods=("vicreg", "auh"), n=(8,), q=(4,), ranks=(9,), forms=("auto", "gram", "covariance"))
    assert [(row.method, row.form, row.auto, row.note) for row in cases(grid)] == [
        ("vicreg", "covariance", True, "fewer embeddings than ranks"),
        ("vicreg", "gram", False, "fewer embeddings than ranks"),
        ("auh", "gram", True, "fewer embeddings than ranks"),
        ("auh", "covariance", False, "has no covariance form"),
    ]


@pytest.fixture(scope="module")
def rows() -> list[LossCost]:
    return measure(Grid(methods=("sfrik_l2",), n=(33,), q=(40,), ranks=(2, 1), repeats=2, device="cpu"))


def test_everything_is_measured(rows: list[LossCost]) -> None:
    assert [(row.ranks, row.form) for row in rows] == [
        (ranks, form) for ranks in (1, 2) for form in ("textbook", "gram", "covariance")
    ]
    for row in rows:
        assert not row.note
        assert row.median_ms and row.low_ms and row.high_ms and row.vs_gemm and row.gemm_ms and row.extra_bytes
        assert 0 < row.low_ms <= row.median_ms <= row.high_ms
        assert row.vs_textbook and row.vs_one_rank
        assert row.embedding_bytes == 2 * row.n * row.q * 4
        if row.ranks == 1:
            assert row.vs_one_rank == 1
            assert row.form != "textbook" or row.vs_textbook == 1


def test_every_form_is_compared_with_that_of_as_many_views_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {Variant("textbook", 2): 8.0, Variant("gram", 2): 4.0, Variant("textbook", 4): 24.0}
    shared[Variant("gram", 4)] = 6.0
    alone = {variant: 10 * ms for variant, ms in shared.items()}

    def ask(self: Processes, function: object, *arguments: object) -> Sequence[object]:
        if function is predict:
            return [Prediction(0.0, 0)]
        shared_ms, alone_ms = ({variant: [ms] for variant, ms in times.items()} for times in (shared, alone))
        return [Measured(shared_ms, alone_ms, [3.0], dict.fromkeys(shared, 1))]

    monkeypatch.setattr(Processes, "ask", ask)
    rows = measure(Grid(methods=("auh",), n=(8,), q=(4,), views=(2, 4), ranks=(1, 3), device="cpu"))
    found = {
        (row.ranks, row.form, row.views): (row.vs_textbook, row.vs_one_rank, row.vs_two_views, row.gemm_ms)
        for row in rows
    }
    assert found == {
        (1, "textbook", 2): (1.0, 1.0, 1.0, 3.0),
        (1, "gram", 2): (0.5, 1.0, 1.0, 3.0),
        (1, "textbook", 4): (1.0, 1.0, 3.0, 6.0),
        (1, "gram", 4): (0.25, 1.0, 1.5, 6.0),
        (3, "textbook", 2): (0.1, 0.1, 1.0, 1.0),
        (3, "gram", 2): (0.05, 0.1, 1.0, 1.0),
        (3, "textbook", 4): (0.1, 0.1, 3.0, 2.0),
        (3, "gram", 4): (0.025, 0.1, 1.5, 2.0),
    }
    assert all(row.vs_gemm == pytest.approx(shared[row.variant] / (row.gemm_ms or 0)) for row in rows)


@pytest.mark.parametrize(
    ("prediction", "changes", "note"),
    [
        (Prediction(3.0, 0), {"budget_s": 7.0}, "left out: about 15 s, over what is left of the budget of 7 s"),
        (Prediction(0.0, 2**20), {"memory_limit_bytes": 2**19}, "of memory, over the limit of 0.5 MiB"),
        (Prediction(0.0, 2**20), {"memory_limit_bytes": 2**21, "ranks": (4,)}, "about 4 MiB of memory, over the limit"),
        (WorkFailed("too small"), {}, "failed: rank 0 was ended by signal 9"),
    ],
    ids=["budget", "memory", "memory of all ranks", "failure"],
)
def test_nothing_is_left_out_silently(
    prediction: Prediction | WorkFailed, changes: dict[str, Any], note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(self: Processes, function: object, *arguments: object) -> Sequence[object]:
        if function is measure_variants:
            raise WorkFailed("rank 0 was ended by signal 9")
        if isinstance(prediction, WorkFailed):
            raise prediction
        return [prediction]

    monkeypatch.setattr(Processes, "ask", ask)
    grid = Grid(methods=("auh",), n=(8,), q=(4,), forms=("gram",), repeats=3, device="cpu", **changes)
    (row,) = measure(grid)
    assert note in row.note
    assert row.median_ms is None and row.extra_bytes is None
    assert row.note in table([row], losses.COLUMNS)


# ------------------------------------------------------------------ tables and figures


def test_table_page_and_csv(rows: list[LossCost], tmp_path: Path) -> None:
    odd = replace(EXAMPLE, note='left out: "2 GiB", over\nit', extra_bytes=0)
    machine = Grid(device="cpu", threads=2).machine
    assert "gram*" in table(rows, losses.COLUMNS)
    losses.write([*rows, odd], machine, tmp_path / "new")
    page = (tmp_path / "new" / "cost.md").read_text()
    for part in (str(machine), "at n = 33, q = 40", losses.LEGEND, "threads = 2"):
        assert part in page
    with (tmp_path / "new" / "cost.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for row, line in zip([*rows, odd], lines, strict=True):
        expected = {name: "" if value is None else str(value) for name, value in asdict(row).items()}
        assert expected.items() <= line.items()
        assert (line["torch"], line["dtype"], line["threads"]) == (version("torch"), "float32", "2")


def test_figure(rows: list[LossCost]) -> None:
    machine = Grid(device="cpu").machine

    def figure(rows: Sequence[LossCost]) -> bytes | None:
        return cost_png(to_csv([asdict(row) for row in rows], machine))

    image = figure(rows)
    assert image is not None and image.startswith(b"\x89PNG")
    assert figure([EXAMPLE]) is None
    many = [replace(EXAMPLE, method=f"method {i}", extra_bytes=i + 1, n=2**j) for i in range(30) for j in (3, 4)]
    assert figure([*many, replace(EXAMPLE, method="slow", median_ms=3.0)])


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
        with pytest.raises(RegbenchError, match=re.escape(message)):
            Grid(**settings)
