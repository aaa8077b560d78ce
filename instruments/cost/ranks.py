"""How each of the processes that share a batch measures a loss; `losses` says what is measured."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from regbench import methods
from regbench.benchmark.meters import Stopwatch, peak_extra_bytes
from regbench.instruments.cost.harness import take_turns
from regbench.methods.engine import LOCAL_ROWS, Engine
from regbench.processes import Place, one_line

# n q max(n, q) of a probe at most: some milliseconds of a core, well above the fixed costs of a call.
_PROBE_WORK = 2**26
# Short calls are repeated within a round for so long: a tenth of the longest case, within these bounds.
_ROUND_MS = (20.0, 500.0)

Run = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True)
class Rank:
    """One of the processes that share a batch.

    Attributes:
        rank: Its number.
        world: How many there are.
        device: Where it computes.
    """

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @staticmethod
    def at(place: Place, device: str) -> Rank:
        """Join the others, on `cpu` or `cuda`."""
        here = torch.device("cuda", place.rank) if device == "cuda" else torch.device("cpu")
        if here.type == "cuda":
            torch.cuda.set_device(here)
        if place.world > 1:
            warnings.filterwarnings("ignore", LOCAL_ROWS)  # one process alone is what several are compared with
            place.join("nccl" if here.type == "cuda" else "gloo")
        return Rank(place.rank, place.world, here)

    def wait(self) -> None:
        """Wait until all ranks are here and their devices idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self.world > 1:
            dist.barrier()

    def largest(self, values: Sequence[float]) -> list[float]:
        """Find the maximum over ranks of each value."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.world > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        maxima: list[float] = tensor.tolist()
        return maxima


@dataclass(frozen=True, kw_only=True)
class Case:
    """A method at one size.

    Attributes:
        method: Name in the registry.
        n: Batch size over all ranks.
        q: Embedding dimension.
        dtype: Dtype of the embeddings.
    """

    method: str
    n: int
    q: int
    dtype: str = "float32"

    def embeddings(self, device: torch.device, views: int = 2) -> list[Tensor]:
        """Draw those of each view, the same each time."""
        generator = torch.Generator().manual_seed(0)
        first_NQ = torch.randn(self.n, self.q, generator=generator)
        drawn = [first_NQ]
        for _ in range(views - 1):
            drawn.append(first_NQ + 0.5 * torch.randn(self.n, self.q, generator=generator))
        return [z_NQ.to(device, getattr(torch, self.dtype)) for z_NQ in drawn]


class Variant(NamedTuple):
    """What is measured of a method at one size, side by side with others: a form and a number of views."""

    form: str
    views: int


def value_and_gradient(method: methods.Regularizer, views: Sequence[Tensor], engine: Engine) -> Run:
    """Make the call that is measured: the loss of leaves with the data of `views` and backward to them.

    The first two views are global.

    Returns:
        The call, which returns the gradients.
    """
    leaves_NQ = [view.detach().requires_grad_() for view in views]

    def run() -> Sequence[Tensor]:
        # The leaves keep no gradients, which would count as memory that was there before the next call.
        return torch.autograd.grad(method.loss(*leaves_NQ, engine=engine, global_views=2), leaves_NQ)

    return run


def gemm_floor(views: Sequence[Tensor]) -> Run:
    """Make a call of the matrix products that value and gradient of two views need at least, see `losses`."""
    # Losses compute half precision in float32.
    dtype = torch.promote_types(views[0].dtype, torch.float32)
    wide = []
    for view in views:
        z_NQ = view.detach().to(dtype)
        # With q < n the same products of the transposed embeddings.
        wide.append(z_NQ if len(z_NQ) <= z_NQ.shape[1] else z_NQ.T)
    small = len(wide[0])
    half = -(-small // 2)
    product, gradient = wide[0].new_empty(half, small), torch.empty_like(wide[0])
    # It stands for the derivatives by the Gram matrix; their values do not matter for the time.
    square = wide[0].new_full((small, small), 1e-3)

    def run() -> Sequence[Tensor]:
        for view in wide:
            torch.mm(view[:half], view.T, out=product)
            torch.mm(square, view, out=gradient)
        return []

    return run


@dataclass(frozen=True)
class Prediction:
    """What a call will take: its time and its extra memory."""

    seconds: float
    bytes: int


def predict(here: Rank, case: Case, variant: Variant, memory_limit_bytes: int) -> Prediction:
    """Predict what a call takes from calls with n and q divided by one number.

    Time is taken to grow with the cube of that number, which holds for matrix products, and memory with its square;
    where that would be over the limit, as it grows between two probes. A size at which 32 matrices of its longer side
    are within the limit is not probed for memory: the answer is 0 bytes.
    """
    regularizer, n, q = methods.build(case.method), case.n, case.q
    divisor = 1
    while (n // divisor) * (q // divisor) * (max(n, q) // divisor) > _PROBE_WORK and min(n, q) // divisor >= 16:
        divisor *= 2

    def probe(divisor: int) -> tuple[Run, float]:
        small = replace(case, n=max(2, n // divisor), q=max(1, q // divisor))
        views = small.embeddings(here.device, variant.views)
        return value_and_gradient(regularizer, views, Engine(form=variant.form)), max(n / small.n, q / small.q)

    run, ratio = probe(divisor)
    run()
    seconds = min(_milliseconds(here, run, 1) for _ in range(2)) / 1e3 * ratio**3
    if 32 * max(n, q) ** 2 * 4 <= memory_limit_bytes:
        return Prediction(seconds, 0)
    measured = peak_extra_bytes(run, here.device)
    exponent = 2.0
    if ratio > 1 and measured * ratio**2 > memory_limit_bytes:
        smaller, smaller_ratio = probe(2 * divisor)
        growth = measured / max(1, peak_extra_bytes(smaller, here.device))
        exponent = min(2.0, max(0.0, math.log(growth, smaller_ratio / ratio)))
    return Prediction(seconds, int(measured * ratio**exponent))


def _milliseconds(here: Rank, run: Run, number: int) -> float:
    """Measure the mean of some calls in a row."""
    clock = Stopwatch(here.device)
    here.wait()
    start = clock.mark()
    for _ in range(number):
        run()
    return clock.milliseconds(start, clock.mark()) / number


@dataclass(frozen=True)
class Measured:
    """Times and memory of a method's forms at one size.

    Attributes:
        shared_ms: Milliseconds of each round by variant, the slowest rank's.
        alone_ms: The same with every rank computing the whole batch.
        floor_ms: Milliseconds of the GEMM floor of two views.
        extra_bytes: Extra memory by variant, of the rank that needs most.
        failed: Errors by variant.
    """

    shared_ms: dict[Variant, list[float]] = field(default_factory=dict)
    alone_ms: dict[Variant, list[float]] = field(default_factory=dict)
    floor_ms: list[float] = field(default_factory=list)
    extra_bytes: dict[Variant, int] = field(default_factory=dict)
    failed: dict[Variant, str] = field(default_factory=dict)


def measure_variants(here: Rank, case: Case, variants: Sequence[Variant], repeats: int) -> Measured:
    """Measure variants in turns; with several ranks, each rank alone with the whole batch too.

    Args:
        here: This process.
        case: The method and the size.
        variants: Forms and numbers of views.
        repeats: Rounds; 0 for memory only.
    """
    regularizer = methods.build(case.method)
    whole = case.embeddings(here.device, max((variant.views for variant in variants), default=2))
    group = dist.group.WORLD if here.world > 1 else None
    result = Measured()
    calls: dict[tuple[str, Variant | None], Run] = {}
    for variant in variants:
        views = whole[: variant.views]
        shares = [view.tensor_split(here.world)[here.rank] for view in views]
        run = value_and_gradient(regularizer, shares, Engine(form=variant.form, group=group))
        try:
            result.extra_bytes[variant] = int(here.largest([peak_extra_bytes(run, here.device)])[0])
        except Exception as error:
            if here.world > 1:  # the other ranks may be waiting for this one
                raise
            result.failed[variant] = one_line(error)
            continue
        calls["shared", variant] = run
        if here.world > 1:
            calls["alone", variant] = value_and_gradient(regularizer, views, Engine(form=variant.form))
    if not repeats or not calls:
        return result
    # It takes turns with the rest, so that its ratios are of one round, too.
    calls["floor", None] = gemm_floor(whole[:2])
    # The slowest rank decides how often a call is repeated: all have to repeat it as often, or they would wait forever.
    warm_ms = here.largest([_milliseconds(here, run, 1) for run in calls.values()])
    round_ms = max(_ROUND_MS[0], min(_ROUND_MS[1], 0.1 * max(warm_ms)))
    turns = {}
    for (key, run), ms in zip(calls.items(), warm_ms, strict=True):
        times = max(1, min(50, int(round_ms / max(ms, 1e-3))))
        turns[key] = partial(_milliseconds, here, run, times)
    for (kind, timed), own_ms in take_turns(turns, repeats).items():
        slowest_ms = here.largest(own_ms)
        if timed is None:
            result.floor_ms.extend(slowest_ms)
        else:
            (result.shared_ms if kind == "shared" else result.alone_ms)[timed] = slowest_ms
    return result
