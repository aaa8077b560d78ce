"""What losses cost: the grid is complete, memory is counted right, ranks work together, refusals are plain."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench import RegbenchError, methods
from regbench.benchmark.cost import losses as cost
from regbench.benchmark.cost import ranks as cost_ranks
from regbench.benchmark.cost.losses import Grid, Machine, Row, Target, measure, measure_targets
from regbench.benchmark.cost.ranks import Died, Rank, Ranks, gemm_floor, measure_forms, peak_extra_bytes
from regbench.methods.engine import Engine
from regbench.reports.cost import cost_png

CPU = torch.device("cpu")
EXAMPLE = Row(method="vicreg", form="gram", auto=True, n=64, q=32, ranks=1, embedding_bytes=2 * 64 * 32 * 4)


def extra_bytes(method: str, form: str, n: int, q: int) -> int:
    result = measure_forms(Rank(), method=method, forms=[form], alone=[], n=n, q=q, dtype="float32", repeats=0)
    return int(result["bytes"][form])


# ------------------------------------------------------------------ memory


def squares(x_NQ: Tensor) -> Sequence[Tensor]:
    gram_NN = x_NQ @ x_NQ.T
    return [gram_NN]


def dropped(x_NQ: Tensor) -> Sequence[Tensor]:
    squares(x_NQ)
    return []


def chain(x_NQ: Tensor) -> Sequence[Tensor]:
    """Two of size n × n live together; the third takes the place of the first."""
    gram_NN = x_NQ @ x_NQ.T
    gram_NN = gram_NN.neg()
    gram_NN = gram_NN.exp()
    return []


def in_place(x_NQ: Tensor) -> Sequence[Tensor]:
    (x_NQ @ x_NQ.T).neg_().exp_()
    return []


def one_view_returned(x_NQ: Tensor) -> Sequence[Tensor]:
    scratch_NN = x_NQ @ x_NQ.T
    return [(scratch_NN @ x_NQ)[1:]]


def square_and_backward(x_NQ: Tensor) -> Sequence[Tensor]:
    """Saved for backward: x only; made there: 2 · x · ones, which is returned."""
    leaf_NQ = x_NQ.detach().requires_grad_()
    (gradient_NQ,) = torch.autograd.grad(leaf_NQ @ leaf_NQ.T.detach(), leaf_NQ, torch.ones(len(x_NQ), len(x_NQ)))
    return [gradient_NQ]


@pytest.mark.parametrize(
    ("run", "matrices"),
    [(dropped, 1), (squares, 0), (chain, 2), (in_place, 1), (one_view_returned, 1), (square_and_backward, 2)],
)
@pytest.mark.parametrize(("n", "q"), [(64, 16), (300, 70)])
def test_memory_of_cases_known_by_hand(
    run: Callable[[Tensor], Sequence[Tensor]], matrices: int, n: int, q: int
) -> None:
    x_NQ = torch.randn(n, q)
    assert peak_extra_bytes(lambda: run(x_NQ), CPU) == matrices * n * n * 4


def test_memory_inside_an_operation_is_seen() -> None:
    """logsumexp makes an n × n copy that it does not return."""
    x_NN = torch.randn(200, 200)
    assert peak_extra_bytes(lambda: [x_NN.logsumexp(dim=1)], CPU) >= 200 * 200 * 4


def test_memory_inside_an_own_function_is_seen_forward_and_backward() -> None:
    class Scratch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x_N: Tensor) -> Tensor:
            torch.empty(1000)
            return x_N.sum()

        @staticmethod
        def backward(ctx: object, *outputs: Tensor) -> Tensor:
            torch.empty(3000)
            return outputs[0].expand(10)

    leaf_N = torch.zeros(10, requires_grad=True)

    def run() -> Sequence[Tensor]:
        Scratch.apply(leaf_N).backward()
        assert leaf_N.grad is not None
        return [leaf_N.grad]

    assert 12000 <= peak_extra_bytes(run, CPU) < 12000 + 200


def test_memory_is_the_same_twice() -> None:
    assert len({extra_bytes("sfrik_l3", "gram", 100, 50) for _ in range(3)}) == 1


def test_streamed_sfrik_needs_less_than_the_textbook() -> None:
    gram, textbook = (extra_bytes("sfrik_l3", form, 1024, 128) for form in ("gram", "textbook"))
    assert gram < textbook / 4
    assert textbook >= 2 * 1024**2 * 4  # two Gram matrices at the very least


# ------------------------------------------------------------------ one process


@pytest.mark.parametrize(
    ("n", "q", "flop"), [(6, 10, 2 * (2 * 3 * 6 * 10 + 2 * 6 * 6 * 10)), (9, 4, 2 * (2 * 2 * 9 * 4 + 2 * 9 * 4 * 4))]
)
def test_gemm_floor(n: int, q: int, flop: int) -> None:
    run, counted = gemm_floor([torch.randn(n, q), torch.randn(n, q)])
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        assert not run()
    assert counter.get_total_flops() == counted == flop


def test_every_form_is_timed_in_every_round() -> None:
    forms = list(methods.build("vicreg").forms)
    size: dict[str, Any] = {"n": 24, "q": 16, "dtype": "float32"}
    result = measure_forms(Rank(), method="vicreg", forms=forms, alone=forms, repeats=3, **size)
    assert set(result["shared"]) == set(result["bytes"]) == set(forms)
    assert not result["alone"] and not result["failed"]
    assert all(len(times_ms) == 3 and min(times_ms) > 0 for times_ms in [*result["shared"].values(), result["floor"]])


def test_a_form_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no\nluck")

    monkeypatch.setattr(type(methods.build("vicreg")), "terms", broken)
    forms = ["textbook", "gram"]
    result = measure_forms(Rank(), method="vicreg", forms=forms, alone=[], n=8, q=4, dtype="float32", repeats=1)
    assert result["failed"] == {"textbook": "ValueError: no luck"}
    assert list(result["shared"]) == ["gram"]


def test_memory_released_meanwhile_makes_no_room() -> None:
    old = [torch.ones(1000, dtype=torch.float64)]

    def run() -> list[Tensor]:
        old.clear()
        torch.ones(500, dtype=torch.float64).sum()
        return []

    assert 4000 <= cost_ranks.peak_extra_bytes(run, torch.device("cpu")) < 8000


@pytest.mark.parametrize("form", ["textbook", "gram", "covariance"])
def test_prediction_of_memory(form: str) -> None:
    """Not far off, and not the square of the size for what streams."""
    size = {"n": 2048, "q": 512}
    predicted = cost_ranks.probe(Rank(), method="vicreg", form=form, dtype="float32", memory_limit_bytes=1, **size)
    assert predicted["seconds"] > 0
    assert 0.4 < predicted["bytes"] / extra_bytes("vicreg", form, **size) < 4


def test_what_fits_in_any_case_is_not_probed_for_memory() -> None:
    size: dict[str, Any] = {"n": 16, "q": 16, "dtype": "float32"}
    assert cost_ranks.probe(Rank(), method="auh", form="gram", memory_limit_bytes=2**30, **size)["bytes"] == 0


# ------------------------------------------------------------------ processes


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return measure(Grid(methods=("sfrik_l2", "simclr"), n=(33, 16), q=(8, 40), ranks=(2, 1), repeats=2, device="cpu"))


def test_the_table_is_complete(rows: list[Row]) -> None:
    cases = [(row.method, row.n, row.q, row.ranks, row.form) for row in rows]
    forms = {"sfrik_l2": ["textbook", "gram", "covariance"], "simclr": ["textbook", "gram"]}
    assert cases == [
        (method, n, q, ranks, form)
        for method in ("sfrik_l2", "simclr")
        for n in (16, 33)
        for q in (8, 40)
        for ranks in (1, 2)
        for form in forms[method]
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


def test_auto_is_marked_with_what_it_stands_for(rows: list[Row]) -> None:
    for row in rows:
        assert row.auto == (row.form == methods.build(row.method)._form("auto", row.n, row.q))


def test_csv_round_trip(rows: list[Row]) -> None:
    odd = replace(EXAMPLE, note='left out: "2 GiB", over\nit', extra_bytes=0)
    text = cost.to_csv([*rows, odd], Machine.of(Grid(device="cpu")))
    assert cost.from_csv(text) == [*rows, odd]
    ending = f",{torch.__version__},float32,5"
    assert all(line.endswith(ending) for line in text.splitlines()[1 : 1 + len(rows)])


def test_table_and_page(rows: list[Row], tmp_path: Path) -> None:
    machine = Machine.of(Grid(device="cpu", threads=2))
    lines = cost.table(rows).splitlines()
    assert len(lines) == 2 + len(rows)
    assert "gram*" in lines[2 + next(i for i, row in enumerate(rows) if row.auto and row.form == "gram")]
    cost.write(rows, machine, tmp_path / "new", "| targets |")
    page = (tmp_path / "new" / "cost.md").read_text()
    for part in (
        str(machine),
        "| targets |",
        "at n = 33, q = 40",
        cost.LEGEND,
        "2 threads per rank",
        torch.__version__,
    ):
        assert part in page
    assert cost.from_csv((tmp_path / "new" / "cost.csv").read_text()) == rows


def test_figure(rows: list[Row]) -> None:
    machine = Machine.of(Grid(device="cpu"))
    image = cost_png(cost.to_csv(rows, machine))
    assert image is not None and image.startswith(b"\x89PNG")
    assert cost_png(cost.to_csv([EXAMPLE], machine)) is None


def test_figure_of_many_methods_and_missing_values() -> None:
    rows = [replace(EXAMPLE, method=f"method {i}", extra_bytes=i + 1, n=2**j) for i in range(30) for j in (3, 4)]
    rows += [replace(EXAMPLE, method="slow", median_ms=3.0)]
    assert cost_png(cost.to_csv(rows, Machine.of(Grid(device="cpu"))))


def test_forms_asked_for() -> None:
    grid = Grid(methods=("vicreg", "auh"), n=(8,), q=(20,), ranks=(1,), forms=("auto", "gram", "covariance"), repeats=0)
    found = [(row.method, row.form, row.note, row.extra_bytes is not None) for row in measure(replace(grid))]
    assert found == [
        ("vicreg", "gram", "", True),
        ("vicreg", "covariance", "", True),
        ("auh", "gram", "", True),
        ("auh", "covariance", "has no covariance form", False),
    ]


def test_nothing_is_left_out_silently() -> None:
    grid = Grid(methods=("auh",), n=(2, 1024), q=(64,), ranks=(1, 3), forms=("gram",), repeats=1, device="cpu")
    late = measure(replace(grid, budget_s=1e-3))
    assert [row.note for row in late if row.n == 2 and row.ranks == 3] == ["fewer embeddings than ranks"]
    assert all(row.note and row.median_ms is None and row.extra_bytes is None for row in late)
    assert all("budget of 0.001 s" in row.note for row in late if row.n > 2)
    full = measure(replace(grid, memory_limit_bytes=1))
    assert all("over the limit of" in row.note for row in full if row.n > 2)
    assert all(row.note in cost.table(full) for row in full)


def test_a_rank_that_fails_is_one_line_and_ends_all() -> None:
    ranks = Ranks(2, "cpu", 1)
    try:
        size = {"n": 8, "q": 4, "dtype": "float32", "repeats": 1}
        with pytest.raises(Died, match=r"^rank \d: unknown method 'nothing'; known: auh, .*$") as caught:
            ranks.ask(do="measure", method="nothing", forms=["gram"], alone=[], **size)
        assert "\n" not in str(caught.value)
        answer = ranks.ask(do="measure", method="auh", forms=["gram"], alone=["gram"], **size)
        assert len(answer["shared"]["gram"]) == len(answer["alone"]["gram"]) == 1
    finally:
        ranks.close()


def test_a_rank_that_is_killed_is_told() -> None:
    ranks = Ranks(1, "cpu", 1)
    try:
        size = {"n": 8, "q": 4, "dtype": "float32"}
        ranks.ask(do="probe", method="auh", form="gram", memory_limit_bytes=1, **size)
        os.kill(ranks._processes[0].pid, 9)
        with pytest.raises(Died, match="rank 0 was ended by signal 9"):
            ranks.ask(do="probe", method="auh", form="gram", memory_limit_bytes=1, **size)
    finally:
        ranks.close()


def test_a_failure_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: Ranks, **job: object) -> dict[str, object]:
        if job["do"] == "measure":
            raise Died("rank 0 was ended by signal 9")
        return {"error": "too small"}

    monkeypatch.setattr(Ranks, "ask", ask)
    (row,) = measure(Grid(methods=("auh",), n=(8,), q=(4,), ranks=(1,), forms=("gram",), device="cpu"))
    assert row.note == "failed: rank 0 was ended by signal 9"


def test_sharded_values_are_those_of_the_batch() -> None:
    """The call that is timed is the loss: its gradients are those of the engine."""
    views = cost_ranks._embeddings(12, 5, "float64", Rank())
    method = methods.build("sfrik_l3")
    gradients = cost_ranks._call(method, views, Engine(form="gram"))()
    leaves = [view.clone().requires_grad_() for view in views]
    expected = torch.autograd.grad(method.loss(leaves[0], leaves[1], Engine(form="textbook")), leaves)
    torch.testing.assert_close(list(gradients), list(expected))


# ------------------------------------------------------------------ targets


@pytest.mark.slow
def test_targets() -> None:
    targets = (
        Target("time", "vs_textbook", 1e9, 16, 24, "vicreg"),
        Target("time", "vs_textbook", 0.5, 16, 24, "nothing"),
        Target("memory", "extra_bytes", 1.0, 32, 8),
        Target("ranks", "vs_one_rank", 1e9, 16, 24, "vicreg", ranks=2),
        Target("time", "vs_textbook", 0.5, 16, 24, "simclr"),
    )
    outcomes, rows = measure_targets(Grid(methods=("vicreg", "auh"), repeats=1, device="cpu"), targets)
    first, unknown, memory, shared = outcomes
    assert first.measured == next(r.vs_textbook for r in rows if (r.form, r.ranks, r.n) == ("gram", 1, 16))
    assert unknown.measured is None and "no method nothing" in unknown.note
    assert memory.measured == max(row.extra_bytes or 0 for row in rows if row.n == 32)
    assert {(row.method, row.form) for row in rows if row.n == 32} == {
        ("vicreg", "covariance"),
        ("auh", "gram"),
    }
    assert shared.measured and math.isfinite(shared.measured)
    lines = cost.targets_table(outcomes).splitlines()
    assert [re.split(r"\s{2,}", line)[6] for line in lines[2:]] == ["yes", "–", "no", "yes"]


def test_targets_of_methods_that_are_there_have_forms() -> None:
    grid = Grid(device="cpu")
    for target in cost.TARGETS:
        if target.method in methods.names():
            assert any(row.auto for row in cost._target_rows(target, grid))


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methods": ("vicregg",)}, "unknown method 'vicregg'"),
        ({"forms": ("gramm",)}, "unknown form 'gramm'; choose auto, gram"),
        ({"n": (1,)}, "n must be one or more numbers >= 2"),
        ({"q": ()}, "q must be one or more numbers >= 1"),
        ({"ranks": (0,)}, "ranks must be"),
        ({"threads": 0}, "threads must be >= 1"),
        ({"repeats": -1}, "repeats must be >= 0"),
        ({"budget_s": 0.0}, "budget must be > 0"),
        ({"budget_s": math.nan}, "budget must be > 0"),
        ({"memory_limit_bytes": 0}, "memory limit must be > 0"),
        ({"dtype": "int8"}, "unknown dtype 'int8'; choose float32"),
        ({"device": "tpu"}, "unknown device 'tpu'; choose auto, cpu, cuda"),
    ],
    ids=str,
)
def test_refusals(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(RegbenchError, match=re.escape(message)):
        Grid(**wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_is_refused_where_there_is_none() -> None:
    with pytest.raises(RegbenchError, match="no CUDA device"):
        Grid(device="cuda")
