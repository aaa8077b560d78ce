"""The streamed engine: many panels, what it keeps in memory, how it is differentiated and
compiled.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed import fake_pg

from regbench import methods
from regbench.methods import Engine
from regbench.methods.forms import pairwise
from regbench.processes import Place, Processes
from tests.methods.forms import Operations
from tests.refusals import is_refused

STREAMED = [name for name in methods.names() if len(methods.build(name).forms) > 1]


compiles = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


def draw(n: int, q: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(n, q, dtype=dtype, generator=generator)
    return z1, z1 + 0.5 * torch.randn(n, q, dtype=dtype, generator=generator)


def gradients(name: str, z1: Tensor, z2: Tensor, form: str) -> tuple[Tensor, ...]:
    leaf1, leaf2 = (z.clone().requires_grad_() for z in (z1, z2))
    torch.manual_seed(0)  # random methods draw the same in every form
    loss = methods.build(name).loss(leaf1, leaf2, engine=Engine(form=form))
    return torch.autograd.grad(loss, (leaf1, leaf2))


def test_a_gpu_gets_few_large_panels_and_a_plan_counts_those() -> None:
    """On tensors without data: a GPU needs as long to start the work on a small panel as for
    the work.
    """

    def products(device: str, n: int = 8192) -> int:
        with FakeTensorMode():
            views = [torch.empty(n, 2048, device=device, requires_grad=True) for _ in range(2)]
            with Operations() as operations:
                methods.build("sfrik_l3")(*views, engine=Engine(form="gram"))
        return [name in ("mm", "addmm", "addmm_") for name, *_ in operations.made].count(True)

    on_gpu, on_cpu = products("cuda:0"), products("cpu")
    assert on_gpu <= 48 and on_cpu >= 8 * on_gpu
    with pairwise.as_on("cuda"):
        assert products("cpu") == on_gpu
    assert products("cpu") == on_cpu
    # Of 512 rows one panel for each view: the inner products and the gradient, in two parts, of
    # which one is empty.
    assert products("cuda:0", 512) == 6


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize(("n", "q"), [(150, 9), (50, 70)])
def test_many_ragged_panels_are_like_one(
    monkeypatch: pytest.MonkeyPatch, name: str, n: int, q: int
) -> None:
    z1, z2 = draw(n, q)
    wanted = gradients(name, z1, z2, "textbook")
    monkeypatch.setitem(pairwise.PANEL_BYTES, "cpu", 17 * q * 8)
    for form in methods.build(name).forms[1:]:
        for found, exact in zip(gradients(name, z1, z2, form), wanted, strict=True):
            least = 1e-12 * exact.abs().max().item()
            torch.testing.assert_close(found, exact, rtol=1e-9, atol=least)


@pytest.mark.parametrize("name", [name for name in STREAMED if "gram" in methods.build(name).forms])
def test_gram_form_keeps_nothing_of_size_n_by_n(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    n, q = 600, 8
    monkeypatch.setitem(pairwise.PANEL_BYTES, "cpu", 2**16)
    z1, z2 = draw(n, q, torch.float32)
    sizes = {}
    for form in ("textbook", "gram"):
        with Operations() as operations:
            gradients(name, z1, z2, form)
        sizes[form] = operations.largest
    assert sizes["gram"] <= 2**16 // 4 < n * n
    covariance = name.startswith("vicreg") or name == "barlow_twins"
    assert sizes["textbook"] >= (n * q if covariance else n * n)


# SFRIK's kernel of order one is linear.
LINEAR = [("vicreg", "gram"), ("barlow_twins", "gram"), ("sfrik_l1", "covariance")]


@pytest.mark.parametrize(("name", "form"), LINEAR)
def test_a_form_makes_no_matrix_of_dimensions(name: str, form: str) -> None:
    z1, z2 = draw(20, 1000, torch.float32)
    with Operations() as operations:
        gradients(name, z1, z2, form)
    assert operations.largest == 20 * 1000


@pytest.mark.parametrize(("n", "q", "largest_form"), [(20, 60, "gram"), (60, 20, "covariance")])
@pytest.mark.parametrize("name", ["vicreg", "barlow_twins", "sfrik_l2"])
def test_auto_takes_the_smaller_form(name: str, n: int, q: int, largest_form: str) -> None:
    z1, z2 = draw(n, q)
    automatic, forced = gradients(name, z1, z2, "auto"), gradients(name, z1, z2, largest_form)
    other = gradients(name, z1, z2, "covariance" if largest_form == "gram" else "gram")
    assert all(torch.equal(a, b) for a, b in zip(automatic, forced, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(automatic, other, strict=True))


def test_barlow_twins_of_square_batches_takes_the_correlation() -> None:
    """At n = q the Gram form has as many products, and an eighth more of them for the edges of
    its panels.
    """
    method = methods.build("barlow_twins")
    forms = {(n, q): method.form_at("auto", n, q) for n, q in ((64, 64), (64, 65), (64, 63))}
    assert forms == {(64, 64): "covariance", (64, 65): "gram", (64, 63): "covariance"}
    assert method.form_at("gram", 64, 64) == "gram"


def test_backward_may_be_repeated_if_the_graph_is_kept() -> None:
    z1, z2 = (z.requires_grad_() for z in draw(6, 4))
    loss = methods.build("sfrik").loss(z1, z2)
    first = torch.autograd.grad(3 * loss, [z1, z2], retain_graph=True)
    second = torch.autograd.grad(loss, [z1, z2], retain_graph=True)
    third = torch.autograd.grad(5 * loss, [z1, z2])
    for a, b, c in zip(first, second, third, strict=True):
        torch.testing.assert_close(a, 3 * b)
        torch.testing.assert_close(c, 5 * b)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, [z1, z2])


def test_gradient_of_one_view_alone() -> None:
    z1, z2 = draw(6, 4)
    both = gradients("simclr", z1, z2, "gram")
    leaf = z2.clone().requires_grad_()
    (alone,) = torch.autograd.grad(methods.build("simclr").loss(z1, leaf), leaf)
    torch.testing.assert_close(alone, both[1])


@pytest.mark.parametrize("name", ["sfrik", "simclr", "vicreg"])
@pytest.mark.slow
@compiles
def test_compiled_network_and_loss_are_like_eager_ones(name: str) -> None:
    method = methods.build(name)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(5, 4, dtype=torch.float64, generator=generator).requires_grad_()

    def step(x1: Tensor, x2: Tensor, engine: Engine) -> Tensor:
        return method.loss((x1 @ weight).tanh(), (x2 @ weight).tanh(), engine=engine)

    compiled = torch.compile(step, backend="aot_eager")
    for form in ("auto", "textbook"):
        engine = Engine(form=form)
        x1, x2 = draw(8, 5)
        (wanted,) = torch.autograd.grad(step(x1, x2, engine), weight)
        loss = compiled(x1, x2, engine)
        (found,) = torch.autograd.grad(loss, weight)
        torch.testing.assert_close(loss, step(x1, x2, engine))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["sfrik_l3", "auh", "kcl_gaussian"])
def test_functions_of_pairs_are_compiled_once_where_that_is_asked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def compile_(function: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
        assert dynamic  # panels are ragged
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setitem(pairwise.PANEL_BYTES, "cpu", 2**12)
    method, views = methods.build(name), draw(60, 8)
    engines = [Engine(form="gram", compile=asked) for asked in (False, True, True, False)]
    losses = [method.loss(*views, engine=engine) for engine in engines]
    assert len(compiled) == 1
    assert losses == [losses[0]] * 4


@pytest.mark.slow  # the compiler
@pytest.mark.parametrize("name", ["sfrik_l3", "quadratic"])
@compiles
def test_compiled_functions_of_pairs_are_like_eager_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One states its derivative, whose series begin with `full_like`, of the other autograd
    finds it.
    """
    monkeypatch.setitem(pairwise.PANEL_BYTES, "cpu", 2**14)
    method = methods.build(name)
    views = [view.requires_grad_() for view in draw(150, 30, torch.float32)]
    found, made = [], []
    for asked in (False, True):
        engine = Engine(form="gram", compile=asked)
        method.loss(*views, engine=engine)  # compiles
        with torch.profiler.profile(acc_events=True) as profile:
            loss = method.loss(*views, engine=engine)
        made.append(any(event.name == "aten::full_like" for event in profile.events()))
        found.append([loss, *torch.autograd.grad(loss, views)])
    assert made == [name == "sfrik_l3", False]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_rows_shorter_than_1e_12_count_as_zero() -> None:
    z1, z2 = draw(5, 4)
    z1[3] *= 1e-13 / z1[3].norm()
    found, _ = gradients("sfrik", z1, z2, "gram")
    assert found[3].abs().max() == 0
    assert found.isfinite().all()
    zero = z1.clone()
    zero[3] = 0
    short, none = (methods.build("sfrik").loss(z, z2).item() for z in (z1, zero))
    assert short == none


