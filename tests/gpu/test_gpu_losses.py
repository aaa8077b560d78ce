"""Losses on a GPU: value and gradients in every form, beside the textbook on the CPU in float64."""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from regbench import methods
from regbench.benchmark.training.sync_batch_norm import Kernels, SyncBatchNorm
from regbench.instruments.conformance import value_and_gradients
from regbench.instruments.loss_checks import draw_views, relative
from regbench.methods import Engine, Regularizer
from regbench.methods.forms.engine import LOCAL_ROWS, Shard
from regbench.processes import Place, Processes
from tests.there import there

BOUNDS = {torch.float64: 1e-7, torch.float32: 1e-3}


class DrawnOnCpu(TorchDispatchMode):
    """Draws every random number on the CPU and in float64: devices and dtypes draw different ones
    from one seed.

    Attributes:
        draws: How often something was drawn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        self.draws += 1
        tensors = [each for each in args if isinstance(each, Tensor)]
        device = kwargs.get("device") or (tensors[0].device if tensors else torch.device("cpu"))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        is_real = func.overloadpacket in (torch.ops.aten.rand, torch.ops.aten.randn)
        if kwargs.get("dtype") == torch.float32 or (is_real and kwargs.get("dtype") is None):
            kwargs["dtype"] = torch.float64
        args = [
            each.to("cpu", torch.float64) if isinstance(each, Tensor) else each for each in args
        ]
        return func(*args, **kwargs).to(device)


def largest_error(
    method: Regularizer,
    views: list[Tensor],
    there: list[Tensor],
    engine: Engine,
    global_views: int = 2,
) -> float:
    """Compare with the textbook on the CPU: the norm of a difference over that of the CPU's
    value or gradient.
    """
    # torch.compile would not build a kernel inside of such a mode, and only random methods need it.
    with DrawnOnCpu() if method.random else contextlib.nullcontext():
        wanted, _ = value_and_gradients(method, views, Engine(form="textbook"), global_views)
        found, _ = value_and_gradients(method, there, engine, global_views)
    return max(relative(a.cpu(), b, floor=1e-12) for a, b in zip(found, wanted, strict=True))


def worst_errors(method: Regularizer, device: torch.device) -> dict[torch.dtype, float]:
    """Compare for two and for three views, n < q and n > q, and find the largest error of each
    dtype.
    """
    sizes = ((384, 192), (192, 384)) if device.type == "cuda" else ((24, 12), (12, 24))
    worst = dict.fromkeys(BOUNDS, 0.0)
    for (n, q), (count, global_views) in itertools.product(sizes, ((2, 2), (3, 1))):
        views = draw_views(n, q, count)
        for dtype, form in itertools.product(BOUNDS, method.forms):
            there = [view.to(device, dtype) for view in views]
            error = largest_error(method, views, there, Engine(form=form), global_views)
            worst[dtype] = max(worst[dtype], error)
    return worst


@pytest.mark.parametrize("name", methods.names())
def test_every_form_is_the_textbook_of_the_cpu(name: str, device: torch.device) -> None:
    for dtype, error in worst_errors(methods.build(name), device).items():
        assert error <= BOUNDS[dtype], dtype


def test_a_compiled_kernel_is_the_textbook_of_the_cpu(device: torch.device) -> None:
    views = draw_views(192, 384, 2)
    there = [view.to(device, torch.float32) for view in views]
    assert (
        largest_error(methods.build("sfrik_l3"), views, there, Engine(form="gram", compile=True))
        <= 1e-3
    )


@pytest.mark.parametrize(("backend", "size"), [("gloo", 1), ("gloo", 2), ("nccl", 1)])
def test_ranks_that_share_a_device_have_the_gradients_of_one_process(
    backend: str, size: int, device: torch.device
) -> None:
    """NCCL wants a GPU for each of its ranks, so on one GPU it has a single one."""
    if backend == "nccl" and device.type == "cpu":
        pytest.skip("NCCL is for GPUs")
    with Processes(size, join, backend, device) as ranks:
        for name in methods.names():
            assert max(ranks.ask(difference_from_one, name)) <= BOUNDS[torch.float64], name
        assert max(ranks.ask(difference_of_batch_norm)) <= 1e-4


def join(here: Place, backend: str, device: torch.device) -> torch.device:
    # one process's value is what the ranks are compared with
    warnings.filterwarnings("ignore", LOCAL_ROWS)
    here.join(backend)
    return device


def difference_from_one(device: torch.device, name: str) -> float:
    method, rank, size = methods.build(name), dist.get_rank(), dist.get_world_size()
    views = [view.to(device) for view in draw_views(24, 12, 2)]
    (value, *gradients), _ = value_and_gradients(method, views, Engine())
    mine = slice(24 * rank // size, 24 * (rank + 1) // size)
    engine, shares = Engine(group=dist.group.WORLD), [view[mine] for view in views]
    with contextlib.ExitStack() as stack:
        if size == 1:  # a single rank would exchange nothing
            alone = Shard([24], 0, dist.group.WORLD)
            stack.enter_context(mock.patch.object(Shard, "of", lambda *_: alone))
        found, _ = value_and_gradients(method, shares, engine, seed=rank)
    # DistributedDataParallel takes the mean of the ranks' gradients.
    wanted = [value, *(size * gradient[mine] for gradient in gradients)]
    return max(relative(a, b, floor=1e-12) for a, b in zip(found, wanted, strict=True))


def difference_of_batch_norm(device: torch.device) -> float:
    """Compare BN over ranks with torch's on the whole batch: outputs, gradients, statistics."""
    rank, size, worst = dist.get_rank(), dist.get_world_size(), 0.0
    group, kernels = there(dist.group.WORLD), torch if device.type == "cuda" else Kernels
    torch.manual_seed(0)
    for kind, shape in ((nn.BatchNorm1d, (24, 6)), (nn.BatchNorm2d, (24, 6, 5, 5))):
        x, gradient = torch.randn(2, *shape, device=device)
        if len(shape) == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        plain = kind(6, device=device)
        shared = SyncBatchNorm(copy.deepcopy(plain), group, kernels)
        mine, found = slice(24 * rank // size, 24 * (rank + 1) // size), []
        for layer, rows in ((plain, slice(None)), (shared, mine)):
            leaf = x[rows].detach().requires_grad_()
            out = layer(leaf)
            out.backward(gradient[rows])
            of_rows = (
                (out, there(leaf.grad)) if rows == mine else (out[mine], there(leaf.grad)[mine])
            )
            found.append([*of_rows, layer.running_mean, layer.running_var])
        worst = max(worst, *(relative(a, b) for a, b in zip(*found, strict=True)))
    return worst


@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
def test_draws_are_the_same_whatever_the_dtype(draw: Any) -> None:
    drawn = []
    for dtype in (None, torch.float32, torch.float64):
        torch.manual_seed(0)
        with DrawnOnCpu():
            drawn.append(draw(4, 4, dtype=dtype))
    assert torch.equal(drawn[0], drawn[2]) and torch.equal(drawn[1], drawn[2])


@pytest.mark.parametrize("name", [name for name in methods.names() if methods.build(name).random])
def test_random_methods_draw_the_same_on_each_device(name: str) -> None:
    """A method that drew elsewhere would be compared along other directions."""
    views = [view.float() for view in draw_views(24, 96, 2)]
    with DrawnOnCpu() as drawn:
        first, _ = value_and_gradients(methods.build(name), views)
    if name != "w_mse":  # it draws only for batches larger than its parts
        assert drawn.draws > 1  # the seed and the directions
    with DrawnOnCpu():
        again, _ = value_and_gradients(methods.build(name), [view.double() for view in views])
    assert max(map(relative, first, again)) < 1e-3


@pytest.mark.parametrize(("factor", "views"), [(1.01, 2), (1.01, 3), (float("nan"), 2)])
def test_a_form_that_is_wrong_on_the_device_is_noticed(factor: float, views: int) -> None:
    class Wrong(Regularizer):
        """A loss that is wrong in float32: with so many views, or in its gradient alone."""

        metadata = methods.build("vicreg").metadata
        forms = ("textbook", "gram")

        def terms(self, z1: Tensor, z2: Tensor) -> dict[str, Tensor]:
            loss = (z1 - z2).square().mean()
            if factor != factor and z1.dtype == torch.float32:
                loss = loss + (0 * loss).sqrt()
            return {"loss": loss}

        def view_terms(self, views_NQ: Any, global_views: int) -> dict[str, Tensor]:
            loss = super().view_terms(views_NQ, global_views)["loss"]
            wrong = (
                views_NQ[0].dtype == torch.float32 and len(views_NQ) == views and factor == factor
            )
            return {"loss": loss * (factor if wrong else 1.0)}

    errors = worst_errors(Wrong(), torch.device("cpu"))
    assert errors[torch.float64] <= 1e-7
    assert errors[torch.float32] > BOUNDS[torch.float32]
