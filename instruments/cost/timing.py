"""Measure a loss in each of the processes that share a batch; `losses` says what is measured."""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from regbench import methods
from regbench.benchmark.machine.compute import forbid_tf32
from regbench.benchmark.machine.meters import Stopwatch, draw_embeddings, peak_extra_bytes
from regbench.instruments.cost.harness import median, ratios, take_turns
from regbench.methods.forms.engine import LOCAL_ROWS, Engine
from regbench.processes import Place, one_line

# Short calls are repeated within a round, for a tenth of the time of the longest case, within these
# bounds.
_ROUND_MS = (20.0, 500.0)
# Memory of threads, libraries and the profiler beside the tensors, measured generously.
_RUNTIME_BYTES = 2**28

Run = Callable[[], Sequence[Tensor]]
Key = tuple[str, str, int]
"""Measurement that takes turns with others: "shared" or "alone"; the form; the number of views."""


@dataclass(frozen=True, kw_only=True)
class LossCost:
    """The cost of one method in one form at one size: a line of cost.csv.

    Attributes:
        method: Name in the registry.
        form: Form, never `auto`.
        auto: Whether `auto` stands for this form here.
        n: Batch size over all ranks.
        q: Embedding dimension.
        views: Views of each image, of which two are global.
        ranks: Processes that shared the batch.
        median_ms: Median time over rounds; None if it was not measured.
        low_ms: Shortest round.
        high_ms: Longest round.
        vs_textbook: Median over rounds of the time divided by that of `textbook` on one rank, at
            the same load.
        vs_one_rank: The same ratio to the same form on one rank; 1 for one rank.
        vs_two_views: The same ratio to the same form with two views, on as many ranks.
        extra_bytes: Peak memory of the rank that needs most, beyond embeddings and gradients.
        note: Why something was not measured; empty if nothing.
    """

    method: str
    form: str
    auto: bool
    n: int
    q: int
    views: int
    ranks: int
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    vs_textbook: float | None = None
    vs_one_rank: float | None = None
    vs_two_views: float | None = None
    extra_bytes: int | None = None
    note: str = ""


def join(place: Place, device: str, limit_bytes: int) -> torch.device:
    """Join the other processes, on `cpu` or `cuda`; return where this one computes.

    Args:
        place: Place of this process among the processes.
        device: Kind of device.
        limit_bytes: Memory that a GPU, or all processes on a CPU, may allocate: more fails as if
            there were none.
    """
    forbid_tf32()  # as in a training
    here = torch.device("cuda", place.rank) if device == "cuda" else torch.device("cpu")
    if here.type == "cuda":
        torch.cuda.set_device(here)
        whole_bytes = torch.cuda.get_device_properties(here).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / whole_bytes))
    else:
        # Without a limit, Linux promises more than there is, and then ends some process: not always
        # this one.
        used_bytes = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        own_bytes = limit_bytes // place.world + _RUNTIME_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (used_bytes + own_bytes, hard))
    if place.world > 1:
        # Each process also computes the loss alone, as the reference: no warning is needed.
        warnings.filterwarnings("ignore", LOCAL_ROWS)
        place.join("nccl" if here.type == "cuda" else "gloo")
    return here


def _largest(values: Sequence[float], here: torch.device) -> list[float]:
    """Find the maximum over ranks of each value."""
    tensor = torch.tensor(values, dtype=torch.float64, device=here)
    if dist.is_initialized():
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    maxima: list[float] = tensor.tolist()
    return maxima


def value_and_gradient(method: methods.Regularizer, views: Sequence[Tensor], engine: Engine) -> Run:
    """Make the call that is measured: the loss of leaves with the data of `views` and backward to
    them.

    The first two views are global.

    Returns:
        The call, which returns the gradients.
    """
    leaves_NQ = [view.detach().requires_grad_() for view in views]

    def run() -> Sequence[Tensor]:
        # The leaves keep no gradients, which would count as memory that was there before the next
        # call.
        loss = method.loss(*leaves_NQ, engine=engine, global_views=2)
        return torch.autograd.grad(loss, leaves_NQ)

    return run


def _milliseconds(here: torch.device, run: Run, times: int) -> float:
    """Measure the mean of some calls in a row, once all ranks are here and their devices idle."""
    clock = Stopwatch(here)
    if here.type == "cuda":
        torch.cuda.synchronize(here)
    if dist.is_initialized():
        # A rank that comes early would count its waiting for the others.
        dist.barrier()
    start = clock.mark()
    for _ in range(times):
        run()
    return clock.milliseconds(start, clock.mark()) / times