@pytest.mark.parametrize("name", methods.names())
def test_a_row_of_zeros_leaves_the_gradient_in_its_size(name: str) -> None:
    z1, z2 = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(0)).unbind()
    zero = z1.clone()
    zero[0] = 0
    method = methods.build(name)
    for form in ("auto", *method.forms):
        found = []
        for first in (z1, zero):
            views = [view.clone().requires_grad_() for view in (first, z2)]
            method.loss(*views, engine=Engine(form=form)).backward()
            found.append(max(float(view.grad.norm()) for view in views if view.grad is not None))
        assert found[1] < 1e3 * found[0], form


def joined(here: Place) -> Place:
    here.join("gloo")
    return here


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Processes]:
    with Processes(2, joined) as ranks:
        yield ranks


def without_rows_on_the_second(here: Place) -> float:
    z1, z2 = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0)).unbind()
    rows = slice(6 * (1 - here.rank))
    engine = Engine(group=dist.group.WORLD)
    return methods.build("simclr").loss(z1[rows], z2[rows], engine=engine).item()


def test_a_rank_may_have_no_rows(two_ranks: Processes) -> None:
    z1, z2 = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0)).unbind()
    for found in two_ranks.ask(without_rows_on_the_second):
        assert found == pytest.approx(methods.build("simclr").loss(z1, z2).item(), rel=1e-6)


@pytest.mark.parametrize("form", ["auto", "textbook"])
def test_one_row_over_all_ranks_is_refused(form: str, tmp_path: Path) -> None:
    joined(Place(0, 1, str(tmp_path / "store")))
    try:
        with is_refused(r"SimCLR: embeddings must have n >= 2 rows over all ranks, not 1"):
            engine = Engine(form=form, group=dist.group.WORLD)
            methods.build("simclr").loss(*draw(1, 3), engine=engine)
    finally:
        dist.destroy_process_group()


def test_a_random_loss_on_the_cpu_seeds_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generators of GPUs that it does not compute on would not be put back."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    methods.build("sigreg", directions=8).loss(*draw(6, 4))
    assert not seeded


def test_ranks_of_nccl_exchange_a_seed_on_the_device_of_the_embeddings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In processes that have not made their GPU the current one, all would meet on the first."""
    sent: list[str] = []

    def broadcast(seed: Tensor, *_: Any, **__: Any) -> None:
        sent.append(seed.device.type)
        raise InterruptedError

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which the next line changes
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=2)
    try:
        monkeypatch.setattr(dist, "get_backend", lambda _: "nccl")
        monkeypatch.setattr(dist, "broadcast", broadcast)
        engine = Engine(group=dist.group.WORLD, even=True)
        with pytest.raises(InterruptedError):
            methods.build("sigreg").loss(*torch.empty(2, 4, 3, device="meta"), engine=engine)
    finally:
        dist.destroy_process_group()
    assert sent == ["meta"]


@pytest.mark.parametrize(
    "wrong", [torch.ones(4, 3, dtype=torch.int64), torch.ones(4, 3) > 0, [[1.0, 2.0]]], ids=str
)
@pytest.mark.parametrize("form", ["auto", "textbook"])
def test_embeddings_that_are_no_real_numbers_are_refused(wrong: Any, form: str) -> None:
    method, right = methods.build("vicreg"), torch.randn(4, 3)
    for pair in ((wrong, wrong), (right, wrong), (wrong, right)):
        with is_refused("VICReg: embeddings must be tensors of real numbers, not "):
            method.loss(pair[0], pair[1], engine=Engine(form=form))


def warnings_of_losses(here: Place) -> list[tuple[str, str]]:
    z1, z2 = torch.randn(2, 6, 4).unbind()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shared = methods.build("vicreg").loss(z1, z2, engine=Engine(group=dist.group.WORLD))
        # a module finds the group by itself
        assert methods.build("vicreg").module()(z1, z2) == shared
        assert not caught
        for name in ("vicreg", "vicreg", "simclr"):
            methods.build(name).loss(z1, z2)
            methods.build(name)(z1, z2, engine=Engine(form="textbook"))
    return [(str(each.message), each.filename) for each in caught]


def test_a_loss_of_one_ranks_rows_warns_once(two_ranks: Processes, tmp_path: Path) -> None:
    alone = joined(Place(0, 1, str(tmp_path / "store")))
    try:
        assert warnings_of_losses(alone) == []
    finally:
        dist.destroy_process_group()
    for ((line, where),) in two_ranks.ask(warnings_of_losses):
        assert "methods.Engine(group=torch.distributed.group.WORLD)" in line
        assert Path(where).name == Path(__file__).name  # the caller's line, not one of ours