def measure_rows(
    here: torch.device, rows: Sequence[LossCost], dtype: torch.dtype, repeats: int, left_s: float
) -> list[LossCost]:
    """Measure forms and numbers of views in turns; with several ranks, each rank alone with the
    whole batch too.

    Args:
        here: Device of this process.
        rows: Cases to measure, all of one method and size.
        dtype: Dtype of the embeddings.
        repeats: Rounds; 0 for memory only.
        left_s: Time that it may take; the first call of each is made in any case.

    Returns:
        The rows, filled in; what failed, or is left out because it would take too long, has a note.
    """
    method = methods.build(rows[0].method)
    most_views = max(row.views for row in rows)
    whole = draw_embeddings(rows[0].n, rows[0].q, most_views, dtype, here)
    rank, ranks, group = 0, 1, None
    if dist.is_initialized():
        rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    done: dict[LossCost, LossCost] = {}
    calls: dict[Key, Run] = {}
    first_s: dict[LossCost, float] = {}
    for row in rows:
        shares = [view.tensor_split(ranks)[rank] for view in whole[: row.views]]
        run = value_and_gradient(method, shares, Engine(form=row.form, group=group))
        began_s = time.perf_counter()
        try:
            extra_bytes = peak_extra_bytes(run, here)
        except Exception as error:
            if ranks > 1:  # the other ranks may be waiting for this one
                raise
            note = f"failed: {one_line(error)}"
            is_full = isinstance(error, MemoryError | torch.OutOfMemoryError)
            # On a CPU, torch says no more than "allocate memory".
            if is_full or "allocate memory" in str(error):
                note = "left out: it needs more memory than the limit"
            done[row] = replace(row, note=note)
            continue
        # All ranks have to decide alike, so they decide by the slowest.
        slowest_s, most_bytes = _largest([time.perf_counter() - began_s, extra_bytes], here)
        done[row] = replace(row, extra_bytes=int(most_bytes))
        first_s[row] = slowest_s
        calls["shared", row.form, row.views] = run
    left_s -= sum(first_s.values())
    # Cheap rows come first, so that a budget leaves out the costliest.
    for row in sorted(first_s, key=first_s.__getitem__):
        # The rounds and the warm-up; with several ranks also alone, with all of their rows.
        rounds_s = first_s[row] * (repeats + 1) * (1 if ranks == 1 else 1 + ranks)
        if repeats and rounds_s > left_s:
            note = f"left out: about {rounds_s:.2g} s, over what is left of the budget"
            done[row] = replace(done[row], note=note)
            del calls["shared", row.form, row.views]
            continue
        left_s -= rounds_s
        if ranks > 1:
            alone = value_and_gradient(method, whole[: row.views], Engine(form=row.form))
            calls["alone", row.form, row.views] = alone
    if repeats and calls:
        # The slowest rank decides how often a call is repeated: all have to repeat it as often, or
        # would wait forever.
        warm_ms = _largest([_milliseconds(here, run, 1) for run in calls.values()], here)
        round_ms = max(_ROUND_MS[0], min(_ROUND_MS[1], 0.1 * max(warm_ms)))
        turns = {}
        # Fifty calls measure the shortest ones well enough; a clock may give 0 for a single one.
        for (key, run), ms in zip(calls.items(), warm_ms, strict=True):
            times = max(1, min(50, int(round_ms / max(ms, 1e-3))))
            turns[key] = partial(_milliseconds, here, run, times)
        found_ms = take_turns(turns, repeats)
        times_ms = {key: _largest(own_ms, here) for key, own_ms in found_ms.items()}
        done = {row: with_times(found, times_ms) for row, found in done.items()}
    return [done[row] for row in rows]


def with_times(row: LossCost, times_ms: Mapping[Key, list[float]]) -> LossCost:
    """Enter the times of a row's rounds and their ratios to those of others."""
    own_ms = times_ms.get(("shared", row.form, row.views))
    if own_ms is None:
        return row
    one_rank = "shared" if row.ranks == 1 else "alone"
    return replace(
        row,
        median_ms=median(own_ms),
        low_ms=min(own_ms),
        high_ms=max(own_ms),
        vs_textbook=median(ratios(own_ms, times_ms.get((one_rank, "textbook", row.views)))),
        vs_one_rank=median(ratios(own_ms, times_ms.get((one_rank, row.form, row.views)))),
        vs_two_views=median(ratios(own_ms, times_ms.get(("shared", row.form, 2)))),
    )
